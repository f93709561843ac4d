//! The limits of the server; those of counters, keys and batches are in `tally_core::limits`.

use std::time::Duration;

use tally_core::limits::{
    BODY_BYTES_MAX, CALL_EVENTS_MAX, IMPORT_ENTRIES_MAX, KEY_BYTES_MAX, REASON_BYTES_MAX, REQUEST_ID_BYTES_MAX,
    SEGMENT_BYTES,
};

/// Maximum number of open connections per protocol. Further ones get an error and are closed.
pub const CONNECTIONS_MAX: usize = 16_384;
/// Open files reserved for the data directory and the process; more if the engine needs more.
pub const FILES_RESERVED: usize = 192;
const _: () = assert!(FILES_RESERVED >= tally_engine::limits::files_needed(tally_core::limits::MEMORY_BYTES_DEFAULT));
/// Minimum number of connections per protocol, however few files the process may open.
pub const CONNECTIONS_MIN: usize = 16;

/// Longest head of a request, including the request line. Also limits `?keys=` lists, and is the size of hyper's read
/// buffer, which every connection may fill and keeps while it is idle.
pub const HEAD_BYTES_MAX: usize = 16 << 10;
/// Maximum number of headers of a request: hyper's default, which costs no allocation.
pub const HEADERS_MAX: usize = 100;
/// How long to wait for more of a request that was refused before it was read, so that the client gets the answer.
pub const LINGER_MAX: Duration = Duration::from_secs(1);
/// Maximum bytes of such a request to discard: twice the largest body. If more arrive, the connection is reset.
pub const LINGER_BYTES_MAX: usize = 2 * BODY_BYTES_MAX;
/// Time limit for a request head, and for an idle connection.
pub const HEAD_READ_MAX: Duration = Duration::from_secs(30);
/// Largest body of a call on one counter. The longest id and reason fit, escaped.
pub const CALL_BODY_BYTES_MAX: usize = 16 << 10;
/// Bytes of all batches in progress; further batches wait.
pub const BATCH_BODIES_BYTES_MAX: usize = 128 << 20;
/// Minimum reservation of a batch whose body has begun to arrive.
pub const BATCH_STEP_BYTES_MIN: usize = 4 << 10;
/// Maximum bytes of actors and reasons in one page of a ledger, before JSON encoding. The last entry may exceed it.
pub const LEDGER_PAGE_BYTES_MAX: usize = 256 << 10;
/// Maximum size of a page of an export.
pub const EXPORT_PAGE_BYTES_MAX: usize = 4 << 20;
/// Maximum bytes of actors and reasons in one item of an export, before JSON encoding. The last entry may exceed it;
/// the rest is in the next item.
pub const EXPORT_ITEM_TEXT_BYTES_MAX: usize = 64 << 10;
/// Maximum number of items of one import.
pub const IMPORT_ITEMS_MAX: usize = 1_000;
/// Bytes of items that the command line sends at once, unless a single item is larger.
pub const IMPORT_SEND_BYTES: usize = 256 << 10;
/// Longest line of an export file.
pub const EXPORT_LINE_BYTES_MAX: usize = EXPORT_PAGE_BYTES_MAX;
/// Timeout of an export or import call. The first call of an export waits until the server has stored everything.
pub const MOVE_WAIT_MAX: Duration = Duration::from_secs(120);
/// How many times such a call is retried while the server answers 503.
pub const MOVE_RETRIES_MAX: u32 = 20;
/// Delay before each retry.
pub const MOVE_RETRY_AFTER: Duration = Duration::from_secs(1);
/// Bytes of HTTP answers that clients have not read, all connections together. Further ones wait, then get a 503.
pub const ANSWERS_BYTES_MAX: usize = 64 << 20;
/// HTTP answers up to this size do not count towards the shared limit.
pub const ANSWER_BYTES_FREE: usize = 16 << 10;
/// A connection whose client reads nothing for this long is closed. Over HTTP, so is one whose client takes longer than
/// this to read an answer.
pub const WRITE_STALL_MAX: Duration = Duration::from_secs(30);
/// Time limit for a request body.
pub const BODY_READ_MAX: Duration = Duration::from_secs(30);

