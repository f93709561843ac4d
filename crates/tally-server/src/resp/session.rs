//! What a connection remembers between requests.

use super::reply::ProtocolVersion;

/// The state of one connection.
#[derive(Default)]
pub struct Session {
    /// The version of the protocol.
    pub version: ProtocolVersion,
    /// Commands queued since `MULTI`.
    pub transaction: Option<Transaction>,
}

/// A transaction that is being queued.
#[derive(Default)]
pub struct Transaction {
    /// The queued requests, one after the other, written as arrays.
    pub requests: Vec<u8>,
    /// Number of requests.
    pub commands: usize,
    /// Arguments of all of them, which bound their events.
    pub args: usize,
    /// One of them was wrong, so `EXEC` refuses all.
    pub aborted: bool,
}
