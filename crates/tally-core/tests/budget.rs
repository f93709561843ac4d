//! The memory budget holds under every workload, and no batch waits for a checkpoint that cannot help.
#![allow(clippy::unwrap_used)]

use tally_core::batch::Events;
use tally_core::event::{AddExpiry, Change, Correction, Deadline, Details, ExpiryCondition, RequestId};
use tally_core::key::{Key, KeyRef};
use tally_core::outcome::{Outcome, Outcomes};
use tally_core::partition::{Headroom, Partition};
use tally_core::record::{Meta, Records, request_key, write_request};
use tally_core::request_ids::FirstOutcome;
use tally_core::time::Millis;

const SEED: u64 = 7;
const BUDGET: usize = 8 << 20;
/// What one batch may add before the next check, including tables that double.
const SLACK: usize = BUDGET / 4;

/// A checkpoint whose records are discarded.
fn checkpoint(partition: &mut Partition) {
    partition.begin_capture();
    while partition.capture_slice(1_000, &mut Records::default()) {}
    partition.capture_committed();
}

/// Applies batches, with a checkpoint whenever one is needed, and checks that memory stays within the budget.
fn count(partition: &mut Partition, batches: u64, fill: impl Fn(u64, &mut Events)) {
    count_within(BUDGET, partition, batches, fill);
}

/// Like `count`, but makes room within another budget. Returns the number of checkpoints.
fn count_within(budget: usize, partition: &mut Partition, batches: u64, fill: impl Fn(u64, &mut Events)) -> usize {
    let mut checkpoints = 0;
    for batch in 0..batches {
        let mut events = Events::new(SEED);
        (0..500).for_each(|event| fill(batch * 500 + event, &mut events));
        if partition.make_room(events.batch(), budget) == Headroom::NeedsCheckpoint {
            checkpoint(partition);
            checkpoints += 1;
            assert_eq!(
                partition.make_room(events.batch(), budget),
                Headroom::Enough,
                "after a checkpoint there is room"
            );
        }
        partition.apply(Millis(batch), events.batch(), &mut Outcomes::default());
        assert!(partition.memory_bytes() <= BUDGET + SLACK, "{} bytes after batch {batch}", partition.memory_bytes());
    }
    checkpoints
}

/// A partition with as many cells as the budget allows.
fn filled() -> Partition {
    let mut partition = Partition::new(SEED);
    count(&mut partition, 300, |n, events| events.add(key(&format!("short:{n}")).as_ref(), 1));
    partition
}

fn key(text: &str) -> Key {
    Key::new(text).unwrap()
}

#[test]
fn long_keys_replace_short_ones() {
    let mut partition = filled();
    count(&mut partition, 100, |n, events| events.add(key(&format!("long:{n:0>500}")).as_ref(), 1));
    count(&mut partition, 300, |n, events| events.add(key(&format!("again:{n}")).as_ref(), 1));
}

/// The store's own memory grows with it and reduces the budget, and cells are never freed.
#[test]
fn counters_stay_resident_when_the_budget_shrinks_below_their_cells() {
    let mut partition = filled();
    let resident = partition.resident_counters();
    assert!(resident > 40_000, "{resident}");
    for budget in [BUDGET - BUDGET / 8, BUDGET / 2, BUDGET / 4] {
        let short = |n: u64, events: &mut Events| events.add(key(&format!("{budget}:{n}")).as_ref(), 1);
        let checkpoints = count_within(budget, &mut partition, 300, short);
        assert!(partition.resident_counters() > resident - 1_000, "{} with {budget}", partition.resident_counters());
        assert!(checkpoints < 12, "{checkpoints} checkpoints for 150,000 changes with {budget}");
        let long = |n: u64, events: &mut Events| events.add(key(&format!("{budget}:{n:0>500}")).as_ref(), 1);
        count_within(budget, &mut partition, 20, long);
    }
}

#[test]
fn a_batch_larger_than_the_reserve_waits_for_one_checkpoint_at_most() {
    let mut partition = filled();
    let mut large = Events::new(SEED);
    (0..5_000).for_each(|n| large.add(key(&format!("{n:0>500}")).as_ref(), 1));
    assert!(large.batch().bytes() > BUDGET / 8);
    checkpoint(&mut partition);
    // Something else has become dirty since the checkpoint.
    let mut other = Events::new(SEED);
    other.add(KeyRef::new(b"other").unwrap(), 1);
    partition.apply(Millis(1_000), other.batch(), &mut Outcomes::default());
    assert_eq!(partition.make_room(large.batch(), BUDGET), Headroom::Enough);
}

