//! Connected clients, as `CLIENT LIST` and `INFO` show them.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tally_core::time::Millis;

/// One connected client.
pub struct RespClient {
    /// Its ID, never reused.
    pub id: u64,
    /// Its address.
    pub peer: SocketAddr,
    /// The server's address it connected to.
    pub local: SocketAddr,
    since: Millis,
    last_ms: AtomicU64,
    commands: AtomicU64,
    version: AtomicU8,
    queueing: AtomicBool,
    texts: Mutex<Texts>,
}

/// What a client set about itself.
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

    /// Its library.
    pub fn set_library(&self, name: &[u8]) {
        self.texts().library = name.to_vec();
    }

    /// The version of its library.
    pub fn set_library_version(&self, version: &[u8]) {
        self.texts().library_version = version.to_vec();
    }

    /// The last command, except those on counters.
    pub fn set_last_command(&self, name: &'static str) {
        self.texts().last_command = name;
    }

    /// The protocol it speaks, 2 or 3.
    pub fn set_version(&self, version: u8) {
        self.version.store(version, Relaxed);
    }

    /// Whether it is queueing a transaction.
    pub fn set_queueing(&self, queueing: bool) {
        self.queueing.store(queueing, Relaxed);
    }

    /// The line of `CLIENT LIST`.
    pub fn line(&self, now: Millis) -> String {
        let texts = self.texts().clone();
        let mut line = String::new();
        let shown = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let last = Millis(self.last_ms.load(Relaxed));
        let queueing = self.queueing.load(Relaxed);
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
            if queueing { "x" } else { "N" },
            if queueing { 0 } else { -1 },
            if texts.last_command.is_empty() { "NULL" } else { texts.last_command },
            self.version.load(Relaxed),
            shown(&texts.library),
            shown(&texts.library_version),
        );
        line
    }
}

/// All connected clients.
#[derive(Default)]
pub struct Clients {
    next: AtomicU64,
    gone_commands: AtomicU64,
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
            texts: Mutex::default(),
        });
        self.known().insert(id, Arc::clone(&client));
        client
    }

    /// A client disconnected.
    pub fn remove(&self, id: u64) {
        if let Some(client) = self.known().remove(&id) {
            self.gone_commands.fetch_add(client.commands.load(Relaxed), Relaxed);
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

    /// Commands of all clients, including those that have disconnected.
    pub fn commands(&self) -> u64 {
        let known = self.known();
        let present: u64 = known.values().map(|client| client.commands.load(Relaxed)).sum();
        present + self.gone_commands.load(Relaxed)
    }

    /// All clients, by ID.
    pub fn all(&self) -> Vec<Arc<RespClient>> {
        self.known().values().cloned().collect()
    }
}
