//! State shared by all threads of the Redis protocol.

use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use tally_core::time::Millis;
use tally_engine::clock::{Clock, SystemClock};
use tokio::sync::{Semaphore, SemaphorePermit};

use super::clients::Clients;
use super::cursors::Cursors;
use super::monitors::Monitors;
use super::stats::RespStats;
use crate::limits::{RESP_KEYS_AT_ONCE, RESP_SCANNED_MAX};
use crate::metrics::{ProtocolMetrics, Stopwatch};
use crate::service::Service;

/// The server of the Redis protocol.
pub struct RespServer {
    /// Counters.
    pub service: Arc<Service>,
    /// Connected clients.
    pub clients: Clients,
    /// Connections that see all commands.
    pub monitors: Arc<Monitors>,
    /// Positions of `SCAN`.
    pub cursors: Cursors,
    /// Memory that connections share.
    pub limits: Arc<SharedLimits>,
    /// Listings that may run at a time, because each holds many keys.
    pub listings: Listings,
    /// Counts of requests and connections.
    pub metrics: Arc<ProtocolMetrics>,
    /// Counts that `INFO` shows.
    pub stats: RespStats,
    /// Settings that `INFO` and `CONFIG GET` show.
    pub settings: ShownSettings,
    /// Runs since the server started.
    pub uptime: Stopwatch,
    clock: SystemClock,
    random: RandomState,
    /// How many random numbers have been drawn.
    drawn: AtomicU64,
}

/// Limits the memory of commands that list keys.
pub struct Listings {
    keys: Semaphore,
    scans: Semaphore,
}

impl Default for Listings {
    fn default() -> Self {
        Listings { keys: Semaphore::new(RESP_KEYS_AT_ONCE), scans: Semaphore::new(RESP_SCANNED_MAX) }
    }
}

impl Listings {
    /// Waits until a `KEYS` may run.
    pub async fn keys(&self) -> Option<SemaphorePermit<'_>> {
        self.keys.acquire().await.ok()
    }

    /// Waits until a command may visit this many counters at a time.
    pub async fn scan(&self, counters: usize) -> Option<SemaphorePermit<'_>> {
        self.scans.acquire_many(counters.min(RESP_SCANNED_MAX) as u32).await.ok()
    }
}

/// Memory that all connections share.
#[derive(Default)]
pub struct SharedLimits {
    /// Bytes of requests that are not complete, and of transactions being queued.
    pub unfinished: SharedLimit,
    /// Bytes of replies that sockets have not accepted yet.
    pub unread: SharedLimit,
}

/// Bytes that all connections hold together.
#[derive(Default)]
pub struct SharedLimit(AtomicUsize);

impl SharedLimit {
    /// Updates the share of one connection from `before` to `after` bytes.
    #[inline]
    pub fn change(&self, before: usize, after: usize) {
        // Usually both are 0, so the shared counter is not touched.
        if before < after {
            self.0.fetch_add(after - before, Relaxed);
        } else if after < before {
            self.0.fetch_sub(before - after, Relaxed);
        }
    }

    /// Bytes of all connections.
    pub fn bytes(&self) -> usize {
        self.0.load(Relaxed)
    }
}

/// Settings that clients can read.
#[derive(Clone, Debug)]
pub struct ShownSettings {
    /// The data directory.
    pub data: String,
    /// The memory budget.
    pub memory_bytes: u64,
    /// Maximum number of connections.
    pub connections_max: usize,
    /// The address the server listens on.
    pub address: SocketAddr,
}

impl RespServer {
    /// A server for this service.
    pub fn new(service: Arc<Service>, metrics: Arc<ProtocolMetrics>, settings: ShownSettings) -> Self {
        RespServer {
            service,
            clients: Clients::default(),
            monitors: Arc::default(),
            cursors: Cursors::default(),
            limits: Arc::default(),
            listings: Listings::default(),
            metrics,
            stats: RespStats::default(),
            settings,
            uptime: Stopwatch::start(),
            clock: SystemClock,
            random: RandomState::new(),
            drawn: AtomicU64::new(0),
        }
    }

    /// The ID of this run of the server: forty hexadecimal digits, as in Redis.
    pub fn run_id(&self) -> String {
        format!("{:040x}", (u128::from(self.random.hash_one(0u8)) << 64) | u128::from(std::process::id()))
    }

    /// A pseudorandom number.
    pub fn random(&self) -> u64 {
        self.random.hash_one(self.drawn.fetch_add(1, Relaxed))
    }

    /// The time on the server's clock.
    pub fn now(&self) -> Millis {
        self.clock.wall()
    }
}
