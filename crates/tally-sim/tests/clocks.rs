//! Clocks that are set back or forward, while the engine runs and while it is stopped.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use tally_core::event::{AddExpiry, Change, Condition, Correction, Deadline, Details, Expiry, Field, RequestId};
use tally_core::key::Key;
use tally_core::outcome::Outcome;
use tally_core::time::Millis;
use tally_engine::{Durability, Machine, Settings};
use tally_sim::call::push_all;
use tally_sim::life::{Life, checkpoint_now, ready, submit_now};
use tally_sim::model::Event;
use tally_sim::workload::{Workload, with_submission_count};
use tally_sim::{Loss, World};

fn world(seed: u64) -> World {
    World::new(seed, Workload::lively(), 4_096)
}

/// Found by review: the clock of a machine that had nothing to replay started at zero.
#[test]
fn ledger_entries_stay_in_order_when_the_clock_is_set_back() {
    let mut world = world(0);
    let key = world.workload.keys[0].clone();
    let set = |value| {
        let why = Correction::default();
        let set = Change::Set { value, when: Condition::Always, expiry: Expiry::Keep, why };
        with_submission_count([Event { change: set, ..Event::add(&key, 0) }])
    };
    let machine = world.open().unwrap();
    let mut life = Life::new(&mut world, &machine);
    life.submit_these(set(1), Durability::Flushed).unwrap();
    life.flush_all().unwrap();
    life.full_checkpoint().unwrap();
    drop(life);
    drop(machine);
    world.clock.set_back(60_000);
    let machine = world.open().unwrap();
    let mut events = machine.events();
    push_all(&set(2), &mut events);
    let mut submitted = std::pin::pin!(machine.submit(events, Durability::Flushed, |_| {}));
    assert!(ready(submitted.as_mut()).is_err(), "it is not sealed yet");
    machine.seal();
    machine.flush().unwrap();
    ready(submitted).unwrap().unwrap();
    let ledger = ready(machine.ledger(&key, 0, 10)).unwrap().unwrap();
    let times: Vec<_> = ledger.iter().map(|entry| entry.at).collect();
    assert!(times.len() == 2 && times.is_sorted(), "{times:?}");
}

/// A swept counter has expired for every later batch, even if the clock is set back and the batch is replayed from a
/// store that still holds the counter.
#[test]
fn replay_with_a_clock_set_back_after_a_sweep_restores_no_expired_counter() {
    let mut world = world(0);
    let key = world.workload.keys[0].clone();
    let expires = Deadline::After(1_000);
    let lasting = Details { expiry: Some(AddExpiry { at: Some(expires), only_if_none: false }), ..Details::default() };
    let machine = world.open().unwrap();
    let mut life = Life::new(&mut world, &machine);
    let first = Event { details: Some(lasting), ..Event::add(&key, 5) };
    life.submit_these(with_submission_count([first]), Durability::Flushed).unwrap();
    life.flush_all().unwrap();
    life.full_checkpoint().unwrap();
    life.world.clock.advance(1_500);
    life.sweep().unwrap();
    life.flush_all().unwrap();
    life.world.clock.set_back(1_400);
    drop(life);
    assert_eq!(flush_all(&machine, &key, Change::Add(1)).value, 1);
    assert_eq!(ready(machine.count(Durability::Flushed)), Ok(Ok(2)));
    drop(machine);
    let machine = world.open_unchecked().unwrap();
    assert_eq!(flush_all(&machine, &key, Change::Read(Field::Value)).value, 1);
    assert_eq!(ready(machine.count(Durability::Flushed)), Ok(Ok(2)));
}

/// Submits one event, seals and flushes it.
fn flush_all(machine: &Machine, key: &Key, change: Change) -> Outcome {
    let mut events = machine.events();
    events.push(key.as_ref(), change, None, None);
    let mut submitted = std::pin::pin!(machine.submit(events, Durability::Flushed, |_| {}));
    let answer = ready(submitted.as_mut()).or_else(|_| {
        machine.seal();
        machine.flush().unwrap();
        ready(submitted)
    });
    answer.unwrap().unwrap().outcomes[0]
}