#[test]
fn dirty_long_keys_do_not_evict_short_ones() {
    let mut partition = filled();
    checkpoint(&mut partition);
    let mut waits = false;
    for batch in 0..100 {
        let mut events = Events::new(SEED);
        (0..50).for_each(|n| events.add(key(&format!("{batch}:{n:0>500}")).as_ref(), 1));
        waits |= partition.make_room(events.batch(), BUDGET) == Headroom::NeedsCheckpoint;
        if waits {
            break;
        }
        partition.apply(Millis(1_000), events.batch(), &mut Outcomes::default());
    }
    assert!(waits, "only a checkpoint can make room for more of them");
    assert!(partition.resident_counters() > 50_000, "{}", partition.resident_counters());
    checkpoint(&mut partition);
    count(&mut partition, 100, |n, events| events.add(key(&format!("more:{n:0>500}")).as_ref(), 1));
}

#[test]
fn request_ids_do_not_evict_counters() {
    let mut partition = filled();
    checkpoint(&mut partition);
    let resident = partition.resident_counters();
    count(&mut partition, 800, |n, events| {
        let hot = KeyRef::new(b"hot").unwrap();
        events.push(hot, Change::Add(1), RequestId::new(hot, &n.to_le_bytes()).ok(), None);
    });
    assert!(partition.resident_counters() > resident - 1_000, "{} of {resident}", partition.resident_counters());
}

#[test]
fn request_ids_loaded_from_the_store_are_evicted_before_any_counter() {
    let mut partition = filled();
    checkpoint(&mut partition);
    let resident = partition.resident_counters();
    let hot = KeyRef::new(b"hot").unwrap();
    let mut value = Vec::new();
    write_request(&FirstOutcome::new(1, Millis(0), &Outcome::EMPTY), &mut value);
    for n in 0..100_000u32 {
        let id = RequestId::new(hot, &n.to_le_bytes()).unwrap();
        partition.restore(&request_key(id), &value).unwrap();
    }
    assert!(partition.memory_bytes() > BUDGET);
    let mut events = Events::new(SEED);
    events.add(hot, 1);
    assert_eq!(partition.make_room(events.batch(), BUDGET), Headroom::Enough);
    assert!(partition.memory_bytes() <= BUDGET);
    assert!(partition.resident_counters() > resident - 100, "{} of {resident}", partition.resident_counters());
}

#[test]
fn request_ids_of_one_counter_stay_within_the_budget() {
    let mut partition = Partition::new(SEED);
    count(&mut partition, 800, |n, events| {
        let hot = KeyRef::new(b"hot").unwrap();
        events.push(hot, Change::Add(1), RequestId::new(hot, &n.to_le_bytes()).ok(), None);
    });
}

#[test]
fn corrections_stay_within_the_budget() {
    let mut partition = Partition::new(SEED);
    count(&mut partition, 100, |n, events| {
        let why = Correction::new("auditor", &"x".repeat(1_000)).unwrap();
        events.push(key(&format!("stock:{}", n % 50)).as_ref(), Change::Adjust { delta: 1, why }, None, None);
    });
}

#[test]
fn expiries_stay_within_the_budget() {
    let mut partition = Partition::new(SEED);
    let expire = || Change::Expire { at: Some(Deadline::At(Millis(u64::MAX))), when: ExpiryCondition::Always };
    let without = {
        let mut partition = Partition::new(SEED);
        count(&mut partition, 20, |n, events| events.add(key(&format!("short:{n}")).as_ref(), 1));
        partition.memory_bytes()
    };
    count(&mut partition, 20, |n, events| {
        events.add(key(&format!("short:{n}")).as_ref(), 1);
        events.push(key(&format!("short:{n}")).as_ref(), expire(), None, None);
    });
    assert!(partition.memory_bytes() >= without + 10_000 * 16, "they count");
    checkpoint(&mut partition);
    // The first pass of the clock hand clears the reference bits, the second one evicts.
    for _ in 0..2 {
        partition.make_room_for_one(KeyRef::new(b"any").unwrap(), 0);
    }
    assert_eq!(partition.resident_counters(), 0);
    assert!(partition.memory_bytes() < without + 10_000 * 16, "they are evicted with their counters");
    count(&mut partition, 300, |n, events| {
        events.add(key(&format!("more:{n}")).as_ref(), 1);
        events.push(key(&format!("more:{n}")).as_ref(), expire(), None, None);
    });
}

