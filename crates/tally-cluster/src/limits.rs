//! Limits of the cluster engine.

use tally_core::limits::BATCH_BYTES_MAX;

/// Largest record of the journal: a batch, and what Kafka puts around it.
pub const RECORD_BYTES_MAX: usize = BATCH_BYTES_MAX + (1 << 20);
/// How long an append may take before its outcome is unknown.
pub const APPEND_TIMEOUT_MS: u64 = 10_000;
/// Most appends that wait for Kafka in one process. More are refused.
pub const APPENDS_QUEUED_MAX: usize = 4_096;
/// Records read ahead per partition.
pub const TAIL_BUFFER_KIB: usize = 16 << 10;
/// A worker that the group does not hear from for this long loses its partitions. Brokers allow no less by default.
pub const SESSION_TIMEOUT_MS: u64 = 6_000;
/// How long a rebalance waits for a worker to persist the partitions it loses.
pub const REVOKE_WAIT_MS: u64 = 5_000;

const _: () = assert!(REVOKE_WAIT_MS < SESSION_TIMEOUT_MS);
