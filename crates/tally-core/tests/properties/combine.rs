//! Combining cannot be observed: a batch combined from many calls gives the same outcomes and the same state as its
//! events one by one.

use proptest::collection::vec;
use proptest::prelude::*;
use tally_core::batch::{Batch, Combiner, Events, Placed, decode, encode};
use tally_core::event::{Change, Field};
use tally_core::key::Key;
use tally_core::limits::{
    BATCH_BYTES_MAX, BATCH_EVENTS_MAX, BATCH_EVENTS_SEAL, BATCH_PARTS_MAX, BATCH_PARTS_SEAL, CALL_EVENTS_MAX,
    CALL_PARTS_MAX,
};
use tally_core::outcome::{Outcome, Outcomes};
use tally_core::partition::Partition;
use tally_core::time::Millis;
use tally_sim::call::{outcome_per_event, push_all};
use tally_sim::model::Event;

use crate::strategies;

const SEED: u64 = 3;

fn call_of(events: &[Event]) -> Events {
    let mut call = Events::new(SEED);
    push_all(events, &mut call);
    call
}

/// Two partitions with the same batches: one applies them directly, the other after a round trip through the codec.
struct Twins {
    live: Partition,
    replayed: Partition,
}

impl Twins {
    fn new() -> Twins {
        Twins { live: Partition::new(SEED), replayed: Partition::new(SEED) }
    }

    fn apply(&mut self, at: Millis, batch: &Batch) -> Outcomes {
        let mut journalled = Vec::new();
        encode(batch, at, &mut journalled);
        let mut replay = Batch::default();
        assert_eq!(decode(&journalled, SEED, &mut replay), Ok(at));
        let mut outcomes = Outcomes::default();
        self.live.apply(at, batch, &mut outcomes);
        self.replayed.apply(at, &replay, &mut Outcomes::default());
        outcomes
    }
}

/// Applies calls like an engine, combined into one batch, and returns the outcome of each event.
fn apply_calls(partition: &mut Twins, at: Millis, calls: &[Vec<Event>]) -> Vec<Vec<Outcome>> {
    let mut combiner = Combiner::default();
    let placed: Vec<_> = calls
        .iter()
        .map(|call| {
            let mut placed = Vec::new();
            combiner.combine(&call_of(call), &mut placed);
            placed
        })
        .collect();
    assert_eq!(combiner.events(), calls.concat().iter().filter(|event| !event.is_read()).count());
    let of_batch = partition.apply(at, combiner.batch());
    let outcomes_of = |(call, placed): (&Vec<Event>, Vec<Placed>)| {
        let outcomes = call_of(call).outcomes(|slot| combiner.outcome_of(placed[slot], &of_batch)).collect::<Vec<_>>();
        outcome_per_event(call, &outcomes)
    };
    calls.iter().zip(placed).map(outcomes_of).collect()
}

/// Applies each event in its own batch.
fn apply_uncombined(partition: &mut Partition, at: Millis, events: &[Event]) -> Vec<Outcome> {
    let mut outcomes = Outcomes::default();
    for event in events {
        partition.apply(at, call_of(std::slice::from_ref(event)).batch(), &mut outcomes);
    }
    outcomes.slots().to_vec()
}

/// Everything observable about a state. Request ids are observed by repeating the requests.
fn observe(partition: &mut Partition, events: &[Event]) -> (Vec<String>, Vec<Outcome>) {
    let of_key = |key: &Key| {
        let ledger: Vec<_> = partition.unsaved_ledger(key).collect();
        format!("{:?} {:?} {ledger:?}", key, partition.state_of(key.as_ref()))
    };
    let state = strategies::keys().iter().map(of_key).collect();
    let with_ids: Vec<Event> = events.iter().filter(|event| event.id.is_some()).cloned().collect();
    let clock = partition.clock();
    (state, apply_uncombined(partition, clock, &with_ids))
}

/// A pause, and the calls after it.
type Moment = (u64, Vec<Vec<Event>>);

fn moments(amount: &BoxedStrategy<i64>, calls: usize) -> impl Strategy<Value = Vec<Moment>> + use<> {
    // Few counters, so that events interact within a batch.
    let keys = strategies::keys().into_iter().take(3).collect();
    let call = vec((strategies::event_of(keys, amount), prop_oneof![4 => Just(1), 1 => 2usize..6]), 1..16);
    let call = call.prop_map(|events| events.into_iter().flat_map(|(event, times)| vec![event; times]).collect());
    vec((prop_oneof![0u64..3, 0u64..100_000], vec(call, 1..=calls)), 1..12)
}

