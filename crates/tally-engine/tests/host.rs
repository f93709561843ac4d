//! The parts in `host` also serve an engine that learns positions only after the append, as with a message broker.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};

use tally_contract::block_on;
use tally_core::batch::{Combiner, Events};
use tally_core::key::KeyRef;
use tally_core::missing_keys::MissingKeys;
use tally_core::outcome::Outcomes;
use tally_core::partition::Partition;
use tally_core::record::{self, Records};
use tally_core::time::{Millis, Position};
use tally_engine::host::{
    CaptureDriver, CaptureProgress, CapturedRequests, Hosted, MalformedRecord, OpenBatch, RecordSink, RecordSnapshot,
    RecordStore, ResidentPartition, Stage, Wait,
};

const SEED: u64 = 7;
const BUFFER_BYTES: usize = 1 << 16;

/// The broker acknowledges before the worker applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Progress {
    Appended,
    Applied,
}

impl Stage for Progress {
    const LAST: Progress = Progress::Applied;
}

/// What is known of a batch: its position after the append, its outcomes after it was applied.
struct RemoteBatch {
    combiner: Arc<Combiner>,
    end: Position,
    outcomes: Outcomes,
}

/// A store in memory.
#[derive(Default)]
struct MapStore(Mutex<Arc<Contents>>);

#[derive(Clone, Default)]
struct Contents {
    position: Position,
    records: BTreeMap<Vec<u8>, Vec<u8>>,
}

struct MapSnapshot(Arc<Contents>);

impl RecordStore for MapStore {
    type Error = MalformedRecord;
    type Snapshot = MapSnapshot;

    fn snapshot(&self) -> MapSnapshot {
        MapSnapshot(Arc::clone(&self.0.lock().unwrap()))
    }

    fn is_current(&self, snapshot: &MapSnapshot) -> bool {
        Arc::ptr_eq(&self.0.lock().unwrap(), &snapshot.0)
    }
}

impl RecordSnapshot for MapSnapshot {
    type Error = MalformedRecord;

    fn position(&self) -> Position {
        self.0.position
    }

    fn get_many(&self, keys: &MissingKeys, found: &mut dyn FnMut(&[u8], &[u8])) -> Result<usize, MalformedRecord> {
        let wanted: std::collections::BTreeSet<&[u8]> = keys.iter().collect();
        for key in &wanted {
            if let Some(value) = self.0.records.get(*key) {
                found(key, value);
            }
        }
        Ok(wanted.len())
    }
}

impl RecordSink for Contents {
    type Error = MalformedRecord;

    fn write(&mut self, records: &Records) -> Result<(), MalformedRecord> {
        for (key, value) in records.iter() {
            match value {
                Some(value) => drop(self.records.insert(key.to_vec(), value.to_vec())),
                None => drop(self.records.remove(key)),
            }
        }
        Ok(())
    }

    fn write_last(&mut self, records: &Records, requests: CapturedRequests<'_>) -> Result<(), MalformedRecord> {
        self.write(records)?;
        requests.for_each(|key, value| {
            self.records.insert(key.to_vec(), value.to_vec());
            Ok(())
        })
    }
}

fn key() -> KeyRef<'static> {
    KeyRef::new(b"likes:1").unwrap()
}

fn one_like() -> Events {
    let mut events = Events::new(SEED);
    events.add(key(), 1);
    events
}

/// Applies a batch as a worker would, with the records it needs fetched from the store.
fn apply(worker: &ResidentPartition<()>, store: &MapStore, combiner: &Combiner, end: Position) -> Outcomes {
    let batch = combiner.batch();
    let list = |partition: &Partition, at, missing: &mut MissingKeys| partition.missing(batch, at, missing);
    let (mut hosted, fetched) = worker.lock_with(store, list).unwrap();
    fetched.restore(&mut hosted.partition).unwrap();
    let mut outcomes = Outcomes::default();
    hosted.partition.apply(Millis(1), batch, &mut outcomes);
    hosted.applied = end;
    outcomes
}

fn checkpoint(worker: &ResidentPartition<()>, store: &MapStore) {
    let (mut driver, mut next) = {
        let mut hosted = worker.lock();
        let position = hosted.applied;
        let next = Contents { position, ..store.0.lock().unwrap().as_ref().clone() };
        (CaptureDriver::begin(&mut hosted.partition, BUFFER_BYTES), next)
    };
    while driver.step(worker, &mut next).unwrap() != CaptureProgress::Done {}
    *store.0.lock().unwrap() = Arc::new(next);
    worker.lock().partition.capture_committed();
}

#[test]
fn a_call_learns_its_position_at_the_append_and_its_outcome_once_applied() {
    let open = OpenBatch::<Progress, RemoteBatch>::default();
    let events = one_like();
    let Poll::Ready(joined) = open.join(&events, Waker::noop(), || Ok(())) else { unreachable!("it is empty") };
    let joined = joined.unwrap();
    assert!(joined.is_first && !joined.is_full);
    let (combiner, ticket) = open.take();
    let combiner = Arc::new(combiner);

    let remote = |outcomes| Arc::new(RemoteBatch { combiner: Arc::clone(&combiner), end: Position(42), outcomes });
    ticket.reach(Progress::Appended, &remote(Outcomes::default()));
    let appended = block_on(Wait::new(Arc::clone(&joined.ticket), Progress::Appended)).unwrap();
    assert_eq!(appended.end, Position(42));

    let hosted = Hosted { partition: Partition::new(SEED), applied: Position(0), journal: () };
    let worker = ResidentPartition::new(hosted);
    let outcomes = apply(&worker, &MapStore::default(), &combiner, Position(42));
    ticket.reach(Progress::Applied, &remote(outcomes));
    let applied = block_on(Wait::new(Arc::clone(&joined.ticket), Progress::Applied)).unwrap();
    let outcomes = joined.outcomes(&events, &applied.combiner, &applied.outcomes);
    assert_eq!(outcomes.iter().map(|outcome| outcome.value).collect::<Vec<_>>(), [1]);
}

#[test]
fn a_worker_that_takes_over_continues_from_the_captured_records() {
    let store = MapStore::default();
    let mut combiner = Combiner::default();
    combiner.combine(&one_like(), &mut Vec::new());
    let hosted = Hosted { partition: Partition::new(SEED), applied: Position(0), journal: () };
    let first = ResidentPartition::new(hosted);
    apply(&first, &store, &combiner, Position(1));
    checkpoint(&first, &store);

    let stored = store.snapshot();
    assert_eq!(stored.position(), Position(1));
    let meta = record::read_meta(&stored.0.records[record::META_KEY], || Ok::<_, ()>(0)).unwrap().unwrap();
    let partition = Partition::with_store(SEED, meta, BUFFER_BYTES);
    let second = ResidentPartition::new(Hosted { partition, applied: stored.position(), journal: () });
    apply(&second, &store, &combiner, Position(2));
    assert!(second.store_reads() > 0, "the counter came from the store");
    let counter = second.lock().partition.state_of(key()).unwrap();
    assert_eq!(counter.counter.value(), 2);
}
