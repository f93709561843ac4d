//! The bounds of messages, connections and waits between API nodes and workers.

use std::time::Duration;

use tally_core::limits::{
    BATCH_EVENTS_MAX, BATCH_PARTS_MAX, CALL_KEYS_MAX, KEY_BYTES_MAX, PAGE_ITEMS_MAX, REASON_BYTES_MAX,
};

/// Largest request, in bytes.
pub const REQUEST_BYTES_MAX: usize = 1 << 20;
/// Largest response, in bytes.
pub const RESPONSE_BYTES_MAX: usize = 8 << 20;
/// Largest value of a counter's record, in bytes.
pub const RECORD_BYTES_MAX: usize = 256;
/// Longest address, in bytes.
pub const ADDRESS_BYTES_MAX: usize = 256;
/// Longest text of an error, in bytes. More is cut off.
pub const ERROR_BYTES_MAX: usize = 1_024;
/// Most partitions in one status.
pub const STATUS_PARTITIONS_MAX: usize = 65_536;
/// Shortest secret, in bytes.
pub const SECRET_BYTES_MIN: usize = 16;
/// Longest secret, in bytes.
pub const SECRET_BYTES_MAX: usize = 256;

/// Most connections of a server.
pub const CONNECTIONS_MAX: usize = 1_024;
/// Most requests of one connection that are not answered. More of them wait at the client.
pub const CONNECTION_REQUESTS_MAX: u32 = 4_096;
/// Most requests of a server that are not answered. More of them are refused.
pub const SERVER_REQUESTS_MAX: usize = 16_384;
/// Largest head of a request, in bytes.
pub const HEAD_BYTES_MAX: u32 = 4_096;
/// Bytes of one message that are sent before the receiver has read any.
pub const MESSAGE_WINDOW_BYTES: u32 = 1 << 20;
/// The same for all messages of a connection.
pub const CONNECTION_WINDOW_BYTES: u32 = 16 << 20;

/// Longest wait for the TLS handshake of a connection.
pub const HANDSHAKE_MAX: Duration = Duration::from_secs(5);
/// Longest wait for the first request of a connection.
pub const FIRST_REQUEST_MAX: Duration = Duration::from_secs(10);
/// Longest time without a request before a connection is closed. The client opens another one when it needs it.
pub const IDLE_MAX: Duration = Duration::from_secs(600);
/// Longest wait for the whole body of a request.
pub const BODY_READ_MAX: Duration = Duration::from_secs(10);
/// Pause between two pings of a connection.
pub const PING_EVERY: Duration = Duration::from_secs(2);
/// Longest wait for the answer to a ping. Then the connection is closed.
pub const PING_ANSWER_MAX: Duration = Duration::from_secs(3);
/// Pause after a failed accept, when the process has no file descriptors left.
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Longest wait for the last answers to be written when the server stops.
pub const CLOSE_MAX: Duration = Duration::from_secs(1);

/// Longest wait for a connection to a worker.
pub const CONNECT_MAX: Duration = Duration::from_secs(2);
/// Pause after the first failed attempt to connect. Calls fail without another attempt meanwhile.
pub const RECONNECT_PAUSE_MIN: Duration = Duration::from_millis(10);
/// The pause doubles with each failed attempt up to this.
pub const RECONNECT_PAUSE_MAX: Duration = Duration::from_secs(1);
/// Most workers that a client remembers.
pub const PEERS_MAX: usize = 4_096;

/// Most ledger entries in an answer: a page, and one more that shows whether there is another page.
pub const LEDGER_ENTRIES_MAX: usize = PAGE_ITEMS_MAX + 1;

/// Longest number in a message, in bytes.
const NUMBER_BYTES_MAX: usize = 10;
const _: () = assert!(CALL_KEYS_MAX * (KEY_BYTES_MAX + NUMBER_BYTES_MAX) + 64 <= REQUEST_BYTES_MAX);
const _: () = assert!(
    BATCH_EVENTS_MAX * (2 + 3 * NUMBER_BYTES_MAX) + BATCH_PARTS_MAX * 4 * NUMBER_BYTES_MAX + 64 <= RESPONSE_BYTES_MAX
);
const _: () = assert!(LEDGER_ENTRIES_MAX * (2 * REASON_BYTES_MAX + 256) + 64 <= RESPONSE_BYTES_MAX);
const _: () = assert!(CALL_KEYS_MAX * (RECORD_BYTES_MAX + NUMBER_BYTES_MAX) + 64 <= RESPONSE_BYTES_MAX);
const _: () = assert!(CALL_KEYS_MAX * (RECORD_BYTES_MAX + 32 + 2 * NUMBER_BYTES_MAX) + 64 <= RESPONSE_BYTES_MAX);
const _: () = assert!(STATUS_PARTITIONS_MAX * (5 * NUMBER_BYTES_MAX + 2) + 64 <= RESPONSE_BYTES_MAX);
const _: () = assert!(CONNECTION_REQUESTS_MAX as usize <= SERVER_REQUESTS_MAX);
const _: () = assert!(2 * crate::limits::STORE_READS_WAITING_MAX <= CONNECTION_REQUESTS_MAX as usize);
