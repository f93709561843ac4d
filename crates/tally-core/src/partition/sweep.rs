//! Forgetting counters that have expired. They do not exist for any event since; this gives back their room.

use super::Partition;
use crate::counter::is_due;
use crate::counter_table::CellId;
use crate::event::EventRef;
use crate::key::{Key, KeyRef};
use crate::outcome::Outcome;
use crate::time::Millis;

impl Partition {
    /// Deals with an expiry that the store has a record of: the counter goes if it has really expired, and the record goes
    /// with the next capture.
    pub(super) fn sweep(&mut self, event: &EventRef<'_>, expires_at: Millis) -> Outcome {
        let found = self.table.find(event.hash, event.key.as_bytes());
        let expired = found.filter(|&id| is_due(self.table.expiry(id), self.clock));
        if let Some(id) = expired {
            self.forget(id);
            self.expired += 1;
        }
        if expires_at <= self.clock {
            self.outdated.insert((expires_at, event.key.to_key()));
        }
        Outcome { applied: i64::from(expired.is_some()), ..self.standing(event) }
    }

    /// Lets go of a counter that no longer exists.
    pub(super) fn forget(&mut self, id: CellId) {
        let key = KeyRef::trusted(self.table.key(id)).to_key();
        self.save_preimage(id);
        self.note_expiry(self.table.expiry(id), None);
        self.free(id);
        self.note_removal(key);
    }

    /// Keeps count of the counters that have an expiry, as one of them changes.
    pub(super) fn note_expiry(&mut self, before: Option<Millis>, after: Option<Millis>) {
        match (before, after) {
            (None, Some(_)) => self.expiring += 1,
            (Some(_), None) => self.expiring -= 1,
            (None, None) | (Some(_), Some(_)) => {}
        }
    }

    fn note_removal(&mut self, key: Key) {
        self.removed.insert(key);
        self.counters -= 1;
    }

    /// Looks through up to `max` counters in memory, from cell `from` on, for one that exists at `now`.
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

    /// Cells to probe: those from this one on were never in use.
    #[must_use]
    pub fn cells(&self) -> usize {
        self.table.used()
    }
}

/// What came of looking for a counter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Probe {
    /// This one.
    Found(Key),
    /// None so far; go on from here.
    Further(usize),
    /// None up to the last cell.
    End,
}
