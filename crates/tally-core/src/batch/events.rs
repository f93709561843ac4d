//! The events of one call, filled by a protocol and combined as they are added.

use std::ops::Range;

use super::{Batch, HAS_REQUEST_ID, NONE, OPEN, Shape, UNSTORED, key_hash};
use crate::event::{Change, Details, EventRef, RequestId};
use crate::key::KeyRef;
use crate::outcome::{Outcome, Split};
use crate::record::{RequestKey, request_key};
use crate::time::Position;

/// The events of one call.
///
/// Adds of a recently used key are combined into the earlier event, on the caller's thread: a pipeline of a thousand
/// increments of one key reaches the engine as one event. Each event still gets its own outcome.
#[derive(Clone, Debug)]
pub struct Events {
    seed: u64,
    combining: Combining,
    pub(super) batch: Batch,
    marks: Vec<Mark>,
    /// Number of events of all marks.
    len: usize,
    /// Slots of each group.
    groups: Vec<Range<usize>>,
    /// The slot last used, by the low bits of the key's hash. A hint: the key is always compared.
    recent: [u32; RECENT],
}

/// Whether adds may be combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Combining {
    Allowed,
    /// The events are a group: each keeps its own slot.
    Off,
}

/// The place of an event, or of several equal adds in a row, within the batch.
#[derive(Clone, Copy, Debug)]
struct Mark {
    slot: u32,
    times: u32,
    /// The delta of each.
    delta: i64,
    /// Sum of this call's earlier adds in the slot.
    prior: i64,
}

const RECENT: usize = 32;

