//! What is in memory and what is only in the store.

use super::capture::Capturing;
use super::{LOOK_AHEAD, Partition};
use crate::batch::{Batch, key_hash};
use crate::bits::Bits;
use crate::counter::is_due;
use crate::counter_table::{CellId, CounterTable, EXPIRY_BYTES, Leaving};
use crate::event::{ChangeRef, EventRef, RequestId};
use crate::key::{Key, KeyRef};
use crate::limits::KEY_BYTES_MAX;
use crate::missing_keys::MissingKeys;
use crate::record;
use crate::time::{Millis, Position};

/// Whether a batch may be applied within the memory budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Headroom {
    /// There is room.
    Enough,
    /// What takes the room has changed since the last checkpoint; only another one makes room.
    NeedsCheckpoint,
}

/// Counters that are about to be added.
#[derive(Clone, Copy)]
struct Incoming {
    counters: usize,
    /// Bytes of keys that do not fit into their cells.
    bytes_beside: usize,
}

/// Request ids and ledger entries that the store lacks may take this share of the budget, one in so many.
const UNSAVED_SHARE: usize = 2;
/// Cells never shrink, so this share of the budget, one in so many, is kept from them for what does.
const BESIDE_SHARE: usize = 8;

/// A stored record that does not decode: the store is damaged or newer than this version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a stored record does not decode")]
pub struct Malformed;

