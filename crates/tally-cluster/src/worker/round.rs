//! Which totals a worker publishes in its next round.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use tally_core::key::Key;

use crate::limits::TOTAL_KEPT_MS;

/// The totals in Redis that this worker must keep current, and those that changed.
///
/// A total is published when it is first read, and then whenever it changes, until its time to live has passed. What a
/// predecessor published is not known, so at first every change is published.
///
/// Its memory is bounded. Counters that are read beyond that are not published. Changes beyond it are forgotten, and with them
/// which totals in Redis are outdated, so all of them must be distrusted ([`Due::is_incomplete`]).
#[derive(Debug)]
pub struct Round {
    /// Totals in Redis, and when they expire there.
    published: BTreeMap<Key, u64>,
    /// Until then, totals may be in Redis that are not in `published`.
    inherited_until: u64,
    changed: BTreeSet<Key>,
    first: BTreeSet<Key>,
    bytes_max: usize,
    /// Memory of `published` and `first`.
    published_bytes: usize,
    /// Memory of `changed`.
    changed_bytes: usize,
    /// Changes were forgotten.
    is_incomplete: bool,
}

/// Memory for a key in a set, besides its bytes.
const ENTRY_BYTES: usize = 64;

/// Memory for a key in one set.
fn entry_bytes(key: &Key) -> usize {
    key.as_bytes().len() + ENTRY_BYTES
}

/// What to publish.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Due {
    /// Replaced if they are in Redis.
    pub changed: BTreeSet<Key>,
    /// Created if they are not.
    pub first: BTreeSet<Key>,
    /// Changes are missing: totals of positions before this round may be outdated.
    pub is_incomplete: bool,
}

impl Round {
    /// For a partition that was taken over at `now_ms`, with about this much memory.
    pub fn new(now_ms: u64, bytes_max: usize) -> Round {
        Round {
            published: BTreeMap::new(),
            inherited_until: now_ms + TOTAL_KEPT_MS,
            changed: BTreeSet::new(),
            first: BTreeSet::new(),
            bytes_max,
            published_bytes: 0,
            changed_bytes: 0,
            is_incomplete: false,
        }
    }

    /// A counter changed.
    pub fn changed(&mut self, key: &[u8], now_ms: u64) {
        let Ok(key) = Key::new(key) else { return };
        let may_be_published =
            now_ms < self.inherited_until || self.published.get(&key).is_some_and(|&until| now_ms < until);
        if may_be_published && !self.is_incomplete {
            self.add_changed(key);
        }
    }

    fn add_changed(&mut self, key: Key) {
        let bytes = entry_bytes(&key);
        if self.changed.insert(key) {
            self.changed_bytes += bytes;
        }
        if self.changed_bytes > self.bytes_max / 2 {
            self.changed.clear();
            self.changed_bytes = 0;
            self.is_incomplete = true;
        }
    }

    /// A counter was read that was not in Redis. It will be published, unless there are too many.
    pub fn read(&mut self, key: &Key, now_ms: u64) {
        if !self.published.contains_key(key) {
            // Most keys of `published` can come to be in `first`, too.
            let bytes = 2 * entry_bytes(key);
            if self.published_bytes + bytes > self.bytes_max / 2 {
                return;
            }
            self.published_bytes += bytes;
        }
        self.published.insert(key.clone(), now_ms + TOTAL_KEPT_MS);
        self.first.insert(key.clone());
    }

    /// Takes what is due. If publishing fails, return it with [`Round::put_back`].
    pub fn take(&mut self, now_ms: u64) -> Due {
        // The time to live of those in `first` begins when Redis gets them.
        for key in &self.first {
            self.published.insert(key.clone(), now_ms + TOTAL_KEPT_MS);
        }
        self.published.retain(|_, until| now_ms < *until);
        self.published_bytes = self.published.keys().map(|key| 2 * entry_bytes(key)).sum();
        self.changed_bytes = 0;
        Due {
            changed: std::mem::take(&mut self.changed),
            first: std::mem::take(&mut self.first),
            is_incomplete: std::mem::take(&mut self.is_incomplete),
        }
    }

    /// Publishing failed: it is due again.
    pub fn put_back(&mut self, due: Due) {
        self.is_incomplete |= due.is_incomplete;
        if !self.is_incomplete {
            due.changed.into_iter().for_each(|key| self.add_changed(key));
        }
        self.first.extend(due.first);
    }

    /// These totals are no longer in Redis.
    pub fn gone(&mut self, keys: &[Key]) {
        for key in keys {
            // One that was read meanwhile is about to be there again.
            if !self.first.contains(key) {
                self.published.remove(key);
            }
        }
    }

