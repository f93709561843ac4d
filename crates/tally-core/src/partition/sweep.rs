//! Forgetting counters that have expired. They do not exist for any event since; this gives back their room.

use super::Partition;
use crate::batch::key_hash;
use crate::counter::{Held, is_due};
use crate::key::{Key, KeyRef};
use crate::table::CellId;
use crate::time::Millis;

impl Partition {
    /// Lets time pass without a batch. No batch happens at an earlier time from here on.
    pub fn advance(&mut self, now: Millis) {
        self.clock = self.clock.max(now);
    }

    /// Deals with an expiry that the store holds and that is due: the counter is forgotten if it has really expired, and
    /// the record goes with the next capture. `stored` is asked if only the store knows the counter. Says whether a
    /// counter was forgotten.
    pub fn sweep<E>(
        &mut self,
        expires_at: Millis,
        key: KeyRef<'_>,
        stored: impl FnOnce() -> Result<Option<Held>, E>,
    ) -> Result<bool, E> {
        let hash = key_hash(self.seed, key.as_bytes());
        let forgotten = match self.table.find(hash, key.as_bytes()) {
            Some(id) if is_due(self.table.expiry(id), self.clock) => {
                self.forget(id);
                true
            }
            Some(_) => false,
            None => {
                let unknown = self.is_counter_unknown(hash, key);
                let expired = unknown && stored()?.is_some_and(|held| held.is_expired(self.clock));
                if expired {
                    self.note_expiry(Some(expires_at), None);
                    self.note_removal(key.to_key());
                }
                expired
            }
        };
        self.expired += u64::from(forgotten);
        self.outdated.insert((expires_at, key.to_key()));
        Ok(forgotten)
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
