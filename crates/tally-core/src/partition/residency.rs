//! Residency: which state is in memory, what a batch needs from the store, and what is evicted to make room.

use super::capture::Capturing;
use super::{PREFETCH_EVENTS, Partition};
use crate::batch::{Batch, key_hash};
use crate::bits::Bits;
use crate::counter::is_due;
use crate::counter_table::{CellId, CounterTable, EXPIRY_BYTES, Victims};
use crate::event::{Change, ChangeRef, EventRef, RequestId};
use crate::key::{Key, KeyRef};
use crate::limits::KEY_BYTES_MAX;
use crate::missing_keys::MissingKeys;
use crate::record;
use crate::time::{Millis, Position};

/// Whether a batch may be applied within the memory budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Headroom {
    /// The batch fits.
    Enough,
    /// Too much of the memory is dirty: only a checkpoint can free it.
    NeedsCheckpoint,
}

/// Counters that are about to be added.
#[derive(Clone, Copy)]
struct Incoming {
    counters: usize,
    /// Bytes of long keys and of expiries, which are not stored in cells.
    out_of_line_bytes: usize,
}

/// Unsaved request ids, ledger entries and deletions may use this fraction of the budget: 1/2.
const UNSAVED_DIVISOR: usize = 2;
/// Cells are never freed, so this fraction of the budget is reserved for memory that is: 1/8.
const RESERVE_DIVISOR: usize = 8;

/// A stored record that does not decode: the store is damaged or newer than this version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a stored record does not decode")]
pub struct Malformed;

