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

use super::end::{EndMark, EndRecord};
use super::frame::{FRAME_ALIGN_BYTES, FRAME_HEADER_BYTES, Salt, framed_len, stamp_frames};
use super::pages::{Buffer, Pages};
use super::segment::{SEGMENT_HEADER_BYTES, encode_header, list, segment_name};
use super::spares::{Idle, Spares};
use super::tail::{Group, Plan};
use crate::disk::{Disk, is_full};
use crate::identity::DirId;

/// The journal's writing end.
pub struct Writer {
    disk: Arc<dyn Disk>,
    segment_bytes: u64,
    current: Current,
    /// The segments before the current one, oldest first. Each ends where the next begins.
    older: VecDeque<Older>,
    spares: Spares,
    /// Everything before this is written.
    written: Position,
    /// Everything before this is durable.
    flushed: Position,
    salt: Salt,
    id: DirId,
    /// Says outside the segments how far the journal is durable.
    end: Arc<EndMark>,
    poisoned: bool,
}

struct Current {
    base: Position,
    pages: Pages,
}

#[derive(Clone, Copy)]
struct Older {
    base: Position,
    /// How much of it is known to have been written; see [`Idle::filled`].
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
        let end = Arc::new(EndMark::create(disk.as_ref(), id, record)?);
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
                .map(|base| Older { base, filled: 0 })
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
    pub fn plan(&self) -> Plan {
        Plan {
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
    pub fn end_mark(&self) -> Arc<EndMark> {
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
                writer.older.push_back(Older { base: previous.base, filled: previous.pages.filled() });
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
            self.give_up(oldest, &mut recycled)?;
            self.older.pop_front();
            freed += end.0 - oldest.base.0;
        }
        if freed > 0 {
            self.disk.sync_names()?;
            self.spares.recycle(recycled);
        }
        Ok(freed)
    }

    fn give_up(&mut self, segment: Older, recycled: &mut Vec<Idle>) -> io::Result<()> {
        let name = segment_name(segment.base);
        // A segment that recovery has cut has no blocks worth keeping.
        if self.spares.has_place(recycled.len()) && self.disk.open(&name)?.len()? == self.segment_bytes {
            let spare = self.spares.next_name();
            self.disk.rename(&name, &spare)?;
            recycled.push(Idle { name: spare, filled: segment.filled });
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
) -> io::Result<Current> {
    let spare = spares.take().ok_or_else(|| io::Error::other("no spare segment is ready"))?;
    let mut pages = Pages::begin(spare.file, spare.len, spare.filled, buffer);
    pages.append(header)?;
    pages.sync()?;
    let name = segment_name(base);
    disk.rename(&spare.name, &name)?;
    disk.sync_names()?;
    // From now on an error names the file as it is called now.
    pages.continue_with(disk.open(&name)?);
    Ok(Current { base, pages })
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
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::atomic::{AtomicBool, Ordering};

    use super::super::{Tail, recover};
    use super::*;
    use crate::disk::{DiskFile, RealDisk};

    const SEGMENT: u64 = 256;
    const ID: DirId = DirId::new(5);

    fn temporary() -> (tempfile::TempDir, Arc<dyn Disk>) {
        let dir = tempfile::tempdir().unwrap();
        let disk = Arc::new(RealDisk::new(dir.path()).unwrap());
        (dir, disk)
    }

    fn flush(writer: &mut Writer, tail: &mut Tail) -> Position {
        let flushed = writer.flush(&mut tail.take(Group::default())).unwrap();
        tail.add_spares(writer.prepare_next().unwrap());
        flushed
    }

    fn replay(disk: &Arc<dyn Disk>, from: Position) -> (Vec<Vec<u8>>, Position) {
        let mut payloads = Vec::new();
        let recovered = recover(
            disk,
            ID,
            from,
            &mut |frame| {
                payloads.push(frame.payload.to_vec());
                Ok(())
            },
            &mut |_, _| {},
        )
        .unwrap();
        (payloads, recovered.end)
    }

    fn count(disk: &Arc<dyn Disk>, prefix: &str) -> usize {
        disk.names().unwrap().iter().filter(|name| name.starts_with(prefix)).count()
    }

    #[test]
    fn what_is_flushed_on_a_real_disk_is_replayed_across_rolls_trims_and_restarts() {
        let (_dir, disk) = temporary();
        let mut written = Vec::new();
        let mut end = Position(0);
        for life in 0..4_u8 {
            let mut writer = Writer::create(disk.clone(), end, SEGMENT, Salt::new(7), ID).unwrap();
            let mut tail = Tail::new(writer.plan());
            for number in 0..40_u8 {
                let payload = vec![life ^ number; usize::from(number) * 3];
                tail.append(|out| out.extend_from_slice(&payload)).unwrap();
                end = flush(&mut writer, &mut tail);
                written.push((end, payload));
            }
            assert!(writer.segments() > 10);
            let keep_from = written[written.len() - 10].0;
            assert!(writer.trim(keep_from).unwrap() > 0);
            assert!(writer.oldest() <= keep_from);
            assert!(count(&disk, "spare-") <= 2);
            let (payloads, found_end) = replay(&disk, keep_from);
            assert_eq!(found_end, end);
            let kept: Vec<Vec<u8>> =
                written.iter().filter(|(end, _)| *end > keep_from).map(|(_, payload)| payload.clone()).collect();
            assert_eq!(payloads, kept);
        }
    }

    #[test]
    fn one_group_may_roll_when_a_spare_is_ready() {
        let (_dir, disk) = temporary();
        let mut writer = Writer::create(disk.clone(), Position(0), SEGMENT, Salt::new(7), ID).unwrap();
        let mut tail = Tail::new(writer.plan());
        let placements: Vec<_> = (0..4).map(|_| tail.append(|out| out.resize(out.len() + 80, 1)).unwrap()).collect();
        assert_eq!(placements.iter().map(|placed| placed.rolls).collect::<Vec<_>>(), [false, false, true, false]);
        assert_eq!(flush(&mut writer, &mut tail), placements[3].end);
        assert_eq!(count(&disk, "journal-"), 2);
        assert_eq!(replay(&disk, Position(0)).0.len(), 4);
    }

    #[test]
    fn restarting_without_a_frame_leaves_no_trail_of_files() {
        let (_dir, disk) = temporary();
        for _ in 0..5 {
            let (payloads, end) = replay(&disk, Position(0));
            assert!(payloads.is_empty());
            assert_eq!(end, Position(0));
            Writer::create(disk.clone(), end, SEGMENT, Salt::new(7), ID).unwrap();
        }
        assert_eq!(count(&disk, "journal-"), 1);
        assert_eq!(count(&disk, "spare-"), 1);
    }

    #[test]
    fn frames_that_do_not_continue_the_journal_are_refused_and_so_is_everything_after() {
        let (_dir, disk) = temporary();
        let mut writer = Writer::create(disk, Position(0), SEGMENT, Salt::new(7), ID).unwrap();
        let mut frame = Vec::new();
        super::super::encode_frame(&mut frame, Position(800), Position(0), Salt::new(7), b"elsewhere");
        assert_eq!(writer.write(&mut frame).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert!(writer.sync().is_err());
        assert!(writer.prepare_next().is_err());
    }

    /// A disk whose files, once it is broken, refuse every sync with the name they were opened under.
    struct Breaking {
        disk: RealDisk,
        broken: Arc<AtomicBool>,
    }

    struct BreakingFile {
        file: Arc<dyn DiskFile>,
        name: String,
        broken: Arc<AtomicBool>,
    }

    impl Breaking {
        fn file(&self, name: &str, file: Arc<dyn DiskFile>) -> Arc<dyn DiskFile> {
            Arc::new(BreakingFile { file, name: name.to_owned(), broken: Arc::clone(&self.broken) })
        }
    }

    impl Disk for Breaking {
        fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
            Ok(self.file(name, self.disk.open(name)?))
        }

        fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
            Ok(self.file(name, self.disk.create(name)?))
        }

        fn rename(&self, from: &str, to: &str) -> io::Result<()> {
            self.disk.rename(from, to)
        }

        fn remove(&self, name: &str) -> io::Result<()> {
            self.disk.remove(name)
        }

        fn names(&self) -> io::Result<Vec<String>> {
            self.disk.names()
        }

        fn sync_names(&self) -> io::Result<()> {
            self.disk.sync_names()
        }
    }

    impl DiskFile for BreakingFile {
        fn len(&self) -> io::Result<u64> {
            self.file.len()
        }

        fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
            self.file.read_at(offset, buf)
        }

        fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
            self.file.write_at(offset, data)
        }

        fn allocate(&self, len: u64) -> io::Result<()> {
            self.file.allocate(len)
        }

        fn truncate(&self, len: u64) -> io::Result<()> {
            self.file.truncate(len)
        }

        fn sync(&self) -> io::Result<()> {
            if self.broken.load(Ordering::Relaxed) {
                Err(io::Error::other(self.name.clone()))
            } else {
                self.file.sync()
            }
        }
    }

