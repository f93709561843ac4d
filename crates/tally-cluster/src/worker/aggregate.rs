//! The aggregator: sums the sub-counters of `best-effort` counters into the journal, and decides how many there are.
//!
//! It appends what each sub-counter has counted since it was created. The state machine adds what is new, so a sum that
//! is appended twice, by this worker or by another one, counts once.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tally_core::batch::{Events, encode};
use tally_core::event::Change;
use tally_core::key::{Key, KeyRef};
use tally_core::sub_counters::{ShardReports, SubCounter};
use tally_core::time::{Millis, Position};
use tokio::time::Instant;

use super::WorkerShared;
use super::hosting::Hosting;
use crate::limits::{SHARD_SUM_FULL, SHARD_WRITES_PER_SECOND_MAX, SHARDS_COOL_MS, SHARDS_COOL_SHARE, SUMS_BATCH_MAX};
use crate::policy::{Aggregation, ShardCount, ShardPolicy};
use crate::redis::{ActiveCounter, ShardState};

/// What the aggregator remembers of a partition. All of it can be lost.
#[derive(Default)]
struct Aggregator {
    counters: HashMap<Key, SummedCounter>,
    /// The entry of each active counter, and since when it has been the same. Measured by this worker's clock: the
    /// clocks of Redis nodes may differ, and a failover switches from one to another.
    registrations: HashMap<Key, (ActiveCounter, Instant)>,
}

impl Aggregator {
    /// Updates what is known of registrations.
    fn note_registrations(&mut self, active: &[ActiveCounter], now: Instant) {
        let mut before = std::mem::take(&mut self.registrations);
        for active in active {
            let is_same = |(known, _): &(ActiveCounter, Instant)| known.entry == active.entry;
            let since = before.remove(&active.key).filter(is_same).map_or(now, |(_, since)| since);
            self.registrations.insert(active.key.clone(), (active.clone(), since));
        }
        self.counters.retain(|key, _| self.registrations.contains_key(key));
    }

    /// Counters that are no longer on the list although nobody has removed them: Redis has lost their entries, but may
    /// still have their sub-counters, which can be on other nodes.
    fn lost(&self, active: &[ActiveCounter]) -> Vec<ActiveCounter> {
        let listed: HashSet<&Key> = active.iter().map(|active| &active.key).collect();
        let known = self.registrations.values().map(|(active, _)| active);
        known.filter(|known| !listed.contains(&known.key)).cloned().collect()
    }

    /// The counter was removed from the list.
    fn retired(&mut self, key: &Key) {
        self.registrations.remove(key);
        self.counters.remove(key);
    }

    /// Whether no writer has registered the counter for this long.
    fn is_idle(&self, active: &ActiveCounter, idle: Duration, now: Instant) -> bool {
        self.registrations.get(&active.key).is_some_and(|(_, since)| now.duration_since(*since) > idle)
    }
}

/// What is known of one counter.
struct SummedCounter {
    /// What is in the journal and applied.
    summed: Vec<SubCounter>,
    summed_at: Instant,
    /// Everything that was counted before this time of the partition is in it.
    complete_at: Millis,
    /// Totals of this position include it.
    applied: Position,
    /// Number of writes to each sub-counter, and when it was read.
    writes: HashMap<(u32, u64), (u64, Instant)>,
    /// Since when the counter has had more sub-counters than it needs.
    cool_since: Option<Instant>,
}

/// How the aggregator is doing, for metrics.
#[derive(Debug, Default)]
pub struct AggregatorGauges {
    /// Writes per second of the busiest sub-counter, times ten.
    load_max: AtomicU64,
    /// Milliseconds since the last round that summed everything began, as of the end of the last round.
    lag_ms: AtomicU64,
}

impl AggregatorGauges {
    /// Writes per second of the busiest sub-counter.
    pub fn load_max(&self) -> f64 {
        self.load_max.load(Ordering::Relaxed) as f64 / 10.0
    }

    /// An upper bound for the age of the oldest increment that is not summed yet.
    pub fn lag(&self) -> Duration {
        Duration::from_millis(self.lag_ms.load(Ordering::Relaxed))
    }
}

