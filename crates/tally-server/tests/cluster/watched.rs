//! A counter that some clients increment and others read. Every reading is checked against what was acknowledged.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::thread::Scope;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::json;

use crate::harness::{Answer, Client, Server, wait_for};

/// How a counter is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadKind {
    /// The reading includes everything that was acknowledged before the call.
    Accurate,
    /// The reading includes everything that was acknowledged before its `as_of`.
    Eventual,
}

/// The counter, and what was done with it.
pub struct WatchedCounter {
    key: String,
    sent: AtomicU64,
    /// When each increment was acknowledged, in milliseconds since 1970.
    acknowledged: Mutex<Vec<u64>>,
    accurate_reads: AtomicU64,
    stop: AtomicBool,
}

impl WatchedCounter {
    pub fn new(key: &str) -> WatchedCounter {
        WatchedCounter {
            key: key.to_owned(),
            sent: AtomicU64::new(0),
            acknowledged: Mutex::default(),
            accurate_reads: AtomicU64::new(0),
            stop: AtomicBool::new(false),
        }
    }

    /// Starts a client that increments through these nodes, each time until it is acknowledged.
    pub fn write<'s>(&'s self, scope: &'s Scope<'s, '_>, servers: &[Server]) {
        let mut clients = Clients::of(servers);
        scope.spawn(move || {
            let path = format!("/api/v1/counters/{}/increment", self.key);
            while !self.stop.load(Ordering::Relaxed) {
                let id = self.sent.fetch_add(1, Ordering::SeqCst);
                let body = json!({ "request_id": id.to_string() }).to_string();
                wait_for("an acknowledgement", || clients.send("POST", &path, &body));
                let now = now_ms();
                self.acknowledged().push(now);
            }
        });
    }

    /// Starts a client that reads through these nodes and checks what it reads.
    pub fn read<'s>(&'s self, scope: &'s Scope<'s, '_>, servers: &[Server], kind: ReadKind) {
        let mut clients = Clients::of(servers);
        scope.spawn(move || {
            let path =
                format!("/api/v1/counters/{}{}", self.key, if kind == ReadKind::Accurate { "/exact" } else { "" });
            while !self.stop.load(Ordering::Relaxed) {
                let before = self.acknowledged().len() as u64;
                // A read may be refused, but must not be wrong.
                let Ok(read) = clients.send("GET", &path, "") else { continue };
                let value = read.json["value"].as_u64().unwrap();
                let least = match kind {
                    ReadKind::Accurate => before,
                    ReadKind::Eventual => self.acknowledged_before(&read),
                };
                assert!(value >= least, "{kind:?} reading misses some of {least} acknowledged: {}", read.text);
                assert!(value <= self.sent.load(Ordering::SeqCst), "{kind:?} reading has too many: {}", read.text);
                self.accurate_reads.fetch_add(u64::from(kind == ReadKind::Accurate), Ordering::Relaxed);
            }
        });
    }

    fn acknowledged(&self) -> MutexGuard<'_, Vec<u64>> {
        self.acknowledged.lock().unwrap()
    }

    fn acknowledged_before(&self, read: &Answer) -> u64 {
        let as_of = humantime::parse_rfc3339(read.json["as_of"].as_str().unwrap()).unwrap();
        let as_of = as_of.duration_since(UNIX_EPOCH).unwrap().as_millis() as u64;
        self.acknowledged().iter().filter(|at| **at < as_of).count() as u64
    }

    /// Waits until this many more increments are acknowledged.
    pub fn wait_for_writes(&self, more: usize) {
        let wanted = self.acknowledged().len() + more;
        wait_for("increments", || {
            let count = self.acknowledged().len();
            if count >= wanted { Ok(()) } else { Err(count) }
        });
    }

    /// Waits until this many more accurate reads have succeeded.
    pub fn wait_for_accurate_reads(&self, more: u64) {
        let wanted = self.accurate_reads.load(Ordering::Relaxed) + more;
        wait_for("reads", || {
            let count = self.accurate_reads.load(Ordering::Relaxed);
            if count >= wanted { Ok(()) } else { Err(count) }
        });
    }

    /// Tells the clients to stop.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Number of increments, all acknowledged once the clients have ended.
    pub fn count(&self) -> u64 {
        self.sent.load(Ordering::SeqCst)
    }
}

/// Connections that are used in turn.
struct Clients {
    clients: Vec<Client>,
    next: usize,
}

impl Clients {
    fn of(servers: &[Server]) -> Clients {
        Clients { clients: servers.iter().map(Server::client).collect(), next: 0 }
    }

    /// A request that must be answered with 200 or 503.
    fn send(&mut self, method: &str, path: &str, body: &str) -> Result<Answer, String> {
        self.next = (self.next + 1) % self.clients.len();
        let answer = self.clients[self.next].send(method, path, &[], body);
        match answer.status {
            200 => Ok(answer),
            503 => Err(answer.text),
            status => panic!("{status}: {}", answer.text),
        }
    }
}

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64
}
