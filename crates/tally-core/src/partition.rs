//! The partition: a deterministic state machine over batches.
//!
//! Only `apply` changes the state, and each batch carries its own time, so replaying the same batches from the same
//! state gives the same state and the same outcomes, bit for bit. Everything else here moves state between memory and
//! the store without changing it: `missing` and `restore` load evicted state, captures copy dirty state for a
//! checkpoint while batches continue, `make_room` evicts cold counters. Reads take the current time as an argument and
//! change nothing.

mod capture;
mod change;
mod deletions;
mod import;
mod residency;
mod sweep;

pub use capture::Capture;
use capture::Capturing;
pub use change::read_field;
use change::unchanged_outcome;
use deletions::Deletions;
pub use residency::{Headroom, Malformed};
pub use sweep::Probe;

pub use crate::counter_table::pseudo_random;

use crate::batch::{Batch, key_hash};
use crate::bits::Bits;
use crate::counter::CounterState;
use crate::counter_table::{CellId, CounterTable};
use crate::event::{Change, ChangeRef, EventRef, RequestId};
use crate::key::{Key, KeyRef};
use crate::ledger::{ChainHead, LedgerEntry};
use crate::ledger_heads::LedgerHeads;
use crate::outcome::{Outcome, Outcomes, Refusal};
use crate::record::Meta;
use crate::request_ids::{FirstOutcome, RequestIds};
use crate::sub_counters::{SummedShards, SummedTable};
use crate::time::Millis;

/// Events looked up together before the first of them is applied.
const PREFETCH_EVENTS: usize = 16;

/// The result of an event's lookups, made before it is applied.
#[derive(Clone, Copy, Default)]
struct Hint {
    /// The likely cell of its counter.
    cell: Option<CellId>,
    request: Option<RequestId>,
    /// The first outcome of its request id in a closed layer. The current layer takes precedence.
    first: Option<FirstOutcome>,
}

/// The state machine.
pub struct Partition {
    seed: u64,
    clock: Millis,
    table: CounterTable,
    request_ids: RequestIds,
    ledger_heads: LedgerHeads,
    summed: SummedTable,
    /// Cells changed since the last capture began.
    dirty: Bits,
    /// Cells whose key the store does not hold.
    created: Bits,
    /// Keys deleted since the last capture began.
    removed: Deletions<Key>,
    /// Expiry records to delete from the store.
    outdated: Deletions<(Millis, Key)>,
    /// Counters in memory or in the store, including expired ones not removed yet.
    counters: u64,
    /// How many of `counters` have an expiry.
    expiring: u64,
    /// Expired counters removed or recreated since the last `take_expired`.
    expired: u64,
    /// How many of the next changes to refuse because their guard was refused. Reset with each batch.
    refuse_next: u32,
    capturing: Option<Capturing>,
    evictions: u64,
    /// Whether the store may hold counters that the table does not.
    store_may_have_more: bool,
    /// Whether nothing was evicted since the start, so that loading the rest makes every counter resident.
    warming: bool,
}

