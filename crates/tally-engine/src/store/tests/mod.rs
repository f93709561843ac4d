//! Tests of the store, on a disk in memory and on a real one.
#![allow(clippy::unwrap_used, clippy::panic)]

mod damage;
mod disk;
mod faults;
mod model;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tally_core::time::Position;

use self::disk::MemDisk;
use super::{Entry, Store, StoreError};
use crate::disk::{Disk, RealDisk};
use crate::identity::DirId;

const ID: DirId = DirId::new(5);

/// What a checkpoint does to keys; `None` removes.
type Changes = BTreeMap<Vec<u8>, Option<Vec<u8>>>;
type Contents = BTreeMap<Vec<u8>, Vec<u8>>;

/// Opens like a successful start.
fn open(disk: &Arc<MemDisk>) -> Store {
    let store = Store::open(Arc::clone(disk) as Arc<dyn Disk>, ID).unwrap();
    store.remove_leftovers().unwrap();
    store
}

/// Commits the changes as several runs, each of which spans all keys.
fn try_checkpoint(store: &Store, changes: &Changes, runs: usize, position: u64) -> Result<(), StoreError> {
    let mut checkpoint = store.checkpoint();
    for part in 0..runs {
        let part = changes.iter().skip(part).step_by(runs);
        checkpoint.write_run(part.map(|(key, value)| match value {
            Some(value) => (key.as_slice(), Entry::Put(value)),
            None => (key.as_slice(), Entry::Remove),
        }))?;
    }
    checkpoint.commit(Position(position))
}

fn checkpoint(store: &Store, changes: &Changes, position: u64) {
    try_checkpoint(store, changes, 1, position).unwrap();
}

fn put(keys: impl IntoIterator<Item = u32>, value: &str) -> Changes {
    keys.into_iter().map(|key| (key.to_be_bytes().to_vec(), Some(value.into()))).collect()
}

fn removed(keys: impl IntoIterator<Item = u32>) -> Changes {
    keys.into_iter().map(|key| (key.to_be_bytes().to_vec(), None)).collect()
}

fn contents(store: &Store) -> Contents {
    store.scan(b"").collect::<Result<_, _>>().unwrap()
}

fn merge_all(store: &Store) {
    while store.merge_once(&|_, _| false).unwrap() {}
}

fn removals(store: &Store) -> u64 {
    store.version().runs.iter().map(|run| run.tombstones).sum()
}

#[test]
fn an_empty_disk_is_an_empty_store_at_position_zero() {
    let store = open(&MemDisk::new());
    assert_eq!((store.position(), store.runs(), store.disk_bytes()), (Position(0), 0, 0));
    assert_eq!(store.get(b"key").unwrap(), None);
    assert_eq!(contents(&store), Contents::new());
    assert!(!store.merge_once(&|_, _| false).unwrap());
}

#[test]
fn a_checkpoint_without_changes_moves_the_position() {
    let disk = MemDisk::new();
    checkpoint(&open(&disk), &Changes::new(), 7);
    let store = open(&disk);
    assert_eq!((store.position(), store.runs()), (Position(7), 0));
}

#[test]
fn a_store_of_many_blocks_on_a_real_disk_finds_every_key_and_no_other() {
    let dir = tempfile::tempdir().unwrap();
    let disk = || Arc::new(RealDisk::new(dir.path()).unwrap()) as Arc<dyn Disk>;
    let store = Store::open(disk(), ID).unwrap();
    checkpoint(&store, &put((0..40_000).map(|n| n * 2), "old"), 1);
    checkpoint(&store, &put((0..40_000).map(|n| n * 6), "a newer and much longer value, to have other blocks"), 2);
    drop(store);

    let store = Store::open(disk(), ID).unwrap();
    let expected = contents(&store);
    assert_eq!(expected.len(), 40_000 + 40_000 - 13_334);
    let keys: Vec<[u8; 4]> = (0..240_100u32).map(u32::to_be_bytes).collect();
    for key in keys.iter().step_by(11) {
        assert_eq!(store.get(key).unwrap().as_ref(), expected.get(key.as_slice()));
    }
    for step in [1, 3, 400, 9_000] {
        let keys: Vec<Vec<u8>> = keys.iter().step_by(step).map(|key| key.to_vec()).collect();
        let mut found = Vec::new();
        let twice = keys.iter().chain(&keys).collect();
        store.get_many(&twice, &mut |key, value| found.push((key.to_vec(), value.to_vec()))).unwrap();
        let present = keys.into_iter().filter_map(|key| Some((key.clone(), expected.get(&key)?.clone())));
        assert!(found.into_iter().eq(present), "every {step}");
    }
    for start in keys.iter().step_by(30_011) {
        let from_start = store.scan(start).map(Result::unwrap).take(500);
        let tail = expected.range(start.to_vec()..).map(|(key, value)| (key.clone(), value.clone()));
        assert!(from_start.eq(tail.take(500)));
    }
    let mut heard = (0, 0);
    let summary = Store::verify(disk().as_ref(), &|_, _| true, &mut |done, total| heard = (done, total)).unwrap();
    assert_eq!((summary.entries, summary.runs, summary.position), (80_000, 2, Position(2)));
    assert_eq!(heard, (store.disk_bytes(), store.disk_bytes()));
}

