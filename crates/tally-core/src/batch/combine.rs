//! Combining calls into the next batch to be journalled.

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;

use super::events::SlotOutcome;
use super::{Batch, Events, OPEN};
use crate::limits::JOIN_PARTS_MAX;
use crate::outcome::Outcomes;

/// Combines the events of many calls into one batch. Plain adds of one key become one event if they have the same sign
/// and no other event of that key is between them, so the combined batch gives the same state as its events one by one.
#[derive(Debug, Default)]
pub struct Combiner {
    batch: Batch,
    /// Latest slot of every key in the batch.
    index: HashTable<u32>,
    events: usize,
}

/// Where a slot of a call was placed in the batch.
#[derive(Clone, Copy, Debug)]
pub struct Placed {
    slot: u32,
    /// Sum of the adds that were in that slot before.
    base: i64,
}

impl Combiner {
    /// Adds a call to the batch; appends one entry per slot of the call to `placed`.
    pub fn combine(&mut self, events: &Events, placed: &mut Vec<Placed>) {
        self.events += events.len() - events.batch.reads;
        let parts_max = self.batch.parts() + events.batch.parts() + JOIN_PARTS_MAX * events.batch.len();
        placed.reserve(events.batch.slots.len());
        // Without a checked call so far, no slot is marked `UNSTORED`, so this call's position can be adopted.
        self.batch.checked_at = self.batch.checked_at.or(events.batch.checked_at);
        for incoming in &events.batch.slots {
            let next = self.batch.slots.len() as u32;
            let (batch, index) = (&mut self.batch, &mut self.index);
            let key = events.batch.key(incoming);
            let same = |&at: &u32| {
                let slot = &batch.slots[at as usize];
                slot.hash == incoming.hash && batch.key(slot) == key
            };
            match index.entry(incoming.hash, same, |&at| batch.slots[at as usize].hash) {
                Entry::Occupied(mut entry) => {
                    let at = *entry.get();
                    if incoming.has(OPEN)
                        && let Some(base) = batch.slots[at as usize].joinable(incoming.open_sum())
                    {
                        placed.push(Placed { slot: at, base });
                        events.batch.runs(incoming).for_each(|run| batch.join_run(at as usize, run));
                        continue;
                    }
                    *entry.get_mut() = next;
                }
                Entry::Vacant(entry) => {
                    entry.insert(next);
                }
            }
            placed.push(Placed { slot: next, base: 0 });
            batch.push_copy(&events.batch, incoming);
        }
        // `BATCH_PARTS_MAX` relies on this bound.
        debug_assert!(self.batch.parts() <= parts_max, "{} parts of {parts_max}", self.batch.parts());
    }

    /// The combined batch.
    #[must_use]
    pub fn batch(&self) -> &Batch {
        &self.batch
    }

    /// Number of events before combining, without reads.
    #[must_use]
    pub fn events(&self) -> usize {
        self.events
    }

    /// Whether the batch has an event of this key.
    #[must_use]
    pub fn touches(&self, hash: u64, key: &[u8]) -> bool {
        let same = |&at: &u32| {
            let slot = &self.batch.slots[at as usize];
            slot.hash == hash && self.batch.key(slot) == key
        };
        self.index.find(hash, same).is_some()
    }

    /// The outcome of a placed slot, given the outcomes of this batch.
    #[must_use]
    pub fn outcome_of<'o>(&self, placed: Placed, outcomes: &'o Outcomes) -> SlotOutcome<'o> {
        let (outcome, split) = outcomes.of_slot(placed.slot as usize);
        SlotOutcome { outcome, split, base: placed.base }
    }
}
