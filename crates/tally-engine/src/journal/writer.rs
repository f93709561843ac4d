//! Writing the journal: flush groups into segments, roll over to the next, recycle the trimmed.
//!
//! One thread owns the writer, the flusher, and calls everything on it; trimming too is a request to that thread.
//!
//! # What a crash leaves behind, step by step
//!
//! A roll happens once every frame of the current segment is synced:
//! 1. The header is written into the spare and synced. A crash leaves a spare with a header, reused as any other.
//! 2. The spare is renamed to its segment name. A crash leaves the spare, or a segment with a sound header and no
//!    frame, which recovery accepts and the next writer replaces.
//! 3. Names are synced. From here on the segment is there after any crash.
//! 4. [`journal.end`](super::end) says so, and only now are frames written into it. A crash leaves a segment that the
//!    file does not name, which holds no frame.
//!
//! A trim renames segments to spares, or removes them, and then syncs names. A crash keeps any subset of that. All of
//! those segments lie before the checkpoint that allowed the trim, where recovery does not look and gaps are allowed.
//! They become usable as spares only after the sync.
//!
//! A write or sync that failed leaves the disk in an unknown state: the writer refuses everything after that.

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
use crate::disk::{Disk, is_full};
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
    /// Says outside the segments how far the journal is durable.
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
    /// How much of it is known to have been written; see [`RecycledSegment::filled`].
    filled: u64,
}

impl Writer {
    /// Begins a fresh segment at `position`, where [`recover`](super::recover) found the journal to end, and prepares
    /// the next. A disk too full for the next segment is no error yet; one too full for the first is.
    pub fn create(
        disk: Arc<dyn Disk>,
        position: Position,
        segment_bytes: u64,
        salt: Salt,
        id: DirId,
    ) -> io::Result<Writer> {
        check_sizes(position, segment_bytes)?;
        // The names we see may be those of a process that died before it made them durable.
        disk.sync_names()?;
        let listing = list(disk.as_ref())?;
        if let Some(beyond) = listing.bases.iter().find(|base| **base > position) {
            return Err(invalid(format!("{} lies beyond the journal's end {position}", segment_name(*beyond))));
        }
        let mut spares = Spares::adopt(disk.clone(), segment_bytes, &listing.spares)?;
        spares.prepare()?;
        // Before the first segment that names this directory, so that such a segment is never without it.
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

    /// The plan to begin sealing with. Ask once, before the first write: from then on the plan runs ahead.
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

    /// What records how far the journal is durable. To be written by whoever has time, without keeping the writer.
    #[must_use]
    pub fn end_file(&self) -> Arc<EndFile> {
        Arc::clone(&self.end)
    }

    /// Segments that hold the journal, the current one included.
    #[must_use]
    pub fn segments(&self) -> usize {
        self.older.len() + 1
    }

    /// Where the oldest segment begins: the bytes from here to the end are what the journal takes on disk.
    #[must_use]
    pub fn oldest(&self) -> Position {
        self.older.front().map_or(self.current.base, |older| older.base)
    }

    /// Writes a group, syncs it and rolls where planned. Returns the position before which everything is now durable.
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

    /// Stamps and writes frames that follow one another from where the last ended, all in the current segment.
    pub fn write(&mut self, frames: &mut [u8]) -> io::Result<()> {
        self.guarded(|writer| writer.write_frames(frames))
    }

    /// Makes everything written durable.
    pub fn sync(&mut self) -> io::Result<()> {
        self.guarded(Self::sync_frames)
    }

    /// Goes over to the prepared segment, after syncing the current one. The new one begins where the frames end.
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

    /// Records that the current segment is there. The journal itself does not depend on it.
    fn mark_segment(&self) {
        self.end.advance(self.flushed, self.current.base);
        if let Err(error) = self.end.write() {
            tracing::warn!(%error, "how far the journal is durable cannot be recorded until the next start");
        }
    }

    /// Reserves the next segment if none is reserved; returns how many became ready, for
    /// [`Tail::add_spares`](super::Tail::add_spares). This is where a full disk shows. Such an error changes nothing:
    /// call again after the next flush, or whenever room may have appeared.
    pub fn prepare_next(&mut self) -> io::Result<u32> {
        self.refuse_if_poisoned()?;
        self.spares.prepare()
    }

    /// Whether no next segment is reserved, so that [`Writer::prepare_next`] is worth calling.
    #[must_use]
    pub fn needs_spare(&self) -> bool {
        !self.spares.is_ready()
    }

    /// Gives up the segments whose every byte lies before `before`, never the current one: full ones become spares,
    /// as many as are kept, and the others are removed. Returns the bytes of journal given up. The checkpoint that
    /// covers them must be durable.
    pub fn trim(&mut self, before: Position) -> io::Result<u64> {
        self.refuse_if_poisoned()?;
        let mut freed = 0;
        let mut recycled = Vec::new();
        while let Some(&oldest) = self.older.front() {
            let end = self.older.get(1).map_or(self.current.base, |next| next.base);
            if end > before {
                break;
            }
            self.retire(oldest, &mut recycled)?;
            self.older.pop_front();
            freed += end.0 - oldest.base.0;
        }
        if freed > 0 {
            self.disk.sync_names()?;
            self.spares.recycle(recycled);
        }
        Ok(freed)
    }

    fn retire(&mut self, segment: OldSegment, recycled: &mut Vec<RecycledSegment>) -> io::Result<()> {
        let name = segment_name(segment.base);
        // A segment that recovery has cut has no blocks worth keeping.
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
            return Err(invalid(format!("{} bytes do not fit the segment at {}", frames.len(), self.current.base)));
        }
        let end = stamp_frames(frames, self.written, self.flushed, self.salt)
            .map_err(|fault| invalid(format!("frames meant for position {}: {fault}", self.written)))?;
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

    /// Where the last frame ends; the current segment's base while it holds none.
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
            return Err(io::Error::other("an earlier write to the journal failed; nothing more is written to it"));
        }
        Ok(())
    }
}

/// Turns the ready spare into the segment at `base`. The order of the steps is explained above.
fn begin_segment(
    disk: &dyn Disk,
    spares: &mut Spares,
    base: Position,
    header: &[u8],
    buffer: Buffer,
) -> io::Result<CurrentSegment> {
    let spare = spares.take().ok_or_else(|| io::Error::other("no spare segment is ready"))?;
    let mut pages = Pages::begin(spare.file, spare.len, spare.filled, buffer);
    pages.append(header)?;
    pages.sync()?;
    let name = segment_name(base);
    disk.rename(&spare.name, &name)?;
    disk.sync_names()?;
    // From now on an error names the file as it is called now.
    pages.continue_with(disk.open(&name)?);
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
