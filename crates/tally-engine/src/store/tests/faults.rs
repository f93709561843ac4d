//! Whichever call fails, and whatever a crash keeps, the store is in the old or in the new state.

use std::io::ErrorKind;
use std::sync::Arc;

use super::disk::{Fault, MemDisk};
use super::{Contents, ID, checkpoint, contents, merge_all, open, put, removed, try_checkpoint};
use crate::disk::Disk;
use crate::store::{Store, StoreError};

type State = (u64, Contents);

fn state(store: &Store) -> State {
    (store.position().0, contents(store))
}

/// A store of five runs in which a merge is due.
fn prepared() -> (Arc<MemDisk>, Store) {
    let disk = MemDisk::new();
    let store = open(&disk);
    checkpoint(&store, &put(0..300, "some value"), 1);
    checkpoint(&store, &removed(100..120), 2);
    try_checkpoint(&store, &put(110..130, "another value"), 3, 3).unwrap();
    (disk, store)
}

/// Runs `action` with a fault at each call in turn. Afterwards the open store, the disk as it is and the disk after a
/// power cut must be in the old or the new state, and in the new one if the action reported success.
fn with_a_fault_at_every_call(fault: Fault, action: impl Fn(&Store) -> Result<(), StoreError>) {
    let (_, store) = prepared();
    let before = state(&store);
    action(&store).unwrap();
    let after = state(&store);
    for call in 0.. {
        let (disk, store) = prepared();
        disk.arm(call, fault);
        let result = action(&store);
        let images = [
            disk.copy(),
            disk.copy_synced(|_| false),
            disk.copy_synced(|name| name == "manifest"),
            disk.copy_synced(|name| name != "manifest"),
        ];
        if !disk.disarm() {
            assert!(call > 5, "the action makes more calls than {call}");
            return;
        }
        let expected = if result.is_ok() { &after } else { &before };
        assert_eq!(state(&store), *expected, "in memory, call {call}: {result:?}");
        for image in images {
            let reopened = state(&open(&image));
            assert!(reopened == after || (result.is_err() && reopened == before), "call {call}: {result:?}");
            Store::verify(image.as_ref(), &|_, _| true, &mut |_, _| {}).unwrap();
        }
        if let Err(error) = &result {
            let expected_full = !matches!(fault, Fault::Dead);
            assert_eq!(error.is_full(), expected_full, "call {call}: {error}");
        }
        // A file whose removal failed is removed by the next open.
        let leaks_max = if fault == Fault::Dead { 2 } else { 1 };
        stays_usable(&disk, &store, expected.clone(), leaks_max);
    }
}

/// Another checkpoint and merges succeed, and afterwards only files that the manifest names are left.
fn stays_usable(disk: &Arc<MemDisk>, store: &Store, mut expected: State, leaks_max: usize) {
    checkpoint(store, &put([7], "usable"), 9);
    expected.0 = 9;
    expected.1.extend(super::contents_of(&put([7], "usable")));
    merge_all(store);
    assert_eq!(state(store), expected);
    assert_eq!(state(&open(&disk.copy_synced(|_| false))), expected);
    let left_over = disk.file_names();
    drop(open(disk));
    let after_open = disk.file_names();
    let leaked: Vec<_> = left_over.iter().filter(|name| !after_open.contains(name)).collect();
    assert!(leaked.len() <= leaks_max, "{leaked:?}");
}

fn a_checkpoint(store: &Store) -> Result<(), StoreError> {
    let mut changes = put(120..180, "changed");
    changes.append(&mut removed(0..50));
    try_checkpoint(store, &changes, 2, 4)
}

fn a_merge(store: &Store) -> Result<(), StoreError> {
    store.merge_once(&|_, _| false).map(|merged| assert!(merged))
}

const FULL: ErrorKind = ErrorKind::StorageFull;

#[test]
fn a_checkpoint_on_a_disk_that_fails_once_is_whole_or_absent() {
    with_a_fault_at_every_call(Fault::Before(FULL), a_checkpoint);
    with_a_fault_at_every_call(Fault::After(FULL), a_checkpoint);
}

#[test]
fn a_checkpoint_on_a_disk_that_dies_is_whole_or_absent() {
    with_a_fault_at_every_call(Fault::Dead, a_checkpoint);
}

#[test]
fn a_merge_on_a_disk_that_fails_once_loses_nothing() {
    with_a_fault_at_every_call(Fault::Before(FULL), a_merge);
    with_a_fault_at_every_call(Fault::After(FULL), a_merge);
}

#[test]
fn a_merge_on_a_disk_that_dies_loses_nothing() {
    with_a_fault_at_every_call(Fault::Dead, a_merge);
}

#[test]
fn opening_a_disk_that_fails_is_an_error_and_changes_nothing_it_holds() {
    let (disk, store) = prepared();
    let expected = state(&store);
    for call in 0.. {
        disk.arm(call, Fault::Before(ErrorKind::Other));
        let opened = Store::open(Arc::clone(&disk) as Arc<dyn Disk>, ID);
        if !disk.disarm() {
            break;
        }
        let error = opened.err().unwrap();
        assert!(matches!(error, StoreError::Io { .. }) && !error.is_full(), "{error}");
        assert_eq!(state(&open(&disk)), expected);
    }
}

#[test]
fn a_full_disk_is_distinguished_from_a_fault_and_leaves_no_partial_file() {
    let (disk, store) = prepared();
    let before = disk.file_names();
    for (kind, full) in [(FULL, true), (ErrorKind::QuotaExceeded, true), (ErrorKind::Other, false)] {
        disk.arm(1, Fault::Before(kind));
        assert_eq!(a_checkpoint(&store).unwrap_err().is_full(), full);
        assert_eq!(disk.file_names(), before);
        // Its first calls create the file and read the five inputs.
        disk.arm(6, Fault::Before(kind));
        assert_eq!(a_merge(&store).unwrap_err().is_full(), full);
        assert_eq!(disk.file_names(), before);
    }
    a_checkpoint(&store).unwrap();
    a_merge(&store).unwrap();
}
