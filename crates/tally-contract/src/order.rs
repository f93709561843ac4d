//! Order: the events of one submission happen one after the other, each on its own merits.

use tally_core::outcome::Refusal;

use crate::{Host, Running, Verdict};

/// Increments and corrections of one key in one submission take effect in the order given.
pub fn changes_of_one_submission_happen_in_order<H: Host>(host: &H) -> Verdict {
    let running = Running::fresh(host)?;
    let call = running.call().add("n", 5).set("n", 100).add("n", 1).adjust("n", -50).add("n", 2).reset("n").add("n", 9);
    let values: Vec<i64> = call.send()?.iter().map(|outcome| outcome.value).collect();
    assert_eq!(values, [5, 100, 101, 51, 53, 0, 9]);
    assert_eq!(running.value("n")?, 9);
    Ok(())
}

/// Deleting ends a counter's life; the next increment begins another.
pub fn a_counter_deleted_and_counted_again_starts_from_zero<H: Host>(host: &H) -> Verdict {
    let mut running = Running::fresh(host)?;
    for _ in 0..3 {
        let call = running.call().add("n", 5).delete("n").add("n", 2).add("gone", 1).delete("gone");
        let outcomes = call.send()?;
        let seen: Vec<(i64, i64, bool)> = outcomes.iter().map(|o| (o.value, o.applied, o.exists)).collect();
        assert!(seen[0].2);
        assert_eq!(seen[1..], [(0, -seen[0].0, false), (2, 2, true), (1, 1, true), (0, -1, false)]);
        let stats = running.stats("n")?;
        assert_eq!((stats.reading.value, stats.increments, stats.max), (2, 2, 2), "nothing of its earlier life");
        assert!(!running.read("gone")?.exists);
        running = running.restart()?;
        assert_eq!(running.value("n")?, 2);
        assert!(!running.read("gone")?.exists);
    }
    Ok(())
}

/// Of a submission some events may be refused; the others are applied as if those had not been there.
pub fn a_refused_event_leaves_the_others_alone<H: Host>(host: &H) -> Verdict {
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

/// Combining may join increments only where nothing else happens to the counter in between.
pub fn increments_around_a_correction_are_not_moved_across_it<H: Host>(host: &H) -> Verdict {
    let running = Running::fresh(host)?;
    for round in 0..40 {
        // Other keys between push the counter out of any list of recent ones.
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
