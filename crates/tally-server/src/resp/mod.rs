//! The Redis protocol, versions 2 and 3, so that any Redis client in any language is a Tally client.
//!
//! A request goes one way: `listen` accepts a connection and hands it to a `worker`, a thread of its own. There `reader`
//! reads the `connection` and parses its requests with `wire`. `commands` finds each command by name, parses
//! its arguments, has its keys admitted, and adds its events and the plan of its reply to the `turn` that the thread
//! gathers (`gather`). The turn is submitted whole. When it is finished, each `reply_plan` becomes a `reply`, and the
//! connection writes it.
//!
//! Dependencies go one way, too: each module may use only those declared before it below. Tidy checks this.

mod glob;
mod reply;
mod wire;

mod errors;

mod clients;
mod cursors;
mod monitors;
mod stats;

mod server;

mod connection;
mod session;

mod reply_plan;

mod turn;

mod commands;

mod gather;

mod reader;

mod worker;

mod listen;

#[cfg(test)]
mod tests;

pub use listen::{Threads, listen};
pub use server::{RespServer, ShownSettings};
