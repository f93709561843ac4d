//! Sub-counters: counts that are kept outside the journal and summed into it from time to time.
//!
//! A sub-counter reports everything it has counted since it was created, not what is new. The state keeps the largest
//! report of each and adds the difference. So a report that arrives twice, late or out of order counts once.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::key::{Key, KeyRef};
use crate::limits::SHARDS_MAX;
use crate::varint::{Cursor, put_u64};

/// What one sub-counter has counted since it was created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubCounter {
    /// Its number among the sub-counters of the same counter.
    pub shard: u32,
    /// Distinguishes it from earlier ones with the same number. A later one has a larger incarnation.
    pub incarnation: u64,
    /// Sum of its additions.
    pub increments: u64,
    /// Sum of its subtractions, as a positive number.
    pub decrements: u64,
    /// Whether it was removed. It may come back after a Redis failover and continue counting.
    pub is_closed: bool,
}

/// The reports that are summed into the value of a counter: the last one of each shard.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SummedShards(Vec<SubCounter>);

/// What reports add to a counter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gain {
    /// Additions that are new.
    pub increments: u128,
    /// Subtractions that are new.
    pub decrements: u128,
}

impl Gain {
    /// Drops what would take `value` out of range. It was acknowledged without reading the value, so it can no longer
    /// be refused.
    pub(crate) fn limit_to_range(&mut self, value: i64) {
        let net = self.increments as i128 - self.decrements as i128;
        let (up, down) = (i128::from(i64::MAX) - i128::from(value), i128::from(value) - i128::from(i64::MIN));
        if net > up {
            self.increments -= (net - up) as u128;
        } else if -net > down {
            self.decrements -= (-net - down) as u128;
        }
    }
}

impl SummedShards {
    /// The last reports, by shard. Those of closed sub-counters stay, so that nothing is counted twice.
    #[must_use]
    pub fn reports(&self) -> &[SubCounter] {
        &self.0
    }

    /// Number of sub-counters that are not closed.
    #[must_use]
    pub fn open_len(&self) -> u32 {
        self.0.iter().filter(|report| !report.is_closed).count() as u32
    }

    fn place(&self, shard: u32) -> Result<usize, usize> {
        self.0.binary_search_by_key(&shard, |known| known.shard)
    }

    /// Whether the sub-counter of this report was replaced by a later one. Its reports no longer add anything.
    #[must_use]
    pub fn is_replaced(&self, report: &SubCounter) -> bool {
        self.place(report.shard).is_ok_and(|at| report.incarnation < self.0[at].incarnation)
    }

    /// What the report would add.
    #[must_use]
    pub fn gain(&self, report: &SubCounter) -> Gain {
        if self.is_replaced(report) {
            return Gain::default();
        }
        let known = self.place(report.shard).ok().map(|at| &self.0[at]);
        let known = known.filter(|known| known.incarnation == report.incarnation);
        let (increments, decrements) = known.map_or((0, 0), |known| (known.increments, known.decrements));
        Gain {
            increments: u128::from(report.increments.saturating_sub(increments)),
            decrements: u128::from(report.decrements.saturating_sub(decrements)),
        }
    }

    /// Merges a report and returns what it adds.
    pub fn merge(&mut self, report: &SubCounter) -> Gain {
        if self.is_replaced(report) {
            return Gain::default();
        }
        let gain = self.gain(report);
        match self.place(report.shard) {
            Ok(at) if self.0[at].incarnation == report.incarnation => {
                let known = &mut self.0[at];
                known.increments = known.increments.max(report.increments);
                known.decrements = known.decrements.max(report.decrements);
                // A late report does not reopen it, unless it has counted more since.
                known.is_closed = report.is_closed || known.is_closed && gain == Gain::default();
            }
            Ok(at) => self.0[at] = *report,
            Err(at) => self.0.insert(at, *report),
        }
        gain
    }

    /// Appends the encoding.
    pub fn encode(&self, out: &mut Vec<u8>) {
        encode_reports(&self.0, out);
    }

    /// Reads what [`SummedShards::encode`] wrote.
    #[must_use]
    pub fn decode(cursor: &mut Cursor<'_>) -> Option<SummedShards> {
        decode_reports(cursor).filter(|reports| reports.is_sorted_by(|a, b| a.shard < b.shard)).map(SummedShards)
    }
}

