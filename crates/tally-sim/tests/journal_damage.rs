//! The journal on a disk with bit rot, missing files or no space: a torn tail opens, damage is refused with file and
//! offset.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use tally_core::time::Position;
use tally_engine::DirId;
use tally_engine::disk::{Disk, is_full};
use tally_engine::journal::segment::SEGMENT_HEADER_BYTES as HEADER;
use tally_engine::journal::{Group, JournalError, NoRoom, Recovered, Salt, Tail, Writer, inspect, recover};
use tally_sim::{Loss, SimDisk};

const SEGMENT: u64 = 512;
const ID: DirId = DirId::new(5);

type Files = BTreeMap<String, Vec<u8>>;
type Replayed = Vec<(Position, Vec<u8>)>;

/// A journal of several segments on a disk without faults.
struct Written {
    files: Files,
    frames: Vec<WrittenFrame>,
    end: Position,
}

struct WrittenFrame {
    group: usize,
    file: String,
    /// Its range of bytes in the file.
    place: Range<u64>,
    position: Position,
    payload: Vec<u8>,
}

/// Writes `groups` flush groups of one to three frames each.
fn written(groups: usize) -> Written {
    let sim = SimDisk::new(0);
    let mut writer = Writer::create(sim.disk(), Position(0), SEGMENT, Salt::new(7), ID).unwrap();
    let mut tail = Tail::new(writer.reservation());
    let mut frames = Vec::new();
    let mut base = 0;
    for group in 0..groups {
        for index in 0..=group % 3 {
            let payload = vec![0xa0 | group as u8; 49 + 5 * group + index];
            let placed = tail.append(|out| out.extend_from_slice(&payload)).unwrap();
            if placed.rolls {
                base = placed.position.0 - HEADER;
            }
            let place = placed.position.0 - base..placed.end.0 - base;
            frames.push(WrittenFrame { group, file: name(base), place, position: placed.position, payload });
        }
        flush(&mut writer, &mut tail);
    }
    Written { files: sim.contents(), frames, end: writer.flushed() }
}

impl Written {
    fn replayed(&self) -> Replayed {
        self.frames.iter().map(|frame| (frame.position, frame.payload.clone())).collect()
    }

    fn last_file(&self) -> &str {
        &self.frames.last().unwrap().file
    }
}

fn name(base: u64) -> String {
    format!("journal-{base:016x}.seg")
}

fn flush(writer: &mut Writer, tail: &mut Tail) -> Position {
    let flushed = writer.flush(&mut tail.take(Group::default())).unwrap();
    tail.add_spares(writer.prepare_next().unwrap());
    flushed
}

fn recover_all(disk: &Arc<dyn Disk>, from: Position) -> Result<(Recovered, Replayed), JournalError> {
    let mut replayed = Vec::new();
    let mut on_frame = |frame: tally_engine::journal::Frame<'_>| {
        replayed.push((frame.position, frame.payload.to_vec()));
        Ok(())
    };
    let recovered = recover(disk, ID, from, &mut on_frame, &mut |_, _| {})?;
    Ok((recovered, replayed))
}

/// Inspects, then recovers: both must agree, and inspecting must not change a byte.
fn examine(sim: &SimDisk, from: Position) -> Result<(Recovered, Replayed), JournalError> {
    let before = sim.contents();
    let inspected = inspect(&sim.disk(), ID, from, &mut |_| Ok(()), &mut |_, _| {});
    assert_eq!(sim.contents(), before, "inspecting changed a file");
    let recovered = recover_all(&sim.disk(), from);
    match (&inspected, &recovered) {
        (Ok(inspected), Ok((recovered, _))) => assert_eq!(inspected, recovered),
        (Err(inspected), Err(recovered)) => {
            assert_eq!(inspected.to_string(), recovered.to_string());
            assert_eq!(sim.contents(), before, "refusing changed a file");
        }
        _ => panic!("inspect returned {inspected:?}, recover returned {recovered:?}"),
    }
    recovered
}

fn damage(sim: &SimDisk, from: Position) -> (String, u64, String) {
    match examine(sim, from) {
        Err(JournalError::Damaged { file, offset, what }) => (file, offset, what),
        other => panic!("not refused as damage: {other:?}"),
    }
}

