//! Data directories that were changed, locked or damaged by something else.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;
use std::thread;

use tally_contract::block_on;
use tally_core::event::{Change, Condition, Correction, Deadline, Expiry, RequestId};
use tally_core::key::{Key, KeyRef};
use tally_core::limits::MEMORY_BYTES_MIN;
use tally_core::surface::{Engine, ReadOptions, SubmitOptions};
use tally_core::time::Millis;
use tally_engine::check::{CheckError, check};
use tally_engine::disk::RealDisk;
use tally_engine::store::{Entry, Store};
use tally_engine::{Config, DirId, Embedded, OpenError};
use tempfile::TempDir;

fn open(dir: &Path) -> Result<Embedded, OpenError> {
    let config = Config::new(dir, MEMORY_BYTES_MIN);
    Embedded::open(&config, &mut |_, _| {})
}

fn add(engine: &Embedded, amount: i64) {
    let mut events = engine.events();
    events.add(KeyRef::new(b"hits").unwrap(), amount);
    block_on(engine.submit(events, SubmitOptions::default())).unwrap();
}

fn hits(engine: &Embedded) -> i64 {
    block_on(engine.read(vec![Key::new("hits").unwrap()], ReadOptions::default())).unwrap()[0].value
}

/// Names and lengths, and the bytes of small files.
fn files(dir: &Path) -> BTreeMap<String, (u64, Vec<u8>)> {
    let read = |entry: fs::DirEntry| {
        let len = entry.metadata().unwrap().len();
        let bytes = if len < 1 << 20 { fs::read(entry.path()).unwrap_or_default() } else { Vec::new() };
        (entry.file_name().into_string().unwrap(), (len, bytes))
    };
    fs::read_dir(dir).unwrap().map(|entry| read(entry.unwrap())).collect()
}

fn name_of(dir: &Path, prefix: &str) -> String {
    files(dir).into_keys().rfind(|name| name.starts_with(prefix)).unwrap()
}

/// A directory that was closed, with a checkpoint.
fn closed() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path()).unwrap();
    add(&engine, 5);
    engine.close().unwrap();
    dir
}

/// The error of a refused start, which must change nothing.
fn refusal(dir: &Path) -> String {
    let before = files(dir);
    let refused = open(dir).map(|_| ()).unwrap_err().to_string();
    assert_eq!(files(dir), before, "{refused}");
    refused
}

#[test]
fn a_second_engine_is_refused_even_if_the_lock_file_was_removed() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path()).unwrap();
    add(&engine, 1);
    assert!(matches!(open(dir.path()), Err(OpenError::InUse { .. })));
    fs::remove_file(dir.path().join("tally.lock")).unwrap();
    assert!(matches!(open(dir.path()), Err(OpenError::InUse { .. })));
    assert!(matches!(check(dir.path(), &mut |_, _| {}), Err(CheckError::InUse { .. })));
    add(&engine, 1);
    engine.close().unwrap();
    let engine = open(dir.path()).unwrap();
    assert_eq!(hits(&engine), 2);
    engine.close().unwrap();
}

/// Such as a home directory, or the parent of the data directory: a server there would seem to have lost everything.
#[test]
fn a_directory_with_files_of_something_else_is_refused_unchanged() {
    let parent = tempfile::tempdir().unwrap();
    open(&parent.path().join("tally")).unwrap().close().unwrap();
    let refused = refusal(parent.path());
    assert!(refused.contains("not a data directory of Tally") && refused.contains("\"tally\""), "{refused}");
    fs::write(parent.path().join("notes"), "").unwrap();
    let refused = open(&parent.path().join("notes")).map(|_| ()).unwrap_err().to_string();
    assert!(refused.contains("a file, not a directory"), "{refused}");
}

#[test]
fn what_file_systems_and_interrupted_first_starts_leave_behind_is_accepted() {
    for leftover in ["lost+found", ".snapshot", "manifest.new", "journal.end.new"] {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(leftover), "").unwrap();
        let engine = open(dir.path()).unwrap();
        add(&engine, 5);
        engine.close().unwrap();
        fs::write(dir.path().join("notes"), "").unwrap();
        assert_eq!(hits(&open(dir.path()).unwrap()), 5, "{leftover}");
    }
}

