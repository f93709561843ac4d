//! Recovery of the journal: replay every frame, truncate a torn tail, refuse damage.
//!
//! The frames of every segment but the last must lead exactly to the base of the next. In the last one, the journal
//! ends at the first offset without a valid frame. Zeros and stale frames after it are normal. Any of these makes it
//! damage, because acknowledged data is lost:
//! * a later valid frame says that the offset was durable when it was written;
//! * [`journal.end`](super::end) has a later position or a later segment;
//! * the file is shorter than the segment's header says and does not end with a frame: only recovery shortens a
//!   segment, and only to the end of a durable frame;
//! * a checkpoint covers the offset.
//!
//! [`replay`] changes nothing. [`Repair::apply`] does the repairs, once everything else about the start has succeeded.
//!
//! # What cannot be detected
//!
//! * **Damage to the flushes after the last write of `journal.end`, if no valid frame of a later flush follows.** It
//!   looks exactly like a torn write. The engine writes `journal.end` after
//!   [`MARK_IDLE_MS`](crate::limits::MARK_IDLE_MS) without a flush, about every
//!   [`MARK_BUSY_MS`](crate::limits::MARK_BUSY_MS) under load, and when it begins a segment.
//! * **A directory with nothing but an empty manifest.** A crash in the first start leaves the same. If there is also a
//!   `tally.lock`, which only a successful start writes, it is damage.
//! * **Damage to both the newer record of `journal.end` and the end of the journal.** The record then counts as torn,
//!   and the older one covers less.
//! * **A directory restored to an earlier state**: all its files agree.
//! * **Damage to the end of a journal of format 1**, which has no `journal.end` and does not record the length of its
//!   files. The first start of this version converts it.

use std::io;
use std::sync::Arc;

use tally_core::time::Position;

use super::end::{END_FILE, EndRecord};
use super::frame::{Frame, FrameFault};
use super::reader::SegmentReader;
use super::segment::{FORMAT_VERSION, Header, HeaderFault, list, segment_name};
use crate::disk::{Disk, DiskFile};
use crate::identity::{DirId, FOREIGN};
use crate::layout;

/// Why a callback refused a frame.
pub type FrameError = Box<dyn std::error::Error + Send + Sync>;

/// Called for each frame, in order.
pub type OnFrame<'a> = dyn FnMut(Frame<'_>) -> Result<(), FrameError> + 'a;

/// Bytes rewritten at once.
const REWRITE_BYTES: u64 = 1 << 20;

/// What replay found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// The end of the journal, where a [`Writer`](super::Writer) continues.
    pub end: Position,
    /// Segments read.
    pub segments: usize,
    /// Frames replayed.
    pub frames: u64,
    /// Bytes verified, including skipped frames.
    pub bytes: u64,
    /// Bytes of unflushed frames at the end that are to be truncated, according to their headers.
    pub truncated_bytes: u64,
}

/// Why the journal cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// Something that was durable is lost.
    #[error("{file} is damaged at byte {offset}: {what}")]
    Damaged {
        /// The segment, which may be missing.
        file: String,
        /// Offset of the invalid frame.
        offset: u64,
        /// What is wrong.
        what: String,
    },
    /// A newer version wrote it.
    #[error(
        "{file} has journal format {version}, but this version of Tally reads up to {FORMAT_VERSION}; use a newer version"
    )]
    Newer {
        /// The segment.
        file: String,
        /// Its format.
        version: u8,
    },
    /// The callback refused a valid frame.
    #[error("{file}: the frame at byte {offset} cannot be replayed: {source}")]
    Refused {
        /// The segment.
        file: String,
        /// Offset of the frame.
        offset: u64,
        /// Why.
        source: FrameError,
    },
    /// The disk failed.
    #[error("{file}: {source}")]
    Io {
        /// The segment, or `.` for the directory.
        file: String,
        /// The error of the disk.
        source: io::Error,
    },
}

/// What must be repaired before the journal is continued.
#[must_use]
pub struct Repair(Option<LastSegment>);

