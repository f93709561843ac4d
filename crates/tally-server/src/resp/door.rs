//! What all threads of the Redis front door share.

use std::sync::Arc;

use tally_core::time::Millis;
use tally_engine::clock::{Clock, SystemClock};

use super::clients::Clients;
use super::cursors::Cursors;
use crate::metrics::{DoorMetrics, Stopwatch};
use crate::service::Service;

/// The Redis front door.
pub struct Door {
    /// What it leads to.
    pub service: Arc<Service>,
    /// Who came in.
    pub clients: Clients,
    /// Where walks over the counters have got to.
    pub cursors: Cursors,
    /// What it measures.
    pub metrics: Arc<DoorMetrics>,
    /// What the server was started with, for `INFO` and `CONFIG GET`.
    pub about: About,
    /// Since the start.
    pub uptime: Stopwatch,
    clock: SystemClock,
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
    /// The port it listens on.
    pub port: u16,
    /// The address it listens on.
    pub address: String,
}

impl Door {
    /// A door to the service.
    pub fn new(service: Arc<Service>, metrics: Arc<DoorMetrics>, about: About) -> Self {
        Door {
            service,
            clients: Clients::default(),
            cursors: Cursors::default(),
            metrics,
            about,
            uptime: Stopwatch::start(),
            clock: SystemClock::new(),
        }
    }

    /// The time on the server's clock.
    pub fn now(&self) -> Millis {
        self.clock.now()
    }
}
