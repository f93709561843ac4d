//! Damage at the end of the journal: detected up to the recorded durable end, and without false alarms.
//!
//! `TALLY_SEED=n` reruns one seed, `TALLY_SEEDS=n` sets how many are tried.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeMap;
use std::sync::Arc;

use tally_core::key::{Key, KeyRef};
use tally_core::time::Position;
use tally_engine::Durability;
use tally_engine::check::{CheckError, check_disk};
use tally_engine::{Machine, OpenError, Settings, Step};
use tally_sim::life::{ready, submit_now};
use tally_sim::world::SimClock;
use tally_sim::{Rng, SimDisk};

type Files = BTreeMap<String, Vec<u8>>;

const SEEDS_DEFAULT: u64 = 300;
const HEADER: usize = 40;

#[expect(clippy::disallowed_methods, reason = "the seeds to run are chosen by an environment variable")]
fn seeds() -> std::ops::Range<u64> {
    let number = |name| std::env::var(name).ok().and_then(|value: String| value.parse::<u64>().ok());
    match number("TALLY_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("TALLY_SEEDS").unwrap_or(SEEDS_DEFAULT),
    }
}

fn open(sim: &SimDisk, segment_bytes: u64) -> Result<Machine, OpenError> {
    let settings = Settings { segment_bytes, seed: 1, ..Settings::default() };
    Machine::open(sim.disk(), Arc::new(SimClock::default()), settings, &mut |_, _| {})
}

fn add(machine: &Machine, counters: u64) {
    let mut events = machine.events();
    events.add(KeyRef::new(b"hits").unwrap(), 1);
    for number in 1..counters {
        events.add(KeyRef::new(format!("other:{number}").as_bytes()).unwrap(), 1);
    }
    assert!(submit_now(machine, events).unwrap().is_ok());
}

fn hits(machine: &Machine) -> i64 {
    ready(machine.read(&[Key::new("hits").unwrap()], Durability::Flushed)).unwrap().unwrap()[0].value
}

/// A directory whose process was killed, and what was acknowledged in it.
struct Killed {
    files: Files,
    segment_bytes: u64,
    /// The recorded durable end of the journal, and the value there.
    marked: (Position, i64),
    /// The actual end, and the value there.
    end: (Position, i64),
}

/// A random run of a process; after the last end record, `unmarked` more increments are acknowledged.
fn killed(rng: &mut Rng, unmarked: u64) -> Killed {
    let sim = SimDisk::new(rng.next_u64());
    let segment_bytes = 4096 * (1 + rng.below(3));
    let mut machine = open(&sim, segment_bytes).unwrap();
    for _ in 0..1 + rng.below(60) {
        match rng.below(12) {
            0 => {
                let mut checkpoint = machine.checkpoint();
                while checkpoint.as_mut().is_some_and(|checkpoint| checkpoint.step().unwrap() != Step::Done) {}
            }
            1 => {
                drop(machine);
                machine = open(&sim, segment_bytes).unwrap();
            }
            2 => drop(machine.mark_end().unwrap()),
            _ => add(&machine, 1 + rng.below(20)),
        }
    }
    add(&machine, 1);
    machine.mark_end().unwrap();
    let marked = (machine.flushed(), hits(&machine));
    for _ in 0..unmarked {
        add(&machine, 1);
    }
    let end = (machine.flushed(), hits(&machine));
    Killed { files: sim.contents(), segment_bytes, marked, end }
}

impl Killed {
    /// The last segment, the end of its frames, and the recorded durable end within it.
    fn last(&self) -> (String, usize, usize) {
        let name = self.files.keys().rfind(|name| name.starts_with("journal-")).unwrap();
        let base = u64::from_str_radix(&name["journal-".len()..name.len() - ".seg".len()], 16).unwrap();
        (name.clone(), (self.end.0.0 - base) as usize, self.marked.0.0.saturating_sub(base) as usize)
    }

    /// Asserts that the start and `check` agree on the damaged files and that a refused start changes nothing. Returns
    /// the value if they open.
    fn examine(&self, files: &Files, case: &str) -> Option<i64> {
        let sim = SimDisk::with_contents(1, files);
        let checked = check_disk(&sim.disk(), &mut |_, _| {});
        match open(&sim, self.segment_bytes) {
            Ok(machine) => {
                assert!(checked.is_ok(), "{case}: it opens, and check says {checked:?}");
                Some(hits(&machine))
            }
            Err(refused) => {
                let Err(CheckError::Damaged { file, what, .. }) = checked else { panic!("{case}: {checked:?}") };
                assert!(refused.to_string().contains(&file), "{case}: check says {file}: {what}; start says {refused}");
                assert_eq!((sim.operations(), &sim.contents()), (0, files), "{case}");
                None
            }
        }
    }
}

/// Ways in which the end of a journal is damaged.
#[derive(Clone, Copy, Debug)]
enum Damage {
    ZeroedPage,
    ZeroedSector,
    Truncated,
    TruncatedAtAFrame,
    SegmentRemoved,
    FlippedBit,
    OlderCopy,
}