impl Partition {
    /// An empty partition with an empty store. `seed` is for hashing keys and does not affect the state.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Partition {
            seed,
            clock: Millis(0),
            table: CounterTable::new(seed),
            request_ids: RequestIds::default(),
            ledger_heads: LedgerHeads::default(),
            summed: SummedTable::default(),
            dirty: Bits::default(),
            created: Bits::default(),
            removed: Deletions::default(),
            outdated: Deletions::default(),
            counters: 0,
            expiring: 0,
            expired: 0,
            refuse_next: 0,
            capturing: None,
            evictions: 0,
            store_may_have_more: false,
            warming: false,
        }
    }

    /// A partition whose state is in the store and is loaded on use, within `budget_bytes` of memory.
    #[must_use]
    pub fn with_store(seed: u64, meta: Meta, budget_bytes: usize) -> Self {
        let mut table = CounterTable::new(seed);
        table.reserve(meta.counters, budget_bytes);
        Partition {
            clock: meta.clock,
            table,
            counters: meta.counters,
            expiring: meta.expiring,
            request_ids: RequestIds::with_store(),
            ledger_heads: LedgerHeads::with_store(),
            summed: SummedTable::with_store(),
            store_may_have_more: true,
            warming: true,
            ..Partition::new(seed)
        }
    }

    /// Applies a batch, appends one outcome per event and returns the time the batch was applied at. Every
    /// [missing](Self::missing) record must have been restored. Time never goes back: a batch older than its
    /// predecessor is applied at the predecessor's time, unless it resets the clock.
    pub fn apply(&mut self, at: Millis, batch: &Batch, outcomes: &mut Outcomes) -> Millis {
        self.clock = if batch.resets_clock() { at } else { self.clock.max(at) };
        outcomes.reserve(batch.len());
        self.refuse_next = 0;
        let mut events = batch.iter();
        let mut ahead = batch.iter();
        while events.len() > 0 {
            for hint in self.prefetch(&mut ahead) {
                let Some(event) = events.next() else {
                    break;
                };
                self.apply_event(&event, &hint, outcomes);
            }
        }
        self.clock
    }

    /// Answers a batch without applying it and appends one outcome per event: reads return the current state, changes
    /// are refused. `stored` looks up counters that are not in memory. Expiry is evaluated at `now` or at the time of
    /// the last batch, whichever is later; that time is returned.
    pub fn answer(
        &self,
        now: Millis,
        batch: &Batch,
        refusal: Refusal,
        stored: impl Fn(KeyRef<'_>) -> Option<CounterState>,
        outcomes: &mut Outcomes,
    ) -> Millis {
        let now = self.clock.max(now);
        outcomes.reserve(batch.len());
        for event in batch.iter() {
            let found = match self.table.find(event.hash, event.key.as_bytes()) {
                Some(id) => Some(self.table.state(id)),
                None if self.is_counter_unknown(event.hash, event.key) => stored(event.key),
                None => None,
            };
            let found = found.filter(|state| !state.is_expired(now));
            outcomes.push(match event.change {
                ChangeRef::Other(Change::Read(field)) => read_field(found.as_ref(), *field, now),
                _ => Outcome { refusal: Some(refusal), ..unchanged_outcome(found.as_ref(), now) },
            });
        }
        now
    }

    /// How many times counters or request ids were evicted. While this does not change, everything that was resident
    /// still is.
    #[must_use]
    pub fn evictions(&self) -> u64 {
        self.evictions
    }

    /// The time of the last batch.
    #[must_use]
    pub fn clock(&self) -> Millis {
        self.clock
    }

    /// The seed for hashing keys.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// The counter, if it is in memory, even if it has expired.
    #[must_use]
    pub fn state_of(&self, key: KeyRef<'_>) -> Option<CounterState> {
        let hash = key_hash(self.seed, key.as_bytes());
        self.table.find(hash, key.as_bytes()).map(|id| self.table.state(id))
    }

    /// Counters in memory and in the store, including expired ones that are not removed yet.
    #[must_use]
    pub fn counters(&self) -> u64 {
        self.counters
    }

    /// Counters in memory and in the store that have an expiry, including expired ones that are not removed yet.
    #[must_use]
    pub fn expiring(&self) -> u64 {
        self.expiring
    }

    /// Expired counters that were removed or recreated since the last call.
    pub fn take_expired(&mut self) -> u64 {
        std::mem::take(&mut self.expired)
    }

    /// Ledger entries of `key` that the store may not hold yet, oldest first.
    pub fn unsaved_ledger<'a>(&'a self, key: &Key) -> impl Iterator<Item = &'a LedgerEntry> {
        self.ledger_heads.unsaved_of(key)
    }

    /// The summed reports of the sub-counters of `key`, if they are in memory.
    #[must_use]
    pub fn summed(&self, key: &Key) -> Option<&SummedShards> {
        self.summed.get(key)
    }

    /// Whether the summed reports of the sub-counters of `key` must be looked up in the store.
    #[must_use]
    pub fn is_summed_missing(&self, key: KeyRef<'_>) -> bool {
        self.summed.is_unknown(key)
    }

    /// The head of the key's ledger chain, unless it [must be looked up](Self::is_head_missing) in the store.
    #[must_use]
    pub fn ledger_head(&self, key: KeyRef<'_>) -> ChainHead {
        self.ledger_heads.head(key)
    }

    /// Whether the head of the key's ledger chain must be looked up in the store.
    #[must_use]
    pub fn is_head_missing(&self, key: KeyRef<'_>) -> bool {
        self.ledger_heads.is_head_unknown(key)
    }

    /// Counters in memory.
    #[must_use]
    pub fn resident_counters(&self) -> usize {
        self.table.len()
    }

    /// Request ids in memory.
    #[must_use]
    pub fn resident_requests(&self) -> usize {
        self.request_ids.len()
    }

    /// Looks up the next few events in short loops. Within each loop the cache misses are independent, so the processor
    /// overlaps them.
    fn prefetch<'a>(&self, events: &mut impl Iterator<Item = EventRef<'a>>) -> [Hint; PREFETCH_EVENTS] {
        let mut hints = [Hint::default(); PREFETCH_EVENTS];
        for (hint, event) in hints.iter_mut().zip(events) {
            hint.cell = self.table.candidate(event.hash);
            hint.request = event.request_id;
        }
        for cell in hints.iter().filter_map(|hint| hint.cell) {
            self.table.prefetch(cell);
        }
        for id in hints.iter().filter_map(|hint| hint.request) {
            self.request_ids.prefetch(id);
        }
        for hint in &mut hints {
            hint.first = hint.request.and_then(|id| self.request_ids.get_closed(id)).copied();
        }
        hints
    }

    fn apply_event(&mut self, event: &EventRef<'_>, hint: &Hint, outcomes: &mut Outcomes) {
        // Reads do not count: they are not in the journal.
        if self.refuse_next > 0 && event.is_change() {
            self.refuse_next -= 1;
            return outcomes.push(self.refused(event, Refusal::NotExpected));
        }
        let Some(id) = event.request_id else {
            return self.change(event, hint.cell, outcomes);
        };
        let fingerprint = event.fingerprint();
        let first = self.request_ids.get_current(id).copied().or(hint.first);
        let first = first.filter(|first| !first.is_expired(self.clock));
        if let ChangeRef::Other(Change::ImportRequest(imported)) = event.change {
            return outcomes.push(self.import_request(event, id, *imported, first));
        }
        match first {
            Some(first) if first.fingerprint == fingerprint => outcomes.push(first.replay()),
            Some(_) => outcomes.push(self.refused(event, Refusal::PayloadMismatch)),
            None => {
                let outcome = self.change_one(event, hint.cell);
                self.request_ids.insert(id, FirstOutcome::new(fingerprint, self.clock, &outcome));
                outcomes.push(outcome);
            }
        }
    }

    /// Frees a cell and every bit that refers to it, because the cell will be reused.
    fn free_cell(&mut self, id: CellId) {
        self.table.remove(id);
        self.dirty.clear(id as usize);
        self.created.clear(id as usize);
        if let Some(capturing) = &mut self.capturing {
            capturing.discard(id);
        }
    }
}
