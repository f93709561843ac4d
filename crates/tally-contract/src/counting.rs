//! Counting: increments, their outcomes and reads.

use std::collections::BTreeMap;

use tally_core::consistency::Consistency;
use tally_core::limits::{CALL_EVENTS_MAX, KEY_BYTES_MAX};
use tally_core::outcome::Refusal;

use crate::{Ability, Host, Running, Verdict, WeakerAnswers};

/// Outcomes and readings agree.
pub fn increments_and_decrements_add_up<H: Host>(host: &H) -> Verdict {
    let running = Running::fresh(host)?;
    let mut sum = 0;
    for delta in [5, -3, 1_000_000_007, -2_000_000_014, 41] {
        let outcome = running.add("n", delta)?;
        sum += delta;
        assert_eq!((outcome.value, outcome.applied, outcome.refusal), (sum, delta, None));
        assert!(outcome.exists && !outcome.is_duplicate());
        let reading = running.read("n")?;
        assert_eq!((reading.value, reading.exists, reading.exact), (sum, true, true));
    }
    Ok(())
}

/// Neither is special.
pub fn adding_zero_creates_a_counter_and_the_most_negative_number_fits<H: Host>(host: &H) -> Verdict {
    let running = Running::fresh(host)?;
    let zero = running.add("n", 0)?;
    assert_eq!((zero.value, zero.applied, zero.exists, zero.refusal), (0, 0, true, None));
    assert!(running.read("n")?.exists);
    assert_eq!(running.add("n", i64::MIN)?.value, i64::MIN);
    let refused = running.add("n", i64::MIN)?;
    assert_eq!((refused.value, refused.applied, refused.refusal), (i64::MIN, 0, Some(Refusal::Overflow)));
    Ok(())
}

/// Reading an unknown counter does not create it.
pub fn an_unknown_counter_reads_zero_and_does_not_exist<H: Host>(host: &H) -> Verdict {
    let running = Running::fresh(host)?;
    for _ in 0..2 {
        let reading = running.read("nobody")?;
        assert_eq!((reading.value, reading.exists), (0, false));
        assert_eq!((reading.created_at, reading.updated_at), (None, None));
    }
    if running.can(Ability::Statistics) {
        let stats = running.stats("nobody")?;
        assert_eq!((stats.reading.value, stats.reading.exists, stats.increments, stats.decrements), (0, false, 0, 0));
    }
    assert!(!running.can(Ability::Listing) || running.list(b"", 10)?.is_empty());
    assert!(!running.can(Ability::Ledger) || running.ledger("nobody", 10)?.is_empty());
    Ok(())
}

/// This holds although the increments of a submission are combined.
pub fn every_event_gets_the_running_value_of_its_counter<H: Host>(host: &H) -> Verdict {
    let running = Running::fresh(host)?;
    let keys = ["a", "b", "c"];
    let mut expected = BTreeMap::new();
    for round in 0..3i64 {
        let mut call = running.call();
        let mut sent = Vec::new();
        for step in 1..=200i64 {
            let key = keys[(step * step + round) as usize % keys.len()];
            // Signs change, so that some neighbours are combined and others are not.
            let delta = if step % 7 < 5 { step } else { -step };
            call = call.add(key, delta);
            sent.push((key, delta));
        }
        for ((key, delta), outcome) in sent.into_iter().zip(call.send()?) {
            let value = expected.entry(key).or_insert(0);
            *value += delta;
            assert_eq!((outcome.value, outcome.applied), (*value, delta), "{key}");
        }
    }
    for (key, value) in expected {
        assert_eq!(running.value(key)?, value);
    }
    Ok(())
}

/// The largest submission, with a single key.
pub fn every_increment_of_a_large_submission_gets_its_own_value<H: Host>(host: &H) -> Verdict {
    let running = Running::fresh(host)?;
    let outcomes = running.call().add_times("hot", 1, CALL_EVENTS_MAX).send()?;
    for (value, outcome) in (1..).zip(outcomes) {
        assert_eq!((outcome.value, outcome.applied), (value, 1));
    }
    assert_eq!(running.value("hot")?, CALL_EVENTS_MAX as i64);
    Ok(())
}

