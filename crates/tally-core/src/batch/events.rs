//! What a front door fills for one call: events in order, combined as they come.

use super::{Batch, Merging, key_hash};
use crate::event::{Change, Details, RequestId};
use crate::key::KeyRef;
use crate::outcome::Outcome;
use crate::record::{RequestKey, request_key};
use crate::time::Position;

/// The events of one call.
///
/// Adds of a key seen a moment ago join the earlier event at once, on the caller's own thread: a pipeline of a
/// thousand increments of one key reaches the engine as one event. Every event keeps its place, so each still
/// gets its own outcome.
#[derive(Clone, Debug)]
pub struct Events {
    seed: u64,
    combining: Combining,
    attempt: Attempt,
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
    /// Every event is to be judged alone, and none joins an earlier one.
    Off,
}

/// Whether the events were in a batch before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Attempt {
    First,
    /// They were put off, and are tried again alone.
    Another,
}

/// Where an event went, or several equal adds in a row: into a slot in which something stood before, or, if the slot
/// is closed, into as many slots from this one on.
#[derive(Clone, Copy, Debug)]
struct Mark {
    slot: u32,
    times: u32,
    /// What each of them adds.
    delta: i64,
    prior: i64,
}

const RECENT: usize = 32;
const NO_SLOT: u32 = u32::MAX;

impl Events {
    /// An empty call. Engines hand these out; `seed` is the engine's own.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Events {
            seed,
            combining: Combining::Allowed,
            attempt: Attempt::First,
            batch: Batch::default(),
            marks: Vec::new(),
            len: 0,
            recent: [NO_SLOT; RECENT],
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

    /// Events that no count includes yet. Looks are never counted, and what is tried again was counted the first time.
    pub(super) fn uncounted(&self) -> usize {
        match self.attempt {
            Attempt::First => self.len - self.batch.looks,
            Attempt::Another => 0,
        }
    }

    /// Adds `delta` to `key`: the hot path.
    pub fn add(&mut self, key: KeyRef<'_>, delta: i64) {
        self.add_times(key, delta, 1);
    }

    /// Adds `delta` to `key` so many times, one after the other and nothing between them. They have one outcome
    /// together; [`Outcome::applied_times`] tells them apart.
    pub fn add_times(&mut self, key: KeyRef<'_>, delta: i64, times: u32) {
        if times == 0 {
            return;
        }
        self.len += times as usize;
        let hash = key_hash(self.seed, key.as_bytes());
        let recent = &mut self.recent[hash as usize % RECENT];
        let sum = if times == 1 { Some(delta) } else { delta.checked_mul(i64::from(times)) };
        if self.combining == Combining::Allowed
            && let Some(sum) = sum
            && let Some(slot) = self.batch.slots.get(*recent as usize)
            && slot.hash == hash
            && let Some(joined) = slot.joined_delta(sum)
            && self.batch.key(slot) == key.as_bytes()
        {
            self.marks.push(Mark { slot: *recent, times, delta, prior: slot.delta });
            let slot = &mut self.batch.slots[*recent as usize];
            slot.delta = joined;
            slot.merging = Merging::Joined;
            return;
        }
        let slot = self.batch.slots.len() as u32;
        self.marks.push(Mark { slot, times, delta, prior: 0 });
        match (self.combining, sum) {
            (Combining::Allowed, Some(sum)) => {
                *recent = slot;
                self.batch.push_add(key, hash, sum, if times == 1 { Merging::Open } else { Merging::Joined });
            }
            // Some would overflow, or each is to be judged alone.
            _ => {
                *recent = slot + (times - 1);
                (0..times).for_each(|_| self.batch.push_add(key, hash, delta, Merging::Closed));
            }
        }
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
        self.batch.slots.iter().any(|slot| slot.has_request_id)
    }

