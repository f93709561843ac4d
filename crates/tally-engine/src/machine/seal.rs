//! Sealing: the open batch gets its time and its place in the journal, and is applied.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tally_core::batch::{Combiner, encode};
use tally_core::partition::Room;
use tally_core::surface::{Durability, EngineError};
use tally_core::time::{Millis, Position};
use tally_core::wanted::Wanted;

use super::{Machine, State, is_backed_up};
use crate::signal::lock;
use crate::store::StoreError;
use crate::ticket::{Sealed, Ticket};

/// What came of sealing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seal {
    /// No event was waiting.
    Empty,
    /// The batch is applied, and queued for the flusher unless it only looks.
    Applied,
    /// The batch was refused and its callers know: the disk is full or the store unreadable.
    Refused,
    /// The batch stays open until the flusher has caught up.
    BackedUp,
    /// The batch stays open until a checkpoint has made room in memory.
    NeedsCheckpoint,
}

impl Machine {
    /// Seals the open batch.
    pub fn seal(&self) -> Seal {
        let mut state = self.state.lock();
        self.seal_with(&mut state)
    }

    /// Seals the open batch unless somebody is at the state already: whoever that is will be followed by the flusher.
    pub fn try_seal(&self) -> Option<Seal> {
        let mut state = self.state.try_lock()?;
        Some(self.seal_with(&mut state))
    }

    fn seal_with(&self, state: &mut State) -> Seal {
        if self.poison.reason().is_some() {
            return Seal::Empty;
        }
        if is_backed_up(&state.tail) {
            return Seal::BackedUp;
        }
        let budget = self.settings.partition_bytes(self.store.memory_bytes());
        let room;
        {
            let open = lock(&self.open);
            if open.combiner.batch().is_empty() {
                return Seal::Empty;
            }
            if state.partition.preimage_bytes() >= self.settings.capture_bytes() {
                return Seal::NeedsCheckpoint;
            }
            room = state.partition.make_room(open.combiner.batch(), budget);
        }
        let full = self.checkpoint_full.load(Ordering::Acquire);
        if room == Room::NeedsCheckpoint && !full {
            return Seal::NeedsCheckpoint;
        }
        let (combiner, ticket) = self.take_open();
        self.wake_blocked();
        let queued = match room {
            Room::Enough => self.queue(state, &combiner),
            // Memory is full of changes and the disk has no room for them.
            Room::NeedsCheckpoint => Err(EngineError::DiskFull),
        };
        match queued {
            Ok(place) => {
                self.apply(state, combiner, ticket, place);
                Seal::Applied
            }
            Err(error) => {
                ticket.fail(error);
                Seal::Refused
            }
        }
    }

    /// Makes the batch ready to be applied: what it needs is in memory, and its place in the journal is reserved.
    fn queue(&self, state: &mut State, combiner: &Combiner) -> Result<(Millis, Position), EngineError> {
        if let Err(error) = self.restore(state, combiner) {
            return Err(self.store_failed(state, &error));
        }
        let at = self.clock.now().max(state.partition.clock());
        if combiner.batch().journalled_len() == 0 {
            return Ok((at, state.applied));
        }
        self.append(state, combiner, at)
    }

    /// Brings to memory what the batch needs and only the store holds.
    fn restore(&self, state: &mut State, combiner: &Combiner) -> Result<(), StoreError> {
        let mut wanted = Wanted::default();
        state.partition.wants(combiner.batch(), self.store.position(), &mut wanted);
        self.restore_all(&mut state.partition, &wanted)
    }

    /// Queues the batch for the flusher, if room is reserved for it on disk.
    fn append(&self, state: &mut State, combiner: &Combiner, at: Millis) -> Result<(Millis, Position), EngineError> {
        let placed = state.tail.append(|out| encode(combiner.batch(), at, out));
        self.disk_full.store(placed.is_err(), Ordering::Release);
        placed.map(|placement| (at, placement.end)).map_err(|_| EngineError::DiskFull)
    }

    /// Applies the batch just as a replay of the journal will. One that only looks is not journalled: it is released
    /// together with the batches before it, which it may have seen.
    fn apply(&self, state: &mut State, combiner: Combiner, ticket: Arc<Ticket>, (at, end): (Millis, Position)) {
        let mut outcomes = Vec::new();
        state.partition.apply(at, combiner.batch(), &mut outcomes);
        let is_journalled = end > state.applied;
        state.applied = end;
        self.meters.applied(&combiner, &outcomes);
        self.meters.expired.fetch_add(state.partition.take_expired(), Ordering::Relaxed);
        let budget = self.settings.partition_bytes(self.store.memory_bytes());
        self.checkpoint_wanted.fetch_or(state.partition.wants_checkpoint(budget), Ordering::AcqRel);
        let sealed = Arc::new(Sealed { combiner, outcomes, at, end });
        if is_journalled || !state.in_flight.is_empty() {
            ticket.reach(Durability::Applied, &sealed);
            state.in_flight.push_back((sealed, ticket));
        } else {
            ticket.reach(Durability::Flushed, &sealed);
        }
    }
}