/// This holds for steps while the engine runs and while it is stopped.
#[test]
fn steps_of_the_wall_clock_do_not_change_durations() {
    const YEARS_MS: u64 = 10 * 365 * 24 * 3_600_000;
    let set = || Change::Set {
        value: 5,
        when: Condition::Always,
        expiry: Expiry::At(Deadline::After(60_000)),
        why: Correction::default(),
    };
    let read = || Change::Read(Field::Value);
    for step in [90_000, YEARS_MS] {
        for forward in [false, true] {
            for restart in [false, true] {
                let mut world = world(0);
                let key = world.workload.keys[0].clone();
                let mut machine = world.open().unwrap();
                flush_all(&machine, &key, Change::Add(1));
                if forward {
                    world.clock.set_forward(step);
                } else {
                    world.clock.set_back(step);
                }
                if restart {
                    drop(machine);
                    let clock = Arc::clone(&world.clock);
                    machine = Machine::open(world.disk.disk(), clock, Settings::default(), &mut |_, _| {}).unwrap();
                }
                let what = format!("{step} ms forward: {forward}, restart: {restart}");
                assert_eq!(machine.clock_ahead_ms().is_some(), !forward, "{what}");
                assert!(flush_all(&machine, &key, set()).exists, "{what}");
                world.clock.advance(50_000);
                assert_eq!(flush_all(&machine, &key, read()).value, 5, "{what}");
                // The clock is slewed by at most a sixteenth.
                world.clock.advance(15_000);
                assert!(!flush_all(&machine, &key, read()).exists, "{what}");
            }
        }
    }
}

/// Only an explicit reset sets the clock back. It is journalled, so replay gives the same state.
#[test]
fn a_clock_reset_survives_replay() {
    const YEARS_MS: u64 = 10 * 365 * 24 * 3_600_000;
    let mut world = world(0);
    let key = world.workload.keys[0].clone();
    world.clock.set_forward(YEARS_MS);
    let machine = world.open().unwrap();
    flush_all(&machine, &key, Change::Add(1));
    drop(machine);
    world.clock.set_back(YEARS_MS);
    let machine = world.open_unchecked().unwrap();
    let ahead = machine.now();
    assert_eq!(machine.clock_ahead_ms(), Some(YEARS_MS));
    machine.reset_clock().unwrap();
    assert_eq!((machine.clock_ahead_ms(), machine.now()), (None, Millis(ahead.0 - YEARS_MS)));
    drop(machine);
    world.power_cut(Some(Loss::Everything));
    let machine = world.open_unchecked().unwrap();
    assert_eq!((machine.clock_ahead_ms(), machine.now()), (None, Millis(ahead.0 - YEARS_MS)));
    assert_eq!(flush_all(&machine, &key, Change::Add(1)).value, 2);
}

/// Found by reading. Once the clock is reset, the checkpoint from before must not decide which request ids a merge drops.
#[test]
fn after_a_clock_reset_and_a_crash_merges_keep_request_ids() {
    const AHEAD_MS: u64 = 10 * 24 * 3_600_000;
    let mut world = world(0);
    let key = world.workload.keys[0].clone();
    let add = |machine: &Machine, id: u8| {
        let mut events = machine.events();
        let id = RequestId::new(key.as_ref(), &[id]).unwrap();
        events.push(key.as_ref(), Change::Add(1), Some(id), None);
        submit_now(machine, events).unwrap().unwrap().outcomes[0]
    };
    world.clock.set_forward(AHEAD_MS);
    let machine = world.open_unchecked().unwrap();
    add(&machine, 0);
    checkpoint_now(&machine).unwrap();
    drop(machine);
    world.clock.set_back(AHEAD_MS);
    let machine = world.open_unchecked().unwrap();
    machine.reset_clock().unwrap();
    drop(machine);
    world.power_cut(Some(Loss::Everything));
    let machine = world.open_unchecked().unwrap();
    for id in 1..=8 {
        add(&machine, id);
        checkpoint_now(&machine).unwrap();
    }
    assert!(machine.merge().unwrap());
    while machine.merge().unwrap() {}
    for id in 0..=8 {
        assert!(add(&machine, id).is_duplicate(), "request {id}");
    }
}
