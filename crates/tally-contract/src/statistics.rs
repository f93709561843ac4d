//! Statistics of a counter.

use tally_core::event::{Bounds, OnBound};

use crate::{Host, Running, Verdict};

/// Sums of additions and subtractions, and extremes, including the initial zero.
pub fn statistics_cover_every_change<H: Host>(host: &H) -> Verdict {
    let running = Running::fresh(host)?;
    running.call().add("n", 5).add("n", -20).add("n", 7).add("n", 30).add("n", -1).send()?;
    let stats = running.stats("n")?;
    assert_eq!(stats.reading.value, 21);
    assert_eq!((stats.increments, stats.decrements), (42, 21));
    assert_eq!((stats.min, stats.max), (-15, 22));
    assert_eq!(stats.shard_values.iter().sum::<i64>(), 21);
    assert_eq!(stats.reading.shards as usize, stats.shard_values.len());
    running.add("up", 3)?;
    let stats = running.stats("up")?;
    assert_eq!((stats.min, stats.max), (0, 3), "it started from zero");
    Ok(())
}

/// Corrections do not count towards the rates.
pub fn corrections_count_towards_sums_and_extremes<H: Host>(host: &H) -> Verdict {
    let running = Running::fresh(host)?;
    running.call().set("n", 50).adjust("n", -70).reset("n").send()?;
    let stats = running.stats("n")?;
    assert_eq!((stats.reading.value, stats.increments, stats.decrements), (0, 70, 70));
    assert_eq!((stats.min, stats.max), (-20, 50));
    assert_eq!((stats.rate_1s, stats.rate_1m, stats.rate_1h), (0.0, 0.0, 0.0));
    let cut = Bounds { floor: None, ceiling: Some(4), on_bound: OnBound::Saturate };
    running.call().add_within("n", 10, cut).send()?;
    assert_eq!(running.stats("n")?.increments, 74, "only the applied part counts");
    Ok(())
}

/// A refused event or a read is not a change.
pub fn the_times_of_creation_and_last_change_are_kept<H: Host>(host: &H) -> Verdict {
    let mut running = Running::fresh(host)?;
    let receipt = running.call().add("n", 1).submit()??;
    let first = running.read("n")?;
    assert_eq!((first.created_at, first.updated_at), (Some(receipt.as_of), Some(receipt.as_of)));
    running.call().swap("n", 99, 0).send()?;
    assert_eq!(running.read("n")?.updated_at, first.updated_at);
    for _ in 0..2 {
        let receipt = running.call().add("n", 1).submit()??;
        let reading = running.read("n")?;
        assert_eq!((reading.created_at, reading.updated_at), (first.created_at, Some(receipt.as_of)));
        assert!(reading.created_at <= reading.updated_at && reading.updated_at <= Some(reading.as_of));
        running = running.restart()?;
    }
    running.call().delete("n").send()?;
    let receipt = running.call().add("n", 1).submit()??;
    assert_eq!(running.read("n")?.created_at, Some(receipt.as_of), "a new counter");
    Ok(())
}

/// Sums, extremes and times are the same after a restart.
pub fn statistics_survive_a_restart<H: Host>(host: &H) -> Verdict {
    let mut running = Running::fresh(host)?;
    running.call().add("n", i64::MAX).add("n", -100).set("n", i64::MIN).add("n", 7).send()?;
    let before = running.stats("n")?;
    for _ in 0..2 {
        running = running.restart()?;
        let after = running.stats("n")?;
        assert_eq!((after.increments, after.decrements), (before.increments, before.decrements));
        assert_eq!((after.min, after.max), (i64::MIN, i64::MAX));
        assert_eq!(after.reading.created_at, before.reading.created_at);
        assert_eq!(after.reading.updated_at, before.reading.updated_at);
    }
    Ok(())
}
