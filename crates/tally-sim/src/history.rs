//! What happened so far, as the outside knows it: which batches were sealed, and which of them must survive.

use std::collections::{BTreeMap, BTreeSet};

use tally_core::key::Key;
use tally_core::outcome::Outcome;
use tally_core::time::Millis;

use crate::model::{Event, Model};
use crate::workload::SUBMISSIONS;

/// A batch that was sealed and is not known to be durable.
#[derive(Clone, Debug)]
struct Sealed {
    at: Millis,
    submissions: Vec<Vec<Event>>,
    /// Counters that it changed.
    changed: BTreeSet<Key>,
    /// Of those the number of the last ledger entry afterwards.
    ledger_ends: BTreeMap<Key, u64>,
}

impl Sealed {
    /// Submissions that the counter of submissions knows: those that do more than look.
    fn counted(&self) -> usize {
        self.submissions.iter().filter(|events| !events.iter().all(Event::is_read)).count()
    }
}

/// The batches so far and the states they lead to.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// After every batch that was flushed: nothing may take this back.
    durable: Model,
    /// After every batch that was sealed.
    applied: Model,
    tail: Vec<Sealed>,
    /// Batches flushed.
    flushed: u64,
}

impl History {
    /// The state after every sealed batch: what memory must hold.
    #[must_use]
    pub fn applied(&self) -> &Model {
        &self.applied
    }

    /// Batches flushed so far.
    #[must_use]
    pub fn flushed(&self) -> u64 {
        self.flushed
    }

    /// Batches sealed so far; the next gets this number.
    #[must_use]
    pub fn sealed(&self) -> u64 {
        self.flushed + self.tail.len() as u64
    }

    /// A batch was sealed; returns the outcomes that each of its submissions must get. One that only looks leaves no
    /// trace.
    pub fn seal(&mut self, at: Millis, submissions: Vec<Vec<Event>>) -> Vec<Vec<Outcome>> {
        let mut changed = BTreeSet::new();
        let outcomes = submissions.iter().map(|events| {
            let outcomes = events.iter().map(|event| {
                let outcome = self.applied.apply(at, event);
                if outcome.refusal.is_none() && !outcome.is_duplicate() && !event.is_read() {
                    changed.insert(event.key.clone());
                }
                outcome
            });
            outcomes.collect()
        });
        let outcomes = outcomes.collect();
        if submissions.iter().flatten().all(Event::is_read) {
            return outcomes;
        }
        let end = |key: &Key| Some((key.clone(), self.applied.ledger.get(key)?.len() as u64));
        let ledger_ends = changed.iter().filter_map(end).collect();
        self.tail.push(Sealed { at, submissions, changed, ledger_ends });
        outcomes
    }

    /// Everything sealed was flushed.
    pub fn flush(&mut self) {
        let all = self.tail.len();
        self.settle(all);
    }

    /// How many batches must be flushed before what concerns these counters may be shown.
    #[must_use]
    pub fn needed(&self, concerns: impl Fn(&Key) -> bool) -> u64 {
        let newest = self.tail.iter().rposition(|sealed| sealed.changed.iter().any(&concerns));
        newest.map_or(0, |place| self.flushed + place as u64 + 1)
    }

    /// How many batches must be flushed before the ledger of a counter may be shown up to this entry.
    #[must_use]
    pub fn needed_for_ledger(&self, key: &Key, seq: u64) -> u64 {
        let durable = self.durable.ledger.get(key).map_or(0, |entries| entries.len() as u64);
        let made = self.tail.iter().position(|sealed| sealed.ledger_ends.get(key).is_some_and(|&end| end >= seq));
        made.filter(|_| durable < seq).map_or(0, |place| self.flushed + place as u64 + 1)
    }

    /// After a crash so many submissions were found. They must be those of all flushed batches and of whole batches
    /// that follow; from here on these are what happened. Returns the requests that were lost.
    pub fn survived(&mut self, found: i64) -> Result<Vec<Event>, String> {
        let key = Key::new(SUBMISSIONS).map_err(|error| error.to_string())?;
        let mut count = self.durable.counters.get(&key).map_or(0, |life| life.value);
        let flushed = count;
        let mut batches = 0;
        while count < found && batches < self.tail.len() {
            count += self.tail[batches].counted() as i64;
            batches += 1;
        }
        if count != found {
            let sizes: Vec<usize> = self.tail.iter().map(Sealed::counted).collect();
            return Err(format!("{found} submissions survived; {flushed} were flushed, batches of {sizes:?} followed"));
        }
        let lost = self.tail[batches..].iter().flat_map(|sealed| sealed.submissions.concat());
        let lost = lost.filter(|event| event.id.is_some()).collect();
        self.settle(batches);
        self.tail.clear();
        self.applied = self.durable.clone();
        Ok(lost)
    }

    fn settle(&mut self, batches: usize) {
        for sealed in self.tail.drain(..batches) {
            for event in sealed.submissions.iter().flatten() {
                self.durable.apply(sealed.at, event);
            }
            self.flushed += 1;
        }
    }
}
