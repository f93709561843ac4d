//! One life of an engine, step by step: whatever its threads and callers could do next, in any order.

use std::future::Future;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

use tally_core::event::Change;
use tally_core::key::Key;
use tally_core::ledger::LedgerEntry;
use tally_core::outcome::{Outcome, Receipt, Refusal};
use tally_core::reading::Reading;
use tally_core::surface::{EngineError, Health, Page, PageRequest};
use tally_core::time::Millis;
use tally_engine::store::StoreError;
use tally_engine::{Checkpoint, Durability, Machine, Seal, Step, Sweep, Warmth};

use crate::ensure;
use crate::model::{Event, Model, of_each, push_all};
use crate::workload::counted;
use crate::world::{Verdict, World};

/// Polls a future that must not have to wait.
pub fn at_once<T>(future: impl Future<Output = T>) -> Verdict<T> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => Ok(value),
        Poll::Pending => Err("it waits, and nothing is on its way".to_owned()),
    }
}

/// An engine that runs, and what its callers wait for.
pub struct Life<'m> {
    /// The world it runs in.
    pub world: &'m mut World,
    machine: &'m Machine,
    checkpoint: Option<Checkpoint<'m>>,
    /// How far counters have been brought to memory since the start.
    warmed: Vec<u8>,
    submissions: Vec<Submission<'m>>,
    questions: Vec<Question<'m>>,
    over: bool,
}

type Pending<'m, T> = Pin<Box<dyn Future<Output = Result<T, EngineError>> + 'm>>;

struct Submission<'m> {
    future: Pending<'m, Receipt>,
    durability: Durability,
    events: Vec<Event>,
    fate: Fate,
}

/// What became of the batch that a submission joined.
enum Fate {
    Open,
    /// Nothing was applied; reads in it may have seen batches before it that are not flushed.
    Refused {
        needed: u64,
    },
    /// So many batches must be flushed before the answer.
    Sealed {
        needed: u64,
        at: Millis,
        outcomes: Vec<Outcome>,
    },
}

struct Question<'m> {
    future: Pending<'m, Shown>,
    expected: Shown,
    /// Batches that must be flushed before the answer.
    needed: u64,
    asked: String,
}

/// What an answer reveals.
#[derive(Debug, PartialEq, Eq)]
enum Shown {
    Values(Vec<Revealed>),
    Outcomes(Vec<Outcome>),
    Page(Vec<(Key, i64)>, bool),
    Ledger(Vec<LedgerEntry>),
}

/// Value, whether it exists, and when it was created, changed and expires.
type Revealed = (i64, bool, [Option<Millis>; 3]);

fn revealed(reading: &Reading) -> Revealed {
    (reading.value, reading.exists, [reading.created_at, reading.updated_at, reading.expires_at])
}

fn value_of(model: &Model, key: &Key, now: Millis) -> Revealed {
    let Some(life) = model.seen(key, now) else { return (0, false, [None; 3]) };
    (life.value, true, [Some(Millis(life.created)), Some(Millis(life.updated)), life.expires.map(Millis)])
}

impl<'m> Life<'m> {
    /// Begins.
    pub fn new(world: &'m mut World, machine: &'m Machine) -> Self {
        Life {
            world,
            machine,
            checkpoint: None,
            warmed: Vec::new(),
            submissions: Vec::new(),
            questions: Vec::new(),
            over: false,
        }
    }

