//! Writes: append, then wait for what the caller's consistency needs.

use std::collections::{BTreeMap, BTreeSet};

use futures_util::future::join_all;
use tally_core::batch::{DividedCall, Events, SlotOutcome};
use tally_core::consistency::Consistency;
use tally_core::event::{Change, ChangeRef, EventRef, Field};
use tally_core::key::Key;
use tally_core::outcome::{Outcome, Receipt, Token};
use tally_core::surface::{EngineError, ReadOptions};
use tally_core::time::{Millis, Position};

use super::Cluster;
use super::read_counter::ReadCounter;
use crate::kafka::Appended;

/// The part of a call that is in one partition.
enum WrittenPart {
    /// With its outcomes.
    Applied(Receipt),
    /// Its outcomes are to be estimated.
    Appended {
        /// The position after it.
        end: Position,
        /// When it was appended.
        at: Millis,
        /// The counters that it reads between its increments.
        reads: BTreeMap<Key, ReadCounter>,
    },
}

impl Cluster {
    pub(super) async fn write(&self, events: Events, consistency: Consistency) -> Result<Receipt, EngineError> {
        if !events.batch().fits_call() {
            return Err(EngineError::TooLarge);
        }
        if events.batch().is_read_only() {
            return Ok(self.read_batch(&events, &ReadOptions::new(consistency)).await?.receipt);
        }
        if self.policies.is_empty() {
            return self.write_journal(events, consistency).await;
        }
        let (with_shards, without): (Vec<_>, Vec<_>) =
            events.batch().iter().map(|event| event.key).partition(|key| self.policies.of(*key).is_some());
        // Boxed, so that the last future does not have their size.
        match (with_shards.is_empty(), without.is_empty()) {
            (false, false) => Box::pin(self.write_mixed(events, consistency)).await,
            (false, true) => Box::pin(self.write_best_effort(&events)).await,
            (true, _) => self.write_journal(events, consistency).await,
        }
    }

    /// A call to counters with and without sub-counters: each part takes its own path. A group never has both, see
    /// [`Engine::grouping`](tally_core::surface::Engine::grouping).
    async fn write_mixed(&self, events: Events, consistency: Consistency) -> Result<Receipt, EngineError> {
        let call = events.divide(|key| u32::from(self.policies.of(key).is_some()));
        let parts = call.parts().iter().map(async |(has_shards, events)| match has_shards {
            0 => self.write_journal(events.clone(), consistency).await,
            _ => self.write_best_effort(events).await,
        });
        joined(&call, all_or_unknown(join_all(parts).await)?)
    }

    /// A call that goes through the journal as it is.
    pub(super) async fn write_journal(&self, events: Events, consistency: Consistency) -> Result<Receipt, EngineError> {
        // Added sums may have made the call too large.
        if !events.batch().fits_call() {
            return Err(EngineError::TooLarge);
        }
        let call = events.divide(|key| self.partition_of(key));
        // Each part decides for itself: one that needs no outcome does not wait for the worker of another.
        let waits = |events: &Events| match consistency {
            Consistency::Exact => true,
            // A read sees everything acknowledged before it began.
            Consistency::Accurate => events.batch().iter().any(|event| !event.is_change()) || events.depend_on_state(),
            Consistency::Eventual | Consistency::BestEffort => events.depend_on_state(),
        };
        let estimated = call.parts().iter().filter(|(_, events)| !waits(events)).map(|(partition, events)| {
            let changes = events.batch().iter().filter(EventRef::is_change);
            (*partition, changes.map(|event| event.key.to_key()).collect())
        });
        let estimated: BTreeMap<u32, BTreeSet<Key>> = estimated.collect();
        let parts = call.parts().iter().map(|(partition, events)| self.write_part(*partition, events, waits(events)));
        // Totals for the estimates are fetched meanwhile, those of all partitions at once.
        let (parts, ()) = tokio::join!(join_all(parts), self.refresh_estimates(&estimated));
        let parts = call.parts().iter().zip(all_or_unknown(parts)?).map(|((partition, events), part)| match part {
            WrittenPart::Applied(receipt) => receipt,
            WrittenPart::Appended { end, at, reads } => {
                let outcomes = self.estimate(events, &reads, end, at);
                Receipt { outcomes, as_of: at, token: Token::new(*partition, end) }
            }
        });
        joined(&call, parts.collect())
    }

    async fn write_part(&self, partition: u32, events: &Events, waits: bool) -> Result<WrittenPart, EngineError> {
        let lane = &self.lanes[partition as usize];
        if waits {
            let call = lane.append(events).await?;
            let appended = call.batch.appended;
            self.append_time(partition, &appended);
            let (outcomes, at) = call.outcomes(events, self.ask_outcomes(partition, appended.end)).await?;
            self.note_outcomes(partition, events, &outcomes, appended.end, at);
            let token = Token::new(partition, appended.end);
            return Ok(WrittenPart::Applied(Receipt { outcomes, as_of: at, token }));
        }
        // Before the append: if they cannot be read, nothing was changed.
        let reads = self.read_before(events).await?;
        let appended = lane.append(events).await?.batch.appended;
        let at = self.append_time(partition, &appended);
        Ok(WrittenPart::Appended { end: appended.end, at, reads })
    }

    /// When a batch was appended, by the clock of its broker. If the broker gave no time, this node's estimate of that
    /// clock.
    fn append_time(&self, partition: u32, appended: &Appended) -> Millis {
        if let Some(at) = appended.at {
            self.clocks.learn(partition, at, appended.end);
            return at;
        }
        self.clocks.now(partition)
    }

