//! Tickets: what callers hold while their batch is on its way to the disk.
//!
//! One ticket per batch, shared by every call that joined it. The batch is applied, then flushed; a call wakes at
//! the one its durability asks for and takes its own outcomes out of the shared result.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use tally_core::batch::Combiner;
use tally_core::outcome::Outcomes;
use tally_core::surface::EngineError;
use tally_core::time::{Millis, Position};

use crate::durability::Durability;

/// A batch after it was applied.
#[derive(Debug)]
pub(crate) struct Sealed {
    pub(crate) combiner: Combiner,
    pub(crate) outcomes: Outcomes,
    pub(crate) at: Millis,
    /// Where its frame ends in the journal.
    pub(crate) end: Position,
}

/// The fate of one batch.
#[derive(Debug, Default)]
pub(crate) struct Ticket {
    fate: Mutex<Fate>,
}

#[derive(Debug, Default)]
struct Fate {
    stage: Stage,
    waiting: Vec<(Durability, Waker)>,
}

#[derive(Clone, Debug, Default)]
enum Stage {
    #[default]
    Gathering,
    Reached(Durability, Arc<Sealed>),
    Failed(EngineError),
}

impl Ticket {
    /// The batch now rests on `durability`.
    pub(crate) fn reach(&self, durability: Durability, sealed: &Arc<Sealed>) {
        self.advance(Stage::Reached(durability, Arc::clone(sealed)));
    }

    /// The batch will not get further. A batch that was flushed before stays flushed.
    pub(crate) fn fail(&self, error: EngineError) {
        self.advance(Stage::Failed(error));
    }

    fn advance(&self, stage: Stage) {
        let mut fate = self.fate.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(fate.stage, Stage::Reached(Durability::Flushed, _)) {
            return;
        }
        fate.stage = stage;
        let stage = fate.stage.clone();
        let woken = extract(&mut fate.waiting, |(durability, _)| stage.answer(*durability).is_some());
        // Wake outside the lock: whoever wakes wants it.
        drop(fate);
        for (_, waker) in woken {
            waker.wake();
        }
    }
}

fn extract<T>(from: &mut Vec<T>, mut which: impl FnMut(&T) -> bool) -> Vec<T> {
    if from.iter().all(&mut which) {
        return std::mem::take(from);
    }
    let (out, kept) = std::mem::take(from).into_iter().partition(which);
    *from = kept;
    out
}

impl Stage {
    fn answer(&self, wanted: Durability) -> Option<Result<Arc<Sealed>, EngineError>> {
        match self {
            Stage::Reached(durability, sealed) if *durability >= wanted => Some(Ok(Arc::clone(sealed))),
            Stage::Failed(error) => Some(Err(error.clone())),
            Stage::Gathering | Stage::Reached(..) => None,
        }
    }
}

/// Resolves when the batch rests on the durability asked for, or never will.
#[derive(Debug)]
pub(crate) struct Wait {
    ticket: Arc<Ticket>,
    durability: Durability,
    registered: Option<Waker>,
}

impl Wait {
    pub(crate) fn new(ticket: Arc<Ticket>, durability: Durability) -> Self {
        Wait { ticket, durability, registered: None }
    }
}

impl Future for Wait {
    type Output = Result<Arc<Sealed>, EngineError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let mut fate = this.ticket.fate.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(answer) = fate.stage.answer(this.durability) {
            return Poll::Ready(answer);
        }
        if !this.registered.as_ref().is_some_and(|known| known.will_wake(context.waker())) {
            this.registered = Some(context.waker().clone());
            fate.waiting.push((this.durability, context.waker().clone()));
        }
        Poll::Pending
    }
}
