//! One run of an engine from open to stop or crash, in single steps of its threads and callers, in random order.

mod reads;

use std::future::Future;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

use tally_core::batch::Events;
use tally_core::event::Change;
use tally_core::key::Key;
use tally_core::outcome::{Outcome, Receipt, Refusal};
use tally_core::surface::{EngineError, Health};
use tally_core::time::Millis;
use tally_engine::store::StoreError;
use tally_engine::{Checkpoint, Durability, Machine, Nudge, Seal, Step, Sweep, WarmUp};

use crate::call::{outcome_per_event, push_all};
use crate::ensure;
use crate::life::reads::PendingRead;
use crate::model::Event;
use crate::workload::with_submission_count;
use crate::world::{Verdict, World};

/// Polls a future that must be ready.
pub fn ready<T>(future: impl Future<Output = T>) -> Verdict<T> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => Ok(value),
        Poll::Pending => Err("the future is pending, although nothing is in progress".to_owned()),
    }
}

/// Submits events to a machine without threads, and does the threads' work: seals, flushes and prepares the next
/// segment.
pub fn submit_now(machine: &Machine, events: Events) -> Verdict<Result<Receipt, EngineError>> {
    let drive = |_: Nudge| {
        machine.seal();
        // If it fails, so does the submission.
        let _ = machine.flush();
        machine.maintain_journal();
    };
    ready(machine.submit(events, Durability::Flushed, drive))
}

/// Writes a whole checkpoint of a machine without threads, unless nothing has changed.
pub fn checkpoint_now(machine: &Machine) -> Result<(), StoreError> {
    if let Some(mut checkpoint) = machine.checkpoint() {
        while checkpoint.step()? != Step::Done {}
    }
    Ok(())
}

/// A running engine and its pending calls.
pub struct Life<'m> {
    /// The world it runs in.
    pub world: &'m mut World,
    machine: &'m Machine,
    checkpoint: Option<Checkpoint<'m>>,
    /// The key from which warming continues.
    warmed: Vec<u8>,
    submissions: Vec<Submission<'m>>,
    reads: Vec<PendingRead<'m>>,
    stopped: bool,
}

type Pending<'m, T> = Pin<Box<dyn Future<Output = Result<T, EngineError>> + 'm>>;

struct Submission<'m> {
    future: Pending<'m, Receipt>,
    durability: Durability,
    events: Vec<Event>,
    batch: BatchState,
}

/// The state of a submission's batch.
enum BatchState {
    Open,
    /// Nothing was applied, but its reads may have seen unflushed batches up to `needed`.
    Refused {
        needed: u64,
    },
    /// `needed` batches must be flushed before the answer.
    Sealed {
        needed: u64,
        at: Millis,
        outcomes: Vec<Outcome>,
    },
}

impl<'m> Life<'m> {
    /// Starts with an open machine.
    pub fn new(world: &'m mut World, machine: &'m Machine) -> Self {
        Life {
            world,
            machine,
            checkpoint: None,
            warmed: Vec::new(),
            submissions: Vec::new(),
            reads: Vec::new(),
            stopped: false,
        }
    }

