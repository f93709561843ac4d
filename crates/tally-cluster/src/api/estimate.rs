//! Estimates of values, for writes that are acknowledged before they are applied.
//!
//! An estimate is the last known total plus this node's own writes that the total does not include yet.

use std::collections::HashMap;

use parking_lot::Mutex;
use tally_core::key::Key;
use tally_core::time::{Millis, Position};

use crate::limits::{ESTIMATE_REFRESH_MS, ESTIMATE_WRITES_MAX, ESTIMATES_MAX};

/// Estimated values by key.
#[derive(Debug, Default)]
pub struct Estimates {
    known: Mutex<HashMap<Key, Estimate>>,
}

#[derive(Debug)]
struct Estimate {
    total: i64,
    /// The position that the total reflects.
    position: Position,
    /// This node's writes since, with the positions after them, ascending.
    pending: Vec<(Position, i64)>,
    refreshed_at: Millis,
}

impl Estimate {
    fn value(&self) -> i64 {
        self.pending.iter().fold(self.total, |value, (_, delta)| value.saturating_add(*delta))
    }
}

impl Estimates {
    /// The keys without a recent total.
    pub fn outdated<'k>(&self, keys: impl Iterator<Item = &'k Key>, now: Millis) -> Vec<Key> {
        let known = self.known.lock();
        // A time in the future counts as outdated, too: the partition's clock was reset.
        let is_outdated =
            |key: &&Key| known.get(*key).is_none_or(|known| known.refreshed_at.0.abs_diff(now.0) > ESTIMATE_REFRESH_MS);
        keys.filter(is_outdated).cloned().collect()
    }

    /// Sets the total as of a position.
    pub fn refresh(&self, key: &Key, total: i64, position: Position, now: Millis) {
        let mut known = self.known.lock();
        if known.len() >= ESTIMATES_MAX && !known.contains_key(key) {
            // A dropped estimate is fetched again when it is needed.
            known.retain(|_, estimate| estimate.refreshed_at.0 + ESTIMATE_REFRESH_MS >= now.0);
            if known.len() >= ESTIMATES_MAX {
                known.clear();
            }
        }
        let estimate = known.entry(key.clone()).or_insert_with(|| Estimate {
            total,
            position,
            pending: Vec::new(),
            refreshed_at: now,
        });
        estimate.refreshed_at = now;
        if position >= estimate.position {
            estimate.total = total;
            estimate.position = position;
            estimate.pending.retain(|(end, _)| *end > position);
        }
    }

    /// Adds a write that ends at `end`, and returns the estimated value after it.
    pub fn add(&self, key: &Key, delta: i64, end: Position) -> i64 {
        let mut known = self.known.lock();
        let Some(estimate) = known.get_mut(key) else { return delta };
        if end > estimate.position {
            let is_full = estimate.pending.len() >= ESTIMATE_WRITES_MAX;
            match estimate.pending.last_mut() {
                // If there are too many, they are merged until a newer total arrives.
                Some((last, sum)) if *last == end || is_full => {
                    *last = end.max(*last);
                    *sum = sum.saturating_add(delta);
                }
                _ => estimate.pending.push((end, delta)),
            }
        }
        estimate.value()
    }

    /// Adds a write that is not in the journal, and returns the estimated value after it. The next total replaces it.
    pub fn add_unplaced(&self, key: &Key, delta: i64) -> i64 {
        let mut known = self.known.lock();
        let Some(estimate) = known.get_mut(key) else { return delta };
        estimate.total = estimate.total.saturating_add(delta);
        estimate.value()
    }

    /// The estimated value, if anything is known.
    #[cfg(test)]
    fn value(&self, key: &Key) -> Option<i64> {
        self.known.lock().get(key).map(Estimate::value)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn own_writes_are_added_until_the_total_includes_them() {
        let (estimates, key) = (Estimates::default(), Key::new("likes").unwrap());
        estimates.refresh(&key, 100, Position(10), Millis(0));
        assert_eq!(estimates.add(&key, 1, Position(11)), 101);
        assert_eq!(estimates.add(&key, 1, Position(12)), 102);
        estimates.refresh(&key, 150, Position(11), Millis(1));
        assert_eq!(estimates.value(&key), Some(151));
        estimates.refresh(&key, 90, Position(5), Millis(2));
        assert_eq!(estimates.value(&key), Some(151), "an older total changes nothing");
        estimates.refresh(&key, 200, Position(20), Millis(3));
        assert_eq!(estimates.value(&key), Some(200));
    }

    #[test]
    fn writes_that_no_total_includes_take_bounded_memory() {
        let (estimates, key) = (Estimates::default(), Key::new("likes").unwrap());
        estimates.refresh(&key, 100, Position(10), Millis(0));
        for end in 11..1_011 {
            estimates.add(&key, 1, Position(end));
        }
        assert_eq!(estimates.value(&key), Some(1_100));
        assert!(estimates.known.lock()[&key].pending.len() <= ESTIMATE_WRITES_MAX);
        estimates.refresh(&key, 1_100, Position(1_010), Millis(1));
        assert_eq!(estimates.value(&key), Some(1_100));
    }
}