#[test]
fn many_keys_are_found_in_any_number_of_runs_and_only_possible_runs_are_read() {
    let store = open(&MemDisk::new());
    for run in 0..70u32 {
        checkpoint(&store, &put([run, run + 1_000], &format!("of run {run}")), u64::from(run) + 1);
    }
    checkpoint(&store, &removed([3, 69]), 71);
    assert_eq!(store.runs(), 71);
    let ask = |keys: &mut dyn Iterator<Item = u32>| {
        let mut found = Contents::new();
        let keys = keys.map(u32::to_be_bytes).collect();
        let looked_for =
            store.get_many(&keys, &mut |key, value| assert!(found.insert(key.into(), value.into()).is_none()));
        (found, looked_for.unwrap())
    };
    assert_eq!(ask(&mut (0..2_000).rev().chain(0..2_000)).0, contents(&store));
    let (found, looked_for) = ask(&mut (0..2_000).map(|n| n + 1_000_000));
    assert!(found.is_empty() && looked_for == 0, "no run reaches so far");
    let (found, looked_for) = ask(&mut (200..900));
    assert!(found.is_empty() && looked_for < 700, "filters exclude most runs: {looked_for}");
    assert_eq!(ask(&mut (0..0)), (Contents::new(), 0));
}

#[test]
fn the_largest_key_and_value_are_kept_and_larger_ones_refused() {
    let store = open(&MemDisk::new());
    let (key, value) = (vec![7; super::KEY_BYTES_MAX], vec![9; super::VALUE_BYTES_MAX]);
    checkpoint(&store, &Changes::from([(vec![], Some(vec![])), (key.clone(), Some(value.clone()))]), 1);
    assert_eq!(store.get(&key).unwrap(), Some(value.clone()));
    assert_eq!(store.get(b"").unwrap(), Some(vec![]));
    for (key, value) in [([key, vec![0]].concat(), vec![]), (vec![1], [value, vec![0]].concat())] {
        let error = store.checkpoint().write_run([(key.as_slice(), Entry::Put(&value))]).unwrap_err();
        assert!(matches!(error, StoreError::Refused { .. }), "{error}");
    }
}

#[test]
fn keys_that_do_not_ascend_are_refused_and_the_run_is_gone() {
    let disk = MemDisk::new();
    let store = open(&disk);
    for keys in [[b"b", b"a"], [b"a", b"a"]] {
        let mut checkpoint = store.checkpoint();
        let error = checkpoint.write_run(keys.map(|key| (key.as_slice(), Entry::Remove))).unwrap_err();
        assert!(matches!(error, StoreError::Refused { .. }), "{error}");
        assert_eq!(disk.file_names(), [""; 0]);
    }
}

#[test]
fn a_checkpoint_with_an_earlier_position_is_refused() {
    let store = open(&MemDisk::new());
    checkpoint(&store, &put([1], "one"), 10);
    let error = try_checkpoint(&store, &put([1], "two"), 1, 9).unwrap_err();
    assert!(matches!(error, StoreError::Refused { .. }), "{error}");
    assert_eq!(contents(&store), contents_of(&put([1], "one")));
}

fn contents_of(changes: &Changes) -> Contents {
    changes.iter().filter_map(|(key, value)| Some((key.clone(), value.clone()?))).collect()
}

