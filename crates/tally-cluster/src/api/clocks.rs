//! The time of each partition, by the clock of its broker.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::join_all;
use parking_lot::Mutex;
use tally_core::time::{Millis, Position};
use tokio::sync::Notify;

use crate::kafka::{Appended, Appender};
use crate::limits::{TIME_LEARNED_EVERY_MS, TIME_RETRY_MS};
use crate::worker::{BrokerClock, elapsed_ms};

/// One clock for each partition: a broker whose clock is ahead must not make counters of other brokers expire.
///
/// A time read from a partition is a lower bound for its current time. The age of a reading is known only once the
/// current time is, from a recent append.
pub struct PartitionClocks {
    clocks: Vec<PartitionClock>,
    /// Notified when the time of another partition becomes known.
    learned: Notify,
}

struct PartitionClock {
    time: BrokerClock,
    is_known: AtomicBool,
    /// When a broker last reported the time, by the monotonic clock.
    learned_at_ms: AtomicI64,
    /// Held while the time is changed.
    positions: Mutex<ClockPositions>,
}

impl Default for PartitionClock {
    fn default() -> PartitionClock {
        PartitionClock {
            time: BrokerClock::default(),
            is_known: AtomicBool::new(false),
            learned_at_ms: AtomicI64::new(i64::MIN),
            positions: Mutex::default(),
        }
    }
}

/// Where the times came from.
#[derive(Default)]
struct ClockPositions {
    /// The position after the last reset of the partition's clock.
    reset: Position,
    /// The first position that a time was taken from since then.
    first: Option<Position>,
}

impl PartitionClock {
    /// Applies a time that came with this position, unless it is from before a reset and arrived late.
    fn take(&self, position: Position, take: impl FnOnce(&PartitionClock)) {
        let mut positions = self.positions.lock();
        if position >= positions.reset {
            positions.first = Some(positions.first.map_or(position, |first| first.min(position)));
            take(self);
        }
    }
}

impl PartitionClocks {
    /// Nothing is known yet.
    pub fn new(partitions: u32) -> PartitionClocks {
        let clocks = (0..partitions).map(|_| PartitionClock::default()).collect();
        PartitionClocks { clocks, learned: Notify::new() }
    }

    /// Records that the partition had reached this time at this position, perhaps long ago.
    pub fn observe(&self, partition: u32, at: Millis, position: Position) {
        if let Some(clock) = self.clocks.get(partition as usize) {
            clock.take(position, |clock| clock.time.observe(at));
        }
    }

    /// Records the current time, as a broker has just reported it at this position.
    pub fn learn(&self, partition: u32, now: Millis, position: Position) {
        self.know(partition, position, |clock| {
            clock.time.learn(now);
            clock.learned_at_ms.store(elapsed_ms(), Ordering::Release);
        });
    }

    /// Records that it is about this time now, or later: the partition has reached it since its last heartbeat. Its
    /// worker may be behind, so this never sets the clock back.
    pub fn confirm(&self, partition: u32, at: Millis, position: Position) {
        self.know(partition, position, |clock| clock.time.observe(at));
    }

    fn know(&self, partition: u32, position: Position, take: impl FnOnce(&PartitionClock)) {
        let Some(clock) = self.clocks.get(partition as usize) else { return };
        clock.take(position, |clock| {
            take(clock);
            if !clock.is_known.swap(true, Ordering::AcqRel) {
                self.learned.notify_waiters();
            }
        });
    }

    /// Whether the time of a partition is known, and not only a bound.
    pub fn is_known(&self, partition: u32) -> bool {
        self.clocks.get(partition as usize).is_some_and(|clock| clock.is_known.load(Ordering::Acquire))
    }

    /// Resolves once the time of the partition is known.
    pub async fn known(&self, partition: u32) {
        loop {
            let mut learned = std::pin::pin!(self.learned.notified());
            // Enabled before the check, so that no notification is missed in between.
            learned.as_mut().enable();
            if self.is_known(partition) {
                return;
            }
            learned.await;
        }
    }

    /// Records that the partition's clock was reset before this position and has reached this time since. Returns
    /// whether a time from before the reset was known.
    pub fn reset(&self, partition: u32, at: Millis, position: Position) -> bool {
        let Some(clock) = self.clocks.get(partition as usize) else { return false };
        let mut positions = clock.positions.lock();
        if position <= positions.reset {
            return false;
        }
        positions.reset = position;
        if positions.first.is_none_or(|first| first >= position) {
            return false;
        }
        positions.first = Some(position);
        clock.time.reset(at);
        // The time of the reset may be long ago.
        clock.is_known.store(false, Ordering::Release);
        true
    }

    /// The time of a partition. While it has no record, the earliest time of the others, so that nothing expires too
    /// soon.
    pub fn now(&self, partition: u32) -> Millis {
        let own = self.clocks.get(partition as usize).and_then(|clock| clock.time.now());
        own.or_else(|| self.clocks.iter().filter_map(|clock| clock.time.now()).min()).unwrap_or_default()
    }

