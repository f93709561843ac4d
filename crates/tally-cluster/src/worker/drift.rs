//! Finding totals in Redis that differ from the state, and healing them.
//!
//! After a round of publishing, a total in Redis equals the counter, unless the counter has changed since; then it is
//! due in the next round. So the two can be compared, whatever position the total has. Each round compares a slice of
//! the published totals; a pass is done when all were compared.
//!
//! A total that differs is replaced only if it is still the one that was compared. A worker that has lost the partition
//! without knowing leaves totals that are ahead of it alone, and replaces others with what is right for a later
//! position.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tally_core::counter::CounterState;
use tally_core::key::Key;
use tally_core::time::Position;

use super::WorkerShared;
use super::hosting::Hosting;
use crate::limits::{DRIFT_SLICE, END_WAIT_MS};
use crate::redis::{StoredTotal, TotalUpdate};

/// The progress of a pass over the totals of a partition.
#[derive(Debug, Default)]
pub struct DriftPass {
    after: Option<Key>,
    /// The largest difference so far.
    max: u64,
}

impl WorkerShared {
    /// Compares the next totals with the state. Call after a round of publishing, while no other round is in progress.
    pub(super) async fn reconcile(&self, hosting: &Arc<Hosting>, pass: &mut DriftPass) -> Result<(), String> {
        let keys = hosting.host.round().published_after(pass.after.as_ref(), DRIFT_SLICE);
        let (totals, last) = (&self.services.totals, keys.last().cloned());
        let found = if keys.is_empty() { Vec::new() } else { self.differing(hosting, keys).await? };
        let differences: Vec<u64> = found.iter().map(|(_, _, difference)| *difference).collect();
        pass.max = differences.iter().copied().max().unwrap_or(0).max(pass.max);
        self.meters.drift_found.fetch_add(found.len() as u64, Ordering::Relaxed);
        // Shown as soon as it is found.
        hosting.drift_max.fetch_max(pass.max, Ordering::Relaxed);
        if !found.is_empty() {
            let partition = hosting.host.partition;
            let pairs: Vec<_> = found.into_iter().map(|(seen, update, _)| (seen, update)).collect();
            let healed = totals.replace(&pairs).await.map_err(|error| error.to_string())?;
            let healed = healed.into_iter().filter(|healed| *healed).count();
            self.meters.drift_healed.fetch_add(healed as u64, Ordering::Relaxed);
            let (found, max) = (pairs.len(), pass.max);
            if max > self.settings.drift_warn {
                tracing::warn!(partition, found, healed, max, "totals in Redis differed from the state");
            } else {
                tracing::info!(partition, found, healed, max, "totals in Redis differed from the state");
            }
        }
        pass.after = last;
        if pass.after.is_none() {
            hosting.drift_max.store(pass.max, Ordering::Relaxed);
            pass.max = 0;
        }
        Ok(())
    }

    /// The totals that differ, with what they should be, and by how much.
    async fn differing(
        &self,
        hosting: &Arc<Hosting>,
        keys: Vec<Key>,
    ) -> Result<Vec<(StoredTotal, TotalUpdate, u64)>, String> {
        let stored = self.services.totals.stored(&keys).await.map_err(|error| error.to_string())?;
        let reading = self.read_own(hosting, keys.clone()).await?;
        let mut found = Vec::new();
        let mut end = None;
        let states = reading.records().zip(&reading.counters).zip(&reading.summed);
        for ((key, stored), ((record, state), summed)) in keys.into_iter().zip(stored).zip(states) {
            // Checked after the reading: a counter that changed before it is due by now.
            let Some(stored) = stored.filter(|_| !hosting.host.round().is_due(&key)) else { continue };
            let total = stored.total.as_ref();
            if let Some(ahead) = total.filter(|total| total.position > reading.position) {
                // Not the end that a broker reports: one that has lost its leadership may not know what was
                // acknowledged since.
                let end = match end {
                    Some(known) => known,
                    None => *end.insert(journal_end(hosting).await),
                };
                // Another worker has applied more, unless the journal does not go that far.
                if end.is_none_or(|end| ahead.position <= end) {
                    continue;
                }
            }
            let held = total.map(|total| total.state.filter(|held| !held.is_expired(reading.now)));
            let is_beyond = total.is_some_and(|total| total.position > reading.position);
            let is_same = held == Some(*state) && total.is_some_and(|total| total.summed == *summed);
            if is_same && !is_beyond {
                continue;
            }
            let difference = value(state.as_ref()).abs_diff(value(held.flatten().as_ref()));
            let (position, at, summed) = (reading.position, reading.as_of, summed.clone());
            let valid_until = hosting.host.round().valid_until(&key);
            let update = TotalUpdate { key, position, at, valid_until, record, summed, first: false };
            found.push((stored, update, difference));
        }
        Ok(found)
    }
}

/// A position after everything that is acknowledged by now; `None` if Kafka does not answer soon.
async fn journal_end(hosting: &Hosting) -> Option<Position> {
    let asked = tokio::time::timeout(Duration::from_millis(END_WAIT_MS), hosting.ends.barrier());
    asked.await.ok()?.ok()
}

fn value(state: Option<&CounterState>) -> i64 {
    state.map_or(0, |state| state.counter.value())
}
