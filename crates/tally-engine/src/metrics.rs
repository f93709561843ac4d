//! The engine's metrics.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use tally_core::batch::Combiner;
use tally_core::outcome::Outcomes;
use tally_core::surface::{Metric, MetricValue};

use crate::machine::Machine;

/// A histogram whose buckets grow by powers of two.
#[derive(Debug)]
pub(crate) struct Histogram<const N: usize> {
    first_bound: u64,
    buckets: [AtomicU64; N],
    count: AtomicU64,
    sum: AtomicU64,
}

impl<const N: usize> Histogram<N> {
    /// Buckets with upper bounds `first_bound`, twice that, and so on.
    pub(crate) fn new(first_bound: u64) -> Self {
        Histogram {
            first_bound,
            buckets: std::array::from_fn(|_| AtomicU64::new(0)),
            count: AtomicU64::new(0),
            sum: AtomicU64::new(0),
        }
    }

    pub(crate) fn record(&self, value: u64) {
        let over = value.div_ceil(self.first_bound).max(1);
        let bucket = over.next_power_of_two().trailing_zeros() as usize;
        if let Some(bucket) = self.buckets.get(bucket) {
            bucket.fetch_add(1, Relaxed);
        }
        self.count.fetch_add(1, Relaxed);
        self.sum.fetch_add(value, Relaxed);
    }

    /// The histogram with every value multiplied by `unit`.
    pub(crate) fn value(&self, unit: f64) -> MetricValue {
        let mut below = 0;
        let bound = |i: usize| (self.first_bound << i) as f64 * unit;
        let buckets = self.buckets.iter().enumerate().map(|(i, bucket)| {
            below += bucket.load(Relaxed);
            (bound(i), below)
        });
        let buckets = buckets.collect();
        MetricValue::Histogram { buckets, count: self.count.load(Relaxed), sum: self.sum.load(Relaxed) as f64 * unit }
    }
}

/// Counters and histograms that the engine updates as it works.
#[derive(Debug)]
pub(crate) struct Meters {
    pub(crate) events: AtomicU64,
    pub(crate) journalled_events: AtomicU64,
    pub(crate) duplicates: AtomicU64,
    pub(crate) expired: AtomicU64,
    pub(crate) journal_bytes: AtomicU64,
    pub(crate) checkpoints: AtomicU64,
    pub(crate) checkpoint_records: AtomicU64,
    pub(crate) flush_micros: Histogram<20>,
    pub(crate) batch_events: Histogram<20>,
}

impl Meters {
    pub(crate) fn new() -> Self {
        let zero = || AtomicU64::new(0);
        Meters {
            events: zero(),
            journalled_events: zero(),
            duplicates: zero(),
            expired: zero(),
            journal_bytes: zero(),
            checkpoints: zero(),
            checkpoint_records: zero(),
            flush_micros: Histogram::new(16),
            batch_events: Histogram::new(1),
        }
    }

    pub(crate) fn applied(&self, combiner: &Combiner, outcomes: &Outcomes) {
        self.events.fetch_add(combiner.events() as u64, Relaxed);
        self.journalled_events.fetch_add(combiner.batch().journalled_len() as u64, Relaxed);
        if combiner.events() > 0 {
            self.batch_events.record(combiner.events() as u64);
        }
        let duplicates = outcomes.slots().iter().filter(|outcome| outcome.is_duplicate()).count();
        self.duplicates.fetch_add(duplicates as u64, Relaxed);
    }

    pub(crate) fn flushed(&self, micros: u64, bytes: usize) {
        self.flush_micros.record(micros);
        self.journal_bytes.fetch_add(bytes as u64, Relaxed);
    }
}

impl Machine {
    /// All metrics of the engine.
    pub(crate) fn metrics(&self) -> Vec<Metric> {
        let meters = &self.meters;
        let (all, expiring, memory, counters, requests, dirty) = {
            let state = self.state.lock();
            let partition = &state.partition;
            (
                partition.counters(),
                partition.expiring(),
                partition.memory_bytes(),
                partition.resident_counters(),
                partition.resident_requests(),
                partition.dirty_counters(),
            )
        };
        let count =
            |name, help, count: &AtomicU64| Metric { name, help, value: MetricValue::Counter(count.load(Relaxed)) };
        let gauge = |name, help, value: f64| Metric { name, help, value: MetricValue::Gauge(value) };
        vec![
            count("tally_events_total", "Events applied, before combining", &meters.events),
            count("tally_journalled_events_total", "Events journalled, after combining", &meters.journalled_events),
            count("tally_duplicates_total", "Events with a request id that was seen before", &meters.duplicates),
            count("tally_expired_counters_total", "Expired counters that were removed or recreated", &meters.expired),
            count("tally_journal_bytes_total", "Bytes written to the journal", &meters.journal_bytes),
            Metric {
                name: "tally_store_reads_total",
                help: "Records looked up in the store because they were not in memory",
                value: MetricValue::Counter(self.state.store_reads()),
            },
            count("tally_checkpoints_total", "Checkpoints completed", &meters.checkpoints),
            count("tally_checkpoint_records_total", "Records written by checkpoints", &meters.checkpoint_records),
            Metric {
                name: "tally_journal_flush_seconds",
                help: "Time to write and sync one flush",
                value: meters.flush_micros.value(1e-6),
            },
            Metric {
                name: "tally_batch_events",
                help: "Events per batch, before combining",
                value: meters.batch_events.value(1.0),
            },
            gauge("tally_persist_lag_bytes", "Journal bytes since the last checkpoint", self.journal_lag() as f64),
            gauge("tally_memory_bytes", "Memory used by counters and request ids", memory as f64),
            gauge("tally_counters", "Counters in memory and in the store", all as f64),
            gauge(
                "tally_expiring_counters",
                "Counters with an expiry, including expired ones that are not removed yet",
                expiring as f64,
            ),
            gauge("tally_resident_counters", "Counters in memory", counters as f64),
            gauge("tally_dirty_counters", "Counters changed since the last checkpoint began", dirty as f64),
            gauge("tally_request_ids", "Request ids in memory", requests as f64),
            gauge("tally_store_bytes", "Bytes of the store on disk", self.store.disk_bytes() as f64),
            gauge("tally_store_runs", "Sorted runs in the store", self.store.runs() as f64),
            gauge(
                "tally_poisoned",
                "1 if the engine has stopped because of a failed flush or damage",
                f64::from(u8::from(self.poison.reason().is_some())),
            ),
        ]
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use tally_core::batch::Events;
    use tally_core::event::{Change, Field};
    use tally_core::key::KeyRef;

    use super::*;

    #[test]
    fn reads_do_not_count_as_events() {
        let key = KeyRef::new(b"k").unwrap();
        let meters = Meters::new();
        let mut combiner = Combiner::default();
        let mut events = Events::new(0);
        events.push(key, Change::Read(Field::Value), None, None);
        events.add(key, 1);
        events.add(key, 1);
        combiner.combine(&events, &mut Vec::new());
        meters.applied(&combiner, &Outcomes::default());
        assert_eq!((meters.events.load(Relaxed), meters.journalled_events.load(Relaxed)), (2, 1));
    }
}
