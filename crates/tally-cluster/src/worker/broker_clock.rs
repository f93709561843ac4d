//! The time by the brokers' clocks, between records.

use std::sync::atomic::{AtomicI64, Ordering};

use tally_core::time::Millis;
use tally_engine::clock::{Clock, SystemClock};

/// Follows the time of the brokers: the newest record's, plus what has passed since by the monotonic clock. Never ahead of
/// the brokers, because records arrive after they were appended.
pub struct BrokerClock {
    /// Brokers' time minus the monotonic clock, in milliseconds; the largest seen.
    offset: AtomicI64,
}

impl Default for BrokerClock {
    fn default() -> Self {
        BrokerClock { offset: AtomicI64::new(i64::MIN) }
    }
}

impl BrokerClock {
    /// A record of this time has just arrived.
    pub fn observe(&self, at: Millis) {
        self.offset.fetch_max(at.0 as i64 - elapsed_ms(), Ordering::AcqRel);
    }

    /// The time, if a record has arrived yet.
    pub fn now(&self) -> Option<Millis> {
        let offset = self.offset.load(Ordering::Acquire);
        (offset != i64::MIN).then(|| Millis((elapsed_ms() + offset).max(0) as u64))
    }
}

fn elapsed_ms() -> i64 {
    SystemClock.elapsed().as_millis() as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_records_do_not_set_the_clock_back() {
        let clock = BrokerClock::default();
        assert_eq!(clock.now(), None);
        clock.observe(Millis(1_000_000));
        clock.observe(Millis(5));
        assert!(clock.now() >= Some(Millis(1_000_000)));
    }
}
