//! A partition beside a store that is a plain map and a journal that is a plain list: everything an engine does with
//! a partition, without an engine.

use std::collections::{BTreeMap, BTreeSet};

use tally_core::batch::{Batch, Combiner, Events, decode, encode};
use tally_core::counter::CounterState;
use tally_core::event::Change;
use tally_core::key::{Key, KeyRef};
use tally_core::ledger::LedgerEntry;
use tally_core::missing_keys::MissingKeys;
use tally_core::outcome::{Outcome, Outcomes, Refusal};
use tally_core::partition::{Capture, Partition, Probe};
use tally_core::record::{self, Meta, Records};
use tally_core::time::{Millis, Position};
use tally_sim::model::{Event, Model, of_each, push_all};

pub struct Beside {
    pub partition: Partition,
    store: BTreeMap<Vec<u8>, Vec<u8>>,
    journal: Vec<Vec<u8>>,
    /// Batches that the store reflects.
    stored: usize,
    underway: Option<Underway>,
}

/// A capture under way and what it must come to.
struct Underway {
    capture: Capture,
    records: Records,
    batches: usize,
    expected: Model,
}

impl Beside {
    pub fn new(seed: u64) -> Beside {
        Beside {
            partition: Partition::new(seed),
            store: BTreeMap::new(),
            journal: Vec::new(),
            stored: 0,
            underway: None,
        }
    }

    pub fn apply(&mut self, at: Millis, events: &[Event]) -> Vec<Outcome> {
        let mut call = Events::new(self.partition.seed());
        push_all(events, &mut call);
        let (mut combiner, mut placed) = (Combiner::default(), Vec::new());
        combiner.gather(&call, &mut placed);
        let mut payload = Vec::new();
        encode(combiner.batch(), at, &mut payload);
        self.restore(std::slice::from_ref(combiner.batch()));
        let mut outcomes = Outcomes::default();
        if combiner.batch().is_read_only() {
            let stored = |key: KeyRef<'_>| stored(&self.store, key.as_bytes());
            self.partition.answer(at, combiner.batch(), Refusal::NoRoom, stored, &mut outcomes);
        } else {
            self.journal.push(payload);
            self.partition.apply(at, combiner.batch(), &mut outcomes);
        }
        let found = call.outcomes(|slot| combiner.outcome_of(placed[slot], &outcomes));
        of_each(events, &found.collect::<Vec<_>>())
    }

    fn restore(&mut self, batches: &[Batch]) {
        let mut wanted = MissingKeys::default();
        for batch in batches {
            self.partition.missing(batch, Position(0), &mut wanted);
        }
        for key in wanted.iter() {
            if let Some(value) = self.store.get(key) {
                self.partition.restore(key, value).unwrap();
            }
        }
    }

    pub fn begin_capture(&mut self, expected: &Model) {
        if self.underway.is_none() {
            let capture = self.partition.begin_capture();
            let (records, batches) = (Records::default(), self.journal.len());
            self.underway = Some(Underway { capture, records, batches, expected: expected.clone() });
        }
    }

    pub fn capture_slice(&mut self, max: usize) {
        if let Some(underway) = &mut self.underway {
            take_slice(&mut self.partition, max, &mut underway.records);
        }
    }