#[test]
fn an_intact_journal_replays_every_frame_in_order() {
    let written = written(9);
    assert!(written.files.keys().filter(|name| name.starts_with("journal-")).count() > 3);
    let (recovered, replayed) = examine(&SimDisk::with_contents(0, &written.files), Position(0)).unwrap();
    assert_eq!(replayed, written.replayed());
    assert_eq!(recovered.end, written.end);
    assert_eq!(recovered.frames, written.frames.len() as u64);
    assert_eq!(recovered.truncated_bytes, 0);
}

#[test]
fn a_file_truncated_between_frames_opens_and_one_truncated_within_a_frame_is_refused() {
    let written = written(9);
    let last = written.last_file();
    let of_last: Vec<_> = written.frames.iter().filter(|frame| frame.file == last).collect();
    for length in HEADER..SEGMENT {
        let mut files = written.files.clone();
        files.get_mut(last).unwrap().truncate(length as usize);
        let sim = SimDisk::with_contents(0, &files);
        let frames_end = of_last.iter().map(|frame| frame.place.end).filter(|end| *end <= length).max();
        let frames_end = frames_end.unwrap_or(HEADER);
        if frames_end != length {
            let (file, offset, what) = damage(&sim, Position(0));
            assert_eq!((file.as_str(), offset), (last, frames_end), "cut at {length}: {what}");
            continue;
        }
        let (recovered, mut replayed) = examine(&sim, Position(0)).unwrap();
        let whole = |frame: &&WrittenFrame| frame.file != last || frame.place.end <= length;
        let expected: Replayed =
            written.frames.iter().filter(whole).map(|frame| (frame.position, frame.payload.clone())).collect();
        assert_eq!(replayed, expected, "cut at {length}");

        let mut writer = Writer::create(sim.disk(), recovered.end, SEGMENT, Salt::new(7), ID).unwrap();
        let mut tail = Tail::new(writer.reservation());
        let placed = tail.append(|out| out.extend_from_slice(b"onward")).unwrap();
        flush(&mut writer, &mut tail);
        replayed.push((placed.position, b"onward".to_vec()));
        sim.power_cut_losing(Loss::Everything, 0);
        assert_eq!(examine(&sim, Position(0)).unwrap().1, replayed, "cut at {length}");
    }
}

#[test]
fn a_flipped_bit_before_the_last_flush_group_is_reported_with_file_and_offset() {
    // The last group follows others in its segment, has its own segment, or spans two.
    for groups in [6, 7, 8, 9] {
        let written = written(groups);
        for (file, used) in used_bytes(&written, groups - 1) {
            for bit in 0..used * 8 {
                let sim = SimDisk::with_contents(0, &written.files);
                sim.flip(&file, bit).unwrap();
                let (named, offset, what) = damage(&sim, Position(0));
                assert_eq!(named, file, "bit {bit}: {what}");
                assert!(offset <= bit / 8, "bit {bit} is reported at {offset}: {what}");
            }
        }
    }
}

/// How many bytes of each segment were written before the group `before`.
fn used_bytes(written: &Written, before: usize) -> BTreeMap<String, u64> {
    let mut used: BTreeMap<String, u64> = BTreeMap::new();
    for frame in &written.frames {
        let bytes = used.entry(frame.file.clone()).or_insert(HEADER);
        if frame.group < before {
            *bytes = frame.place.end;
        }
    }
    used
}

#[test]
fn a_flipped_bit_in_the_last_flush_group_costs_at_most_that_group() {
    let written = written(9);
    let earlier = written.frames.iter().filter(|frame| frame.group < 8).count();
    for frame in &written.frames[earlier..] {
        for bit in frame.place.start * 8..frame.place.end * 8 {
            let sim = SimDisk::with_contents(0, &written.files);
            sim.flip(&frame.file, bit).unwrap();
            let (_, replayed) = examine(&sim, Position(0)).unwrap();
            assert!(replayed.len() >= earlier);
            assert_eq!(replayed, written.replayed()[..replayed.len()]);
        }
    }
}

