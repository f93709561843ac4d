//! Order: the events of one submission are applied one after another, and each succeeds or is refused on its own.

use tally_core::outcome::Refusal;

use crate::{Ability, Host, Running, Verdict};

/// This holds for increments and corrections of one key.
pub fn events_of_a_submission_are_applied_in_order<H: Host>(host: &H) -> Verdict {
    let running = Running::fresh(host)?;
    let call = running.call().add("n", 5).set("n", 100).add("n", 1).adjust("n", -50).add("n", 2).reset("n").add("n", 9);
    let values: Vec<i64> = call.send()?.iter().map(|outcome| outcome.value).collect();
    assert_eq!(values, [5, 100, 101, 51, 53, 0, 9]);
    assert_eq!(running.value("n")?, 9);
    Ok(())
}

/// Nothing of the deleted counter comes back, within a submission or after a restart.
pub fn a_counter_recreated_after_deletion_starts_from_zero<H: Host>(host: &H) -> Verdict {
    let mut running = Running::fresh(host)?;
    for _ in 0..3 {
        let call = running.call().add("n", 5).delete("n").add("n", 2).add("gone", 1).delete("gone");
        let outcomes = call.send()?;
        let seen: Vec<(i64, i64, bool)> = outcomes.iter().map(|o| (o.value, o.applied, o.exists)).collect();
        assert!(seen[0].2);
        assert_eq!(seen[1..], [(0, -seen[0].0, false), (2, 2, true), (1, 1, true), (0, -1, false)]);
        if running.can(Ability::Statistics) {
            let stats = running.stats("n")?;
            let figures = (stats.reading.value, stats.increments, stats.max);
            assert_eq!(figures, (2, 2, 2), "nothing is left of the deleted counter");
        }
        assert!(!running.read("gone")?.exists);
        running = running.restart()?;
        assert_eq!(running.value("n")?, 2);
        assert!(!running.read("gone")?.exists);
    }
    Ok(())
}

/// The others are applied as if the refused ones had not been submitted.
pub fn a_refused_event_does_not_affect_the_others<H: Host>(host: &H) -> Verdict {
    let running = Running::fresh(host)?;
    running.call().set("full", i64::MAX).add_once("r", "ns:a", 1).send()?;
    let call = running
        .call()
        .add("n", 1)
        .add("full", 1)
        .add("n", 1)
        .swap("n", 77, 0)
        .add("n", 1)
        .add_once("r", "ns:a", 2)
        .adjust("full", 1)
        .add("n", 1);
    let outcomes = call.send()?;
    let refusals: Vec<_> = outcomes.iter().map(|outcome| outcome.refusal).collect();
    let (over, not, mismatch) = (Refusal::Overflow, Refusal::NotExpected, Refusal::PayloadMismatch);
    assert_eq!(refusals, [None, Some(over), None, Some(not), None, Some(mismatch), Some(over), None]);
    let of_n: Vec<i64> = [0, 2, 3, 4, 7].iter().map(|&place: &usize| outcomes[place].value).collect();
    assert_eq!(of_n, [1, 2, 2, 3, 4]);
    assert_eq!((running.value("n")?, running.value("full")?, running.value("ns:a")?), (4, i64::MAX, 1));
    Ok(())
}

/// Increments may be combined only if no other event of the counter is between them.
pub fn increments_are_not_combined_across_a_correction<H: Host>(host: &H) -> Verdict {
    let running = Running::fresh(host)?;
    for round in 0..40 {
        // Other keys in between, to evict the counter from any cache of recent ones.
        let mut call = running.call().add("n", 1);
        for other in 0..round * 5 {
            call = call.add(format!("other:{other}"), 1);
        }
        call = call.set("n", 10);
        for other in 0..round * 5 {
            call = call.add(format!("other:{other}"), 1);
        }
        let outcomes = call.add("n", 1).add_once(&format!("id {round}"), "n", 5).add("n", 1).send()?;
        let last: Vec<i64> = outcomes.iter().rev().take(3).map(|outcome| outcome.value).collect();
        assert_eq!(last, [17, 16, 11]);
    }
    Ok(())
}
