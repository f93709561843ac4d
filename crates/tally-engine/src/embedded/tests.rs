//! Who flushes, who is told, and what happens without room: the engine without its threads, step by step.

#![allow(clippy::unwrap_used)]

use std::pin::pin;
use std::task::{Context, Poll, Waker};

use tally_core::key::KeyRef;
use tally_core::time::Millis;

use tally_core::outcome::Refusal;

use super::*;
use crate::clock::Clock;

/// No flush takes long by this clock.
struct StandingClock;

impl Clock for StandingClock {
    fn wall(&self) -> Millis {
        Millis(1)
    }

    fn elapsed(&self) -> Duration {
        Duration::ZERO
    }
}

/// An engine without its threads, with small segments: the current one and a spare.
fn without_threads(dir: &tempfile::TempDir, memory_bytes: u64) -> Shared {
    let disk = Arc::new(RealDisk::new(dir.path()).unwrap());
    let settings = Settings { memory_bytes, segment_bytes: 4 << 10, ..Settings::default() };
    Shared::new(Machine::open(disk, Arc::new(StandingClock), settings, &mut |_, _| {}).unwrap(), None)
}

/// Submits an increment, has `then` happen, and tells what the caller knows by then.
fn increment(shared: &Shared, then: impl FnOnce()) -> Poll<Result<Receipt, EngineError>> {
    let mut events = shared.machine.events();
    events.add(KeyRef::new(&[b'k'; 500]).unwrap(), 1);
    let mut call = pin!(shared.machine.submit(events, Durability::Flushed, |_| {}));
    let context = &mut Context::from_waker(Waker::noop());
    assert!(call.as_mut().poll(context).is_pending());
    then();
    call.as_mut().poll(context)
}

#[test]
fn whoever_waits_for_a_flush_is_woken_also_when_it_was_made_on_another_threads_behalf() {
    let dir = tempfile::tempdir().unwrap();
    let shared = without_threads(&dir, MEMORY_BYTES_MIN);
    let answer = increment(&shared, || {
        assert_eq!(shared.machine.seal(), Seal::Applied);
        shared.flush_here();
    });
    assert!(matches!(answer, Poll::Ready(Ok(_))), "{answer:?}");
    assert!(shared.flushed.is_set(), "a checkpoint may wait for this flush, and no other may follow");
}

#[test]
fn a_flusher_that_is_late_with_the_next_segment_makes_nobody_think_that_the_disk_is_full() {
    let dir = tempfile::tempdir().unwrap();
    let shared = without_threads(&dir, MEMORY_BYTES_MIN);
    let mut left = 0;
    for _ in 0..100 {
        let before = shared.machine.flushed();
        let answer = increment(&shared, || {
            shared.flush_here();
            if shared.machine.flushed() == before {
                // The flusher comes only now that it has to.
                left += 1;
                shared.machine.maintain_journal();
                shared.machine.seal();
                shared.machine.flush().unwrap();
            }
        });
        assert!(matches!(answer, Poll::Ready(Ok(_))), "{answer:?}");
    }
    assert!((5..50).contains(&left), "once for a segment: {left} times");
}

fn assert_refused(answer: Poll<Result<Receipt, EngineError>>) {
    let refusals = answer.map_ok(|receipt| receipt.outcomes.iter().map(|outcome| outcome.refusal).collect());
    assert_eq!(refusals, Poll::Ready(Ok(vec![Some(Refusal::NoRoom)])));
}

#[test]
fn a_batch_refused_for_want_of_room_asks_for_a_checkpoint_whoever_sealed_it() {
    let dir = tempfile::tempdir().unwrap();
    let shared = without_threads(&dir, 4 << 10);
    let answer = increment(&shared, || shared.flush_here());
    assert!(matches!(answer, Poll::Ready(Ok(_))), "{answer:?}");
    // Memory is full of that change, and the last checkpoint found no room.
    shared.machine.checkpoint_full.store(true, Ordering::Release);
    assert!(!shared.checkpoint_now.load(Ordering::Acquire));
    assert_refused(increment(&shared, || shared.flush_here()));
    assert!(shared.checkpoint_now.load(Ordering::Acquire), "another may find room");
}

#[test]
fn a_batch_that_waits_for_a_checkpoint_is_refused_when_the_disk_has_no_room_for_one() {
    let dir = tempfile::tempdir().unwrap();
    let shared = without_threads(&dir, 4 << 10);
    assert!(increment(&shared, || shared.flush_here()).is_ready());
    shared.stopping.store(true, Ordering::Release);
    let answer = increment(&shared, || {
        // Memory is full of the change before.
        shared.flush_here();
        assert!(shared.checkpoint_now.load(Ordering::Acquire));
        shared.flusher.wait();
        shared.machine.checkpoint_full.store(true, Ordering::Release);
        let source = std::io::ErrorKind::StorageFull.into();
        shared.checkpoint_failed(&StoreError::Io { file: "run".into(), source });
        assert!(shared.flusher.is_set(), "nobody else wakes it: the batch is not new, and not full");
        shared.machine.seal();
    });
    assert_refused(answer);
}
