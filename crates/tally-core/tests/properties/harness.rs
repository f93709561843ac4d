//! A partition with a map as its store and a list as its journal: everything an engine does with a partition, without
//! an engine.

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
use tally_sim::call::{outcome_per_event, push_all};
use tally_sim::model::{Event, Model};

pub struct Harness {
    pub partition: Partition,
    store: BTreeMap<Vec<u8>, Vec<u8>>,
    journal: Vec<Vec<u8>>,
    /// Batches that the store reflects.
    stored: usize,
    capture: Option<CaptureInProgress>,
}

/// A capture in progress and the state it must contain.
struct CaptureInProgress {
    capture: Capture,
    records: Records,
    batches: usize,
    expected: Model,
}

impl Harness {
    pub fn new(seed: u64) -> Harness {
        Harness {
            partition: Partition::new(seed),
            store: BTreeMap::new(),
            journal: Vec::new(),
            stored: 0,
            capture: None,
        }
    }

    pub fn apply(&mut self, at: Millis, events: &[Event]) -> Vec<Outcome> {
        let mut call = Events::new(self.partition.seed());
        push_all(events, &mut call);
        let (mut combiner, mut placed) = (Combiner::default(), Vec::new());
        combiner.combine(&call, &mut placed);
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
        outcome_per_event(events, &found.collect::<Vec<_>>())
    }

    fn restore(&mut self, batches: &[Batch]) {
        let mut missing = MissingKeys::default();
        for batch in batches {
            self.partition.missing(batch, Position(0), &mut missing);
        }
        for key in missing.iter() {
            if let Some(value) = self.store.get(key) {
                self.partition.restore(key, value).unwrap();
            }
        }
    }

    pub fn begin_capture(&mut self, expected: &Model) {
        if self.capture.is_none() {
            let capture = self.partition.begin_capture();
            let (records, batches) = (Records::default(), self.journal.len());
            self.capture = Some(CaptureInProgress { capture, records, batches, expected: expected.clone() });
        }
    }

    pub fn capture_slice(&mut self, max: usize) {
        if let Some(capture) = &mut self.capture {
            take_slice(&mut self.partition, max, &mut capture.records);
        }
    }

