//! Calls to `best-effort` counters: increments go to sub-counters in Redis, which workers sum into the journal.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use futures_util::future::{join_all, try_join_all};
use parking_lot::Mutex;
use tally_core::batch::{Events, SlotOutcome};
use tally_core::consistency::Consistency;
use tally_core::event::{Change, ChangeRef, Condition, EventRef};
use tally_core::key::{Key, KeyRef};
use tally_core::outcome::{Outcome, Receipt, Refusal, Token};
use tally_core::sub_counters::{ShardReports, SubCounter};
use tally_core::surface::{EngineError, ReadOptions};
use tally_core::time::Millis;
use tally_engine::clock::{Clock, SystemClock};

use super::Cluster;
use super::writes::partly_done;
use crate::limits::{BY_TIME_MS, JOURNALED_SUMS_MAX, REGISTER_EVERY_MS, REGISTERED_MAX};
use crate::policy::{ShardLayout, ShardPolicy};
use crate::redis::{AddError, ShardAdd, ShardState};

/// The counters that this API node writes to, and when it last registered them.
#[derive(Default)]
pub struct Registrations {
    known: Mutex<HashMap<Key, Registration>>,
}

#[derive(Clone, Copy)]
struct Registration {
    /// By the monotonic clock that includes time in which the machine was suspended.
    at: Duration,
    shards: u32,
    /// All sub-counters that this node has written to are below this.
    peak: u32,
}

impl Registration {
    fn is_recent(&self, now: Duration) -> bool {
        now.saturating_sub(self.at) < Duration::from_millis(REGISTER_EVERY_MS)
    }
}

impl Registrations {
    /// The number of sub-counters, if the counter was registered a short time before `now`.
    fn recent(&self, key: &Key, now: Duration) -> Option<u32> {
        self.known.lock().get(key).filter(|known| known.is_recent(now)).map(|known| known.shards)
    }

    /// All sub-counters that this node has written to are below this, as far as it remembers.
    fn peak(&self, key: &Key) -> u32 {
        self.known.lock().get(key).map_or(1, |known| known.peak)
    }

    fn put(&self, key: &Key, at: Duration, shards: u32) {
        let mut known = self.known.lock();
        if known.len() >= REGISTERED_MAX && !known.contains_key(key) {
            // A forgotten counter is registered again.
            known.retain(|_, known| known.is_recent(at));
            if known.len() >= REGISTERED_MAX {
                known.clear();
            }
        }
        let peak = known.get(key).map_or(shards, |before| before.peak.max(shards));
        known.insert(key.clone(), Registration { at, shards, peak });
    }
}

/// How an event of a `best-effort` call is carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EventPath {
    /// Added to a sub-counter.
    SubCounter,
    /// Through the journal.
    Journal,
    /// Through the journal, after the sub-counters have been summed.
    SumFirst,
    /// Read, but not through the journal.
    Read,
    /// Not at all: its answer would depend on the state.
    Refused,
}

fn path(event: &EventRef<'_>) -> EventPath {
    let conditional = event.details.is_some_and(|details| details.bounds.is_some() || details.expiry.is_some());
    match event.change {
        _ if conditional => EventPath::Refused,
        ChangeRef::Add(delta) if delta != 0 && event.request_id.is_none() && event.details.is_none() => {
            EventPath::SubCounter
        }
        ChangeRef::Adds(adds) if adds.sum() != 0 => EventPath::SubCounter,
        // Only the journal knows request ids.
        ChangeRef::Add(_) | ChangeRef::Adds(_) => EventPath::Journal,
        ChangeRef::Other(Change::Read(_)) => EventPath::Read,
        ChangeRef::Other(
            Change::Set { when: Condition::Always, .. }
            | Change::Reset(_)
            | Change::Delete(_)
            | Change::Expire { .. }
            | Change::Import(_),
        ) => EventPath::SumFirst,
        ChangeRef::Other(Change::Sum(_) | Change::ImportRequest(_)) => EventPath::Journal,
        ChangeRef::Other(_) => EventPath::Refused,
    }
}

fn is_read(event: &EventRef<'_>) -> bool {
    matches!(event.change, ChangeRef::Other(Change::Read(_)))
}

