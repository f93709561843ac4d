//! Connected clients, as `CLIENT LIST` and `INFO` show them.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use tally_core::time::Millis;
use tokio::sync::mpsc;

/// One connected client.
pub struct RespClient {
    /// Its ID, never reused.
    pub id: u64,
    /// Its address.
    pub peer: SocketAddr,
    /// The server address it connected to.
    pub local: SocketAddr,
    since: Millis,
    last_ms: AtomicU64,
    commands: AtomicU64,
    version: AtomicU8,
    queueing: AtomicBool,
    monitoring: AtomicBool,
    received_bytes: AtomicU64,
    sent_bytes: AtomicU64,
    texts: Mutex<Texts>,
    /// Tells the thread that serves it to close it.
    closer: OnceLock<Closer>,
    closed: AtomicBool,
}

/// How a connection is closed on request, such as by `CLIENT KILL`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClosingMode {
    /// Its replies are sent first.
    AfterReplies,
    /// Even if its client does not read.
    AtOnce,
}

/// Sends the IDs of connections to close, each at most once.
pub type Closer = mpsc::UnboundedSender<(u64, ClosingMode)>;

/// What a client said about itself, and its last command.
#[derive(Clone, Default)]
struct Texts {
    name: Vec<u8>,
    library: Vec<u8>,
    library_version: Vec<u8>,
    last_command: &'static str,
}

impl RespClient {
    fn texts(&self) -> MutexGuard<'_, Texts> {
        self.texts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts commands it sent.
    pub fn used(&self, commands: u64) {
        self.commands.fetch_add(commands, Relaxed);
    }

    /// Counts bytes it sent.
    pub fn received(&self, bytes: usize) {
        self.received_bytes.fetch_add(bytes as u64, Relaxed);
    }

    /// Counts bytes that were sent to it.
    pub fn sent(&self, bytes: usize) {
        self.sent_bytes.fetch_add(bytes as u64, Relaxed);
    }

    /// Sets the thread that closes it. Called once.
    pub fn set_closer(&self, closer: Closer) {
        let _ = self.closer.set(closer);
    }

    /// Asks its thread to close it.
    pub fn close(&self, mode: ClosingMode) {
        if let Some(closer) = self.closer.get().filter(|_| !self.closed.swap(true, Relaxed)) {
            // If the thread is gone, so is the connection.
            let _ = closer.send((self.id, mode));
        }
    }

    fn traffic(&self) -> Traffic {
        let load = |count: &AtomicU64| count.load(Relaxed);
        Traffic {
            commands: load(&self.commands),
            received_bytes: load(&self.received_bytes),
            sent_bytes: load(&self.sent_bytes),
        }
    }

    /// Records when it last sent something.
    pub fn seen_at(&self, now: Millis) {
        self.last_ms.store(now.0, Relaxed);
    }

    /// Its name.
    pub fn name(&self) -> Vec<u8> {
        self.texts().name.clone()
    }

    /// Sets its name.
    pub fn set_name(&self, name: &[u8]) {
        self.texts().name = name.to_vec();
    }

    /// Sets the name of its library.
    pub fn set_library(&self, name: &[u8]) {
        self.texts().library = name.to_vec();
    }

    /// Sets the version of its library.
    pub fn set_library_version(&self, version: &[u8]) {
        self.texts().library_version = version.to_vec();
    }

    /// Records its last command, except commands on counters.
    pub fn set_last_command(&self, name: &'static str) {
        self.texts().last_command = name;
    }

    /// Sets the protocol version it speaks, 2 or 3.
    pub fn set_version(&self, version: u8) {
        self.version.store(version, Relaxed);
    }

    /// Sets whether it is queueing a transaction.
    pub fn set_queueing(&self, queueing: bool) {
        self.queueing.store(queueing, Relaxed);
    }

    /// Sets whether it is a monitor.
    pub fn set_monitoring(&self, monitoring: bool) {
        self.monitoring.store(monitoring, Relaxed);
    }

