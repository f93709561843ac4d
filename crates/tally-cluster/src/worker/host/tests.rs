//! A partition that is hosted without services: its records come from the tests.
#![allow(clippy::unwrap_used)]

use tally_core::batch::Events;
use tally_core::event::Change;

use super::*;
use crate::postgres::{Pg, PgSettings};

/// A partition without a store.
fn host() -> PartitionHost {
    let pg = Arc::new(Pg::new(&PgSettings::new("postgres://nobody@127.0.0.1:1/none")).unwrap());
    let store = PartitionStore::new(pg, 0, Position(0), tokio::runtime::Handle::current());
    let settings = HostSettings { budget_bytes: 1 << 20, seed: 7, duplicates: Arc::default() };
    PartitionHost::new(store, 0, None, settings)
}

fn key() -> Key {
    Key::new("k").unwrap()
}

/// The next record of the journal.
fn record(host: &PartitionHost, at: Millis) -> JournalRecord {
    JournalRecord { start: host.applied(), at, batch: Vec::new() }
}

fn change(change: Change) -> Batch {
    let mut events = Events::new(7);
    events.push(key().as_ref(), change, None, None);
    events.batch().clone()
}

/// With the checks for overflow of a debug build.
#[cfg(debug_assertions)]
#[tokio::test]
async fn a_panic_while_a_batch_is_applied_fails_the_partition_before_anybody_sees_its_state() {
    let host = host();
    host.apply(&mut vec![(record(&host, Millis(1_000)), change(Change::Add(1)))]).unwrap();
    assert!(!host.is_torn());
    // A position that no record can have: computing the one after it overflows.
    let broken = JournalRecord { start: Position(u64::MAX), ..record(&host, Millis(2_000)) };
    let mut batches = vec![(broken, change(Change::Add(1)))];
    std::thread::scope(|scope| scope.spawn(|| host.apply(&mut batches)).join()).unwrap_err();
    assert!(host.is_torn(), "it must not be persisted");
    assert!(matches!(host.failed().await, HostError::Panicked));
    assert!(host.reach(Position(9)).await.is_err(), "nobody waits for it");
}
