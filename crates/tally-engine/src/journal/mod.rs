//! The journal: the ordered durable sequence of batches, kept in segment files.
//!
//! It is one sequence of bytes; a [`Position`](tally_core::time::Position) is an offset in it. The sequence is split
//! into segment files, named after the position of their first byte:
//!
//! ```text
//! journal-0000000000000000.seg                    journal-00000000000001c8.seg
//! ┌────────┬───────┬───────┬─ ─ ─ ─ ─ ─ ─┐        ┌────────┬───────┬─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─┐
//! │ header │ frame │ frame │ zero, stale │        │ header │ frame │ reserved, zero or stale  │
//! └────────┴───────┴───────┴─ ─ ─ ─ ─ ─ ─┘        └────────┴───────┴─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─┘
//! 0        40              456 ─ the next base ─▶ 456      496
//! ```
//!
//! A segment begins exactly where the last frame of the previous one ends, so a missing file leaves a gap. A frame
//! never spans two segments. [`segment`] and [`frame`] describe the headers.
//!
//! The path of a batch, in order:
//! 1. the sealing thread encodes it into the [`Tail`], whose [`Reservation`] gives it a position or
//!    returns [`NoRoom`], without any I/O;
//! 2. the flusher takes the queued [`Group`] and passes it to [`Writer::flush`], which adds checksums, writes and
//!    syncs it, and rolls to the next segment where reserved;
//! 3. [`Writer::prepare_next`] reserves the next segment in advance;
//! 4. once a checkpoint covers a segment, [`Writer::trim`] recycles it.
//!
//! At start, [`replay`] reads everything and changes nothing. The [`Repair`] that it returns is applied once everything
//! else has succeeded. [`recover`] does both, [`inspect`] only the first.
//!
//! # What makes it safe
//!
//! * **A segment always has a valid header.** The header is written under the spare's name and synced before the
//!   rename. So an invalid header is damage, never the result of a crash.
//! * **No frame is written to a segment before its name is durable**, nor before every frame of the previous segment
//!   is.
//! * **Stale bytes cannot be mistaken for frames.** A frame contains its own position, covered by its checksum.
//!   Positions only grow, except when recovery discards an unflushed tail. It then truncates the file, durably, before
//!   they are reused.
//! * **A torn tail is distinguished from damage.** A frame contains the position up to which everything was durable
//!   when it was written, and [`journal.end`](end) records it outside the segments. If either covers an invalid frame,
//!   that is damage. [`recovery`] lists what this cannot detect.
//! * **A file of another directory is detected.** Segments and `journal.end` contain the directory's identity.
//! * **What recovery has replayed is durable.** After a process crash, frames may exist only in the page cache.
//!   Recovery rewrites and syncs them before they are relied on.
//!
//! No threads, no clocks, and all file access goes through [`crate::disk::Disk`].

use tally_core::time::Position;

use self::end::{END_FILE, EndRecord};
use crate::identity::DirId;

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
pub use segment::remove_before;
pub(crate) use segment::{is_journal, is_spare, read_headers};
pub use tail::{Group, NoRoom, Placement, Reservation, Tail};
pub use writer::Writer;

/// The files of an empty journal that begins at `position`, in the order in which they have to be written.
pub(crate) fn empty_at(id: DirId, position: Position) -> [(String, Vec<u8>); 2] {
    let end = EndRecord { end: position, segment: Some(position) };
    let segment = segment::encode_header(position, Salt::default(), id, segment::SEGMENT_HEADER_BYTES);
    [(END_FILE.to_owned(), end.file(id)), (segment::segment_name(position), segment.to_vec())]
}
