//! Writes: append, then wait for what the caller's consistency needs.

use std::collections::{BTreeMap, BTreeSet};

use futures_util::future::join_all;
use tally_core::batch::{Events, SlotOutcome};
use tally_core::consistency::Consistency;
use tally_core::event::ChangeRef;
use tally_core::key::Key;
use tally_core::outcome::{Outcome, Receipt, Token};
use tally_core::surface::{EngineError, ReadOptions};
use tally_core::time::{Millis, Position};

use super::Cluster;

/// What the part of a call in one partition came to.
struct PartReceipt {
    outcomes: Vec<Outcome>,
    at: Millis,
    token: Token,
}

impl Cluster {
    pub(super) async fn write(&self, events: Events, consistency: Consistency) -> Result<Receipt, EngineError> {
        if !events.batch().fits_call() {
            return Err(EngineError::TooLarge);
        }
        if events.batch().is_read_only() {
            return Ok(self.read_batch(&events, &ReadOptions::new(consistency)).await?.receipt);
        }
        if consistency == Consistency::BestEffort {
            // Boxed, so that the others do not have its size.
            return Box::pin(self.write_best_effort(events)).await;
        }
        let sharded = if self.policies.is_empty() { Vec::new() } else { self.best_effort_outcomes(&events)? };
        let waits = consistency == Consistency::Exact || events.depend_on_state();
        let call = events.divide(|key| self.partition_of(key));
        let parts = call.parts().iter().map(|(partition, events)| self.write_part(*partition, events, waits));
        let parts = all_or_unknown(join_all(parts).await)?;
        let mut token = Token::default();
        let mut as_of = Millis(0);
        let mut outcomes = Vec::with_capacity(parts.len());
        for part in parts {
            token.merge(&part.token);
            as_of = as_of.max(part.at);
            outcomes.push(part.outcomes);
        }
        let outcomes = call.join(outcomes);
        let mut outcomes =
            outcomes.ok_or_else(|| EngineError::OutcomeUnknown("a wrong number of outcomes".to_owned()))?;
        // What sub-counters have counted since the last sum is not in the value.
        let of_sharded = outcomes.iter_mut().zip(sharded).filter(|(_, is_sharded)| *is_sharded);
        of_sharded.for_each(|(outcome, _)| outcome.exact = false);
        Ok(Receipt { outcomes, as_of, token })
    }

    async fn write_part(&self, partition: u32, events: &Events, waits: bool) -> Result<PartReceipt, EngineError> {
        let lane = &self.lanes[partition as usize];
        if waits {
            let call = lane.append(events).await?;
            let appended = call.batch.appended;
            self.clock.observe(appended.at);
            let (outcomes, at) = call.outcomes(events, self.ask_outcomes(partition, appended.end)).await?;
            return Ok(PartReceipt { outcomes, at, token: Token::new(partition, appended.end) });
        }
        // Totals for the estimates are fetched meanwhile.
        let keys: BTreeSet<Key> = events.batch().iter().map(|event| event.key.to_key()).collect();
        let (call, ()) = tokio::join!(lane.append(events), self.refresh_estimates(partition, &keys));
        let appended = call?.batch.appended;
        self.clock.observe(appended.at);
        let outcomes = self.estimate(events, appended.end, appended.at);
        Ok(PartReceipt { outcomes, at: appended.at, token: Token::new(partition, appended.end) })
    }

    /// Outcomes before the batch is applied: values are estimates, and duplicates are not known yet.
    fn estimate(&self, events: &Events, end: Position, at: Millis) -> Vec<Outcome> {
        let mut keys: BTreeMap<&[u8], Key> = BTreeMap::new();
        let slots: Vec<Outcome> = events
            .batch()
            .iter()
            .map(|event| {
                let key = &*keys.entry(event.key.as_bytes()).or_insert_with(|| event.key.to_key());
                let delta = match event.change {
                    ChangeRef::Add(delta) => delta,
                    ChangeRef::Adds(adds) => saturated(adds.sum()),
                    ChangeRef::Other(_) => 0,
                };
                Outcome {
                    value: if event.is_change() {
                        self.estimates.add(key, delta, end)
                    } else {
                        self.estimates.value(key).unwrap_or_default()
                    },
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

/// All results, or the one error that says the most: if a part may be in the journal, the outcome of the call is unknown.
pub(super) fn all_or_unknown<T>(parts: Vec<Result<T, EngineError>>) -> Result<Vec<T>, EngineError> {
    let some_succeeded = parts.iter().any(Result::is_ok);
    let unknown = |error: &EngineError| matches!(error, EngineError::OutcomeUnknown(_));
    let errors: Vec<&EngineError> = parts.iter().filter_map(|part| part.as_ref().err()).collect();
    let worst = errors.iter().find(|error| unknown(error)).or(errors.first()).map(|error| (*error).clone());
    match worst {
        None => parts.into_iter().collect(),
        Some(error) if some_succeeded && !unknown(&error) => {
            Err(EngineError::OutcomeUnknown(format!("a part of the call was made, another was not: {error}")))
        }
        Some(error) => Err(error),
    }
}

pub(super) fn saturated(sum: i128) -> i64 {
    sum.clamp(i128::from(i64::MIN), i128::from(i64::MAX)) as i64
}
