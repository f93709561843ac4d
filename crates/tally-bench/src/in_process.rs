//! The engine in this process: threads that submit calls of events and keep several calls in flight.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Poll;
use std::thread;
use std::time::Duration;

use tally_contract::block_on;
use tally_core::batch::Events;
use tally_core::event::{Change, RequestId};
use tally_core::key::KeyRef;
use tally_core::surface::{Engine, SubmitOptions};
use tally_engine::Embedded;
use tally_sim::Rng;

use crate::Failure;
use crate::stopwatch::Stopwatch;

/// What the events of a run look like.
#[derive(Clone, Copy, Debug)]
pub enum Work {
    /// One key.
    Hot,
    /// Keys drawn evenly from this many.
    Random(u64),
    /// As above, each event with a request id of its own.
    Ids(u64),
}

/// Events per call.
pub const CALL_EVENTS: usize = 500;
/// Calls each thread keeps in flight.
pub const CALLS_IN_FLIGHT: usize = 16;
/// Threads that submit.
pub const THREADS: u64 = 2;

/// A 20-byte key. Cheap to make, so that the benchmark measures the engine.
pub fn key_of(number: u64, key: &mut [u8; 20]) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    key[..10].copy_from_slice(b"bench:0000");
    for (place, digit) in key[10..].iter_mut().rev().enumerate() {
        *digit = DIGITS[(number >> (4 * place)) as usize & 15];
    }
}

/// Events per second over `seconds`, every one acknowledged after its flush.
pub fn throughput(engine: &Embedded, work: Work, seconds: f64, seed: u64) -> Result<f64, Failure> {
    let stop = AtomicBool::new(false);
    let done = AtomicU64::new(0);
    let watch = Stopwatch::start();
    thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (stop, done) = (&stop, &done);
                scope.spawn(move || submit_until(engine, work, seed * THREADS + thread, stop, done))
            })
            .collect();
        while watch.seconds() < seconds && !threads.iter().any(thread::ScopedJoinHandle::is_finished) {
            thread::park_timeout(Duration::from_millis(10));
        }
        stop.store(true, Ordering::Relaxed);
        threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| Failure::new(&"a thread panicked"))?)
    })?;
    Ok(done.load(Ordering::Relaxed) as f64 / watch.seconds())
}

type Call<'a> = Pin<Box<dyn Future<Output = Result<(), Failure>> + Send + 'a>>;

fn submit_until(engine: &Embedded, work: Work, seed: u64, stop: &AtomicBool, done: &AtomicU64) -> Result<(), Failure> {
    let mut numbers = Rng::new(seed);
    let mut in_flight: VecDeque<Call<'_>> = VecDeque::new();
    while !stop.load(Ordering::Relaxed) {
        if in_flight.len() == CALLS_IN_FLIGHT
            && let Some(oldest) = in_flight.pop_front()
        {
            block_on(oldest)?;
            done.fetch_add(CALL_EVENTS as u64, Ordering::Relaxed);
        }
        let mut call = submit(engine, fill(engine, work, &mut numbers));
        // The first poll submits; from then on the call waits in the queue.
        match block_on(poll_fn(|context| Poll::Ready(call.as_mut().poll(context)))) {
            Poll::Pending => in_flight.push_back(call),
            Poll::Ready(result) => {
                result?;
                done.fetch_add(CALL_EVENTS as u64, Ordering::Relaxed);
            }
        }
    }
    for call in in_flight {
        block_on(call)?;
        done.fetch_add(CALL_EVENTS as u64, Ordering::Relaxed);
    }
    Ok(())
}

fn submit(engine: &Embedded, events: Events) -> Call<'_> {
    Box::pin(async move {
        let receipt = engine.submit(events, SubmitOptions::default()).await.map_err(|error| Failure::new(&error))?;
        let refused = receipt.outcomes.iter().any(|outcome| outcome.refusal.is_some() || outcome.applied != 1);
        if refused { Err(Failure::new(&"an increment was refused")) } else { Ok(()) }
    })
}

fn fill(engine: &Embedded, work: Work, numbers: &mut Rng) -> Events {
    let mut events = engine.events();
    let mut key = [0; 20];
    for _ in 0..CALL_EVENTS {
        let number = match work {
            Work::Hot => 0,
            Work::Random(keys) | Work::Ids(keys) => numbers.below(keys),
        };
        key_of(number, &mut key);
        let Ok(key) = KeyRef::new(&key) else { continue };
        match work {
            Work::Hot | Work::Random(_) => events.add(key, 1),
            Work::Ids(_) => {
                let id = [numbers.next_u64().to_le_bytes(), numbers.next_u64().to_le_bytes()].concat();
                let id = RequestId::new(key, &id).ok();
                events.push(key, Change::Add(1), id, None);
            }
        }
    }
    events
}
