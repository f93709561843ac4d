//! The parts of an engine that do not know where its journal is.
//!
//! The embedded engine writes its journal to files and knows a batch's position before it applies it. An engine on top
//! of a message broker learns the position only after the append. Both can use:
//!
//! * [`OpenBatch`]: calls join the batch that is filling, block while it is full, and get a [`Ticket`] that follows it
//!   from then on. What a ticket resolves to, and in which stages, is up to the engine.
//! * [`ResidentPartition`]: a partition whose records live partly in memory and partly in a [`RecordStore`], and the
//!   fetching of missing ones with the partition unlocked.
//! * [`CaptureDriver`]: copies everything that changed as of one position to a [`RecordSink`], in slices, while batches
//!   continue to be applied.
//!
//! Nothing here starts a thread, opens a file or reads a clock.

mod capture;
mod open_batch;
mod resident;
mod ticket;

pub use capture::{CaptureDriver, CaptureProgress, CapturedRequests, RecordSink};
pub use open_batch::{JoinedBatch, OpenBatch};
pub use resident::{Fetched, Hosted, MalformedRecord, RecordSnapshot, RecordStore, ResidentPartition, list_snapshots};
pub use ticket::{Stage, Ticket, Wait};