#[test]
fn a_checkpoint_that_is_dropped_leaves_nothing() {
    let disk = MemDisk::new();
    let store = open(&disk);
    checkpoint(&store, &put([1], "one"), 1);
    let before = disk.file_names();
    let mut dropped = store.checkpoint();
    dropped.write_run([(b"key".as_slice(), Entry::Put(b"value"))]).unwrap();
    assert_eq!(disk.file_names().len(), before.len() + 1);
    drop(dropped);
    assert_eq!(disk.file_names(), before);
    assert_eq!(store.get(b"key").unwrap(), None);
}

#[test]
fn a_start_removes_only_leftovers_of_a_crash_and_opening_removes_nothing() {
    let disk = MemDisk::new();
    let store = open(&disk);
    checkpoint(&store, &put([1], "one"), 1);
    let named = disk.file_names();
    for name in ["run-0000000000000009.run", "manifest.new", "run-9.run", "journal-1", "run-x.run"] {
        disk.put(name, b"anything".to_vec());
    }
    let before = disk.file_names();
    Store::open_read_only(Arc::clone(&disk) as Arc<dyn Disk>).unwrap();
    assert_eq!(disk.file_names(), before);
    Store::open(Arc::clone(&disk) as Arc<dyn Disk>, ID).unwrap();
    assert_eq!(disk.file_names(), before);
    let store = open(&disk);
    let kept: Vec<String> = disk.file_names().into_iter().filter(|name| !named.contains(name)).collect();
    assert_eq!(kept, ["journal-1", "run-9.run", "run-x.run"]);
    checkpoint(&store, &put([2], "two"), 2);
    assert!(disk.file_names().contains(&"run-0000000000000010.run".into()), "a file number is never used twice");
}

#[test]
fn a_fresh_store_has_a_manifest_once_asked_for_and_keeps_its_identity() {
    let disk = MemDisk::new();
    open(&disk).ensure_manifest().unwrap();
    assert_eq!(disk.file_names(), ["manifest"]);
    let manifest = disk.content("manifest");
    let store = Store::open(Arc::clone(&disk) as Arc<dyn Disk>, DirId::new(6)).unwrap();
    assert_eq!(store.id(), ID);
    store.ensure_manifest().unwrap();
    assert_eq!(disk.content("manifest"), manifest, "there is one already");
}

#[test]
fn a_store_opened_for_reading_refuses_to_write() {
    let disk = MemDisk::new();
    checkpoint(&open(&disk), &put([1], "one"), 1);
    let store = Store::open_read_only(Arc::clone(&disk) as Arc<dyn Disk>).unwrap();
    assert!(matches!(try_checkpoint(&store, &put([2], "two"), 1, 2), Err(StoreError::Refused { .. })));
    assert!(matches!(store.checkpoint().commit(Position(2)), Err(StoreError::Refused { .. })));
    assert_eq!(contents(&store), contents_of(&put([1], "one")));
}

#[test]
fn merging_changes_nothing_that_is_read_and_leaves_one_run() {
    let disk = MemDisk::new();
    let store = open(&disk);
    for n in 0..4 {
        checkpoint(&store, &put((n..50).step_by(n as usize + 1), &format!("value {n}")), u64::from(n));
    }
    let before = contents(&store);
    assert!(store.merge_once(&|_, _| false).unwrap());
    assert_eq!((store.runs(), contents(&store)), (1, before.clone()));
    assert_eq!(disk.file_names(), ["manifest", "run-0000000000000005.run"]);
    assert_eq!((contents(&open(&disk)), open(&disk).position()), (before, Position(3)));
}

#[test]
fn merging_leaves_few_runs_however_many_a_checkpoint_adds() {
    let store = open(&MemDisk::new());
    try_checkpoint(&store, &put(0..100, "value"), 40, 1).unwrap();
    assert_eq!(store.runs(), 40);
    merge_all(&store);
    assert!(store.runs() <= super::merge::RUNS_IDLE_MAX);
    assert_eq!(contents(&store).len(), 100);
}

