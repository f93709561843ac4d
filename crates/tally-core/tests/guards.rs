//! Guards: changes that are applied only if counters have not changed since they were read.
#![allow(clippy::unwrap_used)]

use tally_core::batch::{Batch, Combiner, Events, decode, encode};
use tally_core::event::{Change, Correction, Deadline, Expiry, ExpiryCondition, Field, VERSION_ABSENT};
use tally_core::key::KeyRef;
use tally_core::outcome::{Outcome, Outcomes, Refusal};
use tally_core::partition::Partition;
use tally_core::time::Millis;

const SEED: u64 = 7;

fn key(name: &str) -> KeyRef<'_> {
    KeyRef::new(name.as_bytes()).unwrap()
}

/// A partition, and a second one that replays its journal.
struct Twins {
    here: Partition,
    replayed: Partition,
    now: u64,
}

impl Twins {
    fn new() -> Twins {
        Twins { here: Partition::new(SEED), replayed: Partition::new(SEED + 1), now: 1_000 }
    }

    /// Applies a call, checks that its replay gives the same counters, and returns its outcomes.
    fn apply(&mut self, fill: impl FnOnce(&mut Events)) -> Vec<Outcome> {
        let mut events = Events::new(SEED);
        fill(&mut events);
        let (mut combiner, mut placed) = (Combiner::default(), Vec::new());
        combiner.combine(&events, &mut placed);
        let mut outcomes = Outcomes::default();
        let at = self.here.apply(Millis(self.now), combiner.batch(), &mut outcomes);
        let mut journal = Vec::new();
        encode(combiner.batch(), at, &mut journal);
        let mut batch = Batch::default();
        assert_eq!(decode(&journal, SEED + 1, &mut batch), Ok(at));
        self.replayed.apply(at, &batch, &mut Outcomes::default());
        for event in combiner.batch().iter() {
            assert_eq!(self.here.state_of(event.key), self.replayed.state_of(event.key), "{:?}", event.key);
        }
        events.outcomes(|slot| combiner.outcome_of(placed[slot], &outcomes)).collect()
    }

    fn version(&mut self, name: &str) -> i64 {
        self.apply(|events| events.push(key(name), Change::Read(Field::Version), None, None))[0].value
    }

    fn value(&mut self, name: &str) -> i64 {
        self.apply(|events| events.push(key(name), Change::Read(Field::Value), None, None))[0].value
    }
}

fn refusals(outcomes: &[Outcome]) -> Vec<bool> {
    outcomes.iter().map(|outcome| outcome.refusal == Some(Refusal::NotExpected)).collect()
}

#[test]
fn changes_are_applied_if_the_guarded_counter_is_as_it_was_read() {
    let mut twins = Twins::new();
    twins.apply(|events| events.add(key("a"), 5));
    let version = twins.version("a");
    let outcomes = twins.apply(|events| {
        events.group_if(&[(key("a"), version), (key("none"), VERSION_ABSENT)], |events| {
            events.add(key("a"), 1);
            events.push(key("a"), Change::Read(Field::Value), None, None);
            events.add(key("b"), 2);
        });
        events.add(key("b"), 10);
    });
    assert_eq!(refusals(&outcomes), [false; 6]);
    assert_eq!((outcomes[3].value, twins.value("b")), (6, 12));
}

#[test]
fn a_refused_guard_refuses_the_changes_of_its_group_and_no_others() {
    let mut twins = Twins::new();
    let outcomes = twins.apply(|events| {
        events.add(key("a"), 1);
        events.group_if(&[(key("none"), VERSION_ABSENT), (key("a"), 4711), (key("b"), VERSION_ABSENT)], |events| {
            events.add_times(key("a"), 1, 3);
            events.push(key("a"), Change::Read(Field::Value), None, None);
            events.push(key("b"), Change::Add(2), tally_core::event::RequestId::new(key("b"), b"id").ok(), None);
            events.push(key("a"), Change::Read(Field::Value), None, None);
        });
        events.add(key("a"), 10);
        events.push(key("b"), Change::Add(3), tally_core::event::RequestId::new(key("b"), b"id").ok(), None);
    });
    assert_eq!(refusals(&outcomes), [false, false, true, true, true, false, true, false, false, false]);
    assert_eq!((outcomes[5].value, outcomes[7].value), (1, 1), "reads are answered");
    assert_eq!((twins.value("a"), twins.value("b")), (11, 3), "the request id was not used up");
}

#[test]
fn a_group_within_a_group_has_guards_of_its_own() {
    let mut twins = Twins::new();
    let outcomes = twins.apply(|events| {
        events.group(|events| {
            events.add(key("a"), 1);
            events.group_if(&[(key("a"), VERSION_ABSENT)], |events| events.add(key("a"), 100));
            events.add(key("a"), 1);
        });
    });
    assert_eq!(refusals(&outcomes), [false, true, true, false]);
    assert_eq!(twins.value("a"), 2);
}

#[test]
fn every_change_of_a_counter_changes_its_version() {
    let why = || Correction::new("test", "guards").unwrap();
    let set =
        |value| Change::Set { value, when: tally_core::event::Condition::Always, expiry: Expiry::Keep, why: why() };
    let expire = |at: Option<u64>| Change::Expire { at: at.map(Deadline::After), when: ExpiryCondition::Always };
    let mut twins = Twins::new();
    assert_eq!(twins.version("a"), VERSION_ABSENT);
    let mut known = vec![VERSION_ABSENT];
    // All at the same time, including changes back to an earlier value.
    for change in
        [Change::Add(5), Change::Add(1), Change::Add(-1), set(7), set(5), expire(Some(5_000)), expire(Some(6_000))]
    {
        twins.apply(|events| events.push(key("a"), change.clone(), None, None));
        let version = twins.version("a");
        assert!(!known.contains(&version), "{change:?}");
        known.push(version);
    }
    twins.apply(|events| events.push(key("b"), Change::Add(1), None, None));
    let before = twins.version("b");
    twins.now += 1;
    twins.apply(|events| events.push(key("b"), set(1), None, None));
    assert_ne!(twins.version("b"), before, "set to the same value, later");
    twins.now += 10_000;
    twins.apply(|events| events.push(key("b"), Change::Add(1), None, None));
    assert_eq!(twins.version("a"), VERSION_ABSENT, "it has expired");
    twins.apply(|events| events.push(key("b"), Change::Delete(why()), None, None));
    assert_eq!(twins.version("b"), VERSION_ABSENT, "it was deleted");
}

/// Guards in journals contain versions.
#[test]
fn the_version_of_a_counter_never_changes_between_builds() {
    let mut twins = Twins::new();
    twins.apply(|events| events.add(key("a"), 5));
    assert_eq!(twins.version("a"), 3_696_585_045_383_858_665);
}