/// Appends reports.
pub(crate) fn encode_reports(reports: &[SubCounter], out: &mut Vec<u8>) {
    put_u64(out, reports.len() as u64);
    for report in reports {
        put_u64(out, u64::from(report.shard) << 1 | u64::from(report.is_closed));
        put_u64(out, report.incarnation);
        put_u64(out, report.increments);
        put_u64(out, report.decrements);
    }
}

/// Reads reports. The caller must check that no shard occurs twice.
pub(crate) fn decode_reports(cursor: &mut Cursor<'_>) -> Option<Vec<SubCounter>> {
    let count = cursor.u64().filter(|&count| count <= SHARDS_MAX as u64)?;
    let report = |cursor: &mut Cursor<'_>| {
        let shard = cursor.u64()?;
        Some(SubCounter {
            shard: u32::try_from(shard >> 1).ok().filter(|&shard| shard < SHARDS_MAX)?,
            is_closed: shard & 1 == 1,
            incarnation: cursor.u64()?,
            increments: cursor.u64()?,
            decrements: cursor.u64()?,
        })
    };
    (0..count).map(|_| report(cursor)).collect()
}

/// Reports in one event: at most one per shard, which bounds the size of the event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShardReports(Vec<SubCounter>);

impl ShardReports {
    /// Sorts the reports by shard. `None` if two are of the same shard, or a shard number is too large.
    #[must_use]
    pub fn new(mut reports: Vec<SubCounter>) -> Option<ShardReports> {
        reports.sort_unstable_by_key(|report| report.shard);
        let is_valid = reports.is_sorted_by(|a, b| a.shard < b.shard)
            && reports.last().is_none_or(|report| report.shard < SHARDS_MAX);
        is_valid.then_some(ShardReports(reports))
    }

    /// The reports, by shard.
    #[must_use]
    pub fn as_slice(&self) -> &[SubCounter] {
        &self.0
    }
}

/// One layer of changes: summed reports by counter.
pub type SummedLayer = BTreeMap<Key, SummedShards>;

/// Bytes of one counter's entry besides its reports.
const ENTRY_BYTES: usize = 160;

/// The summed shards in memory, and which of them are not in the store yet.
#[derive(Debug, Default)]
pub(crate) struct SummedTable {
    resident: SummedLayer,
    changed: BTreeSet<Key>,
    /// Closed layers that are not in the store yet, newest last.
    unsaved: Vec<Arc<SummedLayer>>,
    /// Bytes of `resident`.
    bytes: usize,
    /// Bytes of all closed layers.
    unsaved_bytes: usize,
    /// Whether the store may hold records that are not resident.
    store_may_have_more: bool,
}

impl SummedTable {
    pub(crate) fn with_store() -> Self {
        SummedTable { store_may_have_more: true, ..SummedTable::default() }
    }

    pub(crate) fn store_may_have_more(&self) -> bool {
        self.store_may_have_more
    }

    /// Whether the record of the key must be looked up in the store.
    pub(crate) fn is_unknown(&self, key: KeyRef<'_>) -> bool {
        self.store_may_have_more && !self.resident.contains_key(&key.to_key())
    }

    pub(crate) fn restore(&mut self, key: KeyRef<'_>, summed: SummedShards) {
        if let std::collections::btree_map::Entry::Vacant(entry) = self.resident.entry(key.to_key()) {
            self.bytes += bytes_of(entry.key(), &summed);
            entry.insert(summed);
        }
    }

    pub(crate) fn get(&self, key: &Key) -> Option<&SummedShards> {
        self.resident.get(key)
    }

    pub(crate) fn put(&mut self, key: KeyRef<'_>, summed: SummedShards) {
        let key = key.to_key();
        self.bytes += bytes_of(&key, &summed);
        self.changed.insert(key.clone());
        if let Some(before) = self.resident.insert(key.clone(), summed) {
            self.bytes -= bytes_of(&key, &before);
        }
    }

    pub(crate) fn is_dirty(&self) -> bool {
        !self.changed.is_empty() || !self.unsaved.is_empty()
    }

