//! The number of counters, and samples of them.

use std::collections::BTreeSet;

use tally_core::event::{Condition, Expiry, ExpiryCondition};
use tally_core::time::Millis;

use crate::{Ability, BACKGROUND_MS_MAX, Host, Running, Verdict};

const PAST: Millis = Millis(1_000);

/// It is the number of counters created and not deleted, whatever else was done to them.
pub fn the_count_is_exact_across_restarts<H: Host>(host: &H) -> Verdict {
    let mut running = Running::fresh(host)?;
    assert_eq!(running.count()?, 0);
    for round in 0..3u64 {
        let names: Vec<String> = (0..40).map(|number| format!("k:{round}:{number}")).collect();
        let call = names.iter().fold(running.call(), |call, name| call.add(name, 1).add(name, -1));
        call.send()?;
        let call = names.iter().take(15).fold(running.call(), |call, name| call.delete(name).delete(name));
        let call = names.iter().take(5).fold(call, |call, name| call.set(name, 3));
        call.send()?;
        let refused = running.call().set_when("never", 1, Condition::Present, Expiry::Keep).one()?;
        assert!(refused.refusal.is_some());
        let expected = (round + 1) * 30;
        assert_eq!(running.count()?, expected);
        running = running.restart()?;
        assert_eq!(running.count()?, expected);
        assert!(!running.can(Ability::Listing) || running.list(b"", 100)?.len() as u64 == expected);
    }
    Ok(())
}

/// An expired counter that was recreated meanwhile still counts.
pub fn expired_counters_are_removed_from_the_count<H: Host>(host: &H) -> Verdict {
    let running = Running::fresh(host)?;
    let call = (0..50).fold(running.call().add("other", 1), |call, number| call.add(format!("k:{number}"), 1));
    call.send()?;
    let call = (0..50)
        .fold(running.call(), |call, number| call.expire(format!("k:{number}"), Some(PAST), ExpiryCondition::Always));
    call.add("k:7", 1).send()?;
    // Stopping writes a checkpoint, from which the next engine finds what has expired.
    let running = running.restart()?;
    let began = running.add("other", 1)?.at;
    while running.count()? != 2 {
        // An engine may need work to do before it sweeps.
        let now = running.add("other", 1)?.at;
        if now.since(began) > BACKGROUND_MS_MAX {
            return Err(format!("still {} counters", running.count()?).into());
        }
    }
    let running = running.restart()?;
    assert_eq!(running.count()?, 2);
    assert_eq!((running.value("k:7")?, running.value("k:8")?), (1, 0));
    Ok(())
}

/// A sample is never deleted or expired, and not always the same counter.
pub fn a_sample_is_an_existing_counter<H: Host>(host: &H) -> Verdict {
    let running = Running::fresh(host)?;
    assert_eq!(running.sample(1)?, None);
    let names = |range: std::ops::Range<u64>| range.map(|number| format!("k:{number}"));
    names(0..30).fold(running.call(), |call, name| call.add(name, 1)).send()?;
    names(0..10).fold(running.call(), |call, name| call.delete(name)).send()?;
    let call = names(10..20).fold(running.call(), |call, name| call.expire(name, Some(PAST), ExpiryCondition::Always));
    call.send()?;
    let exist: BTreeSet<Vec<u8>> = names(20..30).map(String::into_bytes).collect();
    let mut found = BTreeSet::new();
    let mut running = running;
    for round in 0..2 {
        for number in 0..60 {
            let key = running.sample(number)?.ok_or("no counter was found")?;
            assert!(exist.contains(key.as_bytes()), "round {round}: {key:?}");
            found.insert(key);
        }
        running = running.restart()?;
    }
    assert!(found.len() > 1, "always {found:?}");
    Ok(())
}
