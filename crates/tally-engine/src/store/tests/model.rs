//! Compares the store with a model: a sorted map.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::disk::MemDisk;
use super::{Changes, Contents, contents, merge_all, open, try_checkpoint};
use crate::store::Store;

#[derive(Clone, Debug)]
enum Step {
    Checkpoint { changes: Changes, runs: usize },
    Merge,
    MergeAll,
    Reopen,
}

/// Few keys, so that they repeat, of many lengths and with long common prefixes.
fn key() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        3 => prop::collection::vec(prop::sample::select(vec![0u8, b'a', 255]), 0..4),
        3 => (0u16..200).prop_map(|n| format!("likes:post:{n:05}").into_bytes()),
        1 => (0usize..30).prop_map(|n| vec![b'k'; n * 30]),
    ]
}

fn value() -> impl Strategy<Value = Option<Vec<u8>>> {
    prop_oneof![
        2 => Just(None),
        6 => prop::collection::vec(any::<u8>(), 0..40).prop_map(Some),
        1 => (any::<u8>(), 0usize..9_000).prop_map(|(byte, len)| Some(vec![byte; len])),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let changes = prop::collection::btree_map(key(), value(), 0..60);
    prop_oneof![
        6 => (changes, 1usize..4).prop_map(|(changes, runs)| Step::Checkpoint { changes, runs }),
        2 => Just(Step::Merge),
        1 => Just(Step::MergeAll),
        1 => Just(Step::Reopen),
    ]
}

fn check(store: &Store, model: &Contents, probes: &[Vec<u8>]) -> Result<(), TestCaseError> {
    prop_assert_eq!(&contents(store), model);
    for key in probes {
        prop_assert_eq!(store.get(key).unwrap(), model.get(key).cloned());
        let tail: BTreeMap<_, _> = store.scan(key).map(Result::unwrap).collect();
        prop_assert!(tail.iter().eq(model.range(key.clone()..)));
    }
    let keys = || model.keys().rev().chain(probes).chain(probes);
    let mut found = Vec::new();
    store.get_many(&keys().collect(), &mut |key, value| found.push((key.to_vec(), value.to_vec()))).unwrap();
    prop_assert!(found.into_iter().eq(model.clone()));
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn the_store_reads_like_a_sorted_map_after_any_commits_merges_and_restarts(
        steps in prop::collection::vec(step(), 1..25),
        probes in prop::collection::vec(key(), 8),
    ) {
        let disk = MemDisk::new();
        let mut store = open(&disk);
        let mut model = Contents::new();
        for (number, step) in steps.into_iter().enumerate() {
            match step {
                Step::Checkpoint { changes, runs } => {
                    try_checkpoint(&store, &changes, runs, number as u64).unwrap();
                    for (key, value) in changes {
                        match value {
                            Some(value) => model.insert(key, value),
                            None => model.remove(&key),
                        };
                    }
                }
                Step::Merge => { store.merge_once(&|_, _| false).unwrap(); }
                Step::MergeAll => merge_all(&store),
                Step::Reopen => store = open(&disk),
            }
            check(&store, &model, &probes)?;
        }
        let summary = Store::verify(disk.as_ref(), &|_, _| true, &mut |_, _| {}).unwrap();
        prop_assert_eq!(summary.runs, store.runs());
        prop_assert_eq!(summary.bytes, store.disk_bytes());
    }
}