    pub(crate) fn begin_capture(&mut self) -> Vec<Arc<SummedLayer>> {
        let changed = std::mem::take(&mut self.changed);
        if !changed.is_empty() {
            let layer: SummedLayer =
                changed.into_iter().filter_map(|key| Some((key.clone(), self.resident.get(&key)?.clone()))).collect();
            self.unsaved_bytes += layer.iter().map(|(key, summed)| bytes_of(key, summed)).sum::<usize>();
            self.unsaved.push(Arc::new(layer));
        }
        self.unsaved.clone()
    }

    /// Drops the oldest `layers` unsaved layers, which are in the store now, and evicts what has not changed since.
    pub(crate) fn committed(&mut self, layers: usize) {
        let saved = self.unsaved.drain(..layers.min(self.unsaved.len()));
        let mut had_any = false;
        for layer in saved {
            had_any = true;
            self.unsaved_bytes -= layer.iter().map(|(key, summed)| bytes_of(key, summed)).sum::<usize>();
        }
        self.store_may_have_more |= had_any;
        let (changed, unsaved) = (&self.changed, &self.unsaved);
        self.resident.retain(|key, _| changed.contains(key) || unsaved.iter().any(|layer| layer.contains_key(key)));
        self.bytes = self.resident.iter().map(|(key, summed)| bytes_of(key, summed)).sum();
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.bytes + self.unsaved_bytes
    }
}

fn bytes_of(key: &Key, summed: &SummedShards) -> usize {
    ENTRY_BYTES + 2 * key.as_bytes().len() + summed.0.len() * size_of::<SubCounter>()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;

    fn report(shard: u32, incarnation: u64, increments: u64) -> SubCounter {
        SubCounter { shard, incarnation, increments, decrements: 0, is_closed: false }
    }

    #[test]
    fn a_report_counts_once_however_often_and_late_it_arrives() {
        let mut summed = SummedShards::default();
        let mut total = 0;
        for increments in [5, 5, 12, 7, 12] {
            total += summed.merge(&report(0, 1, increments)).increments;
        }
        assert_eq!(total, 12);
    }

    #[test]
    fn a_new_incarnation_starts_at_zero_and_the_one_before_counts_no_more() {
        let mut summed = SummedShards::default();
        assert_eq!(summed.merge(&report(3, 10, 100)).increments, 100);
        assert_eq!(summed.merge(&report(3, 20, 4)).increments, 4);
        assert_eq!(summed.merge(&report(3, 10, 500)).increments, 0);
        assert!(summed.is_replaced(&report(3, 10, 500)));
    }

    #[test]
    fn a_closed_sub_counter_that_comes_back_adds_only_what_it_counts_beyond_its_last_report() {
        let mut summed = SummedShards::default();
        assert_eq!(summed.merge(&SubCounter { is_closed: true, ..report(0, 7, 9) }).increments, 9);
        assert_eq!(summed.merge(&report(0, 7, 5)).increments, 0);
        assert!(summed.reports()[0].is_closed);
        assert_eq!(summed.merge(&report(0, 7, 11)).increments, 2);
        assert!(!summed.reports()[0].is_closed);
        assert_eq!(summed.merge(&report(0, 8, 1)).increments, 1);
    }

    proptest! {
        #[test]
        fn reports_in_any_order_sum_up_to_the_largest_of_each(
            sent in prop::collection::vec((0u32..4, 0u64..1_000, 0u64..1_000), 1..60),
            order in prop::collection::vec(any::<prop::sample::Index>(), 0..120),
        ) {
            let mut summed = SummedShards::default();
            let (mut plus, mut minus) = (0u128, 0u128);
            let all = sent.iter().chain(order.iter().map(|index| index.get(&sent)));
            for &(shard, increments, decrements) in all {
                let gain = summed.merge(&SubCounter { shard, incarnation: 1, increments, decrements, is_closed: false });
                plus += gain.increments;
                minus += gain.decrements;
            }
            let largest = |of: fn(&(u32, u64, u64)) -> u64| -> u128 {
                (0..4).map(|shard| u128::from(sent.iter().filter(|sent| sent.0 == shard).map(of).max().unwrap_or(0))).sum()
            };
            prop_assert_eq!(plus, largest(|sent| sent.1));
            prop_assert_eq!(minus, largest(|sent| sent.2));
            let mut bytes = Vec::new();
            summed.encode(&mut bytes);
            prop_assert_eq!(SummedShards::decode(&mut Cursor::new(&bytes)), Some(summed));
        }
    }
}
