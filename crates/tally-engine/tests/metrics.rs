//! The engine's metrics match what happened.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::sync::Arc;

use tally_contract::{BACKGROUND_MS_MAX, block_on};
use tally_core::event::{Change, Condition, Correction, Deadline, Expiry, ExpiryCondition, Field};
use tally_core::key::KeyRef;
use tally_core::limits::MEMORY_BYTES_MIN;
use tally_core::outcome::Outcome;
use tally_core::record;
use tally_core::surface::{Engine, MetricValue, SubmitOptions};
use tally_core::time::Millis;
use tally_engine::disk::RealDisk;
use tally_engine::store::{Entry, Store};
use tally_engine::{Config, DirId, Embedded};
use tempfile::TempDir;

/// Long ago.
const PAST: Expiry = Expiry::At(Deadline::At(Millis(1_000)));
/// In a few thousand years.
const FAR: Expiry = Expiry::At(Deadline::At(Millis(99_000_000_000_000)));

fn open(dir: &TempDir) -> Embedded {
    let config = Config::new(dir.path(), MEMORY_BYTES_MIN);
    Embedded::open(&config, &mut |_, _| {}).unwrap()
}

fn metric(engine: &Embedded, name: &str) -> u64 {
    let metric = engine.metrics().into_iter().find(|metric| metric.name == name);
    match metric.map(|metric| metric.value) {
        Some(MetricValue::Counter(count)) => count,
        Some(MetricValue::Gauge(value)) => value as u64,
        other => panic!("{name} is {other:?}"),
    }
}

fn submit(engine: &Embedded, changes: impl IntoIterator<Item = (&'static str, Change)>) -> Vec<Outcome> {
    let mut events = engine.events();
    for (key, change) in changes {
        events.push(KeyRef::new(key.as_bytes()).unwrap(), change, None, None);
    }
    block_on(engine.submit(events, SubmitOptions::default())).unwrap().outcomes
}

fn set(value: i64, expiry: Expiry) -> Change {
    let why = Correction::new("test", "test").unwrap();
    Change::Set { value, when: Condition::Always, expiry, why }
}

/// Counters that have an expiry, and those that expired.
fn expiries(engine: &Embedded) -> (u64, u64) {
    (metric(engine, "tally_expiring_counters"), metric(engine, "tally_expired_counters_total"))
}

#[test]
fn increments_that_overflow_together_are_journalled_and_counted_once() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(&dir);
    submit(&engine, [("k", set(i64::MAX - 2, Expiry::Keep))]);
    assert_eq!(metric(&engine, "tally_events_total"), 1);
    // Together the adds overflow; the first two fit.
    let add = |key| (key, Change::Add(1));
    let outcomes = submit(&engine, [add("k"), add("k"), add("k"), ("k", Change::Read(Field::Value)), add("other")]);
    assert_eq!(outcomes.iter().map(|outcome| outcome.applied).collect::<Vec<_>>(), [1, 1, 0, 0, 1]);
    assert_eq!(outcomes[3].value, i64::MAX);
    assert_eq!(metric(&engine, "tally_journalled_events_total"), 1 + 2, "nothing is submitted twice");
    assert_eq!(metric(&engine, "tally_events_total"), 1 + 4, "each counts once, and the read not at all");
    engine.close().unwrap();
}

#[test]
fn counters_with_an_expiry_are_counted_across_restarts() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(&dir);
    assert_eq!(expiries(&engine), (0, 0));
    let never = || Change::Expire { at: None, when: ExpiryCondition::Always };
    submit(
        &engine,
        [("a", set(1, FAR)), ("b", set(1, FAR)), ("c", set(1, FAR)), ("d", set(1, FAR)), ("e", set(1, FAR))],
    );
    assert_eq!(expiries(&engine), (5, 0));
    submit(&engine, [("a", never()), ("a", never()), ("b", set(1, Expiry::Never)), ("c", Change::Add(1))]);
    let why = Correction::new("test", "test").unwrap();
    submit(&engine, [("d", Change::Delete(why)), ("e", set(2, FAR)), ("f", Change::Add(1)), ("g", never())]);
    assert_eq!(expiries(&engine), (2, 0), "c and e are left");
    engine.close().unwrap();
    let engine = open(&dir);
    assert_eq!(expiries(&engine), (2, 0));
    submit(&engine, [("c", never())]);
    assert_eq!(expiries(&engine), (1, 0));
    engine.close().unwrap();
}

#[test]
fn an_expired_counter_is_counted_when_it_is_removed_or_restarted() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(&dir);
    submit(&engine, [("a", set(5, PAST)), ("b", set(5, PAST)), ("c", set(5, FAR))]);
    assert_eq!(expiries(&engine), (3, 0), "they count until they are removed");
    let outcomes = submit(&engine, [("a", Change::Read(Field::Value)), ("a", Change::Add(1)), ("a", Change::Add(1))]);
    assert_eq!(outcomes[2].value, 2);
    assert_eq!(expiries(&engine), (2, 1));
    // Closing writes a checkpoint, from which the next engine finds expired counters.
    engine.close().unwrap();
    let engine = open(&dir);
    let add = || submit(&engine, [("a", Change::Add(1))])[0].at;
    let began = add();
    while expiries(&engine) != (1, 1) {
        assert!(add().since(began) < BACKGROUND_MS_MAX, "{:?}", expiries(&engine));
    }
    engine.close().unwrap();
    let engine = open(&dir);
    assert_eq!(expiries(&engine), (1, 0), "nothing expires twice");
    engine.close().unwrap();
}

#[test]
fn expiring_counters_are_counted_if_the_store_lacks_their_number() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(&dir);
    submit(&engine, [("a", set(1, FAR)), ("b", set(1, FAR)), ("c", Change::Add(1))]);
    engine.close().unwrap();
    let store = Store::open(Arc::new(RealDisk::new(dir.path()).unwrap()), DirId::new(0)).unwrap();
    let meta = store.get(record::META_KEY).unwrap().unwrap();
    // Version 1 of the record lacks the last field.
    let (number, fields) = meta[1..].split_last().unwrap();
    assert_eq!((meta[0], *number), (2, 2));
    let before = [&[1], fields].concat();
    let mut checkpoint = store.checkpoint();
    checkpoint.write_run([(record::META_KEY, Entry::Put(&before))]).unwrap();
    checkpoint.commit(store.position()).unwrap();
    drop(store);
    let engine = open(&dir);
    assert_eq!((metric(&engine, "tally_counters"), expiries(&engine)), (3, (2, 0)));
    engine.close().unwrap();
}
