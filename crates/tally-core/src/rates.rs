//! How fast a counter moves: net change per second over the last second, minute and hour.
//!
//! Each window length keeps two sums, of the current and of the previous window. A reading weights the previous sum by
//! the fraction of it that the sliding window still covers. That is exact at window edges; in between it assumes that
//! changes are spread evenly within the previous window. It costs ten or twelve bytes per length, however busy the
//! counter is. Windows are aligned to the epoch, so the time of the last change says which windows the sums belong to.

use crate::time::Millis;

/// Lengths of the windows, in milliseconds.
pub const WINDOWS_MS: [u64; 3] = [1_000, 60_000, 3_600_000];

/// Bytes of each stored sum. Sums saturate: at 500 billion in a second, 9 billion a second for a minute, 39 billion a
/// second for an hour.
pub(crate) const SUM_BYTES: [usize; 3] = [5, 5, 6];

const fn sum_max(window: usize) -> i64 {
    (1 << (8 * SUM_BYTES[window] - 1)) - 1
}

/// Sums of the current and the previous window, for each length.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rates {
    sums: [(i64, i64); 3],
}

impl Rates {
    /// Records `delta` at `now`; `last` is the time of the previous change.
    pub fn record(&mut self, last: Millis, now: Millis, delta: i64) {
        *self = self.rolled(last, now);
        for (window, (current, _)) in self.sums.iter_mut().enumerate() {
            *current = current.saturating_add(delta).clamp(-sum_max(window), sum_max(window));
        }
    }

    /// Change per second over the last second, minute and hour, as seen at `now`.
    #[must_use]
    pub fn per_second(&self, last: Millis, now: Millis) -> [f64; 3] {
        let now = now.max(last);
        let rolled = self.rolled(last, now);
        std::array::from_fn(|i| {
            let (current, previous) = rolled.sums[i];
            let length = WINDOWS_MS[i] as f64;
            let covered = 1.0 - (now.0 % WINDOWS_MS[i]) as f64 / length;
            (current as f64 + previous as f64 * covered) * 1000.0 / length
        })
    }

    /// The sums, shifted from the windows of `last` to those of `now`.
    fn rolled(&self, last: Millis, now: Millis) -> Rates {
        let mut rolled = *self;
        for ((current, previous), length) in rolled.sums.iter_mut().zip(WINDOWS_MS) {
            match (now.0 / length).saturating_sub(last.0 / length) {
                0 => {}
                1 => (*previous, *current) = (*current, 0),
                _ => (*previous, *current) = (0, 0),
            }
        }
        rolled
    }

    /// The six sums, to be stored.
    #[must_use]
    pub fn to_sums(&self) -> [i64; 6] {
        let [(a, b), (c, d), (e, f)] = self.sums;
        [a, b, c, d, e, f]
    }

    /// From stored sums.
    #[must_use]
    pub fn from_sums([a, b, c, d, e, f]: [i64; 6]) -> Self {
        Rates { sums: [(a, b), (c, d), (e, f)] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_steady_rate_is_the_same_in_every_window() {
        let mut rates = Rates::default();
        let mut last = Millis(0);
        for tick in 1..=720_000u64 {
            let now = Millis(tick * 10);
            rates.record(last, now, 5);
            last = now;
        }
        for (i, rate) in rates.per_second(last, last).into_iter().enumerate() {
            assert!((rate - 500.0).abs() < 10.0, "window {i} reads {rate}");
        }
    }

    #[test]
    fn an_idle_counter_falls_to_zero() {
        let mut rates = Rates::default();
        rates.record(Millis(0), Millis(10_000), 60);
        let [second, minute, hour] = rates.per_second(Millis(10_000), Millis(13_000));
        assert_eq!(second, 0.0);
        assert_eq!(minute, 1.0);
        assert!(hour > 0.0);
        assert_eq!(rates.per_second(Millis(10_000), Millis(9_000_000)), [0.0; 3]);
    }

    #[test]
    fn sums_saturate_instead_of_wrapping() {
        let mut rates = Rates::default();
        rates.record(Millis(0), Millis(1), i64::MAX);
        rates.record(Millis(1), Millis(2), i64::MAX);
        assert_eq!(rates.to_sums()[0], sum_max(0));
        assert_eq!(rates.to_sums()[4], sum_max(2));
    }
}
