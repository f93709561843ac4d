//! The time by the brokers' clocks, between records.

use std::sync::atomic::{AtomicI64, Ordering};

use tally_core::limits::CLOCK_AHEAD_REPORTED_MS;
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

    /// A record of this time has just arrived, and the time before it was wrong.
    pub fn reset(&self, at: Millis) {
        self.offset.store(at.0 as i64 - elapsed_ms(), Ordering::Release);
    }

    /// The time, if a record has arrived yet.
    pub fn now(&self) -> Option<Millis> {
        let offset = self.offset.load(Ordering::Acquire);
        (offset != i64::MIN).then(|| Millis((elapsed_ms() + offset).max(0) as u64))
    }
}

/// Notices records from the future: those whose time is further ahead of the last ones than time has passed since.
#[derive(Debug, Default)]
pub struct JumpWatch {
    /// Brokers' time minus the monotonic clock, in milliseconds, of a record that arrived when it was appended.
    offset: Option<i64>,
}

impl JumpWatch {
    /// A record of this time arrived at this time of the monotonic clock. `is_current` is whether it was appended just before,
    /// as opposed to one that is replayed. Answers how far it is ahead, in milliseconds, if it is from the future. Records
    /// behind it are not.
    pub fn observe(&mut self, at: Millis, elapsed_ms: i64, is_current: bool) -> Option<u64> {
        let offset = at.0 as i64 - elapsed_ms;
        let ahead = self.offset.map_or(0, |known| offset - known);
        if is_current {
            self.offset = self.offset.max(Some(offset));
        }
        u64::try_from(ahead).ok().filter(|ahead| *ahead > CLOCK_AHEAD_REPORTED_MS)
    }

    /// The time before was wrong. The next record that is current says which is right.
    pub fn reset(&mut self) {
        self.offset = None;
    }
}

/// The monotonic clock.
pub fn elapsed_ms() -> i64 {
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

    #[test]
    fn a_reset_sets_the_clock_back() {
        let clock = BrokerClock::default();
        clock.observe(Millis(9_000_000));
        clock.reset(Millis(1_000));
        assert!(clock.now().is_some_and(|now| now < Millis(5_000_000)));
    }

    #[test]
    fn a_record_from_the_future_is_noticed_once_and_replayed_ones_are_not() {
        let (mut watch, hour) = (JumpWatch::default(), 3_600_000);
        // Replayed: hours within a moment.
        for hours in 0..5 {
            assert_eq!(watch.observe(Millis(hours * hour), 10, false), None);
        }
        let now = 5 * hour;
        assert_eq!(watch.observe(Millis(now), 20, true), None, "nothing to compare it with");
        assert_eq!(watch.observe(Millis(now + hour), 20 + hour as i64, true), None, "an hour has passed");
        assert_eq!(watch.observe(Millis(now + hour + 60_000), 20 + hour as i64, true), None, "brokers differ a little");
        let ahead = Millis(now + 3 * hour);
        assert_eq!(watch.observe(ahead, 20 + hour as i64, true), Some(2 * hour - 60_000));
        assert_eq!(watch.observe(ahead, 20 + hour as i64, true), None, "once");
        watch.reset();
        assert_eq!(watch.observe(Millis(now + hour), 20 + hour as i64, true), None);
        assert_eq!(watch.observe(ahead, 20 + hour as i64, true), Some(2 * hour), "and again after a reset");
    }
}
