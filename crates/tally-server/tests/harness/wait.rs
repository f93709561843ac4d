//! Waiting for a condition: one deadline for every test, generous enough for a machine with other work on it.

#![allow(dead_code, reason = "each test file uses its own part")]

use std::fmt::Debug;
use std::time::{Duration, Instant};

/// How long anything may take before a test fails. Only a test that fails ever waits this long.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Time between two attempts. No result depends on it.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// Calls `attempt` until it succeeds and returns the result. Fails with the last error when the deadline has passed.
pub fn wait_for<T, E: Debug>(what: &str, mut attempt: impl FnMut() -> Result<T, E>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match attempt() {
            Ok(value) => return value,
            Err(seen) => assert!(Instant::now() < deadline, "{what}: not within {PATIENCE:?}, last seen: {seen:?}"),
        }
        std::thread::park_timeout(POLL_INTERVAL);
    }
}

/// Reads a value until it is the expected one. Fails with the last value when the deadline has passed.
pub fn wait_until_equal<T: PartialEq + Debug>(what: &str, expected: &T, mut read: impl FnMut() -> T) {
    wait_for(what, || {
        let seen = read();
        if seen == *expected { Ok(()) } else { Err(seen) }
    });
}