#[test]
fn tombstones_stay_while_an_older_run_may_contain_the_key() {
    let store = open(&MemDisk::new());
    // More than four mebibytes, so that the small runs are merged without it first.
    let large = "x".repeat(60_000);
    checkpoint(&store, &put(0..80, &large), 1);
    for n in 0..4 {
        checkpoint(&store, &removed([n]), 2);
    }
    merge_all(&store);
    assert_eq!((store.runs(), removals(&store), contents(&store).len()), (2, 4, 76));
    for n in 0..3 {
        checkpoint(&store, &put(10 * n..10 * n + 80, &large), 3);
    }
    merge_all(&store);
    assert_eq!((store.runs(), removals(&store), contents(&store).len()), (1, 0, 100));
}

#[test]
fn a_merge_of_nothing_but_tombstones_leaves_no_run() {
    let disk = MemDisk::new();
    let store = open(&disk);
    for n in 0..4 {
        checkpoint(&store, &removed([n]), 1);
    }
    merge_all(&store);
    assert_eq!(store.runs(), 0);
    assert_eq!(disk.file_names(), ["manifest"]);
    assert_eq!(open(&disk).runs(), 0);
}

#[test]
fn a_merge_drops_entries_that_may_be_forgotten() {
    let store = open(&MemDisk::new());
    for n in 0..4 {
        checkpoint(&store, &put([n], "kept"), 1);
        checkpoint(&store, &put([n + 100], "expired"), 1);
    }
    while store.merge_once(&|_, value| value == b"expired").unwrap() {}
    assert_eq!(contents(&store), contents_of(&put(0..4, "kept")));
    assert_eq!(store.version().runs[0].entries, 4);
}

#[test]
fn a_checkpoint_that_commits_during_a_merge_stays_newer() {
    let disk = MemDisk::new();
    let store = open(&disk);
    for n in 0..4 {
        checkpoint(&store, &put([1, 2, 3 + n], "old"), 1);
    }
    let committed = Cell::new(false);
    let commit_once = |_: &[u8], _: &[u8]| {
        if !committed.replace(true) {
            checkpoint(&store, &put([2], "new"), 2);
            checkpoint(&store, &removed([3]), 3);
        }
        false
    };
    assert!(store.merge_once(&commit_once).unwrap());
    let mut expected = contents_of(&put([1, 2, 4, 5, 6], "old"));
    expected.extend(contents_of(&put([2], "new")));
    assert_eq!((store.runs(), store.position(), contents(&store)), (3, Position(3), expected.clone()));
    assert_eq!((open(&disk).position(), contents(&open(&disk))), (Position(3), expected));
}

#[test]
fn a_cancelled_merge_leaves_no_file() {
    let disk = MemDisk::new();
    let store = open(&disk);
    for n in 0..4 {
        checkpoint(&store, &put(0..5_000, &format!("{n}")), 1);
    }
    let before = disk.file_names();
    let stop = |_: &[u8], _: &[u8]| {
        store.stop_merging();
        false
    };
    assert!(!store.merge_once(&stop).unwrap());
    assert_eq!((disk.file_names(), store.runs()), (before, 4));
    assert!(!store.merge_once(&|_, _| false).unwrap());
}

#[test]
fn a_scan_continues_over_runs_that_were_merged() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(Arc::new(RealDisk::new(dir.path()).unwrap()), ID).unwrap();
    for n in 0..4 {
        checkpoint(&store, &put(0..20_000, &format!("value {n}")), 1);
    }
    let mut scan = store.scan(b"");
    assert!(scan.next_entry().unwrap().is_some());
    merge_all(&store);
    checkpoint(&store, &removed(0..20_000), 2);
    assert_eq!(scan.map(Result::unwrap).filter(|(_, value)| value == b"value 3").count(), 19_999);
    assert_eq!(store.scan(b"").count(), 0);
}

#[test]
fn readers_see_whole_checkpoints_while_others_commit_and_merge() {
    let store = open(&MemDisk::new());
    checkpoint(&store, &put(0..200, "0"), 0);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            (1..150).for_each(|n| checkpoint(&store, &put(0..200, &n.to_string()), n));
            done.store(true, Ordering::Relaxed);
        });
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                merge_all(&store);
            }
        });
        while !done.load(Ordering::Relaxed) {
            let seen = contents(&store);
            let first = seen.values().next().unwrap();
            assert!(seen.len() == 200 && seen.values().all(|value| value == first));
            assert!(store.get(&7u32.to_be_bytes()).unwrap().is_some());
        }
    });
}
