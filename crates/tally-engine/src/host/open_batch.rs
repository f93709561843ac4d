//! The open batch: calls of all threads join it until it is taken.

use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};

use tally_core::batch::{Batch, Combiner, Events, Placed};
use tally_core::limits::{BATCH_BYTES_SEAL, BATCH_EVENTS_SEAL, BATCH_PARTS_SEAL};
use tally_core::outcome::{Outcome, Outcomes};
use tally_core::surface::EngineError;

use super::ticket::Ticket;
use crate::signal::lock;

/// The batch that is filling. `S` and `R` are those of its [`Ticket`].
#[derive(Debug)]
pub struct OpenBatch<S, R> {
    filling: Mutex<Filling<S, R>>,
}

#[derive(Debug)]
struct Filling<S, R> {
    combiner: Combiner,
    ticket: Arc<Ticket<S, R>>,
    /// Calls that wait for the next batch because this one is full.
    blocked: Vec<Waker>,
}

/// A call's share of the batch that it joined.
#[derive(Debug)]
pub struct JoinedBatch<S, R> {
    /// Resolves with the batch.
    pub ticket: Arc<Ticket<S, R>>,
    /// Whether the call was the first in its batch.
    pub is_first: bool,
    /// Whether the batch is now full and should be sealed at once.
    pub is_full: bool,
    placed: Vec<Placed>,
}

impl<S, R> JoinedBatch<S, R> {
    /// The outcomes of the call's own events, given those of the whole batch.
    #[must_use]
    pub fn outcomes(&self, events: &Events, combiner: &Combiner, outcomes: &Outcomes) -> Vec<Outcome> {
        events.outcomes(|slot| combiner.outcome_of(self.placed[slot], outcomes)).collect()
    }
}

impl<S, R> Default for OpenBatch<S, R> {
    fn default() -> Self {
        let filling = Filling { combiner: Combiner::default(), ticket: Arc::default(), blocked: Vec::new() };
        OpenBatch { filling: Mutex::new(filling) }
    }
}

impl<S, R> OpenBatch<S, R> {
    /// Adds the events to the batch. While it is full, registers `waker` for the next one.
    ///
    /// `admit` runs under the lock. An engine that sets a flag to refuse calls and then takes the batch can therefore
    /// be sure that no call joins after that.
    pub fn join(
        &self,
        events: &Events,
        waker: &Waker,
        admit: impl FnOnce() -> Result<(), EngineError>,
    ) -> Poll<Result<JoinedBatch<S, R>, EngineError>> {
        let mut filling = lock(&self.filling);
        admit()?;
        if is_full(filling.combiner.batch()) {
            filling.blocked.push(waker.clone());
            return Poll::Pending;
        }
        let is_first = filling.combiner.batch().is_empty();
        let mut placed = Vec::new();
        filling.combiner.combine(events, &mut placed);
        let is_full = is_full(filling.combiner.batch());
        Poll::Ready(Ok(JoinedBatch { ticket: Arc::clone(&filling.ticket), is_first, is_full, placed }))
    }

    /// Runs `read` on the batch, which nobody can join meanwhile.
    pub fn with<T>(&self, read: impl FnOnce(&Batch) -> T) -> T {
        read(lock(&self.filling).combiner.batch())
    }

    /// Runs `close` while nobody can join.
    pub fn close(&self, close: impl FnOnce()) {
        {
            let _filling = lock(&self.filling);
            close();
        }
        self.wake_blocked();
    }

    /// Takes the batch, with its ticket. Blocked calls can then join the next one.
    pub fn take(&self) -> (Combiner, Arc<Ticket<S, R>>) {
        let (combiner, ticket) = {
            let mut filling = lock(&self.filling);
            (std::mem::take(&mut filling.combiner), std::mem::take(&mut filling.ticket))
        };
        self.wake_blocked();
        (combiner, ticket)
    }

    fn wake_blocked(&self) {
        let blocked = std::mem::take(&mut lock(&self.filling).blocked);
        for waker in blocked {
            waker.wake();
        }
    }
}

/// Whether a batch is large enough that waiting for more would gain nothing.
fn is_full(batch: &Batch) -> bool {
    batch.len() >= BATCH_EVENTS_SEAL || batch.parts() >= BATCH_PARTS_SEAL || batch.bytes() >= BATCH_BYTES_SEAL
}
