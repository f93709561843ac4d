//! Sealing: the open batch gets its time and its journal position, and is applied.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tally_core::batch::{Combiner, encode};
use tally_core::key::KeyRef;
use tally_core::outcome::{Outcomes, Refusal};
use tally_core::partition::Headroom;
use tally_core::surface::EngineError;
use tally_core::time::{Millis, Position};

use super::{AppliedBatch, BatchTicket, Durability, Machine, State};
use crate::host::Fetched;
use crate::signal::lock;

/// The result of sealing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seal {
    /// There was no event.
    Empty,
    /// The batch is applied and queued for the flusher.
    Applied,
    /// The batch was refused and its callers were told: the disk is full or the store cannot be read.
    Refused,
    /// The batch stays open until the flusher has caught up or has reserved the next segment.
    BackedUp,
    /// The batch stays open until a checkpoint has made room in memory.
    NeedsCheckpoint,
    /// The batch stays open until the next slice of the running checkpoint has collected the pre-images.
    NeedsSlice,
}

/// A batch that nobody can join any more.
struct ClosedBatch {
    combiner: Combiner,
    ticket: Arc<BatchTicket>,
    room: Headroom,
}

impl Machine {
    /// Seals the open batch.
    pub fn seal(&self) -> Seal {
        let _turn = lock(&self.sealing);
        self.seal_in_turn()
    }

    /// Seals the open batch unless another thread is sealing.
    pub fn try_seal(&self) -> Option<Seal> {
        let _turn = self.sealing.try_lock().ok()?;
        Some(self.seal_in_turn())
    }

    fn seal_in_turn(&self) -> Seal {
        let ClosedBatch { combiner, ticket, room } = match self.take_batch() {
            Ok(closed) => closed,
            Err(why) => return why,
        };
        let batch = combiner.batch();
        let (mut state, fetched) = match self.lock_with(|partition, at, missing| partition.missing(batch, at, missing))
        {
            Ok(locked) => locked,
            Err(error) => {
                ticket.fail(self.store_failed(&mut self.state.lock(), &error));
                return Seal::Refused;
            }
        };
        // Poisoning fails the batches that are open or in flight. This one is neither.
        if let Some(reason) = self.poison.reason() {
            ticket.fail(EngineError::Poisoned(reason.to_owned()));
            return Seal::Refused;
        }
        let at = self.now_at(&state);
        // Otherwise memory is full of changes, and the disk has no space to checkpoint them.
        if room == Headroom::Enough {
            if let Err(error) = fetched.restore(&mut state.partition) {
                ticket.fail(self.store_failed(&mut state, &error.into()));
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

    /// Takes the open batch if there is room for it in memory.
    fn take_batch(&self) -> Result<ClosedBatch, Seal> {
        let mut state = self.state.lock();
        if self.poison.reason().is_some() {
            return Err(Seal::Empty);
        }
        let budget = self.settings.partition_bytes(self.store.memory_bytes());
        let room = self.open.with(|batch| {
            if batch.is_empty() {
                return Err(Seal::Empty);
            }
            if self.is_backed_up(&state.journal.tail, batch.bytes()) {
                return Err(Seal::BackedUp);
            }
            if state.partition.preimage_bytes() >= self.settings.capture_bytes() {
                self.waits_for_slice.store(true, Ordering::Release);
                return Err(Seal::NeedsSlice);
            }
            Ok(state.partition.make_room(batch, budget))
        })?;
        if room == Headroom::NeedsCheckpoint && self.may_checkpoint() {
            return Err(Seal::NeedsCheckpoint);
        }
        let (combiner, ticket) = self.open.take();
        Ok(ClosedBatch { combiner, ticket, room })
    }

    /// Whether a batch can wait for a checkpoint. A closing engine does not wait for file descriptors.
    fn may_checkpoint(&self) -> bool {
        let is_closing = self.closing.load(Ordering::Acquire);
        !(self.checkpoint_full.load(Ordering::Acquire) || is_closing && self.out_of_files.load(Ordering::Acquire))
    }

    /// Queues the batch for the flusher and returns where it ends, or `None` if no disk space is reserved for it.
    fn append(&self, state: &mut State, combiner: &Combiner, at: Millis) -> Option<Position> {
        let placed = state.journal.tail.append(|out| encode(combiner.batch(), at, out)).ok();
        self.disk_full.store(placed.is_none(), Ordering::Release);
        placed.map(|placement| placement.end)
    }

    /// Applies the batch exactly as a replay of the journal will.
    fn apply(&self, state: &mut State, combiner: Combiner, ticket: Arc<BatchTicket>, at: Millis, end: Position) {
        let mut outcomes = Outcomes::default();
        state.partition.apply(at, combiner.batch(), &mut outcomes);
        state.applied = end;
        self.meters.applied(&combiner, &outcomes);
        self.meters.expired.fetch_add(state.partition.take_expired(), Ordering::Relaxed);
        let budget = self.settings.partition_bytes(self.store.memory_bytes());
        self.checkpoint_wanted.fetch_or(state.partition.wants_checkpoint(budget), Ordering::AcqRel);
        state.journal.in_flight.push(Arc::new(AppliedBatch { combiner, outcomes, at, end }), ticket);
    }

    /// Answers a batch that cannot be journalled: changes are refused, reads are answered. The reads may have seen
    /// unflushed batches, so the answers wait for those.
    fn refuse(&self, state: &mut State, combiner: Combiner, ticket: Arc<BatchTicket>, at: Millis, fetched: &Fetched) {
        if let Err(error) = fetched.check_counters() {
            return ticket.fail(self.store_failed(state, &error.into()));
        }
        let mut outcomes = Outcomes::default();
        let stored = |key: KeyRef<'_>| fetched.counter(key).ok().flatten();
        state.partition.answer(at, combiner.batch(), Refusal::NoRoom, stored, &mut outcomes);
        let answered = Arc::new(AppliedBatch { combiner, outcomes, at, end: state.applied });
        if state.journal.in_flight.is_empty() {
            ticket.reach(Durability::Flushed, &answered);
        } else {
            state.journal.in_flight.push(answered, ticket);
        }
    }
}