fn check(moments: &[Moment]) -> Result<(), TestCaseError> {
    let (mut combined, mut uncombined) = (Twins::new(), Partition::new(SEED));
    let mut now = strategies::START_MS;
    for (pause, calls) in moments {
        now += pause;
        let events = calls.concat();
        let expected = apply_uncombined(&mut uncombined, Millis(now), &events);
        let found = apply_calls(&mut combined, Millis(now), calls).concat();
        prop_assert_eq!(found.len(), events.len());
        for ((event, expected), found) in events.iter().zip(expected).zip(found) {
            prop_assert_eq!(found, expected, "{:?}", event);
        }
    }
    let events: Vec<Event> = moments.iter().flat_map(|(_, calls)| calls.concat()).collect();
    let expected = observe(&mut uncombined, &events);
    prop_assert_eq!(observe(&mut combined.replayed, &events), expected.clone());
    prop_assert_eq!(observe(&mut combined.live, &events), expected);
    Ok(())
}

/// The value after each of `times` adds, and whether it was applied.
fn add_one_by_one(start: i64, delta: i64, times: usize) -> Vec<(i64, bool)> {
    let mut value = start;
    (0..times)
        .map(|_| {
            let sum = value.checked_add(delta);
            value = sum.unwrap_or(value);
            (value, sum.is_some())
        })
        .collect()
}

/// Values near the ends of the range, and amounts that cross the range in few or in many adds.
fn amounts() -> BoxedStrategy<i64> {
    let share = (1i64..1200, prop::sample::select(vec![i64::MIN, i64::MAX])).prop_map(|(parts, edge)| edge / parts);
    let near = (0i64..1200, prop::sample::select(vec![i64::MIN, i64::MAX]))
        .prop_map(|(far, edge)| if edge < 0 { edge + far } else { edge - far });
    prop_oneof![2 => share, 2 => near, 1 => strategies::extreme()].boxed()
}

/// Amounts of both signs, many of them a large part of the range, and zero.
fn edge_amounts() -> BoxedStrategy<i64> {
    prop_oneof![3 => 0i64..3, 3 => -3i64..0, 2 => (1i64..9).prop_map(|parts| i64::MAX / parts),
        2 => (1i64..9).prop_map(|parts| i64::MIN / parts)]
    .boxed()
}

/// The adds of a call, without their expiries.
fn adds_without_expiry(call: &[Event]) -> Vec<Event> {
    let mut adds = call.to_vec();
    adds.retain(|event| matches!(event.change, Change::Add(_)));
    for details in adds.iter_mut().filter_map(|event| event.details.as_mut()) {
        details.expiry = None;
    }
    adds
}

proptest! {
    #[test]
    fn combined_calls_act_like_their_events_one_by_one(moments in moments(&strategies::modest(), 5)) {
        check(&moments)?;
    }

    #[test]
    fn combined_calls_act_like_their_events_one_by_one_even_if_adds_overflow(
        moments in moments(&strategies::extreme(), 4),
    ) {
        check(&moments)?;
    }

    /// Many amounts in one slot, from several calls, at the end of the range.
    #[test]
    fn mixed_amounts_act_like_their_adds_one_by_one_at_the_end_of_the_range(
        start in amounts(), calls in vec(vec(edge_amounts(), 1..30), 1..5),
    ) {
        let key = &strategies::keys()[0];
        let calls: Vec<Vec<Event>> =
            calls.iter().map(|call| call.iter().map(|&delta| Event::add(key, delta)).collect()).collect();
        check(&[(0, vec![vec![Event::add(key, start)]]), (1, calls)])?;
    }

    #[test]
    fn each_add_of_a_long_run_has_the_outcome_it_would_have_uncombined(
        start in amounts(), delta in amounts(), times in prop_oneof![1usize..5, 1000usize..1100],
    ) {
        let key = &strategies::keys()[0];
        let mut twins = Twins::new();
        apply_calls(&mut twins, Millis(1), &[vec![Event::add(key, start)]]);
        let found = apply_calls(&mut twins, Millis(2), &[vec![Event::add(key, delta); times]]).concat();
        let found: Vec<(i64, bool)> = found.iter().map(|outcome| (outcome.value, outcome.refusal.is_none())).collect();
        prop_assert_eq!(found, add_one_by_one(start, delta, times));
    }

    #[test]
    fn the_value_is_the_sum_of_what_was_applied_even_if_adds_overflow(moments in moments(&strategies::extreme(), 4)) {
        let mut partition = Twins::new();
        let mut sums = std::collections::BTreeMap::new();
        for (pause, calls) in &moments {
            let calls: Vec<Vec<Event>> = calls.iter().map(|call| adds_without_expiry(call)).collect();
            let outcomes = apply_calls(&mut partition, Millis(*pause), &calls).concat();
            for (event, outcome) in calls.concat().iter().zip(outcomes) {
                if !outcome.is_duplicate() {
                    *sums.entry(event.key.clone()).or_insert(0i128) += i128::from(outcome.applied);
                }
                prop_assert!(outcome.refusal.is_none() || outcome.applied == 0);
            }
        }
        for (key, sum) in sums {
            for partition in [&partition.live, &partition.replayed] {
                let value = partition.state_of(key.as_ref()).map_or(0, |state| state.counter.value());
                prop_assert_eq!(i128::from(value), sum, "{:?}", key);
            }
        }
    }
}

