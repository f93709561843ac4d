//! The Redis protocol, versions 2 and 3, so that any Redis client in any language is a Tally client.
//!
//! A request goes through these files in order. `listen` accepts connections and hands each to a `worker`, a thread of its
//! own. There `session` reads a connection, `wire` takes requests out of its bytes, `commands` knows them by name, and
//! `execute` decides what each comes to: events (`op`) and a `plan` of the reply, a reply at once (`about`, `info`,
//! `settings`), or a command that waits for its turn (`slow`). Events of all connections gather in one `turn`, which is
//! submitted whole. When it is settled, plans become replies, and `connection` writes them.

mod about;
mod clients;
mod commands;
mod connection;
mod cursors;
mod door;
mod errors;
mod execute;
mod glob;
mod info;
mod listen;
mod op;
mod plan;
mod reply;
mod session;
mod settings;
mod slow;
mod turn;
mod wire;
mod worker;

#[cfg(test)]
mod tests;

pub use door::{About, Door};
pub use listen::{Threads, listen};
