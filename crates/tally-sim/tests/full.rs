//! A full disk while memory is full of dirty state: writes are refused instead of waiting forever.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use tally_core::key::{Key, KeyRef};
use tally_core::outcome::{Receipt, Refusal};
use tally_core::surface::{EngineError, Health};
use tally_engine::check::check_disk;
use tally_engine::{Durability, Machine, Settings, Step};
use tally_sim::SimDisk;
use tally_sim::life::ready;
use tally_sim::world::SimClock;

type Call<'m> = Pin<Box<dyn Future<Output = Result<Receipt, EngineError>> + 'm>>;

fn submit(machine: &Machine, from: u64) -> Call<'_> {
    let mut events = machine.events();
    for number in from..from + 500 {
        events.add(KeyRef::new(format!("stock:{number:014}").as_bytes()).unwrap(), 1);
    }
    Box::pin(machine.submit(events, Durability::Flushed, |_| {}))
}

fn poll(call: &mut Call<'_>) -> Poll<Result<Receipt, EngineError>> {
    call.as_mut().poll(&mut Context::from_waker(Waker::noop()))
}

fn assert_refused(answer: Poll<Result<Receipt, EngineError>>) {
    let Poll::Ready(Ok(receipt)) = answer else { panic!("{answer:?}") };
    assert!(receipt.outcomes.iter().all(|outcome| outcome.refusal == Some(Refusal::NoRoom) && outcome.applied == 0));
}

fn checkpoint(machine: &Machine) -> bool {
    let mut checkpoint = machine.checkpoint().unwrap();
    loop {
        match checkpoint.step() {
            Ok(Step::Done) => return true,
            Ok(_) => {}
            Err(error) if error.is_full() => return false,
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn writes_are_refused_while_memory_is_dirty_and_the_disk_has_no_space_for_a_checkpoint() {
    let sim = SimDisk::new(1);
    let settings = Settings { memory_bytes: 4 << 20, segment_bytes: 4 << 20, seed: 1, ..Settings::default() };
    let machine = Machine::open(sim.disk(), Arc::new(SimClock::default()), settings, &mut |_, _| {}).unwrap();
    sim.set_capacity(sim.used_bytes() + (64 << 10));

    let mut written = 0;
    let mut waiting = loop {
        let mut call = submit(&machine, written);
        assert!(poll(&mut call).is_pending());
        machine.seal();
        machine.flush().unwrap();
        match poll(&mut call) {
            Poll::Ready(receipt) => written += receipt.unwrap().outcomes.len() as u64,
            Poll::Pending => break call,
        }
        assert!(written < 1_000_000, "memory never fills up");
    };
    assert!(!checkpoint(&machine), "there is no space for a checkpoint");
    machine.seal();
    assert_refused(poll(&mut waiting));
    assert_eq!(machine.health(), Health::DiskFull);

    sim.set_capacity(u64::MAX);
    assert!(checkpoint(&machine));
    let mut call = submit(&machine, written);
    assert!(poll(&mut call).is_pending());
    machine.seal();
    machine.flush().unwrap();
    let Poll::Ready(Ok(receipt)) = poll(&mut call) else { panic!("there is space again") };
    assert!(receipt.outcomes.iter().all(|outcome| outcome.value == 1), "refused increments were not counted");
    assert_eq!(machine.health(), Health::Ready);
}

#[test]
fn an_engine_opened_on_a_full_disk_serves_reads_and_accepts_writes_once_there_is_space() {
    let sim = SimDisk::new(1);
    let settings = Settings { segment_bytes: 1 << 20, seed: 1, ..Settings::default() };
    let open = || Machine::open(sim.disk(), Arc::new(SimClock::default()), settings, &mut |_, _| {}).unwrap();
    let machine = open();
    let mut call = submit(&machine, 0);
    assert!(poll(&mut call).is_pending());
    machine.seal();
    machine.flush().unwrap();
    assert!(poll(&mut call).is_ready());
    drop(call);
    drop(machine);

    sim.restart();
    // The space of the reserved spare is used by something else.
    for name in sim.contents().into_keys().filter(|name| name.starts_with("spare-")) {
        sim.disk().remove(&name).unwrap();
    }
    sim.disk().sync_names().unwrap();
    sim.set_capacity(sim.used_bytes());
    let machine = open();
    assert_eq!(machine.health(), Health::DiskFull);
    let key = Key::new("stock:00000000000007").unwrap();
    let reading = ready(machine.read(&[key], Durability::Flushed)).unwrap().unwrap();
    assert_eq!(reading[0].value, 1);
    let mut refused = submit(&machine, 0);
    assert!(poll(&mut refused).is_pending());
    machine.maintain_journal();
    machine.seal();
    assert_refused(poll(&mut refused));

    sim.set_capacity(u64::MAX);
    machine.maintain_journal();
    assert_eq!(machine.health(), Health::Ready);
    let mut call = submit(&machine, 0);
    assert!(poll(&mut call).is_pending());
    machine.seal();
    machine.flush().unwrap();
    let Poll::Ready(Ok(receipt)) = poll(&mut call) else { panic!("there is space again") };
    assert!(receipt.outcomes.iter().all(|outcome| outcome.value == 2), "refused increments were not counted");
}

#[test]
fn a_first_start_on_a_full_disk_succeeds_once_there_is_space_and_survives_a_crash_at_any_operation() {
    let settings = Settings { segment_bytes: 1 << 20, seed: 1, ..Settings::default() };
    for operations in 1..40 {
        let sim = SimDisk::new(operations);
        let open = || Machine::open(sim.disk(), Arc::new(SimClock::default()), settings, &mut |_, _| {});
        sim.set_capacity(100);
        let machine = open().unwrap();
        assert_eq!(machine.health(), Health::DiskFull);
        assert!(sim.contents().keys().all(|name| name.starts_with("manifest")), "{:?}", sim.file_names());
        sim.set_capacity(u64::MAX);
        sim.crash_at(sim.operations() + operations);
        machine.maintain_journal();
        drop(machine);
        sim.power_cut(operations);
        check_disk(&sim.disk(), &mut |_, _| {}).unwrap();
        let machine = open().unwrap();
        let mut call = submit(&machine, 0);
        assert!(poll(&mut call).is_pending());
        machine.seal();
        machine.flush().unwrap();
        assert!(matches!(poll(&mut call), Poll::Ready(Ok(_))));
    }
}
