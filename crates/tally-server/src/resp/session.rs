//! The state of a connection between requests.

use std::cell::RefCell;
use std::rc::Rc;

use tally_core::key::Key;

use super::monitors::MonitorSubscription;
use super::reply::ProtocolVersion;
use crate::policy::Consistency;

/// The state of one connection.
#[derive(Default)]
pub struct Session {
    /// The version of the protocol.
    pub version: ProtocolVersion,
    /// Commands queued since `MULTI`.
    pub transaction: Option<Transaction>,
    /// The database that the client selected, if it does not exist. Until it selects database 0, commands are refused.
    pub refused_database: Option<Box<str>>,
    /// Which replies the client wants.
    pub replies: ReplyMode,
    /// The subscription of a connection in `MONITOR` mode.
    pub monitor: Option<MonitorSubscription>,
}

/// Which replies a client wants, as `CLIENT REPLY` sets it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReplyMode {
    /// All.
    #[default]
    On,
    /// None.
    Off,
    /// All but that of the next command.
    SkipNext,
}

/// Counters that the next transaction depends on, with their versions. Shared with the command that reads them.
#[derive(Clone, Default)]
pub struct WatchedKeys(Rc<RefCell<Vec<(Key, i64)>>>);

impl WatchedKeys {
    /// Adds a counter.
    pub fn add(&self, key: Key, version: i64) {
        self.0.borrow_mut().push((key, version));
    }

    /// Whether the counter is one of them.
    pub fn contains(&self, key: &Key) -> bool {
        self.0.borrow().iter().any(|(known, _)| known == key)
    }

    /// The minimum consistency of reads: while keys are watched, reads must not be older than their versions.
    pub fn reads_min(&self) -> Consistency {
        if self.0.borrow().is_empty() { Consistency::BestEffort } else { Consistency::Exact }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.borrow().len()
    }

    /// Memory they take, keys included.
    pub fn bytes(&self) -> usize {
        let watched = self.0.borrow();
        let keys: usize = watched.iter().map(|(key, _)| key.as_bytes().len().max(size_of::<usize>())).sum();
        keys + watched.capacity() * size_of::<(Key, i64)>()
    }

    /// Forgets them all.
    pub fn clear(&self) {
        self.take();
    }

    /// Forgets and returns them all.
    pub fn take(&self) -> Vec<(Key, i64)> {
        self.0.take()
    }
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
