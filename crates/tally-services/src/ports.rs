//! Free ports, and another attempt for a service whose port was taken by another process.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::{Ipv4Addr, TcpListener};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::fail::fail;

/// Below 32768, where Linux's ephemeral ports begin. Otherwise a client that reconnects to a killed service could get
/// the service's own port and connect to itself, and the service could not restart.
const PORTS_FIRST: u64 = 20_000;
const PORTS: u64 = 12_000;

const ATTEMPTS_MAX: usize = 5;

/// A port was taken after it was chosen and before the service bound it.
#[derive(Debug, PartialEq, Eq)]
pub struct PortTaken;

/// A port on loopback that nobody listens on. No two calls in one process return the same port.
pub fn free_port() -> u16 {
    // Starts at a random port, because other test processes choose at the same time.
    static NEXT: LazyLock<AtomicU64> =
        LazyLock::new(|| AtomicU64::new(RandomState::new().build_hasher().finish() >> 1));
    for _ in 0..PORTS {
        let offset = NEXT.fetch_add(1, Ordering::Relaxed) % PORTS;
        let Ok(port) = u16::try_from(PORTS_FIRST + offset) else { continue };
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return port;
        }
    }
    fail(&format!("no free port from {PORTS_FIRST} to {}", PORTS_FIRST + PORTS - 1))
}

/// Starts a service, and tries again with other ports if one was taken.
pub fn start_on_free_ports<T>(start: impl Fn() -> Result<T, PortTaken>) -> T {
    (0..ATTEMPTS_MAX).find_map(|_| start().ok()).unwrap_or_else(|| {
        fail(&format!("a free port was taken before the service could bind it, {ATTEMPTS_MAX} times"))
    })
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn ports_are_free_and_differ() {
        let (first, second) = (free_port(), free_port());
        assert_ne!(first, second);
        assert!(u64::from(first) >= PORTS_FIRST && u64::from(first) < PORTS_FIRST + PORTS);
    }

    #[test]
    fn a_service_that_lost_its_port_is_started_again() {
        let attempts = Cell::new(0);
        let started = start_on_free_ports(|| {
            attempts.set(attempts.get() + 1);
            if attempts.get() < 3 { Err(PortTaken) } else { Ok("started") }
        });
        assert_eq!((started, attempts.get()), ("started", 3));
    }
}
