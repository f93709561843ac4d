//! Every bound of the store in PostgreSQL.

use tally_core::limits::PAGE_ITEMS_MAX;

/// Longest time to connect, including authentication.
pub const CONNECT_MS_MAX: u64 = 5_000;
/// Longest time that a statement may take. PostgreSQL cancels it then.
pub const STATEMENT_MS_MAX: u64 = 30_000;
/// Longest time that Tally waits for the result of a statement. A server that should have canceled it by then and is
/// silent counts as unreachable.
pub const ANSWER_MS_MAX: u64 = STATEMENT_MS_MAX + 5_000;
/// Longest wait for a lock, such as that of a partition which another worker is persisting.
pub const LOCK_MS_MAX: u64 = 5_000;
/// PostgreSQL rolls a transaction back if nothing arrives for this long. So a worker that is paused while it persists
/// does not lock out its successor.
pub const IDLE_IN_TRANSACTION_MS_MAX: u64 = 15_000;
/// Silence on a connection after which TCP probes the peer.
pub const KEEPALIVE_IDLE_MS: u64 = 10_000;
/// Time between two probes.
pub const KEEPALIVE_INTERVAL_MS: u64 = 5_000;
/// Probes without an answer after which the connection is closed.
pub const KEEPALIVE_PROBES_MAX: u32 = 3;
/// Longest time that sent data may stay unacknowledged.
pub const UNACKNOWLEDGED_MS_MAX: u64 = 15_000;

/// Most rows written by one statement.
pub const WRITE_ROWS_MAX: usize = 4_096;
/// Most request ids deleted by one statement.
pub const FORGET_ROWS_MAX: usize = 4_096;
/// Most rows that a listing returns: two pages, so that a caller can read past the end of one.
pub const LIST_ROWS_MAX: usize = 2 * PAGE_ITEMS_MAX;
/// Most counters read to choose one of them.
pub const SAMPLE_ROWS_MAX: usize = 64;
/// Latest time in a column: the end of the year 9999, which every tool can show. Records hold the exact time.
pub const TIMESTAMP_MS_MAX: u64 = 253_402_300_799_999;

const _: () = assert!(LOCK_MS_MAX < STATEMENT_MS_MAX && STATEMENT_MS_MAX < ANSWER_MS_MAX);
