//! What all threads of the Redis front door share.

use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use tally_core::time::Millis;
use tally_engine::clock::{Clock, SystemClock};

use super::clients::Clients;
use super::cursors::Cursors;
use crate::metrics::{ProtocolMetrics, Stopwatch};
use crate::service::Service;

/// The Redis front door.
pub struct Door {
    /// What it leads to.
    pub service: Arc<Service>,
    /// Who came in.
    pub clients: Clients,
    /// Where walks over the counters have got to.
    pub cursors: Cursors,
    /// Bytes of requests that are not complete, and of transactions being queued.
    pub unfinished: Room,
    /// Bytes of answers that sockets did not take.
    pub unread: Room,
    /// What it measures.
    pub metrics: Arc<ProtocolMetrics>,
    /// What the server was started with, for `INFO` and `CONFIG GET`.
    pub about: About,
    /// Since the start.
    pub uptime: Stopwatch,
    clock: SystemClock,
    random: RandomState,
}

/// Bytes that all connections hold together.
#[derive(Default)]
pub struct Room(AtomicUsize);

impl Room {
    /// What one connection holds went from `before` to `after` bytes.
    #[inline]
    pub fn change(&self, before: usize, after: usize) {
        // Most often nothing waits before or after, and nothing shared is touched.
        if before < after {
            self.0.fetch_add(after - before, Relaxed);
        } else if after < before {
            self.0.fetch_sub(before - after, Relaxed);
        }
    }

    /// What all hold.
    pub fn bytes(&self) -> usize {
        self.0.load(Relaxed)
    }
}

/// What the server was started with.
#[derive(Clone, Debug)]
pub struct About {
    /// The data directory.
    pub data: String,
    /// The memory budget.
    pub memory_bytes: u64,
    /// Most connections at once.
    pub connections_max: usize,
    /// Where it listens.
    pub address: SocketAddr,
}

impl Door {
    /// A door to the service.
    pub fn new(service: Arc<Service>, metrics: Arc<ProtocolMetrics>, about: About) -> Self {
        Door {
            service,
            clients: Clients::default(),
            cursors: Cursors::default(),
            unfinished: Room::default(),
            unread: Room::default(),
            metrics,
            about,
            uptime: Stopwatch::start(),
            clock: SystemClock,
            random: RandomState::new(),
        }
    }

    /// Names this run of the server: forty hexadecimal digits, as in Redis.
    pub fn run_id(&self) -> String {
        format!("{:040x}", (u128::from(self.random.hash_one(0u8)) << 64) | u128::from(std::process::id()))
    }

    /// A number that differs every time.
    pub fn random(&self) -> u64 {
        self.random.hash_one(self.clients.commands())
    }

    /// The time on the server's clock.
    pub fn now(&self) -> Millis {
        self.clock.wall()
    }
}