impl Repair {
    /// Truncates a torn tail and makes the replayed frames durable.
    pub fn apply(self) -> Result<(), JournalError> {
        self.0.map_or(Ok(()), |last| io_at(last.base, last.make_durable()))
    }
}

/// Replays every frame from `from` on and changes nothing.
///
/// `id` is the identity of the directory. `from` is the position of the checkpoint: the end of a frame, or zero.
/// Segments entirely before it may be missing; frames before it are verified and skipped. The journal can be continued
/// at [`Recovered::end`] once the repair is applied. `progress` is called with the bytes done and their total.
pub fn replay(
    disk: &Arc<dyn Disk>,
    id: DirId,
    from: Position,
    on_frame: &mut OnFrame<'_>,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(Recovered, Repair), JournalError> {
    let progress = ReplayProgress { report: progress, done: 0, reported: 0, total: 0 };
    let end = EndRecord::read(disk.as_ref(), id)?;
    let mut replay =
        FrameReplay { disk: disk.as_ref(), id, from, end, on_frame, progress, found: Recovered::default() };
    let last = replay.run()?;
    Ok((replay.found, Repair(last)))
}

/// Replays and repairs.
pub fn recover(
    disk: &Arc<dyn Disk>,
    id: DirId,
    from: Position,
    on_frame: &mut OnFrame<'_>,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Recovered, JournalError> {
    let (found, repair) = replay(disk, id, from, on_frame, progress)?;
    repair.apply()?;
    Ok(found)
}

/// Like [`recover`], but changes nothing.
pub fn inspect(
    disk: &Arc<dyn Disk>,
    id: DirId,
    from: Position,
    on_frame: &mut OnFrame<'_>,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Recovered, JournalError> {
    replay(disk, id, from, on_frame, progress).map(|(found, _)| found)
}

/// One pass over the journal.
struct FrameReplay<'a, 'f> {
    disk: &'a dyn Disk,
    id: DirId,
    from: Position,
    /// The content of `journal.end`.
    end: Option<EndRecord>,
    on_frame: &'a mut OnFrame<'f>,
    progress: ReplayProgress<'a>,
    found: Recovered,
}

/// How far the valid frames of a segment reach.
struct SegmentScan {
    /// Offset of their end.
    end: u64,
    /// Why they end there, unless they reached the next segment's base.
    fault: Option<FrameFault>,
    /// Everything before this was durable when the last frame was written.
    flushed_before: Position,
    /// Bytes before the first frame.
    header: u64,
}

/// The segment in which the journal ends.
struct LastSegment {
    base: Position,
    file: Arc<dyn DiskFile>,
    scan: SegmentScan,
}

impl FrameReplay<'_, '_> {
    fn run(&mut self) -> Result<Option<LastSegment>, JournalError> {
        let bases = self.relevant_bases()?;
        self.progress.total = self.bytes_total(&bases)?;
        let mut buffer = Vec::new();
        let mut last = None;
        let mut newest_format = 0;
        for (index, &base) in bases.iter().enumerate() {
            let (mut reader, header) = self.open(base, std::mem::take(&mut buffer))?;
            if header.version < newest_format {
                return Err(damaged(base, 0, "the segment has an older format than the one before it"));
            }
            newest_format = header.version;
            let next = bases.get(index + 1).copied();
            let scan = self.scan(&mut reader, base, header, next)?;
            self.found.segments += 1;
            self.found.bytes += scan.end;
            match next {
                Some(next) => self.expect_to_lead(&scan, base, reader.len(), next)?,
                None => self.end_at(&scan, base, header, &mut reader)?,
            }
            let (file, used) = reader.into_parts();
            buffer = used;
            last = Some(LastSegment { base, file, scan });
        }
        self.progress.finish();
        Ok(last)
    }

