//! Sealing: the open batch gets its time and its place in the journal, and is applied.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tally_core::batch::{Combiner, encode};
use tally_core::key::KeyRef;
use tally_core::outcome::{Outcomes, Refusal};
use tally_core::partition::Headroom;
use tally_core::surface::EngineError;
use tally_core::time::{Millis, Position};

use super::fetch::Fetched;
use super::{Machine, State, is_backed_up};
use crate::durability::Durability;
use crate::signal::lock;
use crate::ticket::{Sealed, Ticket};

/// What came of sealing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seal {
    /// No event was waiting.
    Empty,
    /// The batch is applied and queued for the flusher.
    Applied,
    /// The batch was not applied and its callers know: the disk is full or the store unreadable.
    Refused,
    /// The batch stays open until the flusher has caught up.
    BackedUp,
    /// The batch stays open until a checkpoint has made room in memory.
    NeedsCheckpoint,
}

/// A batch taken out of the open one.
struct Taken {
    combiner: Combiner,
    ticket: Arc<Ticket>,
    room: Headroom,
}

impl Machine {
    /// Seals the open batch.
    pub fn seal(&self) -> Seal {
        let _turn = lock(&self.sealing);
        self.seal_in_turn()
    }

    /// Seals the open batch unless another thread is sealing: the flusher follows it.
    pub fn try_seal(&self) -> Option<Seal> {
        let _turn = self.sealing.try_lock().ok()?;
        Some(self.seal_in_turn())
    }

    fn seal_in_turn(&self) -> Seal {
        let taken = match self.take_batch() {
            Ok(taken) => taken,
            Err(why) => return why,
        };
        let Taken { combiner, ticket, room } = taken;
        let batch = combiner.batch();
        let (mut state, fetched) = match self.lock_with(|partition, at, wanted| partition.missing(batch, at, wanted)) {
            Ok(locked) => locked,
            Err(error) => {
                ticket.fail(self.store_failed(&mut self.state.lock(), &error));
                return Seal::Refused;
            }
        };
        // Whoever poisons the engine fails the batches it knows, and this one is in nobody's hands but ours.
        if let Some(reason) = self.poison.reason() {
            ticket.fail(EngineError::Poisoned(reason.to_owned()));
            return Seal::Refused;
        }
        let at = self.now_at(&state);
        // Without room, memory is full of changes and the disk has no room for them.
        if room == Headroom::Enough {
            if let Err(error) = fetched.restore(&mut state.partition) {
                ticket.fail(self.store_failed(&mut state, &error));
                return Seal::Refused;
            }
            if let Some(end) = self.append(&mut state, &combiner, at) {
                self.apply(&mut state, combiner, ticket, at, end);
                return Seal::Applied;
            }
        }
        self.refuse(&mut state, combiner, ticket, at, &fetched);
        Seal::Refused
    }

    /// Takes the open batch, once there is room for it in memory; or says why not.
    fn take_batch(&self) -> Result<Taken, Seal> {
        let mut state = self.state.lock();
        if self.poison.reason().is_some() {
            return Err(Seal::Empty);
        }
        if is_backed_up(&state.tail) {
            return Err(Seal::BackedUp);
        }
        let budget = self.settings.partition_bytes(self.store.memory_bytes());
        let room;
        {
            let open = lock(&self.open);
            if open.combiner.batch().is_empty() {
                return Err(Seal::Empty);
            }
            if state.partition.preimage_bytes() >= self.settings.capture_bytes() {
                return Err(Seal::NeedsCheckpoint);
            }
            room = state.partition.make_room(open.combiner.batch(), budget);
        }
        if room == Headroom::NeedsCheckpoint && !self.checkpoint_full.load(Ordering::Acquire) {
            return Err(Seal::NeedsCheckpoint);
        }
        let (combiner, ticket) = self.take_open();
        self.wake_blocked();
        Ok(Taken { combiner, ticket, room })
    }

    /// Queues the batch for the flusher and says where it ends, if room is reserved for it on disk.
    fn append(&self, state: &mut State, combiner: &Combiner, at: Millis) -> Option<Position> {
        let placed = state.tail.append(|out| encode(combiner.batch(), at, out)).ok();
        self.disk_full.store(placed.is_none(), Ordering::Release);
        placed.map(|placement| placement.end)
    }

    /// Applies the batch just as a replay of the journal will.
    fn apply(&self, state: &mut State, combiner: Combiner, ticket: Arc<Ticket>, at: Millis, end: Position) {
        let mut outcomes = Outcomes::default();
        state.partition.apply(at, combiner.batch(), &mut outcomes);
        state.applied = end;
        self.meters.applied(&combiner, &outcomes);
        self.meters.expired.fetch_add(state.partition.take_expired(), Ordering::Relaxed);
        let budget = self.settings.partition_bytes(self.store.memory_bytes());
        self.checkpoint_wanted.fetch_or(state.partition.wants_checkpoint(budget), Ordering::AcqRel);
        let sealed = Arc::new(Sealed { combiner, outcomes, at, end });
        ticket.reach(Durability::Applied, &sealed);
        state.in_flight.push_back((sealed, ticket));
    }

    /// Answers a batch that cannot be journalled: its changes are refused, its reads are answered. They may have seen
    /// batches that are not flushed, so the answers wait for those.
    fn refuse(&self, state: &mut State, combiner: Combiner, ticket: Arc<Ticket>, at: Millis, fetched: &Fetched) {
        let mut outcomes = Outcomes::default();
        let stored = |key: KeyRef<'_>| fetched.counter(key).ok().flatten();
        state.partition.answer(at, combiner.batch(), Refusal::NoRoom, stored, &mut outcomes);
        let sealed = Arc::new(Sealed { combiner, outcomes, at, end: state.applied });
        if state.in_flight.is_empty() {
            ticket.reach(Durability::Flushed, &sealed);
        } else {
            ticket.reach(Durability::Applied, &sealed);
            state.in_flight.push_back((sealed, ticket));
        }
    }
}