impl WorkerShared {
    /// Sums sub-counters every round, until the partition is released.
    pub async fn aggregate_regularly(&self, hosting: &Arc<Hosting>) {
        let mut every = tokio::time::interval(self.settings.rollup_every);
        every.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut aggregator = Aggregator::default();
        let mut complete_at = Instant::now();
        loop {
            every.tick().await;
            let (started, before) = (Instant::now(), hosting.host.now());
            match self.aggregate(hosting, &mut aggregator, before).await {
                Ok(all) => {
                    complete_at = started;
                    hosting.host.note_summed(before, all);
                }
                Err(error) => {
                    let partition = hosting.host.partition;
                    tracing::warn!(partition, %error, "sub-counters were not summed; trying again");
                }
            }
            hosting.aggregator.lag_ms.store(complete_at.elapsed().as_millis() as u64, Ordering::Relaxed);
        }
    }

    /// Sums what is due at the time `at` of the partition. Returns the time up to which everything is summed.
    async fn aggregate(
        &self,
        hosting: &Arc<Hosting>,
        aggregator: &mut Aggregator,
        at: Millis,
    ) -> Result<Millis, String> {
        let partition = hosting.host.partition;
        let failed = |error: crate::redis::RedisError| error.to_string();
        let mut active = self.services.totals.active(partition).await.map_err(failed)?;
        let lost = aggregator.lost(&active);
        if !lost.is_empty() {
            tracing::warn!(
                partition,
                counters = lost.len(),
                "Redis has lost entries of active counters; adding them again"
            );
            for ActiveCounter { key, shards, peak, .. } in &lost {
                // A full list is reported to writers.
                let _ = self.services.totals.register(partition, key.as_ref(), *shards, *peak).await.map_err(failed)?;
            }
            active = self.services.totals.active(partition).await.map_err(failed)?;
        }
        let now = Instant::now();
        aggregator.note_registrations(&active, now);
        if active.is_empty() {
            hosting.aggregator.load_max.store(0, Ordering::Relaxed);
            return Ok(at);
        }
        let (mut load_max, mut summed_at) = (0.0f64, at);
        for slice in active.chunks(SUMS_BATCH_MAX) {
            let policy = |active: &ActiveCounter| self.settings.policies.of(active.key.as_ref()).copied();
            let (due, later): (Vec<_>, Vec<_>) = slice
                .iter()
                .map(|active| (active, policy(active).unwrap_or_default()))
                .partition(|(active, policy)| self.is_due(aggregator, active, policy));
            let summed = later.iter().filter_map(|(active, _)| aggregator.counters.get(&active.key));
            summed_at = summed.map(|known| known.complete_at).fold(summed_at, Millis::min);
            let shards = self.read_shards(&due).await?;
            self.sum(hosting, aggregator, &due, &shards, at).await?;
            let mut loads = Vec::new();
            for ((active, policy), shards) in due.iter().zip(&shards) {
                self.adapt(partition, aggregator, active, policy, shards, &mut loads).await?;
            }
            load_max = loads.iter().map(|(_, _, load)| *load).fold(load_max, f64::max);
            self.services.totals.note_rates(&loads).await.map_err(failed)?;
            let closings: Vec<Closing<'_>> = due
                .iter()
                .zip(&shards)
                .filter_map(|((active, _), shards)| {
                    let is_idle = aggregator.is_idle(active, self.settings.shards_idle, now);
                    Closing::of(active, shards, is_idle)
                })
                .collect();
            self.close(hosting, aggregator, &closings).await?;
        }
        hosting.aggregator.load_max.store((load_max * 10.0) as u64, Ordering::Relaxed);
        Ok(summed_at)
    }

    /// Sums all sub-counters of the partition now, whatever their policy.
    pub async fn sum_now(&self, hosting: &Arc<Hosting>) -> Result<(), String> {
        let active = self.services.totals.active(hosting.host.partition).await.map_err(|error| error.to_string())?;
        for slice in active.chunks(SUMS_BATCH_MAX) {
            let due: Vec<(&ActiveCounter, ShardPolicy)> =
                slice.iter().map(|active| (active, ShardPolicy::default())).collect();
            let shards = self.read_shards(&due).await?;
            self.sum(hosting, &mut Aggregator::default(), &due, &shards, Millis(0)).await?;
        }
        Ok(())
    }