#[test]
fn a_group_sees_the_adds_before_it_even_if_some_of_them_overflow() {
    let [a, b] = ["a", "b"].map(|name| Key::new(name).unwrap());
    let read = |key: &Key| Event { change: Change::Read(Field::Value), ..Event::add(key, 0) };
    let grouped = |event: Event| Event { grouped: true, ..event };
    let mut twins = Twins::new();
    apply_calls(&mut twins, Millis(1), &[vec![Event::add(&a, i64::MAX - 1)]]);
    let group = [read(&a), grouped(Event::add(&b, 1)), grouped(Event::add(&a, -1))];
    let calls = [
        [&[Event::add(&a, 1), Event::add(&a, 1)], &group[..]].concat(),
        vec![Event::add(&a, 1), Event::add(&a, 1), Event::add(&b, 100), read(&b)],
    ];
    let outcomes = apply_calls(&mut twins, Millis(2), &calls);
    let values = |of: &[Outcome]| of.iter().map(|outcome| (outcome.value, outcome.applied)).collect::<Vec<_>>();
    let max = i64::MAX;
    assert_eq!(values(&outcomes[0]), [(max, 1), (max, 0), (max, 0), (1, 1), (max - 1, -1)]);
    assert_eq!(values(&outcomes[1]), [(max, 1), (max, 0), (101, 100), (101, 0)]);
}

/// A call of `parts` runs of one key and `singles` adds of `keys` keys in turn. Each of these adds is a separate event,
/// because its key recurs only after many others.
fn call_of_parts_and_singles(parts: usize, keys: usize, singles: usize, delta: i64) -> Events {
    let mut call = Events::new(SEED);
    let mixed = Key::new("mixed").unwrap();
    (0..parts).for_each(|number| call.add(mixed.as_ref(), 1 + number as i64 % 2));
    for number in 0..singles {
        let key = Key::new(format!("key:{}", number % keys)).unwrap();
        call.add(key.as_ref(), delta + (number / keys) as i64 % 2);
    }
    call
}

/// Combines calls until an engine would seal the batch, then encodes it. Returns its number of parts.
fn assert_within_limits(calls: impl Iterator<Item = Events>) -> usize {
    let mut combiner = Combiner::default();
    for call in calls {
        if combiner.batch().len() >= BATCH_EVENTS_SEAL || combiner.batch().parts() >= BATCH_PARTS_SEAL {
            break;
        }
        assert!(call.batch().fits_call(), "{} events, {} parts", call.batch().len(), call.batch().parts());
        combiner.combine(&call, &mut Vec::new());
    }
    let batch = combiner.batch();
    assert!(batch.len() <= BATCH_EVENTS_MAX, "{} events", batch.len());
    assert!(batch.parts() <= BATCH_PARTS_MAX, "{} parts", batch.parts());
    let mut bytes = Vec::new();
    encode(batch, Millis(1), &mut bytes);
    assert!(bytes.len() <= BATCH_BYTES_MAX);
    let mut back = Batch::default();
    assert_eq!(decode(&bytes, SEED, &mut back), Ok(Millis(1)));
    assert_eq!((back.len(), back.parts()), (batch.len(), batch.parts()));
    batch.parts()
}

#[test]
fn the_batch_with_the_most_parts_that_engines_accept_survives_a_round_trip() {
    const KEYS: usize = BATCH_EVENTS_SEAL - 2;
    let calls = [
        call_of_parts_and_singles(BATCH_PARTS_SEAL - 1, KEYS, KEYS, 1),
        call_of_parts_and_singles(CALL_PARTS_MAX, KEYS, CALL_EVENTS_MAX - 1, 3),
    ];
    // Each key is mixed, and each single add that joins is one more part.
    let parts = assert_within_limits(calls.into_iter());
    assert!(parts > BATCH_PARTS_SEAL + CALL_PARTS_MAX + CALL_EVENTS_MAX, "{parts}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn no_calls_within_the_limits_make_a_batch_beyond_them(
        calls in vec((0..=CALL_PARTS_MAX, 40..BATCH_EVENTS_SEAL, 0..CALL_EVENTS_MAX, 1i64..5), 1..6),
    ) {
        assert_within_limits(calls.into_iter().map(|(parts, keys, singles, delta)| {
            call_of_parts_and_singles(parts, keys, singles, delta)
        }).filter(|call| call.batch().fits_call()));
    }
}
