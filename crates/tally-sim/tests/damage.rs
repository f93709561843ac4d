//! A damaged store: reading the damage reports file and offset and stops the engine.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use tally_core::key::{Key, KeyRef};
use tally_core::surface::{EngineError, Health};
use tally_engine::{Durability, Machine, Nudge, Settings, Step};
use tally_sim::SimDisk;
use tally_sim::life::ready;
use tally_sim::world::SimClock;

const COUNTERS: usize = 300;

fn open(sim: &SimDisk) -> Machine {
    let settings = Settings { segment_bytes: 1 << 20, seed: 1, ..Settings::default() };
    Machine::open(sim.disk(), Arc::new(SimClock::default()), settings, &mut |_, _| {}).unwrap()
}

fn increment_all(machine: &Machine) -> Result<(), EngineError> {
    let mut events = machine.events();
    for number in 0..COUNTERS {
        events.add(KeyRef::new(format!("stock:{number:05}").as_bytes()).unwrap(), 1);
    }
    let drive = |_: Nudge| {
        machine.seal();
        machine.flush().unwrap();
    };
    match pin!(machine.submit(events, Durability::Flushed, drive)).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(receipt) => receipt.map(|_| ()),
        Poll::Pending => panic!("the call is pending, although nothing is in progress"),
    }
}

/// A disk whose only run has one bit flipped within its first block.
fn damaged() -> SimDisk {
    let sim = SimDisk::new(1);
    let machine = open(&sim);
    increment_all(&machine).unwrap();
    let mut checkpoint = machine.checkpoint().unwrap();
    while checkpoint.step().unwrap() != Step::Done {}
    drop(checkpoint);
    drop(machine);
    let run = sim.contents().into_keys().find(|name| name.ends_with(".run")).unwrap();
    sim.restart();
    sim.flip(&run, 8 * 200).unwrap();
    sim
}

fn assert_stopped(machine: &Machine, error: &EngineError) {
    let EngineError::Poisoned(reason) = error else { panic!("{error}") };
    assert!(reason.contains(".run is damaged at byte"), "{reason}");
    assert_eq!(machine.health(), Health::Poisoned(reason.clone()));
}

#[test]
fn a_read_that_meets_damage_stops_the_engine_and_names_file_and_offset() {
    let sim = damaged();
    let machine = open(&sim);
    let key = Key::new("stock:00000").unwrap();
    let error = ready(machine.read(&[key], Durability::Flushed)).unwrap().unwrap_err();
    assert_stopped(&machine, &error);
}

#[test]
fn a_write_that_meets_damage_changes_nothing_and_stops_the_engine() {
    let sim = damaged();
    let machine = open(&sim);
    let error = increment_all(&machine).unwrap_err();
    assert_stopped(&machine, &error);
    assert!(increment_all(&machine).is_err());
}

#[test]
fn warming_after_a_restart_finds_damage_that_no_call_has_met() {
    let sim = damaged();
    let machine = open(&sim);
    let error = machine.warm(&mut Vec::new(), COUNTERS).unwrap_err();
    assert!(error.is_damage(), "{error}");
}
