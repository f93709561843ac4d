//! A refused start changes nothing: once the missing files are put back, everything is there.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeMap;
use std::sync::Arc;

use tally_core::key::{Key, KeyRef};
use tally_engine::Durability;
use tally_engine::check::{CheckError, check_disk};
use tally_engine::{Machine, OpenError, Settings, Step};
use tally_sim::life::{ready, submit_now};
use tally_sim::world::SimClock;
use tally_sim::{Loss, SimDisk};

type Files = BTreeMap<String, Vec<u8>>;

const COUNTERS: usize = 60;
const SETTINGS: Settings =
    Settings { memory_bytes: 64 << 20, segment_bytes: 8 << 10, checkpoint_journal_bytes: 1 << 30, seed: 1 };

fn open(sim: &SimDisk) -> Result<Machine, OpenError> {
    Machine::open(sim.disk(), Arc::new(SimClock::default()), SETTINGS, &mut |_, _| {})
}

fn key(number: usize) -> String {
    format!("stock:{number:05}")
}

/// Increments every counter; returns whether that was acknowledged.
fn increment_all(machine: &Machine) -> bool {
    let mut events = machine.events();
    for number in 0..COUNTERS {
        events.add(KeyRef::new(key(number).as_bytes()).unwrap(), 1);
    }
    submit_now(machine, events).unwrap().is_ok()
}

fn checkpoint(machine: &Machine) -> bool {
    let Some(mut checkpoint) = machine.checkpoint() else { return true };
    loop {
        match checkpoint.step() {
            Ok(Step::Done) => break,
            Ok(_) => {}
            Err(_) => return false,
        }
    }
    drop(checkpoint);
    machine.maintain_journal();
    true
}

fn value(machine: &Machine, number: usize) -> i64 {
    let reading = ready(machine.read(&[Key::new(key(number)).unwrap()], Durability::Flushed)).unwrap().unwrap();
    reading[0].value
}

/// A directory after some rounds of increments, checkpoints and trims, and increments that are only in the journal.
fn populated(checkpoints: usize) -> (Files, i64) {
    let sim = SimDisk::new(1);
    let machine = open(&sim).unwrap();
    let mut added = 0;
    for _ in 0..checkpoints {
        for _ in 0..12 {
            assert!(increment_all(&machine));
            added += 1;
        }
        assert!(checkpoint(&machine));
    }
    for _ in 0..7 {
        assert!(increment_all(&machine));
        added += 1;
    }
    drop(machine);
    (sim.contents(), added)
}

/// Asserts that both the start and `check` refuse this directory as damaged, name a file and change nothing.
fn assert_refused(files: &Files) -> String {
    let sim = SimDisk::with_contents(1, files);
    let checked = check_disk(&sim.disk(), &mut |_, _| {});
    let Err(CheckError::Damaged { file, what, .. }) = checked else { panic!("check returned {checked:?}") };
    let refused =
        open(&sim).err().unwrap_or_else(|| panic!("it opens, although check reports {file}: {what}")).to_string();
    assert!(
        refused.contains(&file) && refused.contains(&what),
        "check reports {file}: {what}; the start reports {refused}"
    );
    assert_eq!(sim.operations(), 0, "a refused start wrote to the disk: {refused}");
    assert_eq!(sim.contents(), *files);
    file
}

fn assert_intact(files: &Files, expected: i64) {
    let sim = SimDisk::with_contents(1, files);
    check_disk(&sim.disk(), &mut |_, _| {}).unwrap();
    assert_eq!(sim.contents(), *files, "check changes nothing");
    let machine = open(&sim).unwrap();
    for number in [0, COUNTERS / 2, COUNTERS - 1] {
        assert_eq!(value(&machine, number), expected);
    }
}

/// Asserts that the start is refused or that no count is missing; returns whether it was refused.
fn assert_refused_or_intact(files: &Files, expected: i64) -> bool {
    let is_refused = check_disk(&SimDisk::with_contents(1, files).disk(), &mut |_, _| {}).is_err();
    if is_refused {
        assert_refused(files);
    } else {
        assert_intact(files, expected);
    }
    is_refused
}

