//! The embedded engine: all counters in one process, a journal in files, a store of sorted runs.
//!
//! [`Embedded`] is the engine with its threads, [`Machine`] the same without. [`host`] has the parts that another
//! engine can reuse.

pub mod backup;
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
mod metrics;
mod signal;
pub mod store;

pub use checkpoint::{Checkpoint, Step};
pub use embedded::{Config, Embedded, StoredClock};
pub use identity::DirId;
pub use machine::{Durability, Machine, Nudge, OpenError, Seal, Settings, Sweep, WarmUp};
