//! A builder for submissions: `engine.call().add("a", 1).set("a", 7).send()`.

use tally_core::batch::Events;
use tally_core::consistency::Consistency;
use tally_core::event::{Bounds, Change, Condition, Correction, Deadline, Details, Expiry, ExpiryCondition, Field};
use tally_core::key::KeyRef;
use tally_core::outcome::{Outcome, Receipt};
use tally_core::surface::{Engine, EngineError, SubmitOptions};
use tally_core::time::Millis;

use crate::client::events;
use crate::{CallStep, EngineClient, Failure};

/// A submission under construction.
pub struct Call<'e, E> {
    caller: &'e E,
    steps: Vec<CallStep>,
    options: SubmitOptions,
    fault: Option<Failure>,
}

/// A correction by this suite.
#[must_use]
pub(crate) fn why(reason: &str) -> Correction {
    // Reasons in this suite are short.
    Correction::new("contract", reason).unwrap_or_default()
}

impl<'e, E: EngineClient> Call<'e, E> {
    pub(crate) fn new(caller: &'e E, options: SubmitOptions) -> Self {
        Call { caller, steps: Vec::new(), options, fault: None }
    }

    /// Acknowledged as soon as it is applied.
    #[must_use]
    pub fn best_effort(mut self) -> Self {
        self.options.consistency = Consistency::BestEffort;
        self
    }

    fn push(&mut self, step: CallStep) {
        if let CallStep::Event { key, .. } | CallStep::Run { key, .. } = &step
            && let Err(error) = KeyRef::new(key)
        {
            self.fault = self.fault.take().or(Some(error.into()));
        }
        self.steps.push(step);
    }

    /// Adds any event.
    #[must_use]
    pub fn event(mut self, key: impl AsRef<[u8]>, change: Change, id: Option<&str>, details: Option<Details>) -> Self {
        let (key, id) = (key.as_ref().to_vec(), id.map(str::to_owned));
        self.push(CallStep::Event { key, change, id, details: details.map(Box::new) });
        self
    }

    /// Adds a plain increment or decrement.
    #[must_use]
    pub fn add(self, key: impl AsRef<[u8]>, delta: i64) -> Self {
        self.event(key, Change::Add(delta), None, None)
    }

    /// Adds `times` separate increments, each with its own outcome.
    #[must_use]
    pub fn add_times(self, key: impl AsRef<[u8]>, delta: i64, times: usize) -> Self {
        (0..times).fold(self, |call, _| call.add(&key, delta))
    }

    /// Adds `times` increments as one run with one outcome; see [`Events::add_times`].
    #[must_use]
    pub fn add_together(mut self, key: impl AsRef<[u8]>, delta: i64, times: u32) -> Self {
        self.push(CallStep::Run { key: key.as_ref().to_vec(), delta, times });
        self
    }

    /// Adds an increment with a request id.
    #[must_use]
    pub fn add_once(self, id: &str, key: impl AsRef<[u8]>, delta: i64) -> Self {
        self.event(key, Change::Add(delta), Some(id), None)
    }

    /// Adds an increment with bounds.
    #[must_use]
    pub fn add_within(self, key: impl AsRef<[u8]>, delta: i64, bounds: Bounds) -> Self {
        self.event(key, Change::Add(delta), None, Some(Details { bounds: Some(bounds), ..Details::default() }))
    }

    /// Sets the value.
    #[must_use]
    pub fn set(self, key: impl AsRef<[u8]>, value: i64) -> Self {
        let when = Condition::Always;
        self.event(key, Change::Set { value, when, expiry: Expiry::Keep, why: why("set") }, None, None)
    }

    /// Compare-and-set.
    #[must_use]
    pub fn swap(self, key: impl AsRef<[u8]>, expected: i64, value: i64) -> Self {
        let when = Condition::Equals(expected);
        self.event(key, Change::Set { value, when, expiry: Expiry::Keep, why: why("swap") }, None, None)
    }

    /// Sets the value to zero.
    #[must_use]
    pub fn reset(self, key: impl AsRef<[u8]>) -> Self {
        self.event(key, Change::Reset(why("reset")), None, None)
    }

    /// Adds a delta as a correction.
    #[must_use]
    pub fn adjust(self, key: impl AsRef<[u8]>, delta: i64) -> Self {
        self.event(key, Change::Adjust { delta, why: why("adjust") }, None, None)
    }

    /// Removes the counter.
    #[must_use]
    pub fn delete(self, key: impl AsRef<[u8]>) -> Self {
        self.event(key, Change::Delete(why("delete")), None, None)
    }

    /// Sets the value if a condition is met, with an effect on the expiry.
    #[must_use]
    pub fn set_when(self, key: impl AsRef<[u8]>, value: i64, when: Condition, expiry: Expiry) -> Self {
        self.event(key, Change::Set { value, when, expiry, why: why("set") }, None, None)
    }

    /// Sets or removes the expiry.
    #[must_use]
    pub fn expire(self, key: impl AsRef<[u8]>, at: Option<Millis>, when: ExpiryCondition) -> Self {
        self.event(key, Change::Expire { at: at.map(Deadline::At), when }, None, None)
    }

    /// Sets the expiry to this many milliseconds after the batch.
    #[must_use]
    pub fn expire_after(self, key: impl AsRef<[u8]>, millis: u64) -> Self {
        let (at, when) = (Some(Deadline::After(millis)), ExpiryCondition::Always);
        self.event(key, Change::Expire { at, when }, None, None)
    }

    /// Reads the counter at this point in the submission.
    #[must_use]
    pub fn read(self, key: impl AsRef<[u8]>, field: Field) -> Self {
        self.event(key, Change::Read(field), None, None)
    }

    /// The events that `fill` adds form a group.
    #[must_use]
    pub fn group(mut self, fill: impl FnOnce(Self) -> Self) -> Self {
        let filled = fill(Call { caller: self.caller, steps: Vec::new(), options: self.options, fault: None });
        self.fault = self.fault.take().or(filled.fault);
        self.steps.push(CallStep::Group(filled.steps));
        self
    }

    /// Submits and waits; an error of the engine is the inner result.
    pub fn submit(self) -> Result<Result<Receipt, EngineError>, Failure> {
        self.fault.map_or(Ok(()), Err)?;
        self.caller.send(&self.steps, self.options)
    }

    /// Submits and waits for all outcomes.
    pub fn send(self) -> Result<Vec<Outcome>, Failure> {
        let expected = self.steps.iter().map(CallStep::outcomes).sum::<usize>();
        let receipt = self.submit()??;
        assert_eq!(receipt.outcomes.len(), expected, "one outcome per event or run");
        Ok(receipt.outcomes)
    }

    /// Submits one event and waits for its outcome.
    pub fn one(self) -> Result<Outcome, Failure> {
        let outcomes = self.send()?;
        let [outcome] = outcomes[..] else { return Err("a call of one event".into()) };
        Ok(outcome)
    }
}

impl<E: Engine> Call<'_, E> {
    /// The events, for behaviours that poll the future themselves.
    pub fn into_events(self) -> Result<Events, Failure> {
        self.fault.map_or(Ok(()), Err)?;
        events(self.caller, &self.steps)
    }
}