    /// The segments to read: the one that holds `from`, and all that follow.
    fn relevant_bases(&self) -> Result<Vec<Position>, JournalError> {
        let mut bases = list(self.disk).map_err(|source| JournalError::Io { file: ".".to_owned(), source })?.bases;
        let newest = self.end.and_then(|end| end.segment);
        if let Some(newest) = newest.filter(|newest| bases.last().is_none_or(|last| last < newest)) {
            let what = format!("the segment is missing, but {END_FILE} says that it existed");
            return Err(damaged(newest, 0, what));
        }
        let begun = bases.partition_point(|base| *base <= self.from);
        if begun == 0 && (self.from > Position(0) || !bases.is_empty()) {
            let what = match bases.first() {
                Some(first) => format!("the segment is missing; the first one found is {}", segment_name(*first)),
                None => "the segment is missing, as are all others".to_owned(),
            };
            return Err(JournalError::Damaged { file: segment_name(self.from), offset: 0, what });
        }
        bases.drain(..begun.saturating_sub(1));
        Ok(bases)
    }

    fn bytes_total(&self, bases: &[Position]) -> Result<u64, JournalError> {
        let (Some(first), Some(last)) = (bases.first(), bases.last()) else { return Ok(0) };
        let last_len = io_at(*last, self.disk.open(&segment_name(*last)).and_then(|file| file.len()))?;
        Ok(last.0 - first.0 + last_len)
    }

    fn open(&self, base: Position, buffer: Vec<u8>) -> Result<(SegmentReader, Header), JournalError> {
        let file = io_at(base, self.disk.open(&segment_name(base)))?;
        let mut reader = io_at(base, SegmentReader::new(file, base, buffer))?;
        let header = match io_at(base, reader.header())? {
            Ok(header) => header,
            Err(HeaderFault::Newer(version)) => return Err(JournalError::Newer { file: segment_name(base), version }),
            Err(HeaderFault::Damaged(what)) => return Err(damaged(base, 0, what)),
        };
        if header.origin.is_some_and(|origin| origin.id != self.id) {
            return Err(damaged(base, 0, FOREIGN));
        }
        if header.origin.is_some() && self.end.is_none() {
            return Err(layout::missing_end(&format!("{} was written with it", segment_name(base))));
        }
        Ok((reader, header))
    }

    /// Replays frames up to the first invalid one or the next segment's base.
    fn scan(
        &mut self,
        reader: &mut SegmentReader,
        base: Position,
        header: Header,
        next: Option<Position>,
    ) -> Result<SegmentScan, JournalError> {
        let header = header.bytes();
        let mut scan = SegmentScan { end: header, fault: None, flushed_before: base, header };
        self.expect_boundary(base, 0, scan.end)?;
        while next.is_none_or(|next| base.0 + scan.end < next.0) {
            let frame = match io_at(base, reader.frame(scan.end))? {
                Ok(frame) => frame,
                Err(fault) => {
                    scan.fault = Some(fault);
                    break;
                }
            };
            let offset = scan.end;
            scan.end = frame.end.0 - base.0;
            scan.flushed_before = frame.flushed_before;
            if frame.position < self.from {
                self.expect_boundary(base, offset, scan.end)?;
            } else {
                self.found.frames += 1;
                (self.on_frame)(frame).map_err(|source| JournalError::Refused {
                    file: segment_name(base),
                    offset,
                    source,
                })?;
            }
            self.progress.advance(scan.end - offset);
        }
        Ok(scan)
    }

    /// A checkpoint lies between frames, never inside one.
    fn expect_boundary(&self, base: Position, start: u64, end: u64) -> Result<(), JournalError> {
        if base.0 + start < self.from.0 && self.from.0 < base.0 + end {
            let what = format!("the checkpoint at position {} lies inside this frame or header", self.from);
            return Err(damaged(base, start, what));
        }
        Ok(())
    }

