//! The time by the brokers' clocks, between records.

use parking_lot::Mutex;
use tally_core::limits::CLOCK_AHEAD_REPORTED_MS;
use tally_core::time::Millis;
use tally_engine::clock::{Clock, SystemClock};

use crate::limits::CLOCK_WINDOW_MS;

/// Follows the time of the brokers: the newest record's, plus what has passed since by the monotonic clock.
///
/// Records arrive after they were appended, so the largest difference between the two clocks is the best estimate. Only
/// recent ones count: a broker whose clock was ahead for a moment, or a monotonic clock that is too fast, must not
/// leave the time ahead for good. If the difference becomes smaller, time runs at half speed until it is right again.
#[derive(Default)]
pub struct BrokerClock {
    state: Mutex<ClockState>,
}

#[derive(Debug, Default)]
struct ClockState {
    /// Brokers' time minus the monotonic clock, in milliseconds.
    offset: RecentMax,
    /// The offset that was last shown, and when, by the monotonic clock.
    shown: Option<(i64, i64)>,
}

impl BrokerClock {
    /// It is this time now, or later: a record or heartbeat of this time has arrived, which may be old.
    pub fn observe(&self, at: Millis) {
        self.state.lock().observe(at, elapsed_ms());
    }

    /// It is this time now: a record of this time was appended just before.
    pub fn learn(&self, now: Millis) {
        self.state.lock().learn(now, elapsed_ms());
    }

    /// Discards the time before, which was wrong. It is this time now, or later.
    pub fn reset(&self, at: Millis) {
        let mut state = self.state.lock();
        *state = ClockState::default();
        state.observe(at, elapsed_ms());
    }

    /// The time, if any was observed yet.
    pub fn now(&self) -> Option<Millis> {
        self.state.lock().now(elapsed_ms())
    }
}

impl ClockState {
    fn observe(&mut self, at: Millis, elapsed_ms: i64) {
        self.offset.raise(at.0 as i64 - elapsed_ms, elapsed_ms);
    }

    fn learn(&mut self, now: Millis, elapsed_ms: i64) {
        self.offset.observe(now.0 as i64 - elapsed_ms, elapsed_ms);
    }

    fn now(&mut self, elapsed_ms: i64) -> Option<Millis> {
        let offset = self.offset.get()?;
        let shown = match self.shown {
            // Kept until at least a millisecond is due.
            Some((shown, since)) if shown > offset && elapsed_ms - since < 2 => (shown, since),
            Some((shown, since)) if shown > offset => ((shown - (elapsed_ms - since) / 2).max(offset), elapsed_ms),
            _ => (offset, elapsed_ms),
        };
        self.shown = Some(shown);
        Some(Millis((elapsed_ms + shown.0).max(0) as u64))
    }
}

/// The maximum of recent numbers: of this time window and the one before.
#[derive(Clone, Copy, Debug, Default)]
struct RecentMax {
    this_window: Option<i64>,
    window_before: Option<i64>,
    began_ms: i64,
}

impl RecentMax {
    fn get(&self) -> Option<i64> {
        self.this_window.max(self.window_before)
    }

    /// Adds a number that may be too small. It does not replace earlier ones, however old they are.
    fn raise(&mut self, number: i64, elapsed_ms: i64) {
        if self.get().is_none() {
            self.began_ms = elapsed_ms;
        }
        self.this_window = self.this_window.max(Some(number));
    }

    /// Adds a number that is accurate at this time, and drops those that are too old.
    fn observe(&mut self, number: i64, elapsed_ms: i64) {
        let window = elapsed_ms - self.began_ms;
        if self.get().is_some() && window >= CLOCK_WINDOW_MS {
            self.window_before = self.this_window.take().filter(|_| window < 2 * CLOCK_WINDOW_MS);
            self.began_ms = elapsed_ms;
        }
        self.raise(number, elapsed_ms);
    }
}