/// A read directly before the removal of the same counter goes through the journal with it: the journal knows what was
/// removed, and a call that removes many counters needs only a few appends.
fn read_with_removals(events: &[EventRef<'_>], paths: &mut [EventPath]) {
    let is_removal = |event: &EventRef<'_>| matches!(event.change, ChangeRef::Other(Change::Delete(_)));
    for (place, pair) in events.windows(2).enumerate() {
        if paths[place..place + 2] == [EventPath::Read, EventPath::SumFirst]
            && is_removal(&pair[1])
            && pair[0].key == pair[1].key
        {
            paths[place] = EventPath::SumFirst;
        }
    }
}

/// The sub-counters of a counter, as far as they can be reached.
pub(super) struct LiveShards {
    /// Those that exist.
    pub found: Vec<ShardState>,
    /// How many could not be reached, and why.
    pub unreachable: Option<(usize, String)>,
}

impl Cluster {
    /// Carries out a call to `best-effort` counters.
    pub(super) async fn write_best_effort(&self, events: &Events) -> Result<Receipt, EngineError> {
        let batch: Vec<EventRef<'_>> = events.batch().iter().collect();
        let mut paths: Vec<EventPath> = batch.iter().map(path).collect();
        // Events of a group depend on the state, unless all of them are reads, or all are unconditional corrections.
        for group in events.groups() {
            let paths = &mut paths[group.clone()];
            let is_uniform = |same: EventPath| paths.iter().all(|path| *path == same);
            if !is_uniform(EventPath::Read) && !is_uniform(EventPath::SumFirst) {
                paths.fill(EventPath::Refused);
            }
        }
        read_with_removals(&batch, &mut paths);
        let mut slots: Vec<Outcome> = Vec::with_capacity(batch.len());
        let mut token = Token::default();
        let mut has_written = false;
        // In order: an increment after a deletion must not be deleted.
        let mut rest = batch.as_slice();
        for run in paths.chunk_by(|a, b| a == b) {
            let (now, later) = rest.split_at(run.len());
            rest = later;
            let done = match run[0] {
                EventPath::SubCounter => self.add_to_shards(now).await,
                EventPath::Read => self.read_slots(now).await,
                EventPath::Refused => Ok(now.iter().map(|event| self.refused(event)).collect()),
                path @ (EventPath::Journal | EventPath::SumFirst) => {
                    self.journal(now, path == EventPath::SumFirst, &mut token).await
                }
            };
            slots.extend(done.map_err(|error| if has_written { partly_done(&error) } else { error })?);
            has_written |= !matches!(run[0], EventPath::Read | EventPath::Refused);
        }
        let outcomes = events.outcomes(|slot| SlotOutcome { outcome: slots[slot], split: None, base: 0 }).collect();
        let as_of = slots.iter().map(|slot| slot.at).max().unwrap_or_default();
        Ok(Receipt { outcomes, as_of, token })
    }

    async fn add_to_shards(&self, events: &[EventRef<'_>]) -> Result<Vec<Outcome>, EngineError> {
        let added = join_all(events.iter().map(|event| self.add_to_shard(event))).await;
        // A part of a call that failed may be retried by itself only if nothing else of it was done.
        super::writes::all_or_unknown(added)
    }

    async fn add_to_shard(&self, event: &EventRef<'_>) -> Result<Outcome, EngineError> {
        let sum = match event.change {
            ChangeRef::Add(delta) => i128::from(delta),
            ChangeRef::Adds(adds) => adds.sum(),
            ChangeRef::Other(_) => 0,
        };
        let delta = super::writes::saturated(sum);
        let key = event.key.to_key();
        let at = self.time_of(event.key);
        let amount = u64::try_from(sum.unsigned_abs()).unwrap_or(u64::MAX);
        let add = if sum < 0 { ShardAdd::Down(amount) } else { ShardAdd::Up(amount) };
        let partition = self.partition_of(event.key);
        let policy = self.policies.of(event.key).copied().unwrap_or_default();
        let shards = match self.registrations.recent(&key, SystemClock.elapsed()) {
            Some(shards) => shards,
            None => self.register(partition, &key, &policy, 1).await.map_err(|error| error.refused())?,
        };
        let shard = self.shard_for(&policy, shards, at);
        let estimated = BTreeMap::from([(partition, BTreeSet::from([key.clone()]))]);
        let (added, ()) =
            tokio::join!(self.services.totals.add_to_shard(event.key, shard, add), self.refresh_estimates(&estimated));
        match added {
            Ok(()) => {}
            Err(AddError::Overflow) => {
                let refusal = Some(Refusal::Overflow);
                return Ok(Outcome { refusal, exact: false, at, ..Outcome::EMPTY });
            }
            Err(AddError::NotAdded(error)) => return Err(EngineError::Unavailable(error.to_string())),
            Err(AddError::Unknown(error)) => return Err(EngineError::OutcomeUnknown(error.to_string())),
        }
        // A slow write may have arrived after the counter was removed from the list of active ones.
        if self.registrations.recent(&key, SystemClock.elapsed()).is_none() {
            self.register(partition, &key, &policy, shard + 1).await.map_err(|error| error.unknown())?;
        }
        let value = self.estimates.add_unplaced(&key, delta);
        Ok(Outcome { value, applied: delta, exists: true, exact: false, duplicate: Some(false), refusal: None, at })
    }

    /// Adds the counter to the list of active ones. Sub-counters below `peak` are in use.
    async fn register(&self, partition: u32, key: &Key, policy: &ShardPolicy, peak: u32) -> Result<u32, RegisterError> {
        let at = SystemClock.elapsed();
        // Redis may have lost the entry in a failover.
        let peak = peak.max(self.registrations.peak(key));
        let registered = self.services.totals.register(partition, key.as_ref(), policy.first_shards(), peak).await;
        match registered {
            Ok(Some(shards)) => {
                self.registrations.put(key, at, shards);
                Ok(shards)
            }
            Ok(None) => Err(RegisterError("too many counters wait for the rollup".to_owned())),
            Err(error) => Err(RegisterError(error.to_string())),
        }
    }

    fn shard_for(&self, policy: &ShardPolicy, shards: u32, at: Millis) -> u32 {
        let shards = u64::from(shards.max(1));
        let number = match policy.layout {
            ShardLayout::Random => fastrand::u64(..),
            ShardLayout::ByClient => self.seed,
            ShardLayout::ByTime => at.0 / BY_TIME_MS,
        };
        (number % shards) as u32
    }

    /// The answer to an event that depends on the state.
    fn refused(&self, event: &EventRef<'_>) -> Outcome {
        Outcome { refusal: Some(Refusal::BestEffort), exact: false, at: self.time_of(event.key), ..Outcome::EMPTY }
    }

    /// Makes changes through the journal. Adds their positions to `token`.
    async fn journal(
        &self,
        events: &[EventRef<'_>],
        sum_first: bool,
        token: &mut Token,
    ) -> Result<Vec<Outcome>, EngineError> {
        let mut outcomes = Vec::with_capacity(events.len());
        // Sums add events to the call, so it may have to be split.
        for events in events.chunks(JOURNALED_SUMS_MAX) {
            let reports = events.iter().enumerate().map(async |(place, event)| {
                let is_summed = place > 0 && is_read(&events[place - 1]) && events[place - 1].key == event.key;
                match sum_first && !is_summed {
                    true => self.reports(event.key).await,
                    false => Ok(None),
                }
            });
            let written = match try_join_all(reports).await {
                Ok(reports) => self.journal_once(events, reports).await,
                Err(error) => Err(error),
            };
            let receipt = written.map_err(|error| if outcomes.is_empty() { error } else { partly_done(&error) })?;
            token.merge(&receipt.token);
            outcomes.extend(receipt.outcomes);
        }
        Ok(outcomes)
    }

    async fn journal_once(
        &self,
        events: &[EventRef<'_>],
        reports: Vec<Option<ShardReports>>,
    ) -> Result<Receipt, EngineError> {
        let mut call = Events::new(self.seed);
        let mut places = Vec::with_capacity(events.len());
        for (event, reports) in events.iter().zip(reports) {
            if let Some(reports) = reports {
                call.push(event.key, Change::Sum(reports), None, None);
            }
            places.push(call.outcomes_len());
            let change = match event.change {
                ChangeRef::Add(delta) => Change::Add(delta),
                ChangeRef::Adds(adds) => Change::Add(super::writes::saturated(adds.sum())),
                ChangeRef::Other(change) => change.clone(),
            };
            call.push(event.key, change, event.request_id, event.details.cloned());
        }
        let receipt = self.write_journal(call, Consistency::Eventual).await?;
        // What sub-counters have counted since the last sum is not in the values.
        let of_place = |&place: &usize| Some(Outcome { exact: false, ..*receipt.outcomes.get(place)? });
        let outcomes: Option<Vec<Outcome>> = places.iter().map(of_place).collect();
        let outcomes = outcomes.ok_or_else(|| EngineError::OutcomeUnknown("a wrong number of outcomes".to_owned()))?;
        Ok(Receipt { outcomes, ..receipt })
    }

    async fn read_slots(&self, events: &[EventRef<'_>]) -> Result<Vec<Outcome>, EngineError> {
        let mut call = Events::new(self.seed);
        for event in events {
            if let ChangeRef::Other(change) = event.change {
                call.push(event.key, change.clone(), None, None);
            }
        }
        let reads = Box::pin(self.read_batch(&call, &ReadOptions::new(Consistency::BestEffort))).await?;
        Ok(reads.receipt.outcomes)
    }

    /// What the sub-counters of a counter have counted, to be summed; `None` if there are none.
    async fn reports(&self, key: KeyRef<'_>) -> Result<Option<ShardReports>, EngineError> {
        let live = self.live_shards(key).await?;
        if let Some((_, why)) = live.unreachable {
            return Err(EngineError::Unavailable(format!("a sub-counter cannot be reached: {why}")));
        }
        let counted: Vec<SubCounter> = live.found.iter().map(|shard| shard.counted).collect();
        Ok(ShardReports::new(counted).filter(|reports| !reports.as_slice().is_empty()))
    }

    /// The sub-counters of a counter.
    pub(super) async fn live_shards(&self, key: KeyRef<'_>) -> Result<LiveShards, EngineError> {
        let totals = &self.services.totals;
        let peak = totals.peak(self.partition_of(key), key).await;
        let peak = peak.map_err(|error| EngineError::Unavailable(error.to_string()))?;
        // Separately, because some may be reachable and others not.
        let asked = (0..peak.min(tally_core::limits::SHARDS_MAX))
            .map(|shard| async move { totals.shards(&[(key, shard)]).await.map(|mut found| found.pop().flatten()) });
        let mut live = LiveShards { found: Vec::new(), unreachable: None };
        for answer in join_all(asked).await {
            match answer {
                Ok(found) => live.found.extend(found),
                Err(error) => {
                    let (count, _) = live.unreachable.unwrap_or_default();
                    live.unreachable = Some((count + 1, error.to_string()));
                }
            }
        }
        Ok(live)
    }

    /// Sums the sub-counters of these counters into the journal, so that an exact read includes them. Returns the
    /// number of sub-counters of each.
    pub(super) async fn sum_now(&self, keys: &[Key]) -> Result<BTreeMap<Key, u32>, EngineError> {
        let sharded: Vec<&Key> = keys.iter().filter(|key| self.policies.of(key.as_ref()).is_some()).collect();
        let mut shards = BTreeMap::new();
        for keys in sharded.chunks(JOURNALED_SUMS_MAX) {
            let reports = try_join_all(keys.iter().map(|key| self.reports(key.as_ref()))).await?;
            let mut call = Events::new(self.seed);
            for (key, reports) in keys.iter().zip(reports) {
                if let Some(reports) = reports {
                    shards.insert((*key).clone(), reports.as_slice().len() as u32);
                    call.push(key.as_ref(), Change::Sum(reports), None, None);
                }
            }
            if call.is_empty() {
                continue;
            }
            let receipt = Box::pin(self.write_journal(call, Consistency::Exact)).await?;
            if receipt.outcomes.iter().any(|outcome| outcome.refusal.is_some()) {
                return Err(EngineError::Unavailable("the sub-counters cannot be summed".to_owned()));
            }
        }
        Ok(shards)
    }

    /// The time of a counter's partition.
    pub(super) fn time_of(&self, key: KeyRef<'_>) -> Millis {
        self.clocks.now(self.partition_of(key))
    }
}

/// A counter could not be registered.
struct RegisterError(String);

impl RegisterError {
    /// Before anything was added.
    fn refused(self) -> EngineError {
        EngineError::Unavailable(self.0)
    }

    /// After something was added.
    fn unknown(self) -> EngineError {
        EngineError::OutcomeUnknown(self.0)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_registration_is_recent_only_until_it_has_to_be_repeated() {
        let (registrations, key) = (Registrations::default(), Key::new("views:k").unwrap());
        let (at, every) = (Duration::from_secs(1_000), Duration::from_millis(REGISTER_EVERY_MS));
        registrations.put(&key, at, 3);
        assert_eq!(registrations.recent(&key, at + every - Duration::from_millis(1)), Some(3));
        assert_eq!(registrations.recent(&key, at + every), None);
    }
}
