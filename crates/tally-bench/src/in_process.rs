//! Loads an engine in this process: each thread keeps several calls in flight.

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

use crate::BenchError;
use crate::timer::Timer;

/// The keys and request ids of the events.
#[derive(Clone, Copy, Debug)]
pub enum EventPattern {
    /// One key.
    Hot,
    /// Uniformly random keys out of this many.
    Random(u64),
    /// The same, with a distinct request id per event.
    Ids(u64),
}

/// Events per call.
pub const CALL_EVENTS: usize = 500;
/// Calls each thread keeps in flight.
pub const CALLS_IN_FLIGHT: usize = 16;
/// Threads that submit.
pub const THREADS: u64 = 2;

/// Writes a 20-byte key. Cheap, so that the benchmark measures the engine.
pub fn key_of(number: u64, key: &mut [u8; 20]) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    key[..10].copy_from_slice(b"bench:0000");
    for (place, digit) in key[10..].iter_mut().rev().enumerate() {
        *digit = DIGITS[(number >> (4 * place)) as usize & 15];
    }
}

/// Events per second over `seconds`, each acknowledged after its flush.
pub fn throughput(engine: &Embedded, work: EventPattern, seconds: f64, seed: u64) -> Result<f64, BenchError> {
    let stop = AtomicBool::new(false);
    let done = AtomicU64::new(0);
    let timer = Timer::start();
    thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (stop, done) = (&stop, &done);
                scope.spawn(move || submit_until(engine, work, seed * THREADS + thread, stop, done))
            })
            .collect();
        while timer.seconds() < seconds && !threads.iter().any(thread::ScopedJoinHandle::is_finished) {
            thread::park_timeout(Duration::from_millis(10));
        }
        stop.store(true, Ordering::Relaxed);
        threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| BenchError::new(&"a thread panicked"))?)
    })?;
    Ok(done.load(Ordering::Relaxed) as f64 / timer.seconds())
}

type Call<'a> = Pin<Box<dyn Future<Output = Result<(), BenchError>> + Send + 'a>>;

fn submit_until(
    engine: &Embedded,
    work: EventPattern,
    seed: u64,
    stop: &AtomicBool,
    done: &AtomicU64,
) -> Result<(), BenchError> {
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
        // The first poll submits the call.
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
        let receipt = engine.submit(events, SubmitOptions::default()).await.map_err(|error| BenchError::new(&error))?;
        let refused = receipt.outcomes.iter().any(|outcome| outcome.refusal.is_some() || outcome.applied != 1);
        if refused { Err(BenchError::new(&"an increment was refused")) } else { Ok(()) }
    })
}

fn fill(engine: &Embedded, work: EventPattern, numbers: &mut Rng) -> Events {
    let mut events = engine.events();
    let mut key = [0; 20];
    for _ in 0..CALL_EVENTS {
        let number = match work {
            EventPattern::Hot => 0,
            EventPattern::Random(keys) | EventPattern::Ids(keys) => numbers.below(keys),
        };
        key_of(number, &mut key);
        let Ok(key) = KeyRef::new(&key) else { continue };
        match work {
            EventPattern::Hot | EventPattern::Random(_) => events.add(key, 1),
            EventPattern::Ids(_) => {
                let id = [numbers.next_u64().to_le_bytes(), numbers.next_u64().to_le_bytes()].concat();
                let id = RequestId::new(key, &id).ok();
                events.push(key, Change::Add(1), id, None);
            }
        }
    }
    events
}