const DAMAGES: [Damage; 7] = [
    Damage::ZeroedPage,
    Damage::ZeroedSector,
    Damage::Truncated,
    Damage::TruncatedAtAFrame,
    Damage::SegmentRemoved,
    Damage::FlippedBit,
    Damage::OlderCopy,
];

/// The start offsets of the frames of a segment, and the end offset of the last one.
fn frame_starts(bytes: &[u8], end: usize) -> Vec<usize> {
    let mut starts = vec![HEADER];
    while let Some(&last) = starts.last().filter(|last| **last < end) {
        let length = u32::from_le_bytes(bytes[last + 4..last + 8].try_into().unwrap()) as usize;
        starts.push(last + (24 + length).next_multiple_of(8));
    }
    starts
}

/// The files, with damage before `end`, where the last frame of the segment ends.
fn damaged(files: &Files, damage: Damage, segment: &str, end: usize, rng: &mut Rng) -> Files {
    let mut files = files.clone();
    let starts = frame_starts(&files[segment], end);
    let last_frame = starts[starts.len() - 2];
    let bytes = files.get_mut(segment).unwrap();
    match damage {
        Damage::ZeroedPage | Damage::ZeroedSector => {
            let size = if matches!(damage, Damage::ZeroedPage) { 4096 } else { 512 };
            let start = (end - 1) / size * size;
            let until = (start + size).min(bytes.len());
            bytes[start.max(HEADER)..until].fill(0);
        }
        Damage::Truncated => bytes.truncate(HEADER + rng.below((end - HEADER) as u64) as usize),
        Damage::TruncatedAtAFrame => bytes.truncate(starts[rng.below(starts.len() as u64 - 1) as usize]),
        Damage::SegmentRemoved => drop(files.remove(segment)),
        Damage::FlippedBit => {
            let bit = last_frame as u64 * 8 + rng.below((end - last_frame) as u64 * 8);
            bytes[bit as usize / 8] ^= 1 << (bit % 8);
        }
        // As it was before the last frame was written.
        Damage::OlderCopy => bytes[last_frame..].fill(0),
    }
    files
}

#[test]
fn damage_before_the_recorded_durable_end_is_refused_with_its_file() {
    for seed in seeds() {
        for damage in DAMAGES {
            let case = format!("TALLY_SEED={seed}, {damage:?}");
            let mut rng = Rng::new(seed);
            let killed = killed(&mut rng, 0);
            let (segment, end, recorded) = killed.last();
            assert_eq!(end, recorded, "{case}");
            let files = damaged(&killed.files, damage, &segment, end, &mut rng);
            assert_eq!(killed.examine(&killed.files, &case), Some(killed.end.1), "{case}");
            assert_eq!(killed.examine(&files, &case), None, "{case}");
        }
    }
}

#[test]
fn damage_after_the_recorded_durable_end_loses_only_what_follows_it() {
    let mut lost = 0;
    for seed in seeds() {
        for damage in DAMAGES {
            let case = format!("TALLY_SEED={seed}, {damage:?}");
            let mut rng = Rng::new(seed);
            let unmarked = 1 + rng.below(3);
            let killed = killed(&mut rng, unmarked);
            let (segment, end, _) = killed.last();
            let files = damaged(&killed.files, damage, &segment, end, &mut rng);
            if let Some(found) = killed.examine(&files, &case) {
                let (marked, acknowledged) = (killed.marked.1, killed.end.1);
                assert!((marked..=acknowledged).contains(&found), "{case}: {found} of {marked}..={acknowledged}");
                lost += u64::from(found < acknowledged);
            }
        }
    }
    println!("undetected: {lost}");
}

#[test]
fn a_flipped_bit_outside_the_runs_is_refused_or_harmless() {
    let mut refused = 0;
    for seed in seeds() {
        let case = format!("TALLY_SEED={seed}");
        let mut rng = Rng::new(seed);
        let killed = killed(&mut rng, 0);
        let names: Vec<&String> = killed.files.keys().filter(|name| !name.ends_with(".run")).collect();
        for name in names {
            let mut files = killed.files.clone();
            let bytes = files.get_mut(name).unwrap();
            // Most of a segment may be unused.
            let used = if rng.one_in(2) { bytes.len().min(400) } else { bytes.len() };
            let bit = rng.below(used as u64 * 8);
            bytes[bit as usize / 8] ^= 1 << (bit % 8);
            match killed.examine(&files, &case) {
                Some(found) => assert_eq!(found, killed.end.1, "{case}: bit {bit} of {name}"),
                None => refused += 1,
            }
        }
    }
    assert!(refused > 0);
}

#[test]
fn a_damaged_end_record_falls_back_to_the_older_one_and_without_both_the_start_is_refused() {
    let mut rng = Rng::new(7);
    let killed = killed(&mut rng, 0);
    for bit in (0..44 * 8).chain(4096 * 8..(4096 + 44) * 8) {
        let mut files = killed.files.clone();
        files.get_mut("journal.end").unwrap()[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(killed.examine(&files, "one record"), Some(killed.end.1));
    }
    let mut files = killed.files.clone();
    for at in [20, 4096 + 20] {
        files.get_mut("journal.end").unwrap()[at] ^= 1;
    }
    assert_eq!(killed.examine(&files, "both records"), None);
}
