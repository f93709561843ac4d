//! The metrics of a worker.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tally_core::surface::{Metric, MetricValue};
use tally_core::time::Millis;

use super::WorkerShared;
use super::hosting::Hosting;
use crate::limits::METERS_EVERY_MS;
use crate::rpc::Role;

/// What a worker counts, and what it has to ask services for.
#[derive(Debug, Default)]
pub struct WorkerMeters {
    /// Events whose request id was known.
    pub duplicates: Arc<AtomicU64>,
    /// Request ids in PostgreSQL, those of all partitions.
    stored_requests: AtomicU64,
    /// Totals in Redis that differed from the state.
    pub drift_found: AtomicU64,
    /// Those that were replaced.
    pub drift_healed: AtomicU64,
}

/// Asks regularly for what metrics need, until the worker is gone.
pub async fn observe(worker: Weak<WorkerShared>) {
    let mut every = tokio::time::interval(Duration::from_millis(METERS_EVERY_MS));
    every.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        every.tick().await;
        let Some(shared) = worker.upgrade() else { return };
        for hosting in shared.all_hosted() {
            if let Ok(end) = hosting.ends.reported().await {
                hosting.end.store(end.0, Ordering::Relaxed);
            }
        }
        match shared.services.pg.request_count().await {
            Ok(count) => shared.meters.stored_requests.store(count, Ordering::Relaxed),
            Err(error) => tracing::debug!(%error, "request ids cannot be counted"),
        }
    }
}

impl WorkerShared {
    pub(super) fn all_hosted(&self) -> Vec<Arc<Hosting>> {
        self.hosted.lock().values().cloned().collect()
    }

    /// The most writes per second to one sub-counter, and how far the slowest aggregator is behind.
    pub(super) fn shard_load(&self) -> (f64, Duration) {
        let hosted = self.hosted.lock();
        let gauges = hosted.values().map(|hosting| &hosting.aggregator);
        gauges.fold((0.0, Duration::ZERO), |(load, lag), gauge| (gauge.load_max().max(load), gauge.lag().max(lag)))
    }

    pub(super) fn metrics(&self) -> Vec<Metric> {
        let (hosted, standbys): (Vec<_>, Vec<_>) =
            self.all_hosted().into_iter().partition(|hosting| hosting.role() == Role::Owner);
        let stopped = self.stopped.lock().len();
        let lag = |age: fn(&Hosting, Millis) -> u64| {
            let ages = hosted.iter().filter_map(|hosting| Some(age(hosting, hosting.host.broker_time()?)));
            ages.max().unwrap_or(0) as f64 / 1e3
        };
        let sum = |records: fn(&Hosting) -> u64| hosted.iter().map(|hosting| records(hosting)).sum::<u64>() as f64;
        let unpersisted = |hosting: &Hosting| hosting.host.applied().0.saturating_sub(hosting.host.persisted().0);
        let unapplied =
            |hosting: &Hosting| hosting.end.load(Ordering::Relaxed).saturating_sub(hosting.host.applied().0);
        // Each worker shows its share, so that the sum over all workers is the whole table.
        let share = hosted.len() as f64 / f64::from(self.settings.partitions.max(1));
        let requests = self.meters.stored_requests.load(Ordering::Relaxed) as f64 * share;
        let shard_load = self.shard_load();
        let gauge = |name, help, value| Metric { name, help, value: MetricValue::Gauge(value) };
        let count = |name, help, count: &AtomicU64| Metric {
            name,
            help,
            value: MetricValue::Counter(count.load(Ordering::Relaxed)),
        };
        let drift_max = hosted.iter().map(|hosting| hosting.drift_max.load(Ordering::Relaxed)).max().unwrap_or(0);
        vec![
            gauge(
                "tally_rollup_lag_seconds",
                "Age of the oldest change that is not in Redis yet",
                lag(|hosting, now| hosting.host.unpublished.age_ms(now)),
            ),
            gauge(
                "tally_persist_lag_seconds",
                "Age of the oldest change that is not in PostgreSQL yet",
                lag(|hosting, now| hosting.host.unpersisted.age_ms(now)),
            ),
            gauge("tally_persist_lag_records", "Records applied that are not in PostgreSQL yet", sum(unpersisted)),
            gauge("tally_apply_lag_records", "Records of the journal that are not applied yet", sum(unapplied)),
            gauge("tally_partitions_hosted", "Partitions that this worker owns", hosted.len() as f64),
            gauge("tally_partitions_standby", "Partitions that this worker stands by for", standbys.len() as f64),
            gauge("tally_partitions_stopped", "Partitions that need an operator", stopped as f64),
            gauge("tally_request_ids", "Request ids in PostgreSQL, of this worker's partitions, estimated", requests),
            gauge("tally_shard_load_max", "Writes per second to the busiest sub-counter", shard_load.0),
            gauge(
                "tally_aggregator_lag_seconds",
                "Upper bound for the age of the oldest increment of a sub-counter that is not summed yet",
                shard_load.1.as_secs_f64(),
            ),
            count("tally_duplicates_total", "Events with a request id that was seen before", &self.meters.duplicates),
            count("tally_drift_found_total", "Totals in Redis that differed from the state", &self.meters.drift_found),
            count("tally_drift_healed_total", "Such totals that were replaced", &self.meters.drift_healed),
            gauge("tally_drift_max", "Largest difference that the last pass over the totals found", drift_max as f64),
            gauge(
                "tally_poisoned",
                "1 if a partition has stopped and needs an operator",
                f64::from(u8::from(stopped > 0)),
            ),
        ]
    }
}