fn only(files: &Files, keep: impl Fn(&str) -> bool) -> Files {
    files.iter().filter(|(name, _)| keep(name)).map(|(name, bytes)| (name.clone(), bytes.clone())).collect()
}

#[test]
fn a_directory_without_its_manifest_is_refused_and_opens_once_it_is_put_back() {
    for checkpoints in [0, 1, 3] {
        let (files, added) = populated(checkpoints);
        assert_intact(&files, added);
        assert_eq!(assert_refused(&only(&files, |name| name != "manifest")), "manifest");
        // Putting the manifest back is enough.
        assert_intact(&files, added);
    }
}

#[test]
fn a_partially_restored_directory_is_refused() {
    let (files, added) = populated(3);
    let needed: Vec<&String> = files.keys().filter(|name| !name.starts_with("spare-")).collect();
    assert!(needed.iter().any(|name| name.ends_with(".run")) && needed.iter().any(|name| name.starts_with("journal-")));
    for kind in ["run-", "journal-"] {
        let copied = only(&files, |name| name.starts_with(kind));
        assert_eq!(assert_refused(&copied), "manifest", "only {kind}…");
    }
    // In the order of their names and in reverse.
    for order in [needed.clone(), needed.iter().copied().rev().collect()] {
        for copied in 1..order.len() {
            assert_refused_or_intact(&only(&files, |name| order[..copied].iter().any(|copied| *copied == name)), added);
        }
    }
    assert_intact(&only(&files, |name| !name.starts_with("spare-")), added);
}

#[test]
fn a_missing_file_refuses_the_start_unless_it_is_a_spare_or_a_segment_before_the_checkpoint() {
    for checkpoints in [0, 1, 3] {
        let (files, added) = populated(checkpoints);
        for missing in files.keys() {
            let refused = assert_refused_or_intact(&only(&files, |name| name != missing), added);
            let may_be_missing = missing.starts_with("spare-") || (checkpoints > 0 && missing.starts_with("journal-"));
            assert!(refused || may_be_missing, "{missing}");
        }
    }
}

#[test]
fn leftover_files_are_removed_only_if_the_start_succeeds() {
    let (mut files, added) = populated(2);
    files.insert("run-0000000000009999.run".to_owned(), b"half a run".to_vec());
    files.insert("manifest.new".to_owned(), b"half a manifest".to_vec());
    let last = files.keys().rfind(|name| name.starts_with("journal-")).unwrap().clone();
    let mut damaged = files.clone();
    damaged.get_mut(&last).unwrap()[60] ^= 1;
    assert_eq!(assert_refused(&damaged), last);
    let sim = SimDisk::with_contents(1, &files);
    let machine = open(&sim).unwrap();
    assert_eq!(value(&machine, 0), added);
    assert!(!sim.file_names().iter().any(|name| name.contains("9999") || name == "manifest.new"));
}

#[test]
fn a_crash_at_any_operation_of_the_first_start_or_checkpoint_loses_no_acknowledged_write() {
    let live = |sim: &SimDisk| {
        let mut added = 0;
        let Ok(machine) = open(sim) else { return added };
        for _ in 0..3 {
            if !increment_all(&machine) {
                return added;
            }
            added += 1;
            if !checkpoint(&machine) {
                return added;
            }
        }
        added
    };
    let calm = SimDisk::new(1);
    assert_eq!(live(&calm), 3);
    let losses = [Loss::Nothing, Loss::Everything, Loss::Later, Loss::LaterAndTorn, Loss::Some, Loss::Some];
    for operation in 1..=calm.operations() {
        for (seed, loss) in losses.into_iter().enumerate() {
            let sim = SimDisk::new(seed as u64);
            sim.crash_at(operation);
            let added = live(&sim);
            sim.power_cut_losing(loss, operation + seed as u64);
            let case = format!("operation {operation}, {loss:?}, seed {seed}");
            check_disk(&sim.disk(), &mut |_, _| {}).unwrap_or_else(|error| panic!("{case}: {error}"));
            let machine = open(&sim).unwrap_or_else(|error| panic!("{case}: {error}"));
            let found = value(&machine, 7);
            assert!(found == added || found == added + 1, "{case}: {found} after {added} were acknowledged");
            assert!(increment_all(&machine), "{case}");
        }
    }
}
