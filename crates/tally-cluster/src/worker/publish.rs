//! Publishing totals and heartbeats to Redis.

use std::sync::Arc;

use super::WorkerShared;
use super::hosting::Hosting;
use crate::redis::{Heartbeat, TotalUpdate};

impl WorkerShared {
    /// Publishes changed totals every round, until the partition is let go.
    pub async fn publish_regularly(&self, hosting: &Arc<Hosting>) {
        let mut every = tokio::time::interval(self.settings.rollup_every);
        every.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut topology = None;
        loop {
            every.tick().await;
            // After a failover Redis may lack what it acknowledged before.
            if let Ok(epoch) = self.services.totals.topology_epoch().await
                && topology.replace(epoch).is_some_and(|before| before != epoch)
            {
                hosting.host.round().publish_all();
            }
            let published = self.publish(hosting).await;
            match published {
                Ok(()) => hosting.host.unpublished.saved(),
                Err(_) => hosting.host.unpublished.failed(),
            }
            if let Err(error) = published {
                tracing::warn!(partition = hosting.host.partition, %error, "totals were not published; trying again");
            }
        }
    }

    async fn publish(&self, hosting: &Arc<Hosting>) -> Result<(), String> {
        let host = &hosting.host;
        // Changes up to this position are in the round.
        let (position, at) = host.begin_round();
        let due = host.round().take(at.0);
        let keys: Vec<_> = due.changed.union(&due.first).cloned().collect();
        if !keys.is_empty() {
            let reading = tokio::task::spawn_blocking({
                let (hosting, keys) = (Arc::clone(hosting), keys.clone());
                let policies = self.settings.policies.clone();
                move || hosting.host.read_with_summed(&keys, |key| policies.of(key.as_ref()).is_some())
            });
            let published = match reading.await {
                Ok(Ok(reading)) => {
                    let counters = keys.iter().zip(reading.records()).zip(&reading.summed);
                    let updates = counters.map(|((key, record), summed)| TotalUpdate {
                        key: key.clone(),
                        position: reading.position,
                        at: reading.at,
                        record,
                        summed: summed.clone(),
                        first: due.first.contains(key),
                    });
                    let updates: Vec<TotalUpdate> = updates.collect();
                    self.services.totals.publish(&updates).await.map_err(|error| error.to_string())
                }
                Ok(Err(error)) => Err(error.to_string()),
                Err(error) => Err(error.to_string()),
            };
            match published {
                Ok(report) => host.round().gone(&report.gone),
                Err(error) => {
                    host.round().put_back(due);
                    return Err(error);
                }
            }
        }
        let heartbeat = Heartbeat {
            partition: host.partition,
            position,
            at,
            owner: self.address().to_owned(),
            epoch: hosting.epoch,
        };
        let published = self.services.totals.publish_heartbeats(&[heartbeat]).await;
        published.map(|_| ()).map_err(|error| error.to_string())
    }
}
