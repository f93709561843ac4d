//! Reads: from Redis if its totals are fresh enough, otherwise from the partition's worker.
//!
//! An approximate reading is never older than an earlier one of the same counter. Totals are used only if Redis cannot
//! have lost newer ones (`redis/generation.rs`), a worker answers with everything in the journal, and this node
//! remembers what it served (`served.rs`).

use std::collections::{BTreeMap, BTreeSet};

use futures_util::future::{join_all, try_join_all};
use tally_core::batch::{Events, SlotOutcome};
use tally_core::consistency::Consistency;
use tally_core::event::{Change, ChangeRef};
use tally_core::key::{Key, KeyRef};
use tally_core::ledger::LedgerEntry;
use tally_core::limits::{CALL_KEYS_MAX, PAGE_ITEMS_MAX};
use tally_core::missing_keys::MissingKeys;
use tally_core::outcome::{Outcome, Reads, Receipt, Token};
use tally_core::reading::{Reading, Stats};
use tally_core::record;
use tally_core::sub_counters::SummedShards;
use tally_core::surface::{EngineError, Page, PageRequest, ReadOptions};
use tally_core::time::{Millis, Position};

use super::Cluster;
use super::ask::unexpected_response;
use super::best_effort::LiveShards;
use super::read_counter::{ReadCounter, UnsummedTail};
use super::routes::PartitionRoute;
use crate::limits::{ANY_WORKER_WAIT, ESTIMATE_WAIT, TIME_WAIT};
use crate::policy::{Aggregation, OnUnreachable, ShardPolicy};
use crate::postgres::ListedCounter;
use crate::redis::{ShardState, Total};
use crate::rpc::limits::LEDGER_ENTRIES_MAX;
use crate::rpc::{Need, RpcRequest, RpcResponse};

impl Cluster {
    /// Reads counters, in the order of the keys, as fresh as the options require.
    pub(super) async fn read_counters(
        &self,
        keys: &[Key],
        options: &ReadOptions,
    ) -> Result<Vec<ReadCounter>, EngineError> {
        if let Some(token) = &options.at_least {
            let foreign = token.positions().any(|(partition, _)| partition >= self.partitions);
            if foreign {
                return Err(EngineError::TooStale("the token names a partition that does not exist".to_owned()));
            }
        }
        let needs_end = options.consistency >= Consistency::Accurate || options.staleness_max_ms == Some(0);
        let mut found: BTreeMap<&Key, ReadCounter> = BTreeMap::new();
        let mut shards = BTreeMap::new();
        if needs_end {
            shards = self.sum_for_read(keys).await?;
        } else {
            self.known_times(keys.iter().map(|key| self.partition_of(key.as_ref())), options).await?;
            Box::pin(self.read_totals(keys, options, &mut found)).await?;
        }
        let mut missing: BTreeMap<u32, BTreeSet<&Key>> = BTreeMap::new();
        for key in keys.iter().filter(|key| !found.contains_key(key)) {
            missing.entry(self.partition_of(key.as_ref())).or_default().insert(key);
        }
        let asked = missing.into_iter().map(|(partition, keys)| async move {
            let at_least = options.at_least.as_ref().map(|token| token.position(partition)).unwrap_or_default();
            let keys: Vec<&Key> = keys.into_iter().collect();
            let counters = match () {
                () if needs_end => self.read_worker(partition, Need::End, &keys).await?,
                () if at_least > Position(0) => {
                    let served = keys.iter().map(|key| self.served[partition as usize].least(key)).max();
                    let needs_newer = served.is_some_and(|served| served > at_least);
                    match needs_newer {
                        true => self.read_newest(partition, &keys).await?,
                        false => self.read_worker(partition, Need::Position(at_least), &keys).await?,
                    }
                }
                () => return self.read_shared(partition, keys).await,
            };
            Ok(keys.into_iter().zip(counters).collect::<Vec<_>>())
        });
        found.extend(try_join_all(asked).await?.into_iter().flatten());
        for (key, shards) in &shards {
            found.entry(key).and_modify(|counter| counter.tail.shards = *shards);
        }
        // Exact readings, too: the next one may come from Redis, which may be behind.
        for (key, counter) in &found {
            self.served[self.partition_of(key.as_ref()) as usize].served(key, counter.position);
        }
        let readings: Option<Vec<ReadCounter>> = keys.iter().map(|key| found.get(key).copied()).collect();
        let readings = readings.ok_or_else(|| EngineError::Unavailable("a counter was not answered for".to_owned()))?;
        let age = |key: &Key, counter: &ReadCounter| self.time_of(key.as_ref()).since(counter.as_of);
        let too_old = |max| keys.iter().zip(&readings).any(|(key, counter)| !counter.exact && age(key, counter) > max);
        if options.staleness_max_ms.is_some_and(too_old) {
            return Err(EngineError::TooStale("the partition's worker is behind".to_owned()));
        }
        Ok(readings)
    }

