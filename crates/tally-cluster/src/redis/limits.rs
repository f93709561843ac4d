//! The bounds of what is asked of Redis.

use std::time::Duration;

/// Most commands in one pipeline. More of them gain nothing, and a node answers nobody else meanwhile.
pub const PIPELINE_COMMANDS_MAX: usize = 512;
/// Most pipelines of one call that are sent and not answered.
pub const PIPELINES_MAX: usize = 16;
/// Most single commands of one call that are sent and not answered, when slots have moved.
pub const SINGLE_COMMANDS_MAX: usize = 64;
/// Longest wait for a connection to a node.
pub const CONNECT_MAX: Duration = Duration::from_secs(1);
/// Longest wait for the answer of a node.
pub const RESPONSE_MAX: Duration = Duration::from_secs(1);
/// Longest wait for a pipeline or command, with all of its retries.
pub const REQUEST_MAX: Duration = Duration::from_secs(3);
/// Most retries of a pipeline or command: redirections, lost connections, a cluster that is down for a moment.
pub const RETRIES_MAX: u32 = 4;
/// Shortest pause before a retry.
pub const RETRY_MS_MIN: u64 = 10;
/// Longest pause before a retry.
pub const RETRY_MS_MAX: u64 = 200;
/// Longest address of a worker in a heartbeat, in bytes.
pub const ADDRESS_BYTES_MAX: usize = 256;
/// How long a total is published after it was first read, unless the settings say otherwise.
pub const TOTAL_TTL_DEFAULT: Duration = Duration::from_secs(600);

const _: () = assert!(CONNECT_MAX.as_millis() + RESPONSE_MAX.as_millis() <= REQUEST_MAX.as_millis());
const _: () = assert!(RETRY_MS_MIN < RETRY_MS_MAX);
