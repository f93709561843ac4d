//! The ends of the range: a counter is a signed 64-bit integer and never wraps.

use std::thread;

use tally_core::outcome::{Outcome, Refusal};
use tally_core::reading::Stats;

use crate::{Ability, Failure, Host, Running, Verdict};

/// The outcome has the current value.
pub fn an_increment_that_overflows_is_refused_and_changes_nothing<H: Host>(host: &H) -> Verdict {
    let running = Running::fresh(host)?;
    for (key, edge, step) in [("up", i64::MAX, 1), ("down", i64::MIN, -1)] {
        assert_eq!(running.call().set(key, edge).one()?.value, edge);
        let statistics = || running.can(Ability::Statistics).then(|| running.stats(key)).transpose();
        let sums = |stats: &Stats| (stats.increments, stats.decrements, stats.max);
        let before = statistics()?;
        for delta in [step, step * 1000, step * i64::MAX] {
            let outcome = running.add(key, delta)?;
            assert_eq!((outcome.value, outcome.applied, outcome.refusal), (edge, 0, Some(Refusal::Overflow)));
            assert!(outcome.exists && !outcome.is_duplicate());
        }
        assert_eq!(statistics()?.as_ref().map(sums), before.as_ref().map(sums));
        assert_eq!(running.add(key, -step)?.value, edge - step);
    }
    Ok(())
}

fn fitted(outcomes: &[Outcome]) -> usize {
    outcomes.iter().filter(|outcome| outcome.refusal.is_none()).count()
}

fn near_the_edge<H: Host>(host: &H, edge: i64, step: i64) -> Verdict {
    let running = Running::fresh(host)?;
    running.call().set("n", edge - 300 * step).send()?;
    let outcomes = running.call().add("other", 1).add_times("n", step, 1000).add("other", 1).send()?;
    let of_n = &outcomes[1..=1000];
    assert_eq!(fitted(of_n), 300);
    for (place, outcome) in (1..).zip(of_n) {
        let expected = if place <= 300 { (edge - (300 - place) * step, step, None) } else { (edge, 0, OVERFLOW) };
        assert_eq!((outcome.value, outcome.applied, outcome.refusal), expected, "event {place}");
    }
    assert_eq!(running.value("n")?, edge);
    assert_eq!((outcomes[0].value, outcomes[1001].value, running.value("other")?), (1, 2, 2));
    Ok(())
}

const OVERFLOW: Option<Refusal> = Some(Refusal::Overflow);

/// Of a thousand increments the first three hundred fit.
pub fn combined_increments_are_applied_until_they_overflow<H: Host>(host: &H) -> Verdict {
    near_the_edge(host, i64::MAX, 1)
}

/// The same downwards.
pub fn combined_decrements_are_applied_until_they_overflow<H: Host>(host: &H) -> Verdict {
    near_the_edge(host, i64::MIN, -1)
}

/// As many as fit are applied, from any of the callers.
pub fn concurrent_increments_fill_the_range_exactly<H: Host>(host: &H) -> Verdict {
    let running = Running::fresh(host)?;
    running.call().set("n", i64::MAX - 100).send()?;
    let fit: Result<Vec<usize>, Failure> = thread::scope(|scope| {
        let callers: Vec<_> = (0..8).map(|_| scope.spawn(|| running.call().add_times("n", 1, 25).send())).collect();
        let outcomes = callers.into_iter().map(|caller| caller.join().map_err(|_| "a caller panicked")?);
        outcomes.map(|outcomes| outcomes.map(|outcomes| fitted(&outcomes))).collect()
    });
    assert_eq!(fit?.iter().sum::<usize>(), 100);
    assert_eq!(running.value("n")?, i64::MAX);
    Ok(())
}

/// It says how many of them fit, even if the sum of the run exceeds 64 bits.
pub fn a_run_of_equal_increments_has_one_outcome<H: Host>(host: &H) -> Verdict {
    let running = Running::fresh(host)?;
    for (edge, step) in [(i64::MAX, 1), (i64::MIN, -1)] {
        running.call().set("n", edge - 300 * step).send()?;
        let call = running.call().add_together("n", step, 200).add("n", 0).add_together("n", step, 1000);
        let [fits, zero, over] = call.send()?[..] else { return Err("an outcome for each run".into()) };
        assert_eq!((fits.value, fits.applied_times(step, 200), fits.refusal), (edge - 100 * step, 200, None));
        assert_eq!(zero.value, edge - 100 * step);
        assert_eq!((over.value, over.applied_times(step, 1000), over.refusal), (edge, 100, OVERFLOW));
    }
    running.call().set("n", i64::MIN).send()?;
    let across = running.call().add_together("n", i64::MAX, 1000).one()?;
    assert_eq!((across.value, across.applied_times(i64::MAX, 1000)), (i64::MAX - 1, 2));
    assert_eq!(running.value("n")?, i64::MAX - 1);
    Ok(())
}

/// As many as fit are applied, from any of the callers.
pub fn concurrent_runs_fill_the_range_exactly<H: Host>(host: &H) -> Verdict {
    let running = Running::fresh(host)?;
    running.call().set("n", i64::MIN + 300).send()?;
    let fit: Result<Vec<u32>, Failure> = thread::scope(|scope| {
        let run = || running.call().add_together("n", -3, 25).one().map(|outcome| outcome.applied_times(-3, 25));
        let callers: Vec<_> = (0..8).map(|_| scope.spawn(run)).collect();
        callers.into_iter().map(|caller| caller.join().map_err(|_| "a caller panicked")?).collect()
    });
    assert_eq!(fit?.iter().sum::<u32>(), 100);
    assert_eq!(running.value("n")?, i64::MIN);
    Ok(())
}

/// Those that overflow are refused; the others are applied in order.
pub fn events_stay_in_order_when_combined_increments_overflow<H: Host>(host: &H) -> Verdict {
    let running = Running::fresh(host)?;
    running.call().set("n", i64::MAX - 2).send()?;
    let call =
        running.call().add_times("n", 1, 4).add("n", -10).add("n", 3).set("n", 7).add_times("n", i64::MAX / 2, 3);
    let values: Vec<(i64, i64)> = call.send()?.iter().map(|outcome| (outcome.value, outcome.applied)).collect();
    let half = i64::MAX / 2;
    let (at, below) = (i64::MAX, i64::MAX - 10);
    let expected = [
        (at - 1, 1),
        (at, 1),
        (at, 0),
        (at, 0),
        (below, -10),
        (below + 3, 3),
        (7, 7i64.saturating_sub(below + 3)),
        (7 + half, half),
        (7 + half, 0),
        (7 + half, 0),
    ];
    assert_eq!(values, expected);
    assert_eq!(running.value("n")?, 7 + half);
    Ok(())
}

/// From one end to the other and back, repeatedly: the internal sums exceed 64 bits.
pub fn the_whole_range_can_be_crossed<H: Host>(host: &H) -> Verdict {
    let running = Running::fresh(host)?;
    for _ in 0..10 {
        assert_eq!(running.call().set("n", i64::MIN).one()?.value, i64::MIN);
        assert_eq!(running.call().add("n", i64::MAX).one()?.value, -1);
        assert_eq!(running.call().add("n", i64::MAX).one()?.value, i64::MAX - 1);
        assert_eq!(running.call().set("n", i64::MAX).one()?.value, i64::MAX);
    }
    let running = running.restart()?;
    assert_eq!(running.value("n")?, i64::MAX);
    if running.can(Ability::Statistics) {
        let stats = running.stats("n")?;
        assert_eq!((stats.min, stats.max), (i64::MIN, i64::MAX));
    }
    Ok(())
}
