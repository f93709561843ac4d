//! The bounds of the server itself; those of counters, keys and batches live in `tally_core::limits`.

use std::time::Duration;

use tally_core::limits::{BODY_BYTES_MAX, REASON_BYTES_MAX, REQUEST_ID_BYTES_MAX};

/// Most connections open at once. One more is told so and closed.
pub const CONNECTIONS_MAX: usize = 10_000;
/// File descriptors kept back from connections, for the data directory and the process itself.
pub const FILES_RESERVED: usize = 128;
/// Fewest connections worth starting with.
pub const CONNECTIONS_MIN: usize = 16;

/// Longest head of a request, request line included. Also what bounds the address, so `?keys=` lists.
pub const HEAD_BYTES_MAX: usize = 64 << 10;
/// A request head must arrive within this time; an idle connection is closed after it too.
pub const HEAD_READ_MAX: Duration = Duration::from_secs(30);
/// Largest body of a call about one counter: the longest id and reason fit, escaped.
pub const CALL_BODY_BYTES_MAX: usize = 16 << 10;
/// Bytes of batches read or worked on at once; more wait for room.
pub const BATCH_BODIES_BYTES_MAX: usize = 128 << 20;
/// Bytes of corrections one page of a ledger shows at the most, before they are written as JSON.
pub const LEDGER_PAGE_BYTES_MAX: usize = 256 << 10;
/// A client that takes nothing of an answer for this long is cut off.
pub const WRITE_STALL_MAX: Duration = Duration::from_secs(30);
/// A request body must arrive within this time.
pub const BODY_READ_MAX: Duration = Duration::from_secs(30);

/// Longest argument of a RESP request.
pub const RESP_BULK_BYTES_MAX: usize = 1 << 20;
/// Most arguments of a RESP request, the command's name included.
pub const RESP_ARGS_MAX: usize = 1024;
/// Longest argument of a RESP request before the client has said who it is.
pub const RESP_STRANGER_BULK_BYTES_MAX: usize = 16 << 10;
/// Most arguments of a RESP request before the client has said who it is.
pub const RESP_STRANGER_ARGS_MAX: usize = 10;
/// Longest line of RESP: an inline request, or the line that says a length.
pub const RESP_LINE_BYTES_MAX: usize = 64 << 10;
/// Room of a parser that an idle connection keeps; more is given back.
pub const RESP_SCRATCH_BYTES_KEPT: usize = 512;

/// How long requests under way may take to finish after SIGTERM.
pub const DRAIN_MAX: Duration = Duration::from_secs(10);
/// How long answers under way may take to leave after a failed flush.
pub const POISONED_GRACE: Duration = Duration::from_millis(500);
/// How long to wait before accepting again when the system is out of file descriptors.
pub const ACCEPT_RETRY: Duration = Duration::from_millis(50);

/// Longest configuration file.
pub const CONFIG_BYTES_MAX: u64 = 1 << 20;
/// How long a client command waits for the server.
pub const CLIENT_WAIT_MAX: Duration = Duration::from_secs(30);

const _: () = assert!(CONNECTIONS_MAX >= CONNECTIONS_MIN);
const _: () = assert!(HEAD_BYTES_MAX >= 8192);
const _: () = assert!(CALL_BODY_BYTES_MAX > 6 * (REASON_BYTES_MAX + REQUEST_ID_BYTES_MAX));
const _: () = assert!(BATCH_BODIES_BYTES_MAX >= BODY_BYTES_MAX);
const _: () = assert!(RESP_STRANGER_BULK_BYTES_MAX <= RESP_BULK_BYTES_MAX);
const _: () = assert!(RESP_STRANGER_ARGS_MAX <= RESP_ARGS_MAX);
