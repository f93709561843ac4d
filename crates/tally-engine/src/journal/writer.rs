//! Writing the journal: flushing groups to segments, rolling to the next one, trimming old ones.
//!
//! # Crash safety
//!
//! A roll happens once every frame of the current segment is synced:
//! 1. The header is written to the spare and synced. A crash leaves a spare, which is reused like any other.
//! 2. The spare is renamed to its segment name. A crash leaves the spare, or a segment with a valid header and no
//!    frame, which recovery accepts and the next writer replaces.
//! 3. Names are synced. From here on the segment survives any crash.
//! 4. [`journal.end`](super::end) records the segment. Only then are frames written to it, so an earlier crash leaves a
//!    segment without frames.
//!
//! A trim renames segments to spares, or removes them, and then syncs names. A crash keeps any subset of these changes.
//! All of those segments lie before the checkpoint that allowed the trim, where recovery does not read and gaps are
//! allowed. They are reused as spares only after the sync.
//!
//! A failed write or sync leaves the disk in an unknown state, so the writer refuses everything after it.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use tally_core::time::Position;

use super::end::{EndFile, EndRecord};
use super::frame::{FRAME_ALIGN_BYTES, FRAME_HEADER_BYTES, Salt, framed_len, stamp_frames};
use super::pages::{Buffer, Pages};
use super::segment::{SEGMENT_HEADER_BYTES, encode_header, list, segment_name};
use super::spares::{RecycledSegment, Spares};
use super::tail::{Group, Reservation};
use crate::disk::{Disk, is_full, is_out_of_files};
use crate::identity::DirId;

/// The journal's writing end.
pub struct Writer {
    disk: Arc<dyn Disk>,
    segment_bytes: u64,
    current: CurrentSegment,
    /// The segments before the current one, oldest first. Each ends where the next begins.
    older: VecDeque<OldSegment>,
    spares: Spares,
    /// Everything before this is written.
    written: Position,
    /// Everything before this is durable.
    flushed: Position,
    salt: Salt,
    id: DirId,
    /// Records outside the segments how far the journal is durable.
    end: Arc<EndFile>,
    poisoned: bool,
}

struct CurrentSegment {
    base: Position,
    pages: Pages,
}

#[derive(Clone, Copy)]
struct OldSegment {
    base: Position,
    /// See [`RecycledSegment::filled`].
    filled: u64,
}

impl Writer {
    /// Begins a new segment at `position`, the end of the journal according to [`recover`](super::recover), and
    /// reserves the next. A disk without space for the next segment is not an error yet; one without space for the
    /// first is.
    pub fn create(
        disk: Arc<dyn Disk>,
        position: Position,
        segment_bytes: u64,
        salt: Salt,
        id: DirId,
    ) -> io::Result<Writer> {
        check_sizes(position, segment_bytes)?;
        // A process that died may not have made these names durable.
        disk.sync_names()?;
        let listing = list(disk.as_ref())?;
        if let Some(beyond) = listing.bases.iter().find(|base| **base > position) {
            return Err(invalid(format!("{} begins after the end of the journal, {position}", segment_name(*beyond))));
        }
        let mut spares = Spares::adopt(disk.clone(), segment_bytes, &listing.spares)?;
        spares.prepare()?;
        // Before the first segment: a segment of this format never exists without it.
        let record = EndRecord { end: position, segment: listing.bases.last().copied() };
        let end = Arc::new(EndFile::create(disk.as_ref(), id, record)?);
        let header = encode_header(position, salt, id, segment_bytes);
        let current = begin_segment(disk.as_ref(), &mut spares, position, &header, Buffer::default())?;
        let mut writer = Writer {
            disk,
            segment_bytes,
            current,
            older: listing
                .bases
                .into_iter()
                .filter(|base| *base < position)
                .map(|base| OldSegment { base, filled: 0 })
                .collect(),
            spares,
            written: Position(position.0 + SEGMENT_HEADER_BYTES),
            flushed: position,
            salt,
            id,
            end,
            poisoned: false,
        };
        writer.mark_segment();
        match writer.prepare_next() {
            Err(error) if !is_full(&error) => Err(error),
            _ => Ok(writer),
        }
    }

    /// Bytes a payload takes as a frame.
    #[must_use]
    pub const fn framed_len(payload: usize) -> u64 {
        framed_len(payload)
    }