/// Chunks of a backup that are read ahead of the client.
pub const BACKUP_CHUNKS_AHEAD: usize = 2;
/// Minimum average rate, in bytes per second, at which a client must read a backup. A slower backup is aborted, because
/// it keeps replaced files on disk and blocks other backups.
pub const BACKUP_RATE_MIN: u64 = 256 << 10;
/// How long a backup may be slower than that at its beginning.
pub const BACKUP_SLOW_MAX: Duration = Duration::from_secs(60);
/// How long `tally backup` waits for the answer to begin, and for each read. The server writes a checkpoint first.
pub const BACKUP_BEGIN_MAX: Duration = Duration::from_secs(600);

/// Longest argument of a RESP request.
pub const RESP_BULK_BYTES_MAX: usize = 1 << 20;
/// Maximum number of arguments of a RESP request, including the command name.
pub const RESP_ARGS_MAX: usize = 1024;
/// Longest argument of a RESP request before `AUTH`.
pub const RESP_UNAUTHENTICATED_BULK_BYTES_MAX: usize = 16 << 10;
/// Maximum number of arguments of a RESP request before `AUTH`.
pub const RESP_UNAUTHENTICATED_ARGS_MAX: usize = 10;
/// Longest RESP line: an inline request or a length prefix.
pub const RESP_LINE_BYTES_MAX: usize = 64 << 10;
/// Bytes of parser buffer that an idle connection keeps; the rest is freed.
pub const RESP_SCRATCH_BYTES_KEPT: usize = 512;

/// Drain timeout: how long requests in progress may take after SIGTERM.
pub const DRAIN_MAX: Duration = Duration::from_secs(10);
/// Drain timeout after a failed flush.
pub const POISONED_GRACE: Duration = Duration::from_millis(500);
/// Delay before the next accept when the process is out of file descriptors.
pub const ACCEPT_RETRY: Duration = Duration::from_millis(50);

/// Largest configuration file.
pub const CONFIG_BYTES_MAX: u64 = 1 << 20;
/// Timeout of a client command.
pub const CLIENT_WAIT_MAX: Duration = Duration::from_secs(30);

