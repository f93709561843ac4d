//! Samples are spread over all counters, in memory and in the store.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use tally_contract::block_on;
use tally_core::event::{Change, Correction};
use tally_core::key::{Key, KeyRef};
use tally_core::limits::MEMORY_BYTES_MIN;
use tally_core::surface::{Engine, SubmitOptions};
use tally_engine::{Config, Embedded};

const COUNTERS: usize = 100;
const SAMPLES: u64 = 4_000;

fn submit(engine: &Embedded, numbers: std::ops::Range<usize>, change: &Change) {
    let mut events = engine.events();
    for number in numbers {
        let key = format!("k:{number}");
        events.push(KeyRef::new(key.as_bytes()).unwrap(), change.clone(), None, None);
    }
    block_on(engine.submit(events, SubmitOptions::default())).unwrap();
}

/// How often each counter was sampled.
fn samples(engine: &Embedded) -> BTreeMap<Key, u64> {
    let mut counts = BTreeMap::new();
    for number in 0..SAMPLES {
        *counts.entry(block_on(engine.sample(number)).unwrap().unwrap()).or_insert(0) += 1;
    }
    counts
}

fn assert_spread(counts: &BTreeMap<Key, u64>, when: &str) {
    assert_eq!(counts.len(), COUNTERS, "{when}: some counters were never sampled");
    // The mean is 40. In the store, the last block of a run may have fewer entries than the others.
    let (least, most) = (counts.values().min().unwrap(), counts.values().max().unwrap());
    assert!(*least >= 10 && *most <= 120, "{when}: from {least} to {most} times");
}

#[test]
fn samples_are_spread_over_all_counters() {
    let dir = tempfile::tempdir().unwrap();
    let config = Config::new(dir.path(), MEMORY_BYTES_MIN);
    let engine = Embedded::open(&config, &mut |_, _| {}).unwrap();
    submit(&engine, 0..50 * COUNTERS, &Change::Add(1));
    let delete = Change::Delete(Correction::new("test", "sampling").unwrap());
    submit(&engine, 0..49 * COUNTERS, &delete);
    assert_spread(&samples(&engine), "most were deleted");
    engine.close().unwrap();

    let engine = Embedded::open(&config, &mut |_, _| {}).unwrap();
    // One counter is in memory; the others may still be in the store only.
    submit(&engine, 49 * COUNTERS..49 * COUNTERS + 1, &Change::Add(1));
    assert_spread(&samples(&engine), "after a restart");
    engine.close().unwrap();
}
