//! Batches that are applied but not flushed yet, and how durable a batch must be to be acknowledged.

use std::collections::VecDeque;
use std::sync::Arc;

use tally_core::batch::Combiner;
use tally_core::consistency::Consistency;
use tally_core::outcome::Outcomes;
use tally_core::surface::EngineError;
use tally_core::time::{Millis, Position};

use crate::host::{Stage, Ticket, Wait};

/// How durable a batch must be before it is acknowledged, or before a reading may reveal it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Durability {
    /// Applied in memory: a crash may lose it.
    Applied,
    /// Flushed to the journal: a crash cannot lose it.
    Flushed,
}

impl Stage for Durability {
    const LAST: Durability = Durability::Flushed;
}

impl From<Consistency> for Durability {
    /// Memory is authoritative in this engine, so every consistency but `best-effort` means the same.
    fn from(consistency: Consistency) -> Self {
        match consistency {
            Consistency::BestEffort => Durability::Applied,
            Consistency::Eventual | Consistency::Accurate | Consistency::Exact => Durability::Flushed,
        }
    }
}

/// A batch after it was applied.
#[derive(Debug)]
pub(crate) struct AppliedBatch {
    pub(crate) combiner: Combiner,
    pub(crate) outcomes: Outcomes,
    pub(crate) at: Millis,
    /// Where its frame ends in the journal.
    pub(crate) end: Position,
}

pub(crate) type BatchTicket = Ticket<Durability, AppliedBatch>;
pub(crate) type BatchWait = Wait<Durability, AppliedBatch>;

/// Applied batches that wait for their flush, oldest first.
#[derive(Debug, Default)]
pub(crate) struct InFlight {
    batches: VecDeque<(Arc<AppliedBatch>, Arc<BatchTicket>)>,
}

impl InFlight {
    pub(crate) fn is_empty(&self) -> bool {
        self.batches.is_empty()
    }

    /// Adds a batch and wakes the calls that asked for [`Durability::Applied`].
    pub(crate) fn push(&mut self, batch: Arc<AppliedBatch>, ticket: Arc<BatchTicket>) {
        ticket.reach(Durability::Applied, &batch);
        self.batches.push_back((batch, ticket));
    }

    /// Takes the batches that end at or before `flushed`.
    pub(crate) fn take_flushed(&mut self, flushed: Position) -> Vec<(Arc<AppliedBatch>, Arc<BatchTicket>)> {
        let flushed = self.batches.iter().take_while(|(batch, _)| batch.end <= flushed).count();
        self.batches.drain(..flushed).collect()
    }

    /// Fails every batch: whether they were flushed is unknown.
    pub(crate) fn fail(&mut self, reason: &str) {
        for (_, ticket) in self.batches.drain(..) {
            ticket.fail(EngineError::OutcomeUnknown(reason.to_owned()));
        }
    }

    /// Waits for the flush of the newest batch.
    pub(crate) fn newest(&self) -> Option<BatchWait> {
        self.batches.back().map(wait)
    }

    /// Waits for the flush of the newest batch for which `touches` is true.
    pub(crate) fn newest_touching(&self, touches: impl Fn(&Combiner) -> bool) -> Option<BatchWait> {
        self.batches.iter().rev().find(|(batch, _)| touches(&batch.combiner)).map(wait)
    }

    /// Where the newest batch that touches the key ends.
    pub(crate) fn end_touching(&self, hash: u64, key: &[u8]) -> Option<Position> {
        let newest = self.batches.iter().rev().find(|(batch, _)| batch.combiner.touches(hash, key));
        newest.map(|(batch, _)| batch.end)
    }

    /// Waits until everything before `position` is flushed.
    pub(crate) fn covering(&self, position: Position) -> Option<BatchWait> {
        self.batches.iter().find(|(batch, _)| batch.end >= position).map(wait)
    }
}

fn wait((_, ticket): &(Arc<AppliedBatch>, Arc<BatchTicket>)) -> BatchWait {
    Wait::new(Arc::clone(ticket), Durability::Flushed)
}