    /// Finishes the capture and puts it into the store, which must then be what the state was when it began.
    pub fn commit(&mut self) -> Result<(), String> {
        let Some(Underway { capture, mut records, batches, expected }) = self.underway.take() else { return Ok(()) };
        while take_slice(&mut self.partition, 3, &mut records) {}
        capture
            .records(|put| {
                put(&mut records);
                Ok::<(), std::convert::Infallible>(())
            })
            .unwrap();
        records.sort();
        let keys: Vec<&[u8]> = records.iter().map(|(key, _)| key).collect();
        if keys.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err("a key was captured twice".to_owned());
        }
        // So little memory that there are about as many shares as ids.
        let mut last = Vec::new();
        capture.requests(40, |key, value| {
            if key <= last.as_slice() {
                return Err(format!("{key:?} was captured behind {last:?}"));
            }
            last = key.to_vec();
            self.store.insert(key.to_vec(), value.to_vec());
            Ok(())
        })?;
        for (key, value) in records.iter() {
            match value {
                Some(value) => self.store.insert(key.to_vec(), value.to_vec()),
                None => self.store.remove(key),
            };
        }
        self.stored = batches;
        self.partition.capture_committed();
        self.store_is(&expected, capture.at())
    }

    pub fn abandon(&mut self) {
        if self.underway.take().is_some() {
            self.partition.capture_abandoned();
        }
    }

    /// Lets go of everything that may go.
    pub fn evict(&mut self) {
        let key = Key::new("any").unwrap();
        self.partition.make_room_for_one(key.as_ref(), 0);
    }

    /// Lets go of request ids that the store holds.
    pub fn drop_ids(&mut self) {
        self.partition.make_room(&Batch::default(), 0);
    }

    /// Starts again from the store and the rest of the journal.
    pub fn restart(&mut self, seed: u64) {
        self.underway = None;
        self.partition = if self.store.is_empty() {
            Partition::new(seed)
        } else {
            Partition::beside_store(seed, self.meta(), 1 << 20)
        };
        let mut batches = Vec::new();
        let mut times = Vec::new();
        for payload in &self.journal[self.stored..] {
            let mut batch = Batch::default();
            times.push(decode(payload, seed, &mut batch).unwrap());
            batches.push(batch);
        }
        self.restore(&batches);
        for (at, batch) in times.into_iter().zip(&batches) {
            self.partition.apply(at, batch, &mut Outcomes::default());
        }
    }

    /// Removes up to `max` counters that have expired at `now`. Expiries are in the store by time.
    pub fn sweep(&mut self, now: Millis, max: usize) -> Vec<Event> {
        let due = self.store.keys().filter_map(|key| record::expiry_of(key)).take_while(|(at, _)| *at <= now);
        let sweep = |(expires_at, key): (Millis, KeyRef<'_>)| Event {
            change: Change::Sweep { expires_at },
            ..Event::add(&key.to_key(), 0)
        };
        let sweeps: Vec<Event> = due.take(max).map(sweep).collect();
        self.apply(now, &sweeps);
        sweeps
    }

    fn meta(&self) -> Meta {
        let meta =
            record::read_meta(&self.store[record::META_KEY], || Err("the number of expiring counters is missing"));
        meta.unwrap().unwrap()
    }

    /// The counter, unless it has expired at `now`.
    pub fn counter(&self, key: &Key, now: Millis) -> Option<CounterState> {
        let held = if self.partition.is_missing(key.as_ref()) {
            stored(&self.store, key.as_bytes())
        } else {
            self.partition.state_of(key.as_ref())
        };
        held.filter(|held| !held.is_expired(now))
    }

    fn ledger(&self, key: &Key) -> Vec<LedgerEntry> {
        let from = record::ledger_key(key.as_ref(), 0);
        let stored = self.store.range(from..).take_while(|(stored, _)| record::is_ledger_of(stored, key.as_ref()));
        let stored = stored.map(|(_, value)| record::read_ledger(value).unwrap());
        let all: BTreeMap<u64, LedgerEntry> =
            stored.chain(self.partition.unsaved_ledger(key).cloned()).map(|entry| (entry.seq, entry)).collect();
        all.into_values().collect()
    }

    /// The keys a listing finds: those the store lacks, and those it has that were not removed.
    fn listed(&self) -> BTreeSet<Key> {
        let mut keys = BTreeSet::new();
        let mut from = Some(0);
        while let Some(at) = from {
            // Of a time before any expiry: those that take room count, too.
            from = self.partition.created_keys(at, 2, Millis(0), b"", b"", &mut |key| {
                keys.insert(Key::new(key).unwrap());
            });
        }
        let stored = self.store.keys().filter_map(|key| record::counter_of(key)).map(|key| key.to_key());
        keys.extend(stored.filter(|key| !self.partition.is_removed(key.as_ref())));
        keys
    }

    /// Says in what the state differs from the model, if in anything.
    pub fn is(&self, model: &Model, keys: &[Key]) -> Result<(), String> {
        for key in keys {
            let (found, expected) = (self.counter(key, model.clock()), model.counters.get(key));
            compare(key, found.as_ref(), expected, model.clock())?;
            if self.partition.is_known_absent(key) && expected.is_some() {
                return Err(format!("{key:?} is taken to be absent"));
            }
            if self.ledger(key) != model.ledger.get(key).cloned().unwrap_or_default() {
                return Err(format!("the ledger of {key:?} is {:?}", self.ledger(key)));
            }
        }
        let expected: BTreeSet<Key> = model.counters.keys().cloned().collect();
        let mut listed = self.listed();
        if listed.len() as u64 != self.partition.counters() {
            return Err(format!("{} counters instead of {listed:?}", self.partition.counters()));
        }
        let has_expiry = |key: &&Key| self.counter(key, Millis(0)).is_some_and(|held| held.expires_at.is_some());
        let expiring = listed.iter().filter(has_expiry).count() as u64;
        if expiring != self.partition.expiring() {
            return Err(format!("{} counters expire instead of {expiring}", self.partition.expiring()));
        }
        listed.retain(|key| self.counter(key, model.clock()).is_some());
        if listed != expected {
            return Err(format!("listed are {listed:?} instead of {expected:?}"));
        }
        for from in 0..self.partition.cells() {
            if let Probe::Found(key) = self.partition.probe(from, usize::MAX, model.clock())
                && !expected.contains(&key)
            {
                return Err(format!("{key:?} is found although it does not exist"));
            }
        }
        Ok(())
    }

    /// Says in what the store differs from the model, if in anything.
    fn store_is(&self, model: &Model, clock: Millis) -> Result<(), String> {
        let counters = self.store.iter().filter_map(|(key, value)| Some((record::counter_of(key)?.to_key(), value)));
        let mut counters: BTreeMap<Key, CounterState> =
            counters.map(|(key, value)| (key, record::read_counter(value).unwrap())).collect();
        let expiring = counters.values().filter(|held| held.expires_at.is_some()).count() as u64;
        let meta = Meta { clock, counters: counters.len() as u64, expiring };
        if self.meta() != meta {
            return Err(format!("stored with {:?} instead of {meta:?}", self.meta()));
        }
        for (key, held) in &counters {
            let listed = |at| self.store.get(&record::expiry_key(at, key.as_ref()));
            if held.expires_at.is_some_and(|at| listed(at) != Some(&Vec::new())) {
                return Err(format!("nothing in the store says when {key:?} expires"));
            }
        }
        counters.retain(|_, held| !held.is_expired(model.clock()));
        let keys: BTreeSet<&Key> = counters.keys().chain(model.counters.keys()).collect();
        for key in keys {
            compare(key, counters.get(key), model.counters.get(key), model.clock())?;
        }
        for (key, entries) in &model.ledger {
            let stored = |seq| self.store.get(&record::ledger_key(key.as_ref(), seq));
            let found = (1..).map_while(stored).map(|value| record::read_ledger(value).unwrap());
            if found.collect::<Vec<_>>() != *entries {
                return Err(format!("the stored ledger of {key:?} is not what was captured"));
            }
            let head = self.store.get(&record::head_key(key.as_ref())).map(|value| record::read_head(value).unwrap());
            let last = entries.last().unwrap();
            if head.map(|head| (head.seq, head.hash)) != Some((last.seq, last.hash)) {
                return Err(format!("the stored chain of {key:?} ends at {head:?}"));
            }
        }
        for (name, answered) in &model.requests {
            let stored = self.store.get(&record::request_key(answered.payload.request_id().unwrap())[..]);
            let first = stored.map(|value| record::read_request(value).unwrap());
            let replayed = first.map(|first| Outcome { duplicate: Some(false), ..first.replay() });
            if model.remembers(name) && replayed != Some(answered.outcome) {
                return Err(format!("the stored answer to {name:?} is {replayed:?}"));
            }
        }
        Ok(())
    }
}

fn stored(store: &BTreeMap<Vec<u8>, Vec<u8>>, key: &[u8]) -> Option<CounterState> {
    store.get(&record::counter_key(key)).map(|value| record::read_counter(value).unwrap())
}

fn compare(
    key: &Key,
    found: Option<&CounterState>,
    expected: Option<&tally_sim::model::Life>,
    now: Millis,
) -> Result<(), String> {
    match (found, expected) {
        (None, None) => Ok(()),
        (Some(found), Some(expected)) => expected.compare(found, now).map_err(|what| format!("{key:?}: {what}")),
        _ => Err(format!("{key:?}: found {found:?}, expected {expected:?}")),
    }
}

fn take_slice(partition: &mut Partition, max: usize, records: &mut Records) -> bool {
    let mut slice = Records::default();
    let more = partition.capture_slice(max, &mut slice);
    records.append(&mut slice);
    more
}
