//! Reads within submissions, and groups.

use std::thread;

use tally_core::event::{Change, Condition, Expiry, Field};
use tally_core::outcome::Outcome;

use crate::{Ability, Host, Running, Verdict};

fn values(outcomes: &[Outcome]) -> Vec<(i64, i64, bool)> {
    outcomes.iter().map(|outcome| (outcome.value, outcome.applied, outcome.exists)).collect()
}

/// This holds anywhere in a submission.
pub fn a_read_sees_the_events_before_it_and_not_those_after_it<H: Host>(host: &H) -> Verdict {
    let running = Running::fresh(host)?;
    let call = running.call().read("n", Field::Value).add("n", 1).add("n", 1).read("n", Field::Value).add("n", 1);
    let call = call.read("n", Field::Value).read("n", Field::Expiry).delete("n").read("n", Field::Value).add("n", 9);
    let expected = [
        (0, 0, false),
        (1, 1, true),
        (2, 1, true),
        (2, 0, true),
        (3, 1, true),
        (3, 0, true),
        (-1, 0, true),
        (0, -3, false),
        (0, 0, false),
        (9, 9, true),
    ];
    assert_eq!(values(&call.send()?), expected);
    Ok(())
}

/// It creates no counter, and its id can be used by another request.
pub fn a_read_changes_nothing_and_ignores_its_request_id<H: Host>(host: &H) -> Verdict {
    let running = Running::fresh(host)?;
    let read = |id| running.event("n", Change::Read(Field::Value), id, None);
    assert_eq!(values(&[read(Some("id"))?]), [(0, 0, false)]);
    assert!(!running.read("n")?.exists);
    assert!(!running.can(Ability::Count) || running.count()? == 0);
    assert_eq!(running.add_once("id", "n", 4)?.value, 4, "the id is free");
    let again = read(Some("id"))?;
    assert_eq!((again.value, again.is_duplicate(), again.refusal), (4, false, None));
    if running.can(Ability::AnyConsistency) {
        assert_eq!(running.call().best_effort().read("n", Field::Value).one()?.value, 4);
    }
    Ok(())
}

/// A refusal within a group affects one event only.
pub fn every_event_of_a_group_gets_its_own_outcome<H: Host>(host: &H) -> Verdict {
    let running = Running::fresh(host)?;
    let call = running.call().add("n", 1).group(|call| call).add("n", 1);
    let call = call.group(|call| {
        let call = call.add("n", 1).add("n", 1).set_when("n", 5, Condition::Absent, Expiry::Keep);
        call.read("n", Field::Value)
    });
    let call = call.add("n", 1);
    let outcomes = call.send()?;
    let expected = [(1, 1, true), (2, 1, true), (3, 1, true), (4, 1, true), (4, 0, true), (4, 0, true), (5, 1, true)];
    assert_eq!(values(&outcomes), expected);
    assert_eq!(outcomes.iter().filter(|outcome| outcome.refusal.is_some()).count(), 1);
    Ok(())
}

/// This holds even if other threads change the same counters.
pub fn no_event_comes_between_the_events_of_a_group<H: Host>(host: &H) -> Verdict {
    const THREADS: usize = 4;
    const ROUNDS: usize = 60;
    let running = Running::fresh(host)?;
    let moves = || -> Verdict {
        for _ in 0..ROUNDS {
            // Moves one from here to there and reads both: their sum is always zero.
            let call = running.call().add("noise", 1);
            let call = call.group(|call| {
                call.add("here", -1).add("there", 1).read("here", Field::Value).read("there", Field::Value)
            });
            let outcomes = call.send()?;
            assert_eq!(outcomes[1].value, outcomes[3].value);
            assert_eq!(outcomes[2].value, outcomes[4].value);
            assert_eq!(outcomes[3].value + outcomes[4].value, 0);
        }
        Ok(())
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(moves)).collect();
        threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| "a thread panicked")?)
    })?;
    assert_eq!(running.value("there")?, (THREADS * ROUNDS) as i64);
    Ok(())
}

/// Combined increments before the group are resolved before its first event.
pub fn a_group_stays_together_when_an_earlier_increment_overflows<H: Host>(host: &H) -> Verdict {
    let running = Running::fresh(host)?;
    running.call().set("full", i64::MAX - 1).one()?;
    let call = running.call().add_times("full", 1, 3).group(|call| {
        call.add("other", 1).read("full", Field::Value).read("other", Field::Value).add("other", 1).add("full", -5)
    });
    let outcomes = call.add("other", 10).read("full", Field::Value).send()?;
    let full = i64::MAX;
    let expected = [
        (full, 1, true),
        (full, 0, true),
        (full, 0, true),
        (1, 1, true),
        (full, 0, true),
        (1, 0, true),
        (2, 1, true),
        (full - 5, -5, true),
        (12, 10, true),
        (full - 5, 0, true),
    ];
    assert_eq!(values(&outcomes), expected);
    Ok(())
}
