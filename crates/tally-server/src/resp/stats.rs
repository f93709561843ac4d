//! Counts that `INFO` shows: hits, errors, calls of each command, and the rate of commands.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::limits::RESP_RATE_SPAN_MIN;

/// Counts since the start.
#[derive(Default)]
pub struct RespStats {
    hits: AtomicU64,
    misses: AtomicU64,
    errors: AtomicU64,
    commands: Mutex<BTreeMap<&'static str, CommandCounts>>,
    rate: Mutex<RateSample>,
}

/// The calls of one command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CommandCounts {
    /// Calls that were executed.
    pub calls: u64,
    /// Microseconds from reading the request to writing the reply, all calls together.
    pub micros: u64,
    /// Calls that were refused before they were executed.
    pub rejected: u64,
    /// Calls that failed.
    pub failed: u64,
}

impl CommandCounts {
    /// Adds the other counts.
    pub fn add(&mut self, other: CommandCounts) {
        self.calls += other.calls;
        self.micros += other.micros;
        self.rejected += other.rejected;
        self.failed += other.failed;
    }
}

/// Hits, misses and errors among replies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplyCounts {
    /// Reads of counters that exist.
    pub hits: u64,
    /// Reads of counters that do not.
    pub misses: u64,
    /// Errors.
    pub errors: u64,
}

impl ReplyCounts {
    /// The sum of both.
    pub fn plus(self, other: ReplyCounts) -> ReplyCounts {
        ReplyCounts {
            hits: self.hits + other.hits,
            misses: self.misses + other.misses,
            errors: self.errors + other.errors,
        }
    }
}

/// The number of commands at some point in time, and the rate until then.
#[derive(Clone, Copy, Default)]
struct RateSample {
    at: Duration,
    commands: u64,
    per_second: u64,
}

impl RespStats {
    /// Adds the counts of some replies.
    pub fn add_replies(&self, counts: ReplyCounts) {
        for (total, more) in [(&self.hits, counts.hits), (&self.misses, counts.misses), (&self.errors, counts.errors)] {
            // Usually zero, so the shared counter is not touched.
            if more > 0 {
                total.fetch_add(more, Relaxed);
            }
        }
    }

    /// Adds calls of commands.
    pub fn add_calls(&self, calls: impl Iterator<Item = (&'static str, CommandCounts)>) {
        let mut commands = self.commands.lock().unwrap_or_else(PoisonError::into_inner);
        calls.for_each(|(name, counts)| commands.entry(name).or_default().add(counts));
    }

    /// The counts of all replies.
    pub fn replies(&self) -> ReplyCounts {
        let load = |count: &AtomicU64| count.load(Relaxed);
        ReplyCounts { hits: load(&self.hits), misses: load(&self.misses), errors: load(&self.errors) }
    }

    /// The commands that were called, by name.
    pub fn commands(&self) -> Vec<(&'static str, CommandCounts)> {
        let commands = self.commands.lock().unwrap_or_else(PoisonError::into_inner);
        commands.iter().map(|(name, counts)| (*name, *counts)).collect()
    }

    /// Commands per second since the last measurement, or the last result if that was too recent. `commands` is their
    /// number at `now`, the time since the start.
    pub fn commands_per_second(&self, now: Duration, commands: u64) -> u64 {
        let mut last = self.rate.lock().unwrap_or_else(PoisonError::into_inner);
        let span = now.saturating_sub(last.at);
        if span >= RESP_RATE_SPAN_MIN {
            let rate = commands.saturating_sub(last.commands) as f64 / span.as_secs_f64();
            *last = RateSample { at: now, commands, per_second: rate.round() as u64 };
        }
        last.per_second
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_that_since_the_last_question() {
        let (stats, seconds) = (RespStats::default(), Duration::from_secs);
        assert_eq!(stats.commands_per_second(Duration::from_millis(10), 50), 0, "too early to say");
        assert_eq!(stats.commands_per_second(seconds(10), 1_000), 100);
        assert_eq!(stats.commands_per_second(seconds(10), 1_500), 100, "just asked");
        assert_eq!(stats.commands_per_second(seconds(12), 1_500), 250);
        assert_eq!(stats.commands_per_second(seconds(20), 1_500), 0);
    }
}