#[test]
fn the_index_is_sized_for_the_counters_of_the_store_that_fit_the_budget() {
    const BUDGET: usize = 64 << 20;
    let index_bytes = |counters| {
        let meta = Meta { clock: Millis(0), counters, expiring: 0 };
        Partition::with_store(SEED, meta, BUDGET).memory_bytes()
    };
    assert_eq!(index_bytes(0), 0);
    assert!((100_000 * 5..100_000 * 16).contains(&index_bytes(100_000)), "{}", index_bytes(100_000));
    assert_eq!(index_bytes(u64::MAX), index_bytes(10_000_000), "as many as the budget allows");
    assert!(index_bytes(u64::MAX) < BUDGET / 8, "the rest is for the counters themselves");
}

#[test]
fn a_batch_never_waits_for_a_checkpoint_that_has_nothing_to_write() {
    let mut partition = Partition::with_store(SEED, Meta { clock: Millis(0), counters: 0, expiring: 0 }, 0);
    let mut events = Events::new(SEED);
    events.add(KeyRef::new(b"one").unwrap(), 1);
    assert_eq!(partition.make_room(events.batch(), 0), Headroom::Enough);
}

/// Adds a counter with a long key that has already expired, and sweeps it. Its removal and its outdated expiry record
/// stay in memory until a checkpoint writes them.
fn expire_and_sweep(n: u64, events: &mut Events) {
    let (key, expires_at) = (key(&format!("{n:0>490}")), Millis(0));
    let expiry = AddExpiry { at: Some(Deadline::At(expires_at)), only_if_none: false };
    let details = Details { expiry: Some(expiry), ..Details::default() };
    events.push(key.as_ref(), Change::Add(1), None, Some(details));
    events.push(key.as_ref(), Change::Sweep { expires_at }, None, None);
}

#[test]
fn removals_and_outdated_expiries_count_until_a_checkpoint_has_written_them() {
    const KEYS: usize = 1_000;
    let mut partition = Partition::new(SEED);
    let mut events = Events::new(SEED);
    (0..KEYS as u64).for_each(|n| expire_and_sweep(n, &mut events));
    partition.apply(Millis(1), events.batch(), &mut Outcomes::default());
    assert_eq!(partition.counters(), 0);
    let with_removals = partition.memory_bytes();
    assert!(with_removals >= KEYS * 2 * 490, "{with_removals}");
    let capture = partition.begin_capture();
    assert!(partition.memory_bytes() >= KEYS * 2 * 490, "{} while they are written", partition.memory_bytes());
    partition.capture_abandoned();
    assert!(partition.memory_bytes() >= KEYS * 490, "{} after a failed checkpoint", partition.memory_bytes());
    drop(capture);
    checkpoint(&mut partition);
    assert!(partition.memory_bytes() <= with_removals - KEYS * 2 * 490, "{}", partition.memory_bytes());
    // Recreating a counter cancels its removal.
    let mut events = Events::new(SEED);
    expire_and_sweep(1, &mut events);
    partition.apply(Millis(1), events.batch(), &mut Outcomes::default());
    let before = partition.memory_bytes();
    let mut events = Events::new(SEED);
    events.add(key(&format!("{:0>490}", 1)).as_ref(), 1);
    partition.apply(Millis(1), events.batch(), &mut Outcomes::default());
    // The counter's key takes the place of the removal's.
    assert!(partition.memory_bytes() <= before + 100, "{} after {before}", partition.memory_bytes());
}

#[test]
fn removals_of_long_keys_stay_within_the_budget() {
    let mut partition = Partition::new(SEED);
    // 100,000 keys of 490 bytes, twice: far more than the budget.
    let checkpoints = count_within(BUDGET, &mut partition, 200, expire_and_sweep);
    assert!(checkpoints >= 100_000 * 2 * 490 / BUDGET, "{checkpoints} checkpoints");
}
