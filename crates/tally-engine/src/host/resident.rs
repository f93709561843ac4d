//! A partition that is a cache over a store: records that memory lacks are fetched with the partition unlocked.
//!
//! A slow disk must not delay calls whose records are in memory. So missing keys are listed with the partition locked,
//! fetched from a snapshot of the store with it unlocked, and used with it locked again. Two things may happen in
//! between. A checkpoint may commit: a counter may then have changed, reached the store and been evicted, so everything
//! is fetched again. And counters that were in memory may be evicted: those are fetched as well.

use std::cmp::Ordering::{Equal, Greater, Less};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::{Mutex, MutexGuard};
use tally_core::counter::CounterState;
use tally_core::key::{Key, KeyRef};
use tally_core::ledger::ChainHead;
use tally_core::missing_keys::MissingKeys;
use tally_core::partition::{Headroom, Partition};
use tally_core::record;
use tally_core::sub_counters::SummedShards;
use tally_core::surface::CounterSnapshot;
use tally_core::time::{Millis, Position};

/// Where a partition keeps the records that are not in memory.
pub trait RecordStore {
    /// Why a record could not be read.
    type Error: From<MalformedRecord>;
    /// The store at one moment.
    type Snapshot: RecordSnapshot<Error = Self::Error>;

    /// The store as it is now. Called with the partition locked, so it must be quick.
    fn snapshot(&self) -> Self::Snapshot;
    /// Whether the store has not changed since the snapshot. Called with the partition locked.
    fn is_current(&self, snapshot: &Self::Snapshot) -> bool;
}

/// A [`RecordStore`] at one moment.
pub trait RecordSnapshot {
    /// Why a record could not be read.
    type Error;

    /// The position of the checkpoint that it reflects.
    fn position(&self) -> Position;
    /// Calls `found` with key and value of each record that exists, once and in key order. Returns how many keys were
    /// actually looked up, that is, were not ruled out by a filter.
    fn get_many(&self, keys: &MissingKeys, found: &mut dyn FnMut(&[u8], &[u8])) -> Result<usize, Self::Error>;
}

/// A stored record that this version cannot decode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MalformedRecord {
    /// Its key, printable.
    pub key: String,
}

impl MalformedRecord {
    /// The record with this key.
    #[must_use]
    pub fn new(key: &[u8]) -> MalformedRecord {
        MalformedRecord { key: key.escape_ascii().to_string() }
    }
}

/// A partition behind a lock. `J` is what the engine must change together with it, such as its queue to the journal.
pub struct ResidentPartition<J> {
    /// A parking_lot mutex, so that a capture can unlock fairly between slices.
    hosted: Mutex<Hosted<J>>,
    store_reads: AtomicU64,
}

/// A partition, and what changes under the same lock.
pub struct Hosted<J> {
    /// The state machine.
    pub partition: Partition,
    /// End of the last batch that was applied.
    pub applied: Position,
    /// The engine's own state.
    pub journal: J,
}

impl<J> ResidentPartition<J> {
    /// A partition that reflects the journal up to `hosted.applied`.
    pub fn new(hosted: Hosted<J>) -> Self {
        ResidentPartition { hosted: Mutex::new(hosted), store_reads: AtomicU64::new(0) }
    }

    /// Locks the partition.
    pub fn lock(&self) -> MutexGuard<'_, Hosted<J>> {
        self.hosted.lock()
    }

    /// Locks the partition unless another thread holds it.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, Hosted<J>>> {
        self.hosted.try_lock()
    }

    /// How many records were looked up in the store because memory lacked them.
    pub fn store_reads(&self) -> u64 {
        self.store_reads.load(Relaxed)
    }

    /// Locks the partition with every record that `list` names either in memory or among the fetched ones. `list` gets
    /// the partition and the position of the store.
    pub fn lock_with<S: RecordStore>(
        &self,
        store: &S,
        list: impl Fn(&Partition, Position, &mut MissingKeys),
    ) -> Result<(MutexGuard<'_, Hosted<J>>, Fetched), S::Error> {
        let mut fetched = Fetched::default();
        let mut hosted = self.hosted.lock();
        // Replaced only together with what was fetched from it: a checkpoint may be committed at any time.
        let mut snapshot = store.snapshot();
        loop {
            let mut missing = MissingKeys::default();
            list(&hosted.partition, snapshot.position(), &mut missing);
            if !fetched.passes.is_empty() {
                missing = fetched.without_known(&missing);
            }
            if missing.is_empty() {
                return Ok((hosted, fetched));
            }
            let evictions = hosted.partition.evictions();
            drop(hosted);
            let looked_up = fetched.add_pass(&snapshot, missing)?;
            self.store_reads.fetch_add(looked_up as u64, Relaxed);
            hosted = self.hosted.lock();
            if !store.is_current(&snapshot) {
                fetched = Fetched::default();
                snapshot = store.snapshot();
            } else if hosted.partition.evictions() == evictions {
                return Ok((hosted, fetched));
            }
        }
    }
}

