//! PostgreSQL as the store of one hosted partition.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tally_core::missing_keys::MissingKeys;
use tally_core::time::Position;
use tally_engine::host::{MalformedRecord, RecordSnapshot, RecordStore};
use tokio::runtime::Handle;

use crate::postgres::{Pg, PgError};

/// Why a hosted partition cannot continue.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreFailure {
    /// PostgreSQL failed; trying again may help.
    #[error(transparent)]
    Postgres(#[from] PgError),
    /// Another worker has persisted more than this one has applied.
    #[error("another worker has persisted this partition up to {stored}, beyond {applied}")]
    Overtaken {
        /// The stored position.
        stored: u64,
        /// What this worker has applied.
        applied: u64,
    },
    /// PostgreSQL has less than it had.
    #[error(
        "PostgreSQL has this partition at position {stored}, but had it at {base} before. Was an older backup restored, or did \
         a standby take over that lacked transactions?"
    )]
    WentBack {
        /// The stored position.
        stored: u64,
        /// The position that was stored, which the changes in memory are based on.
        base: u64,
    },
    /// A record cannot be decoded.
    #[error("the record of {0} in PostgreSQL cannot be read; was it written by a newer version of Tally?")]
    Malformed(String),
}

impl From<MalformedRecord> for StoreFailure {
    fn from(malformed: MalformedRecord) -> Self {
        StoreFailure::Malformed(malformed.key)
    }
}

/// The stored records of one partition. A record is fetched together with the stored position, and used only if that is
/// neither before what memory is based on nor beyond what this worker has applied; decision 0021 says why that is
/// enough.
pub struct PartitionStore {
    pg: Arc<Pg>,
    partition: u32,
    runtime: Handle,
    /// What this worker has applied.
    applied: AtomicU64,
    /// The stored position that the changes in memory are based on.
    base: AtomicU64,
    /// Incremented with each commit, because records may be evicted after it.
    commits: AtomicU64,
}

/// The store between two commits.
pub struct PartitionSnapshot {
    store: Arc<PartitionStore>,
    position: Position,
    commits: u64,
}

impl PartitionStore {
    /// The store of a partition whose state is at `position`. Fetches block on `runtime`.
    pub fn new(pg: Arc<Pg>, partition: u32, position: Position, runtime: Handle) -> Arc<PartitionStore> {
        Arc::new(PartitionStore {
            pg,
            partition,
            runtime,
            applied: AtomicU64::new(position.0),
            base: AtomicU64::new(position.0),
            commits: AtomicU64::new(0),
        })
    }

    /// The stored position that the changes in memory are based on.
    pub fn base(&self) -> Position {
        Position(self.base.load(Ordering::Acquire))
    }

    /// What this worker has applied.
    pub fn applied(&self) -> Position {
        Position(self.applied.load(Ordering::Acquire))
    }

    /// Records that everything before `position` is applied.
    pub fn set_applied(&self, position: Position) {
        self.applied.store(position.0, Ordering::Release);
    }

    /// Whether an owner that continues from this stored position can use what is in memory. If PostgreSQL went back,
    /// changes that count as stored here are not stored.
    pub fn can_continue_from(&self, stored: Position) -> bool {
        (self.base()..=self.applied()).contains(&stored)
    }

    /// Records a commit. Call with the partition locked.
    pub fn committed(&self, position: Position) {
        self.base.store(position.0, Ordering::Release);
        self.commits.fetch_add(1, Ordering::AcqRel);
    }
}

/// Shared, because a snapshot refers to the store.
pub struct SharedStore(pub Arc<PartitionStore>);

impl RecordStore for SharedStore {
    type Error = StoreFailure;
    type Snapshot = PartitionSnapshot;

    fn snapshot(&self) -> PartitionSnapshot {
        let commits = self.0.commits.load(Ordering::Acquire);
        PartitionSnapshot { store: Arc::clone(&self.0), position: self.0.base(), commits }
    }

    fn is_current(&self, snapshot: &PartitionSnapshot) -> bool {
        self.0.commits.load(Ordering::Acquire) == snapshot.commits
    }
}

impl RecordSnapshot for PartitionSnapshot {
    type Error = StoreFailure;

    fn position(&self) -> Position {
        self.position
    }

    fn get_many(&self, keys: &MissingKeys, found: &mut dyn FnMut(&[u8], &[u8])) -> Result<usize, StoreFailure> {
        let PartitionStore { pg, partition, runtime, .. } = &*self.store;
        let fetched = runtime.block_on(pg.fetch(*partition, keys))?;
        let (stored, base, applied) = (fetched.position.0, self.position.0, self.store.applied().0);
        if stored < base {
            return Err(StoreFailure::WentBack { stored, base });
        }
        if stored > applied {
            return Err(StoreFailure::Overtaken { stored, applied });
        }
        for (key, value) in &fetched.records {
            found(key, value);
        }
        Ok(keys.len())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::postgres::PgSettings;

    #[tokio::test]
    async fn memory_is_of_use_between_what_it_is_based_on_and_what_is_applied() {
        let pg = Arc::new(Pg::new(&PgSettings::new("postgres://nobody@127.0.0.1:1/none")).unwrap());
        let store = PartitionStore::new(pg, 0, Position(10), Handle::current());
        store.set_applied(Position(30));
        store.committed(Position(20));
        let can_continue = |position| store.can_continue_from(Position(position));
        assert!(can_continue(20) && can_continue(30));
        assert!(!can_continue(19), "what changed between 19 and 20 would never be persisted again");
        assert!(!can_continue(31), "somebody else has persisted more");
    }
}
