//! A counter that was read, with what its sub-counters have counted since the last sum.

use tally_core::counter::CounterState;
use tally_core::event::Field;
use tally_core::outcome::Outcome;
use tally_core::partition::read_field;
use tally_core::reading::{Reading, Stats};
use tally_core::time::{Millis, Position};

/// A counter, and how current it is.
#[derive(Clone, Copy, Debug)]
pub struct ReadCounter {
    pub(super) state: Option<CounterState>,
    pub(super) exact: bool,
    pub(super) as_of: Millis,
    pub(super) now: Millis,
    /// What sub-counters have counted that is not in the counter yet.
    pub(super) tail: UnsummedTail,
    /// The partition's position, so that later readings are not older.
    pub(super) position: Position,
}

/// What sub-counters have counted since they were last summed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct UnsummedTail {
    pub(super) value: i64,
    /// Number of sub-counters; 0 if they were not read.
    pub(super) shards: u32,
    /// Whether some could not be reached.
    pub(super) partial: bool,
}

impl ReadCounter {
    /// As a reading.
    pub fn reading(&self) -> Reading {
        let staleness_ms = if self.exact { 0 } else { self.now.since(self.as_of) };
        let reading = Reading::exact(self.state.as_ref(), self.as_of);
        Reading {
            exact: self.exact,
            staleness_ms,
            value: reading.value.saturating_add(self.tail.value),
            exists: reading.exists || self.tail.value != 0,
            shards: self.tail.shards.max(1),
            partial: self.tail.partial,
            ..reading
        }
    }

    /// The outcome of reading a field.
    pub fn field(&self, field: Field) -> Outcome {
        let read = read_field(self.state.as_ref(), field, self.now);
        match field {
            Field::Value => {
                let value = read.value.saturating_add(self.tail.value);
                let exists = read.exists || self.tail.value != 0;
                Outcome { exact: self.exact, value, exists, ..read }
            }
            Field::Expiry | Field::Version => Outcome { exact: self.exact, ..read },
        }
    }

    /// With its statistics.
    pub fn stats(&self) -> Stats {
        Stats { reading: self.reading(), ..Stats::exact(self.state, self.as_of) }
    }
}
