//! The bounds of the server itself; those of counters, keys and batches live in `tally_core::limits`.

use std::time::Duration;

use tally_core::limits::{
    BODY_BYTES_MAX, CALL_EVENTS_MAX, KEY_BYTES_MAX, REASON_BYTES_MAX, REQUEST_ID_BYTES_MAX, SEGMENT_BYTES,
};

/// Most open connections per protocol. Further ones get an error and are closed.
pub const CONNECTIONS_MAX: usize = 16_384;
/// File descriptors kept back from connections, for the data directory and the process itself.
pub const FILES_RESERVED: usize = 128;
const _: () = assert!(FILES_RESERVED >= tally_engine::limits::files_needed(tally_core::limits::MEMORY_BYTES_DEFAULT));
/// Fewest connections worth starting with.
pub const CONNECTIONS_MIN: usize = 16;

/// Longest head of a request, request line included. Also what bounds the address, so `?keys=` lists.
pub const HEAD_BYTES_MAX: usize = 64 << 10;
/// Most headers of a request: hyper's default, which costs no allocation.
pub const HEADERS_MAX: usize = 100;
/// How long a connection whose request could not be parsed is read on, so that its client gets the answer.
pub const LINGER_MAX: Duration = Duration::from_secs(1);
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

/// Most threads that serve Redis connections.
pub const RESP_THREADS_MAX: usize = 64;
/// Most of them unless told otherwise.
pub const RESP_THREADS_DEFAULT_MAX: usize = 16;
/// Bytes read from a Redis connection at once.
pub const RESP_READ_BYTES: usize = 64 << 10;
/// Most commands of one Redis connection under way at once; further ones wait until these are answered.
pub const RESP_SHARE_COMMANDS_MAX: usize = 8_192;
/// Most requests of one Redis connection that say the same and are planned at once.
pub const RESP_REPEATS_MAX: u32 = 1_024;
/// Bytes of replies known at once after which a connection has to wait until they are written.
pub const RESP_SHARE_BYTES_MAX: usize = 256 << 10;
/// Largest request over the Redis protocol, all arguments together.
pub const RESP_REQUEST_BYTES_MAX: usize = 2 << 20;
/// Events, after combining, with which a submission of gathered commands takes no further connection's.
pub const RESP_SUBMISSION_EVENTS: usize = 4_096;
/// Those after which it is closed even within the commands of one connection, which then have to wait for each other.
pub const RESP_SUBMISSION_EVENTS_MAX: usize = RESP_SUBMISSION_EVENTS + 1_024;
/// Events, combined or not, with which it takes no further connection's: all of them may have to be tried one by one.
pub const RESP_SUBMISSION_PARTS: usize = 16_384;
/// Those after which it is closed even within the commands of one connection.
pub const RESP_SUBMISSION_PARTS_MAX: usize = 2 * RESP_SUBMISSION_PARTS;
/// Bytes with which it takes no further connection's commands.
pub const RESP_SUBMISSION_BYTES: usize = 2 << 20;
/// Those after which it is closed even within the commands of one connection.
pub const RESP_SUBMISSION_BYTES_MAX: usize = RESP_SUBMISSION_BYTES + (1 << 20);
/// Most arguments of all commands of a transaction together.
pub const RESP_TRANSACTION_ARGS_MAX: usize = 2_048;
/// Most bytes of all commands of a transaction together.
pub const RESP_TRANSACTION_BYTES_MAX: usize = 1 << 20;
/// Commands of one thread under way at once; connections are not read while there are more.
pub const RESP_COMMANDS_UNDER_WAY_MAX: usize = 256 << 10;
/// Events of these commands under way at once; also a limit for reading on: `MGET` has one for each key.
pub const RESP_EVENTS_UNDER_WAY_MAX: usize = 256 << 10;
/// Bytes of their replies known at once; also a limit for reading on: `COMMAND DOCS` has a long one.
pub const RESP_REPLY_BYTES_UNDER_WAY_MAX: usize = 16 << 20;
/// An unfinished request this small is always accepted, so that clients that fill the shared limit do not lock out others.
pub const RESP_UNFINISHED_BYTES_FREE: usize = 1 << 10;
/// Bytes of unfinished requests and queued transactions that all connections hold together. One that needs more than
/// is left is closed.
pub const RESP_INPUT_BYTES_MAX: usize = 64 << 20;
/// Bytes of unread answers that all connections hold together. One that needs more than is left is closed.
pub const RESP_OUTPUT_BYTES_MAX: usize = 64 << 20;
/// Memory for answers that an idle connection keeps.
pub const RESP_OUTPUT_BYTES_KEPT: usize = 512;
/// How long a connection that is closed while its client still sends may take to end.
pub const RESP_FAREWELL_MAX: Duration = Duration::from_secs(1);
/// Longest name a client gives itself, its library or the version of that.
pub const RESP_NAME_BYTES_MAX: usize = 256;
/// Most cursors of `SCAN` remembered; the oldest is forgotten first.
pub const RESP_CURSORS_MAX: usize = 16_384;
/// How long a connection may be silent before the system asks whether its client is still there.
pub const RESP_KEEPALIVE: Duration = Duration::from_secs(300);

const _: () = assert!(CONNECTIONS_MAX >= CONNECTIONS_MIN);
const _: () = assert!(RESP_SUBMISSION_EVENTS_MAX + 2 * RESP_TRANSACTION_ARGS_MAX < CALL_EVENTS_MAX);
// However many have to be tried one by one, they fit into the journal.
const _: () = assert!(((RESP_SUBMISSION_PARTS_MAX + CALL_EVENTS_MAX) * 2 * KEY_BYTES_MAX) as u64 <= SEGMENT_BYTES);
const _: () = assert!(2 * RESP_ARGS_MAX <= 2 * RESP_TRANSACTION_ARGS_MAX);
const _: () = assert!(HEAD_BYTES_MAX >= 8192);
// hyper would answer 414 to an address longer than this. The limit of the head comes first, so 431 is the only answer.
const _: () = assert!(HEAD_BYTES_MAX - "GET  HTTP/1.1\r\n\r\n".len() < u16::MAX as usize);
const _: () = assert!(CALL_BODY_BYTES_MAX > 6 * (REASON_BYTES_MAX + REQUEST_ID_BYTES_MAX));
const _: () = assert!(BATCH_BODIES_BYTES_MAX >= BODY_BYTES_MAX);
const _: () = assert!(RESP_STRANGER_BULK_BYTES_MAX <= RESP_BULK_BYTES_MAX);
const _: () = assert!(RESP_STRANGER_ARGS_MAX <= RESP_ARGS_MAX);
