//! What the engine measures about itself.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use tally_core::batch::Combiner;
use tally_core::outcome::Outcomes;
use tally_core::surface::Figure;

/// A distribution in powers of two.
#[derive(Debug)]
pub(crate) struct Histogram<const N: usize> {
    first_bound: u64,
    buckets: [AtomicU64; N],
    count: AtomicU64,
    sum: AtomicU64,
}

impl<const N: usize> Histogram<N> {
    /// Buckets up to `first_bound`, twice that, and so on.
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

    /// The distribution with every value multiplied by `unit`.
    pub(crate) fn figure(&self, unit: f64) -> Figure {
        let mut below = 0;
        let bound = |i: usize| (self.first_bound << i) as f64 * unit;
        let buckets = self.buckets.iter().enumerate().map(|(i, bucket)| {
            below += bucket.load(Relaxed);
            (bound(i), below)
        });
        let buckets = buckets.collect();
        Figure::Histogram { buckets, count: self.count.load(Relaxed), sum: self.sum.load(Relaxed) as f64 * unit }
    }
}

/// Counts and distributions of the engine's work.
#[derive(Debug)]
pub(crate) struct Meters {
    pub(crate) events: AtomicU64,
    pub(crate) journalled_events: AtomicU64,
    pub(crate) duplicates: AtomicU64,
    pub(crate) expired: AtomicU64,
    pub(crate) journal_bytes: AtomicU64,
    pub(crate) store_reads: AtomicU64,
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
            store_reads: zero(),
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use tally_core::batch::Events;
    use tally_core::event::{Change, Field};
    use tally_core::key::KeyRef;

    use super::*;

    #[test]
    fn reads_are_no_events() {
        let key = KeyRef::new(b"k").unwrap();
        let meters = Meters::new();
        let mut combiner = Combiner::default();
        let mut events = Events::new(0);
        events.push(key, Change::Read(Field::Value), None, None);
        events.add(key, 1);
        events.add(key, 1);
        combiner.gather(&events, &mut Vec::new());
        meters.applied(&combiner, &Outcomes::default());
        assert_eq!((meters.events.load(Relaxed), meters.journalled_events.load(Relaxed)), (2, 1));
    }
}