#[test]
fn damage_in_the_last_flush_group_is_refused_when_a_checkpoint_covers_it() {
    let written = written(9);
    let frame = written.frames.last().unwrap();
    let sim = SimDisk::with_contents(0, &written.files);
    sim.flip(&frame.file, frame.place.start * 8 + 200).unwrap();
    let (file, offset, what) = damage(&sim, written.end);
    assert_eq!((file, offset), (frame.file.clone(), frame.place.start));
    assert!(what.contains("before the checkpoint"), "{what}");
}

#[test]
fn a_missing_segment_is_reported_by_name() {
    let written = written(9);
    let segments: Vec<&String> = written.files.keys().filter(|name| name.starts_with("journal-")).collect();
    for missing in &segments {
        let mut files = written.files.clone();
        files.remove(*missing);
        let (file, _, what) = damage(&SimDisk::with_contents(0, &files), Position(0));
        assert_eq!(&file, *missing, "{what}");
        assert!(what.contains("missing"), "{what}");
    }
    let none = SimDisk::new(0);
    assert_eq!(damage(&none, written.end).0, name(written.end.0));
}

#[test]
fn segments_entirely_before_the_checkpoint_may_be_missing_or_damaged() {
    let written = written(9);
    let from = written.frames.iter().find(|frame| frame.file == written.last_file()).unwrap().position;
    let checkpoint = Position(from.0 - HEADER);
    let mut files = written.files.clone();
    files.remove(&name(0));
    files.values_mut().next().unwrap()[40] ^= 1;
    for from in [checkpoint, from] {
        let (recovered, replayed) = examine(&SimDisk::with_contents(0, &files), from).unwrap();
        assert_eq!(recovered.end, written.end);
        let expected: Replayed = written.replayed().into_iter().filter(|(position, _)| *position >= from).collect();
        assert_eq!(replayed, expected);
    }
}

#[test]
fn replay_starts_at_any_frame_boundary_and_a_checkpoint_within_a_frame_is_refused() {
    let written = written(7);
    for (index, frame) in written.frames.iter().enumerate() {
        let sim = SimDisk::with_contents(0, &written.files);
        assert_eq!(examine(&sim, frame.position).unwrap().1, written.replayed()[index..]);
        let (file, offset, _) = damage(&SimDisk::with_contents(0, &written.files), Position(frame.position.0 + 1));
        assert_eq!((file, offset), (frame.file.clone(), frame.place.start));
    }
}

#[test]
fn a_segment_or_end_file_of_another_directory_is_refused() {
    let written = written(5);
    let sim = SimDisk::with_contents(0, &written.files);
    let other = |id| {
        let disk = sim.disk();
        inspect(&disk, id, Position(0), &mut |_| Ok(()), &mut |_, _| {}).map(|_| ()).unwrap_err().to_string()
    };
    assert_eq!(other(DirId::new(6)), "journal.end is damaged at byte 0: the file belongs to another data directory");
    let foreign = SimDisk::new(0);
    let mut writer = Writer::create(foreign.disk(), Position(0), SEGMENT, Salt::new(7), DirId::new(6)).unwrap();
    let mut tail = Tail::new(writer.reservation());
    tail.append(|out| out.extend_from_slice(b"foreign")).unwrap();
    flush(&mut writer, &mut tail);
    let mut files = written.files.clone();
    files.insert(name(0), foreign.contents().remove(&name(0)).unwrap());
    let (file, _, what) = damage(&SimDisk::with_contents(0, &files), Position(0));
    assert_eq!((file, what.as_str()), (name(0), "the file belongs to another data directory"));
}

#[test]
fn a_segment_without_the_journal_end_file_is_refused() {
    let mut files = written(5).files;
    files.remove("journal.end");
    let (file, _, what) = damage(&SimDisk::with_contents(0, &files), Position(0));
    assert!(file == "journal.end" && what.contains("the file is missing"), "{file}: {what}");
}

