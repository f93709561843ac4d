//! Tests of the writer on a real disk.
#![allow(clippy::unwrap_used)]

use std::sync::atomic::Ordering;

use super::super::{Tail, recover};
use super::*;
use crate::disk::RealDisk;
use crate::disk::breaking::BreakingDisk;

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

#[test]
fn the_error_of_a_failed_flush_has_the_current_name_of_the_segment() {
    let dir = tempfile::tempdir().unwrap();
    let disk = BreakingDisk::new(RealDisk::new(dir.path()).unwrap());
    for rolls in [0, 1] {
        disk.breaks.syncs.store(false, Ordering::Relaxed);
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
        disk.breaks.syncs.store(true, Ordering::Relaxed);
        let error = writer.flush(&mut tail.take(Group::default())).unwrap_err();
        assert_eq!(error.to_string(), segment_name(base));
    }
}

#[test]
fn without_file_descriptors_the_journal_continues_in_the_reserved_segment_and_keeps_recycled_ones() {
    let dir = tempfile::tempdir().unwrap();
    let disk = BreakingDisk::new(RealDisk::new(dir.path()).unwrap());
    let mut writer = Writer::create(disk.clone(), Position(0), SEGMENT, Salt::new(7), ID).unwrap();
    let mut tail = Tail::new(writer.reservation());
    let append = |writer: &mut Writer, tail: &mut Tail| {
        let rolled = tail.append(|out| out.resize(out.len() + 120, 1)).unwrap().rolls;
        (rolled, writer.flush(&mut tail.take(Group::default())).unwrap())
    };
    let mut end = append(&mut writer, &mut tail).1;
    disk.breaks.opens.store(true, Ordering::Relaxed);
    let (rolled, flushed) = append(&mut writer, &mut tail);
    assert!(rolled && flushed > end);
    end = flushed;
    disk.breaks.opens.store(false, Ordering::Relaxed);
    writer.trim(end).unwrap();
    disk.breaks.opens.store(true, Ordering::Relaxed);
    assert_eq!(count(&(disk.clone() as Arc<dyn Disk>), "spare-"), 1, "the first segment is recycled");
    assert!(is_out_of_files(&writer.prepare_next().unwrap_err()));
    assert_eq!(count(&(disk.clone() as Arc<dyn Disk>), "spare-"), 1, "it can be opened later");
    disk.breaks.opens.store(false, Ordering::Relaxed);
    assert_eq!(writer.prepare_next().unwrap(), 1);
    tail.add_spares(1);
    assert_eq!(replay(&(disk as Arc<dyn Disk>), end).1, end);
}

#[test]
fn a_segment_recycled_before_a_failed_trim_is_reused() {
    let (dir, disk) = temporary();
    let mut writer = Writer::create(disk.clone(), Position(0), SEGMENT, Salt::new(7), ID).unwrap();
    let mut tail = Tail::new(writer.reservation());
    while writer.older.len() < 2 {
        tail.append(|out| out.resize(out.len() + 120, 1)).unwrap();
        flush(&mut writer, &mut tail);
    }
    // The spare is used, and no other is prepared.
    while writer.older.len() < 3 {
        tail.append(|out| out.resize(out.len() + 120, 1)).unwrap();
        writer.flush(&mut tail.take(Group::default())).unwrap();
    }
    let (second, aside) = (dir.path().join(segment_name(writer.older[1].base)), dir.path().join("aside"));
    std::fs::rename(&second, &aside).unwrap();
    let end = writer.flushed();
    writer.trim(end).unwrap_err();
    std::fs::rename(&aside, &second).unwrap();
    assert_eq!(writer.prepare_next().unwrap(), 1);
    assert_eq!(count(&disk, "spare-"), 1, "no other file is created");
    assert!(writer.trim(end).unwrap() > 0);
    assert_eq!(writer.older.len(), 0);
}

#[test]
fn a_writer_does_not_begin_before_the_end_of_the_journal() {
    let (_dir, disk) = temporary();
    Writer::create(disk.clone(), Position(4096), SEGMENT, Salt::new(7), ID).unwrap();
    assert!(Writer::create(disk.clone(), Position(0), SEGMENT, Salt::new(7), ID).is_err());
    assert!(Writer::create(disk, Position(4097), SEGMENT, Salt::new(7), ID).is_err());
}