    #[test]
    fn a_failed_flush_names_the_segment_by_the_name_it_has_now() {
        let dir = tempfile::tempdir().unwrap();
        let broken = Arc::new(AtomicBool::new(false));
        let disk = Arc::new(Breaking { disk: RealDisk::new(dir.path()).unwrap(), broken: Arc::clone(&broken) });
        for rolls in [0, 1] {
            broken.store(false, Ordering::Relaxed);
            let base = Position(4096 * rolls);
            let mut writer = Writer::create(disk.clone(), base, SEGMENT, Salt::new(7), ID).unwrap();
            let mut tail = Tail::new(writer.plan());
            let mut base = base;
            for _ in 0..rolls * 2 {
                if tail.append(|out| out.resize(out.len() + 120, 1)).unwrap().rolls {
                    base = writer.flushed();
                }
                flush(&mut writer, &mut tail);
            }
            tail.append(|out| out.extend_from_slice(b"lost")).unwrap();
            broken.store(true, Ordering::Relaxed);
            let error = writer.flush(&mut tail.take(Group::default())).unwrap_err();
            assert_eq!(error.to_string(), segment_name(base));
        }
    }

    #[test]
    fn a_writer_does_not_begin_before_the_end_of_the_journal() {
        let (_dir, disk) = temporary();
        Writer::create(disk.clone(), Position(4096), SEGMENT, Salt::new(7), ID).unwrap();
        assert!(Writer::create(disk.clone(), Position(0), SEGMENT, Salt::new(7), ID).is_err());
        assert!(Writer::create(disk, Position(4097), SEGMENT, Salt::new(7), ID).is_err());
    }
}