impl Partition {
    /// Appends the store keys of everything the batch needs that is not resident but may be in the store, which
    /// reflects the journal up to `at`. Keys may repeat.
    pub fn missing(&self, batch: &Batch, at: Position, missing: &mut MissingKeys) {
        if !self.store_may_have_more
            && !self.request_ids.store_may_have_more()
            && !self.ledger_heads.store_may_have_more()
            && !self.summed.store_may_have_more()
        {
            return;
        }
        let checked = batch.is_checked_at(at);
        let mut check = |event: EventRef<'_>, cell| {
            self.missing_of_event(&EventRef { unstored: event.unstored && checked, ..event }, cell, missing);
        };
        if !self.store_may_have_more {
            return batch.iter().for_each(|event| check(event, None));
        }
        let (mut events, mut ahead) = (batch.iter(), batch.iter());
        while events.len() > 0 {
            // Like `prefetch`, for counters only.
            let mut cells = [None; PREFETCH_EVENTS];
            for (cell, event) in cells.iter_mut().zip(&mut ahead) {
                *cell = self.table.candidate(event.hash);
            }
            for cell in cells.iter().flatten() {
                self.table.prefetch(*cell);
            }
            for (cell, event) in cells.into_iter().zip(&mut events) {
                check(event, cell);
            }
        }
    }

    /// Appends the store keys that one event needs. `cell` is the likely cell of its counter.
    fn missing_of_event(&self, event: &EventRef<'_>, cell: Option<CellId>, missing: &mut MissingKeys) {
        if let Some(id) = event.request_id
            && !event.unstored
            && self.request_ids.is_unknown(id)
        {
            missing.push(&record::request_key(id));
        }
        if event.change.is_correction() && self.ledger_heads.is_head_unknown(event.key) {
            missing.push(&record::head_key(event.key));
        }
        if matches!(event.change, ChangeRef::Other(Change::Sum(_))) && self.summed.is_unknown(event.key) {
            missing.push(&record::summed_key(event.key));
        }
        let is_resident = cell.is_some_and(|id| self.table.holds(id, event.key.as_bytes()));
        if !is_resident && self.is_counter_unknown(event.hash, event.key) {
            missing.push_joined(&[&[record::COUNTER], event.key.as_bytes()]);
        }
    }

    /// Whether the counter must be looked up in the store.
    #[must_use]
    pub fn is_missing(&self, key: KeyRef<'_>) -> bool {
        self.is_counter_unknown(key_hash(self.seed, key.as_bytes()), key)
    }

    pub(super) fn is_counter_unknown(&self, hash: u64, key: KeyRef<'_>) -> bool {
        self.store_may_have_more && self.table.find(hash, key.as_bytes()).is_none() && !self.is_removed(key)
    }

    /// Loads a record from the store. State that is already resident is newer and stays.
    pub fn restore(&mut self, store_key: &[u8], value: &[u8]) -> Result<(), Malformed> {
        let (family, rest) = store_key.split_first().ok_or(Malformed)?;
        match family {
            b'c' => {
                let key = KeyRef::new(rest).map_err(|_| Malformed)?;
                let hash = key_hash(self.seed, rest);
                if self.is_counter_unknown(hash, key) {
                    let state = record::read_counter(value).ok_or(Malformed)?;
                    self.table.insert(hash, rest, &state);
                }
            }
            b'i' => {
                let id = RequestId(rest.try_into().map_err(|_| Malformed)?);
                self.request_ids.restore(id, record::read_request(value).ok_or(Malformed)?);
            }
            b'h' => {
                let key = KeyRef::new(rest).map_err(|_| Malformed)?;
                self.ledger_heads.restore(key, record::read_head(value).ok_or(Malformed)?);
            }
            b's' => {
                let key = KeyRef::new(rest).map_err(|_| Malformed)?;
                self.summed.restore(key, record::read_summed(value).ok_or(Malformed)?);
            }
            _ => return Err(Malformed),
        }
        Ok(())
    }

    /// Bytes of memory the state uses.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.table.memory_bytes()
            + self.request_ids.memory_bytes()
            + self.ledger_heads.memory_bytes()
            + self.summed.memory_bytes()
            + self.preimage_bytes()
            + self.deletion_bytes()
    }

    /// Makes sure the batch fits into `budget_bytes`, evicting cold counters that are clean.
    pub fn make_room(&mut self, batch: &Batch, budget_bytes: usize) -> Headroom {
        self.make_room_for_all(std::iter::once(batch), budget_bytes)
    }

    /// Makes sure batches that are applied one after the other fit into `budget_bytes`.
    pub fn make_room_for_all<'b>(
        &mut self,
        batches: impl Iterator<Item = &'b Batch> + Clone,
        budget_bytes: usize,
    ) -> Headroom {
        if self.unsaved_bytes() > budget_bytes / UNSAVED_DIVISOR && self.has_changed() {
            return Headroom::NeedsCheckpoint;
        }
        self.evict_for_all(batches, budget_bytes)
    }

    /// Evicts clean state until the batches fit into `budget_bytes`, or until there is nothing left to evict.
    pub fn evict_for_all<'b>(
        &mut self,
        batches: impl Iterator<Item = &'b Batch> + Clone,
        budget_bytes: usize,
    ) -> Headroom {
        let mut most = Incoming { counters: 0, out_of_line_bytes: 0 };
        for batch in batches.clone() {
            most.counters += batch.len();
            most.out_of_line_bytes += batch.bytes();
        }
        if self.fits(most, budget_bytes) {
            return Headroom::Enough;
        }
        let mut incoming = Incoming { counters: 0, out_of_line_bytes: 0 };
        for event in batches.flat_map(Batch::iter) {
            if self.table.find(event.hash, event.key.as_bytes()).is_none() {
                incoming.counters += 1;
                incoming.out_of_line_bytes += CounterTable::out_of_line_key_bytes(event.key.as_bytes());
            }
            // Anything but a plain add may set an expiry.
            if event.details.is_some() || matches!(event.change, ChangeRef::Other(_)) {
                incoming.out_of_line_bytes += EXPIRY_BYTES;
            }
        }
        self.make_room_for(incoming, budget_bytes)
    }

    /// Makes sure one more counter fits into `budget_bytes`.
    pub fn make_room_for_one(&mut self, key: KeyRef<'_>, budget_bytes: usize) -> Headroom {
        let incoming = Incoming { counters: 1, out_of_line_bytes: CounterTable::out_of_line_key_bytes(key.as_bytes()) };
        self.make_room_for(incoming, budget_bytes)
    }

    fn make_room_for(&mut self, incoming: Incoming, budget_bytes: usize) -> Headroom {
        // No checkpoint can free more than the reserve, however large the batch is.
        let out_of_line_bytes = incoming.out_of_line_bytes.min(budget_bytes / RESERVE_DIVISOR);
        let incoming = Incoming { out_of_line_bytes, ..incoming };
        while !self.fits(incoming, budget_bytes) {
            // Evicting counters makes cells reusable and frees out-of-line memory, nothing else.
            let not_evictable = self.memory_bytes() - self.table.out_of_line_bytes();
            let eviction_helps = not_evictable + incoming.out_of_line_bytes <= self.limit_bytes(budget_bytes);
            if !eviction_helps && self.request_ids.evict_restored() {
                self.evictions += 1;
                continue;
            }
            let changed = self.has_changed();
            let needs_cells = self.table.growth_bytes(incoming.counters) > 0;
            let victims = match eviction_helps {
                true if needs_cells => Some(Victims::Any),
                true => Some(Victims::WithOutOfLine),
                false => (needs_cells && !changed).then_some(Victims::Any),
            };
            let captured = self.capturing.as_ref().map(Capturing::cells);
            let pinned: Vec<&Bits> = std::iter::once(&self.dirty).chain(captured).collect();
            let mut evict = |victims| self.table.evict(incoming.counters.max(1), victims, &pinned);
            if victims.map_or(0, &mut evict) == 0 {
                // Nothing can be evicted, or evicting does not help. A checkpoint helps if there is dirty state;
                // otherwise nothing does, and exceeding the budget is better than refusing to count.
                return if changed { Headroom::NeedsCheckpoint } else { Headroom::Enough };
            }
            self.evictions += 1;
            self.store_may_have_more = true;
            self.warming = false;
        }
        Headroom::Enough
    }

    /// Whether the current checkpoint or the next one can free memory.
    fn has_changed(&self) -> bool {
        self.is_dirty() || self.capturing.is_some()
    }

    /// Whether new counters fit: cells within the budget less the reserve, everything within the limit.
    fn fits(&self, incoming: Incoming, budget_bytes: usize) -> bool {
        let growth = self.table.growth_bytes(incoming.counters);
        let cells_fit =
            growth == 0 || self.table.fixed_bytes() + growth <= budget_bytes - budget_bytes / RESERVE_DIVISOR;
        cells_fit && self.memory_bytes() + growth + incoming.out_of_line_bytes <= self.limit_bytes(budget_bytes)
    }

    /// The budget, raised if needed so that the reserve is on top of the cells. Cells may already exceed the budget,
    /// because it shrinks as the store grows.
    fn limit_bytes(&self, budget_bytes: usize) -> usize {
        budget_bytes.max(self.table.fixed_bytes() + budget_bytes / RESERVE_DIVISOR)
    }

    /// Bytes that only a checkpoint can free.
    fn unsaved_bytes(&self) -> usize {
        self.request_ids.unsaved_bytes()
            + self.ledger_heads.memory_bytes()
            + self.summed.memory_bytes()
            + self.deletion_bytes()
    }

    /// Whether a checkpoint should start now, before batches have to wait for one.
    #[must_use]
    pub fn wants_checkpoint(&self, budget_bytes: usize) -> bool {
        let room = budget_bytes.saturating_sub(self.table.fixed_bytes()).max(budget_bytes / RESERVE_DIVISOR);
        self.capturing.is_none() && self.unsaved_bytes() > room.min(budget_bytes / UNSAVED_DIVISOR) / 2
    }

    /// Whether loading all counters from the store, in key order, is still possible: there is room and none was
    /// evicted.
    pub fn is_warming(&mut self, budget_bytes: usize) -> bool {
        self.warming &= self.fits(Incoming { counters: 1, out_of_line_bytes: KEY_BYTES_MAX }, budget_bytes);
        self.warming
    }

    /// Ends warming: every counter of the store was loaded.
    pub fn finish_warming(&mut self) {
        self.store_may_have_more &= !self.warming;
        self.warming = false;
    }

    /// Scans up to `max` counters that are not in the store yet, starting at cell `from`. Passes to `found` the keys
    /// that start with `prefix`, sort after `after` and have not expired at `now`. Returns the cell to continue from,
    /// or `None` at the end.
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

    /// Whether the key is known to be absent without a lookup in the store.
    #[must_use]
    pub fn is_known_absent(&self, key: &Key) -> bool {
        self.state_of(key.as_ref()).is_none() && (!self.store_may_have_more || self.is_removed(key.as_ref()))
    }
}
