//! The partition: a deterministic state machine over batches.
//!
//! `apply` is the only way its state changes, and time comes with the batch, so replaying the same batches from the
//! same state gives the same state and the same outcomes, bit for bit. Everything else here moves state between
//! memory and the store without changing what it is: `wants` and `restore` bring back what left memory, `capture`
//! copies what changed for a checkpoint while batches go on, `make_room` lets go of what is cold.

mod capture;
mod residence;

use std::collections::BTreeSet;

pub use capture::Capture;
use capture::Capturing;
pub use residence::{Malformed, Room};

use crate::batch::{Batch, key_hash};
use crate::bits::Bits;
use crate::book::Book;
use crate::counter::{Counter, Overflow};
use crate::event::{Bounds, Change, ChangeRef, Condition, Correction, EventRef, Look, OnBound, RequestId};
use crate::key::{Key, KeyRef};
use crate::ledger::{CorrectionKind, LedgerEntry};
use crate::outcome::{Outcome, Refusal};
use crate::seen::{FirstOutcome, Seen};
use crate::table::{CellId, Table};
use crate::time::Millis;

/// Events whose counters are looked up before the first of them is applied.
const LOOK_AHEAD: usize = 16;

/// Counters and request ids of events that were put off: what comes after one of them has to wait for it.
#[derive(Default)]
struct PutOff<'a> {
    keys: BTreeSet<KeyRef<'a>>,
    requests: BTreeSet<RequestId>,
}

impl<'a> PutOff<'a> {
    fn concerns(&self, event: &EventRef<'a>) -> bool {
        let none = self.keys.is_empty();
        !none && (self.keys.contains(&event.key) || event.request_id.is_some_and(|id| self.requests.contains(&id)))
    }