    /// Whether the engine is of no use any more: poisoned, or its disk has crashed.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.over
    }

    /// Does something that could happen next.
    pub fn step(&mut self) -> Verdict {
        match self.world.rng.below(32) {
            0..=7 => self.submit()?,
            8 => self.look()?,
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
            30 if self.world.rng.one_in(3) => self.step_the_clock()?,
            30 => self.let_time_pass(),
            _ => self.change_capacity(),
        }
        self.answer()
    }

    fn let_time_pass(&mut self) {
        let rng = &mut self.world.rng;
        let ms = if rng.one_in(4) { rng.below(20 * 3_600_000) } else { rng.below(2_000) };
        self.world.clock.advance(ms);
    }

    /// The wall clock jumps, by seconds or by years. While the engine runs that changes nothing.
    fn step_the_clock(&mut self) -> Verdict {
        let before = self.machine.now();
        let rng = &mut self.world.rng;
        let ms = if rng.one_in(3) { rng.below(10 * 365 * 24 * 3_600_000) } else { rng.below(90_000) };
        if rng.one_in(2) {
            self.world.clock.set_forward(ms);
        } else {
            self.world.clock.set_back(ms);
        }
        self.world.seen.clock_steps += 1;
        ensure!(self.machine.now() == before, "the clock jumped from {before:?} to {:?}", self.machine.now());
        Ok(())
    }

    fn change_capacity(&mut self) {
        let capacity = match self.world.rng.below(3) {
            // Little room or none.
            0 => self.world.disk.used_bytes() + self.world.rng.below(2_000),
            1 => self.world.disk.used_bytes(),
            _ => u64::MAX,
        };
        self.world.disk.set_capacity(capacity);
    }

    /// Makes the next sync of a file fail; whoever meets the failure must stop the engine.
    pub fn fail_a_sync(&mut self) {
        self.world.disk.fail_next_sync();
        self.world.sync_fails = true;
        self.world.seen.failed_syncs += 1;
    }

    /// A caller submits: new events, or once more what a crash may have taken back.
    pub fn submit(&mut self) -> Verdict {
        let world = &mut *self.world;
        let mut events = world.workload.submission(&mut world.rng, self.machine.now());
        if !world.lost.is_empty() && world.rng.one_in(2) {
            let again = world.lost.len().min(4);
            events.extend(world.lost.drain(..again));
        }
        let durability = if world.rng.one_in(5) { Durability::Applied } else { Durability::Flushed };
        self.submit_these(events, durability)
    }

    /// A caller only reads: it is answered from the state as it is.
    pub fn look(&mut self) -> Verdict {
        let world = &mut *self.world;
        let events = world.workload.looks(&mut world.rng);
        let durability = if world.rng.one_in(5) { Durability::Applied } else { Durability::Flushed };
        self.read_these(events, durability);
        Ok(())
    }

    /// A caller submits these events, which only read.
    pub fn read_these(&mut self, events: Vec<Event>, durability: Durability) {
        let world = &mut *self.world;
        world.seen.looks += 1;
        let (model, now) = (world.history.applied(), self.machine.now());
        let expected = Shown::Outcomes(events.iter().map(|event| model.read(now, event)).collect());
        let needed = match durability {
            Durability::Applied => 0,
            Durability::Flushed => world.history.needed(|key| events.iter().any(|event| event.key == *key)),
        };
        let asked = format!("{events:?} at {durability:?}");
        let mut call = self.machine.events();
        push_all(&events, &mut call);
        let machine = self.machine;
        let future =
            Box::pin(async move { Ok(Shown::Outcomes(machine.submit(call, durability, |_| {}).await?.outcomes)) });
        self.questions.push(Question { future, expected, needed, asked });
        self.poll_last();
    }

    /// A caller submits these events.
    pub fn submit_these(&mut self, events: Vec<Event>, durability: Durability) -> Verdict {
        let mut call = self.machine.events();
        push_all(&events, &mut call);
        let machine = self.machine;
        let future = Box::pin(machine.submit(call, durability, |_| {}));
        let mut submission = Submission { future, durability, events, fate: Fate::Open };
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

    /// Seals what has gathered.
    pub fn seal(&mut self) -> Verdict {
        self.expect_seal(self.machine.seal())
    }

    fn expect_seal(&mut self, sealed: Seal) -> Verdict {
        let waiting = self.submissions.iter().any(|submission| matches!(submission.fate, Fate::Open));
        match sealed {
            Seal::Empty => ensure!(!waiting || self.is_poisoned(), "a batch was not sealed"),
            Seal::BackedUp | Seal::NeedsCheckpoint => {}
            Seal::Refused => {
                let needed = self.world.history.sealed();
                for submission in self.open() {
                    submission.fate = Fate::Refused { needed };
                }
            }
            Seal::Applied => self.sealed()?,
        }
        Ok(())
    }

    fn open(&mut self) -> impl Iterator<Item = &mut Submission<'m>> {
        self.submissions.iter_mut().filter(|submission| matches!(submission.fate, Fate::Open))
    }

    fn sealed(&mut self) -> Verdict {
        let at = self.machine.now();
        let submissions: Vec<Vec<Event>> = self.open().map(|submission| submission.events.clone()).collect();
        ensure!(!submissions.is_empty(), "a batch of nothing was sealed");
        let expected = self.world.history.seal(at, submissions);
        let needed = self.world.history.sealed();
        for (submission, outcomes) in self.open().zip(expected) {
            submission.fate = Fate::Sealed { needed, at, outcomes };
        }
        Ok(())
    }

    /// Flushes what was sealed.
    pub fn flush(&mut self) -> Verdict {
        let segments = self.segments();
        let flushed = self.machine.flush();
        self.world.seen.rolls += u64::from(flushed == Ok(true) && self.segments() > segments);
        self.expect_flush(flushed)
    }

    /// Seals and flushes in one go, as a thread that submits may.
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
                self.world.seen.flushes += 1;
            }
            Ok(false) => ensure!(!waiting || self.is_poisoned(), "nothing was flushed though batches were sealed"),
            Err(error) => {
                ensure!(matches!(error, EngineError::OutcomeUnknown(_)), "a failed flush said {error:?}");
                ensure!(self.is_poisoned(), "a failed flush left the engine as it was");
                self.over = true;
            }
        }
        Ok(())
    }

    /// Reserves the next segment and gives up old ones.
    pub fn maintain(&mut self) {
        let before = self.segments();
        self.machine.maintain_journal();
        self.world.seen.trims += u64::from(self.segments() < before);
    }

    fn segments(&self) -> usize {
        self.world.disk.file_names().iter().filter(|name| name.starts_with("journal-")).count()
    }

    /// Does one step of a checkpoint, or begins one.
    pub fn checkpoint(&mut self) -> Verdict {
        let Some(checkpoint) = &mut self.checkpoint else {
            self.checkpoint = self.machine.checkpoint();
            return Ok(());
        };
        match checkpoint.step() {
            Ok(Step::More | Step::AwaitFlush(_)) => {}
            Ok(Step::Done) => {
                self.world.seen.checkpoints += 1;
                self.checkpoint = None;
            }
            Err(error) => {
                self.world.seen.checkpoints_failed += 1;
                self.checkpoint = None;
                self.store_failed(&error);
            }
        }
        Ok(())
    }

    /// Does a whole checkpoint, flushing when it has to.
    pub fn whole_checkpoint(&mut self) -> Verdict {
        self.checkpoint()?;
        while self.checkpoint.is_some() {
            self.flush()?;
            self.checkpoint()?;
        }
        self.answer()
    }

    /// Seals and flushes what was submitted; everything gets its answer.
    pub fn settle(&mut self) -> Verdict {
        self.maintain();
        self.seal()?;
        self.flush()?;
        self.answer()
    }

    /// Merges runs if that is due.
    pub fn merge(&mut self) -> Verdict {
        match self.machine.merge() {
            Ok(merged) => self.world.seen.merges += u64::from(merged),
            Err(error) => self.store_failed(&error),
        }
        Ok(())
    }

    /// Brings a few counters of the store to memory.
    fn warm(&mut self) -> Verdict {
        let max = 1 + self.world.rng.below(12) as usize;
        match self.machine.warm(&mut self.warmed, max) {
            Ok(Warmth::Warming) => {}
            Ok(Warmth::Warm) => self.world.seen.warmed += 1,
            Err(error) => self.store_failed(&error),
        }
        Ok(())
    }

    /// Removes counters that have expired, all that the store knows of.
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
            self.world.seen.sweeps += expired.len() as u64;
            let sweeps = expired
                .into_iter()
                .map(|(expires_at, key)| Event { change: Change::Sweep { expires_at }, ..Event::add(&key, 0) });
            self.submit_these(counted(sweeps), Durability::Flushed)?;
        }
    }

    /// Once everything that has expired is swept, the engine counts exactly what exists.
    pub fn count_exactly(&mut self) -> Verdict {
        self.whole_checkpoint()?;
        self.sweep()?;
        for _ in 0..20 {
            self.settle()?;
            if self.submissions.is_empty() {
                break;
            }
            self.whole_checkpoint()?;
        }
        let now = self.machine.now();
        let expected = self.world.history.applied().all_seen(now).count() as u64;
        let found = at_once(self.machine.count(Durability::Applied))?;
        let may = self.is_over() || self.is_poisoned();
        ensure!(found == Ok(expected) || may, "{found:?} counters instead of {expected}");
        self.whole_checkpoint()
    }

    /// An engine whose store fails goes on if the disk is full, and otherwise stops.
    fn store_failed(&mut self, error: &StoreError) {
        self.over |= !error.is_full();
    }

    /// A caller asks for something.
    pub fn ask(&mut self) -> Verdict {
        match self.world.rng.below(5) {
            0..=2 => self.ask_for_values(),
            3 => self.ask_for_a_page(),
            _ => self.ask_for_the_ledger(),
        }
        Ok(())
    }

    fn ask_for_values(&mut self) {
        let world = &mut *self.world;
        let keys: Vec<Key> = (0..=world.rng.below(4)).map(|_| world.workload.key(&mut world.rng)).collect();
        let durability = if world.rng.one_in(4) { Durability::Applied } else { Durability::Flushed };
        let model = world.history.applied();
        let now = self.machine.now();
        let expected = Shown::Values(keys.iter().map(|key| value_of(model, key, now)).collect());
        let needed = match durability {
            Durability::Applied => 0,
            Durability::Flushed => world.history.needed(|key| keys.contains(key)),
        };
        let asked = format!("{keys:?} at {durability:?}");
        let machine = self.machine;
        let future = Box::pin(async move {
            let readings = machine.read(&keys, durability).await?;
            Ok(Shown::Values(readings.iter().map(revealed).collect()))
        });
        self.questions.push(Question { future, expected, needed, asked });
        self.poll_last();
    }

    fn ask_for_a_page(&mut self) {
        let world = &mut *self.world;
        let prefix = [&b""[..], b"a", b"likes:", b"c:1"][world.rng.below(4) as usize].to_vec();
        let after = world.rng.one_in(2).then(|| world.workload.key(&mut world.rng));
        let limit = 1 + world.rng.below(4) as usize;
        let request = PageRequest { prefix, after, limit };
        let (expected, last) = page_of(world.history.applied(), self.machine.now(), &request);
        let needed = world.history.needed(|key| {
            let begins = key.as_bytes().starts_with(&request.prefix);
            begins
                && request.after.as_ref().is_none_or(|after| key > after)
                && last.as_ref().is_none_or(|last| key <= last)
        });
        let asked = format!("{request:?}");
        let machine = self.machine;
        let future = Box::pin(async move {
            let Page { items, next } = machine.list(&request).await?;
            Ok(Shown::Page(items.into_iter().map(|(key, reading)| (key, reading.value)).collect(), next.is_some()))
        });
        self.questions.push(Question { future, expected, needed, asked });
        self.poll_last();
    }

    fn ask_for_the_ledger(&mut self) {
        let world = &mut *self.world;
        let key = world.workload.key(&mut world.rng);
        let (after, limit) = (world.rng.below(3), 1 + world.rng.below(5) as usize);
        let entries = world.history.applied().ledger.get(&key).map_or(&[][..], Vec::as_slice);
        let page: Vec<LedgerEntry> = entries.iter().skip(after as usize).take(limit).cloned().collect();
        let needed = page.last().map_or(0, |entry| world.history.needed_for_ledger(&key, entry.seq));
        let asked = format!("the ledger of {key:?} after {after}, {limit} entries");
        let machine = self.machine;
        let future = Box::pin(async move { Ok(Shown::Ledger(machine.ledger(&key, after, limit).await?)) });
        self.questions.push(Question { future, expected: Shown::Ledger(page), needed, asked });
        self.poll_last();
    }

    /// What is expected holds at the moment of asking, so asking begins at once.
    fn poll_last(&mut self) {
        let Some(question) = self.questions.last_mut() else { return };
        if let Poll::Ready(answer) = question.future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            question.future = Box::pin(std::future::ready(answer));
        } else {
            self.world.seen.readings_withheld += 1;
        }
    }

    /// Looks at every answer that has come, and at those that should have.
    pub fn answer(&mut self) -> Verdict {
        self.over |= self.world.disk.crashed() && self.is_poisoned();
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
        for mut question in std::mem::take(&mut self.questions) {
            match question.future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(answer) => self.check_answer(&question, answer)?,
                Poll::Pending => {
                    ensure!(
                        self.world.history.sealed() > self.world.history.flushed(),
                        "no answer to {}",
                        question.asked
                    );
                    open.push(question);
                }
            }
        }
        self.questions = open;
        Ok(())
    }

    fn check_receipt(&mut self, submission: &Submission<'_>, answer: Result<Receipt, EngineError>) -> Verdict {
        match (answer, &submission.fate) {
            (Ok(receipt), Fate::Sealed { needed, at, outcomes }) => {
                let flushed = self.world.history.flushed();
                let may = submission.durability == Durability::Applied || *needed <= flushed;
                ensure!(may, "batch {needed} was acknowledged, and {flushed} batches are flushed");
                let mut found = of_each(&submission.events, &receipt.outcomes);
                for (event, outcome) in submission.events.iter().zip(&mut found) {
                    self.world.seen.overflows += u64::from(outcome.refusal == Some(Refusal::Overflow));
                    // Whether an expired counter still took room is not the model's concern.
                    if matches!(event.change, Change::Sweep { .. }) {
                        outcome.applied = 0;
                    }
                }
                ensure!(found == *outcomes, "got {found:?} instead of {outcomes:?}");
                ensure!(receipt.as_of == *at, "acknowledged for {:?} instead of {at:?}", receipt.as_of);
                self.world.seen.acknowledged += 1;
            }
            (Ok(receipt), Fate::Refused { needed }) => {
                let may = submission.durability == Durability::Applied || *needed <= self.world.history.flushed();
                ensure!(may, "a refused batch was answered before batch {needed}, which it may have seen, was flushed");
                let refused = |outcome: &Outcome| outcome.refusal == Some(Refusal::NoRoom) && outcome.applied == 0;
                let found = of_each(&submission.events, &receipt.outcomes);
                let mut both = submission.events.iter().zip(&found);
                let right = both.all(|(event, outcome)| refused(outcome) != event.is_read());
                ensure!(right, "a batch without room was answered {found:?}");
                self.world.seen.refused_full += 1;
            }
            (Err(EngineError::Unreadable(_)), Fate::Refused { .. }) => {
                ensure!(self.world.disk.crashed(), "the store of a sound disk could not be read");
                self.over = true;
            }
            (Err(EngineError::OutcomeUnknown(_)), Fate::Sealed { needed, .. } | Fate::Refused { needed }) => {
                ensure!(self.is_poisoned() && *needed > self.world.history.flushed(), "batch {needed} is not in doubt");
            }
            (Err(EngineError::Poisoned(_)), Fate::Open) => ensure!(self.is_poisoned(), "refused as if poisoned"),
            (answer, _) => return Err(format!("an answer that does not fit what happened: {answer:?}")),
        }
        Ok(())
    }

    /// Whether a submission that has no answer may still wait for one.
    fn check_waits(&self, submission: &Submission<'_>) -> Verdict {
        let may = match &submission.fate {
            Fate::Open => !self.is_poisoned(),
            Fate::Sealed { needed, .. } | Fate::Refused { needed } => {
                submission.durability == Durability::Flushed
                    && *needed > self.world.history.flushed()
                    && !self.is_poisoned()
            }
        };
        ensure!(may, "a submission still waits for its answer");
        Ok(())
    }

    fn check_answer(&mut self, question: &Question<'_>, answer: Result<Shown, EngineError>) -> Verdict {
        let asked = &question.asked;
        match answer {
            Ok(shown) => {
                ensure!(shown == question.expected, "{asked}: {shown:?} instead of {:?}", question.expected);
                let flushed = self.world.history.flushed();
                ensure!(question.needed <= flushed, "{asked}: {shown:?} was shown, and a crash could take it back");
                self.world.seen.readings += 1;
            }
            Err(EngineError::Poisoned(_)) => ensure!(self.is_poisoned(), "{asked}: refused as if poisoned"),
            Err(EngineError::Unreadable(what)) => {
                ensure!(self.world.disk.crashed(), "{asked}: unreadable on a sound disk: {what}");
                self.over = true;
            }
            Err(error) => return Err(format!("{asked}: {error:?}")),
        }
        Ok(())
    }

    /// Stops as an engine does that is told to: refuses, drains, flushes, checkpoints.
    pub fn stop(&mut self) -> Verdict {
        self.world.disk.set_capacity(u64::MAX);
        for _ in 0..50 {
            self.maintain();
            self.seal()?;
            self.flush()?;
            self.checkpoint()?;
            self.answer()?;
            if self.is_over() {
                return Ok(());
            }
        }
        ensure!(self.submissions.is_empty(), "{} submissions wait after a stop", self.submissions.len());
        self.count_exactly()?;
        if self.is_over() {
            return Ok(());
        }
        self.machine.begin_close();
        let refused = at_once(self.machine.submit(self.one_event()?, Durability::Flushed, |_| {}))?;
        ensure!(refused == Err(EngineError::Closing), "a closing engine said {refused:?}");
        self.world.seen.stops += 1;
        Ok(())
    }

    fn one_event(&self) -> Verdict<tally_core::batch::Events> {
        let mut call = self.machine.events();
        call.add(Key::new("late").map_err(|error| error.to_string())?.as_ref(), 1);
        Ok(call)
    }
}

/// The page as the model sees it, and its last key if others follow it.
fn page_of(model: &Model, now: Millis, request: &PageRequest) -> (Shown, Option<Key>) {
    let follows = |key: &Key| request.after.as_ref().is_none_or(|after| key > after);
    let all = model.all_seen(now).filter(|(key, _)| follows(key));
    let mut matching = all.filter(|(key, _)| key.as_bytes().starts_with(&request.prefix));
    let items: Vec<(Key, i64)> =
        matching.by_ref().take(request.limit).map(|(key, life)| (key.clone(), life.value)).collect();
    let more = matching.next().is_some();
    let last = if more { items.last().map(|(key, _)| key.clone()) } else { None };
    (Shown::Page(items, more), last)
}
