//! Stopping: new work is refused, accepted work is not lost.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;

use tally_core::consistency::Consistency;
use tally_core::event::Field;
use tally_core::surface::{Engine, EngineError, Health, SubmitOptions};

use crate::{Failure, Host, Running, Verdict, block_on};

/// Whether the engine accepts writes. A cluster engine is degraded until it has heard from its workers.
fn is_open(health: &Health) -> bool {
    matches!(health, Health::Ready | Health::Degraded { writes: true, .. })
}

/// A stopped engine reports that it is closing.
pub fn a_stopped_engine_refuses_writes<H: Host>(host: &H) -> Verdict
where
    H::Engine: Engine,
{
    let running = Running::fresh(host)?;
    assert!(is_open(&running.engine().health()));
    running.add("n", 1)?;
    running.stop()?;
    assert_eq!(running.engine().health(), Health::Closing);
    for consistency in Consistency::ALL {
        let events = running.call().add("n", 1).into_events()?;
        assert_eq!(
            block_on(running.engine().submit(events, SubmitOptions::new(consistency))),
            Err(EngineError::Closing)
        );
    }
    let running = running.start()?;
    assert!(is_open(&running.engine().health()));
    assert_eq!(running.value("n")?, 1);
    Ok(())
}

/// Callers submit until they are refused.
pub fn stopping_under_load_keeps_exactly_the_acknowledged_writes<H: Host>(host: &H) -> Verdict {
    let mut running = Running::fresh(host)?;
    let mut total = 0;
    for _ in 0..3 {
        let (began, begun) = mpsc::channel();
        let gave_up = AtomicBool::new(false);
        let counted: Result<Vec<i64>, Failure> = thread::scope(|scope| {
            let caller = |began: mpsc::Sender<()>| {
                let mut counted = 0;
                while !gave_up.load(Ordering::Relaxed) {
                    match running.call().add("n", 1).add("n", 2).submit()? {
                        Ok(_) => counted += 3,
                        Err(EngineError::Closing) => break,
                        Err(error) => return Err(error.into()),
                    }
                    let _ = began.send(());
                }
                Ok(counted)
            };
            let callers: Vec<_> =
                (0..6).map(|_| began.clone()).map(|began| scope.spawn(move || caller(began))).collect();
            let waited = (0..50).try_for_each(|_| begun.recv());
            let stopped = running.stop();
            gave_up.store(stopped.is_err() || waited.is_err(), Ordering::Relaxed);
            stopped?;
            callers.into_iter().map(|caller| caller.join().map_err(|_| "a caller panicked")?).collect()
        });
        total += counted?.iter().sum::<i64>();
        running = running.start()?;
        assert_eq!(running.value("n")?, total);
    }
    Ok(())
}

/// Reads are answered or refused, and stopping does not wait for a flush that no call needs.
pub fn stopping_during_reads_finishes<H: Host>(host: &H) -> Verdict {
    let mut running = Running::fresh(host)?;
    running.add("n", 7)?;
    for _ in 0..12 {
        let (began, begun) = mpsc::channel();
        thread::scope(|scope| -> Verdict {
            let reader = |began: mpsc::Sender<()>| -> Verdict {
                loop {
                    match running.call().read("n", Field::Value).submit()? {
                        Ok(receipt) => assert_eq!(receipt.outcomes[0].value, 7),
                        Err(EngineError::Closing) => return Ok(()),
                        Err(error) => return Err(error.into()),
                    }
                    let _ = began.send(());
                }
            };
            let readers: Vec<_> =
                (0..3).map(|_| began.clone()).map(|began| scope.spawn(move || reader(began))).collect();
            let waited = (0..20).try_for_each(|_| begun.recv());
            running.stop()?;
            waited?;
            readers.into_iter().try_for_each(|reader| reader.join().map_err(|_| "a reader panicked")?)
        })?;
        running = running.start()?;
    }
    Ok(())
}

/// Restarting works with or without writes in between.
pub fn an_engine_can_be_restarted_repeatedly<H: Host>(host: &H) -> Verdict {
    let mut running = Running::fresh(host)?;
    for round in 0..6 {
        running = running.restart()?;
        assert_eq!(running.value("n")?, round / 2);
        if round % 2 == 1 {
            running.add("n", 1)?;
        }
    }
    Ok(())
}
