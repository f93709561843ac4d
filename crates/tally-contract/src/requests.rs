//! Request ids: repeating a request is safe.

use std::thread;

use tally_core::event::{Change, Condition, Correction, Expiry};
use tally_core::outcome::{Outcome, Refusal};

use crate::call::why;
use crate::{Failure, Host, Running, Verdict};

/// A repeat changes nothing, even if the counter has changed since.
pub fn a_repeat_returns_the_first_outcome<H: Host>(host: &H) -> Verdict {
    let running = Running::fresh(host)?;
    let first = running.add_once("id", "ns:n", 5)?;
    assert_eq!((first.value, first.applied, first.is_duplicate()), (5, 5, false));
    for moved in 1..=3 {
        running.add("ns:n", 100)?;
        let again = running.add_once("id", "ns:n", 5)?;
        assert_eq!(again, Outcome { duplicate: Some(true), ..first });
        assert_eq!(running.value("ns:n")?, 5 + 100 * moved);
    }
    running.call().delete("ns:n").send()?;
    assert_eq!(running.add_once("id", "ns:n", 5)?, Outcome { duplicate: Some(true), ..first });
    assert!(!running.read("ns:n")?.exists);
    Ok(())
}

/// Other increments of the same counter in between are counted.
pub fn a_repeat_within_one_submission_counts_once<H: Host>(host: &H) -> Verdict {
    let running = Running::fresh(host)?;
    let call = running.call().add("n", 1).add_once("id", "n", 5).add("n", 1).add_once("id", "n", 5).add("n", 1);
    let outcomes = call.send()?;
    assert_eq!(outcomes.iter().map(|outcome| outcome.value).collect::<Vec<_>>(), [1, 6, 7, 6, 8]);
    assert_eq!(
        outcomes.iter().map(|outcome| outcome.is_duplicate()).collect::<Vec<_>>(),
        [false, false, false, true, false]
    );
    assert_eq!(running.value("n")?, 8);
    Ok(())
}

/// A different delta, key or kind of change is a different payload. The keys share a tag, because with several
/// partitions, each knows only its own ids.
pub fn the_same_id_with_another_payload_is_refused<H: Host>(host: &H) -> Verdict {
    let running = Running::fresh(host)?;
    running.add_once("id", "ns:{x}a", 5)?;
    let set = Change::Set { value: 5, when: Condition::Always, expiry: Expiry::Keep, why: why("set") };
    let adjust = Change::Adjust { delta: 5, why: why("adjust") };
    for (key, change, expected) in
        [("ns:{x}a", Change::Add(6), 5), ("ns:{x}b", Change::Add(5), 0), ("ns:{x}a", set, 5), ("ns:{x}a", adjust, 5)]
    {
        let outcome = running.event(key, change, Some("id"), None)?;
        assert_eq!((outcome.value, outcome.applied, outcome.is_duplicate()), (expected, 0, false));
        assert_eq!(outcome.refusal, Some(Refusal::PayloadMismatch));
    }
    assert_eq!((running.value("ns:{x}a")?, running.read("ns:{x}b")?.exists), (5, false));
    // The id still belongs to the first request.
    assert!(running.add_once("id", "ns:{x}a", 5)?.is_duplicate());
    Ok(())
}

/// Ids are scoped to the namespace of the key.
pub fn the_same_id_in_another_namespace_is_another_request<H: Host>(host: &H) -> Verdict {
    let running = Running::fresh(host)?;
    for key in ["a:n", "b:n", "n", "ab:n"] {
        assert!(!running.add_once("id", key, 5)?.is_duplicate(), "{key}");
    }
    for key in ["a:n", "b:n", "n", "ab:n"] {
        assert!(running.add_once("id", key, 5)?.is_duplicate(), "{key}");
        assert_eq!(running.value(key)?, 5);
    }
    // All keys without a namespace share one.
    assert_eq!(running.add_once("id", "{n}other", 5)?.refusal, Some(Refusal::PayloadMismatch));
    Ok(())
}

