//! Expiry: an expired counter does not exist.

use tally_core::event::{AddExpiry, Change, Condition, Deadline, Details, Expiry, ExpiryCondition, Field};
use tally_core::outcome::Outcome;
use tally_core::time::Millis;

use crate::{Ability, Failure, Host, Running, Verdict};

/// Long ago.
const PAST: Millis = Millis(1_000);
/// In a few thousand years.
const FAR: Millis = Millis(99_000_000_000_000);
const FARTHER: Millis = Millis(FAR.0 + 1);

const ALWAYS: ExpiryCondition = ExpiryCondition::Always;

fn expiring(at: Millis, only_if_none: bool) -> Option<Details> {
    Some(Details { expiry: Some(AddExpiry { at: Some(Deadline::At(at)), only_if_none }), ..Details::default() })
}

fn expiry_of<H: Host>(running: &Running<'_, H>, key: &str) -> Result<i64, Failure> {
    let event = running.call().read(key, Field::Expiry).one()?;
    let read = running.read(key)?;
    assert_eq!(event.exists, read.exists);
    let shown = read.expires_at.map(|at| at.0 as i64).or(read.exists.then_some(-1));
    assert_eq!(shown.unwrap_or_default(), event.value, "a read event and a reading agree");
    assert!(!running.can(Ability::Statistics) || running.stats(key)?.reading.expires_at == read.expires_at);
    Ok(event.value)
}

/// This holds for events, readings, statistics and listings. An expiry in the past takes effect at once.
pub fn an_expired_counter_does_not_exist<H: Host>(host: &H) -> Verdict {
    let running = Running::fresh(host)?;
    running.call().add("gone", 5).add("here", 6).send()?;
    let expired = running.call().expire("gone", Some(PAST), ALWAYS).one()?;
    assert_eq!((expired.applied, expired.exists, expired.value), (1, false, 0));
    let read = running.read("gone")?;
    assert_eq!((read.exists, read.value, read.created_at, read.expires_at), (false, 0, None, None));
    assert!(!running.can(Ability::Statistics) || running.stats("gone")?.increments == 0);
    if running.can(Ability::Listing) {
        let listed = running.list(b"", 1)?;
        assert_eq!(listed.iter().map(|(key, _)| key.as_bytes()).collect::<Vec<_>>(), [b"here"]);
    }
    let call = running.call().read("gone", Field::Value).read("gone", Field::Expiry);
    let call = call.expire("gone", Some(FAR), ALWAYS).delete("gone");
    let call = if running.can(Ability::Corrections) { call.swap("gone", 5, 1) } else { call };
    let outcomes = call.set_when("gone", 1, Condition::Present, Expiry::Keep).send()?;
    for outcome in &outcomes {
        assert_eq!((outcome.value, outcome.applied, outcome.exists), (0, 0, false), "{outcome:?}");
    }
    assert!(
        !running.can(Ability::Ledger) || running.ledger("gone", 10)?.is_empty(),
        "expiring is not a correction, and refused events are not recorded"
    );
    assert!(running.call().set_when("gone", 1, Condition::Absent, Expiry::Keep).one()?.exists);
    Ok(())
}

/// Its statistics start over.
pub fn an_expired_counter_starts_from_zero_and_keeps_its_ledger<H: Host>(host: &H) -> Verdict {
    let running = Running::fresh(host)?;
    running.call().set("n", 50).add("n", -1).send()?;
    let outcomes = running.call().expire("n", Some(PAST), ALWAYS).add("n", 2).adjust("n", 3).send()?;
    assert_eq!(outcomes.iter().map(|outcome| outcome.value).collect::<Vec<_>>(), [0, 2, 5]);
    let stats = running.stats("n")?;
    assert_eq!((stats.reading.value, stats.max, stats.increments, stats.decrements), (5, 5, 5, 0));
    assert_eq!(expiry_of(&running, "n")?, -1, "the new counter has no expiry");
    let running = running.restart()?;
    running.call().expire("n", Some(PAST), ALWAYS).reset("n").send()?;
    let ledger: Vec<_> = running.ledger("n", 10)?.iter().map(|entry| (entry.before, entry.after)).collect();
    assert_eq!(ledger, [(0, 50), (2, 5), (0, 0)]);
    Ok(())
}

/// The passing of time is enough.
pub fn a_counter_expires_without_being_touched<H: Host>(host: &H) -> Verdict {
    let running = Running::fresh(host)?;
    let now = running.add("n", 1)?.at;
    let at = Millis(now.0 + 30);
    running.call().expire("n", Some(at), ALWAYS).one()?;
    loop {
        let before = running.add("clock", 1)?.at;
        let read = running.read("n")?;
        let after = running.add("clock", 1)?.at;
        if before >= at {
            assert!(!read.exists, "{before:?} {read:?}");
            return Ok(());
        }
        assert!(read.exists || after >= at, "{read:?} {after:?}");
    }
}