impl Events {
    /// An empty call for the engine with this `seed`; see [`Engine::events`](crate::surface::Engine::events).
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Events {
            seed,
            combining: Combining::Allowed,
            batch: Batch::default(),
            marks: Vec::new(),
            len: 0,
            groups: Vec::new(),
            recent: [NONE; RECENT],
        }
    }

    /// Number of events before combining.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Number of outcomes: one per event, except that the adds of one [`Events::add_times`] share one.
    #[must_use]
    pub fn outcomes_len(&self) -> usize {
        self.marks.len()
    }

    /// Whether there are no events.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.marks.is_empty()
    }

    /// Adds `delta` to `key`: the hot path.
    #[inline]
    pub fn add(&mut self, key: KeyRef<'_>, delta: i64) {
        self.add_times(key, delta, 1);
    }

    /// Adds `delta` to `key` this many times with no other event between them. They share one outcome, which
    /// [`Outcome::applied_times`] splits.
    pub fn add_times(&mut self, key: KeyRef<'_>, delta: i64, times: u32) {
        if times == 0 {
            return;
        }
        self.len += times as usize;
        // Offsets within an open slot must fit 64 bits.
        let sum = delta.checked_mul(i64::from(times)).filter(|_| self.combining == Combining::Allowed);
        // A hot key often repeats. Trying the last slot first saves hashing it again.
        if let (Some(sum), Some(&Mark { slot, .. })) = (sum, self.marks.last())
            && self.join(slot, key, (delta, times), sum)
        {
            return;
        }
        let hash = key_hash(self.seed, key.as_bytes());
        let recent = self.recent[hash as usize % RECENT];
        if let Some(sum) = sum
            && self.batch.slots.get(recent as usize).is_some_and(|slot| slot.hash == hash)
            && self.join(recent, key, (delta, times), sum)
        {
            return;
        }
        let slot = self.batch.slots.len() as u32;
        self.recent[hash as usize % RECENT] = slot;
        self.marks.push(Mark { slot, times, delta, prior: 0 });
        self.batch.push_run(key, hash, (delta, times), if sum.is_some() { OPEN } else { 0 });
    }

    /// Combines adds with this `sum` into a slot, if it has the same key and allows it; returns whether it did.
    #[inline]
    fn join(&mut self, slot: u32, key: KeyRef<'_>, (delta, times): (i64, u32), sum: i64) -> bool {
        let at = slot as usize;
        let Some(prior) = self.batch.slots.get(at).and_then(|slot| slot.joinable(sum)) else { return false };
        if self.batch.key(&self.batch.slots[at]) != key.as_bytes() {
            return false;
        }
        self.marks.push(Mark { slot, times, delta, prior });
        self.batch.join_run(at, (delta, times));
        true
    }

    /// Adds any event.
    pub fn push(&mut self, key: KeyRef<'_>, change: Change, id: Option<RequestId>, details: Option<Details>) {
        let details = details.filter(|details| !details.is_empty());
        if let (Change::Add(delta), None, None) = (&change, id, &details) {
            return self.add(key, *delta);
        }
        let hash = key_hash(self.seed, key.as_bytes());
        let slot = self.batch.slots.len() as u32;
        // Later adds of this key must not be combined across this event.
        self.recent[hash as usize % RECENT] = slot;
        let delta = if let Change::Add(delta) = change { delta } else { 0 };
        self.marks.push(Mark { slot, times: 1, delta, prior: 0 });
        self.len += 1;
        self.batch.push_event(key, hash, change, id, details);
    }

    /// Whether any event has a request id.
    #[must_use]
    pub fn has_requests(&self) -> bool {
        self.batch.slots.iter().any(|slot| slot.has(HAS_REQUEST_ID))
    }

    /// Checks the request ids against the store at this position. Ids for which `may_hold` returns false need no lookup
    /// when the batch is applied, unless the store has advanced by then. This moves most lookups off the applying
    /// thread.
    pub fn check_requests(&mut self, at: Position, may_hold: impl FnOnce(&[RequestKey]) -> Vec<bool>) {
        let keys: Vec<RequestKey> =
            self.batch.slots.iter().filter_map(|slot| Some(request_key(slot.request_id()?))).collect();
        let may_be_stored = may_hold(&keys);
        let slots = self.batch.slots.iter_mut().filter(|slot| slot.has(HAS_REQUEST_ID));
        for (slot, may_be_stored) in slots.zip(may_be_stored) {
            slot.flags = if may_be_stored { slot.flags & !UNSTORED } else { slot.flags | UNSTORED };
        }
        self.batch.checked_at = Some(at);
    }

    /// The events that `fill` adds form a group: they are applied in a row, each with its own outcome and with no other
    /// event between them. They are never combined and a call is never split, which keeps them together. A nested group
    /// is part of the outer one.
    pub fn group(&mut self, fill: impl FnOnce(&mut Events)) {
        let outside = std::mem::replace(&mut self.combining, Combining::Off);
        let first = self.batch.slots.len();
        fill(self);
        self.combining = outside;
        if outside == Combining::Allowed {
            self.groups.push(first..self.batch.slots.len());
        }
    }

    /// Like [`Events::group`], but the changes are applied only if each of these counters has this version, as read
    /// with [`Field::Version`](crate::event::Field::Version). The guards come first, each with its own outcome.
    pub fn group_if(&mut self, versions: &[(KeyRef<'_>, i64)], fill: impl FnOnce(&mut Events)) {
        self.group(|events| {
            let first = events.batch.slots.len();
            for (key, version) in versions {
                events.push(*key, Change::Guard { version: *version, covers: 0 }, None, None);
            }
            fill(events);
            events.batch.cover(first, versions.len());
        });
    }

    /// The slots of each group.
    #[must_use]
    pub fn groups(&self) -> &[Range<usize>] {
        &self.groups
    }

    /// Removes all events, keeps the allocation.
    pub fn clear(&mut self) {
        self.batch.clear();
        self.marks.clear();
        self.len = 0;
        self.groups.clear();
        self.combining = Combining::Allowed;
        self.recent = [NONE; RECENT];
    }

    /// Whether an outcome depends on more than the sum of all adds: bounds, conditions, corrections, expiries, groups.
    /// An engine may acknowledge other events before it knows their outcomes.
    #[must_use]
    pub fn depend_on_state(&self) -> bool {
        !self.groups.is_empty() || self.batch.iter().any(|event| event.depends_on_state())
    }

    /// Divides the call by partition. All events of a group must be in one partition.
    #[must_use]
    pub fn divide(self, partition_of: impl Fn(KeyRef<'_>) -> u32) -> DividedCall {
        let partitions: Vec<u32> = self.batch.iter().map(|event| partition_of(event.key)).collect();
        let first = partitions.first().copied().unwrap_or_default();
        if partitions.iter().all(|&partition| partition == first) {
            let outcomes = vec![0; self.marks.len()];
            return DividedCall { parts: vec![(first, self)], outcomes };
        }
        let mut parts: Vec<(u32, Events)> = Vec::new();
        // For each slot: its part, and its slot there.
        let mut places: Vec<(u32, u32)> = Vec::with_capacity(partitions.len());
        for (slot, partition) in self.batch.slots.iter().zip(&partitions) {
            let part = parts.iter().position(|(known, _)| known == partition).unwrap_or_else(|| {
                parts.push((*partition, Events::new(self.seed)));
                parts.len() - 1
            });
            let batch = &mut parts[part].1.batch;
            places.push((part as u32, batch.slots.len() as u32));
            batch.push_copy(&self.batch, slot);
        }
        for group in self.groups.iter().filter(|group| !group.is_empty()) {
            let (part, first) = places[group.start];
            let first = first as usize;
            parts[part as usize].1.groups.push(first..first + group.len());
        }
        let mut outcomes = Vec::with_capacity(self.marks.len());
        for mark in &self.marks {
            let (part, slot) = places[mark.slot as usize];
            let events = &mut parts[part as usize].1;
            events.marks.push(Mark { slot, ..*mark });
            events.len += mark.times as usize;
            outcomes.push(part);
        }
        DividedCall { parts, outcomes }
    }

    /// The batch so far.
    #[must_use]
    pub fn batch(&self) -> &Batch {
        &self.batch
    }

    /// The event that each outcome of the call belongs to, in order. Combined adds share one event.
    pub fn events_of_outcomes(&self) -> impl Iterator<Item = EventRef<'_>> {
        let events: Vec<EventRef<'_>> = self.batch.iter().collect();
        self.marks.iter().map(move |mark| events[mark.slot as usize])
    }

    /// The outcomes of the call, in order, given the outcome of each slot. See [`Events::outcomes_len`].
    pub fn outcomes<'o>(&self, of_slot: impl Fn(usize) -> SlotOutcome<'o>) -> impl Iterator<Item = Outcome> {
        // Consecutive events often share a slot: look it up once.
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

/// A call, divided by partition.
#[derive(Clone, Debug)]
pub struct DividedCall {
    parts: Vec<(u32, Events)>,
    /// For each outcome of the call, the part that has it.
    outcomes: Vec<u32>,
}

impl DividedCall {
    /// The partitions and their events.
    #[must_use]
    pub fn parts(&self) -> &[(u32, Events)] {
        &self.parts
    }

    /// The outcomes of the call, in order, given those of its parts. `None` if their numbers do not match.
    #[must_use]
    pub fn join(&self, of_parts: Vec<Vec<Outcome>>) -> Option<Vec<Outcome>> {
        let mut of_parts: Vec<_> = of_parts.into_iter().map(Vec::into_iter).collect();
        let joined: Option<Vec<Outcome>> =
            self.outcomes.iter().map(|&part| of_parts.get_mut(part as usize)?.next()).collect();
        joined.filter(|_| of_parts.iter_mut().all(|rest| rest.next().is_none()))
    }
}

/// The outcome of a slot in the batch it was journalled in.
#[derive(Clone, Copy, Debug)]
pub struct SlotOutcome<'o> {
    /// The outcome of the slot as a whole.
    pub outcome: Outcome,
    /// The outcome of its individual adds, if some of them overflowed.
    pub split: Option<&'o Split>,
    /// Sum of the adds that were in the slot before.
    pub base: i64,
}

impl SlotOutcome<'_> {
    /// The outcome of `times` adds of `delta`; `prior` is the sum of the call's earlier adds in the slot.
    #[inline]
    fn of_run(&self, prior: i64, delta: i64, times: u32) -> Outcome {
        let offset = self.base.wrapping_add(prior);
        match self.split {
            Some(split) => split.of_run(&self.outcome, offset, delta, times),
            // Refused as a whole, for a reason other than overflow.
            None if self.outcome.refusal.is_some() => self.outcome,
            None => {
                let applied = delta.wrapping_mul(i64::from(times));
                let start = self.outcome.value.wrapping_sub(self.outcome.applied);
                Outcome { value: start.wrapping_add(offset).wrapping_add(applied), applied, ..self.outcome }
            }
        }
    }
}