/// Maximum number of RESP threads.
pub const RESP_THREADS_MAX: usize = 64;
/// From this many cores on, a thread gathers its next commands while the engine's own thread flushes the last ones.
/// With fewer cores, the thread that gathered commands also flushes them, which saves waking another thread.
pub const RESP_OVERLAP_CORES_MIN: usize = 4;
/// Maximum number of RESP threads by default.
pub const RESP_THREADS_DEFAULT_MAX: usize = 16;
/// Bytes read from a RESP connection at once.
pub const RESP_READ_BYTES: usize = 64 << 10;
/// Maximum number of commands in progress per RESP connection; further ones wait until these are answered.
pub const RESP_SHARE_COMMANDS_MAX: usize = 8_192;
/// Maximum number of identical requests of one RESP connection that are planned together.
pub const RESP_REPEATS_MAX: u32 = 1_024;
/// Bytes of pending replies after which a connection waits until they are written.
pub const RESP_SHARE_BYTES_MAX: usize = 256 << 10;
/// Largest RESP request, all arguments together.
pub const RESP_REQUEST_BYTES_MAX: usize = 2 << 20;
/// At this many events, after combining, a submission accepts no commands from further connections.
pub const RESP_SUBMISSION_EVENTS: usize = 4_096;
/// At this many events, after combining, a submission is closed even in the middle of a connection's commands; the rest
/// go into the next one.
pub const RESP_SUBMISSION_EVENTS_MAX: usize = RESP_SUBMISSION_EVENTS + 1_024;
/// At this many events, before combining, a submission accepts no commands from further connections, because all events
/// may have to be applied one by one.
pub const RESP_SUBMISSION_PARTS: usize = 16_384;
/// At this many events, before combining, a submission is closed even in the middle of a connection's commands.
pub const RESP_SUBMISSION_PARTS_MAX: usize = 2 * RESP_SUBMISSION_PARTS;
/// At this many bytes, a submission accepts no commands from further connections.
pub const RESP_SUBMISSION_BYTES: usize = 2 << 20;
/// At this many bytes, a submission is closed even in the middle of a connection's commands.
pub const RESP_SUBMISSION_BYTES_MAX: usize = RESP_SUBMISSION_BYTES + (1 << 20);
/// Maximum number of arguments of a transaction, all commands together.
pub const RESP_TRANSACTION_ARGS_MAX: usize = 2_048;
/// Maximum size of a transaction, all commands together.
pub const RESP_TRANSACTION_BYTES_MAX: usize = 1 << 20;
/// Commands in progress per thread; above this, its connections are not read.
pub const RESP_COMMANDS_IN_FLIGHT_MAX: usize = 256 << 10;
/// Events of these commands; above this its connections are not read. `MGET` has one event per key.
pub const RESP_EVENTS_IN_FLIGHT_MAX: usize = 256 << 10;
/// Bytes of their replies; above this its connections are not read. `COMMAND DOCS` has a long reply.
pub const RESP_REPLY_BYTES_IN_FLIGHT_MAX: usize = 16 << 20;
/// Bytes that every connection may buffer for an unfinished request, even if the shared limit is reached.
pub const RESP_UNFINISHED_BYTES_FREE: usize = 1 << 10;
/// Bytes of unfinished requests and queued transactions, all connections together. Connections over the limit are
/// closed.
pub const RESP_INPUT_BYTES_MAX: usize = 64 << 20;
/// Bytes of unread replies, all connections together. Connections over the limit are closed.
pub const RESP_OUTPUT_BYTES_MAX: usize = 64 << 20;
/// Bytes of reply buffer that an idle connection keeps.
pub const RESP_OUTPUT_BYTES_KEPT: usize = 512;
/// How long the replies of a closed connection may wait for a client that reads slowly.
pub const RESP_UNSENT_MAX: Duration = DRAIN_MAX;
/// How long a closed connection may linger after that while its client is still sending.
pub const RESP_LINGER_MAX: Duration = Duration::from_secs(1);
/// Longest name of a client, its library or its library's version.
pub const RESP_NAME_BYTES_MAX: usize = 256;
/// Shortest time over which `INFO` measures the rate of commands.
pub const RESP_RATE_SPAN_MIN: Duration = Duration::from_secs(1);
/// Longest pattern of `KEYS`, `SCAN`, `CONFIG GET` and `COMMAND LIST`. The time to match is proportional to the product
/// of both lengths.
pub const RESP_PATTERN_BYTES_MAX: usize = 1_024;
/// Keys that are matched against a pattern before the thread serves other connections.
pub const RESP_MATCH_SLICE: usize = 64;
/// How many `KEYS` run at a time; others wait. Each takes up to four times [`RESP_KEYS_BYTES_MAX`].
pub const RESP_KEYS_AT_ONCE: usize = 4;
/// How many counters `SCAN` and `FLUSHALL` visit at a time in all connections together; others wait. Each takes up to 2 KiB.
pub const RESP_SCANNED_MAX: usize = 32_768;
/// Maximum number of keys that `KEYS` returns.
pub const RESP_KEYS_MAX: usize = 100_000;
/// Maximum bytes of keys that `KEYS` returns.
pub const RESP_KEYS_BYTES_MAX: usize = 4 << 20;
/// Maximum number of connections in `MONITOR` mode.
pub const RESP_MONITORS_MAX: usize = 8;
/// Bytes queued for a monitor. At this many, it is disconnected when more arrive.
pub const RESP_MONITOR_BYTES_MAX: usize = 8 << 20;
/// Bytes of requests that are sent to monitors at once.
pub const RESP_MONITOR_STEP_BYTES: usize = 64 << 10;
/// Maximum number of keys that a connection watches.
pub const RESP_WATCHED_KEYS_MAX: usize = 512;
/// How many times `RENAME` and `COPY` try, if their source keeps changing between the read and the write.
pub const RESP_COPY_TRIES_MAX: usize = 64;
/// Maximum bytes of the name of a database that an error quotes.
pub const RESP_DATABASE_SHOWN_BYTES_MAX: usize = 32;
/// Maximum number of `SCAN` cursors kept; the oldest is dropped first.
pub const RESP_CURSORS_MAX: usize = 16_384;
/// Idle time before TCP keepalive probes.
pub const RESP_KEEPALIVE: Duration = Duration::from_secs(300);

