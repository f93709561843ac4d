//! The time of a hosted partition, and how current its state is.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use tally_core::time::{Millis, Position};

use super::broker_clock::{self, BrokerClock, JumpWatch};
use crate::kafka::JournalRecord;

/// Follows the brokers' time by the records that are applied. Its methods take the time of the last batch, which it is
/// never before.
pub struct PartitionTime {
    clock: BrokerClock,
    /// Detects records from the future, for a warning.
    jumps: Mutex<JumpWatch>,
    /// Whether the journal's end has been applied once. Since then, records arrive as they are appended.
    is_current: AtomicBool,
    /// Everything that was acknowledged before this time is applied.
    current_at: AtomicU64,
    /// The position after the last reset of the clock.
    reset: AtomicU64,
    /// Whether the last record had no broker's time.
    is_untimed: AtomicBool,
}

impl PartitionTime {
    /// Of a partition whose clock was last reset before this position; zero if it never was.
    pub fn new(reset: Position) -> PartitionTime {
        PartitionTime {
            clock: BrokerClock::default(),
            jumps: Mutex::default(),
            is_current: AtomicBool::new(false),
            current_at: AtomicU64::new(0),
            reset: AtomicU64::new(reset.0),
            is_untimed: AtomicBool::new(false),
        }
    }

    /// A record of this time is about to be applied.
    pub fn observe(&self, partition: u32, record: &JournalRecord, at: Millis) {
        self.is_untimed.store(false, Ordering::Release);
        let is_current = self.is_current.load(Ordering::Acquire);
        match is_current {
            true => self.clock.learn(at),
            false => self.clock.observe(at),
        }
        if let Some(ahead_ms) = self.jumps.lock().observe(at, broker_clock::elapsed_ms(), is_current) {
            tracing::warn!(
                partition,
                position = record.start.0,
                ahead_ms,
                "a record is from the future: the clock of its broker is ahead. Counters with an expiry expire too early, and the \
                 partition's time stands still until it is reached. Correct that clock, then run `tally cluster reset-clock \
                 --partition {partition}`"
            );
        }
    }

    /// A record without a broker's time is about to be applied. It changes no time.
    pub fn observe_untimed(&self, partition: u32, record: &JournalRecord) {
        if !self.is_untimed.swap(true, Ordering::AcqRel) {
            tracing::error!(
                partition,
                position = record.start.0,
                "records without the time of a broker are applied at the time of the record before them; was the topic set \
                 to message.timestamp.type=CreateTime?"
            );
        }
    }

    /// Whether the last record had no broker's time.
    pub fn is_untimed(&self) -> bool {
        self.is_untimed.load(Ordering::Acquire)
    }

    /// A record of this time that sets the clock back is about to be applied.
    pub fn reset(&self, partition: u32, record: &JournalRecord, at: Millis) {
        self.clock.reset(at);
        self.current_at.store(0, Ordering::Release);
        self.jumps.lock().reset();
        self.reset.store(record.end().0, Ordering::Release);
        let position = record.start.0;
        tracing::warn!(partition, position, "the partition's clock was reset to the brokers' time");
    }

    /// The position after the last reset of the clock; zero if there was none.
    pub fn last_reset(&self) -> Position {
        Position(self.reset.load(Ordering::Acquire))
    }

    /// The brokers' time, if it is known because a record has arrived.
    pub fn brokers(&self) -> Option<Millis> {
        self.clock.now()
    }

    /// The time by which expiry is decided: the brokers'.
    pub fn now(&self, last_batch: Millis) -> Millis {
        self.clock.now().map_or(last_batch, |now| now.max(last_batch))
    }

    /// Everything that was acknowledged before this time is applied: all before the last record, and more if the
    /// journal's end was found to be applied.
    pub fn current_at(&self, last_batch: Millis) -> Millis {
        last_batch.max(Millis(self.current_at.load(Ordering::Acquire)))
    }

    /// Records that everything acknowledged before `asked_at` is applied.
    pub fn note_current(&self, asked_at: Millis, last_batch: Millis) {
        // A time after now is from before a reset.
        if asked_at <= self.now(last_batch) {
            self.is_current.store(true, Ordering::Release);
            self.current_at.fetch_max(asked_at.0, Ordering::AcqRel);
        }
    }
}
