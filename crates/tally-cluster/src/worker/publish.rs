//! Publishing totals and heartbeats to Redis.

use std::sync::Arc;

use tally_core::key::Key;
use tally_core::time::Millis;

use super::WorkerShared;
use super::drift::DriftPass;
use super::host::{HostReading, PartitionHost, RoundStart};
use super::hosting::Hosting;
use super::round::Due;
use crate::limits::STANDBYS_MAX;
use crate::redis::{Heartbeat, TotalUpdate, is_address};

/// The result of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoundOutcome {
    /// Redis has everything up to now.
    Published,
    /// There is a heartbeat of a newer epoch.
    Superseded,
}

/// What is being published. Unless it was published, it is due again when this is dropped.
struct DueGuard<'a> {
    host: &'a PartitionHost,
    due: Option<Due>,
}

impl Drop for DueGuard<'_> {
    fn drop(&mut self) {
        if let Some(due) = self.due.take() {
            self.host.round().put_back(due);
            self.host.unpublished.failed();
        }
    }
}

impl WorkerShared {
    /// Publishes changed totals every round, until another worker has claimed the partition.
    pub async fn publish_regularly(&self, hosting: &Arc<Hosting>) {
        let mut every = tokio::time::interval(self.settings.rollup_every);
        every.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let (mut published, mut generation) = (None, None);
        let mut drift = DriftPass::default();
        loop {
            every.tick().await;
            let applied = hosting.host.applied();
            // While records arrive, the time of the last one says how current the totals are, if it has one.
            if published.replace(applied) == Some(applied) || hosting.host.is_untimed() {
                hosting.note_end().await;
            }
            // After a failover Redis may lack what it acknowledged before.
            if let Ok(current) = self.services.totals.generation().await
                && generation.replace(current).is_some_and(|before| before != current)
            {
                hosting.host.round().publish_all();
            }
            let outcome = match self.publish(hosting).await {
                Ok(RoundOutcome::Published) => self.reconcile(hosting, &mut drift).await,
                // The owner of an idle partition would notice later, at its next check of PostgreSQL.
                Ok(RoundOutcome::Superseded) => return,
                Err(error) => Err(error),
            };
            if let Err(error) = outcome {
                tracing::warn!(partition = hosting.host.partition, %error, "totals were not published; trying again");
            }
        }
    }

    /// Publishes what has changed, and then a heartbeat.
    pub(super) async fn publish(&self, hosting: &Arc<Hosting>) -> Result<RoundOutcome, String> {
        let host = &hosting.host;
        let RoundStart { position, at, clock_reset, rolled_up_at, due } = host.begin_round();
        let keys: Vec<_> = due.changed.union(&due.first).cloned().collect();
        let first = due.first.clone();
        if due.is_incomplete {
            hosting.distrust_before(position);
        }
        let mut guard = DueGuard { host, due: Some(due) };
        let valid_until: Vec<Millis> = {
            let round = host.round();
            keys.iter().map(|key| round.valid_until(key)).collect()
        };
        // After that time was taken: a worker that takes over later keeps every total current for longer than these are
        // valid.
        if !first.is_empty() && self.is_superseded(hosting).await? {
            return Ok(RoundOutcome::Superseded);
        }
        if !keys.is_empty() {
            let reading = self.read_own(hosting, keys.clone()).await?;
            // The times until which totals are valid are by the wrong clock.
            if host.clock_reset() != clock_reset {
                return Err("the partition's clock was reset meanwhile".to_owned());
            }
            let totals = keys.iter().zip(valid_until).zip(reading.records()).zip(&reading.summed);
            let updates = totals.map(|(((key, valid_until), record), summed)| TotalUpdate {
                key: key.clone(),
                position: reading.position,
                at: reading.as_of,
                valid_until,
                record,
                summed: summed.clone(),
                first: first.contains(key),
            });
            let published = self.services.totals.publish(&updates.collect::<Vec<_>>()).await;
            host.round().gone(&published.map_err(|error| error.to_string())?.gone);
        }
        let heartbeat = Heartbeat {
            partition: host.partition,
            position,
            at,
            since: hosting.since(),
            rolled_up_at,
            clock_reset,
            owner: self.address().to_owned(),
            standbys: self.published_standbys(host.partition),
            epoch: hosting.epoch(),
        };
        let published =
            self.services.totals.publish_heartbeats(&[heartbeat]).await.map_err(|error| error.to_string())?;
        guard.due = None;
        hosting.note_published(position);
        host.unpublished.saved();
        Ok(if published.contains(&false) { RoundOutcome::Superseded } else { RoundOutcome::Published })
    }

    /// Reads counters for the worker's own use, from PostgreSQL if they are not in memory.
    pub(super) async fn read_own(&self, hosting: &Arc<Hosting>, keys: Vec<Key>) -> Result<HostReading, String> {
        let (hosting, policies) = (Arc::clone(hosting), self.settings.policies.clone());
        let is_sharded = move |key: &Key| policies.of(key.as_ref()).is_some();
        // Others that wait for PostgreSQL do not delay a reading that needs nothing from it.
        let permit = match hosting.host.has_resident(&keys, &is_sharded) {
            true => None,
            false => {
                let permit = Arc::clone(&self.background_reads).acquire_owned().await;
                Some(permit.map_err(|error| error.to_string())?)
            }
        };
        let reading = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            hosting.host.read_with_summed(&keys, is_sharded)
        });
        reading.await.map_err(|error| error.to_string())?.map_err(|error| error.to_string())
    }

    /// The standbys of a partition, without those whose addresses a heartbeat cannot carry.
    fn published_standbys(&self, partition: u32) -> Vec<String> {
        let standbys = self.standbys.lock().get(&partition).cloned().unwrap_or_default();
        standbys.into_iter().filter(|address| is_address(address)).take(STANDBYS_MAX as usize).collect()
    }

    /// Whether another worker has published a heartbeat of a newer epoch. It would not know of totals that are created
    /// now.
    async fn is_superseded(&self, hosting: &Hosting) -> Result<bool, String> {
        let heartbeats = self.services.totals.heartbeats(&[hosting.host.partition]).await;
        let heartbeats = heartbeats.map_err(|error| error.to_string())?;
        Ok(heartbeats.into_iter().flatten().any(|heartbeat| heartbeat.epoch > hosting.epoch()))
    }
}
