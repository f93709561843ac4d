//! The partition: a deterministic state machine over batches.
//!
//! `apply` is the only way its state changes, and time comes with the batch, so replaying the same batches from the
//! same state gives the same state and the same outcomes, bit for bit. Everything else here moves state between
//! memory and the store without changing what it is: `wants` and `restore` bring back what left memory, `capture`
//! copies what changed for a checkpoint while batches go on, `make_room` lets go of what is cold. Reads are judged by a
//! time of their own and leave no trace.

mod capture;
mod change;
mod residence;
mod sweep;

use std::collections::BTreeSet;

pub use capture::Capture;
use capture::Capturing;
use change::{read_field, standing};
pub use residence::{Headroom, Malformed};
pub use sweep::Probe;

use crate::batch::{Batch, key_hash};
use crate::bits::Bits;
use crate::counter::CounterState;
use crate::counter_table::{CellId, CounterTable};
use crate::event::{Change, ChangeRef, EventRef, RequestId};
use crate::key::{Key, KeyRef};
use crate::ledger::LedgerEntry;
use crate::ledger_heads::LedgerHeads;
use crate::outcome::{Outcome, Outcomes, Refusal};
use crate::record::Meta;
use crate::request_ids::{FirstOutcome, RequestIds};
use crate::time::Millis;

/// Events whose counters are looked up before the first of them is applied.
const LOOK_AHEAD: usize = 16;

/// What is known of an event before it is applied.
#[derive(Clone, Copy, Default)]
struct Hint {
    /// Where its counter probably is.
    cell: Option<CellId>,
    request: Option<RequestId>,
    /// What its request id was answered, unless the batch itself says so.
    first: Option<FirstOutcome>,
}

/// The state machine.
pub struct Partition {
    seed: u64,
    clock: Millis,
    table: CounterTable,
    request_ids: RequestIds,
    ledger_heads: LedgerHeads,
    /// Cells changed since the last capture began.
    dirty: Bits,
    /// Cells whose key the store does not hold.
    created: Bits,
    /// Keys deleted since the last capture began.
    removed: BTreeSet<Key>,
    /// Expiry records of the store that are of no use any more.
    outdated: BTreeSet<(Millis, Key)>,
    /// Counters that take room, in memory or in the store.
    counters: u64,
    /// Those of them that have an expiry.
    expiring: u64,
    /// Counters that expired and gave up their room since `take_expired`.
    expired: u64,
    capturing: Option<Capturing>,
    departures: u64,
    /// Whether the store may hold counters that the table does not.
    in_store_only: bool,
    /// Whether nothing that was in memory has left it, so that bringing the rest makes it whole.
    warming: bool,
}

