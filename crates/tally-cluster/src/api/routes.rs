//! Where partitions are hosted.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tally_core::time::{Millis, Position};
use tokio::time::Instant;

use super::clocks::PartitionClocks;
use crate::limits::ROUTES_REFRESH_MS;
use crate::postgres::Pg;
use crate::redis::{Heartbeat, Totals};

/// What is known of one partition.
#[derive(Clone, Debug, Default)]
pub struct PartitionRoute {
    /// Address of its owner.
    pub owner: Option<String>,
    /// Redis has every change from `since` up to here.
    pub published: Position,
    /// The time of that position.
    pub published_at: Option<Millis>,
    /// Totals of earlier positions may be outdated.
    pub since: Position,
    /// Everything that sub-counters with a rollup had counted before this time is published; zero if that is not known.
    pub rolled_up_at: Millis,
    /// The position after the last reset of its clock.
    pub clock_reset: Position,
    /// Addresses of its standbys.
    pub standbys: Vec<String>,
}

impl PartitionRoute {
    /// Applies a heartbeat. Nothing goes back, even if Redis has lost the newest heartbeat, except for times from
    /// before a reset of the partition's clock.
    fn observe(&mut self, partition: u32, heartbeat: Heartbeat, clocks: &PartitionClocks) {
        if heartbeat.clock_reset > self.clock_reset {
            if clocks.reset(partition, heartbeat.at, heartbeat.clock_reset) {
                tracing::warn!(partition, "the partition's clock was reset");
            }
            self.clock_reset = heartbeat.clock_reset;
            self.published_at = None;
            self.rolled_up_at = Millis(0);
        }
        // A heartbeat from before the reset has times of the wrong clock.
        if heartbeat.clock_reset == self.clock_reset {
            match self.published_at {
                Some(before) if before < heartbeat.at => clocks.confirm(partition, heartbeat.at, heartbeat.position),
                // It may be from a worker that died long ago.
                _ => clocks.observe(partition, heartbeat.at, heartbeat.position),
            }
            self.published_at = self.published_at.max(Some(heartbeat.at));
            self.rolled_up_at = self.rolled_up_at.max(heartbeat.rolled_up_at);
        }
        self.owner = Some(heartbeat.owner);
        self.published = self.published.max(heartbeat.position);
        self.since = self.since.max(heartbeat.since);
        self.standbys = heartbeat.standbys;
    }
}

/// Owners of partitions and how current Redis is, from the heartbeats of workers.
pub struct PartitionRoutes {
    routes: Mutex<Vec<PartitionRoute>>,
    totals: Arc<Totals>,
    pg: Arc<Pg>,
    clocks: Arc<PartitionClocks>,
    waiting: SharedRefresh,
}

/// Lets many callers that wait for the same news ask for it once.
#[derive(Default)]
struct SharedRefresh(tokio::sync::Mutex<Option<Instant>>);

impl SharedRefresh {
    /// Runs `refresh`, unless another caller began to less than `every` ago: then waits for that one to end.
    async fn run(&self, every: Duration, refresh: impl Future<Output = ()>) {
        let mut began = self.0.lock().await;
        if began.is_none_or(|began| began.elapsed() >= every) {
            *began = Some(Instant::now());
            refresh.await;
        }
    }
}