    fn add(&mut self, event: &EventRef<'a>) {
        self.keys.insert(event.key);
        self.requests.extend(event.request_id);
    }
}

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
    table: Table,
    seen: Seen,
    book: Book,
    /// Cells changed since the last capture began.
    dirty: Bits,
    /// Cells whose key the store does not hold.
    created: Bits,
    /// Keys deleted since the last capture began.
    removed: BTreeSet<Key>,
    capturing: Option<Capturing>,
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
            table: Table::new(seed),
            seen: Seen::default(),
            book: Book::default(),
            dirty: Bits::default(),
            created: Bits::default(),
            removed: BTreeSet::new(),
            capturing: None,
            in_store_only: false,
            warming: false,
        }
    }

    /// A partition whose state is in the store, to be brought to memory as it is used.
    #[must_use]
    pub fn beside_store(seed: u64) -> Self {
        Partition {
            seen: Seen::beside_store(),
            book: Book::beside_store(),
            in_store_only: true,
            warming: true,
            ..Partition::new(seed)
        }
    }

    /// Applies a batch and appends one outcome per event. Everything the batch [`wants`](Self::wants) must have been
    /// restored. A batch that claims an earlier time than the one before happens at the time of the one before.
    ///
    /// Where several adds combined into one overflow, none of them is applied, and nothing after them in the batch is done
    /// to that counter or under the request ids of what is put off: [`Events::outcomes`](crate::batch::Events::outcomes) says which events to try again alone.
    pub fn apply(&mut self, at: Millis, batch: &Batch, outcomes: &mut Vec<Outcome>) -> Millis {
        self.clock = self.clock.max(at);
        outcomes.reserve(batch.len());
        let mut put_off = PutOff::default();
        let mut events = batch.iter();
        let mut ahead = batch.iter();
        while events.len() > 0 {
            let hints = self.look_ahead(&mut ahead);
            for (hint, event) in hints.into_iter().zip(&mut events) {
                if put_off.concerns(&event) {
                    put_off.add(&event);
                    outcomes.push(Outcome::PUT_OFF);
                    continue;
                }
                let outcome = self.apply_event(&event, &hint);
                if event.combined && outcome.refusal.is_some() {
                    put_off.add(&event);
                }
                outcomes.push(outcome);
            }
        }
        self.clock
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

    /// The counter, if it is in memory.
    #[must_use]
    pub fn counter(&self, key: KeyRef<'_>) -> Option<Counter> {
        let hash = key_hash(self.seed, key.as_bytes());
        self.table.find(hash, key.as_bytes()).map(|id| self.table.counter(id))
    }

    /// Ledger entries of `key` that the store may not hold yet, oldest first.
    pub fn unsaved_ledger<'a>(&'a self, key: &Key) -> impl Iterator<Item = &'a LedgerEntry> {
        self.book.unsaved_of(key)
    }

    /// Counters in memory.
    #[must_use]
    pub fn resident_counters(&self) -> usize {
        self.table.len()
    }

    /// Request ids in memory.
    #[must_use]
    pub fn resident_requests(&self) -> usize {
        self.seen.len()
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
        for hint in &mut hints {
            hint.first = hint.request.and_then(|id| self.seen.get_closed(id)).copied();
        }
        hints
    }

    fn apply_event(&mut self, event: &EventRef<'_>, hint: &Hint) -> Outcome {
        let Some(id) = event.request_id else {
            return self.change(event, hint.cell);
        };
        let fingerprint = event.fingerprint();
        let first = self.seen.get_current(id).copied().or(hint.first);
        match first.filter(|first| !first.is_expired(self.clock)) {
            Some(first) if first.fingerprint == fingerprint => first.replay(),
            Some(_) => self.refused(event, Refusal::PayloadMismatch),
            None => {
                let outcome = self.change(event, hint.cell);
                self.seen.insert(id, FirstOutcome::new(fingerprint, self.clock, &outcome));
                outcome
            }
        }
    }

    fn change(&mut self, event: &EventRef<'_>, hint: Option<CellId>) -> Outcome {
        match event.change {
            ChangeRef::Add(delta) => self.add(event, delta, hint),
            ChangeRef::Other(Change::Add(delta)) => self.add(event, *delta, hint),
            ChangeRef::Other(Change::Set { value, when, why, .. }) => {
                let met = match when {
                    Condition::Always => true,
                    Condition::Equals(expected) => *expected == self.value(event),
                    Condition::Absent => self.table.find(event.hash, event.key.as_bytes()).is_none(),
                    Condition::Present => self.table.find(event.hash, event.key.as_bytes()).is_some(),
                };
                if !met {
                    return self.refused(event, Refusal::NotExpected);
                }
                self.correct(event, *value, CorrectionKind::Set, why)
            }
            ChangeRef::Other(Change::Reset(why)) => self.correct(event, 0, CorrectionKind::Reset, why),
            ChangeRef::Other(Change::Adjust { delta, why }) => match self.value(event).checked_add(*delta) {
                Some(target) => self.correct(event, target, CorrectionKind::Adjust, why),
                None => self.refused(event, Refusal::Overflow),
            },
            ChangeRef::Other(Change::Delete(why)) => self.delete(event, why),
            ChangeRef::Other(Change::Expire { .. } | Change::Look(Look::Value)) => self.standing(event),
            ChangeRef::Other(Change::Look(Look::Expiry)) => {
                let standing = self.standing(event);
                Outcome { value: if standing.exists { -1 } else { 0 }, ..standing }
            }
        }
    }

    fn add(&mut self, event: &EventRef<'_>, delta: i64, hint: Option<CellId>) -> Outcome {
        // The event before may have created or removed the counter since it was looked up.
        let found = match hint {
            Some(id) if self.table.holds(id, event.key.as_bytes()) => hint,
            _ => self.table.find(event.hash, event.key.as_bytes()),
        };
        let mut counter = found.map_or_else(|| Counter::new(self.clock), |id| self.table.counter(id));
        let delta = match event.details.and_then(|details| details.bounds) {
            None => delta,
            Some(bounds) => match within(bounds, counter.value(), delta) {
                Some(delta) => delta,
                None => return self.refused(event, Refusal::Bound),
            },
        };
        if counter.add(self.clock, delta) == Err(Overflow) {
            return self.refused(event, Refusal::Overflow);
        }
        self.keep(found, event, &counter);
        Outcome {
            value: counter.value(),
            applied: delta,
            exists: true,
            duplicate: false,
            refusal: None,
            at: self.clock,
        }
    }

    fn correct(&mut self, event: &EventRef<'_>, target: i64, kind: CorrectionKind, why: &Correction) -> Outcome {
        let found = self.table.find(event.hash, event.key.as_bytes());
        let mut counter = found.map_or_else(|| Counter::new(self.clock), |id| self.table.counter(id));
        let before = counter.value();
        if counter.correct(self.clock, target) == Err(Overflow) {
            return self.refused(event, Refusal::Overflow);
        }
        self.keep(found, event, &counter);
        self.book.append(event.key, self.clock, kind, why, (before, target));
        // A swing across the whole range does not fit; the value afterwards says what happened.
        let applied = target.saturating_sub(before);
        Outcome { value: target, applied, exists: true, duplicate: false, refusal: None, at: self.clock }
    }

    fn delete(&mut self, event: &EventRef<'_>, why: &Correction) -> Outcome {
        let gone = Outcome { value: 0, applied: 0, exists: false, duplicate: false, refusal: None, at: self.clock };
        let Some(id) = self.table.find(event.hash, event.key.as_bytes()) else {
            return gone;
        };
        let before = self.table.counter(id).value();
        self.save_preimage(id);
        self.free(id);
        self.removed.insert(event.key.to_key());
        self.book.append(event.key, self.clock, CorrectionKind::Delete, why, (before, 0));
        Outcome { applied: 0i64.saturating_sub(before), ..gone }
    }

    /// Writes a changed counter to its cell, old or new.
    fn keep(&mut self, found: Option<CellId>, event: &EventRef<'_>, counter: &Counter) {
        let id = match found {
            Some(id) => {
                self.save_preimage(id);
                self.table.put(id, counter);
                self.table.touch(id);
                id
            }
            None => {
                if !self.removed.is_empty() {
                    self.removed.remove(&event.key.to_key());
                }
                let id = self.table.insert(event.hash, event.key.as_bytes(), counter);
                self.created.set(id as usize);
                id
            }
        };
        self.dirty.set(id as usize);
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

    fn value(&self, event: &EventRef<'_>) -> i64 {
        self.table.find(event.hash, event.key.as_bytes()).map_or(0, |id| self.table.counter(id).value())
    }

    fn standing(&self, event: &EventRef<'_>) -> Outcome {
        let found = self.table.find(event.hash, event.key.as_bytes());
        let value = found.map_or(0, |id| self.table.counter(id).value());
        Outcome { value, applied: 0, exists: found.is_some(), duplicate: false, refusal: None, at: self.clock }
    }

    fn refused(&self, event: &EventRef<'_>, refusal: Refusal) -> Outcome {
        let found = self.table.find(event.hash, event.key.as_bytes());
        let value = found.map_or(0, |id| self.table.counter(id).value());
        let (exists, at) = (found.is_some(), self.clock);
        Outcome { value, applied: 0, exists, duplicate: false, refusal: Some(refusal), at }
    }
}

/// The part of `delta` that the bounds allow, or `None` when they refuse it. A bound stops movement towards the far
/// side of it; a value that already lies beyond may come back.
fn within(bounds: Bounds, value: i64, delta: i64) -> Option<i64> {
    let target = i128::from(value) + i128::from(delta);
    let limit = if delta < 0 {
        bounds.floor.map(i128::from).filter(|&floor| target < floor).map(|floor| floor.min(value.into()))
    } else {
        bounds.ceiling.map(i128::from).filter(|&ceiling| target > ceiling).map(|ceiling| ceiling.max(value.into()))
    };
    match (limit, bounds.on_bound) {
        (None, OnBound::Refuse) => Some(delta),
        (None, OnBound::Saturate) => {
            let clamped = target.clamp(i64::MIN.into(), i64::MAX.into());
            Some((clamped - i128::from(value)) as i64)
        }
        (Some(_), OnBound::Refuse) => None,
        (Some(limit), OnBound::Saturate) => Some((limit - i128::from(value)) as i64),
    }
}
