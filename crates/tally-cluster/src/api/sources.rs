//! Where approximate readings come from.

use std::sync::atomic::{AtomicU64, Ordering};

use tally_core::surface::{Metric, MetricValue};

/// Counters that were read, by where they were found.
#[derive(Debug, Default)]
pub struct ReadSources {
    redis: AtomicU64,
    worker: AtomicU64,
    postgres: AtomicU64,
}

impl ReadSources {
    /// Totals in Redis.
    pub fn count_redis(&self, counters: usize) {
        self.redis.fetch_add(counters as u64, Ordering::Relaxed);
    }

    /// Redis had none, so a worker was asked.
    pub fn count_worker(&self, counters: usize) {
        self.worker.fetch_add(counters as u64, Ordering::Relaxed);
    }

    /// No worker answered either.
    pub fn count_postgres(&self, counters: usize) {
        self.postgres.fetch_add(counters as u64, Ordering::Relaxed);
    }

    /// As a metric.
    pub fn metric(&self) -> Metric {
        let counts = [("redis", &self.redis), ("worker", &self.worker), ("postgres", &self.postgres)];
        Metric {
            name: "tally_total_reads_total",
            help: "Counters read approximately, by where they were found",
            value: MetricValue::CounterBy {
                label: "source",
                counts: counts.map(|(source, count)| (source, count.load(Ordering::Relaxed))).to_vec(),
            },
        }
    }
}
