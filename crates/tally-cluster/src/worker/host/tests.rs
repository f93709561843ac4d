//! A partition that is hosted without services: its records come from the tests.
#![allow(clippy::unwrap_used)]

use tally_core::batch::Events;
use tally_core::event::{Change, Condition, Correction, Deadline, Expiry, RequestId};

use super::*;
use crate::postgres::{Pg, PgSettings};

/// A partition without a store.
fn host() -> PartitionHost {
    let pg = Arc::new(Pg::new(&PgSettings::new("postgres://nobody@127.0.0.1:1/none")).unwrap());
    let store = PartitionStore::new(pg, 0, Position(0), tokio::runtime::Handle::current());
    let settings = HostSettings { budget_bytes: 1 << 20, seed: 7, duplicates: Arc::default() };
    let stored = Claim { epoch: 1, position: Position(0), meta: None, summed_at: Millis(0), clock_reset: Position(0) };
    PartitionHost::new(store, 0, &stored, settings)
}

fn key() -> Key {
    Key::new("k").unwrap()
}

/// The next record of the journal.
fn record(host: &PartitionHost, at: Millis) -> JournalRecord {
    JournalRecord { start: host.applied(), at: Some(at), batch: Vec::new() }
}

fn change(change: Change) -> Batch {
    let mut events = Events::new(7);
    events.push(key().as_ref(), change, None, None);
    events.batch().clone()
}

/// As after somebody has set the topic to CreateTime.
#[tokio::test]
async fn a_record_without_a_brokers_time_is_applied_at_the_time_before_it_and_does_not_reset_the_clock() {
    let host = host();
    let clock = |host: &PartitionHost| host.state().lock().partition.clock();
    host.apply(&mut vec![(record(&host, Millis(5_000)), change(Change::Add(1)))]).unwrap();
    let brokers = host.broker_time();
    for batch in [change(Change::Add(1)), Batch::clock_reset()] {
        let untimed = JournalRecord { at: None, ..record(&host, Millis(0)) };
        host.apply(&mut vec![(untimed, batch)]).unwrap();
        assert_eq!(clock(&host), Millis(5_000));
    }
    assert_eq!(host.clock_reset(), Position(0));
    assert!(host.broker_time() >= brokers, "it told no time");
    let counter = host.read_resident(&[key()], ExpiryBy::Journal).unwrap().counters[0].unwrap();
    assert_eq!((counter.counter.value(), counter.counter.updated), (2, Millis(5_000)));
    host.apply(&mut vec![(record(&host, Millis(6_000)), change(Change::Add(1)))]).unwrap();
    assert_eq!(clock(&host), Millis(6_000), "time goes on with the next record that has one");
}

/// Needs the overflow checks of a debug build.
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

#[tokio::test]
async fn after_a_record_from_the_future_a_reset_brings_back_the_brokers_time_and_what_had_expired() {
    const HOUR: u64 = 3_600_000;
    let (host, start) = (host(), Millis(1_700_000_000_000));
    let value =
        || host.read_resident(&[key()], ExpiryBy::Brokers).unwrap().counters[0].map(|held| held.counter.value());
    let apply = |at: Millis, batch: Batch| host.apply(&mut vec![(record(&host, at), batch)]).unwrap();
    let (expiry, why) = (Expiry::At(Deadline::After(HOUR / 2)), Correction::new("test", "because").unwrap());
    apply(start, change(Change::Set { value: 5, when: Condition::Always, expiry, why }));
    assert_eq!(value(), Some(5));
    let future = Millis(start.0 + 10 * HOUR);
    apply(future, Batch::default());
    host.note_end(host.applied(), host.now());
    host.summed.note(future, future, None);
    assert_eq!(value(), None, "it has expired");
    apply(Millis(start.0 + 1_000), Batch::default());
    assert!(host.now() >= future, "without a reset, time stands still");
    apply(Millis(start.0 + 2_000), Batch::clock_reset());
    assert_eq!(value(), Some(5), "it is not swept yet");
    let reading = host.read_resident(&[key()], ExpiryBy::Brokers).unwrap();
    assert!(reading.now.since(start) < HOUR && reading.as_of.since(start) < HOUR, "{reading:?}");
    assert_eq!(
        (host.summed.rolled_up(), host.summed.all()),
        (Millis(0), Millis(0)),
        "nothing is known of the new time"
    );
    // An answer that was in flight.
    host.note_end(host.applied(), future);
    assert!(host.read_resident(&[key()], ExpiryBy::Brokers).unwrap().as_of.since(start) < HOUR);
}

/// Found by reading. Nothing was persisted while nothing was applied, and nothing was applied before memory was free.
#[tokio::test]
async fn a_standby_that_takes_over_at_the_stored_position_has_nothing_left_to_persist() {
    let host = host();
    let mut ids = Events::new(7);
    for number in 0..20_000_u32 {
        let id = RequestId::new(key().as_ref(), &number.to_be_bytes()).unwrap();
        ids.push(key().as_ref(), Change::Add(1), Some(id), None);
    }
    host.apply(&mut vec![(record(&host, Millis(1_000)), ids.batch().clone())]).unwrap();
    let next = [(record(&host, Millis(2_000)), Batch::default())];
    assert!(!host.make_room(&next), "a persist must free memory first");
    host.take_over(host.applied());
    assert!(host.make_room(&next));
    assert!(!host.state.lock().partition.is_dirty());
}

#[tokio::test]
async fn a_standby_that_is_ahead_of_what_is_stored_keeps_its_changes() {
    let host = host();
    host.apply(&mut vec![(record(&host, Millis(1_000)), change(Change::Add(1)))]).unwrap();
    host.take_over(Position(0));
    assert!(host.state.lock().partition.is_dirty());
}