const _: () = assert!(CONNECTIONS_MAX >= CONNECTIONS_MIN);
// A control character takes one byte in a text and six in JSON. An item may exceed its limit by one entry.
const _: () = assert!(
    6 * (EXPORT_ITEM_TEXT_BYTES_MAX + 2 * REASON_BYTES_MAX + KEY_BYTES_MAX) + 512 * (IMPORT_ENTRIES_MAX + 2)
        <= EXPORT_PAGE_BYTES_MAX / 2
);
const _: () = assert!(IMPORT_SEND_BYTES + EXPORT_LINE_BYTES_MAX + (1 << 10) <= BODY_BYTES_MAX);
const _: () =
    assert!(RESP_SUBMISSION_EVENTS_MAX + 2 * RESP_TRANSACTION_ARGS_MAX + RESP_WATCHED_KEYS_MAX < CALL_EVENTS_MAX);
// Even if they are applied one by one, they fit into a journal segment.
const _: () = assert!(((RESP_SUBMISSION_PARTS_MAX + CALL_EVENTS_MAX) * 2 * KEY_BYTES_MAX) as u64 <= SEGMENT_BYTES);
const _: () = assert!(RESP_MONITORS_MAX * RESP_MONITOR_BYTES_MAX <= RESP_OUTPUT_BYTES_MAX);
const _: () = assert!(2 * RESP_ARGS_MAX <= 2 * RESP_TRANSACTION_ARGS_MAX);
// hyper's minimum. The longest key, percent-encoded, and a request id fit as well.
const _: () = assert!(HEAD_BYTES_MAX >= 8192 && HEAD_BYTES_MAX >= 2 * (3 * KEY_BYTES_MAX + REQUEST_ID_BYTES_MAX));
// hyper answers 414 to a longer URI. The limit on the head comes first, so clients only see 431.
const _: () = assert!(HEAD_BYTES_MAX - "GET  HTTP/1.1\r\n\r\n".len() < u16::MAX as usize);
const _: () = assert!(CALL_BODY_BYTES_MAX > 6 * (REASON_BYTES_MAX + REQUEST_ID_BYTES_MAX));
// Connections that send one byte of a batch each cannot use up the memory of all batches.
const _: () = assert!(CONNECTIONS_MAX * BATCH_STEP_BYTES_MIN <= BATCH_BODIES_BYTES_MAX - BODY_BYTES_MAX);
const _: () = assert!(BODY_BYTES_MAX.is_power_of_two() && BATCH_BODIES_BYTES_MAX <= u32::MAX as usize);
const _: () = assert!(ANSWERS_BYTES_MAX <= u32::MAX as usize && ANSWER_BYTES_FREE < ANSWERS_BYTES_MAX);
const _: () = assert!(RESP_UNAUTHENTICATED_BULK_BYTES_MAX <= RESP_BULK_BYTES_MAX);
const _: () = assert!(RESP_UNAUTHENTICATED_ARGS_MAX <= RESP_ARGS_MAX);