#[test]
fn a_segment_of_a_newer_format_is_reported_by_name_and_version() {
    let written = written(5);
    let mut files = written.files.clone();
    let header = files.get_mut(written.last_file()).unwrap();
    header[16] = 9;
    let crc = crc32fast::hash(&header[..20]);
    header[20..24].copy_from_slice(&crc.to_le_bytes());
    let error = examine(&SimDisk::with_contents(0, &files), Position(0)).unwrap_err();
    assert!(matches!(&error, JournalError::Newer { file, version: 9 } if file == written.last_file()), "{error}");
    assert!(error.to_string().contains("format 9"), "{error}");
}

#[test]
fn a_frame_that_cannot_be_replayed_is_reported_with_file_and_offset() {
    let written = written(5);
    let refused = &written.frames[4];
    let disk = SimDisk::with_contents(0, &written.files).disk();
    let mut on_frame = |frame: tally_engine::journal::Frame<'_>| {
        if frame.position == refused.position { Err("not a batch".into()) } else { Ok(()) }
    };
    let error = recover(&disk, ID, Position(0), &mut on_frame, &mut |_, _| {}).unwrap_err();
    assert!(
        matches!(&error, JournalError::Refused { file, offset, .. }
            if *file == refused.file && *offset == refused.place.start),
        "{error}"
    );
}

#[test]
fn a_torn_tail_is_truncated_and_its_size_reported() {
    let written = written(9);
    let torn = &written.frames[written.frames.len() - 3];
    assert_eq!(torn.group, 8);
    let sim = SimDisk::with_contents(0, &written.files);
    sim.flip(&torn.file, torn.place.start * 8 + 200).unwrap();
    let (recovered, _) = examine(&sim, Position(0)).unwrap();
    assert_eq!(recovered.end, torn.position);
    assert_eq!(recovered.truncated_bytes, written.end.0 - torn.position.0);
    sim.power_cut_losing(Loss::Everything, 0);
    assert_eq!(sim.contents()[&torn.file].len() as u64, torn.place.start);
    let (again, _) = examine(&sim, Position(0)).unwrap();
    assert_eq!((again.end, again.truncated_bytes), (recovered.end, 0));
}

#[test]
fn a_segment_with_a_torn_first_frame_is_replaced() {
    let sim = SimDisk::new(0);
    let mut writer = Writer::create(sim.disk(), Position(0), SEGMENT, Salt::new(7), ID).unwrap();
    let mut tail = Tail::new(writer.reservation());
    tail.append(|out| out.extend_from_slice(&[1; 100])).unwrap();
    tail.append(|out| out.extend_from_slice(&[2; 100])).unwrap();
    flush(&mut writer, &mut tail);
    sim.flip(&name(0), (HEADER + 6) * 8).unwrap();
    let (recovered, replayed) = examine(&sim, Position(0)).unwrap();
    assert_eq!((recovered.end, replayed.len()), (Position(0), 0));

    let mut writer = Writer::create(sim.disk(), recovered.end, SEGMENT, Salt::new(7), ID).unwrap();
    let mut tail = Tail::new(writer.reservation());
    // Of the same length as the torn frame, so that the stale frame after it follows directly. That one must not be
    // replayed.
    let placed = tail.append(|out| out.extend_from_slice(&[3; 100])).unwrap();
    flush(&mut writer, &mut tail);
    sim.power_cut_losing(Loss::Everything, 0);
    let (_, replayed) = examine(&sim, Position(0)).unwrap();
    assert_eq!(replayed, [(placed.position, vec![3; 100])]);
}

#[test]
fn old_frames_of_a_recycled_segment_are_never_replayed() {
    let sim = SimDisk::new(0);
    let mut writer = Writer::create(sim.disk(), Position(0), SEGMENT, Salt::new(7), ID).unwrap();
    let mut tail = Tail::new(writer.reservation());
    let mut live: Replayed = Vec::new();
    let mut reused = false;
    // Frames of equal size, so that old frames are exactly where the next one would be.
    for number in 0..200_u8 {
        let placed = tail.append(|out| out.extend_from_slice(&[number; 40])).unwrap();
        let end = flush(&mut writer, &mut tail);
        let files = sim.contents();
        let current = files.iter().rfind(|(name, _)| name.starts_with("journal-")).unwrap().1;
        let base = placed.position.0 - placed.position.0.min(current.len() as u64);
        reused |= base > 0 && current[current.len() - 60..].iter().any(|byte| *byte != 0);
        if placed.rolls {
            live.clear();
            writer.trim(Position(placed.position.0 - HEADER)).unwrap();
        }
        live.push((placed.position, vec![number; 40]));
        let found = SimDisk::with_contents(0, &files);
        let (recovered, replayed) = examine(&found, live[0].0).unwrap();
        assert_eq!(replayed, live);
        assert_eq!((recovered.end, recovered.truncated_bytes), (end, 0));
    }
    assert!(reused, "no segment was ever recycled");
}