    /// The reservation to create a [`Tail`](super::Tail) with. Call it once, before the first write.
    #[must_use]
    pub fn reservation(&self) -> Reservation {
        Reservation {
            next: self.written,
            segment_end: self.segment_end(),
            spares_ready: u32::from(self.spares.is_ready()),
            segment_bytes: self.segment_bytes,
        }
    }

    /// Everything before this is durable.
    #[must_use]
    pub fn flushed(&self) -> Position {
        self.flushed
    }

    /// `journal.end`. It has its own lock, so that another thread can write it during a flush.
    #[must_use]
    pub fn end_file(&self) -> Arc<EndFile> {
        Arc::clone(&self.end)
    }

    /// Number of segments, including the current one.
    #[must_use]
    pub fn segments(&self) -> usize {
        self.older.len() + 1
    }

    /// Where the oldest segment begins.
    #[must_use]
    pub fn oldest(&self) -> Position {
        self.older.front().map_or(self.current.base, |older| older.base)
    }

    /// Writes and syncs a group, rolling where reserved. Everything before the returned position is durable.
    pub fn flush(&mut self, group: &mut Group) -> io::Result<Position> {
        let mut rest = group.bytes.as_mut_slice();
        let mut rest_at = 0;
        for &roll_at in &group.rolls {
            let (run, after) = std::mem::take(&mut rest).split_at_mut(roll_at - rest_at);
            self.write(run)?;
            self.roll()?;
            rest = after;
            rest_at = roll_at;
        }
        self.write(rest)?;
        self.sync()?;
        Ok(self.flushed)
    }

    /// Adds checksums and writes frames that continue the current segment.
    pub fn write(&mut self, frames: &mut [u8]) -> io::Result<()> {
        self.guarded(|writer| writer.write_frames(frames))
    }

    /// Makes everything written durable.
    pub fn sync(&mut self) -> io::Result<()> {
        self.guarded(Self::sync_frames)
    }

    /// Syncs the current segment and switches to the reserved one, which begins where the frames end.
    pub fn roll(&mut self) -> io::Result<()> {
        self.guarded(|writer| {
            writer.sync_frames()?;
            writer.spares.prepare()?;
            // A segment without a frame would share its base with the next one, and so its name.
            let base = writer.end_of_frames();
            let buffer = writer.current.pages.take_buffer();
            let header = encode_header(base, writer.salt, writer.id, writer.segment_bytes);
            let next = begin_segment(writer.disk.as_ref(), &mut writer.spares, base, &header, buffer)?;
            let previous = std::mem::replace(&mut writer.current, next);
            if previous.base < base {
                writer.older.push_back(OldSegment { base: previous.base, filled: previous.pages.filled() });
            }
            writer.written = Position(base.0 + SEGMENT_HEADER_BYTES);
            writer.flushed = base;
            writer.mark_segment();
            Ok(())
        })
    }

    /// Records the current segment in `journal.end`. Correctness does not depend on it, only the detection of damage.
    fn mark_segment(&self) {
        self.end.advance(self.flushed, self.current.base);
        if let Err(error) = self.end.write() {
            tracing::warn!(%error, "journal.end cannot be written; until a restart, damage to the end of the journal may go undetected");
        }
    }

    /// Reserves the next segment if none is reserved. Returns the number of new spares, for
    /// [`Tail::add_spares`](super::Tail::add_spares). Fails on a full disk, without side effects: call it again later.
    pub fn prepare_next(&mut self) -> io::Result<u32> {
        self.refuse_if_poisoned()?;
        self.spares.prepare()
    }

    /// Whether no next segment is reserved, so that [`Writer::prepare_next`] has something to do.
    #[must_use]
    pub fn needs_spare(&self) -> bool {
        !self.spares.is_ready()
    }