#[test]
fn a_directory_with_only_runs_and_a_lock_file_is_refused_unchanged() {
    let dir = closed();
    let copy = tempfile::tempdir().unwrap();
    for name in files(dir.path()).into_keys().filter(|name| name.starts_with("run-") || name == "tally.lock") {
        fs::copy(dir.path().join(&name), copy.path().join(&name)).unwrap();
    }
    let words = refusal(copy.path());
    assert!(words.contains("manifest is damaged at byte 0: the file is missing"), "{words}");
    let checked = check(copy.path(), &mut |_, _| {}).unwrap_err();
    assert!(matches!(checked, CheckError::Damaged { ref file, .. } if file == "manifest"), "{checked}");
    // The rest of the copy arrives.
    for name in files(dir.path()).into_keys() {
        fs::copy(dir.path().join(&name), copy.path().join(&name)).unwrap();
    }
    let engine = open(copy.path()).unwrap();
    assert_eq!(hits(&engine), 5);
    engine.close().unwrap();
}

#[test]
fn a_run_and_a_segment_of_another_directory_are_refused() {
    for kind in ["run-", "journal-"] {
        let (dir, other) = (closed(), closed());
        let name = name_of(dir.path(), kind);
        fs::copy(other.path().join(&name), dir.path().join(&name)).unwrap();
        let words = refusal(dir.path());
        assert!(words.contains(&name) && words.contains("belongs to another data directory"), "{words}");
        let checked = check(dir.path(), &mut |_, _| {}).unwrap_err();
        assert!(matches!(checked, CheckError::Damaged { ref file, .. } if *file == name), "{checked}");
    }
}

#[test]
fn an_idle_engine_records_the_end_of_its_journal_so_that_damage_after_a_kill_is_detected() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path()).unwrap();
    let end = dir.path().join("journal.end");
    let before = fs::read(&end).unwrap();
    add(&engine, 5);
    while fs::read(&end).unwrap() == before {
        thread::yield_now();
    }
    // A copy of an idle engine's directory is what a kill leaves.
    let killed = tempfile::tempdir().unwrap();
    for name in files(dir.path()).into_keys() {
        fs::copy(dir.path().join(&name), killed.path().join(&name)).unwrap();
    }
    engine.close().unwrap();
    check(killed.path(), &mut |_, _| {}).unwrap();
    let segment = killed.path().join(name_of(killed.path(), "journal-0"));
    let file = OpenOptions::new().write(true).open(&segment).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &[0; 4096 - 40], 40).unwrap();
    let words = refusal(killed.path());
    assert!(words.contains("is damaged at byte 40") && words.contains("journal.end says"), "{words}");
    let checked = check(killed.path(), &mut |_, _| {}).unwrap_err();
    assert!(matches!(checked, CheckError::Damaged { offset: 40, .. }), "{checked}");
}

#[test]
fn a_dangling_link_is_reported_by_start_and_check() {
    let dir = closed();
    let run = name_of(dir.path(), "run-");
    let segment = name_of(dir.path(), "journal-0");
    for name in ["manifest", "journal.end", &run, &segment] {
        let path = dir.path().join(name);
        let aside = dir.path().join("aside");
        fs::rename(&path, &aside).unwrap();
        symlink("/nowhere/at/all", &path).unwrap();
        let words = refusal(dir.path());
        let checked = check(dir.path(), &mut |_, _| {}).unwrap_err().to_string();
        for words in [words, checked] {
            let leads = format!("{name} is a symbolic link to /nowhere/at/all, which does not exist");
            assert!(words.contains(&leads), "{words}");
        }
        fs::remove_file(&path).unwrap();
        fs::rename(&aside, &path).unwrap();
    }
    let engine = open(dir.path()).unwrap();
    assert_eq!(hits(&engine), 5);
    engine.close().unwrap();
}