/// Submitting nothing succeeds.
pub fn an_empty_submission_changes_nothing<H: Host>(host: &H) -> Verdict {
    let running = Running::fresh(host)?;
    assert!(running.call().send()?.is_empty());
    running.add("n", 1)?;
    assert!(running.call().send()?.is_empty());
    assert!(!running.can(Ability::AnyConsistency) || running.call().best_effort().send()?.is_empty());
    assert_eq!(running.value("n")?, 1);
    assert!(!running.can(Ability::Listing) || running.list(b"", 10)?.len() == 1);
    Ok(())
}

/// Keys may contain zeros, newlines and invalid UTF-8, and may be prefixes of each other.
pub fn a_key_may_be_any_bytes<H: Host>(host: &H) -> Verdict {
    let mut running = Running::fresh(host)?;
    let mut keys: Vec<Vec<u8>> = (0..=u8::MAX).map(|byte| vec![byte]).collect();
    keys.extend([vec![0, 0], vec![0xff; KEY_BYTES_MAX], vec![0; KEY_BYTES_MAX], b"::".to_vec(), b"a:".to_vec()]);
    keys.extend([b"caf\xc3\xa9".to_vec(), b"a\r\nb".to_vec(), vec![b'x'; 21], vec![b'x'; 22], vec![b'x'; 23]]);
    let mut call = running.call();
    for (number, key) in (1..).zip(&keys) {
        call = call.add(key, number);
    }
    call.send()?;
    for _ in 0..2 {
        let readings = running.read_at(&keys, Consistency::Exact)?;
        for (number, (key, reading)) in (1..).zip(keys.iter().zip(readings)) {
            assert_eq!((reading.value, reading.exists), (number, true), "{key:?}");
        }
        running = running.restart()?;
    }
    Ok(())
}

/// Repeated and unknown keys have their readings, too.
pub fn readings_are_in_the_order_of_the_keys<H: Host>(host: &H) -> Verdict {
    let running = Running::fresh(host)?;
    running.call().add("a", 1).add("b", 2).add("c", 3).send()?;
    let asked = ["c", "a", "nobody", "c", "b", "a"];
    let values = running.read_at(&asked, Consistency::Exact)?.iter().map(|reading| reading.value).collect::<Vec<_>>();
    assert_eq!(values, [3, 1, 0, 3, 2, 1]);
    assert!(running.read_at(&[""; 0], Consistency::Exact)?.is_empty());
    Ok(())
}

/// Counting continues from the stored values.
pub fn values_survive_a_restart<H: Host>(host: &H) -> Verdict {
    let mut running = Running::fresh(host)?;
    for round in 1..=3 {
        for key in 1..=50 {
            let outcome = running.add(format!("k:{key}"), key)?;
            assert_eq!(outcome.value, round * key);
        }
        running = running.restart()?;
        for key in 1..=50 {
            assert_eq!(running.value(format!("k:{key}"))?, round * key);
        }
    }
    Ok(())
}

/// This holds for every combination of write and read consistency.
pub fn every_consistency_reads_its_own_acknowledged_writes<H: Host>(host: &H) -> Verdict {
    let running = Running::fresh(host)?;
    let mut sum = 0;
    for step in 0..100 {
        let call = running.call().add("n", step);
        let outcomes = if step % 2 == 0 { call.best_effort().send()? } else { call.send()? };
        sum += step;
        let (weaker, outcome) = (running.weaker_answers(), outcomes[0]);
        if weaker == WeakerAnswers::Exact || step % 2 == 1 {
            assert_eq!((outcome.value, outcome.exact), (sum, true));
        } else {
            assert!(!outcome.exact, "an estimate says so");
        }
        let consistency = if step % 3 == 0 { Consistency::BestEffort } else { Consistency::Exact };
        let reading = running.read_at(&["n"], consistency)?[0];
        if weaker == WeakerAnswers::Exact || consistency == Consistency::Exact {
            assert_eq!((reading.value, reading.exact), (sum, true));
        } else {
            assert!(!reading.exact && reading.value <= sum, "{reading:?}");
        }
    }
    let running = running.restart()?;
    assert_eq!(running.value("n")?, sum);
    Ok(())
}