/// Lists the records that snapshots of these counters need and that memory lacks.
pub fn list_snapshots(partition: &Partition, keys: &[Key], missing: &mut MissingKeys) {
    for key in keys {
        if partition.is_missing(key.as_ref()) {
            missing.push(&record::counter_key(key.as_bytes()));
        }
        if partition.is_head_missing(key.as_ref()) {
            missing.push(&record::head_key(key.as_ref()));
        }
    }
}

/// Records fetched from the store, not yet in memory.
#[derive(Default)]
pub struct Fetched {
    passes: Vec<Pass>,
}

/// One lookup of many keys: those it looked for, and the records it found, in key order.
#[derive(Default)]
struct Pass {
    wanted: MissingKeys,
    keys: MissingKeys,
    values: MissingKeys,
}

impl Pass {
    fn find(&self, store_key: &[u8]) -> Option<&[u8]> {
        let (mut from, mut to) = (0, self.keys.len());
        while from < to {
            let middle = (from + to) / 2;
            match self.keys.key(middle).cmp(store_key) {
                Less => from = middle + 1,
                Equal => return Some(self.values.key(middle)),
                Greater => to = middle,
            }
        }
        None
    }
}

impl Fetched {
    /// Store keys and values.
    fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.passes.iter().flat_map(|pass| pass.keys.iter().zip(pass.values.iter()))
    }

    /// The counter, if it was fetched.
    pub fn counter(&self, key: KeyRef<'_>) -> Result<Option<CounterState>, MalformedRecord> {
        if self.passes.is_empty() {
            return Ok(None);
        }
        let store_key = record::counter_key(key.as_bytes());
        let Some(value) = self.find(&store_key) else {
            return Ok(None);
        };
        record::read_counter(value).map(Some).ok_or_else(|| MalformedRecord::new(&store_key))
    }

    /// The summed reports of the counter's sub-counters, if they were fetched.
    pub fn summed(&self, key: KeyRef<'_>) -> Result<Option<SummedShards>, MalformedRecord> {
        let store_key = record::summed_key(key);
        let Some(value) = self.find(&store_key) else {
            return Ok(None);
        };
        record::read_summed(value).map(Some).ok_or_else(|| MalformedRecord::new(&store_key))
    }

    /// The head of the key's ledger chain; the default if none was fetched.
    fn ledger_head(&self, key: KeyRef<'_>) -> Result<ChainHead, MalformedRecord> {
        let store_key = record::head_key(key);
        let Some(value) = self.find(&store_key) else {
            return Ok(ChainHead::default());
        };
        record::read_head(value).ok_or_else(|| MalformedRecord::new(&store_key))
    }

    fn find(&self, store_key: &[u8]) -> Option<&[u8]> {
        self.passes.iter().find_map(|pass| pass.find(store_key))
    }

    /// The counter and the end of its ledger, as of `now`. The partition must have been locked by
    /// [`ResidentPartition::lock_with`], with [`list_snapshots`] as `list`.
    pub fn snapshot(
        &self,
        partition: &Partition,
        key: KeyRef<'_>,
        now: Millis,
    ) -> Result<CounterSnapshot, MalformedRecord> {
        let state = if partition.is_missing(key) { self.counter(key)? } else { partition.state_of(key) };
        let head = if partition.is_head_missing(key) { self.ledger_head(key)? } else { partition.ledger_head(key) };
        Ok(CounterSnapshot { state: state.filter(|state| !state.is_expired(now)), head })
    }

    /// Fails if a counter that was fetched cannot be decoded.
    pub fn check_counters(&self) -> Result<(), MalformedRecord> {
        let mut counters = self.iter().filter(|(store_key, _)| record::counter_of(store_key).is_some());
        let malformed = counters.find(|(_, value)| record::read_counter(value).is_none());
        malformed.map_or(Ok(()), |(store_key, _)| Err(MalformedRecord::new(store_key)))
    }

    /// Puts every record into memory. The caller has made room.
    pub fn restore(&self, partition: &mut Partition) -> Result<(), MalformedRecord> {
        for (key, value) in self.iter() {
            partition.restore(key, value).map_err(|_| MalformedRecord::new(key))?;
        }
        Ok(())
    }

    /// Puts counters into memory as far as the budget allows. That may evict others, so answer reads first.
    pub fn restore_within(&self, partition: &mut Partition, budget_bytes: usize) -> Result<(), MalformedRecord> {
        for (store_key, value) in self.iter() {
            let Some(key) = record::counter_of(store_key) else {
                continue;
            };
            if partition.make_room_for_one(key, budget_bytes) == Headroom::Enough {
                partition.restore(store_key, value).map_err(|_| MalformedRecord::new(store_key))?;
            }
        }
        Ok(())
    }

    fn add_pass<S: RecordSnapshot>(&mut self, snapshot: &S, wanted: MissingKeys) -> Result<usize, S::Error> {
        let mut pass = Pass { wanted, ..Pass::default() };
        let looked_up = snapshot.get_many(&pass.wanted, &mut |key, value| {
            pass.keys.push(key);
            pass.values.push(value);
        })?;
        self.passes.push(pass);
        Ok(looked_up)
    }

    /// The keys that no pass has looked for.
    fn without_known(&self, missing: &MissingKeys) -> MissingKeys {
        let known: BTreeSet<&[u8]> = self.passes.iter().flat_map(|pass| pass.wanted.iter()).collect();
        missing.iter().filter(|key| !known.contains(key)).collect()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::cell::{Cell, RefCell};
    use std::collections::BTreeMap;

    use tally_core::batch::{Batch, Events};
    use tally_core::outcome::Outcomes;
    use tally_core::record::{Meta, Records};

    use super::*;

    type Version = BTreeMap<Vec<u8>, Vec<u8>>;

    /// Long keys, so that an eviction has something to free.
    const COLD: &[u8] = &[b'c'; 40];
    const HOT: &[u8] = &[b'h'; 40];

    /// A store whose second version is committed right after its first one was found to be current.
    #[derive(Clone, Copy)]
    struct Scripted<'a> {
        versions: &'a RefCell<Vec<Version>>,
        current: &'a Cell<usize>,
        lookups: &'a Cell<usize>,
        during_lookup: &'a dyn Fn(usize),
    }

    struct ScriptedSnapshot<'a> {
        store: Scripted<'a>,
        number: usize,
    }

    impl<'a> RecordStore for Scripted<'a> {
        type Error = MalformedRecord;
        type Snapshot = ScriptedSnapshot<'a>;

        fn snapshot(&self) -> ScriptedSnapshot<'a> {
            ScriptedSnapshot { store: *self, number: self.current.get() }
        }

        fn is_current(&self, snapshot: &ScriptedSnapshot<'a>) -> bool {
            let is_current = snapshot.number == self.current.get();
            self.current.set(self.versions.borrow().len() - 1);
            is_current
        }
    }

    impl RecordSnapshot for ScriptedSnapshot<'_> {
        type Error = MalformedRecord;

        fn position(&self) -> Position {
            Position(self.number as u64 + 1)
        }

        fn get_many(&self, keys: &MissingKeys, found: &mut dyn FnMut(&[u8], &[u8])) -> Result<usize, MalformedRecord> {
            for key in keys.iter() {
                if let Some(value) = self.store.versions.borrow()[self.number].get(key) {
                    found(key, value);
                }
            }
            self.store.lookups.set(self.store.lookups.get() + 1);
            (self.store.during_lookup)(self.store.lookups.get());
            Ok(keys.len())
        }
    }

    fn add(partition: &mut Partition, key: &[u8], amount: i64) {
        let mut events = Events::new(1);
        events.add(KeyRef::new(key).unwrap(), amount);
        partition.apply(Millis(1), events.batch(), &mut Outcomes::default());
    }

    /// What a checkpoint writes.
    fn capture(partition: &mut Partition) -> Version {
        partition.begin_capture();
        let mut records = Records::default();
        while partition.capture_slice(10, &mut records) {}
        records.iter().map(|(key, value)| (key.to_vec(), value.unwrap().to_vec())).collect()
    }

    fn is_missing(hosted: &Hosted<()>, key: &[u8]) -> bool {
        hosted.partition.is_missing(KeyRef::new(key).unwrap())
    }

    #[test]
    fn a_fetched_counter_that_cannot_be_decoded_is_found() {
        let mut partition = Partition::new(1);
        add(&mut partition, HOT, 5);
        let mut fetched = Fetched { passes: vec![Pass::default()] };
        for (key, value) in &capture(&mut partition) {
            fetched.passes[0].keys.push(key);
            fetched.passes[0].values.push(value);
        }
        assert_eq!(fetched.check_counters(), Ok(()));
        fetched.passes[0].keys.push(&record::counter_key(b"odd"));
        fetched.passes[0].values.push(b"not a counter");
        assert!(fetched.check_counters().unwrap_err().key.contains("odd"));
    }

    #[test]
    fn a_checkpoint_that_is_committed_between_two_lookups_does_not_bring_back_an_old_value() {
        let mut written = Partition::new(1);
        add(&mut written, COLD, 10);
        add(&mut written, HOT, 5);
        let stored = capture(&mut written);
        let mut partition = Partition::with_store(1, Meta { clock: Millis(1), counters: 2, expiring: 0 }, 1 << 20);
        let restore = |partition: &mut Partition, key: &[u8]| {
            partition.restore(&record::counter_key(key), &stored[&record::counter_key(key)]).unwrap();
        };
        restore(&mut partition, HOT);
        let resident = ResidentPartition::new(Hosted { partition, applied: Position(1), journal: () });
        let versions = RefCell::new(vec![stored.clone()]);
        let evict = |hosted: &mut Hosted<()>| hosted.partition.make_room(&Batch::default(), 8);
        let during_lookup = |lookup: usize| {
            let mut hosted = resident.lock();
            match lookup {
                // Somebody increments the cold counter. A checkpoint captures it, and the hot one is evicted.
                1 => {
                    restore(&mut hosted.partition, COLD);
                    add(&mut hosted.partition, COLD, 1);
                    let mut next = stored.clone();
                    next.extend(capture(&mut hosted.partition));
                    versions.borrow_mut().push(next);
                    evict(&mut hosted);
                    assert!(is_missing(&hosted, HOT) && !is_missing(&hosted, COLD));
                }
                // The checkpoint is committed, so the cold counter can be evicted again.
                2 => {
                    hosted.partition.capture_committed();
                    evict(&mut hosted);
                    assert!(is_missing(&hosted, COLD));
                }
                _ => {}
            }
        };
        let (current, lookups) = (Cell::new(0), Cell::new(0));
        let store =
            Scripted { versions: &versions, current: &current, lookups: &lookups, during_lookup: &during_lookup };
        let list = |partition: &Partition, _, missing: &mut MissingKeys| {
            for key in [COLD, HOT].into_iter().filter(|key| partition.is_missing(KeyRef::new(key).unwrap())) {
                missing.push(&record::counter_key(key));
            }
        };
        let (mut hosted, fetched) = resident.lock_with(&store, list).unwrap();
        fetched.restore_within(&mut hosted.partition, 1 << 20).unwrap();
        assert!(lookups.get() > 1);
        let cold = hosted.partition.state_of(KeyRef::new(COLD).unwrap());
        assert_eq!(cold.unwrap().counter.value(), 11);
    }
}