#[test]
fn a_spare_that_is_a_dangling_link_is_replaced() {
    let dir = closed();
    let spare = dir.path().join(name_of(dir.path(), "spare-"));
    fs::remove_file(&spare).unwrap();
    symlink("/nowhere/at/all", &spare).unwrap();
    let engine = open(dir.path()).unwrap();
    add(&engine, 1);
    assert_eq!(hits(&engine), 6);
    engine.close().unwrap();
}

#[test]
fn a_directory_that_is_moved_while_in_use_is_still_the_one_that_is_written() {
    let parent = tempfile::tempdir().unwrap();
    let (data, moved) = (parent.path().join("data"), parent.path().join("moved"));
    let first = open(&data).unwrap();
    add(&first, 1);
    fs::rename(&data, &moved).unwrap();
    let second = open(&data).unwrap();
    add(&second, 10);
    second.close().unwrap();
    let before = files(&data);
    // Closing writes a checkpoint: a run, a manifest, and the end of the journal.
    add(&first, 2);
    first.close().unwrap();
    assert!(files(&data) == before, "the files of the second engine changed");
    for (dir, value) in [(&data, 10), (&moved, 3)] {
        check(dir, &mut |_, _| {}).unwrap();
        assert_eq!(hits(&open(dir).unwrap()), value, "{}", dir.display());
    }
}

#[test]
fn check_names_a_record_that_does_not_decode() {
    let malformed: [(&[u8], Entry<'_>, &str); 8] = [
        (b"cvisits", Entry::Put(&[1, 2, 3]), "cvisits"),
        (b"c", Entry::Remove, "the record c "),
        (b"e1234567", Entry::Put(&[]), "e1234567"),
        (b"hvisits", Entry::Put(&[9]), "hvisits"),
        (b"i0123", Entry::Remove, "i0123"),
        (b"l\0\x06visits\0\0\0\0\0\0\0\x01", Entry::Put(&[1]), "l\\x00\\x06visits"),
        (b"more", Entry::Remove, "more"),
        (b"zebra", Entry::Put(&[]), "zebra"),
    ];
    for (key, entry, name) in malformed {
        let dir = closed();
        let store = Store::open(Arc::new(RealDisk::new(dir.path()).unwrap()), DirId::default()).unwrap();
        let mut checkpoint = store.checkpoint();
        checkpoint.write_run([(key, entry)]).unwrap();
        checkpoint.commit(store.position()).unwrap();
        drop(store);
        match check(dir.path(), &mut |_, _| {}) {
            Err(CheckError::Damaged { file, what, .. }) => {
                assert!(file.starts_with("run-") && what.contains(name), "{file}: {what}");
            }
            other => panic!("{name}: {other:?}"),
        }
    }
}

#[test]
fn check_decodes_every_kind_of_record() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path()).unwrap();
    let mut events = engine.events();
    let key = KeyRef::new(b"visits").unwrap();
    let why = || Correction::new("auditor", "recount").unwrap();
    let expiry = Expiry::At(Deadline::At(Millis(u64::MAX)));
    events.push(key, Change::Add(1), RequestId::new(key, b"once").ok(), None);
    events.push(key, Change::Set { value: 5, when: Condition::Always, expiry, why: why() }, None, None);
    events.push(KeyRef::new(b"gone").unwrap(), Change::Add(1), None, None);
    events.push(KeyRef::new(b"gone").unwrap(), Change::Delete(why()), None, None);
    block_on(engine.submit(events, SubmitOptions::default())).unwrap();
    engine.close().unwrap();
    let store = Store::open_read_only(Arc::new(RealDisk::new(dir.path()).unwrap())).unwrap();
    let mut families: Vec<u8> = store.scan(b"").map(|record| record.unwrap().0[0]).collect();
    families.dedup();
    assert_eq!(families, b"cehilm");
    let report = check(dir.path(), &mut |_, _| {}).unwrap();
    assert!(report.entries >= 8, "{report:?}");
}