    /// Finishes the capture and writes it to the store, which must then equal the state when the capture began.
    pub fn commit(&mut self) -> Result<(), String> {
        let Some(CaptureInProgress { capture, mut records, batches, expected }) = self.capture.take() else {
            return Ok(());
        };
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
        // So little memory that there are about as many ranges as ids.
        let mut last = Vec::new();
        capture.requests(40, |key, value| {
            if key <= last.as_slice() {
                return Err(format!("{key:?} was captured after {last:?}"));
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
        self.check_store(&expected, capture.at())
    }

    pub fn abandon(&mut self) {
        if self.capture.take().is_some() {
            self.partition.capture_abandoned();
        }
    }

    /// The capturing thread panics: the capture is neither committed nor abandoned.
    pub fn leave_capture(&mut self) {
        self.capture = None;
    }

    /// Evicts every counter that can be evicted.
    pub fn evict(&mut self) {
        let key = Key::new("any").unwrap();
        self.partition.make_room_for_one(key.as_ref(), 0);
    }

    /// Evicts request ids that are in the store.
    pub fn evict_ids(&mut self) {
        self.partition.make_room(&Batch::default(), 0);
    }

    /// Restarts from the store and the journal after it.
    pub fn restart(&mut self, seed: u64) {
        self.capture = None;
        self.partition = if self.store.is_empty() {
            Partition::new(seed)
        } else {
            Partition::with_store(seed, self.meta(), 1 << 20)
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

    /// Sweeps up to `max` expiry records that are due at `now`.
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
        let state = if self.partition.is_missing(key.as_ref()) {
            stored(&self.store, key.as_bytes())
        } else {
            self.partition.state_of(key.as_ref())
        };
        state.filter(|state| !state.is_expired(now))
    }

    fn ledger(&self, key: &Key) -> Vec<LedgerEntry> {
        let from = record::ledger_key(key.as_ref(), 0);
        let stored = self.store.range(from..).take_while(|(stored, _)| record::is_ledger_of(stored, key.as_ref()));
        let stored = stored.map(|(_, value)| record::read_ledger(value).unwrap());
        let all: BTreeMap<u64, LedgerEntry> =
            stored.chain(self.partition.unsaved_ledger(key).cloned()).map(|entry| (entry.seq, entry)).collect();
        all.into_values().collect()
    }

    /// The keys that a listing finds: those not in the store yet, and those in the store that were not removed.
    fn listed(&self) -> BTreeSet<Key> {
        let mut keys = BTreeSet::new();
        let mut from = Some(0);
        while let Some(at) = from {
            // A time before any expiry, to include expired counters that are not removed yet.
            from = self.partition.created_keys(at, 2, Millis(0), b"", b"", &mut |key| {
                keys.insert(Key::new(key).unwrap());
            });
        }
        let stored = self.store.keys().filter_map(|key| record::counter_of(key)).map(|key| key.to_key());
        keys.extend(stored.filter(|key| !self.partition.is_removed(key.as_ref())));
        keys
    }

    /// Compares the state with the model.
    pub fn check(&self, model: &Model, keys: &[Key]) -> Result<(), String> {
        for key in keys {
            let (found, expected) = (self.counter(key, model.clock()), model.counters.get(key));
            compare(key, found.as_ref(), expected, model.clock())?;
            if self.partition.is_known_absent(key) && expected.is_some() {
                return Err(format!("{key:?} is reported as absent"));
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
        let has_expiry = |key: &&Key| self.counter(key, Millis(0)).is_some_and(|state| state.expires_at.is_some());
        let expiring = listed.iter().filter(has_expiry).count() as u64;
        if expiring != self.partition.expiring() {
            return Err(format!("{} counters expire instead of {expiring}", self.partition.expiring()));
        }
        listed.retain(|key| self.counter(key, model.clock()).is_some());
        if listed != expected {
            return Err(format!("listed {listed:?} instead of {expected:?}"));
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

    /// Compares the store with the model.
    fn check_store(&self, model: &Model, clock: Millis) -> Result<(), String> {
        let counters = self.store.iter().filter_map(|(key, value)| Some((record::counter_of(key)?.to_key(), value)));
        let mut counters: BTreeMap<Key, CounterState> =
            counters.map(|(key, value)| (key, record::read_counter(value).unwrap())).collect();
        let expiring = counters.values().filter(|state| state.expires_at.is_some()).count() as u64;
        let meta = Meta { clock, counters: counters.len() as u64, expiring };
        if self.meta() != meta {
            return Err(format!("stored {:?} instead of {meta:?}", self.meta()));
        }
        for (key, state) in &counters {
            let listed = |at| self.store.get(&record::expiry_key(at, key.as_ref()));
            if state.expires_at.is_some_and(|at| listed(at) != Some(&Vec::new())) {
                return Err(format!("the store has no expiry record for {key:?}"));
            }
        }
        counters.retain(|_, state| !state.is_expired(model.clock()));
        let keys: BTreeSet<&Key> = counters.keys().chain(model.counters.keys()).collect();
        for key in keys {
            compare(key, counters.get(key), model.counters.get(key), model.clock())?;
        }
        for (key, entries) in &model.ledger {
            let stored = |seq| self.store.get(&record::ledger_key(key.as_ref(), seq));
            let found = (1..).map_while(stored).map(|value| record::read_ledger(value).unwrap());
            if found.collect::<Vec<_>>() != *entries {
                return Err(format!("the stored ledger of {key:?} differs from the captured one"));
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
    expected: Option<&tally_sim::model::ModelCounter>,
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
