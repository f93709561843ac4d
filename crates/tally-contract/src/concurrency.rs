//! Concurrent callers.

use std::pin::Pin;
use std::sync::atomic::{AtomicI64, Ordering};
use std::task::{Context, Waker};
use std::thread;

use tally_core::outcome::Receipt;
use tally_core::surface::{Engine, EngineError};

use crate::{Ability, Failure, Host, Running, Verdict, block_on};

const THREADS: u64 = 8;

/// Runs a caller on each of several threads and returns their results.
fn hammer<T: Send>(caller: impl Fn(u64) -> Result<T, Failure> + Sync) -> Result<Vec<T>, Failure> {
    thread::scope(|scope| {
        let caller = &caller;
        let callers: Vec<_> = (0..THREADS).map(|number| scope.spawn(move || caller(number))).collect();
        callers.into_iter().map(|caller| caller.join().map_err(|_| "a caller panicked")?).collect()
    })
}

/// Pseudo-random numbers, the same for every engine.
fn dice(seed: u64) -> impl FnMut(u64) -> u64 {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    move |bound| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % bound
    }
}

/// Every value on the way is returned exactly once.
pub fn a_hot_counter_hammered_by_many_threads_is_exact<H: Host>(host: &H) -> Verdict {
    let running = Running::fresh(host)?;
    let values = hammer(|_| {
        let mut values = Vec::new();
        for round in 1..=40 {
            values.extend(running.call().add_times("hot", 1, round).send()?.iter().map(|outcome| outcome.value));
        }
        assert!(values.is_sorted(), "the values of one caller never go back");
        Ok(values)
    })?;
    let mut values = values.concat();
    values.sort_unstable();
    let total = THREADS as i64 * 820;
    assert_eq!(values, (1..=total).collect::<Vec<_>>());
    assert_eq!(running.value("hot")?, total);
    if running.can(Ability::Restart) {
        assert_eq!(running.restart()?.value("hot")?, total);
    }
    Ok(())
}

/// Threads add random amounts in submissions of random size.
pub fn random_counters_hammered_by_many_threads_are_exact<H: Host>(host: &H) -> Verdict {
    let running = Running::fresh(host)?;
    const KEYS: u64 = 500;
    let sums: Vec<AtomicI64> = (0..KEYS).map(|_| AtomicI64::new(0)).collect();
    hammer(|number| {
        let mut dice = dice(number + 1);
        for _ in 0..60 {
            let mut call = running.call();
            for _ in 0..=dice(50) {
                let (key, delta) = (dice(KEYS), if dice(2) == 0 { 1 } else { -1 } * (1 + dice(1000) as i64));
                call = call.add(format!("k:{key}"), delta);
                sums[key as usize].fetch_add(delta, Ordering::Relaxed);
            }
            if dice(4) == 0 && running.can(Ability::AnyConsistency) {
                call.best_effort().send()?
            } else {
                call.send()?
            };
        }
        Ok(())
    })?;
    let running = if running.can(Ability::Restart) { running.restart()? } else { running };
    for (key, sum) in sums.iter().enumerate() {
        assert_eq!(running.value(format!("k:{key}"))?, sum.load(Ordering::Relaxed), "k:{key}");
    }
    Ok(())
}

/// They are applied in the order in which they were first polled.
pub fn outstanding_submissions_of_one_thread_all_resolve<H: Host>(host: &H) -> Verdict
where
    H::Engine: Engine,
{
    let running = Running::fresh(host)?;
    let engine = running.engine();
    type Submission<'a> = Pin<Box<dyn Future<Output = Result<Receipt, EngineError>> + Send + 'a>>;
    let mut outstanding: Vec<Submission<'_>> = Vec::new();
    for _ in 0..200 {
        let events = running.call().add("n", 1).into_events()?;
        let mut submission: Submission<'_> = Box::pin(engine.submit(events, running.submit_options()));
        let mut context = Context::from_waker(Waker::noop());
        match submission.as_mut().poll(&mut context) {
            std::task::Poll::Ready(receipt) => outstanding.push(Box::pin(std::future::ready(receipt))),
            std::task::Poll::Pending => outstanding.push(submission),
        }
    }
    for (value, submission) in (1..).zip(outstanding) {
        assert_eq!(block_on(submission)?.outcomes[0].value, value);
    }
    assert_eq!(running.value("n")?, 200);
    Ok(())
}

/// A submission that was polled once is applied.
pub fn dropping_a_submission_does_not_cancel_it<H: Host>(host: &H) -> Verdict
where
    H::Engine: Engine,
{
    let running = Running::fresh(host)?;
    for _ in 0..50 {
        let events = running.call().add("n", 1).into_events()?;
        let mut submission = Box::pin(running.engine().submit(events, running.submit_options()));
        let _ = submission.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        drop(submission);
    }
    assert_eq!(running.add("n", 1)?.value, 51);
    let running = running.restart()?;
    assert_eq!(running.value("n")?, 51);
    Ok(())
}

/// A read that starts after an acknowledgement sees the write, on any thread.
pub fn acknowledged_writes_are_visible_to_every_thread<H: Host>(host: &H) -> Verdict {
    let running = Running::fresh(host)?;
    let acknowledged = AtomicI64::new(0);
    hammer(|number| {
        for _ in 0..100 {
            if number % 2 == 0 {
                running.add("n", 1)?;
                acknowledged.fetch_add(1, Ordering::SeqCst);
            } else {
                let before = acknowledged.load(Ordering::SeqCst);
                let read = running.value("n")?;
                assert!(read >= before, "{before} were acknowledged before a read that saw {read}");
            }
        }
        Ok(())
    })?;
    assert_eq!(running.value("n")?, acknowledged.load(Ordering::SeqCst));
    Ok(())
}

/// This holds for outcomes, readings and listings.
pub fn reads_of_a_growing_counter_never_go_back<H: Host>(host: &H) -> Verdict {
    let running = Running::fresh(host)?;
    hammer(|number| {
        let mut last = 0;
        for _ in 0..60 {
            let value = match number % 4 {
                0 | 1 => running.add("n", 1)?.value,
                3 if running.can(Ability::FreshListing) => {
                    running.list(b"n", 10)?.first().map_or(0, |(_, reading)| reading.value)
                }
                _ => running.value("n")?,
            };
            assert!(value >= last, "{value} after {last}");
            last = value;
        }
        Ok(())
    })?;
    assert_eq!(running.value("n")?, THREADS as i64 / 2 * 60);
    Ok(())
}
