//! The one place where the engine asks what time it is.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tally_core::time::Millis;

/// Wall-clock and elapsed time; injected, so that tests own time.
pub trait Clock: Send + Sync + 'static {
    /// Milliseconds since the Unix epoch.
    fn now(&self) -> Millis;
    /// Time since some fixed moment, never going back.
    fn elapsed(&self) -> Duration;
}

/// The machine's clocks.
#[derive(Debug)]
pub struct SystemClock {
    started: Instant,
}

#[expect(clippy::disallowed_methods, reason = "this is the clock the rest of the engine is given")]
impl SystemClock {
    /// Starts counting elapsed time.
    #[must_use]
    pub fn new() -> Self {
        SystemClock { started: Instant::now() }
    }

    fn wall() -> SystemTime {
        SystemTime::now()
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        SystemClock::new()
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Millis {
        let since = Self::wall().duration_since(UNIX_EPOCH).unwrap_or_default();
        Millis(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
    }

    fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }
}
