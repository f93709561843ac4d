//! Corrections: set, reset, adjust and delete, and the ledger that records them.

use tally_core::event::{Change, Condition, Correction, Expiry};
use tally_core::ledger::CorrectionKind;
use tally_core::limits::REASON_BYTES_MAX;
use tally_core::outcome::Refusal;

use crate::{Ability, Host, Running, Verdict};

/// The counter need not exist, and the outcome has the difference.
pub fn a_set_replaces_the_value<H: Host>(host: &H) -> Verdict {
    let running = Running::fresh(host)?;
    let outcome = running.call().set("n", 40).one()?;
    assert_eq!((outcome.value, outcome.applied, outcome.exists), (40, 40, true));
    running.add("n", 2)?;
    let outcome = running.call().set("n", -1).one()?;
    assert_eq!((outcome.value, outcome.applied), (-1, -43));
    assert_eq!(running.value("n")?, -1);
    Ok(())
}

/// A counter that does not exist has the value zero.
pub fn compare_and_set_requires_the_expected_value<H: Host>(host: &H) -> Verdict {
    let running = Running::fresh(host)?;
    let refused = running.call().swap("n", 1, 5).one()?;
    assert_eq!((refused.value, refused.exists, refused.refusal), (0, false, Some(Refusal::NotExpected)));
    assert_eq!(running.call().swap("n", 0, 5).one()?.value, 5);
    let refused = running.call().swap("n", 4, 6).one()?;
    assert_eq!((refused.value, refused.applied, refused.refusal), (5, 0, Some(Refusal::NotExpected)));
    assert_eq!(running.call().swap("n", 5, 6).one()?.value, 6);
    assert_eq!(running.value("n")?, 6);
    assert_eq!(running.ledger("n", 10)?.len(), 2);
    Ok(())
}

/// A refused set changes nothing and is not recorded.
pub fn a_set_may_depend_on_whether_the_counter_exists<H: Host>(host: &H) -> Verdict {
    let running = Running::fresh(host)?;
    let set = |value, when| running.call().set_when("n", value, when, Expiry::Keep).one();
    let missing = set(1, Condition::Present)?;
    assert_eq!((missing.refusal, missing.exists), (Some(Refusal::NotExpected), false));
    assert_eq!(set(2, Condition::Absent)?.value, 2);
    let present = set(3, Condition::Absent)?;
    assert_eq!((present.refusal, present.value, present.applied), (Some(Refusal::NotExpected), 2, 0));
    assert_eq!(set(4, Condition::Present)?.applied, 2);
    assert_eq!(running.value("n")?, 4);
    assert!(!running.can(Ability::Ledger) || running.ledger("n", 10)?.len() == 2);
    Ok(())
}

/// The counter still exists.
pub fn a_reset_sets_the_value_to_zero<H: Host>(host: &H) -> Verdict {
    let running = Running::fresh(host)?;
    running.add("n", -7)?;
    let outcome = running.call().reset("n").one()?;
    assert_eq!((outcome.value, outcome.applied, outcome.exists), (0, 7, true));
    assert!(running.read("n")?.exists);
    let entries = running.ledger("n", 10)?;
    assert_eq!((entries[0].kind, entries[0].before, entries[0].after), (CorrectionKind::Reset, -7, 0));
    Ok(())
}

/// It changes the value like an increment and writes a ledger entry.
pub fn an_adjustment_adds_and_is_recorded<H: Host>(host: &H) -> Verdict {
    let running = Running::fresh(host)?;
    running.add("n", 10)?;
    let outcome = running.call().adjust("n", -4).one()?;
    assert_eq!((outcome.value, outcome.applied), (6, -4));
    let entries = running.ledger("n", 10)?;
    assert_eq!(entries.len(), 1);
    assert_eq!((entries[0].kind, entries[0].before, entries[0].after), (CorrectionKind::Adjust, 10, 6));
    assert_eq!(&*entries[0].reason, "adjust");
    assert!(!running.can(Ability::Actors) || &*entries[0].actor == "contract");
    Ok(())
}

