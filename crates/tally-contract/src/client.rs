//! What behaviours call: an engine, or a client of one over a protocol.

use tally_core::batch::Events;
use tally_core::consistency::Consistency;
use tally_core::event::{Change, Details, RequestId};
use tally_core::key::{Key, KeyRef};
use tally_core::ledger::LedgerEntry;
use tally_core::outcome::Receipt;
use tally_core::reading::{Reading, Stats};
use tally_core::surface::{Engine, EngineError, Page, PageRequest, ReadOptions, SubmitOptions};

use crate::{Failure, block_on};

/// One step of a submission, as the caller asks for it.
#[derive(Clone, Debug)]
pub enum CallStep {
    /// One event.
    Event {
        /// The key; a valid one.
        key: Vec<u8>,
        /// What to do.
        change: Change,
        /// Its request id.
        id: Option<String>,
        /// Bounds and other details.
        details: Option<Box<Details>>,
    },
    /// Equal increments with one outcome; see [`Events::add_times`].
    Run {
        /// The key; a valid one.
        key: Vec<u8>,
        /// How much each adds.
        delta: i64,
        /// How many there are.
        times: u32,
    },
    /// Steps that are applied with nothing in between.
    Group(Vec<CallStep>),
}

impl CallStep {
    /// How many outcomes it has.
    #[must_use]
    pub fn outcomes(&self) -> usize {
        match self {
            CallStep::Event { .. } | CallStep::Run { .. } => 1,
            CallStep::Group(steps) => steps.iter().map(CallStep::outcomes).sum(),
        }
    }
}

/// Calls an engine and waits for its answers. Every engine is its own client. A client that cannot express a call
/// returns a [`Failure`]; its host declares the missing [abilities](crate::Ability), so that no behaviour makes such
/// calls.
pub trait EngineClient: Sync {
    /// Submits the steps in order; an error of the engine is the inner result.
    fn send(&self, steps: &[CallStep], options: SubmitOptions) -> Result<Result<Receipt, EngineError>, Failure>;

    /// Reads counters with this consistency, in the order of the keys.
    fn readings(&self, keys: Vec<Key>, consistency: Consistency) -> Result<Vec<Reading>, Failure>;

    /// Reads one counter with its statistics.
    fn statistics(&self, key: Key) -> Result<Stats, Failure>;

    /// Lists counters in key order.
    fn page(&self, page: PageRequest) -> Result<Page, Failure>;

    /// Corrections of a counter, oldest first, after the entry numbered `after`.
    fn entries(&self, key: Key, after: u64, limit: usize) -> Result<Vec<LedgerEntry>, Failure>;

    /// The number of counters.
    fn counters(&self) -> Result<u64, Failure>;

    /// A counter chosen by `number`.
    fn any_counter(&self, number: u64) -> Result<Option<Key>, Failure>;
}

impl<E: Engine> EngineClient for E {
    fn send(&self, steps: &[CallStep], options: SubmitOptions) -> Result<Result<Receipt, EngineError>, Failure> {
        Ok(block_on(self.submit(events(self, steps)?, options)))
    }

    fn readings(&self, keys: Vec<Key>, consistency: Consistency) -> Result<Vec<Reading>, Failure> {
        Ok(block_on(self.read(keys, ReadOptions::new(consistency)))?)
    }

    fn statistics(&self, key: Key) -> Result<Stats, Failure> {
        Ok(block_on(self.stats(key, ReadOptions::new(Consistency::Exact)))?)
    }

    fn page(&self, page: PageRequest) -> Result<Page, Failure> {
        Ok(block_on(self.list(page))?)
    }

    fn entries(&self, key: Key, after: u64, limit: usize) -> Result<Vec<LedgerEntry>, Failure> {
        Ok(block_on(self.ledger(key, after, limit))?)
    }

    fn counters(&self) -> Result<u64, Failure> {
        Ok(block_on(self.count(ReadOptions::new(Consistency::Exact)))?)
    }

    fn any_counter(&self, number: u64) -> Result<Option<Key>, Failure> {
        Ok(block_on(self.sample(number))?)
    }
}

/// The steps as a submission to an engine.
pub(crate) fn events<E: Engine>(engine: &E, steps: &[CallStep]) -> Result<Events, Failure> {
    let mut events = engine.events();
    steps.iter().try_for_each(|step| put(&mut events, step))?;
    Ok(events)
}

fn put(events: &mut Events, step: &CallStep) -> Result<(), Failure> {
    match step {
        CallStep::Event { key, change, id, details } => {
            let key = KeyRef::new(key)?;
            let id = id.as_ref().map(|id| RequestId::new(key, id.as_bytes())).transpose()?;
            events.push(key, change.clone(), id, details.as_deref().cloned());
        }
        CallStep::Run { key, delta, times } => events.add_times(KeyRef::new(key)?, *delta, *times),
        CallStep::Group(steps) => {
            let mut filled = Ok(());
            events.group(|events| filled = steps.iter().try_for_each(|step| put(events, step)));
            filled?;
        }
    }
    Ok(())
}
