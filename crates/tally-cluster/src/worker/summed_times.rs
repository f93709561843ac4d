//! Up to which time sub-counters are summed.

use std::sync::atomic::{AtomicU64, Ordering};

use tally_core::time::Millis;

/// Times of the partition. Zero means that nothing is known.
#[derive(Debug, Default)]
pub struct SummedTimes {
    rolled_up: AtomicU64,
    all: AtomicU64,
}

impl SummedTimes {
    /// Everything that sub-counters with a rollup had counted before the first time is applied, and everything that all
    /// had counted before the second. `now` is the partition's time, if that is known: later times are from before its
    /// clock was set back, and are ignored.
    pub fn note(&self, rolled_up: Millis, all: Millis, now: Option<Millis>) {
        for (time, noted) in [(&self.rolled_up, rolled_up), (&self.all, all)] {
            if now.is_none_or(|now| noted <= now) {
                time.fetch_max(noted.0, Ordering::AcqRel);
            }
        }
    }

    /// The partition's clock was set back.
    pub fn reset(&self) {
        self.rolled_up.store(0, Ordering::Release);
        self.all.store(0, Ordering::Release);
    }

    /// Everything that sub-counters with a rollup had counted before this time is applied.
    pub fn rolled_up(&self) -> Millis {
        Millis(self.rolled_up.load(Ordering::Acquire))
    }

    /// Everything that sub-counters had counted before this time is applied. Sub-counters that are summed on read are
    /// otherwise summed less often.
    pub fn all(&self) -> Millis {
        Millis(self.all.load(Ordering::Acquire))
    }
}
