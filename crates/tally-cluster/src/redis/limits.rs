//! Limits of the calls to Redis.

use std::time::Duration;

/// Most commands in one pipeline. More of them gain nothing, and a node answers nobody else meanwhile.
pub const PIPELINE_COMMANDS_MAX: usize = 512;
/// Most pipelines of one call that are in flight.
pub const PIPELINES_MAX: usize = 16;
/// Longest wait for a connection to a node.
pub const CONNECT_MAX: Duration = Duration::from_secs(1);
/// Longest wait for the answer of a node.
pub const RESPONSE_MAX: Duration = Duration::from_secs(1);
/// No retry starts later than this after the call. The last one may take [`TOPOLOGY_TIMEOUT`], [`CONNECT_MAX`] and
/// [`RESPONSE_MAX`] more.
pub const RETRY_FOR: Duration = Duration::from_secs(2);
/// Most retries of a call: redirections, lost connections, a cluster that is down for a moment.
pub const RETRIES_MAX: u32 = 6;
/// Pause before the second retry; the first one is immediate. It doubles with each further one.
pub const RETRY_PAUSE_MIN: Duration = Duration::from_millis(10);
/// After a failed attempt to connect to a node, calls that need it fail for this long without another attempt.
pub const RECONNECT_PAUSE: Duration = Duration::from_millis(50);
/// Most nodes of a cluster that are remembered.
pub const NODES_MAX: usize = 1_024;
/// The owners of slots are asked for again after this long.
pub const TOPOLOGY_AGE_MAX: Duration = Duration::from_secs(2);
/// If a node has not answered within this time, the next one is asked for the topology as well.
pub const HEDGE_AFTER: Duration = Duration::from_millis(50);
/// Timeout for fetching the topology, across all nodes.
pub const TOPOLOGY_TIMEOUT: Duration = Duration::from_secs(2);
/// Longest address of a worker in a heartbeat, in bytes.
pub const ADDRESS_BYTES_MAX: usize = 256;
/// How long a total is published after it was first read, unless the settings say otherwise.
pub const TOTAL_TTL_DEFAULT: Duration = Duration::from_millis(crate::limits::TOTAL_TTL_MS);
/// Most counters of one partition with sub-counters in use. More are refused: the rollup is behind.
pub const ACTIVE_COUNTERS_MAX: usize = 100_000;
/// Counters on one page of a list.
pub const SCAN_COUNT: usize = 1_000;
/// How many times a list is started over because another master answered.
pub const SCAN_RESTARTS_MAX: u32 = 3;
/// Longest record of a counter in a total, in bytes.
pub const TOTAL_RECORD_BYTES_MAX: usize = 1 << 10;