    /// Looks for the request ids in the store, as it is `at` this position: where `may_hold` says no, applying the batch need
    /// not look again as long as the store stands there. That spares the one thread that applies most of the looking.
    pub fn look_for_requests(&mut self, at: Position, may_hold: impl FnOnce(&[RequestKey]) -> Vec<bool>) {
        let slots = || self.batch.slots.iter().filter(|slot| slot.has_request_id);
        let keys: Vec<RequestKey> = slots().map(|slot| request_key(RequestId(slot.request_id))).collect();
        let held = may_hold(&keys);
        let slots = self.batch.slots.iter_mut().filter(|slot| slot.has_request_id);
        for (slot, held) in slots.zip(held) {
            slot.unstored = !held;
        }
        self.batch.looked_at = Some(at);
    }

    /// What `fill` adds is one group: its events are applied in a row, each with its own outcome, and nothing comes
    /// between them. None of them combines with anything. A group within a group is part of it.
    pub fn group(&mut self, fill: impl FnOnce(&mut Events)) {
        let first = self.batch.slots.len();
        let outside = std::mem::replace(&mut self.combining, Combining::Off);
        fill(self);
        self.combining = outside;
        // `fill` may have cleared the call.
        for slot in self.batch.slots.iter_mut().skip(first + 1) {
            slot.follows = true;
        }
    }

    /// Forgets the events, keeps the memory.
    pub fn clear(&mut self) {
        self.batch.clear();
        self.marks.clear();
        self.len = 0;
        self.combining = Combining::Allowed;
        self.attempt = Attempt::First;
        self.recent = [NO_SLOT; RECENT];
    }

    /// The batch as filled so far.
    #[must_use]
    pub fn batch(&self) -> &Batch {
        &self.batch
    }

    /// The outcome of every event, those added together being one, given the outcome of every slot and what stood in the
    /// slot before this call joined it. `None` where a combined slot was refused as a whole, or an earlier one of that
    /// counter was, and the event must be tried alone.
    pub fn outcomes(&self, of_slot: impl Fn(usize) -> SlotOutcome) -> impl Iterator<Item = Option<Outcome>> {
        // Events in a row are often of one slot: it is looked up once.
        let mut at = NO_SLOT;
        let mut found = SlotOutcome { outcome: Outcome::UNTRIED, base: 0, joined: false };
        self.marks.iter().map(move |mark| {
            if mark.slot != at {
                at = mark.slot;
                found = of_slot(at as usize);
            }
            let SlotOutcome { outcome, base, joined } = &found;
            if *outcome == Outcome::PUT_OFF || *joined && outcome.refusal.is_some() {
                return None;
            }
            if !joined {
                // Nothing comes between them, so all are put off or none is.
                let others = (mark.slot + 1..mark.slot + mark.times).map(|slot| of_slot(slot as usize).outcome);
                return Some(others.fold(*outcome, Outcome::then));
            }
            let before = outcome.value.wrapping_sub(outcome.applied);
            let applied = mark.delta.wrapping_mul(i64::from(mark.times));
            let value = before.wrapping_add(*base).wrapping_add(mark.prior).wrapping_add(applied);
            Some(Outcome { value, applied, ..*outcome })
        })
    }

    /// The events at `places`, in order, as a call whose events are judged one by one. Groups stay groups: they are
    /// put off as a whole, so all of one is among the places or none of it.
    #[must_use]
    pub fn alone(&self, places: impl Iterator<Item = usize>) -> Events {
        let mut events = Events { combining: Combining::Off, attempt: Attempt::Another, ..Events::new(self.seed) };
        for place in places {
            let mark = self.marks[place];
            let slot = &self.batch.slots[mark.slot as usize];
            if slot.merging == Merging::Closed {
                events.marks.push(Mark { slot: events.batch.slots.len() as u32, prior: 0, ..mark });
                events.len += mark.times as usize;
                let slots = self.batch.slots.iter().skip(mark.slot as usize).take(mark.times as usize);
                slots.for_each(|slot| events.batch.push_copy(&self.batch, slot));
            } else {
                events.add_times(KeyRef::trusted(self.batch.key(slot)), mark.delta, mark.times);
            }
        }
        events
    }
}

/// The outcome of a slot in the batch it was journalled in.
#[derive(Clone, Copy, Debug)]
pub struct SlotOutcome {
    /// What became of the slot as a whole.
    pub outcome: Outcome,
    /// What had been added to the slot before this call joined it.
    pub base: i64,
    /// Whether the slot holds more than one event.
    pub joined: bool,
}
