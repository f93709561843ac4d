//! The state of a connection between requests.

use super::reply::ProtocolVersion;

/// The state of one connection.
#[derive(Default)]
pub struct Session {
    /// The version of the protocol.
    pub version: ProtocolVersion,
    /// Commands queued since `MULTI`.
    pub transaction: Option<Transaction>,
    /// The database that the client selected, if it does not exist. Until it selects database 0, commands are refused.
    pub refused_database: Option<Box<str>>,
}

/// A transaction that is being queued.
#[derive(Default)]
pub struct Transaction {
    /// The queued requests in order, encoded as arrays.
    pub requests: Vec<u8>,
    /// Number of requests.
    pub commands: usize,
    /// Total number of arguments, which bounds the number of events.
    pub args: usize,
    /// One of them was invalid, so `EXEC` refuses all.
    pub aborted: bool,
}
