//! How this crate fails, and how it waits: panics that say what is wrong, and deadlines.

use std::fmt::Display;
use std::thread::park_timeout;
use std::time::{Duration, Instant};

/// How long anything may take before the test fails. Only a test that fails ever waits this long.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Time between two attempts. No result depends on it.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Ends the test.
#[track_caller]
#[expect(clippy::panic, reason = "a test whose service fails has failed; there is nobody to hand an error to")]
pub fn fail(message: &str) -> ! {
    panic!("{message}")
}

/// Ends the test if a result is an error.
pub trait OrFail<T> {
    /// The value, or a panic that says what was attempted and why it failed.
    fn or_fail(self, attempted: &str) -> T;
}

impl<T, E: Display> OrFail<T> for Result<T, E> {
    #[track_caller]
    fn or_fail(self, attempted: &str) -> T {
        self.unwrap_or_else(|error| fail(&format!("{attempted}: {error}")))
    }
}

/// Calls `attempt` until it returns a value. Returns the last error when the deadline has passed.
#[expect(clippy::disallowed_methods, reason = "real services take real time")]
pub fn poll<T>(mut attempt: impl FnMut() -> Result<T, String>) -> Result<T, String> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match attempt() {
            Ok(value) => return Ok(value),
            Err(seen) if Instant::now() >= deadline => return Err(format!("not within {PATIENCE:?}; {seen}")),
            Err(_) => park_timeout(POLL_INTERVAL),
        }
    }
}

/// Calls `attempt` until it succeeds, for conditions that no method of a service waits for. Ends the test with the last
/// error when the deadline has passed.
#[track_caller]
pub fn wait_for<T>(what: &str, attempt: impl FnMut() -> Result<T, String>) -> T {
    poll(attempt).or_fail(what)
}
