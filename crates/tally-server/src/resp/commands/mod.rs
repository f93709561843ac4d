//! Commands. Each has everything in the file of its group: its spec, its arguments, the events it submits, and how its
//! reply is built from their outcomes.
//!
//! | file | commands |
//! |---|---|
//! | `counters` | `INCR`, `INCRBY`, `DECR`, `DECRBY`, `GET`, `MGET`, `SET`, `GETSET`, `GETDEL` |
//! | `sets` | `SETEX`, `PSETEX`, `SETNX`, `MSET`, `MSETNX`, `GETEX`, `STRLEN` |
//! | `copies` | `RENAME`, `RENAMENX`, `COPY` |
//! | `bounds` | `INCREX` |
//! | `expiry` | `EXPIRE`, `TTL`, `PERSIST` and their variants |
//! | `keyspace` | `DEL`, `UNLINK`, `EXISTS`, `TOUCH`, `TYPE`, `SCAN`, `KEYS`, `DBSIZE`, `RANDOMKEY`, `FLUSHALL`, `FLUSHDB` |
//! | `tally` | `TALLY.ADD`, `TALLY.READ` |
//! | `transactions`, `watch` | `MULTI`, `EXEC`, `DISCARD`, `WATCH`, `UNWATCH` |
//! | `connection` | `PING`, `ECHO`, `HELLO`, `AUTH`, `QUIT`, `RESET`, `CLIENT` |
//! | `database` | `SELECT`, `SWAPDB`, `MOVE`, `CLUSTER`, `READONLY`, `READWRITE`, `ASKING` |
//! | `introspection` | `COMMAND` |
//! | `diagnosis` | `OBJECT`, `MEMORY`, `SLOWLOG`, `LATENCY`, `ROLE`, `LASTSAVE`, `WAIT`, `ACL`, `MODULE` |
//! | `monitor` | `MONITOR` |
//! | `info`, `config`, `server` | `INFO`, `CONFIG`, `TIME`, `FUNCTION` |
//!
//! `spec` says what a command is, `call` what it gets to work with, `table` finds it by name, and `dispatch` executes
//! it.

mod bounds;
mod call;
mod config;
mod connection;
mod copies;
mod counters;
mod database;
mod deadlines;
mod diagnosis;
mod dispatch;
mod expiry;
mod info;
mod introspection;
mod keyspace;
mod monitor;
mod refusal;
mod server;
mod sets;
mod spec;
mod table;
mod tally;
#[cfg(test)]
mod tests;
mod transactions;
mod watch;

pub use call::CallContext;
pub use dispatch::dispatch;
#[cfg(test)]
pub use introspection::describe_all;
pub use monitor::dispatch_monitored;
pub use spec::{EngineReply, NextStep, Spec};
#[cfg(test)]
pub use table::{COMMANDS, resolve};