    /// Whether it is time to sum the counter.
    fn is_due(&self, aggregator: &Aggregator, active: &ActiveCounter, policy: &ShardPolicy) -> bool {
        let every = match policy.aggregation {
            Aggregation::Rollup | Aggregation::Hybrid => return true,
            Aggregation::OnRead => self.settings.persist_every,
        };
        aggregator.counters.get(&active.key).is_none_or(|known| known.summed_at.elapsed() >= every)
    }

    async fn read_shards(&self, due: &[(&ActiveCounter, ShardPolicy)]) -> Result<Vec<Vec<ShardState>>, String> {
        let peak = |active: &ActiveCounter| active.peak.min(tally_core::limits::SHARDS_MAX);
        let wanted: Vec<(KeyRef<'_>, u32)> =
            due.iter().flat_map(|(active, _)| (0..peak(active)).map(|shard| (active.key.as_ref(), shard))).collect();
        let found = self.services.totals.shards(&wanted).await.map_err(|error| error.to_string())?;
        let mut found = found.into_iter();
        Ok(due.iter().map(|(active, _)| found.by_ref().take(peak(active) as usize).flatten().collect()).collect())
    }

    /// Appends what has changed, and waits until it is applied. `at` is a time of the partition before the sub-counters
    /// were read.
    async fn sum(
        &self,
        hosting: &Arc<Hosting>,
        aggregator: &mut Aggregator,
        due: &[(&ActiveCounter, ShardPolicy)],
        shards: &[Vec<ShardState>],
        at: Millis,
    ) -> Result<(), String> {
        let mut events = Events::new(self.seed);
        let mut summed = Vec::new();
        for ((active, _), shards) in due.iter().zip(shards) {
            let counted: Vec<SubCounter> = shards.iter().map(|shard| shard.counted).collect();
            let is_news = aggregator.counters.get(&active.key).is_none_or(|known| known.summed != counted);
            if let Some(reports) = ShardReports::new(counted.clone()).filter(|_| is_news && !counted.is_empty()) {
                events.push(active.key.as_ref(), Change::Sum(reports), None, None);
                summed.push((&active.key, counted));
            }
        }
        if summed.is_empty() {
            return Ok(());
        }
        let refused = self.append_and_apply(hosting, &events).await?;
        for ((key, counted), refused) in summed.into_iter().zip(refused) {
            if refused {
                tracing::warn!(partition = hosting.host.partition, "a counter would overflow by its sub-counters");
                continue;
            }
            self.discard_outdated(hosting, key, &counted).await;
            let known = aggregator.counters.entry(key.clone()).or_insert_with(|| SummedCounter {
                summed: Vec::new(),
                summed_at: Instant::now(),
                complete_at: at,
                applied: Position(0),
                writes: HashMap::new(),
                cool_since: None,
            });
            known.summed = counted;
            known.summed_at = Instant::now();
            known.complete_at = at;
            known.applied = hosting.host.applied();
        }
        Ok(())
    }

    /// Returns for each event whether it was refused.
    async fn append_and_apply(&self, hosting: &Arc<Hosting>, events: &Events) -> Result<Vec<bool>, String> {
        let mut bytes = Vec::new();
        encode(events.batch(), Millis(0), &mut bytes);
        let appending = self.appender.append(hosting.host.partition, &bytes).map_err(|error| error.to_string())?;
        let appended = appending.await.map_err(|error| error.to_string())?;
        hosting.host.reach_soon(appended.end).await?;
        let record = hosting.host.outcomes(appended.end).ok_or("the outcomes of a sum are not kept any more")?;
        Ok(record.outcomes.slots().iter().map(|outcome| outcome.refusal.is_some()).collect())
    }

    /// Removes sub-counters that came back with an older state of Redis. What one of them counts is lost if it was
    /// replaced since, because it may have been summed already.
    async fn discard_outdated(&self, hosting: &Arc<Hosting>, key: &Key, counted: &[SubCounter]) {
        let outdated: Vec<SubCounter> = {
            let hosted = hosting.host.state().lock();
            let Some(summed) = hosted.partition.summed(key) else { return };
            counted.iter().filter(|counted| summed.is_replaced(counted)).copied().collect()
        };
        for counted in outdated {
            tracing::warn!(
                shard = counted.shard,
                "a removed sub-counter came back after a failover; removing it again"
            );
            if let Err(error) = self.services.totals.discard_shard(key.as_ref(), &counted).await {
                tracing::debug!(%error, "a sub-counter was not removed");
            }
        }
    }

    /// Changes the number of sub-counters if the load requires it. Adds the load of each to `loads`.
    async fn adapt<'a>(
        &self,
        partition: u32,
        aggregator: &mut Aggregator,
        active: &'a ActiveCounter,
        policy: &ShardPolicy,
        shards: &[ShardState],
        loads: &mut Vec<(KeyRef<'a>, u32, f64)>,
    ) -> Result<(), String> {
        let Some(known) = aggregator.counters.get_mut(&active.key) else { return Ok(()) };
        let now = Instant::now();
        let (mut busiest, mut all) = (0.0f64, 0.0);
        let mut writes = HashMap::with_capacity(shards.len());
        for shard in shards {
            let id = (shard.counted.shard, shard.counted.incarnation);
            let per_second = known.writes.get(&id).map_or(0.0, |(before, at)| {
                let seconds = now.duration_since(*at).as_secs_f64().max(0.001);
                shard.writes.saturating_sub(*before) as f64 / seconds
            });
            writes.insert(id, (shard.writes, now));
            busiest = busiest.max(per_second);
            all += per_second;
            // A load of zero that is already recorded need not be recorded again.
            if per_second > 0.0 || shard.writes_per_second > 0.0 {
                loads.push((active.key.as_ref(), shard.counted.shard, per_second));
            }
        }
        known.writes = writes;
        let ShardCount::Adaptive(most) = policy.count else { return Ok(()) };
        let enough = f64::from(active.shards / 2) * SHARD_WRITES_PER_SECOND_MAX * SHARDS_COOL_SHARE;
        let is_cool = active.shards > 1 && all < enough;
        known.cool_since = if is_cool { known.cool_since.or(Some(now)) } else { None };
        let cool_for = known.cool_since.map_or(Duration::ZERO, |since| now.duration_since(since));
        let wanted = match () {
            () if busiest > SHARD_WRITES_PER_SECOND_MAX => (2 * active.shards).min(most),
            () if cool_for >= Duration::from_millis(SHARDS_COOL_MS) => {
                known.cool_since = None;
                active.shards / 2
            }
            () => active.shards,
        };
        if wanted.max(1) != active.shards {
            let resharded = self.services.totals.reshard(partition, active.key.as_ref(), wanted.max(1)).await;
            resharded.map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    /// Removes sub-counters that are summed, and records that in the journal.
    async fn close(
        &self,
        hosting: &Arc<Hosting>,
        aggregator: &mut Aggregator,
        closings: &[Closing<'_>],
    ) -> Result<(), String> {
        // And published: a read that finds no sub-counter must find a total that includes it.
        let is_summed = |closing: &&Closing<'_>| {
            let in_total =
                |known: &SummedCounter| known.summed == closing.found && hosting.published() >= known.applied;
            closing.found.is_empty() || aggregator.counters.get(&closing.active.key).is_some_and(in_total)
        };
        let closings: Vec<&Closing<'_>> = closings.iter().filter(is_summed).collect();
        let closing: Vec<(KeyRef<'_>, SubCounter)> = closings
            .iter()
            .flat_map(|closing| closing.closed().map(|counted| (closing.active.key.as_ref(), *counted)))
            .collect();
        let totals = &self.services.totals;
        let gone = totals.close_shards(&closing).await.map_err(|error| error.to_string())?;
        let mut gone = closing.iter().zip(gone);
        let mut events = Events::new(self.seed);
        let mut retired = Vec::new();
        for closing in closings {
            let of_counter: Vec<_> = gone.by_ref().take(closing.closed().count()).collect();
            let closed = of_counter.iter().filter(|(_, gone)| *gone);
            let closed: Vec<SubCounter> =
                closed.map(|((_, counted), _)| SubCounter { is_closed: true, ..*counted }).collect();
            if closing.is_idle && closed.len() == closing.found.len() {
                retired.push(closing.active);
            }
            if let Some(reports) = ShardReports::new(closed).filter(|reports| !reports.as_slice().is_empty()) {
                events.push(closing.active.key.as_ref(), Change::Sum(reports), None, None);
            }
        }
        if !events.is_empty() {
            self.append_and_apply(hosting, &events).await?;
        }
        let is_retired = totals.retire(hosting.host.partition, &retired).await.map_err(|error| error.to_string())?;
        for (active, _) in retired.iter().zip(is_retired).filter(|(_, is_retired)| *is_retired) {
            aggregator.retired(&active.key);
        }
        Ok(())
    }
}

/// Sub-counters of one counter to be removed.
struct Closing<'a> {
    active: &'a ActiveCounter,
    /// All its sub-counters.
    found: Vec<SubCounter>,
    /// Nobody writes to the counter any more, so all of them are removed, and the counter from the list.
    is_idle: bool,
}

impl<'a> Closing<'a> {
    /// What to remove of a counter, if anything.
    fn of(active: &'a ActiveCounter, shards: &[ShardState], is_idle: bool) -> Option<Closing<'a>> {
        let closing = Closing { active, found: shards.iter().map(|shard| shard.counted).collect(), is_idle };
        Some(closing).filter(|closing| closing.is_idle || closing.closed().next().is_some())
    }

    /// The sub-counters to remove. One whose sums are about to exceed the integers of Redis must make room for a new one,
    /// or it would refuse every increment.
    fn closed(&self) -> impl Iterator<Item = &SubCounter> {
        let is_full = |counted: &SubCounter| counted.increments.max(counted.decrements) >= SHARD_SUM_FULL;
        self.found.iter().filter(move |counted| self.is_idle || is_full(counted))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    const IDLE: Duration = Duration::from_secs(60);

    fn registered(entry: &str) -> [ActiveCounter; 1] {
        [ActiveCounter { key: Key::new("k").unwrap(), shards: 1, peak: 1, entry: entry.as_bytes().to_vec() }]
    }

    #[test]
    fn a_counter_is_idle_once_nobody_has_registered_it_for_the_time_by_the_workers_own_clock() {
        let (mut aggregator, start) = (Aggregator::default(), Instant::now());
        let after = |seconds| start + Duration::from_secs(seconds);
        aggregator.note_registrations(&registered("1000:1:1"), start);
        aggregator.note_registrations(&registered("1000:1:1"), after(61));
        assert!(aggregator.is_idle(&registered("1000:1:1")[0], IDLE, after(61)));
        // A node with another clock took over: an hour ahead, or an hour behind.
        for (entry, at) in [("4600:1:1", 62), ("0400:1:1", 63)] {
            aggregator.note_registrations(&registered(entry), after(at));
            assert!(!aggregator.is_idle(&registered(entry)[0], IDLE, after(at + 60)), "{entry}");
        }
        aggregator.note_registrations(&[], after(200));
        assert!(aggregator.registrations.is_empty(), "what is not active is forgotten");
    }

    #[test]
    fn an_entry_that_is_gone_is_lost_unless_the_counter_was_retired() {
        let mut aggregator = Aggregator::default();
        let [active] = registered("1000:2:4");
        aggregator.note_registrations(std::slice::from_ref(&active), Instant::now());
        assert!(aggregator.lost(std::slice::from_ref(&active)).is_empty());
        assert_eq!(aggregator.lost(&[]), std::slice::from_ref(&active));
        aggregator.retired(&active.key);
        assert!(aggregator.lost(&[]).is_empty());
    }
}