    /// The line of `CLIENT LIST`.
    pub fn line(&self, now: Millis) -> String {
        let texts = self.texts().clone();
        let mut line = String::new();
        let shown = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let last = Millis(self.last_ms.load(Relaxed));
        let (queueing, monitoring) = (self.queueing.load(Relaxed), self.monitoring.load(Relaxed));
        let flags = match (monitoring, queueing) {
            (false, false) => "N",
            (false, true) => "x",
            (true, false) => "O",
            (true, true) => "Ox",
        };
        // Writing to a string does not fail.
        let _ = write!(
            line,
            "id={} addr={} laddr={} fd=0 name={} age={} idle={} flags={} db=0 sub=0 psub=0 ssub=0 multi={} qbuf=0 \
             qbuf-free=0 argv-mem=0 multi-mem=0 rbs=0 rbp=0 obl=0 oll=0 omem=0 tot-mem=0 events=r cmd={} user=default \
             redir=-1 resp={} lib-name={} lib-ver={}",
            self.id,
            self.peer,
            self.local,
            shown(&texts.name),
            now.since(self.since) / 1000,
            now.since(last) / 1000,
            flags,
            if queueing { 0 } else { -1 },
            if texts.last_command.is_empty() { "NULL" } else { texts.last_command },
            self.version.load(Relaxed),
            shown(&texts.library),
            shown(&texts.library_version),
        );
        line
    }
}

/// What clients sent and received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Commands.
    pub commands: u64,
    /// Bytes of requests.
    pub received_bytes: u64,
    /// Bytes of replies.
    pub sent_bytes: u64,
}

impl Traffic {
    fn plus(self, other: Traffic) -> Traffic {
        Traffic {
            commands: self.commands + other.commands,
            received_bytes: self.received_bytes + other.received_bytes,
            sent_bytes: self.sent_bytes + other.sent_bytes,
        }
    }
}

/// All connected clients.
#[derive(Default)]
pub struct Clients {
    next: AtomicU64,
    /// The traffic of clients that have disconnected.
    past: Mutex<Traffic>,
    known: Mutex<BTreeMap<u64, Arc<RespClient>>>,
}

impl Clients {
    fn known(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<RespClient>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A client connected.
    pub fn add(&self, peer: SocketAddr, local: SocketAddr, now: Millis) -> Arc<RespClient> {
        let id = self.next.fetch_add(1, Relaxed) + 1;
        let client = Arc::new(RespClient {
            id,
            peer,
            local,
            since: now,
            last_ms: AtomicU64::new(now.0),
            commands: AtomicU64::new(0),
            version: AtomicU8::new(2),
            queueing: AtomicBool::new(false),
            monitoring: AtomicBool::new(false),
            received_bytes: AtomicU64::new(0),
            sent_bytes: AtomicU64::new(0),
            texts: Mutex::default(),
            closer: OnceLock::new(),
            closed: AtomicBool::new(false),
        });
        self.known().insert(id, Arc::clone(&client));
        client
    }

    /// A client disconnected.
    pub fn remove(&self, id: u64) {
        let mut known = self.known();
        if let Some(client) = known.remove(&id) {
            let mut past = self.past();
            *past = past.plus(client.traffic());
        }
    }

    /// Number of connected clients.
    pub fn count(&self) -> usize {
        self.known().len()
    }

    /// Number of clients that ever connected.
    pub fn ever(&self) -> u64 {
        self.next.load(Relaxed)
    }

    fn past(&self) -> MutexGuard<'_, Traffic> {
        self.past.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The traffic of all clients, including those that have disconnected.
    pub fn traffic(&self) -> Traffic {
        // Locked while adding up, so that a client that disconnects is counted once.
        let known = self.known();
        known.values().fold(*self.past(), |sum, client| sum.plus(client.traffic()))
    }

    /// All clients, by ID.
    pub fn all(&self) -> Vec<Arc<RespClient>> {
        self.known().values().cloned().collect()
    }
}