/// Of sixty-four callers with the same request one is counted, and all get its outcome.
pub fn concurrent_repeats_count_once<H: Host>(host: &H) -> Verdict {
    let running = Running::fresh(host)?;
    running.add("n", 1000)?;
    let outcomes: Result<Vec<Outcome>, Failure> = thread::scope(|scope| {
        let callers: Vec<_> = (0..64).map(|_| scope.spawn(|| running.add_once("id", "n", 5))).collect();
        callers.into_iter().map(|caller| caller.join().map_err(|_| "a caller panicked")?).collect()
    });
    let outcomes = outcomes?;
    assert_eq!(outcomes.iter().filter(|outcome| !outcome.is_duplicate()).count(), 1);
    assert!(outcomes.iter().all(|outcome| (outcome.value, outcome.applied) == (1005, 5)));
    assert_eq!(running.value("n")?, 1005);
    Ok(())
}

/// Their first outcomes survive with them, over several restarts.
pub fn request_ids_survive_a_restart<H: Host>(host: &H) -> Verdict {
    let mut running = Running::fresh(host)?;
    let mut first = Vec::new();
    for round in 0..3 {
        for number in 1..=50 {
            first.push(running.add_once(&format!("{round}/{number}"), "n", number)?);
        }
        running = running.restart()?;
        let ids = (0..=round).flat_map(|round| (1..=50).map(move |number| (round, number)));
        let mut call = running.call();
        for (round, number) in ids {
            call = call.add_once(&format!("{round}/{number}"), "n", number);
        }
        for (outcome, first) in call.send()?.into_iter().zip(&first) {
            assert_eq!(outcome, Outcome { duplicate: Some(true), ..*first });
        }
        assert_eq!(running.value("n")?, 1275 * (round + 1));
        let mismatch = running.add_once("0/7", "n", 8)?;
        assert_eq!(mismatch.refusal, Some(Refusal::PayloadMismatch));
    }
    Ok(())
}

/// It is refused even if the request would succeed now.
pub fn a_repeat_of_a_refused_request_is_refused<H: Host>(host: &H) -> Verdict {
    let mut running = Running::fresh(host)?;
    running.call().set("n", i64::MAX).send()?;
    let swap = || Change::Set { value: 1, when: Condition::Equals(7), expiry: Expiry::Keep, why: why("swap") };
    let first = running.add_once("over", "n", 1)?;
    assert_eq!((first.refusal, first.value), (Some(Refusal::Overflow), i64::MAX));
    let unexpected = running.event("n", swap(), Some("swap"), None)?;
    assert_eq!(unexpected.refusal, Some(Refusal::NotExpected));
    running.call().set("n", 7).send()?;
    for _ in 0..2 {
        assert_eq!(running.add_once("over", "n", 1)?, Outcome { duplicate: Some(true), ..first });
        assert_eq!(running.event("n", swap(), Some("swap"), None)?, Outcome { duplicate: Some(true), ..unexpected });
        assert_eq!(running.value("n")?, 7);
        running = running.restart()?;
    }
    Ok(())
}

/// It changes the value once.
pub fn a_repeated_correction_writes_one_ledger_entry<H: Host>(host: &H) -> Verdict {
    let running = Running::fresh(host)?;
    let adjust = || Change::Adjust { delta: 5, why: why("stocktaking") };
    let delete = || Change::Delete(why("out of stock"));
    for repeat in 0..3 {
        let outcome = running.event("n", adjust(), Some("adjust"), None)?;
        assert_eq!((outcome.value, outcome.is_duplicate()), (5, repeat > 0));
    }
    running.event("n", delete(), Some("delete"), None)?;
    running.add("n", 3)?;
    let again = running.event("n", delete(), Some("delete"), None)?;
    assert_eq!((again.value, again.applied, again.exists, again.is_duplicate()), (0, -5, false, true));
    assert_eq!(running.value("n")?, 3);
    assert_eq!(running.ledger("n", 100)?.len(), 2);
    Ok(())
}

/// The actor is not part of the payload; the reason is.
pub fn a_retry_may_come_from_another_actor<H: Host>(host: &H) -> Verdict {
    let running = Running::fresh(host)?;
    let by = |actor: &str, reason: &str| Change::Adjust {
        delta: 5,
        why: Correction::new(actor, reason).unwrap_or_default(),
    };
    running.event("n", by("10.0.0.1", "found one"), Some("id"), None)?;
    assert!(running.event("n", by("10.0.0.2", "found one"), Some("id"), None)?.is_duplicate());
    let other = running.event("n", by("10.0.0.1", "lost one"), Some("id"), None)?;
    assert_eq!(other.refusal, Some(Refusal::PayloadMismatch));
    assert_eq!(running.value("n")?, 5);
    Ok(())
}
