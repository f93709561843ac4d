//! What the engine says about itself is what happened, through the engine as it ships.
#![allow(clippy::unwrap_used, clippy::panic)]

use tally_contract::block_on;
use tally_core::event::{Change, Condition, Correction, Expiry, Look};
use tally_core::key::KeyRef;
use tally_core::limits::MEMORY_BYTES_MIN;
use tally_core::outcome::Outcome;
use tally_core::surface::{Durability, Engine, Figure};
use tally_engine::{Config, Embedded};
use tempfile::TempDir;

fn open(dir: &TempDir) -> Embedded {
    let config = Config { data: dir.path().to_owned(), memory_bytes: MEMORY_BYTES_MIN };
    Embedded::open(&config, &mut |_, _| {}).unwrap()
}

fn figure(engine: &Embedded, name: &str) -> u64 {
    let measure = engine.measures().into_iter().find(|measure| measure.name == name);
    match measure.map(|measure| measure.figure) {
        Some(Figure::Counter(count)) => count,
        Some(Figure::Gauge(value)) => value as u64,
        other => panic!("{name} is {other:?}"),
    }
}

fn submit(engine: &Embedded, changes: impl IntoIterator<Item = (&'static str, Change)>) -> Vec<Outcome> {
    let mut events = engine.events();
    for (key, change) in changes {
        events.push(KeyRef::new(key.as_bytes()).unwrap(), change, None, None);
    }
    block_on(engine.submit(events, Durability::Flushed)).unwrap().outcomes
}

fn set(value: i64, expiry: Expiry) -> Change {
    let why = Correction { actor: "test".into(), reason: "test".into() };
    Change::Set { value, when: Condition::Always, expiry, why }
}

#[test]
fn an_event_that_was_put_off_and_tried_alone_is_counted_once() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(&dir);
    submit(&engine, [("k", set(i64::MAX - 2, Expiry::Keep))]);
    assert_eq!(figure(&engine, "tally_events_total"), 1);
    // Together the adds overflow; alone the first two fit, and the look has to wait for them.
    let add = |key| (key, Change::Add(1));
    let outcomes = submit(&engine, [add("k"), add("k"), add("k"), ("k", Change::Look(Look::Value)), add("other")]);
    assert_eq!(outcomes.iter().map(|outcome| outcome.applied).collect::<Vec<_>>(), [1, 1, 0, 0, 1]);
    assert_eq!(outcomes[3].value, i64::MAX);
    assert_eq!(figure(&engine, "tally_journalled_events_total"), 1 + 2 + 3, "three of them were tried again");
    assert_eq!(figure(&engine, "tally_events_total"), 1 + 4, "each counts once, and the look not at all");
    engine.close().unwrap();
}