    /// Partitions whose time is unknown, or was learned too long ago: only learning it again corrects a clock that was
    /// ahead.
    fn to_learn(&self) -> Vec<u32> {
        let learned_before = elapsed_ms() - TIME_LEARNED_EVERY_MS;
        let is_old = |clock: &PartitionClock| clock.learned_at_ms.load(Ordering::Acquire) < learned_before;
        let is_due = |clock: &PartitionClock| !clock.is_known.load(Ordering::Acquire) || is_old(clock);
        (0..).zip(&self.clocks).filter(|(_, clock)| is_due(clock)).map(|(partition, _)| partition).collect()
    }
}

/// Learns the time of each partition by appending an empty batch, unless another append has just told it, and does so
/// again from time to time. A heartbeat is not enough: those of a dead worker stay in Redis.
pub async fn learn_times(clocks: Weak<PartitionClocks>, appender: Arc<Appender>) {
    while let Some(due) = clocks.upgrade().map(|clocks| clocks.to_learn()) {
        let appended = due.iter().map(|partition| learn_time(&clocks, &appender, *partition));
        join_all(appended).await;
        tokio::time::sleep(Duration::from_millis(TIME_RETRY_MS)).await;
    }
}

async fn learn_time(clocks: &Weak<PartitionClocks>, appender: &Appender, partition: u32) {
    match (appender.append_empty(partition).await, clocks.upgrade()) {
        (Ok(Appended { at: Some(at), end }), Some(clocks)) => clocks.learn(partition, at, end),
        (Err(error), _) => tracing::debug!(partition, %error, "the time of the partition is not known yet"),
        // The broker gave no time, or this node is closing.
        (Ok(_), _) => {}
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn a_broker_that_is_ahead_changes_only_the_time_of_its_own_partitions() {
        let clocks = PartitionClocks::new(3);
        assert_eq!(clocks.now(0), Millis(0));
        clocks.observe(0, Millis(1_000_000), Position(1));
        clocks.observe(1, Millis(9_000_000_000), Position(1));
        assert!(clocks.now(0) < Millis(2_000_000));
        assert!(clocks.now(1) >= Millis(9_000_000_000));
        assert!(clocks.now(2) < Millis(2_000_000), "it has no record yet");
    }

    #[test]
    fn a_time_of_the_past_is_a_bound_and_not_the_time() {
        let clocks = PartitionClocks::new(2);
        let mut known = std::pin::pin!(clocks.known(1));
        clocks.observe(1, Millis(1_000_000), Position(1));
        clocks.learn(0, Millis(1_000_000), Position(1));
        assert!(!clocks.is_known(1) && known.as_mut().now_or_never().is_none());
        clocks.learn(1, Millis(1_000_001), Position(2));
        assert!(clocks.is_known(1) && known.now_or_never().is_some());
        assert!(clocks.to_learn().is_empty(), "both were learned just before");
    }

    #[test]
    fn a_time_from_before_a_reset_that_arrives_after_it_is_ignored() {
        const HOUR: u64 = 3_600_000;
        let clocks = PartitionClocks::new(1);
        clocks.learn(0, Millis(10 * HOUR), Position(9));
        assert!(clocks.reset(0, Millis(HOUR), Position(11)));
        assert!(!clocks.is_known(0));
        clocks.learn(0, Millis(10 * HOUR), Position(10));
        clocks.observe(0, Millis(10 * HOUR), Position(10));
        assert!(clocks.now(0) < Millis(2 * HOUR) && !clocks.is_known(0));
        clocks.learn(0, Millis(HOUR + 1_000), Position(12));
        assert!(clocks.is_known(0));
        assert!(!clocks.reset(0, Millis(HOUR), Position(11)), "it is known already");
    }

    #[test]
    fn a_reset_changes_nothing_for_a_node_that_knows_only_later_times() {
        let clocks = PartitionClocks::new(1);
        clocks.learn(0, Millis(1_000_000), Position(20));
        assert!(!clocks.reset(0, Millis(900_000), Position(11)));
        assert!(clocks.is_known(0) && clocks.now(0) >= Millis(1_000_000));
    }

    #[test]
    fn the_time_that_a_worker_is_at_does_not_set_the_clock_back() {
        let clocks = PartitionClocks::new(1);
        clocks.learn(0, Millis(10_000_000), Position(1));
        // The worker was stopped for an hour and is catching up.
        (2..100).for_each(|n| clocks.confirm(0, Millis(6_000_000 + n), Position(n)));
        assert!(clocks.now(0) >= Millis(10_000_000));
    }

    #[test]
    fn a_time_that_only_heartbeats_have_told_is_learned_from_a_broker_too() {
        let clocks = PartitionClocks::new(2);
        clocks.confirm(0, Millis(1_000_000), Position(1));
        clocks.learn(1, Millis(1_000_000), Position(1));
        assert!(clocks.is_known(0) && clocks.is_known(1));
        assert_eq!(clocks.to_learn(), [0]);
    }
}