    /// Whether the engine has stopped for good: it is poisoned, or its disk has crashed.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.stopped
    }

    /// Performs one random step.
    pub fn step(&mut self) -> Verdict {
        match self.world.rng.below(32) {
            0..=7 => self.submit()?,
            8 => self.read()?,
            9..=12 => self.seal()?,
            13..=15 => self.flush()?,
            16 => self.flush_here()?,
            17 => self.maintain(),
            18 => drop(self.machine.mark_end()),
            19..=22 => self.checkpoint()?,
            23 => match self.world.rng.below(3) {
                0 => self.merge()?,
                1 => self.warm()?,
                _ => self.sweep()?,
            },
            24..=29 => self.ask()?,
            30 if self.world.rng.one_in(3) => self.step_clock()?,
            30 => self.advance_clock(),
            _ => self.change_capacity(),
        }
        self.check_answers()
    }

    fn advance_clock(&mut self) {
        let rng = &mut self.world.rng;
        let ms = if rng.one_in(4) { rng.below(20 * 3_600_000) } else { rng.below(2_000) };
        self.world.clock.advance(ms);
    }

    /// Steps the wall clock by seconds or by years. A running engine must not notice.
    fn step_clock(&mut self) -> Verdict {
        let before = self.machine.now();
        let rng = &mut self.world.rng;
        let ms = if rng.one_in(3) { rng.below(10 * 365 * 24 * 3_600_000) } else { rng.below(90_000) };
        if rng.one_in(2) {
            self.world.clock.set_forward(ms);
        } else {
            self.world.clock.set_back(ms);
        }
        self.world.observed.clock_steps += 1;
        ensure!(self.machine.now() == before, "the clock jumped from {before:?} to {:?}", self.machine.now());
        Ok(())
    }

    fn change_capacity(&mut self) {
        let capacity = match self.world.rng.below(3) {
            // Little free space or none.
            0 => self.world.disk.used_bytes() + self.world.rng.below(2_000),
            1 => self.world.disk.used_bytes(),
            _ => u64::MAX,
        };
        self.world.disk.set_capacity(capacity);
    }

    /// Makes the next sync of a file fail, which must stop the engine.
    pub fn fail_a_sync(&mut self) {
        self.world.disk.fail_next_sync();
        self.world.sync_fails = true;
        self.world.observed.failed_syncs += 1;
    }

    /// Submits new events and retries of requests that a crash may have undone.
    pub fn submit(&mut self) -> Verdict {
        let world = &mut *self.world;
        let mut events = world.workload.submission(&mut world.rng, self.machine.now(), world.history.applied());
        if !world.lost.is_empty() && world.rng.one_in(2) {
            let again = world.lost.len().min(4);
            events.extend(world.lost.drain(..again));
        }
        let durability = if world.rng.one_in(5) { Durability::Applied } else { Durability::Flushed };
        self.submit_these(events, durability)
    }

    /// Submits reads only.
    pub fn read(&mut self) -> Verdict {
        let world = &mut *self.world;
        let events = world.workload.reads(&mut world.rng);
        let durability = if world.rng.one_in(5) { Durability::Applied } else { Durability::Flushed };
        self.read_these(&events, durability);
        Ok(())
    }

    /// Submits these events.
    pub fn submit_these(&mut self, events: Vec<Event>, durability: Durability) -> Verdict {
        let mut call = self.machine.events();
        push_all(&events, &mut call);
        let machine = self.machine;
        let future = Box::pin(machine.submit(call, durability, |_| {}));
        let mut submission = Submission { future, durability, events, batch: BatchState::Open };
        match submission.future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Pending => self.submissions.push(submission),
            Poll::Ready(Err(EngineError::Poisoned(_))) => ensure!(self.is_poisoned(), "refused as if poisoned"),
            Poll::Ready(answer) => return Err(format!("answered before it was sealed: {answer:?}")),
        }
        Ok(())
    }

    fn is_poisoned(&self) -> bool {
        matches!(self.machine.health(), Health::Poisoned(_))
    }

    /// Seals the open batch.
    pub fn seal(&mut self) -> Verdict {
        self.expect_seal(self.machine.seal())
    }

    fn expect_seal(&mut self, sealed: Seal) -> Verdict {
        let waiting = self.submissions.iter().any(|submission| matches!(submission.batch, BatchState::Open));
        match sealed {
            Seal::Empty => ensure!(!waiting || self.is_poisoned(), "a batch was not sealed"),
            Seal::BackedUp | Seal::NeedsCheckpoint | Seal::NeedsSlice => {}
            Seal::Refused => {
                let needed = self.world.history.sealed();
                for submission in self.open() {
                    submission.batch = BatchState::Refused { needed };
                }
            }
            Seal::Applied => self.sealed()?,
        }
        Ok(())
    }

    fn open(&mut self) -> impl Iterator<Item = &mut Submission<'m>> {
        self.submissions.iter_mut().filter(|submission| matches!(submission.batch, BatchState::Open))
    }

    fn sealed(&mut self) -> Verdict {
        let at = self.machine.now();
        let submissions: Vec<Vec<Event>> = self.open().map(|submission| submission.events.clone()).collect();
        ensure!(!submissions.is_empty(), "an empty batch was sealed");
        let expected = self.world.history.seal(at, submissions);
        let needed = self.world.history.sealed();
        for (submission, outcomes) in self.open().zip(expected) {
            submission.batch = BatchState::Sealed { needed, at, outcomes };
        }
        Ok(())
    }

    /// Flushes sealed batches.
    pub fn flush(&mut self) -> Verdict {
        let segments = self.segments();
        let flushed = self.machine.flush();
        self.world.observed.rolls += u64::from(flushed == Ok(true) && self.segments() > segments);
        self.expect_flush(flushed)
    }

    /// Seals and flushes inline, as a submitting thread may.
    pub fn flush_here(&mut self) -> Verdict {
        let Some((sealed, flushed)) = self.machine.try_flush() else { return Ok(()) };
        self.expect_seal(sealed)?;
        self.expect_flush(flushed)
    }

    fn expect_flush(&mut self, flushed: Result<bool, EngineError>) -> Verdict {
        let waiting = self.world.history.sealed() > self.world.history.flushed();
        match flushed {
            Ok(true) => {
                ensure!(!self.world.disk.crashed(), "a flush succeeded on a crashed disk");
                self.world.history.flush();
                self.world.observed.flushes += 1;
            }
            Ok(false) => ensure!(!waiting || self.is_poisoned(), "sealed batches were not flushed"),
            Err(error) => {
                ensure!(matches!(error, EngineError::OutcomeUnknown(_)), "a failed flush returned {error:?}");
                ensure!(self.is_poisoned(), "a failed flush did not poison the engine");
                self.stopped = true;
            }
        }
        Ok(())
    }

    /// Reserves the next segment and trims old ones.
    pub fn maintain(&mut self) {
        let before = self.segments();
        self.machine.maintain_journal();
        self.world.observed.trims += u64::from(self.segments() < before);
    }

    fn segments(&self) -> usize {
        self.world.disk.file_names().iter().filter(|name| name.starts_with("journal-")).count()
    }

    /// Performs one step of a checkpoint, or starts one.
    pub fn checkpoint(&mut self) -> Verdict {
        let Some(checkpoint) = &mut self.checkpoint else {
            self.checkpoint = self.machine.checkpoint();
            return Ok(());
        };
        match checkpoint.step() {
            Ok(Step::More | Step::AwaitFlush(_)) => {}
            Ok(Step::Done) => {
                self.world.observed.checkpoints += 1;
                self.checkpoint = None;
            }
            Err(error) => {
                self.world.observed.checkpoints_failed += 1;
                self.checkpoint = None;
                self.store_failed(&error);
            }
        }
        Ok(())
    }

    /// Performs a full checkpoint, flushing as needed.
    pub fn full_checkpoint(&mut self) -> Verdict {
        self.checkpoint()?;
        while self.checkpoint.is_some() {
            self.flush()?;
            self.checkpoint()?;
        }
        self.check_answers()
    }

    /// Seals and flushes everything submitted, so that every call is answered.
    pub fn flush_all(&mut self) -> Verdict {
        self.maintain();
        self.seal()?;
        self.flush()?;
        self.check_answers()
    }

    /// Merges runs if a merge is due.
    pub fn merge(&mut self) -> Verdict {
        match self.machine.merge() {
            Ok(merged) => self.world.observed.merges += u64::from(merged),
            Err(error) => self.store_failed(&error),
        }
        Ok(())
    }

    /// Loads a few counters from the store.
    fn warm(&mut self) -> Verdict {
        let max = 1 + self.world.rng.below(12) as usize;
        match self.machine.warm(&mut self.warmed, max) {
            Ok(WarmUp::InProgress) => {}
            Ok(WarmUp::Done) => self.world.observed.warmed += 1,
            Err(error) => self.store_failed(&error),
        }
        Ok(())
    }

    /// Sweeps every expiry record in the store that is due.
    pub fn sweep(&mut self) -> Verdict {
        let mut sweep = Sweep::default();
        loop {
            let expired = match self.machine.find_expired(&mut sweep) {
                Ok(expired) => expired,
                Err(error) => {
                    self.store_failed(&error);
                    return Ok(());
                }
            };
            if expired.is_empty() {
                return Ok(());
            }
            self.world.observed.sweeps += expired.len() as u64;
            let sweeps = expired
                .into_iter()
                .map(|(expires_at, key)| Event { change: Change::Sweep { expires_at }, ..Event::add(&key, 0) });
            self.submit_these(with_submission_count(sweeps), Durability::Flushed)?;
        }
    }

    /// Sweeps everything that has expired and checks that the engine's count is exact.
    pub fn count_exactly(&mut self) -> Verdict {
        self.full_checkpoint()?;
        self.sweep()?;
        for _ in 0..20 {
            self.flush_all()?;
            if self.submissions.is_empty() {
                break;
            }
            self.full_checkpoint()?;
        }
        let now = self.machine.now();
        let expected = self.world.history.applied().all_visible(now).count() as u64;
        let found = ready(self.machine.count(Durability::Applied))?;
        let may = self.is_stopped() || self.is_poisoned();
        ensure!(found == Ok(expected) || may, "{found:?} counters instead of {expected}");
        self.full_checkpoint()
    }

    /// A full disk does not stop the engine; any other failure of the store does.
    fn store_failed(&mut self, error: &StoreError) {
        self.stopped |= !error.is_full();
    }

    /// Checks every answer that has arrived, and that none is overdue.
    pub fn check_answers(&mut self) -> Verdict {
        self.stopped |= self.world.disk.crashed() && self.is_poisoned();
        let mut waiting = Vec::new();
        for mut submission in std::mem::take(&mut self.submissions) {
            match submission.future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(answer) => self.check_receipt(&submission, answer)?,
                Poll::Pending => {
                    self.check_waits(&submission)?;
                    waiting.push(submission);
                }
            }
        }
        self.submissions = waiting;
        let mut open = Vec::new();
        for mut read in std::mem::take(&mut self.reads) {
            match read.future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(answer) => self.check_answer(&read, answer)?,
                Poll::Pending => {
                    ensure!(
                        self.world.history.sealed() > self.world.history.flushed(),
                        "no answer for {}",
                        read.description
                    );
                    open.push(read);
                }
            }
        }
        self.reads = open;
        Ok(())
    }

    fn check_receipt(&mut self, submission: &Submission<'_>, answer: Result<Receipt, EngineError>) -> Verdict {
        match (answer, &submission.batch) {
            (Ok(receipt), BatchState::Sealed { needed, at, outcomes }) => {
                let flushed = self.world.history.flushed();
                let may = submission.durability == Durability::Applied || *needed <= flushed;
                ensure!(may, "batch {needed} was acknowledged, but only {flushed} are flushed");
                let mut found = outcome_per_event(&submission.events, &receipt.outcomes);
                for (event, outcome) in submission.events.iter().zip(&mut found) {
                    self.world.observed.overflows += u64::from(outcome.refusal == Some(Refusal::Overflow));
                    if matches!(event.change, Change::Guard { .. }) {
                        self.world.observed.guards_met += u64::from(outcome.refusal.is_none());
                        self.world.observed.guards_refused += u64::from(outcome.refusal.is_some());
                    }
                    // The model does not know whether an expired counter was still to be removed.
                    if matches!(event.change, Change::Sweep { .. }) {
                        outcome.applied = 0;
                    }
                }
                ensure!(found == *outcomes, "got {found:?} instead of {outcomes:?}");
                ensure!(receipt.as_of == *at, "acknowledged as of {:?} instead of {at:?}", receipt.as_of);
                self.world.observed.acknowledged += 1;
            }
            (Ok(receipt), BatchState::Refused { needed }) => {
                let may = submission.durability == Durability::Applied || *needed <= self.world.history.flushed();
                ensure!(
                    may,
                    "a refused batch was answered before batch {needed}, which its reads may have seen, was flushed"
                );
                let refused = |outcome: &Outcome| outcome.refusal == Some(Refusal::NoRoom) && outcome.applied == 0;
                let found = outcome_per_event(&submission.events, &receipt.outcomes);
                let mut both = submission.events.iter().zip(&found);
                let right = both.all(|(event, outcome)| refused(outcome) != event.is_read());
                ensure!(right, "a batch refused on a full disk got {found:?}");
                self.world.observed.refused_full += 1;
            }
            (Err(EngineError::Unreadable(_)), BatchState::Refused { .. }) => {
                ensure!(self.world.disk.crashed(), "the store could not be read, although the disk has not crashed");
                self.stopped = true;
            }
            (
                Err(EngineError::OutcomeUnknown(_)),
                BatchState::Sealed { needed, .. } | BatchState::Refused { needed },
            ) => {
                ensure!(self.is_poisoned() && *needed > self.world.history.flushed(), "batch {needed} is not in doubt");
            }
            (Err(EngineError::Poisoned(_)), BatchState::Open) => ensure!(self.is_poisoned(), "refused as if poisoned"),
            (answer, _) => return Err(format!("the answer does not match the state of the batch: {answer:?}")),
        }
        Ok(())
    }

    /// Checks that a submission without an answer is not overdue.
    fn check_waits(&self, submission: &Submission<'_>) -> Verdict {
        let may = match &submission.batch {
            BatchState::Open => !self.is_poisoned(),
            BatchState::Sealed { needed, .. } | BatchState::Refused { needed } => {
                submission.durability == Durability::Flushed
                    && *needed > self.world.history.flushed()
                    && !self.is_poisoned()
            }
        };
        ensure!(may, "the answer of a submission is overdue");
        Ok(())
    }

    /// Shuts down cleanly: drains, flushes, checkpoints, then refuses new work.
    pub fn stop(&mut self) -> Verdict {
        self.world.disk.set_capacity(u64::MAX);
        for _ in 0..50 {
            self.maintain();
            self.seal()?;
            self.flush()?;
            self.checkpoint()?;
            self.check_answers()?;
            if self.is_stopped() {
                return Ok(());
            }
        }
        ensure!(self.submissions.is_empty(), "{} submissions are pending after a stop", self.submissions.len());
        self.count_exactly()?;
        if self.is_stopped() {
            return Ok(());
        }
        self.machine.begin_close();
        let refused = ready(self.machine.submit(self.one_event()?, Durability::Flushed, |_| {}))?;
        ensure!(refused == Err(EngineError::Closing), "a closing engine returned {refused:?}");
        self.world.observed.stops += 1;
        Ok(())
    }

    fn one_event(&self) -> Verdict<tally_core::batch::Events> {
        let mut call = self.machine.events();
        call.add(Key::new("late").map_err(|error| error.to_string())?.as_ref(), 1);
        Ok(call)
    }
}
