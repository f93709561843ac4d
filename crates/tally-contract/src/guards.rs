//! Guards: changes that are applied only if counters are as they were read. A tag keeps their keys in one partition.

use std::thread;

use tally_core::batch::Events;
use tally_core::consistency::Consistency;
use tally_core::event::{Change, Field, RequestId, VERSION_ABSENT};
use tally_core::key::KeyRef;
use tally_core::outcome::{Outcome, Refusal};
use tally_core::surface::{Engine, ReadOptions};

use crate::{Failure, Host, Running, Verdict, block_on};

/// The version of a counter, read as an optimistic client does.
fn version<H: Host>(running: &Running<'_, H>, key: &str) -> Result<i64, Failure>
where
    H::Engine: Engine,
{
    Ok(read(running, key, Field::Version)?.value)
}

fn read<H: Host>(running: &Running<'_, H>, key: &str, field: Field) -> Result<Outcome, Failure>
where
    H::Engine: Engine,
{
    let engine = running.engine();
    let mut events = engine.events();
    events.push(KeyRef::new(key.as_bytes())?, Change::Read(field), None, None);
    let reads = block_on(engine.read_events(events, ReadOptions::new(Consistency::Exact)))?;
    reads.receipt.outcomes.first().copied().ok_or_else(|| "no outcome".into())
}

/// Submits changes behind guards, and returns the outcomes of both.
fn guarded<H: Host>(
    running: &Running<'_, H>,
    guards: &[(&str, i64)],
    fill: impl FnOnce(&mut Events),
) -> Result<Vec<Outcome>, Failure>
where
    H::Engine: Engine,
{
    let keys: Result<Vec<_>, _> =
        guards.iter().map(|(key, version)| Ok((KeyRef::new(key.as_bytes())?, *version))).collect();
    let keys = keys.map_err(|error: tally_core::key::KeyError| error.to_string())?;
    let mut events = running.engine().events();
    events.group_if(&keys, fill);
    Ok(block_on(running.engine().submit(events, running.submit_options()))?.outcomes)
}

fn is_refused(outcome: &Outcome) -> bool {
    outcome.refusal == Some(Refusal::NotExpected)
}

/// Also across a restart: versions are a part of the state.
pub fn a_guard_holds_as_long_as_its_counter_does_not_change<H: Host>(host: &H) -> Verdict
where
    H::Engine: Engine,
{
    let running = Running::fresh(host)?;
    assert_eq!(version(&running, "n")?, VERSION_ABSENT);
    running.add("n", 5)?;
    running.call().add("other", 1).expire_after("n", 3_600_000).send()?;
    let seen = version(&running, "n")?;
    running.add("other", 1)?;
    assert_eq!(version(&running, "n")?, seen, "another counter has changed");
    let running = running.restart()?;
    let n = KeyRef::new(b"n")?;
    let guards = [("n", seen), ("{n}one", VERSION_ABSENT)];
    let outcomes = guarded(&running, &guards, |events| events.add(n, 1))?;
    assert_eq!((outcomes.iter().any(is_refused), outcomes[2].value), (false, 6));
    assert_ne!(version(&running, "n")?, seen);
    Ok(())
}

/// Reads behind the guard are still answered, and a refused change does not use up its request id.
pub fn a_guard_refuses_everything_behind_it_after_any_change<H: Host>(host: &H) -> Verdict
where
    H::Engine: Engine,
{
    let running = Running::fresh(host)?;
    let n = KeyRef::new(b"n")?;
    let id = RequestId::new(n, b"guarded")?;
    let add = |events: &mut Events| events.push(n, Change::Add(100), Some(id), None);
    running.add("n", 5)?;
    let mut seen = version(&running, "n")?;
    let changes = [
        running.call().add("n", 1).add("n", -1),
        running.call().set("n", 6).set("n", 5),
        running.call().expire_after("n", 3_600_000),
        running.call().delete("n"),
        running.call().add("n", 5),
    ];
    for change in changes {
        change.send()?;
        let outcomes = guarded(&running, &[("n", seen), ("{n}one", VERSION_ABSENT)], |events| {
            add(events);
            events.push(n, Change::Read(Field::Value), None, None);
        })?;
        assert_eq!(outcomes.iter().map(is_refused).collect::<Vec<_>>(), [true, true, true, false]);
        assert_eq!(outcomes[3].value, running.value("n")?);
        seen = version(&running, "n")?;
    }
    assert_eq!(running.value("n")?, 5);
    let outcomes = guarded(&running, &[("n", seen)], add)?;
    assert_eq!((outcomes[1].value, outcomes[1].is_duplicate()), (105, false));
    Ok(())
}

/// Each caller reads, and writes what it read plus one behind a guard. No write is based on a stale value.
pub fn no_update_behind_a_guard_is_lost<H: Host>(host: &H) -> Verdict
where
    H::Engine: Engine,
{
    const THREADS: i64 = 3;
    const ROUNDS: i64 = 20;
    let running = Running::fresh(host)?;
    let update = || -> Verdict {
        let n = KeyRef::new(b"n")?;
        let mut done = 0;
        while done < ROUNDS {
            let seen = version(&running, "n")?;
            let value = read(&running, "n", Field::Value)?.value;
            let why = tally_core::event::Correction::new("contract", "update")?;
            let (when, expiry) = (tally_core::event::Condition::Always, tally_core::event::Expiry::Keep);
            let set = Change::Set { value: value + 1, when, expiry, why };
            let outcomes = guarded(&running, &[("n", seen)], |events| events.push(n, set, None, None))?;
            done += i64::from(!is_refused(&outcomes[0]));
        }
        Ok(())
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(update)).collect();
        threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| "a thread panicked")?)
    })?;
    assert_eq!(running.value("n")?, THREADS * ROUNDS);
    Ok(())
}