/// Other changes keep the expiry.
pub fn a_set_keeps_removes_or_replaces_the_expiry<H: Host>(host: &H) -> Verdict {
    let running = Running::fresh(host)?;
    let set = |expiry| running.call().set_when("n", 1, Condition::Always, expiry).one();
    assert!(set(Expiry::At(Deadline::At(FAR)))?.exists);
    assert_eq!(expiry_of(&running, "n")?, FAR.0 as i64);
    let call = running.call().add("n", 1).set("n", 3);
    if running.can(Ability::Corrections) { call.reset("n").adjust("n", 2) } else { call }.send()?;
    assert_eq!(expiry_of(&running, "n")?, FAR.0 as i64);
    set(Expiry::Never)?;
    assert_eq!(expiry_of(&running, "n")?, -1);
    set(Expiry::At(Deadline::At(FAR)))?;
    let refused = running.call().set_when("n", 9, Condition::Absent, Expiry::At(Deadline::At(FARTHER))).one()?;
    assert!(refused.refusal.is_some());
    assert_eq!(expiry_of(&running, "n")?, FAR.0 as i64, "a refused event does not change the expiry");
    let gone = set(Expiry::At(Deadline::At(PAST)))?;
    assert_eq!((gone.value, gone.exists), (1, false));
    assert!(!running.read("n")?.exists);
    Ok(())
}

/// It sets the expiry always or only if there is none, and never if it is refused.
pub fn an_increment_may_set_an_expiry<H: Host>(host: &H) -> Verdict {
    let running = Running::fresh(host)?;
    let add = |delta, details| -> Result<Outcome, Failure> { running.event("n", Change::Add(delta), None, details) };
    assert_eq!(add(1, expiring(FAR, true))?.value, 1);
    assert_eq!(expiry_of(&running, "n")?, FAR.0 as i64);
    assert_eq!(add(1, expiring(FARTHER, true))?.value, 2);
    assert_eq!(expiry_of(&running, "n")?, FAR.0 as i64);
    assert_eq!(add(1, expiring(FARTHER, false))?.value, 3);
    assert_eq!(expiry_of(&running, "n")?, FARTHER.0 as i64);
    running.call().set("n", i64::MAX).one()?;
    assert!(add(1, expiring(FAR, false))?.refusal.is_some());
    assert_eq!(expiry_of(&running, "n")?, FARTHER.0 as i64, "a refused event does not change the expiry");
    Ok(())
}

/// No expiry counts as later than any.
pub fn an_expiry_changes_only_if_its_condition_is_met<H: Host>(host: &H) -> Verdict {
    use ExpiryCondition::{Always, IfEarlier, IfLater, IfNone, IfSome, IfSomeAndEarlier};
    let running = Running::fresh(host)?;
    assert_eq!(running.call().expire("n", Some(FAR), Always).one()?.applied, 0, "there is no counter");
    running.add("n", 7)?;
    let steps = [
        (None, Always, 0, -1),
        (Some(FAR), IfSome, 0, -1),
        (Some(FAR), IfLater, 0, -1),
        (Some(FAR), IfSomeAndEarlier, 0, -1),
        (Some(FARTHER), IfEarlier, 1, FARTHER.0 as i64),
        (Some(FAR), IfNone, 0, FARTHER.0 as i64),
        (Some(FARTHER), IfLater, 0, FARTHER.0 as i64),
        (Some(FARTHER), IfEarlier, 0, FARTHER.0 as i64),
        (Some(FAR), IfSomeAndEarlier, 1, FAR.0 as i64),
        (Some(FARTHER), IfSomeAndEarlier, 0, FAR.0 as i64),
        (Some(FARTHER), IfLater, 1, FARTHER.0 as i64),
        (Some(FAR), IfSome, 1, FAR.0 as i64),
        (Some(FAR), Always, 1, FAR.0 as i64),
        (None, Always, 1, -1),
        (Some(FAR), IfNone, 1, FAR.0 as i64),
    ];
    for (place, (at, when, applied, expiry)) in steps.into_iter().enumerate() {
        let outcome = running.call().expire("n", at, when).one()?;
        assert_eq!((outcome.applied, outcome.value, outcome.exists), (applied, 7, true), "step {place}");
        assert_eq!(expiry_of(&running, "n")?, expiry, "step {place}");
    }
    let read = running.read("n")?;
    assert_eq!(read.updated_at, read.created_at, "the value has not changed");
    assert!(!running.can(Ability::Ledger) || running.ledger("n", 10)?.is_empty());
    Ok(())
}

/// Both pending and past expiries survive.
pub fn an_expiry_survives_a_restart<H: Host>(host: &H) -> Verdict {
    let running = Running::fresh(host)?;
    running.call().add("far", 1).expire("far", Some(FAR), ALWAYS).send()?;
    running.call().add("past", 1).expire("past", Some(PAST), ALWAYS).send()?;
    let mut running = running;
    for _ in 0..2 {
        running = running.restart()?;
        assert_eq!(expiry_of(&running, "far")?, FAR.0 as i64);
        assert_eq!(expiry_of(&running, "past")?, 0);
        assert!(!running.read("past")?.exists);
    }
    Ok(())
}