    /// The frames of a segment must lead exactly to the next one.
    fn expect_to_lead(&self, scan: &SegmentScan, base: Position, len: u64, next: Position) -> Result<(), JournalError> {
        let reached = Position(base.0 + scan.end);
        let next_name = segment_name(next);
        match scan.fault {
            None if reached == next => Ok(()),
            None => Err(damaged(base, next.0 - base.0, format!("the frames extend past the beginning of {next_name}"))),
            Some(FrameFault::Absent) if next.0 - base.0 > len => {
                let what = format!("the segment is missing; the next one found is {next_name}");
                Err(damaged(reached, 0, what))
            }
            Some(fault) => Err(damaged(base, scan.end, format!("{fault}, but the journal continues in {next_name}"))),
        }
    }

    /// Checks that the journal, which ends in this segment, has lost nothing that was durable.
    fn end_at(
        &mut self,
        scan: &SegmentScan,
        base: Position,
        header: Header,
        reader: &mut SegmentReader,
    ) -> Result<(), JournalError> {
        let reached = Position(base.0 + scan.end);
        let fault = scan.fault.unwrap_or(FrameFault::Absent);
        let refused = |what: String| Err(damaged(base, scan.end, what));
        let tail = io_at(base, reader.scan_tail(scan.end))?;
        if let Some(later_flush) = tail.later_flush {
            return refused(format!("{fault}, but the frame at byte {later_flush} shows that this was flushed"));
        }
        if let Some(end) = self.end.map(|record| record.end).filter(|end| reached < *end) {
            return refused(format!("{fault}, but {END_FILE} says that everything up to position {end} was flushed"));
        }
        let len = reader.len();
        if let Some(reserved) = header.origin.map(|origin| origin.reserved_bytes)
            && (len > reserved || (len < reserved && len != scan.end))
        {
            return refused(format!("the file has {len} bytes instead of {reserved} and does not end with a frame"));
        }
        if reached < self.from {
            return refused(format!("{fault}: the journal ends at {reached}, before the checkpoint at {}", self.from));
        }
        self.found.truncated_bytes = tail.claims_end - scan.end;
        self.found.end = if scan.end == scan.header { base } else { reached };
        Ok(())
    }
}

impl LastSegment {
    /// Makes the frames durable, and truncates what follows, so that it cannot pass for frames when its positions are
    /// reused.
    ///
    /// After a process crash, frames may exist only in the page cache. After a failed sync they may be marked clean
    /// there, so another sync would not write them. So frames that are not known to be durable are rewritten. They are
    /// synced before the truncation, because a truncated file that lacks a frame counts as damaged.
    fn make_durable(&self) -> io::Result<()> {
        let unproven = self.scan.flushed_before.0.saturating_sub(self.base.0).max(self.scan.header);
        let mut offset = unproven;
        let mut piece = Vec::new();
        while offset < self.scan.end {
            piece.resize((self.scan.end - offset).min(REWRITE_BYTES) as usize, 0);
            self.file.read_at(offset, &mut piece)?;
            self.file.write_at(offset, &piece)?;
            offset += piece.len() as u64;
        }
        self.file.sync()?;
        if self.file.len()? > self.scan.end {
            self.file.truncate(self.scan.end)?;
            self.file.sync()?;
        }
        Ok(())
    }
}

/// Reports progress, in steps of a mebibyte.
struct ReplayProgress<'a> {
    report: &'a mut dyn FnMut(u64, u64),
    done: u64,
    reported: u64,
    total: u64,
}

impl ReplayProgress<'_> {
    const STEP_BYTES: u64 = 1 << 20;

    fn advance(&mut self, bytes: u64) {
        self.done += bytes;
        if self.done - self.reported >= Self::STEP_BYTES {
            self.reported = self.done;
            (self.report)(self.done.min(self.total), self.total);
        }
    }

    fn finish(&mut self) {
        (self.report)(self.total, self.total);
    }
}

fn damaged(base: Position, offset: u64, what: impl Into<String>) -> JournalError {
    JournalError::Damaged { file: segment_name(base), offset, what: what.into() }
}

fn io_at<T>(base: Position, result: io::Result<T>) -> Result<T, JournalError> {
    result.map_err(|source| JournalError::Io { file: segment_name(base), source })
}
