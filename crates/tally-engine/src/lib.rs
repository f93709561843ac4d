//! The embedded engine: one process, every counter, a journal of files and a store of sorted runs.

pub mod check;
mod checkpoint;
pub mod clock;
pub mod disk;
mod embedded;
pub mod host;
mod identity;
pub mod journal;
mod layout;
pub mod limits;
mod lock;
mod machine;
mod measure;
mod signal;
pub mod store;

pub use checkpoint::{Checkpoint, Step};
pub use embedded::{Config, Embedded, StoredClock};
pub use identity::DirId;
pub use machine::{Durability, Machine, Nudge, OpenError, Seal, Settings, Sweep, Warmth};
