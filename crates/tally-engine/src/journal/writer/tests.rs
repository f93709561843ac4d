//! Tests of the writer on a real disk.
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
    for restart in 0..4_u8 {
        let mut writer = Writer::create(disk.clone(), end, SEGMENT, Salt::new(7), ID).unwrap();
        let mut tail = Tail::new(writer.reservation());
        for number in 0..40_u8 {
            let payload = vec![restart ^ number; usize::from(number) * 3];
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
    let mut tail = Tail::new(writer.reservation());
    let placements: Vec<_> = (0..4).map(|_| tail.append(|out| out.resize(out.len() + 80, 1)).unwrap()).collect();
    assert_eq!(placements.iter().map(|placed| placed.rolls).collect::<Vec<_>>(), [false, false, true, false]);
    assert_eq!(flush(&mut writer, &mut tail), placements[3].end);
    assert_eq!(count(&disk, "journal-"), 2);
    assert_eq!(replay(&disk, Position(0)).0.len(), 4);
}

#[test]
fn restarts_without_a_frame_do_not_accumulate_files() {
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

/// A disk whose syncs can be made to fail. The error has the name that the file was opened under.
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
        if self.broken.load(Ordering::Relaxed) { Err(io::Error::other(self.name.clone())) } else { self.file.sync() }
    }
}

#[test]
fn the_error_of_a_failed_flush_has_the_current_name_of_the_segment() {
    let dir = tempfile::tempdir().unwrap();
    let broken = Arc::new(AtomicBool::new(false));
    let disk = Arc::new(Breaking { disk: RealDisk::new(dir.path()).unwrap(), broken: Arc::clone(&broken) });
    for rolls in [0, 1] {
        broken.store(false, Ordering::Relaxed);
        let base = Position(4096 * rolls);
        let mut writer = Writer::create(disk.clone(), base, SEGMENT, Salt::new(7), ID).unwrap();
        let mut tail = Tail::new(writer.reservation());
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
