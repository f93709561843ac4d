//! The Redis protocol, versions 2 and 3, so that any Redis client in any language is a Tally client.
//!
//! `wire` reads requests, `reply` writes answers, `commands` knows every command by name. All three are plain
//! functions over bytes.

pub mod reply;
pub mod wire;
