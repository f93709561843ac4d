//! The embedded engine: one process, every counter, a journal of files and a store of sorted runs.

pub mod check;
mod checkpoint;
pub mod clock;
pub mod disk;
mod durability;
mod embedded;
pub mod journal;
mod lock;
mod machine;
mod measure;
mod signal;
pub mod store;
mod ticket;

pub use checkpoint::{Checkpoint, Step};
pub use durability::Durability;
pub use embedded::{Config, Embedded, StoredClock};
pub use machine::{Machine, Nudge, OpenError, Seal, Settings, Sweep, Warmth};
