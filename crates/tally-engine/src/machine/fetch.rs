//! Fetching what only the store holds, with the state unlocked.
//!
//! A slow disk must not keep anybody from what is in memory. So what is missing is listed with the state locked,
//! fetched from a snapshot of the store with the state unlocked, and used with the state locked again. Two things may
//! happen in between. A checkpoint may be committed: a counter may then have changed, reached the store and left memory,
//! so everything is fetched once more. And counters may leave memory that were there before: those are fetched as well.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering::Relaxed;

use parking_lot::MutexGuard;
use tally_core::counter::CounterState;
use tally_core::key::KeyRef;
use tally_core::missing_keys::MissingKeys;
use tally_core::partition::Partition;
use tally_core::record;
use tally_core::time::Position;

use super::{Machine, State};
use crate::store::{Snapshot, StoreError};

/// What one pass over the store looked for, and what it found, in key order.
#[derive(Default)]
struct Pass {
    wanted: MissingKeys,
    keys: MissingKeys,
    values: MissingKeys,
}

/// Records of the store.
#[derive(Default)]
pub(super) struct Fetched {
    passes: Vec<Pass>,
}

impl Pass {
    fn find(&self, store_key: &[u8]) -> Option<&[u8]> {
        let (mut from, mut to) = (0, self.keys.len());
        while from < to {
            let middle = (from + to) / 2;
            match self.keys.key(middle).cmp(store_key) {
                std::cmp::Ordering::Less => from = middle + 1,
                std::cmp::Ordering::Equal => return Some(self.values.key(middle)),
                std::cmp::Ordering::Greater => to = middle,
            }
        }
        None
    }
}

impl Fetched {
    /// Store keys and values.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.passes.iter().flat_map(|pass| pass.keys.iter().zip(pass.values.iter()))
    }

    /// The counter, if it was fetched.
    pub(super) fn counter(&self, key: KeyRef<'_>) -> Result<Option<CounterState>, StoreError> {
        if self.passes.is_empty() {
            return Ok(None);
        }
        let store_key = record::counter_key(key.as_bytes());
        let Some(value) = self.passes.iter().find_map(|pass| pass.find(&store_key)) else {
            return Ok(None);
        };
        record::read_counter(value).map(Some).ok_or_else(|| StoreError::malformed(&store_key))
    }

    /// Brings everything to memory.
    pub(super) fn restore(&self, partition: &mut Partition) -> Result<(), StoreError> {
        for (key, value) in self.iter() {
            partition.restore(key, value).map_err(|_| StoreError::malformed(key))?;
        }
        Ok(())
    }

    fn add_pass(&mut self, snapshot: &Snapshot, wanted: MissingKeys) -> Result<usize, StoreError> {
        let mut pass = Pass { wanted, ..Pass::default() };
        let looked_up = snapshot.get_many(&pass.wanted, &mut |key, value| {
            pass.keys.push(key);
            pass.values.push(value);
        })?;
        self.passes.push(pass);
        Ok(looked_up)
    }

    /// Those of the keys that no pass has looked for.
    fn missing_of(&self, wanted: &MissingKeys) -> MissingKeys {
        let known: BTreeSet<&[u8]> = self.passes.iter().flat_map(|pass| pass.wanted.iter()).collect();
        wanted.iter().filter(|key| !known.contains(key)).collect()
    }
}

impl Machine {
    /// Locks the state with everything at hand that `list` names: in memory, or among what was fetched. `list` is given
    /// the partition and the position of the store.
    pub(super) fn lock_with(
        &self,
        list: impl Fn(&Partition, Position, &mut MissingKeys),
    ) -> Result<(MutexGuard<'_, State>, Fetched), StoreError> {
        let mut fetched = Fetched::default();
        let mut state = self.state.lock();
        loop {
            let snapshot = self.store.snapshot();
            let mut wanted = MissingKeys::default();
            list(&state.partition, snapshot.position(), &mut wanted);
            if !fetched.passes.is_empty() {
                wanted = fetched.missing_of(&wanted);
            }
            if wanted.is_empty() {
                return Ok((state, fetched));
            }
            let evictions = state.partition.evictions();
            drop(state);
            let looked_up = fetched.add_pass(&snapshot, wanted)?;
            self.meters.store_reads.fetch_add(looked_up as u64, Relaxed);
            state = self.state.lock();
            if !self.store.is_current(&snapshot) {
                fetched = Fetched::default();
            } else if state.partition.evictions() == evictions {
                return Ok((state, fetched));
            }
        }
    }
}