impl Partition {
    /// Appends the store keys of everything the batch needs that is not in memory and that the store, which stands `at` this
    /// position, may hold. Keys may repeat.
    pub fn missing(&self, batch: &Batch, at: Position, wanted: &mut MissingKeys) {
        if !self.in_store_only && !self.request_ids.is_beside_store() && !self.ledger_heads.is_beside_store() {
            return;
        }
        let checked = batch.is_checked_at(at);
        let mut want = |event: EventRef<'_>, cell| {
            self.missing_of_event(&EventRef { unstored: event.unstored && checked, ..event }, cell, wanted);
        };
        if !self.in_store_only {
            return batch.iter().for_each(|event| want(event, None));
        }
        let (mut events, mut ahead) = (batch.iter(), batch.iter());
        while events.len() > 0 {
            // As `look_ahead`, for counters alone.
            let mut cells = [None; LOOK_AHEAD];
            for (cell, event) in cells.iter_mut().zip(&mut ahead) {
                *cell = self.table.candidate(event.hash);
            }
            for cell in cells.iter().flatten() {
                self.table.fetch(*cell);
            }
            for (cell, event) in cells.into_iter().zip(&mut events) {
                want(event, cell);
            }
        }
    }

    /// The store keys of what an event needs, whose counter is probably in this cell.
    fn missing_of_event(&self, event: &EventRef<'_>, cell: Option<CellId>, wanted: &mut MissingKeys) {
        if let Some(id) = event.request_id
            && !event.unstored
            && self.request_ids.is_unknown(id)
        {
            wanted.push(&record::request_key(id));
        }
        if event.change.is_correction() && self.ledger_heads.is_head_unknown(event.key) {
            wanted.push(&record::head_key(event.key));
        }
        let is_here = cell.is_some_and(|id| self.table.holds(id, event.key.as_bytes()));
        if !is_here && self.is_counter_unknown(event.hash, event.key) {
            wanted.push_joined(&[&[record::COUNTER], event.key.as_bytes()]);
        }
    }

    /// Whether only the store can tell what the counter holds.
    #[must_use]
    pub fn is_missing(&self, key: KeyRef<'_>) -> bool {
        self.is_counter_unknown(key_hash(self.seed, key.as_bytes()), key)
    }

    pub(super) fn is_counter_unknown(&self, hash: u64, key: KeyRef<'_>) -> bool {
        self.in_store_only && self.table.find(hash, key.as_bytes()).is_none() && !self.is_removed(key)
    }

    /// Brings back a record the store holds. What is in memory already is newer and stays.
    pub fn restore(&mut self, store_key: &[u8], value: &[u8]) -> Result<(), Malformed> {
        let (family, rest) = store_key.split_first().ok_or(Malformed)?;
        match family {
            b'c' => {
                let key = KeyRef::new(rest).map_err(|_| Malformed)?;
                let hash = key_hash(self.seed, rest);
                if self.is_counter_unknown(hash, key) {
                    let held = record::read_counter(value).ok_or(Malformed)?;
                    self.table.insert(hash, rest, &held);
                }
            }
            b'i' => {
                let id = RequestId(rest.try_into().map_err(|_| Malformed)?);
                self.request_ids.recall(id, record::read_request(value).ok_or(Malformed)?);
            }
            b'h' => {
                let key = KeyRef::new(rest).map_err(|_| Malformed)?;
                self.ledger_heads.recall(key, record::read_head(value).ok_or(Malformed)?);
            }
            _ => return Err(Malformed),
        }
        Ok(())
    }

    /// Bytes of memory the state holds.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.table.memory_bytes()
            + self.request_ids.memory_bytes()
            + self.ledger_heads.memory_bytes()
            + self.preimage_bytes()
    }

    /// Makes sure the batch fits into `budget_bytes`, letting go of cold counters that the store
    /// holds.
    pub fn make_room(&mut self, batch: &Batch, budget_bytes: usize) -> Headroom {
        if self.unsaved_bytes() > budget_bytes / UNSAVED_SHARE && self.has_changed() {
            return Headroom::NeedsCheckpoint;
        }
        let most = Incoming { counters: batch.len(), bytes_beside: batch.bytes() };
        if self.fits(most, budget_bytes) {
            return Headroom::Enough;
        }
        let mut incoming = Incoming { counters: 0, bytes_beside: 0 };
        for event in batch.iter() {
            if self.table.find(event.hash, event.key.as_bytes()).is_none() {
                incoming.counters += 1;
                incoming.bytes_beside += CounterTable::bytes_beside(event.key.as_bytes());
            }
            // More than a plain add may bring an expiry.
            if event.details.is_some() || matches!(event.change, ChangeRef::Other(_)) {
                incoming.bytes_beside += EXPIRY_BYTES;
            }
        }
        self.make_room_for(incoming, budget_bytes)
    }

    /// Makes sure one more counter fits into `budget_bytes`.
    pub fn make_room_for_one(&mut self, key: KeyRef<'_>, budget_bytes: usize) -> Headroom {
        let incoming = Incoming { counters: 1, bytes_beside: CounterTable::bytes_beside(key.as_bytes()) };
        self.make_room_for(incoming, budget_bytes)
    }

    fn make_room_for(&mut self, incoming: Incoming, budget_bytes: usize) -> Headroom {
        // However much a batch brings, a checkpoint can make no more room than this.
        let bytes_beside = incoming.bytes_beside.min(budget_bytes / BESIDE_SHARE);
        let incoming = Incoming { bytes_beside, ..incoming };
        while !self.fits(incoming, budget_bytes) {
            // A counter that leaves gives up its cell to another one, and what lies beside it; the rest stays as it is.
            let staying = self.memory_bytes() - self.table.bytes_beside_cells();
            let is_gain = staying + incoming.bytes_beside <= self.whole_bytes(budget_bytes);
            if !is_gain && self.request_ids.drop_recalled() {
                self.departures += 1;
                continue;
            }
            let changed = self.has_changed();
            let needs_cells = self.table.growth_bytes(incoming.counters) > 0;
            let leaving = match is_gain {
                true if needs_cells => Some(Leaving::Any),
                true => Some(Leaving::WithBytesBeside),
                false => (needs_cells && !changed).then_some(Leaving::Any),
            };
            let captured = self.capturing.as_ref().map(Capturing::cells);
            let needed: Vec<&Bits> = std::iter::once(&self.dirty).chain(captured).collect();
            let mut evict = |leaving| self.table.evict(incoming.counters.max(1), leaving, &needed);
            if leaving.map_or(0, &mut evict) == 0 {
                // Nothing can leave, or nothing is gained by it. If that is because of what changed, a checkpoint helps;
                // otherwise nothing does, and counting goes before the budget.
                return if changed { Headroom::NeedsCheckpoint } else { Headroom::Enough };
            }
            self.departures += 1;
            self.in_store_only = true;
            self.warming = false;
        }
        Headroom::Enough
    }

    /// Whether a checkpoint, the one under way or the next, will find anything to move out of memory.
    fn has_changed(&self) -> bool {
        self.is_dirty() || self.capturing.is_some()
    }

    /// Whether new counters fit: cells within their share of the budget, everything within the whole.
    fn fits(&self, incoming: Incoming, budget_bytes: usize) -> bool {
        let growth = self.table.growth_bytes(incoming.counters);
        let cells_fit = growth == 0 || self.table.fixed_bytes() + growth <= budget_bytes - budget_bytes / BESIDE_SHARE;
        cells_fit && self.memory_bytes() + growth + incoming.bytes_beside <= self.whole_bytes(budget_bytes)
    }

    /// The budget, or what it takes for everything but the cells to have its share: the budget may have been larger when the
    /// cells were taken, because the store needs more as it grows.
    fn whole_bytes(&self, budget_bytes: usize) -> usize {
        budget_bytes.max(self.table.fixed_bytes() + budget_bytes / BESIDE_SHARE)
    }

    /// Bytes that only a checkpoint can move out of memory.
    fn unsaved_bytes(&self) -> usize {
        self.request_ids.unsaved_bytes() + self.ledger_heads.memory_bytes()
    }

    /// Whether so much has changed that a checkpoint should begin before batches have to wait for one.
    #[must_use]
    pub fn wants_checkpoint(&self, budget_bytes: usize) -> bool {
        let room = budget_bytes.saturating_sub(self.table.fixed_bytes()).max(budget_bytes / BESIDE_SHARE);
        self.capturing.is_none() && self.unsaved_bytes() > room.min(budget_bytes / UNSAVED_SHARE) / 2
    }

    /// Whether bringing counters from the store to memory, in key order, can still make it whole: there is room, and
    /// none has left.
    pub fn is_warming(&mut self, budget_bytes: usize) -> bool {
        self.warming &= self.fits(Incoming { counters: 1, bytes_beside: KEY_BYTES_MAX }, budget_bytes);
        self.warming
    }

    /// Every counter of the store is in memory now.
    pub fn all_warm(&mut self) {
        self.in_store_only &= !self.warming;
        self.warming = false;
    }

    /// Looks through up to `max` counters that the store does not hold, from cell `from` on, for keys that begin
    /// with `prefix` and sort after `after`, and that have not expired at `now`. Returns where to go on, or `None` at the end.
    pub fn created_keys(
        &self,
        from: usize,
        max: usize,
        now: Millis,
        prefix: &[u8],
        after: &[u8],
        found: &mut impl FnMut(&[u8]),
    ) -> Option<usize> {
        let mut at = from;
        for _ in 0..max {
            let cell = self.created.next(at)?;
            let key = self.table.key(cell as CellId);
            let expired = is_due(self.table.expiry(cell as CellId), now);
            if key.starts_with(prefix) && key > after && !expired {
                found(key);
            }
            at = cell + 1;
        }
        Some(at)
    }

    /// Says whether the key is known to hold nothing, without asking the store.
    #[must_use]
    pub fn is_known_absent(&self, key: &Key) -> bool {
        self.state_of(key.as_ref()).is_none() && (!self.in_store_only || self.is_removed(key.as_ref()))
    }
}
