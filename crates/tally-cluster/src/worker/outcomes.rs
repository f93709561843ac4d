//! Outcomes of recent batches, kept for API nodes that ask for them.

use std::collections::VecDeque;
use std::sync::Arc;

use tally_core::outcome::Outcomes;
use tally_core::time::{Millis, Position};

use crate::limits::RECENT_OUTCOMES_BYTES_MAX;

/// The outcomes of one batch.
#[derive(Debug)]
pub struct AppliedRecord {
    /// The position after the batch.
    pub end: Position,
    /// The time it was applied at.
    pub at: Millis,
    /// One per event.
    pub outcomes: Outcomes,
}

/// The outcomes of the last batches, within a bound.
#[derive(Debug, Default)]
pub struct RecentOutcomes {
    /// In order, without gaps.
    records: VecDeque<Arc<AppliedRecord>>,
    bytes: usize,
}

impl RecentOutcomes {
    /// Adds the outcomes of the next batch, and drops the oldest beyond the bound.
    pub fn push(&mut self, record: AppliedRecord) {
        self.bytes += bytes_of(&record);
        self.records.push_back(Arc::new(record));
        while self.bytes > RECENT_OUTCOMES_BYTES_MAX
            && self.records.len() > 1
            && let Some(oldest) = self.records.pop_front()
        {
            self.bytes -= bytes_of(&oldest);
        }
    }

    /// The outcomes of the batch that ends at `end`, if they are still kept.
    pub fn get(&self, end: Position) -> Option<Arc<AppliedRecord>> {
        let first = self.records.front()?.end;
        let index = usize::try_from(end.0.checked_sub(first.0)?).ok()?;
        self.records.get(index).cloned()
    }
}

fn bytes_of(record: &AppliedRecord) -> usize {
    size_of::<AppliedRecord>() + record.outcomes.memory_bytes()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn record(end: u64) -> AppliedRecord {
        AppliedRecord { end: Position(end), at: Millis(end), outcomes: Outcomes::default() }
    }

    #[test]
    fn outcomes_are_found_by_the_end_of_their_batch() {
        let mut recent = RecentOutcomes::default();
        assert!(recent.get(Position(1)).is_none());
        (5..9).for_each(|end| recent.push(record(end)));
        assert!(recent.get(Position(4)).is_none());
        assert_eq!((5..9).map(|end| recent.get(Position(end)).unwrap().at.0).collect::<Vec<_>>(), [5, 6, 7, 8]);
        assert!(recent.get(Position(9)).is_none());
    }

    #[test]
    fn the_oldest_outcomes_are_dropped_beyond_the_bound() {
        let mut recent = RecentOutcomes::default();
        let many = 2 * RECENT_OUTCOMES_BYTES_MAX / size_of::<AppliedRecord>();
        (1..=many as u64).for_each(|end| recent.push(record(end)));
        assert!(recent.bytes <= RECENT_OUTCOMES_BYTES_MAX);
        assert!(recent.get(Position(1)).is_none());
        assert!(recent.get(Position(many as u64)).is_some());
    }
}
