//! A backup whose disk loses power at any step is complete, or is not declared complete.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::io::Read;
use std::sync::Arc;

use tally_core::key::{Key, KeyRef};
use tally_engine::backup::{Backup, BackupError, BackupPermit, BackupTarget};
use tally_engine::check::check_disk;
use tally_engine::{Durability, Machine, OpenError, Settings, Step};
use tally_sim::life::{ready, submit_now};
use tally_sim::world::SimClock;
use tally_sim::{Loss, SimDisk};

const COUNTERS: usize = 40;
const SETTINGS: Settings =
    Settings { memory_bytes: 64 << 20, segment_bytes: 8 << 10, checkpoint_journal_bytes: 1 << 30, seed: 1 };

fn open(sim: &SimDisk) -> Result<Machine, OpenError> {
    Machine::open(sim.disk(), Arc::new(SimClock::default()), SETTINGS, &mut |_, _| {})
}

fn key(number: usize) -> String {
    format!("stock:{number:05}")
}

fn increment_all(machine: &Machine) {
    let mut events = machine.events();
    for number in 0..COUNTERS {
        events.add(KeyRef::new(key(number).as_bytes()).unwrap(), 1);
    }
    assert!(submit_now(machine, events).unwrap().is_ok());
}

fn checkpoint(machine: &Machine) {
    let mut checkpoint = machine.checkpoint().unwrap();
    while checkpoint.step().unwrap() != Step::Done {}
}

fn values(machine: &Machine) -> Vec<i64> {
    let keys: Vec<Key> = (0..COUNTERS).map(|number| Key::new(key(number)).unwrap()).collect();
    let readings = ready(machine.read(&keys, Durability::Flushed)).unwrap().unwrap();
    readings.iter().map(|reading| reading.value).collect()
}

/// A source with several runs, and a journal that continues after the last checkpoint.
fn source() -> Machine {
    let machine = open(&SimDisk::new(1)).unwrap();
    for _ in 0..3 {
        increment_all(&machine);
        checkpoint(&machine);
    }
    increment_all(&machine);
    machine
}

fn copy(backup: &Backup, to: &SimDisk) -> Result<(), BackupError> {
    let mut target = BackupTarget::on(to.disk());
    for file in backup.files() {
        target.write(&file.name, file.bytes, &mut file.reader(), &mut |_| {})?;
    }
    target.finish(&mut |_, _| {}).map(drop)
}

/// Whether `tally.lock` says that the directory is complete.
fn is_complete(sim: &SimDisk) -> bool {
    sim.contents().get("tally.lock").is_some_and(|lock| lock.starts_with(b"tally-data-format 2\n"))
}

#[test]
fn a_power_cut_at_any_step_leaves_a_complete_backup_or_one_that_is_not_declared_complete() {
    let machine = source();
    let backup = machine.backup(BackupPermit::default());
    let whole = SimDisk::new(0);
    copy(&backup, &whole).unwrap();
    let steps = whole.operations();
    let mut complete = 0;
    for step in 0..=steps {
        for (seed, loss) in (0..).zip([Loss::Nothing, Loss::Everything, Loss::Some, Loss::Later, Loss::LaterAndTorn]) {
            let sim = SimDisk::new(seed);
            sim.crash_at(step);
            let copied = copy(&backup, &sim);
            sim.power_cut_losing(loss, 1_000 * step + seed);
            sim.restart();
            assert!(copied.is_err() || is_complete(&sim), "step {step}, {loss:?}: a finished backup was lost");
            if is_complete(&sim) {
                complete += 1;
                check_disk(&sim.disk(), &mut |_, _| {}).unwrap();
                assert_eq!(values(&open(&sim).unwrap()), [3; COUNTERS], "step {step}, {loss:?}");
            }
        }
    }
    assert!(complete > 0 && complete < 5 * steps, "{complete} of {}", 5 * steps);
}

#[test]
fn a_backup_stays_readable_while_later_checkpoints_and_merges_replace_its_files() {
    let machine = source();
    let backup = machine.backup(BackupPermit::default());
    for _ in 0..20 {
        increment_all(&machine);
        checkpoint(&machine);
        while machine.merge().unwrap() {}
    }
    let sim = SimDisk::new(7);
    copy(&backup, &sim).unwrap();
    let copied = open(&sim).unwrap();
    assert_eq!(values(&copied), [3; COUNTERS]);
    // The copy works like any data directory.
    increment_all(&copied);
    checkpoint(&copied);
    drop(copied);
    assert_eq!(values(&open(&sim).unwrap()), [4; COUNTERS]);
}

#[test]
fn a_directory_without_any_counter_can_be_backed_up() {
    let machine = open(&SimDisk::new(1)).unwrap();
    let sim = SimDisk::new(2);
    copy(&machine.backup(BackupPermit::default()), &sim).unwrap();
    let copied = open(&sim).unwrap();
    increment_all(&copied);
    assert_eq!(values(&copied), [1; COUNTERS]);
}

/// Writes these files, and returns why they are refused.
fn refusal(files: &[(String, u64, Vec<u8>)]) -> String {
    let sim = SimDisk::new(3);
    let mut target = BackupTarget::on(sim.disk());
    let written =
        files.iter().try_for_each(|(name, bytes, content)| target.write(name, *bytes, &mut &content[..], &mut |_| {}));
    let error = written.and_then(|()| target.finish(&mut |_, _| {}).map(drop)).unwrap_err().to_string();
    assert!(!is_complete(&sim), "{error}");
    error
}

#[test]
fn a_source_that_ends_early_or_sends_other_files_is_refused() {
    let machine = source();
    let backup = machine.backup(BackupPermit::default());
    let files = backup.files().iter().map(|file| {
        let mut content = Vec::new();
        file.reader().read_to_end(&mut content).unwrap();
        (file.name.clone(), file.bytes, content)
    });
    let files: Vec<_> = files.collect();
    let (last, run) = (files.len() - 1, files[1].0.clone());
    assert_eq!(refusal(&files[1..]), format!("this is not a backup: the first file is {run} instead of tally.lock"));
    for end in 0..=last {
        assert_eq!(refusal(&files[..end]), "this is not a backup: it ends early");
    }
    let mut short = files.clone();
    short[1].2.pop();
    assert_eq!(refusal(&short), format!("{run}: unexpected end of file"));
    let mut damaged = files.clone();
    damaged[1].2[100] ^= 1;
    assert!(refusal(&damaged).starts_with(&format!("the copy is damaged: {run} is damaged at byte")));
    for left_out in 1..last {
        let fewer = [&files[..left_out], &files[left_out + 1..]].concat();
        let why = refusal(&fewer);
        assert!(why.starts_with("the copy is damaged: "), "without {}: {why}", files[left_out].0);
    }
    let mut foreign = files.clone();
    foreign[1].0 = "../evil".to_owned();
    assert_eq!(refusal(&foreign), "this is not a backup: unexpected file ../evil");
    let beyond = [&files[..], &files[1..2]].concat();
    assert_eq!(refusal(&beyond), format!("this is not a backup: unexpected file {run} after the last one"));
}
