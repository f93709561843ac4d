//! Which thread flushes, which are woken, and what happens without room. The engine runs without its threads, step by
//! step.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::pin::pin;
use std::task::{Context, Poll, Waker};

use tally_core::key::KeyRef;
use tally_core::limits::CAPTURE_SLICE;
use tally_core::time::Millis;

use tally_core::event::Field;
use tally_core::outcome::Refusal;
use tally_core::record::counter_key;

use super::*;
use crate::clock::Clock;
use crate::disk::breaking::BreakingDisk;
use crate::disk::{Disk, RealDisk};
use crate::store::Entry;

/// A clock that stands still, so that no flush is slow.
struct StandingClock;

impl Clock for StandingClock {
    fn wall(&self) -> Millis {
        Millis(1)
    }

    fn elapsed(&self) -> Duration {
        Duration::ZERO
    }
}

/// An engine without its threads and with small segments.
fn without_threads(dir: &tempfile::TempDir, memory_bytes: u64) -> Shared {
    without_threads_on(Arc::new(RealDisk::new(dir.path()).unwrap()), memory_bytes)
}

fn without_threads_on(disk: Arc<dyn Disk>, memory_bytes: u64) -> Shared {
    let settings = Settings { memory_bytes, segment_bytes: 4 << 10, ..Settings::default() };
    Shared::new(Machine::open(disk, Arc::new(StandingClock), settings, &mut |_, _| {}).unwrap(), None)
}

/// Submits an increment, runs `then`, and returns what the caller gets.
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
fn a_flush_of_a_batch_that_another_thread_sealed_wakes_the_checkpointer() {
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
fn no_batch_is_refused_while_the_flusher_has_yet_to_reserve_the_next_segment() {
    let dir = tempfile::tempdir().unwrap();
    let shared = without_threads(&dir, MEMORY_BYTES_MIN);
    let mut left = 0;
    for _ in 0..100 {
        let before = shared.machine.flushed();
        let answer = increment(&shared, || {
            shared.flush_here();
            if shared.machine.flushed() == before {
                // The flusher runs only when it has to.
                left += 1;
                shared.machine.maintain_journal();
                shared.machine.seal();
                shared.machine.flush().unwrap();
            }
        });
        assert!(matches!(answer, Poll::Ready(Ok(_))), "{answer:?}");
    }
    assert!((5..50).contains(&left), "once per segment, not {left} times");
}

#[test]
fn a_batch_waits_for_the_next_segment_if_unflushed_ones_have_used_up_the_reserved_space() {
    let dir = tempfile::tempdir().unwrap();
    let shared = without_threads(&dir, MEMORY_BYTES_MIN);
    let mut counted = 0;
    let mut seal = || {
        let mut sealed = Seal::Empty;
        assert!(increment(&shared, || sealed = shared.machine.seal()).is_pending());
        counted += 1;
        sealed
    };
    while seal() == Seal::Applied {}
    assert_eq!(shared.machine.seal(), Seal::BackedUp, "the disk has space");
    assert!(shared.machine.flush().unwrap());
    shared.machine.maintain_journal();
    assert_eq!(shared.machine.seal(), Seal::Applied);
    let answer = increment(&shared, || {
        shared.machine.seal();
        shared.machine.flush().unwrap();
    });
    let Poll::Ready(Ok(receipt)) = answer else { panic!("{answer:?}") };
    assert_eq!(receipt.outcomes[0].value, counted + 1);
}

#[test]
fn a_stored_counter_that_cannot_be_decoded_is_damage_also_for_a_batch_that_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let damaged = KeyRef::new(b"damaged").unwrap();
    let shared = without_threads(&dir, MEMORY_BYTES_MIN);
    assert!(increment(&shared, || shared.flush_here()).is_ready());
    shared.checkpoint();
    let position = shared.machine.store.position();
    let mut writer = shared.machine.store.checkpoint();
    writer.write_run([(&counter_key(damaged.as_bytes())[..], Entry::Put(b"not a counter"))]).unwrap();
    writer.commit(position).unwrap();
    drop(shared);

    let shared = without_threads(&dir, 4 << 10);
    assert!(increment(&shared, || shared.flush_here()).is_ready());
    // That change fills memory, so a batch is refused, and its reads are answered.
    shared.machine.checkpoint_full.store(true, Ordering::Release);
    let mut events = shared.machine.events();
    events.push(damaged, Change::Read(Field::Value), None, None);
    events.add(KeyRef::new(&[b'k'; 500]).unwrap(), 1);
    let mut call = pin!(shared.machine.submit(events, Durability::Flushed, |_| {}));
    let context = &mut Context::from_waker(Waker::noop());
    assert!(call.as_mut().poll(context).is_pending());
    assert_eq!(shared.machine.seal(), Seal::Refused);
    let answer = call.as_mut().poll(context);
    assert!(matches!(&answer, Poll::Ready(Err(EngineError::Poisoned(why))) if why.contains("decoded")), "{answer:?}");
}

fn assert_refused(answer: Poll<Result<Receipt, EngineError>>) {
    let refusals = answer.map_ok(|receipt| receipt.outcomes.iter().map(|outcome| outcome.refusal).collect());
    assert_eq!(refusals, Poll::Ready(Ok(vec![Some(Refusal::NoRoom)])));
}

