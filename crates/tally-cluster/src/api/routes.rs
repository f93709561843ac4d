//! Where partitions are hosted.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tally_core::time::{Millis, Position};

use super::clocks::PartitionClocks;
use crate::limits::{CLOCK_RESET_MIN_MS, ROUTES_REFRESH_MS};
use crate::postgres::Pg;
use crate::redis::{Heartbeat, Totals};

/// What is known of one partition.
#[derive(Clone, Debug, Default)]
pub struct PartitionRoute {
    /// Address of its owner.
    pub owner: Option<String>,
    /// Redis has every change from there up to here.
    pub published: Position,
    /// The time of that position.
    pub published_at: Option<Millis>,
    /// Totals of earlier positions may be outdated.
    pub since: Position,
    /// Everything that sub-counters with a rollup had counted before this time is published; zero if that is not known.
    pub rolled_up_at: Millis,
    /// Others that apply the partition.
    pub standbys: Vec<String>,
}

impl PartitionRoute {
    /// Whether the partition's clock was reset before this heartbeat: it is of a later position and of an earlier time.
    /// Between brokers, clocks differ by less.
    fn was_reset(&self, heartbeat: &Heartbeat) -> bool {
        let is_earlier = |known: Millis| known.since(heartbeat.at) > CLOCK_RESET_MIN_MS;
        heartbeat.position > self.published && self.published_at.is_some_and(is_earlier)
    }
}

/// Owners of partitions and how current Redis is, from the heartbeats of workers.
pub struct PartitionRoutes {
    routes: Mutex<Vec<PartitionRoute>>,
    totals: Arc<Totals>,
    pg: Arc<Pg>,
    clocks: Arc<PartitionClocks>,
}

impl PartitionRoutes {
    /// Starts to follow the heartbeats, until dropped.
    pub fn start(
        partitions: u32,
        totals: Arc<Totals>,
        pg: Arc<Pg>,
        clocks: Arc<PartitionClocks>,
    ) -> Arc<PartitionRoutes> {
        let routes = Mutex::new(vec![PartitionRoute::default(); partitions as usize]);
        let routes = Arc::new(PartitionRoutes { routes, totals, pg, clocks });
        let weak = Arc::downgrade(&routes);
        tokio::spawn(async move {
            let mut every = tokio::time::interval(Duration::from_millis(ROUTES_REFRESH_MS));
            every.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            loop {
                every.tick().await;
                let Some(routes) = weak.upgrade() else { return };
                routes.refresh().await;
            }
        });
        routes
    }

    /// What is known of a partition.
    pub fn get(&self, partition: u32) -> PartitionRoute {
        self.routes.lock().get(partition as usize).cloned().unwrap_or_default()
    }

    /// A worker said who owns the partition.
    pub fn set_owner(&self, partition: u32, owner: &str) {
        if let Some(route) = self.routes.lock().get_mut(partition as usize) {
            route.owner = Some(owner.to_owned());
        }
    }

    /// Asks Redis, and PostgreSQL for owners that Redis does not know.
    pub async fn refresh(&self) {
        let partitions: Vec<u32> = (0..self.routes.lock().len() as u32).collect();
        match self.totals.heartbeats(&partitions).await {
            Ok(heartbeats) => {
                let mut routes = self.routes.lock();
                for ((route, heartbeat), partition) in routes.iter_mut().zip(heartbeats).zip(partitions) {
                    let Some(heartbeat) = heartbeat else { continue };
                    if route.was_reset(&heartbeat) {
                        tracing::warn!(partition, "the partition's clock was reset");
                        self.clocks.reset(partition, heartbeat.at);
                        route.published_at = None;
                        route.rolled_up_at = Millis(0);
                    }
                    match route.published_at {
                        Some(before) if before < heartbeat.at => self.clocks.learn(partition, heartbeat.at),
                        // It may be of a worker that is long gone.
                        _ => self.clocks.observe(partition, heartbeat.at),
                    }
                    route.owner = Some(heartbeat.owner);
                    route.published = route.published.max(heartbeat.position);
                    route.published_at = route.published_at.max(Some(heartbeat.at));
                    // It never goes back, also if Redis has lost the newest heartbeat.
                    route.since = route.since.max(heartbeat.since);
                    route.rolled_up_at = route.rolled_up_at.max(heartbeat.rolled_up_at);
                    route.standbys = heartbeat.standbys;
                }
            }
            Err(error) => tracing::debug!(%error, "heartbeats cannot be read"),
        }
        if let Err(error) = self.totals.generation().await {
            tracing::debug!(%error, "the masters of Redis are not known");
        }
        if self.routes.lock().iter().any(|route| route.owner.is_none()) {
            self.refresh_owners().await;
        }
    }

    /// Asks PostgreSQL who owns which partition.
    pub async fn refresh_owners(&self) {
        match self.pg.partitions().await {
            Ok(rows) => {
                let mut routes = self.routes.lock();
                for row in rows {
                    if let (Some(route), Some(owner)) = (routes.get_mut(row.partition as usize), row.owner) {
                        route.owner = Some(owner);
                    }
                }
            }
            Err(error) => tracing::debug!(%error, "owners cannot be read"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_position_with_a_much_earlier_time_means_that_the_clock_was_reset() {
        let at = |position, at| Heartbeat {
            partition: 0,
            epoch: 1,
            position: Position(position),
            at: Millis(at),
            since: Position(0),
            rolled_up_at: Millis(0),
            owner: String::new(),
            standbys: Vec::new(),
        };
        let hour = 3_600_000;
        let route = PartitionRoute {
            published: Position(10),
            published_at: Some(Millis(2 * hour)),
            ..PartitionRoute::default()
        };
        assert!(route.was_reset(&at(11, hour)));
        assert!(!route.was_reset(&at(10, hour)), "a new owner that has not caught up");
        assert!(!route.was_reset(&at(11, 2 * hour - CLOCK_RESET_MIN_MS)), "brokers differ");
        assert!(!route.was_reset(&at(11, 3 * hour)));
        assert!(!PartitionRoute::default().was_reset(&at(11, 0)));
    }
}
