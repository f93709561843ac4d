//! What a protocol fills for one call: events in order, combined as they come.

use super::{Batch, HAS_REQUEST_ID, NONE, OPEN, Shape, UNSTORED, key_hash};
use crate::event::{Change, Details, RequestId};
use crate::key::KeyRef;
use crate::outcome::{Outcome, Split};
use crate::record::{RequestKey, request_key};
use crate::time::Position;

/// The events of one call.
///
/// Adds of a key used a moment ago join the earlier event at once, on the caller's own thread: a pipeline of a
/// thousand increments of one key reaches the engine as one event. Every event keeps its place, so each still
/// gets its own outcome.
#[derive(Clone, Debug)]
pub struct Events {
    seed: u64,
    combining: Combining,
    pub(super) batch: Batch,
    marks: Vec<Mark>,
    /// Events of all marks.
    len: usize,
    /// Slot last used for a key hash, by its low bits; a guess that is always checked.
    recent: [u32; RECENT],
}

/// Whether adds may join each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Combining {
    Allowed,
    /// The events are a group: each keeps its own slot.
    Off,
}

/// Where an event went, or several equal adds in a row.
#[derive(Clone, Copy, Debug)]
struct Mark {
    slot: u32,
    times: u32,
    /// What each of them adds.
    delta: i64,
    /// What this call had added to the slot before.
    prior: i64,
}

const RECENT: usize = 32;