#[test]
fn a_batch_refused_for_lack_of_room_requests_a_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let shared = without_threads(&dir, 4 << 10);
    let answer = increment(&shared, || shared.flush_here());
    assert!(matches!(answer, Poll::Ready(Ok(_))), "{answer:?}");
    // That change fills memory, and the last checkpoint found no disk space.
    shared.machine.checkpoint_full.store(true, Ordering::Release);
    assert!(!shared.checkpoint_now.load(Ordering::Acquire));
    assert_refused(increment(&shared, || shared.flush_here()));
    assert!(shared.checkpoint_now.load(Ordering::Acquire), "the next one may find space");
}

#[test]
fn without_file_descriptors_for_a_checkpoint_batches_wait_and_the_merger_is_asked_to_close_files() {
    let dir = tempfile::tempdir().unwrap();
    let disk = BreakingDisk::new(RealDisk::new(dir.path()).unwrap());
    let shared = without_threads_on(disk.clone(), 4 << 10);
    assert!(increment(&shared, || shared.flush_here()).is_ready());
    // No pause before the next attempt.
    shared.stopping.store(true, Ordering::Release);
    disk.breaks.opens.store(true, Ordering::Relaxed);
    let answer = increment(&shared, || {
        // The previous change fills memory.
        shared.flush_here();
        shared.flusher.wait();
        shared.checkpoint();
        assert!(shared.flusher.is_set(), "no other event wakes it: the batch is neither new nor full");
        assert!(shared.merger.is_set(), "it may have found no descriptors either");
        assert!(matches!(shared.machine.health(), Health::Degraded { writes: true, .. }));
        assert_eq!(shared.machine.seal(), Seal::NeedsCheckpoint);
        disk.breaks.opens.store(false, Ordering::Relaxed);
        shared.checkpoint();
        assert_eq!(shared.machine.health(), Health::Ready);
        shared.flush_here();
    });
    assert!(matches!(answer, Poll::Ready(Ok(_))), "{answer:?}");
}

#[test]
fn an_engine_that_closes_without_file_descriptors_refuses_what_waits_for_a_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let disk = BreakingDisk::new(RealDisk::new(dir.path()).unwrap());
    let shared = without_threads_on(disk.clone(), 4 << 10);
    assert!(increment(&shared, || shared.flush_here()).is_ready());
    shared.stopping.store(true, Ordering::Release);
    disk.breaks.opens.store(true, Ordering::Relaxed);
    assert_refused(increment(&shared, || {
        shared.machine.begin_close();
        shared.checkpoint();
        shared.machine.seal();
    }));
}

#[test]
fn a_batch_that_waits_for_a_checkpoint_is_refused_when_the_disk_has_no_room_for_one() {
    let dir = tempfile::tempdir().unwrap();
    let shared = without_threads(&dir, 4 << 10);
    assert!(increment(&shared, || shared.flush_here()).is_ready());
    shared.stopping.store(true, Ordering::Release);
    let answer = increment(&shared, || {
        // The previous change fills memory.
        shared.flush_here();
        assert!(shared.checkpoint_now.load(Ordering::Acquire));
        shared.flusher.wait();
        shared.machine.checkpoint_full.store(true, Ordering::Release);
        let source = std::io::ErrorKind::StorageFull.into();
        shared.checkpoint_failed(&StoreError::Io { file: "run".into(), source });
        assert!(shared.flusher.is_set(), "no other event wakes it: the batch is neither new nor full");
        shared.machine.seal();
    });
    assert_refused(answer);
}

#[test]
fn a_batch_that_waits_for_pre_images_to_be_collected_continues_after_the_next_slice_of_the_checkpoint() {
    const COUNTERS: usize = 3 * CAPTURE_SLICE;
    let dir = tempfile::tempdir().unwrap();
    let disk = BreakingDisk::new(RealDisk::new(dir.path()).unwrap());
    let settings = Settings { memory_bytes: 8 << 20, segment_bytes: 4 << 20, ..Settings::default() };
    let machine = Machine::open(disk.clone(), Arc::new(StandingClock), settings, &mut |_, _| {}).unwrap();
    let shared = Arc::new(Shared::new(machine, None));
    // Adds to 512 counters, and seals.
    let add = |shared: &Shared, first: usize| {
        let mut events = shared.machine.events();
        for number in first..first + 512 {
            events.add(KeyRef::new(format!("{number:0>64}").as_bytes()).unwrap(), 1);
        }
        shared.machine.submit_detached(events).unwrap().unwrap();
        shared.machine.seal()
    };
    for first in (0..COUNTERS).step_by(512) {
        assert_eq!(add(&shared, first), Seal::Applied);
        shared.machine.flush().unwrap();
        shared.machine.maintain_journal();
    }
    let (during_first, during_second) = (Arc::clone(&shared), Arc::clone(&shared));
    let first_run = move || {
        // The last counters have not been copied yet.
        let waits = (0..COUNTERS).step_by(512).rev().any(|first| add(&during_first, first) == Seal::NeedsSlice);
        assert!(waits && !during_first.flusher.is_set());
    };
    let second_run = move || {
        assert!(during_second.flusher.is_set(), "no other event wakes it: the batch is neither new nor full");
        assert_eq!(during_second.machine.seal(), Seal::Applied);
    };
    lock(&disk.breaks.on_run_created).extend([Box::new(first_run) as Box<dyn FnOnce() + Send>, Box::new(second_run)]);
    // It has to be durable before the checkpoint can be committed.
    shared.machine.flush().unwrap();
    shared.checkpoint();
    assert!(lock(&disk.breaks.on_run_created).is_empty(), "the checkpoint wrote two runs");
}
