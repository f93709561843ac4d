//! The embedded engine: one process, every counter, a journal of files and a store of sorted runs.

pub mod check;
pub mod disk;
mod embedded;
pub mod journal;

pub use embedded::{Config, Embedded, OpenError};
