//! The batches so far: which were sealed, and which must survive a crash.

use std::collections::{BTreeMap, BTreeSet};

use tally_core::event::Change;
use tally_core::key::Key;
use tally_core::outcome::Outcome;
use tally_core::time::Millis;

use crate::model::{Event, Model};
use crate::workload::SUBMISSIONS;

/// A batch that is sealed but not known to be durable.
#[derive(Clone, Debug)]
struct SealedBatch {
    at: Millis,
    submissions: Vec<Vec<Event>>,
    /// Counters it changed.
    changed: BTreeSet<Key>,
    /// The last ledger entry of each changed counter.
    ledger_ends: BTreeMap<Key, u64>,
}

impl SealedBatch {
    /// Submissions that increment the counter of submissions: all except read-only ones.
    fn counted_submissions(&self) -> usize {
        self.submissions.iter().filter(|events| !events.iter().all(Event::is_read)).count()
    }
}

/// The batches so far and the resulting states.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// The state after every flushed batch, which no crash may undo.
    durable: Model,
    /// The state after every sealed batch.
    applied: Model,
    tail: Vec<SealedBatch>,
    /// Batches flushed.
    flushed: u64,
}

impl History {
    /// The state after every sealed batch.
    #[must_use]
    pub fn applied(&self) -> &Model {
        &self.applied
    }

    /// Batches flushed so far.
    #[must_use]
    pub fn flushed(&self) -> u64 {
        self.flushed
    }

    /// Batches sealed so far.
    #[must_use]
    pub fn sealed(&self) -> u64 {
        self.flushed + self.tail.len() as u64
    }

    /// Records a sealed batch and returns the expected outcomes of each submission. A read-only batch is not recorded.
    pub fn seal(&mut self, at: Millis, submissions: Vec<Vec<Event>>) -> Vec<Vec<Outcome>> {
        let mut changed = BTreeSet::new();
        let outcomes = submissions.iter().map(|events| {
            let outcomes = events.iter().map(|event| {
                let outcome = self.applied.apply(at, event);
                let may_change = !event.is_read() && !matches!(event.change, Change::Guard { .. });
                if outcome.refusal.is_none() && !outcome.is_duplicate() && may_change {
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
        self.tail.push(SealedBatch { at, submissions, changed, ledger_ends });
        outcomes
    }

    /// Records that every sealed batch was flushed.
    pub fn flush(&mut self) {
        let all = self.tail.len();
        self.make_durable(all);
    }

    /// How many batches must be flushed before a read of these counters may be answered.
    #[must_use]
    pub fn needed(&self, concerns: impl Fn(&Key) -> bool) -> u64 {
        let newest = self.tail.iter().rposition(|batch| batch.changed.iter().any(&concerns));
        newest.map_or(0, |place| self.flushed + place as u64 + 1)
    }

    /// How many batches must be flushed before the ledger of a counter may be returned up to this entry.
    #[must_use]
    pub fn needed_for_ledger(&self, key: &Key, seq: u64) -> u64 {
        let durable = self.durable.ledger.get(key).map_or(0, |entries| entries.len() as u64);
        let made = self.tail.iter().position(|batch| batch.ledger_ends.get(key).is_some_and(|&end| end >= seq));
        made.filter(|_| durable < seq).map_or(0, |place| self.flushed + place as u64 + 1)
    }

    /// Reconciles with the number of submissions found after a crash. They must be all flushed batches, then a prefix
    /// of the unflushed ones, each complete. The rest are dropped from the history; their requests are returned.
    pub fn survived(&mut self, found: i64) -> Result<Vec<Event>, String> {
        let key = Key::new(SUBMISSIONS).map_err(|error| error.to_string())?;
        let mut count = self.durable.counters.get(&key).map_or(0, |counter| counter.value);
        let flushed = count;
        let mut batches = 0;
        while count < found && batches < self.tail.len() {
            count += self.tail[batches].counted_submissions() as i64;
            batches += 1;
        }
        if count != found {
            let sizes: Vec<usize> = self.tail.iter().map(SealedBatch::counted_submissions).collect();
            return Err(format!("{found} submissions survived; {flushed} were flushed, batches of {sizes:?} followed"));
        }
        let lost = self.tail[batches..].iter().flat_map(|batch| batch.submissions.concat());
        let lost = lost.filter(|event| event.id.is_some()).collect();
        self.make_durable(batches);
        self.tail.clear();
        self.applied = self.durable.clone();
        Ok(lost)
    }

    fn make_durable(&mut self, batches: usize) {
        for batch in self.tail.drain(..batches) {
            for event in batch.submissions.iter().flatten() {
                self.durable.apply(batch.at, event);
            }
            self.flushed += 1;
        }
    }
}