impl Events {
    /// An empty call. Engines hand these out; `seed` is the engine's own.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Events {
            seed,
            combining: Combining::Allowed,
            batch: Batch::default(),
            marks: Vec::new(),
            len: 0,
            recent: [NONE; RECENT],
        }
    }

    /// Number of events, combined or not.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Number of outcomes: one for each event, but for those of one [`Events::add_times`], which have one together.
    #[must_use]
    pub fn outcomes_len(&self) -> usize {
        self.marks.len()
    }

    /// Whether there is no event.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.marks.is_empty()
    }

    /// Adds `delta` to `key`: the hot path.
    pub fn add(&mut self, key: KeyRef<'_>, delta: i64) {
        self.add_times(key, delta, 1);
    }

    /// Adds `delta` to `key` this many times, one after the other and nothing between them. They have one outcome
    /// together; [`Outcome::applied_times`] tells them apart.
    pub fn add_times(&mut self, key: KeyRef<'_>, delta: i64, times: u32) {
        if times == 0 {
            return;
        }
        self.len += times as usize;
        let hash = key_hash(self.seed, key.as_bytes());
        let recent = &mut self.recent[hash as usize % RECENT];
        let sum = i128::from(delta) * i128::from(times);
        if self.combining == Combining::Allowed
            && let Some(slot) = self.batch.slots.get(*recent as usize)
            && slot.hash == hash
            && let Some(prior) = slot.joinable(sum)
            && self.batch.key(slot) == key.as_bytes()
        {
            self.marks.push(Mark { slot: *recent, times, delta, prior });
            self.batch.join_run(*recent as usize, (delta, times));
            return;
        }
        let slot = self.batch.slots.len() as u32;
        *recent = slot;
        self.marks.push(Mark { slot, times, delta, prior: 0 });
        // Offsets within a slot that others join must fit 64 bits.
        let is_open = self.combining == Combining::Allowed && i64::try_from(sum).is_ok();
        self.batch.push_run(key, hash, (delta, times), if is_open { OPEN } else { 0 });
    }

    /// Adds any event.
    pub fn push(&mut self, key: KeyRef<'_>, change: Change, id: Option<RequestId>, details: Option<Details>) {
        let details = details.filter(|details| !details.is_empty());
        if let (Change::Add(delta), None, None) = (&change, id, &details) {
            return self.add(key, *delta);
        }
        let hash = key_hash(self.seed, key.as_bytes());
        let slot = self.batch.slots.len() as u32;
        // Later adds of this key must not join an event before this one.
        self.recent[hash as usize % RECENT] = slot;
        let delta = if let Change::Add(delta) = change { delta } else { 0 };
        self.marks.push(Mark { slot, times: 1, delta, prior: 0 });
        self.len += 1;
        self.batch.push_event(key, hash, change, id, details);
    }

    /// Whether some event carries a request id.
    #[must_use]
    pub fn has_requests(&self) -> bool {
        self.batch.slots.iter().any(|slot| slot.has(HAS_REQUEST_ID))
    }

    /// Checks the request ids against the store as it is `at` this position: where `may_hold` says no, applying the batch
    /// need not look them up again as long as the store stands there. That moves most lookups off the one thread that
    /// applies.
    pub fn check_requests(&mut self, at: Position, may_hold: impl FnOnce(&[RequestKey]) -> Vec<bool>) {
        let keys: Vec<RequestKey> =
            self.batch.slots.iter().filter_map(|slot| Some(request_key(slot.request_id()?))).collect();
        let held = may_hold(&keys);
        let slots = self.batch.slots.iter_mut().filter(|slot| slot.has(HAS_REQUEST_ID));
        for (slot, held) in slots.zip(held) {
            slot.flags = if held { slot.flags & !UNSTORED } else { slot.flags | UNSTORED };
        }
        self.batch.checked_at = Some(at);
    }

    /// What `fill` adds is one group: its events are applied in a row, each with its own outcome, and nothing comes
    /// between them. None of them combines with anything, and a call stays in one piece, so they stay in a row. A group
    /// within a group is part of it.
    pub fn group(&mut self, fill: impl FnOnce(&mut Events)) {
        let outside = std::mem::replace(&mut self.combining, Combining::Off);
        fill(self);
        self.combining = outside;
    }

    /// Removes the events, keeps the memory.
    pub fn clear(&mut self) {
        self.batch.clear();
        self.marks.clear();
        self.len = 0;
        self.combining = Combining::Allowed;
        self.recent = [NONE; RECENT];
    }

    /// The batch as filled so far.
    #[must_use]
    pub fn batch(&self) -> &Batch {
        &self.batch
    }

    /// The outcome of every event, those added together being one, given the outcome of every slot.
    pub fn outcomes<'o>(&self, of_slot: impl Fn(usize) -> SlotOutcome<'o>) -> impl Iterator<Item = Outcome> {
        // Events in a row are often of one slot: it is looked up once.
        let mut at = NONE;
        let mut found = SlotOutcome { outcome: Outcome::EMPTY, base: 0, split: None };
        self.marks.iter().map(move |mark| {
            if mark.slot != at {
                at = mark.slot;
                found = of_slot(at as usize);
            }
            match self.batch.slots[at as usize].shape {
                Shape::Single => found.outcome,
                Shape::Run | Shape::Mixed => found.of_run(mark.prior, mark.delta, mark.times),
            }
        })
    }
}

/// The outcome of a slot in the batch it was journalled in.
#[derive(Clone, Copy, Debug)]
pub struct SlotOutcome<'o> {
    /// What became of the slot as a whole.
    pub outcome: Outcome,
    /// What became of its adds one by one, if not all of them were applied.
    pub split: Option<&'o Split>,
    /// What had been added to the slot before this call joined it.
    pub base: i64,
}

impl SlotOutcome<'_> {
    /// The outcome of `times` adds of `delta`, before which the call had added `prior` to the slot.
    fn of_run(&self, prior: i64, delta: i64, times: u32) -> Outcome {
        let offset = self.base.wrapping_add(prior);
        match self.split {
            Some(split) => split.of_run(&self.outcome, offset, delta, times),
            // Refused as a whole, for a reason other than its amounts.
            None if self.outcome.refusal.is_some() => self.outcome,
            None => {
                let applied = delta.wrapping_mul(i64::from(times));
                let start = self.outcome.value.wrapping_sub(self.outcome.applied);
                Outcome { value: start.wrapping_add(offset).wrapping_add(applied), applied, ..self.outcome }
            }
        }
    }
}