impl Partition {
    /// An empty partition beside an empty store. `seed` hashes keys and does not influence the state.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Partition {
            seed,
            clock: Millis(0),
            table: CounterTable::new(seed),
            request_ids: RequestIds::default(),
            ledger_heads: LedgerHeads::default(),
            dirty: Bits::default(),
            created: Bits::default(),
            removed: BTreeSet::new(),
            outdated: BTreeSet::new(),
            counters: 0,
            expiring: 0,
            expired: 0,
            capturing: None,
            departures: 0,
            in_store_only: false,
            warming: false,
        }
    }

    /// A partition whose state is in the store, to be brought to memory as it is used, within `budget_bytes`.
    #[must_use]
    pub fn beside_store(seed: u64, meta: Meta, budget_bytes: usize) -> Self {
        let mut table = CounterTable::new(seed);
        table.reserve(meta.counters, budget_bytes);
        Partition {
            clock: meta.clock,
            table,
            counters: meta.counters,
            expiring: meta.expiring,
            request_ids: RequestIds::beside_store(),
            ledger_heads: LedgerHeads::beside_store(),
            in_store_only: true,
            warming: true,
            ..Partition::new(seed)
        }
    }

    /// Applies a batch and appends one outcome per event. Everything the batch [missing](Self::missing) must have been
    /// restored. A batch that claims an earlier time than the one before happens at the time of the one before, unless it
    /// is there to reset the clock. Returns the time it happened at.
    pub fn apply(&mut self, at: Millis, batch: &Batch, outcomes: &mut Outcomes) -> Millis {
        self.clock = if batch.resets_clock() { at } else { self.clock.max(at) };
        outcomes.reserve(batch.len());
        let mut events = batch.iter();
        let mut ahead = batch.iter();
        while events.len() > 0 {
            for hint in self.look_ahead(&mut ahead) {
                let Some(event) = events.next() else {
                    break;
                };
                self.apply_event(&event, &hint, outcomes);
            }
        }
        self.clock
    }

    /// Answers a batch that is not applied, and appends one outcome per event: reads tell what stands there at `now`, or
    /// at the time of the last batch if that is later; changes are refused. `stored` is asked for counters that are not
    /// in memory. Returns the time it was judged by.
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
            let found = found.filter(|held| !held.is_expired(now));
            outcomes.push(match event.change {
                ChangeRef::Other(Change::Read(field)) => read_field(found.as_ref(), *field, now),
                _ => Outcome { refusal: Some(refusal), ..standing(found.as_ref(), now) },
            });
        }
        now
    }

    /// How often counters or request ids have left memory. As long as it stays the same, what was there still is.
    #[must_use]
    pub fn departures(&self) -> u64 {
        self.departures
    }

    /// The time of the last batch.
    #[must_use]
    pub fn clock(&self) -> Millis {
        self.clock
    }

    /// What the key is hashed with.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// The counter, if it is in memory, whether or not it has expired.
    #[must_use]
    pub fn state_of(&self, key: KeyRef<'_>) -> Option<CounterState> {
        let hash = key_hash(self.seed, key.as_bytes());
        self.table.find(hash, key.as_bytes()).map(|id| self.table.state(id))
    }

    /// Counters in memory and in the store. Those that have expired count until they are forgotten.
    #[must_use]
    pub fn counters(&self) -> u64 {
        self.counters
    }

    /// Counters in memory and in the store that have an expiry. Those that have expired count until they are forgotten.
    #[must_use]
    pub fn expiring(&self) -> u64 {
        self.expiring
    }

    /// Counters that had expired and were forgotten or started afresh since this was last asked.
    pub fn take_expired(&mut self) -> u64 {
        std::mem::take(&mut self.expired)
    }

    /// Ledger entries of `key` that the store may not hold yet, oldest first.
    pub fn unsaved_ledger<'a>(&'a self, key: &Key) -> impl Iterator<Item = &'a LedgerEntry> {
        self.ledger_heads.unsaved_of(key)
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

    /// Looks up the next few events. Their cache misses do not depend on each other: in short loops the processor waits
    /// for many of them at once, which in one long loop over everything it cannot.
    fn look_ahead<'a>(&self, events: &mut impl Iterator<Item = EventRef<'a>>) -> [Hint; LOOK_AHEAD] {
        let mut hints = [Hint::default(); LOOK_AHEAD];
        for (hint, event) in hints.iter_mut().zip(events) {
            hint.cell = self.table.candidate(event.hash);
            hint.request = event.request_id;
        }
        for cell in hints.iter().filter_map(|hint| hint.cell) {
            self.table.fetch(cell);
        }
        for id in hints.iter().filter_map(|hint| hint.request) {
            self.request_ids.fetch(id);
        }
        for hint in &mut hints {
            hint.first = hint.request.and_then(|id| self.request_ids.get_closed(id)).copied();
        }
        hints
    }

    fn apply_event(&mut self, event: &EventRef<'_>, hint: &Hint, outcomes: &mut Outcomes) {
        let Some(id) = event.request_id else {
            return self.change(event, hint.cell, outcomes);
        };
        let fingerprint = event.fingerprint();
        let first = self.request_ids.get_current(id).copied().or(hint.first);
        match first.filter(|first| !first.is_expired(self.clock)) {
            Some(first) if first.fingerprint == fingerprint => outcomes.push(first.replay()),
            Some(_) => outcomes.push(self.refused(event, Refusal::PayloadMismatch)),
            None => {
                let outcome = self.change_one(event, hint.cell);
                self.request_ids.insert(id, FirstOutcome::new(fingerprint, self.clock, &outcome));
                outcomes.push(outcome);
            }
        }
    }

    /// Lets go of a cell; nothing that is noted about it may outlive it.
    fn free(&mut self, id: CellId) {
        self.table.remove(id);
        self.dirty.clear(id as usize);
        self.created.clear(id as usize);
        if let Some(capturing) = &mut self.capturing {
            capturing.forget(id);
        }
    }
}