/// It reads like one that never existed. Deleting a counter that does not exist changes nothing.
pub fn a_deleted_counter_does_not_exist<H: Host>(host: &H) -> Verdict {
    let running = Running::fresh(host)?;
    let outcome = running.call().delete("n").one()?;
    assert_eq!((outcome.value, outcome.applied, outcome.exists, outcome.refusal), (0, 0, false, None));
    let has_ledger = running.can(Ability::Ledger);
    assert!(!has_ledger || running.ledger("n", 10)?.is_empty());
    running.add("n", 12)?;
    let outcome = running.call().delete("n").one()?;
    assert_eq!((outcome.value, outcome.applied, outcome.exists), (0, -12, false));
    let running = running.restart()?;
    let reading = running.read("n")?;
    assert_eq!((reading.value, reading.exists, reading.created_at), (0, false, None));
    assert!(!running.call().delete("n").one()?.exists);
    assert!(!has_ledger || running.ledger("n", 10)?.len() == 1);
    Ok(())
}

/// Every correction is an entry with a number, a time and the hash of its predecessor.
pub fn the_ledger_is_a_verifiable_chain<H: Host>(host: &H) -> Verdict {
    let running = Running::fresh(host)?;
    running.add("n", 3)?;
    running.call().set("n", 10).adjust("n", -4).reset("n").add("n", 5).delete("n").set("n", 1).send()?;
    let entries = running.ledger("n", 100)?;
    let seen: Vec<_> = entries.iter().map(|entry| (entry.kind, entry.before, entry.after)).collect();
    use CorrectionKind::{Adjust, Delete, Reset, Set};
    assert_eq!(seen, [(Set, 3, 10), (Adjust, 10, 6), (Reset, 6, 0), (Delete, 5, 0), (Set, 0, 1)]);
    assert!(entries.is_sorted_by_key(|entry| entry.at));
    // The key is part of the hash: the same correction of another counter has another hash.
    running.call().add("m", 3).set("m", 10).send()?;
    assert_ne!(running.ledger("m", 100)?[0].hash, entries[0].hash);
    Ok(())
}

/// The chain continues where it ended.
pub fn the_ledger_survives_deletion_and_restart<H: Host>(host: &H) -> Verdict {
    let mut running = Running::fresh(host)?;
    let long = "r".repeat(REASON_BYTES_MAX);
    for round in 1..=4 {
        let why = Correction::new(&long, "é \0 \n")?;
        running.call().set("n", round).delete("n").event("n", Change::Reset(why), None, None).send()?;
        let before = running.ledger("n", 100)?;
        assert_eq!(before.len(), 3 * round as usize);
        running = running.restart()?;
        assert_eq!(running.ledger("n", 100)?, before);
    }
    Ok(())
}

/// Pages of any size give the same entries, whether they are in the store or in memory.
pub fn the_ledger_is_read_in_pages<H: Host>(host: &H) -> Verdict {
    let mut running = Running::fresh(host)?;
    for round in 1..=3 {
        for number in 0..7 {
            // Entries of neighbouring keys must not appear.
            running.call().set("n", number).set("m", 1).set("n\0", 1).set("o", 1).send()?;
        }
        let whole = running.ledger("n", 1000)?;
        assert_eq!(whole.len(), 7 * round);
        for limit in 1..=9 {
            assert_eq!(running.ledger("n", limit)?, whole, "pages of {limit}");
        }
        running = running.restart()?;
    }
    Ok(())
}

/// Only corrections that changed something are recorded.
pub fn refused_corrections_are_not_in_the_ledger<H: Host>(host: &H) -> Verdict {
    let running = Running::fresh(host)?;
    running.call().add("n", i64::MAX).swap("n", 0, 1).adjust("n", 1).delete("nobody").send()?;
    assert!(running.ledger("n", 10)?.is_empty());
    assert!(running.ledger("nobody", 10)?.is_empty());
    Ok(())
}