    /// The next totals in Redis after this key.
    pub fn published_after(&self, after: Option<&Key>, max: usize) -> Vec<Key> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let keys = self.published.range::<Key, _>((from, Bound::Unbounded)).map(|(key, _)| key);
        keys.take(max).cloned().collect()
    }

    /// Whether a total is about to be published.
    pub fn is_due(&self, key: &Key) -> bool {
        self.changed.contains(key) || self.first.contains(key)
    }

    /// Redis may have lost writes in a failover: everything published is due again, as if it were read for the first time.
    pub fn publish_all(&mut self) {
        self.first.extend(self.published.keys().cloned());
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    const ROOM: usize = 1 << 20;

    fn keys(names: &[&str]) -> BTreeSet<Key> {
        names.iter().map(|name| Key::new(*name).unwrap()).collect()
    }

    fn later() -> u64 {
        TOTAL_KEPT_MS + 1
    }

    #[test]
    fn a_counter_that_nobody_reads_is_not_published() {
        let mut round = Round::new(0, ROOM);
        round.changed(b"cold", later());
        assert_eq!(round.take(later()), Due::default());
    }

    #[test]
    fn a_counter_that_was_read_is_published_whenever_it_changes_until_its_time_to_live_has_passed() {
        let mut round = Round::new(0, ROOM);
        round.read(&Key::new("hot").unwrap(), later());
        assert_eq!(round.take(later()).first, keys(&["hot"]));
        round.changed(b"hot", later() + 1);
        assert_eq!(round.take(later() + 1).changed, keys(&["hot"]));
        round.changed(b"hot", 2 * later());
        assert_eq!(round.take(2 * later()), Due::default());
    }

    #[test]
    fn after_a_takeover_every_change_is_published_because_the_predecessor_may_have_published_it() {
        let mut round = Round::new(1_000, ROOM);
        round.changed(b"inherited", 1_001);
        assert_eq!(round.take(1_001).changed, keys(&["inherited"]));
    }

    #[test]
    fn a_total_that_is_published_again_is_kept_current_for_its_new_time_to_live() {
        let mut round = Round::new(0, ROOM);
        let hot = Key::new("hot").unwrap();
        round.read(&hot, later());
        round.take(later());
        round.publish_all();
        let again = later() + TOTAL_KEPT_MS - 1;
        assert_eq!(round.take(again).first, keys(&["hot"]));
        round.changed(b"hot", again + TOTAL_KEPT_MS - 1);
        assert_eq!(round.take(again + TOTAL_KEPT_MS - 1).changed, keys(&["hot"]));
    }

    #[test]
    fn a_total_that_was_read_while_redis_lacked_it_is_kept_current() {
        let mut round = Round::new(0, ROOM);
        let hot = Key::new("hot").unwrap();
        round.read(&hot, later());
        round.take(later());
        round.read(&hot, later() + 1);
        round.gone(std::slice::from_ref(&hot));
        round.take(later() + 1);
        round.changed(b"hot", later() + 2);
        assert_eq!(round.take(later() + 2).changed, keys(&["hot"]));
    }

    #[test]
    fn what_could_not_be_published_is_due_again() {
        let mut round = Round::new(0, ROOM);
        round.changed(b"a", 1);
        let due = round.take(1);
        round.changed(b"b", 2);
        round.put_back(due);
        assert_eq!(round.take(2).changed, keys(&["a", "b"]));
    }

    #[test]
    fn counters_that_are_read_beyond_its_memory_are_not_published() {
        let (mut round, mut read) = (Round::new(0, 10_000), 0);
        for number in 0..1_000 {
            round.read(&Key::new(format!("k{number}")).unwrap(), later());
            read = number + 1;
        }
        let published = round.take(later()).first.len();
        assert!((20..read).contains(&published), "{published} of {read}");
        // There is room again once they have expired.
        round.take(3 * later());
        round.read(&Key::new("next").unwrap(), 3 * later());
        assert_eq!(round.take(3 * later()).first, keys(&["next"]));
    }

    #[test]
    fn changes_beyond_its_memory_are_forgotten_and_the_round_says_so() {
        let mut round = Round::new(0, 10_000);
        (0..1_000).for_each(|number| round.changed(format!("k{number}").as_bytes(), 1));
        let due = round.take(1);
        assert!(due.is_incomplete && due.changed.is_empty());
        round.changed(b"a", 2);
        round.put_back(due);
        assert!(round.take(3).is_incomplete, "it was not published");
        round.changed(b"b", 4);
        let due = round.take(4);
        assert_eq!((due.changed, due.is_incomplete), (keys(&["b"]), false));
    }

    #[test]
    fn changes_that_cannot_be_published_for_long_stay_within_its_memory() {
        let mut round = Round::new(0, 10_000);
        for number in 0..1_000 {
            round.changed(format!("k{number}").as_bytes(), 1);
            let due = round.take(1);
            round.put_back(due);
        }
        assert!(round.changed_bytes <= 10_000);
        assert!(round.take(1).is_incomplete);
    }
}
