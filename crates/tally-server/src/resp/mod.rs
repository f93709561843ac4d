//! The Redis protocol, versions 2 and 3, so that any Redis client in any language is a Tally client.
//!
//! `wire` reads requests, `commands` knows every command by name, `reply` writes answers. All are plain functions over
//! bytes.

pub mod commands;
pub mod glob;
pub mod reply;
pub mod wire;

#[cfg(test)]
mod tests;
