//! Removing expired counters. No event sees them any more; this frees their memory and their records in the store.

use super::Partition;
use crate::counter::is_due;
use crate::counter_table::CellId;
use crate::event::EventRef;
use crate::key::{Key, KeyRef};
use crate::outcome::Outcome;
use crate::time::Millis;

impl Partition {
    /// Handles an expiry record of the store: removes the counter if it has expired by now. The next capture deletes
    /// the record.
    pub(super) fn sweep(&mut self, event: &EventRef<'_>, expires_at: Millis) -> Outcome {
        let found = self.table.find(event.hash, event.key.as_bytes());
        let expired = found.filter(|&id| is_due(self.table.expiry(id), self.clock));
        if let Some(id) = expired {
            self.remove_counter(id);
            self.expired += 1;
        }
        if expires_at <= self.clock {
            self.outdated.insert((expires_at, event.key.to_key()));
        }
        Outcome { applied: i64::from(expired.is_some()), ..self.unchanged(event) }
    }

    /// Removes a counter from memory and, with the next capture, from the store.
    pub(super) fn remove_counter(&mut self, id: CellId) {
        let key = KeyRef::trusted(self.table.key(id)).to_key();
        self.save_preimage(id);
        self.count_expiry(self.table.expiry(id), None);
        self.free_cell(id);
        self.removed.insert(key);
        self.counters -= 1;
    }

    /// Updates the number of counters that have an expiry.
    pub(super) fn count_expiry(&mut self, before: Option<Millis>, after: Option<Millis>) {
        match (before, after) {
            (None, Some(_)) => self.expiring += 1,
            (Some(_), None) => self.expiring -= 1,
            (None, None) | (Some(_), Some(_)) => {}
        }
    }

    /// A resident counter, chosen uniformly by `number`; `None` if it has expired at `now`, or if there is none.
    #[must_use]
    pub fn sample(&self, number: u64, now: Millis) -> Option<Key> {
        let id = self.table.sample(number)?;
        (!is_due(self.table.expiry(id), now)).then(|| KeyRef::trusted(self.table.key(id)).to_key())
    }

    /// Scans up to `max` resident counters, starting at cell `from`, for one that has not expired at `now`.
    #[must_use]
    pub fn probe(&self, from: usize, max: usize, now: Millis) -> Probe {
        let mut at = from;
        for _ in 0..max {
            let Some(id) = self.table.next_live(at) else {
                return Probe::End;
            };
            if !is_due(self.table.expiry(id), now) {
                return Probe::Found(KeyRef::trusted(self.table.key(id)).to_key());
            }
            at = id as usize + 1;
        }
        Probe::Further(at)
    }

    /// Number of cells to probe; later ones were never used.
    #[must_use]
    pub fn cells(&self) -> usize {
        self.table.used()
    }
}

/// The result of a [`Partition::probe`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Probe {
    /// A counter that exists.
    Found(Key),
    /// None so far; continue from this cell.
    Further(usize),
    /// There are no more cells.
    End,
}
