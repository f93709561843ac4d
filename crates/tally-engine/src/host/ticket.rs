//! Tickets: what callers hold while their batch is in progress.
//!
//! There is one ticket per batch, shared by every call that joined it. The batch passes through stages, such as applied
//! and flushed. A call wakes at the stage it asked for and takes its own outcomes out of the shared result.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use tally_core::surface::EngineError;

use crate::signal::lock;

/// The stages that a batch passes through, in order.
pub trait Stage: Copy + Ord {
    /// The last stage: a batch that reached it cannot fail any more.
    const LAST: Self;
}

/// The progress of one batch. `R` is its result, which may contain more at a later stage, for example its position.
#[derive(Debug)]
pub struct Ticket<S, R> {
    state: Mutex<TicketState<S, R>>,
}

#[derive(Debug)]
struct TicketState<S, R> {
    progress: BatchProgress<S, R>,
    waiting: Vec<(S, Waker)>,
}

#[derive(Debug)]
enum BatchProgress<S, R> {
    Filling,
    Reached(S, Arc<R>),
    Failed(EngineError),
}

impl<S, R> Default for Ticket<S, R> {
    fn default() -> Self {
        Ticket { state: Mutex::new(TicketState { progress: BatchProgress::Filling, waiting: Vec::new() }) }
    }
}

impl<S: Stage, R> Ticket<S, R> {
    /// Records that the batch reached `stage`, and wakes the calls that wait for it.
    pub fn reach(&self, stage: S, result: &Arc<R>) {
        self.advance(BatchProgress::Reached(stage, Arc::clone(result)));
    }

    /// Fails the batch, unless it has reached the last stage.
    pub fn fail(&self, error: EngineError) {
        self.advance(BatchProgress::Failed(error));
    }

    fn advance(&self, progress: BatchProgress<S, R>) {
        let mut state = lock(&self.state);
        if matches!(state.progress, BatchProgress::Reached(stage, _) if stage == S::LAST) {
            return;
        }
        state.progress = progress;
        let TicketState { progress, waiting } = &mut *state;
        let woken = extract(waiting, |(stage, _)| progress.answer(*stage).is_some());
        // Wake outside the lock: the woken tasks take it.
        drop(state);
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

impl<S: Stage, R> BatchProgress<S, R> {
    fn answer(&self, wanted: S) -> Option<Result<Arc<R>, EngineError>> {
        match self {
            BatchProgress::Reached(stage, result) if *stage >= wanted => Some(Ok(Arc::clone(result))),
            BatchProgress::Failed(error) => Some(Err(error.clone())),
            BatchProgress::Filling | BatchProgress::Reached(..) => None,
        }
    }
}

/// Resolves when the batch reaches a stage, or fails.
#[derive(Debug)]
pub struct Wait<S, R> {
    ticket: Arc<Ticket<S, R>>,
    stage: S,
    registered: Option<Waker>,
}

impl<S, R> Wait<S, R> {
    /// Waits until the batch of `ticket` reaches `stage`.
    pub fn new(ticket: Arc<Ticket<S, R>>, stage: S) -> Self {
        Wait { ticket, stage, registered: None }
    }
}

impl<S: Stage + Unpin, R> Future for Wait<S, R> {
    type Output = Result<Arc<R>, EngineError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let mut state = lock(&this.ticket.state);
        if let Some(answer) = state.progress.answer(this.stage) {
            return Poll::Ready(answer);
        }
        if !this.registered.as_ref().is_some_and(|known| known.will_wake(context.waker())) {
            this.registered = Some(context.waker().clone());
            state.waiting.push((this.stage, context.waker().clone()));
        }
        Poll::Pending
    }
}
