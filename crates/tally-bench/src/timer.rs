//! Measures elapsed time.

use std::time::{Duration, Instant};

/// Measures the time since its start.
#[derive(Clone, Copy, Debug)]
pub struct Timer(Instant);

#[expect(clippy::disallowed_methods, reason = "a benchmark measures time")]
impl Timer {
    /// Starts.
    pub fn start() -> Self {
        Timer(Instant::now())
    }

    /// Time since the start.
    pub fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }

    /// Seconds since the start.
    pub fn seconds(&self) -> f64 {
        self.elapsed().as_secs_f64()
    }
}