    /// The counters that a call reads between its increments.
    async fn read_before(&self, events: &Events) -> Result<BTreeMap<Key, ReadCounter>, EngineError> {
        let keys: BTreeSet<Key> =
            events.batch().iter().filter(|event| !event.is_change()).map(|event| event.key.to_key()).collect();
        if keys.is_empty() {
            return Ok(BTreeMap::new());
        }
        let keys: Vec<Key> = keys.into_iter().collect();
        let counters = Box::pin(self.read_counters(&keys, &ReadOptions::new(Consistency::Eventual))).await?;
        Ok(keys.into_iter().zip(counters).collect())
    }

    /// Records exact outcomes: estimates start from these values, not from earlier totals, and later readings are not
    /// older.
    fn note_outcomes(&self, partition: u32, events: &Events, outcomes: &[Outcome], end: Position, at: Millis) {
        let is_value = |event: &EventRef<'_>| {
            !matches!(event.change, ChangeRef::Other(Change::Read(Field::Expiry | Field::Version)))
        };
        for (event, outcome) in events.events_of_outcomes().zip(outcomes) {
            let key = event.key.to_key();
            self.served[partition as usize].served(&key, end);
            if outcome.refusal.is_none() && is_value(&event) {
                self.estimates.refresh(&key, outcome.value, end, at);
            }
        }
    }

    /// Outcomes before the batch is applied: values are estimates, and duplicates are not known yet. `reads` has the
    /// counters that are read, as they were before.
    fn estimate(&self, events: &Events, reads: &BTreeMap<Key, ReadCounter>, end: Position, at: Millis) -> Vec<Outcome> {
        let mut keys: BTreeMap<&[u8], Key> = BTreeMap::new();
        // The values after the adds of this call.
        let mut added: BTreeMap<&[u8], i64> = BTreeMap::new();
        let slots: Vec<Outcome> = events
            .batch()
            .iter()
            .map(|event| {
                let key = &*keys.entry(event.key.as_bytes()).or_insert_with(|| event.key.to_key());
                let delta = match event.change {
                    ChangeRef::Add(delta) => delta,
                    ChangeRef::Adds(adds) => saturated(adds.sum()),
                    ChangeRef::Other(Change::Read(field)) => {
                        let read = reads.get(key).map_or(Outcome::EMPTY, |counter| counter.field(*field));
                        return Outcome { at, ..behind(added.get(event.key.as_bytes()).copied(), *field, read) };
                    }
                    ChangeRef::Other(_) => 0,
                };
                let value = self.estimates.add(key, delta, end);
                added.insert(event.key.as_bytes(), value);
                Outcome {
                    value,
                    applied: delta,
                    exists: true,
                    exact: false,
                    duplicate: if event.request_id.is_some() { None } else { Some(false) },
                    refusal: None,
                    at,
                }
            })
            .collect();
        events.outcomes(|slot| SlotOutcome { outcome: slots[slot], split: None, base: 0 }).collect()
    }
}

/// The outcome of a read that follows adds of the same call. `value` is the value after them, if there are any.
fn behind(value: Option<i64>, field: Field, read: Outcome) -> Outcome {
    let Some(value) = value else { return Outcome { exact: false, ..read } };
    let value = match field {
        Field::Value => value,
        // The adds created it.
        Field::Expiry if !read.exists => -1,
        Field::Expiry | Field::Version => read.value,
    };
    Outcome { value, exists: true, exact: false, ..read }
}

/// The receipt of a call, from those of its parts.
fn joined(call: &DividedCall, parts: Vec<Receipt>) -> Result<Receipt, EngineError> {
    let mut token = Token::default();
    let mut as_of = Millis(0);
    let mut outcomes = Vec::with_capacity(parts.len());
    for part in parts {
        token.merge(&part.token);
        as_of = as_of.max(part.as_of);
        outcomes.push(part.outcomes);
    }
    let outcomes = call.join(outcomes);
    let outcomes = outcomes.ok_or_else(|| EngineError::OutcomeUnknown("a wrong number of outcomes".to_owned()))?;
    Ok(Receipt { outcomes, as_of, token })
}

/// The error of a call that was made only in part.
pub(super) fn partly_done(error: &EngineError) -> EngineError {
    match error {
        EngineError::OutcomeUnknown(_) => error.clone(),
        _ => EngineError::OutcomeUnknown(format!("a part of the call was made, another was not: {error}")),
    }
}

/// All results, or the most severe error: if a part may be in the journal, the outcome of the call is unknown.
pub(super) fn all_or_unknown<T>(parts: Vec<Result<T, EngineError>>) -> Result<Vec<T>, EngineError> {
    let some_succeeded = parts.iter().any(Result::is_ok);
    let unknown = |error: &EngineError| matches!(error, EngineError::OutcomeUnknown(_));
    let errors: Vec<&EngineError> = parts.iter().filter_map(|part| part.as_ref().err()).collect();
    let worst = errors.iter().find(|error| unknown(error)).or(errors.first()).map(|error| (*error).clone());
    match worst {
        None => parts.into_iter().collect(),
        Some(error) if some_succeeded && !unknown(&error) => Err(partly_done(&error)),
        Some(error) => Err(error),
    }
}

pub(super) fn saturated(sum: i128) -> i64 {
    sum.clamp(i128::from(i64::MIN), i128::from(i64::MAX)) as i64
}
