//! What API nodes ask workers, and what they answer.

use tally_core::key::Key;
use tally_core::ledger::LedgerEntry;
use tally_core::outcome::Outcomes;
use tally_core::surface::CounterSnapshot;
use tally_core::time::{Millis, Position};

/// A question to a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RpcRequest {
    /// What came of the record at this offset? Answered once it is applied.
    Outcomes {
        /// The partition.
        partition: u32,
        /// The record's offset.
        offset: u64,
    },
    /// What are these counters?
    Read {
        /// The partition of all of them.
        partition: u32,
        /// How much of the journal must be applied first.
        need: Need,
        /// At most `CALL_KEYS_MAX`.
        keys: Vec<Key>,
    },
    /// Which corrections were made?
    Ledger {
        /// The partition of the counter.
        partition: u32,
        /// The counter.
        key: Key,
        /// Only entries after the one with this number.
        after: u64,
        /// At most this many, and never more than `LEDGER_ENTRIES_MAX`.
        limit: u32,
    },
    /// How many counters has the partition?
    Count {
        /// The partition.
        partition: u32,
    },
    /// Sum all sub-counters into the journal, and persist everything that is in it then.
    Persist {
        /// The partition.
        partition: u32,
    },
    /// What are these counters, and where do their ledgers end? With everything that is in the journal when the request
    /// arrives.
    Snapshots {
        /// The partition of all of them.
        partition: u32,
        /// At most `CALL_KEYS_MAX`.
        keys: Vec<Key>,
    },
    /// Which partitions does the worker host, and how far are they?
    Status,
}

/// How much of the journal a read must see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Everything that is in the journal as far as its broker knows. The counters are then kept in Redis for a while.
    Refill,
    /// Everything that is in the journal when the request arrives.
    End,
    /// Everything before this position.
    Position(Position),
}

/// An answer of a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RpcResponse {
    /// To [`RpcRequest::Outcomes`].
    Outcomes {
        /// The position after the record.
        end: Position,
        /// The time at which it was applied.
        at: Millis,
        /// One outcome per event.
        outcomes: Outcomes,
    },
    /// To [`RpcRequest::Read`].
    Read {
        /// What the worker has applied.
        position: Position,
        /// The partition's time.
        at: Millis,
        /// Everything that sub-counters had counted before this time is applied. Zero if that is not known.
        summed_at: Millis,
        /// Values of the counters' records as in the store, in the order of the keys; `None` for those that do not
        /// exist.
        records: Vec<Option<Vec<u8>>>,
    },
    /// To [`RpcRequest::Ledger`].
    Ledger {
        /// Oldest first.
        entries: Vec<LedgerEntry>,
    },
    /// To [`RpcRequest::Count`].
    Count {
        /// The number of counters.
        counters: u64,
        /// The partition's time.
        at: Millis,
    },
    /// To [`RpcRequest::Persist`].
    Persisted {
        /// What is in the store.
        position: Position,
    },
    /// To [`RpcRequest::Snapshots`].
    Snapshots {
        /// In the order of the keys.
        snapshots: Vec<CounterSnapshot>,
    },
    /// To [`RpcRequest::Status`].
    Status {
        /// The partitions that the worker hosts.
        partitions: Vec<PartitionStatus>,
    },
}

/// How far a worker is with a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartitionStatus {
    /// The partition.
    pub partition: u32,
    /// The epoch of the owner.
    pub epoch: u64,
    /// What is applied.
    pub applied: Position,
    /// What is in the store.
    pub persisted: Position,
    /// The end of the journal, if it is known.
    pub end: Option<Position>,
    /// What the worker is for this partition.
    pub role: Role,
}

/// What a worker is for a partition. Part of the messages: numbers are never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Role {
    /// It persists and publishes.
    Owner = 1,
    /// It applies only.
    Standby = 2,
}

/// Why a worker does not answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RpcError {
    /// The partition is elsewhere.
    #[error("the worker does not host the partition; its owner is {}", .owner.as_deref().unwrap_or("not known"))]
    NotHosted {
        /// Where the owner answers, as far as this worker knows.
        owner: Option<String>,
    },
    /// The outcomes are not kept any more.
    #[error("the outcomes of the record are not kept any more")]
    Gone,
    /// Too many requests.
    #[error("the worker has too many requests")]
    Overloaded,
    /// The worker stops.
    #[error("the worker is shutting down")]
    Closing,
    /// Something else.
    #[error("the worker failed: {0}")]
    Failed(String),
}
