//! Which totals a worker publishes in its next round.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use tally_core::key::Key;
use tally_core::time::Millis;

use crate::limits::{TOTAL_KEPT_MS, TOTAL_TTL_MS};

/// The totals in Redis that this worker must keep current, and those that changed.
///
/// A total is published when it is first read, and then whenever it changes, until its time to live has passed. What a
/// predecessor published is not known, so at first every change is published.
///
/// Its memory is bounded. Counters that are read beyond that are not published. Changes beyond it are forgotten, and
/// with them which totals in Redis are outdated, so all of them must be distrusted ([`Due::is_incomplete`]).
#[derive(Debug)]
pub struct Round {
    /// Totals in Redis, and how long they are kept current.
    published: BTreeMap<Key, Kept>,
    /// The same for totals that are not in `published`.
    inherited: Kept,
    /// Whether there may still be such totals.
    is_inheriting: bool,
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

/// A moment of a partition.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// By the monotonic clock of this worker.
    pub elapsed_ms: u64,
    /// By the partition's clock.
    pub now: Millis,
    /// Everything that was acknowledged before this time is applied: the time of a heartbeat.
    pub current_at: Millis,
}

/// How long a total is kept current.
///
/// A total in Redis says until when, and readers use it as long as heartbeats have no later time. They do not rely on
/// its time to live, which Redis measures by its own clock. So it is kept current until both have passed.
#[derive(Clone, Copy, Debug)]
struct Kept {
    until_elapsed_ms: u64,
    valid_until: Millis,
}

impl Kept {
    fn from(moment: Moment) -> Kept {
        Kept {
            until_elapsed_ms: moment.elapsed_ms + TOTAL_KEPT_MS,
            valid_until: Millis(moment.now.0.saturating_add(TOTAL_TTL_MS)),
        }
    }

    fn is_over(&self, moment: Moment) -> bool {
        self.until_elapsed_ms <= moment.elapsed_ms && self.valid_until < moment.current_at
    }
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
    /// For a partition that was taken over at this moment, with about this much memory.
    pub fn new(moment: Moment, bytes_max: usize) -> Round {
        Round {
            published: BTreeMap::new(),
            inherited: Kept::from(moment),
            is_inheriting: true,
            changed: BTreeSet::new(),
            first: BTreeSet::new(),
            bytes_max,
            published_bytes: 0,
            changed_bytes: 0,
            is_incomplete: false,
        }
    }

    /// A counter changed.
    pub fn changed(&mut self, key: &[u8]) {
        let Ok(key) = Key::new(key) else { return };
        let may_be_published = self.is_inheriting || self.published.contains_key(&key);
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

    /// The partition's clock was set back to this moment, so the times until which totals are valid no longer mean
    /// anything. Totals of earlier positions are distrusted, and published again when they are read. There may be
    /// totals of later positions, because a predecessor applied the same reset. So every change is published again, as
    /// after a takeover.
    pub fn clock_reset(&mut self, moment: Moment) {
        self.published.clear();
        self.changed.clear();
        self.changed_bytes = 0;
        self.published_bytes = self.first.iter().map(|key| 2 * entry_bytes(key)).sum();
        self.inherited = Kept::from(moment);
        self.is_inheriting = true;
        self.is_incomplete = true;
    }

    /// A counter was read that was not in Redis. It will be published, unless there are too many.
    pub fn read(&mut self, key: &Key) {
        if !self.published.contains_key(key) && !self.first.contains(key) {
            // Most keys of `published` may end up in `first`, too.
            let bytes = 2 * entry_bytes(key);
            if self.published_bytes + bytes > self.bytes_max / 2 {
                return;
            }
            self.published_bytes += bytes;
        }
        self.first.insert(key.clone());
    }

    /// Takes what is due. If publishing fails, return it with [`Round::put_back`].
    pub fn take(&mut self, moment: Moment) -> Due {
        for key in &self.first {
            self.published.insert(key.clone(), Kept::from(moment));
        }
        self.published.retain(|_, kept| !kept.is_over(moment));
        // The partition's clock may only now be known.
        let left_ms = self.inherited.until_elapsed_ms.saturating_sub(moment.elapsed_ms + TOTAL_KEPT_MS - TOTAL_TTL_MS);
        let valid_until = Millis(moment.now.0.saturating_add(left_ms));
        if left_ms > 0 {
            self.inherited.valid_until = self.inherited.valid_until.max(valid_until);
        }
        self.is_inheriting &= !self.inherited.is_over(moment);
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
            // A total that was read meanwhile is about to be published again.
            if !self.first.contains(key) {
                self.published.remove(key);
            }
        }
    }