#[test]
fn a_full_disk_refuses_frames_before_they_are_placed_until_there_is_space() {
    let sim = SimDisk::new(0);
    let mut writer = Writer::create(sim.disk(), Position(0), SEGMENT, Salt::new(7), ID).unwrap();
    let mut tail = Tail::new(writer.reservation());
    sim.set_capacity(sim.used_bytes());
    let mut placed = 0;
    while tail.append(|out| out.extend_from_slice(&[7; 100])).is_ok() {
        placed += 1;
        writer.flush(&mut tail.take(Group::default())).unwrap();
        if let Err(error) = writer.prepare_next() {
            assert!(is_full(&error));
            assert!(writer.needs_spare());
        }
    }
    assert_eq!(placed, 6, "two segments were reserved, three frames fit each");
    assert!(is_full(&writer.prepare_next().unwrap_err()));
    assert_eq!(tail.append(|out| out.extend_from_slice(&[7; 100])), Err(NoRoom));
    assert!(tail.append(|out| out.extend_from_slice(&[8; 8])).is_ok(), "a small one still fits the segment");
    assert_eq!(sim.contents().keys().filter(|name| name.starts_with("spare-")).count(), 0);

    sim.set_capacity(u64::MAX);
    tail.add_spares(writer.prepare_next().unwrap());
    assert!(tail.append(|out| out.extend_from_slice(&[7; 100])).unwrap().rolls);
    flush(&mut writer, &mut tail);
    assert_eq!(examine(&sim, Position(0)).unwrap().1.len(), 8);
}

#[test]
fn trimming_frees_space_on_a_full_disk() {
    let sim = SimDisk::new(0);
    let mut writer = Writer::create(sim.disk(), Position(0), SEGMENT, Salt::new(7), ID).unwrap();
    let mut tail = Tail::new(writer.reservation());
    sim.set_capacity(sim.used_bytes());
    while tail.append(|out| out.extend_from_slice(&[7; 100])).is_ok() {
        writer.flush(&mut tail.take(Group::default())).unwrap();
        let _ = writer.prepare_next();
    }
    assert!(writer.trim(writer.flushed()).unwrap() > 0);
    assert_eq!(writer.prepare_next().unwrap(), 1);
    tail.add_spares(1);
    assert!(tail.append(|out| out.extend_from_slice(&[7; 100])).is_ok());
}

#[test]
fn a_failed_sync_poisons_the_writer_and_a_restart_finds_every_acknowledged_frame() {
    let sim = SimDisk::new(3);
    let mut writer = Writer::create(sim.disk(), Position(0), SEGMENT, Salt::new(7), ID).unwrap();
    let mut tail = Tail::new(writer.reservation());
    tail.append(|out| out.extend_from_slice(b"acknowledged")).unwrap();
    flush(&mut writer, &mut tail);
    tail.append(|out| out.extend_from_slice(b"unknown")).unwrap();
    sim.fail_next_sync();
    assert!(writer.flush(&mut tail.take(Group::default())).is_err());
    assert!(writer.sync().is_err());
    assert!(writer.roll().is_err());
    assert!(writer.trim(Position(24)).is_err());

    sim.restart();
    let (_, replayed) = examine(&sim, Position(0)).unwrap();
    assert_eq!(replayed.len(), 2, "the page cache still has both");
    sim.power_cut_losing(Loss::Everything, 0);
    assert_eq!(examine(&sim, Position(0)).unwrap().1, replayed, "what recovery has replayed is durable");
}