    /// Waits until this node can tell how old readings of these partitions are, which is soon after it has started.
    async fn known_times(
        &self,
        partitions: impl Iterator<Item = u32>,
        options: &ReadOptions,
    ) -> Result<(), EngineError> {
        let unknown: BTreeSet<u32> = partitions.filter(|partition| !self.clocks.is_known(*partition)).collect();
        let known = join_all(unknown.iter().map(|partition| self.clocks.known(*partition)));
        if !unknown.is_empty() && tokio::time::timeout(TIME_WAIT, known).await.is_err() {
            let why = "the age of the reading is not known, because Kafka has not answered since this node started; try again";
            let too_stale = options.staleness_max_ms.is_some();
            let error = if too_stale { EngineError::TooStale } else { EngineError::Unavailable };
            return Err(error(why.to_owned()));
        }
        Ok(())
    }

    /// Takes from Redis what is fresh enough.
    async fn read_totals<'k>(
        &self,
        keys: &'k [Key],
        options: &ReadOptions,
        found: &mut BTreeMap<&'k Key, ReadCounter>,
    ) -> Result<(), EngineError> {
        // Before the totals: a heartbeat that arrives later may promise more than they have.
        let routes: Vec<PartitionRoute> =
            keys.iter().map(|key| self.routes.get(self.partition_of(key.as_ref()))).collect();
        // Also before: a sub-counter is removed only after a total that includes it was published.
        let live_keys: BTreeSet<&Key> = keys.iter().filter(|key| self.reads_live(key)).collect();
        let live = live_keys.into_iter().map(async |key| (key, self.live_shards(key.as_ref()).await));
        let live: BTreeMap<&Key, Result<LiveShards, EngineError>> = join_all(live).await.into_iter().collect();
        let totals = match self.services.totals.get(keys).await {
            Ok(totals) => totals,
            Err(error) => {
                tracing::debug!(%error, "totals cannot be read; asking workers");
                // What a worker has may lack increments that earlier readings had.
                for (key, live) in live {
                    let partition = self.partition_of(key.as_ref());
                    let needed = options.at_least.as_ref().map(|token| token.position(partition)).unwrap_or_default();
                    let read = self.read_summed(partition, key, &live?, needed).await?;
                    found.extend(read.map(|counter| (key, counter)));
                }
                return Ok(());
            }
        };
        for ((key, total), route) in keys.iter().zip(totals).zip(routes) {
            let partition = self.partition_of(key.as_ref());
            let now = self.clocks.now(partition);
            let live = live.get(key).map(|live| live.as_ref().map_err(Clone::clone)).transpose()?;
            let served = self.served[partition as usize].least(key);
            let needed = options.at_least.as_ref().map(|token| token.position(partition)).unwrap_or_default();
            let is_rolled_up = self.is_rolled_up(key);
            // A previous owner may have died before it published changes of an older total, and a total that has
            // outlived its time is no longer kept current.
            let is_current = |total: &Total| total.position >= route.since && total.is_valid(route.published_at);
            let total = total.filter(is_current).map(|total| {
                // A total that has not changed since is as current as everything that was published.
                let as_of = route.published_at.filter(|_| route.published >= total.position).max(Some(total.at));
                // Totals that were published before a clock reset may be ahead of now.
                let as_of = as_of.map_or(total.at, |as_of| if now.0 == 0 { as_of } else { as_of.min(now) });
                // It lacks what its sub-counters have counted since.
                let as_of = if is_rolled_up { as_of.min(route.rolled_up_at) } else { as_of };
                (options.staleness_max_ms.is_none_or(|max| now.since(as_of) <= max), as_of, total)
            });
            let state = |total: &Total| total.state.filter(|state| !state.is_expired(now));
            match (total, live) {
                // Its sub-counters are as of now, but corrections are as old as the total. A reading must not miss what
                // an earlier one had from another source. A worker without the namespace's policy does not say what the
                // total has of the sub-counters.
                (Some((true, as_of, total)), Some(live))
                    if total.position >= needed
                        && total.position.max(route.published) >= served
                        && (total.summed.is_some() || live.found.is_empty()) =>
                {
                    let (state, position) = (state(&total), total.position);
                    let tail = self.tail(key, live, total.summed.as_ref())?;
                    found.insert(key, ReadCounter { state, exact: false, as_of, now, tail, position });
                }
                (_, Some(live)) => {
                    found.extend(self.read_summed(partition, key, live, needed).await?.map(|counter| (key, counter)));
                }
                // The heartbeat's position does not count: after a failover, an old total can come with a newer
                // heartbeat of another node.
                (Some((true, as_of, total)), None) if total.position >= needed.max(served) => {
                    let (state, position) = (state(&total), total.position);
                    let shards = total.summed.as_ref().map_or(0, SummedShards::open_len);
                    let tail = UnsummedTail { shards, ..UnsummedTail::default() };
                    found.insert(key, ReadCounter { state, exact: false, as_of, now, tail, position });
                }
                // Summing its sub-counters may be all it takes to be fresh enough.
                (_, None) if is_rolled_up && options.staleness_max_ms.is_some() => {
                    self.sum_for_read(std::slice::from_ref(key)).await?;
                    found.extend(self.read_newest(partition, &[key]).await?.pop().map(|counter| (key, counter)));
                }
                (_, None) => {}
            }
        }
        self.sources.count_redis(found.len());
        Ok(())
    }

    /// Reads a counter whose total cannot be used, after summing its sub-counters. Fails if no worker answers: what is
    /// stored may lack increments that earlier readings had.
    async fn read_summed(
        &self,
        partition: u32,
        key: &Key,
        live: &LiveShards,
        needed: Position,
    ) -> Result<Option<ReadCounter>, EngineError> {
        // So that the next read finds a total.
        self.ask_for_total(partition, key);
        if live.unreachable.is_some() {
            let tail = self.tail(key, live, None)?;
            let need = if needed > Position(0) { Need::Position(needed) } else { Need::Refill };
            let read = self.read_worker(partition, need, &[key]).await?;
            // What was counted since the last sum is missing.
            let tail = UnsummedTail { value: 0, ..tail };
            return Ok(read.first().map(|counter| ReadCounter { tail, ..*counter }));
        }
        self.sum_for_read(std::slice::from_ref(key)).await?;
        Ok(self.read_newest(partition, &[key]).await?.pop())
    }

    /// Reads counters as of the journal's end, because every other source may be older than what was served before.
    ///
    /// Nothing that was served before can have a later position, unless somebody has edited a total in Redis.
    async fn read_newest(&self, partition: u32, keys: &[&Key]) -> Result<Vec<ReadCounter>, EngineError> {
        let served = &self.served[partition as usize];
        let before: Vec<Position> = keys.iter().map(|key| served.least(key)).collect();
        let mut read = self.read_worker(partition, Need::End, keys).await?;
        for ((key, counter), before) in keys.iter().zip(&mut read).zip(before) {
            counter.exact = false;
            if before > counter.position {
                served.correct(key, before, counter.position);
            }
        }
        Ok(read)
    }

    /// Sums sub-counters. To its caller this is a read, so its outcome is never unknown.
    async fn sum_for_read(&self, keys: &[Key]) -> Result<BTreeMap<Key, u32>, EngineError> {
        Box::pin(self.sum_now(keys)).await.map_err(|error| match error {
            EngineError::OutcomeUnknown(why) => EngineError::Unavailable(why),
            other => other,
        })
    }

    /// Whether readings include sub-counters only up to their last sum.
    fn is_rolled_up(&self, key: &Key) -> bool {
        self.policies.of(key.as_ref()).is_some() && !self.reads_live(key)
    }

    /// The time up to which a counter has everything that was counted: `at`, or when its sub-counters were last summed.
    fn complete_at(&self, key: &Key, at: Millis, summed_at: Millis) -> Millis {
        if self.policies.of(key.as_ref()).is_some() { at.min(summed_at) } else { at }
    }

    /// Whether the read adds what sub-counters have counted since the last sum.
    fn reads_live(&self, key: &Key) -> bool {
        let policy = self.policies.of(key.as_ref());
        let is_live = |policy: &ShardPolicy| policy.aggregation != Aggregation::Rollup;
        policy.is_some_and(is_live)
    }

    /// What sub-counters have counted beyond what is summed.
    fn tail(&self, key: &Key, live: &LiveShards, summed: Option<&SummedShards>) -> Result<UnsummedTail, EngineError> {
        let policy = self.policies.of(key.as_ref()).copied().unwrap_or_default();
        if let Some((count, why)) = &live.unreachable
            && policy.on_unreachable == OnUnreachable::Fail
        {
            return Err(EngineError::Unavailable(format!("{count} sub-counters cannot be reached: {why}")));
        }
        let nothing = SummedShards::default();
        let summed = summed.unwrap_or(&nothing);
        let gains = live.found.iter().map(|shard| summed.gain(&shard.counted));
        let value: i128 = gains.map(|gain| gain.increments as i128 - gain.decrements as i128).sum();
        Ok(UnsummedTail {
            value: super::writes::saturated(value),
            shards: live.found.len() as u32,
            partial: live.unreachable.is_some(),
        })
    }

    /// Asks the worker to publish the counter's total, in the background.
    fn ask_for_total(&self, partition: u32, key: &Key) {
        let Some(owner) = self.routes.get(partition).owner else { return };
        let request = RpcRequest::Read { partition, need: Need::Refill, keys: vec![key.clone()] };
        let workers = std::sync::Arc::clone(&self.workers);
        let deadline = tokio::time::Instant::now() + ANY_WORKER_WAIT;
        tokio::spawn(async move {
            if let Err(error) = workers.call(&owner, &request, deadline).await {
                tracing::debug!(%error, "a total was not asked for");
            }
        });
    }

    /// Adds the sub-counters to statistics.
    pub(super) async fn with_shards(&self, key: KeyRef<'_>, stats: Stats) -> Result<Stats, EngineError> {
        let live = self.live_shards(key).await?;
        if live.found.is_empty() {
            return Ok(stats);
        }
        let value = |shard: &ShardState| {
            super::writes::saturated(i128::from(shard.counted.increments) - i128::from(shard.counted.decrements))
        };
        Ok(Stats {
            reading: Reading {
                shards: live.found.len() as u32,
                partial: stats.reading.partial || live.unreachable.is_some(),
                ..stats.reading
            },
            shard_values: live.found.iter().map(value).collect(),
            shard_loads: live.found.iter().map(|shard| shard.writes_per_second).collect(),
            ..stats
        })
    }

    /// Reads what Redis does not have, together with other callers. The worker then publishes it.
    async fn read_shared<'k>(
        &self,
        partition: u32,
        keys: Vec<&'k Key>,
    ) -> Result<Vec<(&'k Key, ReadCounter)>, EngineError> {
        let by_key: BTreeMap<&Key, &'k Key> = keys.iter().map(|key| (*key, *key)).collect();
        let asked = self.shared_reads.join(keys.iter().copied()).into_iter().map(|joined| async move {
            let ask = async || {
                let keys: Vec<&Key> = joined.read.keys.iter().collect();
                self.read_worker(partition, Need::Refill, &keys).await
            };
            let counters = joined.read.answer.get_or_init(ask).await.as_ref().map_err(Clone::clone)?;
            let wanted = joined
                .places
                .iter()
                .filter_map(|&place| Some((joined.read.keys.get(place)?.clone(), *counters.get(place)?)));
            Ok(wanted.collect::<Vec<_>>())
        });
        let counters = try_join_all(asked).await?.into_iter().flatten();
        let counters = counters.filter_map(|(key, counter)| Some((*by_key.get(&key)?, counter)));
        let mut counters: Vec<(&Key, ReadCounter)> = counters.collect();
        // Newer readings may have been served since the shared request began.
        let served = &self.served[partition as usize];
        for (key, counter) in counters.iter_mut().filter(|(key, counter)| counter.position < served.least(key)) {
            self.read_newest(partition, &[*key]).await?.into_iter().for_each(|newest| *counter = newest);
        }
        Ok(counters)
    }

    async fn read_worker(&self, partition: u32, need: Need, keys: &[&Key]) -> Result<Vec<ReadCounter>, EngineError> {
        let mut counters = Vec::with_capacity(keys.len());
        for keys in keys.chunks(CALL_KEYS_MAX) {
            counters.extend(self.read_worker_once(partition, need, keys).await?);
        }
        Ok(counters)
    }

    async fn read_worker_once(
        &self,
        partition: u32,
        need: Need,
        keys: &[&Key],
    ) -> Result<Vec<ReadCounter>, EngineError> {
        let exact = matches!(need, Need::End);
        let unmet = |why: String| match need {
            Need::Position(_) => EngineError::TooStale(why),
            Need::Refill | Need::End => EngineError::Unavailable(why),
        };
        let request = RpcRequest::Read { partition, need, keys: keys.iter().map(|key| (*key).clone()).collect() };
        let response = match need {
            // PostgreSQL can answer too, so the wait for a worker is short.
            Need::Refill => match self.ask_within(ANY_WORKER_WAIT, partition, request.clone()).await {
                Err(why) => match self.read_stored(partition, keys, &why).await? {
                    Some(stored) => return Ok(stored),
                    // Only a worker has what was served before.
                    None => self.ask(partition, request).await,
                },
                answered => answered,
            },
            Need::End | Need::Position(_) => self.ask(partition, request).await,
        };
        let (position, at, summed_at, records) = match response {
            Ok(RpcResponse::Read { position, at, summed_at, records }) if records.len() == keys.len() => {
                (position, at, summed_at, records)
            }
            Ok(_) => return Err(unexpected_response()),
            Err(why) => return Err(unmet(why)),
        };
        if need == Need::Refill {
            self.sources.count_worker(keys.len());
        }
        self.clocks.observe(partition, at, position);
        let (now, tail) = (self.clocks.now(partition).max(at), UnsummedTail::default());
        let counters = keys.iter().zip(&records).map(|(key, bytes)| {
            let state = bytes.as_deref().map(|bytes| {
                let newer = || EngineError::Unreadable("the worker sent a counter of a newer version".to_owned());
                record::read_counter(bytes).ok_or_else(newer)
            });
            // Sub-counters are summed before an exact read.
            let as_of = if exact { at } else { self.complete_at(key, at, summed_at) };
            Ok(ReadCounter { state: state.transpose()?, exact, as_of, now, tail, position })
        });
        counters.collect()
    }

    /// Reads what is persisted; `None` if newer readings were served. The readings say how old they are.
    async fn read_stored(
        &self,
        partition: u32,
        keys: &[&Key],
        why: &str,
    ) -> Result<Option<Vec<ReadCounter>>, EngineError> {
        let unavailable = |error: &dyn std::fmt::Display| EngineError::Unavailable(format!("{why}; {error}"));
        let mut wanted = MissingKeys::default();
        keys.iter().for_each(|key| wanted.push(&record::counter_key(key.as_bytes())));
        let pg = &self.services.pg;
        // The time is read first: records persisted in between are newer than it says, never older.
        let rows = pg.partitions().await.map_err(|error| unavailable(&error))?;
        let fetched = pg.fetch(partition, &wanted).await.map_err(|error| unavailable(&error))?;
        let position = fetched.position;
        if keys.iter().any(|key| self.served[partition as usize].least(key) > position) {
            return Ok(None);
        }
        self.sources.count_postgres(keys.len());
        let row = rows.iter().find(|row| row.partition == partition);
        let at = row.and_then(|row| row.meta).map(|meta| meta.clock).unwrap_or_default();
        let summed_at = row.map(|row| row.summed_at).unwrap_or_default();
        let (now, tail) = (self.clocks.now(partition).max(at), UnsummedTail::default());
        let found: BTreeMap<&[u8], &[u8]> =
            fetched.records.iter().map(|(key, value)| (key.as_slice(), value.as_slice())).collect();
        let counter = |key: &&Key| {
            let state = found.get(record::counter_key(key.as_bytes()).as_slice()).map(|value| {
                let newer = || EngineError::Unreadable("a stored counter is of a newer version".to_owned());
                record::read_counter(value).ok_or_else(newer)
            });
            let state = state.transpose()?.filter(|state| !state.is_expired(now));
            Ok(ReadCounter { state, exact: false, as_of: self.complete_at(key, at, summed_at), now, tail, position })
        };
        keys.iter().map(counter).collect::<Result<_, _>>().map(Some)
    }

    /// Refreshes the totals that estimates are based on: from Redis, or from the worker if Redis has none.
    pub(super) async fn refresh_estimates(&self, keys: &BTreeMap<u32, BTreeSet<Key>>) {
        let outdated = keys.iter().map(|(partition, keys)| {
            let now = self.clocks.now(*partition);
            (*partition, now, self.estimates.outdated(keys.iter(), now))
        });
        let outdated: Vec<(u32, Millis, Vec<Key>)> = outdated.filter(|(_, _, keys)| !keys.is_empty()).collect();
        if outdated.is_empty() {
            return;
        }
        let all: Vec<Key> = outdated.iter().flat_map(|(_, _, keys)| keys.clone()).collect();
        let totals = match tokio::time::timeout(ESTIMATE_WAIT, self.services.totals.get(&all)).await {
            Ok(Ok(totals)) => totals,
            Ok(Err(error)) => {
                tracing::debug!(%error, "estimates cannot be refreshed from Redis");
                vec![None; all.len()]
            }
            Err(_) => vec![None; all.len()],
        };
        let mut totals = totals.into_iter();
        let unknown = outdated.into_iter().map(|(partition, now, keys)| {
            let published_at = self.routes.get(partition).published_at;
            let unknown = keys.into_iter().zip(totals.by_ref()).filter_map(|(key, total)| {
                let Some(total) = total.filter(|total| total.is_valid(published_at)) else { return Some(key) };
                let state = total.state.filter(|state| !state.is_expired(now));
                let value = state.map_or(0, |state| state.counter.value());
                self.estimates.refresh(&key, value, total.position, now);
                None
            });
            (partition, now, unknown.collect::<Vec<Key>>())
        });
        let unknown: Vec<_> = unknown.collect();
        let asked = unknown.iter().map(|(partition, now, keys)| self.ask_for_estimates(*partition, *now, keys));
        join_all(asked).await;
    }

    /// The same, from the worker of one partition.
    async fn ask_for_estimates(&self, partition: u32, now: Millis, unknown: &[Key]) {
        let Some(owner) = self.routes.get(partition).owner.filter(|_| !unknown.is_empty()) else { return };
        let deadline = tokio::time::Instant::now() + ESTIMATE_WAIT;
        for keys in unknown.chunks(CALL_KEYS_MAX) {
            // Position zero: whatever is applied, without publishing it.
            let request = RpcRequest::Read { partition, need: Need::Position(Position(0)), keys: keys.to_vec() };
            let Ok(RpcResponse::Read { position, records, .. }) = self.workers.call(&owner, &request, deadline).await
            else {
                return;
            };
            for (key, record) in keys.iter().zip(records) {
                let state = record.as_deref().and_then(record::read_counter);
                self.estimates.refresh(key, state.map_or(0, |state| state.counter.value()), position, now);
            }
        }
    }

    /// Answers events that only read.
    pub(super) async fn read_batch(&self, events: &Events, options: &ReadOptions) -> Result<Reads, EngineError> {
        let keys: Vec<Key> = events.batch().iter().map(|event| event.key.to_key()).collect();
        let counters = self.read_counters(&keys, options).await?;
        let as_of = counters.iter().map(|counter| counter.as_of).min().unwrap_or_default();
        let slots: Vec<Outcome> = events
            .batch()
            .iter()
            .zip(&counters)
            .map(|(event, counter)| match event.change {
                ChangeRef::Other(Change::Read(field)) => counter.field(*field),
                _ => Outcome::EMPTY,
            })
            .collect();
        let outcomes = events.outcomes(|slot| SlotOutcome { outcome: slots[slot], split: None, base: 0 }).collect();
        Ok(Reads { receipt: Receipt { outcomes, as_of, token: Token::default() }, unflushed: Vec::new() })
    }

    /// Lists what is persisted.
    pub(super) async fn list_stored(&self, page: &PageRequest) -> Result<Page, EngineError> {
        let limit = page.limit.clamp(1, PAGE_ITEMS_MAX);
        let listed = self.services.pg.list(&page.prefix, page.after.as_ref(), limit + 1).await;
        let listed = listed.map_err(|error| EngineError::Unavailable(error.to_string()))?;
        let next = if listed.len() > limit { listed.get(limit - 1).map(|counter| counter.key.clone()) } else { None };
        let options = ReadOptions::new(Consistency::Eventual);
        self.known_times(listed.iter().map(|counter| counter.partition), &options).await?;
        let is_current = |counter: &ListedCounter| !counter.state.is_expired(self.clocks.now(counter.partition));
        let items = listed.into_iter().take(limit).filter(is_current).map(|counter| {
            let now = self.clocks.now(counter.partition);
            let as_of = self.complete_at(&counter.key, counter.clock, counter.summed_at);
            let state = Some(counter.state);
            let (tail, position) = (UnsummedTail::default(), Position(0));
            let read = ReadCounter { state, exact: false, as_of, now, tail, position };
            (counter.key, read.reading())
        });
        Ok(Page { items: items.collect(), next })
    }

    pub(super) async fn read_ledger(
        &self,
        key: Key,
        after: u64,
        limit: usize,
    ) -> Result<Vec<LedgerEntry>, EngineError> {
        let (partition, limit) = (self.partition_of(key.as_ref()), limit.clamp(1, LEDGER_ENTRIES_MAX) as u32);
        match self.ask(partition, RpcRequest::Ledger { key, partition, after, limit }).await {
            Ok(RpcResponse::Ledger { entries }) => Ok(entries),
            Ok(_) => Err(unexpected_response()),
            Err(why) => Err(EngineError::Unavailable(why)),
        }
    }

    pub(super) async fn count_counters(&self, _: &ReadOptions) -> Result<u64, EngineError> {
        let asked = (0..self.partitions).map(|partition| self.ask(partition, RpcRequest::Count { partition }));
        let mut sum = 0;
        for answer in join_all(asked).await {
            match answer {
                Ok(RpcResponse::Count { counters, .. }) => sum += counters,
                Ok(_) => return Err(unexpected_response()),
                Err(why) => return Err(EngineError::Unavailable(why)),
            }
        }
        Ok(sum)
    }
}
