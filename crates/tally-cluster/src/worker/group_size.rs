//! The size of a group of journal records that are applied together.

use tally_core::batch::Batch;

use crate::kafka::JournalRecord;
use crate::limits::{GROUP_BYTES_MAX, GROUP_EVENTS_MAX, GROUP_RECORDS_MAX};

/// The size of a group of records that are applied together.
#[derive(Default)]
pub struct GroupSize {
    records: usize,
    events: usize,
    bytes: usize,
}

impl GroupSize {
    /// Adds a record with its decoded batch.
    pub fn add(&mut self, record: &JournalRecord, batch: &Batch) {
        self.records += 1;
        self.events += batch.len();
        self.bytes += record.batch.len();
    }

    /// Whether no other record may be added.
    pub fn is_full(&self) -> bool {
        self.records >= GROUP_RECORDS_MAX || self.events >= GROUP_EVENTS_MAX || self.bytes >= GROUP_BYTES_MAX
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use tally_core::batch::Events;
    use tally_core::event::{Change, Field};
    use tally_core::key::Key;
    use tally_core::time::{Millis, Position};

    use super::*;

    #[test]
    fn a_group_is_bounded_by_records_by_events_and_by_bytes() {
        let record = |bytes| JournalRecord { start: Position(0), at: Some(Millis(0)), batch: vec![0; bytes] };
        let key = Key::new("k").unwrap();
        let mut crowded = Events::new(7);
        for _ in 0..GROUP_EVENTS_MAX / 2 {
            crowded.push(key.as_ref(), Change::Read(Field::Value), None, None);
        }
        let groups = [
            (GROUP_RECORDS_MAX, record(0), Batch::default()),
            (2, record(0), crowded.batch().clone()),
            (4, record(GROUP_BYTES_MAX / 4), Batch::default()),
        ];
        for (number, (most, record, batch)) in groups.iter().enumerate() {
            let mut group = GroupSize::default();
            let added = (1..).find(|_| {
                group.add(record, batch);
                group.is_full()
            });
            assert_eq!(added, Some(*most), "group {number}");
        }
    }
}