    /// Trims the segments that lie entirely before `before`, a durable checkpoint, but never the current one. They
    /// become spares, up to a limit; the others are removed. Returns the bytes of journal trimmed.
    pub fn trim(&mut self, before: Position) -> io::Result<u64> {
        self.refuse_if_poisoned()?;
        let (mut freed, mut retired) = (0, Ok(()));
        let mut recycled = Vec::new();
        while let Some(&oldest) = self.older.front() {
            let end = self.older.get(1).map_or(self.current.base, |next| next.base);
            if end > before {
                break;
            }
            retired = self.retire(oldest, &mut recycled);
            if retired.is_err() {
                break;
            }
            self.older.pop_front();
            freed += end.0 - oldest.base.0;
        }
        if freed > 0 {
            self.disk.sync_names()?;
            self.spares.recycle(recycled);
        }
        retired.map(|()| freed)
    }

    fn retire(&mut self, segment: OldSegment, recycled: &mut Vec<RecycledSegment>) -> io::Result<()> {
        let name = segment_name(segment.base);
        // A segment that recovery truncated is not worth recycling.
        if self.spares.has_place(recycled.len()) && self.disk.open(&name)?.len()? == self.segment_bytes {
            let spare = self.spares.next_name();
            self.disk.rename(&name, &spare)?;
            recycled.push(RecycledSegment { name: spare, filled: segment.filled });
            Ok(())
        } else {
            self.disk.remove(&name)
        }
    }

    fn write_frames(&mut self, frames: &mut [u8]) -> io::Result<()> {
        if frames.is_empty() {
            return Ok(());
        }
        if frames.len() as u64 > self.segment_end().0 - self.written.0 {
            return Err(invalid(format!("{} bytes do not fit in the segment at {}", frames.len(), self.current.base)));
        }
        let end = stamp_frames(frames, self.written, self.flushed, self.salt)
            .map_err(|fault| invalid(format!("frames for position {}: {fault}", self.written)))?;
        self.current.pages.append(frames)?;
        self.written = end;
        Ok(())
    }

    fn sync_frames(&mut self) -> io::Result<()> {
        if self.flushed < self.end_of_frames() {
            self.current.pages.sync()?;
            self.flushed = self.written;
            self.end.advance(self.flushed, self.current.base);
        }
        Ok(())
    }

    /// Where the last frame ends, or the base of a segment without frames.
    fn end_of_frames(&self) -> Position {
        let first_frame = self.current.base.0 + SEGMENT_HEADER_BYTES;
        if self.written.0 == first_frame { self.current.base } else { self.written }
    }

    fn segment_end(&self) -> Position {
        Position(self.current.base.0 + self.segment_bytes)
    }

    fn guarded<T>(&mut self, work: impl FnOnce(&mut Self) -> io::Result<T>) -> io::Result<T> {
        self.refuse_if_poisoned()?;
        let result = work(self);
        self.poisoned = result.is_err();
        result
    }

    fn refuse_if_poisoned(&self) -> io::Result<()> {
        if self.poisoned {
            return Err(io::Error::other("an earlier write to the journal failed; restart the server"));
        }
        Ok(())
    }
}

/// Turns the ready spare into the segment at `base`. The module documentation explains the order.
fn begin_segment(
    disk: &dyn Disk,
    spares: &mut Spares,
    base: Position,
    header: &[u8],
    buffer: Buffer,
) -> io::Result<CurrentSegment> {
    let spare = spares.take().ok_or_else(|| io::Error::other("no spare segment is ready"))?;
    let mut pages = Pages::begin(Arc::clone(&spare.file), spare.len, spare.filled, buffer);
    pages.append(header)?;
    pages.sync()?;
    let name = segment_name(base);
    disk.rename(&spare.name, &name)?;
    disk.sync_names()?;
    // Reopened so that errors have the new name. Without a file descriptor for that, they have the old one.
    let file = match disk.open(&name) {
        Err(error) if is_out_of_files(&error) => spare.file,
        opened => opened?,
    };
    pages.continue_with(file);
    Ok(CurrentSegment { base, pages })
}

fn check_sizes(position: Position, segment_bytes: u64) -> io::Result<()> {
    if !position.0.is_multiple_of(FRAME_ALIGN_BYTES as u64) {
        return Err(invalid(format!("no frame ends at {position}")));
    }
    if segment_bytes < SEGMENT_HEADER_BYTES + FRAME_HEADER_BYTES as u64 || segment_bytes > u64::from(u32::MAX) {
        return Err(invalid(format!("a segment cannot have {segment_bytes} bytes")));
    }
    Ok(())
}

fn invalid(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, what)
}

#[cfg(test)]
mod tests;
