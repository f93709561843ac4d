//! The benchmark's clock and its random numbers.

use std::time::{Duration, Instant};

/// Measures from its making.
#[derive(Clone, Copy, Debug)]
pub struct Stopwatch(Instant);

#[expect(clippy::disallowed_methods, reason = "a benchmark measures time")]
impl Stopwatch {
    /// Starts.
    pub fn start() -> Self {
        Stopwatch(Instant::now())
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

/// A small generator (splitmix64): fast, and the same numbers every run.
#[derive(Clone, Debug)]
pub struct Numbers(u64);

impl Numbers {
    /// Starts from a seed.
    pub fn new(seed: u64) -> Self {
        Numbers(seed)
    }

    /// The next number.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }
}