/// Detects records from the future: those whose time has advanced by more than the time that has passed since the last
/// ones.
#[derive(Debug, Default)]
pub struct JumpWatch {
    /// Brokers' time minus the monotonic clock, in milliseconds, of a record that arrived when it was appended. The
    /// largest so far: after a pause, records that were not applied meanwhile have a smaller one, and those that follow
    /// are not ahead.
    offset: Option<i64>,
}

impl JumpWatch {
    /// A record of this time arrived at this time of the monotonic clock. `is_current` is whether it was appended just
    /// before, as opposed to one that is replayed. Returns how far it is ahead, in milliseconds, if it is from the
    /// future. Records that follow are compared with it, so a jump is reported once.
    pub fn observe(&mut self, at: Millis, elapsed_ms: i64, is_current: bool) -> Option<u64> {
        let offset = at.0 as i64 - elapsed_ms;
        let ahead = self.offset.map_or(0, |known| offset - known);
        if is_current {
            self.offset = self.offset.max(Some(offset));
        }
        u64::try_from(ahead).ok().filter(|ahead| *ahead > CLOCK_AHEAD_REPORTED_MS)
    }

    /// The time before was wrong. The next current record sets the right one.
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

    /// The time shown after ten minutes of records, one every second, by a clock that was ahead at first.
    fn after_a_step(ahead_ms: i64, start: i64) -> i64 {
        let mut clock = ClockState::default();
        clock.learn(Millis((1_000_000_000 + ahead_ms) as u64), start);
        let mut last = Millis(0);
        for second in 1..600 {
            let (time, elapsed) = (1_000_000_000 + second * 1_000, start + second * 1_000);
            clock.learn(Millis(time as u64), elapsed);
            // Between records, too, and often.
            for ms in 0..5 {
                let now = clock.now(elapsed + ms).unwrap();
                assert!(now >= last, "time does not go back");
                last = now;
            }
        }
        last.0 as i64 - 1_000_599_000
    }

    #[test]
    fn a_broker_that_was_ahead_for_a_moment_does_not_leave_the_time_ahead() {
        assert!((0..1_000).contains(&after_a_step(0, 0)));
        for start in [0, 5_000, 10_000_000] {
            assert!((0..1_000).contains(&after_a_step(55_000, start)), "{}", after_a_step(55_000, start));
        }
    }

    #[test]
    fn old_times_that_are_observed_again_and_again_do_not_stop_the_clock() {
        let mut clock = ClockState::default();
        clock.learn(Millis(1_000_000), 0);
        let hour = 3_600_000;
        // The heartbeats of a dead worker.
        (0..3_600).for_each(|second| clock.observe(Millis(1_000_000), second * 1_000));
        assert_eq!(clock.now(hour), Some(Millis(1_000_000 + hour as u64)));
    }

    #[test]
    fn after_a_pause_the_next_time_that_is_known_counts() {
        let mut clock = ClockState::default();
        clock.learn(Millis(1_000_000), 0);
        assert_eq!(clock.now(0), Some(Millis(1_000_000)));
        // The monotonic clock has gained a second in an hour.
        let hour = 3_600_000;
        assert_eq!(clock.now(hour), Some(Millis(1_000_000 + hour as u64)));
        clock.learn(Millis(999_000 + hour as u64), hour);
        assert_eq!(clock.now(hour + 2_000), Some(Millis(1_001_000 + hour as u64)));
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

    #[test]
    fn records_that_were_not_applied_for_a_while_are_not_from_the_future() {
        let (mut watch, minute) = (JumpWatch::default(), 60_000);
        assert_eq!(watch.observe(Millis(minute), 0, true), None);
        // PostgreSQL was down for ten minutes. The records of that time arrive within a second.
        for passed in 1..=10 {
            let elapsed = 10 * minute as i64 + passed as i64 * 100;
            assert_eq!(watch.observe(Millis((1 + passed) * minute), elapsed, true), None);
        }
    }
}
