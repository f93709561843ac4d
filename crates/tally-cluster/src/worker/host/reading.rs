//! Reading counters of a hosted partition.

use tally_core::counter::CounterState;
use tally_core::key::Key;
use tally_core::missing_keys::MissingKeys;
use tally_core::partition::Partition;
use tally_core::record::write_counter;
use tally_core::sub_counters::SummedShards;
use tally_core::surface::CounterSnapshot;
use tally_core::time::{Millis, Position};
use tally_engine::host::list_snapshots;

use super::PartitionHost;
use crate::worker::store::StoreFailure;

/// By which time a reading decides what has expired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpiryBy {
    /// The brokers' time, even while nothing is written.
    Brokers,
    /// The time of the last batch, as the next change would decide it. The brokers' time may be ahead of it, because
    /// one of their clocks can be behind.
    Journal,
}

/// Counters as of one position.
#[derive(Clone, Debug)]
pub struct HostReading {
    /// What was applied.
    pub position: Position,
    /// Everything that was acknowledged before this time is included.
    pub as_of: Millis,
    /// The time by which expiry was decided.
    pub now: Millis,
    /// The counters, in the order of the keys.
    pub counters: Vec<Option<CounterState>>,
    /// What is summed of the sub-counters of each, if that was asked for and it has any.
    pub summed: Vec<Option<SummedShards>>,
}

impl HostReading {
    /// The counters as values of their records.
    pub fn records(&self) -> impl Iterator<Item = Option<Vec<u8>>> {
        self.counters.iter().map(|counter| {
            let mut record = Vec::new();
            write_counter(counter.as_ref()?, &mut record);
            Some(record)
        })
    }
}

impl PartitionHost {
    /// Reads counters as of now, if all of them are in memory.
    pub fn read_resident(&self, keys: &[Key], expiry: ExpiryBy) -> Option<HostReading> {
        let hosted = self.state.lock();
        if keys.iter().any(|key| hosted.partition.is_missing(key.as_ref())) {
            return None;
        }
        let at = self.expiry_time(&hosted.partition, expiry);
        let held = |key: &Key| hosted.partition.state_of(key.as_ref()).filter(|held| !held.is_expired(at));
        Some(HostReading {
            position: hosted.applied,
            as_of: self.current_at(&hosted.partition),
            now: at,
            counters: keys.iter().map(held).collect(),
            summed: Vec::new(),
        })
    }

    fn expiry_time(&self, partition: &Partition, expiry: ExpiryBy) -> Millis {
        match expiry {
            ExpiryBy::Brokers => self.now_at(partition),
            ExpiryBy::Journal => partition.clock(),
        }
    }

    /// Reads counters as of now. Blocks if some must be fetched.
    pub fn read(&self, keys: &[Key], expiry: ExpiryBy) -> Result<HostReading, StoreFailure> {
        self.read_at(keys, |_| false, expiry)
    }

    /// Whether [`PartitionHost::read_with_summed`] would find everything in memory.
    pub fn has_resident(&self, keys: &[Key], is_sharded: impl Fn(&Key) -> bool) -> bool {
        let mut missing = MissingKeys::default();
        list_with_summed(&self.state.lock().partition, keys, is_sharded, &mut missing);
        missing.is_empty()
    }

    /// Like [`PartitionHost::read`], with what is summed of the sub-counters of those keys that have any.
    pub fn read_with_summed(
        &self,
        keys: &[Key],
        is_sharded: impl Fn(&Key) -> bool,
    ) -> Result<HostReading, StoreFailure> {
        self.read_at(keys, is_sharded, ExpiryBy::Brokers)
    }

    fn read_at(
        &self,
        keys: &[Key],
        is_sharded: impl Fn(&Key) -> bool,
        expiry: ExpiryBy,
    ) -> Result<HostReading, StoreFailure> {
        let list = |partition: &Partition, _, missing: &mut MissingKeys| {
            list_with_summed(partition, keys, &is_sharded, missing);
        };
        let locked = self.state.lock_with(&self.store, list);
        let (mut hosted, fetched) = locked.inspect_err(|error| self.note_read_failure(error))?;
        let position = hosted.applied;
        let as_of = self.current_at(&hosted.partition);
        let at = self.expiry_time(&hosted.partition, expiry);
        let mut counters = Vec::with_capacity(keys.len());
        let mut summed = Vec::with_capacity(keys.len());
        for key in keys {
            summed.push(match hosted.partition.summed(key) {
                _ if !is_sharded(key) => None,
                Some(summed) => Some(summed.clone()),
                None => Some(fetched.summed(key.as_ref())?.unwrap_or_default()),
            });
            let held = match hosted.partition.state_of(key.as_ref()) {
                Some(held) => Some(held),
                None if hosted.partition.is_missing(key.as_ref()) => fetched.counter(key.as_ref())?,
                None => None,
            };
            counters.push(held.filter(|held| !held.is_expired(at)));
        }
        fetched.restore_within(&mut hosted.partition, self.budget_bytes)?;
        Ok(HostReading { position, as_of, now: at, counters, summed })
    }

    /// A read that finds that PostgreSQL went back stops the partition: while nothing is written, nothing else would
    /// notice.
    fn note_read_failure(&self, error: &StoreFailure) {
        if matches!(error, StoreFailure::WentBack { .. }) {
            self.failure.send_replace(Some(error.clone().into()));
        }
    }

    /// Counters with the ends of their ledgers, as of now. Blocks if some must be fetched.
    pub fn snapshots(&self, keys: &[Key]) -> Result<Vec<CounterSnapshot>, StoreFailure> {
        let list = |partition: &Partition, _, missing: &mut MissingKeys| list_snapshots(partition, keys, missing);
        let locked = self.state.lock_with(&self.store, list);
        let (hosted, fetched) = locked.inspect_err(|error| self.note_read_failure(error))?;
        let at = self.now_at(&hosted.partition);
        keys.iter().map(|key| Ok(fetched.snapshot(&hosted.partition, key.as_ref(), at)?)).collect()
    }
}

/// Lists what a reading of these keys needs and memory lacks, with what is summed of the sub-counters of those that have
/// any.
fn list_with_summed(partition: &Partition, keys: &[Key], is_sharded: impl Fn(&Key) -> bool, missing: &mut MissingKeys) {
    for key in keys.iter().filter(|key| is_sharded(key) && partition.is_summed_missing(key.as_ref())) {
        missing.push(&tally_core::record::summed_key(key.as_ref()));
    }
    for key in keys.iter().filter(|key| partition.is_missing(key.as_ref())) {
        missing.push(&tally_core::record::counter_key(key.as_bytes()));
    }
}