impl PartitionRoutes {
    /// Starts following the heartbeats, until dropped.
    pub fn start(
        partitions: u32,
        totals: Arc<Totals>,
        pg: Arc<Pg>,
        clocks: Arc<PartitionClocks>,
    ) -> Arc<PartitionRoutes> {
        let routes = Mutex::new(vec![PartitionRoute::default(); partitions as usize]);
        let routes = Arc::new(PartitionRoutes { routes, totals, pg, clocks, waiting: SharedRefresh::default() });
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

    /// Records the owner that a worker has named.
    pub fn set_owner(&self, partition: u32, owner: &str) {
        if let Some(route) = self.routes.lock().get_mut(partition as usize) {
            route.owner = Some(owner.to_owned());
        }
    }

    /// Asks Redis and PostgreSQL, for calls that wait for an owner. However many wait, each is asked at most once per
    /// `every`: a worker that takes over needs them, too.
    pub async fn refresh_for_waiting(&self, every: Duration) {
        let refresh = async {
            self.refresh().await;
            self.refresh_owners().await;
        };
        self.waiting.run(every, refresh).await;
    }

    /// Asks Redis, and PostgreSQL for owners that Redis does not know.
    async fn refresh(&self) {
        let partitions: Vec<u32> = (0..self.routes.lock().len() as u32).collect();
        match self.totals.heartbeats(&partitions).await {
            Ok(heartbeats) => {
                let mut routes = self.routes.lock();
                for ((route, heartbeat), partition) in routes.iter_mut().zip(heartbeats).zip(partitions) {
                    if let Some(heartbeat) = heartbeat {
                        route.observe(partition, heartbeat, &self.clocks);
                    }
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
    async fn refresh_owners(&self) {
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

    const HOUR: u64 = 3_600_000;

    fn heartbeat(position: u64, at: u64, clock_reset: u64) -> Heartbeat {
        Heartbeat {
            partition: 0,
            epoch: 1,
            position: Position(position),
            at: Millis(at),
            since: Position(0),
            rolled_up_at: Millis(at),
            clock_reset: Position(clock_reset),
            owner: String::new(),
            standbys: Vec::new(),
        }
    }

    #[test]
    fn a_reset_of_the_clock_is_noticed_however_small_and_whoever_told_the_time() {
        let (clocks, mut route) = (PartitionClocks::new(1), PartitionRoute::default());
        // From an append of this node: no heartbeat has that time.
        clocks.learn(0, Millis(10 * HOUR), Position(9));
        route.observe(0, heartbeat(10, HOUR, 0), &clocks);
        assert!(clocks.now(0) >= Millis(10 * HOUR), "a heartbeat may be old");
        route.observe(0, heartbeat(11, HOUR, 11), &clocks);
        assert!(clocks.now(0) < Millis(2 * HOUR) && !clocks.is_known(0));
        assert_eq!((route.published_at, route.rolled_up_at), (Some(Millis(HOUR)), Millis(HOUR)));
        // By a second.
        route.observe(0, heartbeat(12, HOUR + 2_000, 11), &clocks);
        route.observe(0, heartbeat(13, HOUR + 1_000, 13), &clocks);
        assert_eq!(route.published_at, Some(Millis(HOUR + 1_000)));
    }

    #[test]
    fn a_heartbeat_from_before_the_reset_does_not_bring_its_time_back() {
        let (clocks, mut route) = (PartitionClocks::new(1), PartitionRoute::default());
        route.observe(0, heartbeat(11, HOUR, 11), &clocks);
        // Redis has failed over to a replica that lacks the last heartbeats.
        route.observe(0, heartbeat(10, 10 * HOUR, 0), &clocks);
        assert!(clocks.now(0) < Millis(2 * HOUR));
        assert_eq!((route.published_at, route.rolled_up_at), (Some(Millis(HOUR)), Millis(HOUR)));
    }

    #[test]
    fn what_a_route_knows_does_not_go_back() {
        let (clocks, mut route) = (PartitionClocks::new(1), PartitionRoute::default());
        route.observe(0, heartbeat(10, 2 * HOUR, 0), &clocks);
        route.observe(0, heartbeat(9, HOUR, 0), &clocks);
        assert_eq!((route.published, route.published_at), (Position(10), Some(Millis(2 * HOUR))));
        assert!(clocks.now(0) >= Millis(2 * HOUR) && !clocks.is_known(0));
    }

    #[tokio::test]
    async fn callers_that_wait_at_the_same_time_refresh_once() {
        let (shared, refreshed) = (SharedRefresh::default(), std::cell::Cell::new(0));
        let refresh = || async {
            tokio::task::yield_now().await;
            refreshed.set(refreshed.get() + 1);
        };
        let hour = Duration::from_secs(3_600);
        futures_util::future::join_all((0..1_000).map(|_| shared.run(hour, refresh()))).await;
        assert_eq!(refreshed.get(), 1);
        shared.run(Duration::ZERO, refresh()).await;
        assert_eq!(refreshed.get(), 2, "after the time has passed");
    }
}
