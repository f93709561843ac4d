//! The journal: the ordered durable sequence of batches, kept in segment files.
//!
//! It is one endless sequence of bytes; a [`Position`](tally_core::time::Position) is an offset in it. The sequence
//! is cut into segments, one file each, named after the position of their first byte:
//!
//! ```text
//! journal-0000000000000000.seg                    journal-00000000000001c8.seg
//! ┌────────┬───────┬───────┬─ ─ ─ ─ ─ ─ ─┐        ┌────────┬───────┬─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─┐
//! │ header │ frame │ frame │ zero, stale │        │ header │ frame │ reserved, zero or stale  │
//! └────────┴───────┴───────┴─ ─ ─ ─ ─ ─ ─┘        └────────┴───────┴─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─┘
//! 0        40              456 ─ the next base ─▶ 456      496
//! ```
//!
//! A segment begins exactly where the last frame of the one before ends, so a missing file shows as a gap. A frame
//! never spans two segments. Both headers are described in [`segment`] and [`frame`].
//!
//! The path of a batch, in order:
//! 1. the sealing thread encodes it into the [`Tail`], whose [`Reservation`] gives it a position or says [`NoRoom`],
//!    without any I/O;
//! 2. the flusher takes the queued [`Group`] and hands it to [`Writer::flush`], which stamps, writes and syncs it,
//!    rolling to the next segment where planned;
//! 3. [`Writer::prepare_next`] reserves the next segment ahead of need;
//! 4. once a checkpoint covers a segment, [`Writer::trim`] recycles it.
//!
//! On start, [`replay`] reads everything and changes nothing; the [`Repair`] it hands out is applied once all else has
//! succeeded. [`recover`] does both, [`inspect`] only the first.
//!
//! # What makes it safe
//!
//! * **A journal name always has a sound header.** A segment gets its header under a spare name, is synced, and only
//!   then renamed. A segment without a sound header is damage, never the trace of a crash.
//! * **No frame is written into a segment before its name is durable**, and none before every frame of the segment
//!   before it is.
//! * **Stale bytes cannot be taken for frames.** A frame carries its own position under its checksum. Positions only
//!   grow, except that recovery may cut an unflushed tail; it cuts it off the file, durably, before they are reused.
//! * **A torn tail and damage are told apart.** A frame carries the position up to which all was durable when it was
//!   written, and [`journal.end`](end) records it outside the segments. If either says that a bad place was durable once,
//!   the place is damaged. [`recovery`] says what this cannot tell.
//! * **A file of another directory is noticed.** Segments and `journal.end` carry the directory's identity.
//! * **What recovery has shown is durable.** Frames found after a mere process crash may exist only in the page cache;
//!   recovery writes them once more and syncs before anyone builds on them.
//!
//! What is absent: threads, clocks, and any file access that does not go through [`crate::disk::Disk`].

pub mod end;
pub mod frame;
mod pages;
pub mod reader;
pub mod recovery;
pub mod segment;
mod spares;
pub mod tail;
pub mod writer;

pub use frame::{Frame, FrameFault, Salt, decode_frame, encode_frame, framed_len};
pub use recovery::{FrameError, JournalError, OnFrame, Recovered, Repair, inspect, recover, replay};
pub(crate) use segment::read_headers;
pub use segment::remove_before;
pub use tail::{Group, NoRoom, Placement, Reservation, Tail};
pub use writer::Writer;