    /// Until when a total that is published now is kept current.
    pub fn valid_until(&self, key: &Key) -> Millis {
        self.published.get(key).unwrap_or(&self.inherited).valid_until
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

    /// Redis may have lost writes in a failover: everything published is due again, as if it were read for the first
    /// time.
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

    /// A moment at which both clocks are the same, and everything is applied.
    fn at(ms: u64) -> Moment {
        Moment { elapsed_ms: ms, now: Millis(ms), current_at: Millis(ms) }
    }

    #[test]
    fn a_counter_that_nobody_reads_is_not_published() {
        let mut round = Round::new(at(0), ROOM);
        round.take(at(later()));
        round.changed(b"cold");
        assert_eq!(round.take(at(later())), Due::default());
    }

    #[test]
    fn a_counter_that_was_read_is_published_whenever_it_changes_until_its_time_to_live_has_passed() {
        let mut round = Round::new(at(0), ROOM);
        round.read(&Key::new("hot").unwrap());
        assert_eq!(round.take(at(later())).first, keys(&["hot"]));
        round.changed(b"hot");
        assert_eq!(round.take(at(later() + 1)).changed, keys(&["hot"]));
        round.take(at(2 * later()));
        round.changed(b"hot");
        assert_eq!(round.take(at(2 * later())), Due::default());
    }

    #[test]
    fn a_total_is_kept_current_while_heartbeats_of_a_worker_that_is_behind_vouch_for_it() {
        let mut round = Round::new(at(0), ROOM);
        let hot = Key::new("hot").unwrap();
        round.take(at(later()));
        round.read(&hot);
        round.take(at(later()));
        assert_eq!(round.valid_until(&hot), Millis(later() + TOTAL_TTL_MS));
        let behind = Moment { current_at: round.valid_until(&hot), ..at(10 * later()) };
        round.take(behind);
        round.changed(b"hot");
        assert_eq!(round.take(behind).changed, keys(&["hot"]));
        round.take(at(10 * later()));
        round.changed(b"hot");
        assert_eq!(round.take(at(10 * later())), Due::default());
    }

    #[test]
    fn what_a_predecessor_published_is_kept_current_as_long_as_its_totals_say() {
        let mut round = Round::new(Moment { elapsed_ms: 1_000, now: Millis(0), current_at: Millis(0) }, ROOM);
        // The time of the partition becomes known later.
        let known = Moment { elapsed_ms: 2_000, now: Millis(5_000_000), current_at: Millis(5_000_000) };
        round.take(known);
        let inherited = round.valid_until(&Key::new("inherited").unwrap());
        assert_eq!(inherited, Millis(5_000_000 + TOTAL_TTL_MS - 1_000));
        let over = Moment { elapsed_ms: 1_000 + TOTAL_KEPT_MS, now: inherited, current_at: inherited };
        round.take(over);
        round.changed(b"inherited");
        assert_eq!(round.take(over).changed, keys(&["inherited"]), "heartbeats still vouch for it");
        let over = Moment { current_at: Millis(inherited.0 + 1), ..over };
        round.take(over);
        round.changed(b"inherited");
        assert_eq!(round.take(over), Due::default());
    }

    #[test]
    fn after_a_takeover_every_change_is_published_because_the_predecessor_may_have_published_it() {
        let mut round = Round::new(at(1_000), ROOM);
        round.changed(b"inherited");
        assert_eq!(round.take(at(1_001)).changed, keys(&["inherited"]));
    }

    #[test]
    fn a_total_that_is_published_again_is_kept_current_for_its_new_time_to_live() {
        let mut round = Round::new(at(0), ROOM);
        let hot = Key::new("hot").unwrap();
        round.read(&hot);
        round.take(at(later()));
        round.publish_all();
        let again = later() + TOTAL_KEPT_MS - 1;
        assert_eq!(round.take(at(again)).first, keys(&["hot"]));
        round.changed(b"hot");
        assert_eq!(round.take(at(again + TOTAL_KEPT_MS - 1)).changed, keys(&["hot"]));
    }

    #[test]
    fn a_total_that_was_read_while_redis_lacked_it_is_kept_current() {
        let mut round = Round::new(at(0), ROOM);
        let hot = Key::new("hot").unwrap();
        round.read(&hot);
        round.take(at(later()));
        round.read(&hot);
        round.gone(std::slice::from_ref(&hot));
        round.take(at(later() + 1));
        round.changed(b"hot");
        assert_eq!(round.take(at(later() + 2)).changed, keys(&["hot"]));
    }

    #[test]
    fn after_a_reset_of_the_clock_all_totals_are_distrusted_and_published_again_when_they_are_read() {
        let hour = 3_600_000;
        let mut round = Round::new(at(hour), ROOM);
        round.read(&Key::new("a").unwrap());
        round.take(at(hour));
        // An hour back. What is in Redis says that it is valid for an hour longer.
        let back = Moment { elapsed_ms: hour, now: Millis(1), current_at: Millis(1) };
        round.clock_reset(back);
        assert!(round.take(back).is_incomplete);
        round.changed(b"a");
        assert_eq!(round.take(back).changed, keys(&["a"]), "a predecessor may have published it after the reset");
        round.read(&Key::new("a").unwrap());
        assert_eq!(round.take(back).first, keys(&["a"]));
        assert_eq!(round.valid_until(&Key::new("a").unwrap()), Millis(1 + TOTAL_TTL_MS));
    }

    #[test]
    fn what_could_not_be_published_is_due_again() {
        let mut round = Round::new(at(0), ROOM);
        round.changed(b"a");
        let due = round.take(at(1));
        round.changed(b"b");
        round.put_back(due);
        assert_eq!(round.take(at(2)).changed, keys(&["a", "b"]));
    }

    #[test]
    fn counters_that_are_read_beyond_its_memory_are_not_published() {
        let (mut round, mut read) = (Round::new(at(0), 10_000), 0);
        for number in 0..1_000 {
            round.read(&Key::new(format!("k{number}")).unwrap());
            read = number + 1;
        }
        let published = round.take(at(later())).first.len();
        assert!((20..read).contains(&published), "{published} of {read}");
        // There is room again once they have expired.
        round.take(at(3 * later()));
        round.read(&Key::new("next").unwrap());
        assert_eq!(round.take(at(3 * later())).first, keys(&["next"]));
    }

    #[test]
    fn changes_beyond_its_memory_are_forgotten_and_the_round_says_so() {
        let mut round = Round::new(at(0), 10_000);
        (0..1_000).for_each(|number| round.changed(format!("k{number}").as_bytes()));
        let due = round.take(at(1));
        assert!(due.is_incomplete && due.changed.is_empty());
        round.changed(b"a");
        round.put_back(due);
        assert!(round.take(at(3)).is_incomplete, "it was not published");
        round.changed(b"b");
        let due = round.take(at(4));
        assert_eq!((due.changed, due.is_incomplete), (keys(&["b"]), false));
    }

    #[test]
    fn changes_that_cannot_be_published_for_long_stay_within_its_memory() {
        let mut round = Round::new(at(0), 10_000);
        for number in 0..1_000 {
            round.changed(format!("k{number}").as_bytes());
            let due = round.take(at(1));
            round.put_back(due);
        }
        assert!(round.changed_bytes <= 10_000);
        assert!(round.take(at(1)).is_incomplete);
    }
}
