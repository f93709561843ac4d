//! Merging: which runs to merge, and an iterator over several runs.
//!
//! Runs are ordered newest first, and only neighbours are merged, so the newer run wins without a sequence number per
//! entry.
//!
//! Compaction is size-tiered. A run's *tier* is how many times 4 MiB must be multiplied by four to reach its size.
//! Starting with the lowest tier, neighbours of at most that tier are merged if at least four of them are of exactly
//! that tier. Four runs of a tier make about one of the next, so the write amplification is about log₄ of the store's
//! size over 4 MiB. Smaller runs in between are merged with them, which costs little and keeps them from getting stuck
//! between large ones.
//!
//! Some orders of sizes defeat the tiers. So if there are more than [`RUNS_IDLE_MAX`] runs, the cheapest range that
//! restores the limit is merged, whatever its tiers.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;
use std::ops::Range;
use std::sync::Arc;

use super::StoreError;
use super::cursor::{ReadAhead, RunCursor};
use super::run::Run;

/// Most runs once no merge is due.
pub(crate) const RUNS_IDLE_MAX: usize = 16;
/// Fewest runs worth a merge, and the factor between tiers.
const FAN_IN: usize = 4;
/// Largest run of the lowest tier.
const TIER_BYTES: u64 = 4 << 20;

fn tier(bytes: u64) -> u32 {
    let mut tier = 0;
    while bytes.checked_shr(2 * tier).unwrap_or(0) > TIER_BYTES {
        tier += 1;
    }
    tier
}

/// Chooses which neighbours to merge, given the sizes of all runs, newest first; `None` when no merge is due.
pub(super) fn choose(sizes: &[u64]) -> Option<Range<usize>> {
    let tiers: Vec<u32> = sizes.iter().map(|&bytes| tier(bytes)).collect();
    let highest = tiers.iter().copied().max()?;
    (0..=highest).find_map(|tier| choose_in_tier(&tiers, tier)).or_else(|| choose_cheapest(sizes))
}

fn choose_in_tier(tiers: &[u32], tier: u32) -> Option<Range<usize>> {
    let mut start = 0;
    for stretch in tiers.split(|&other| other > tier) {
        let end = start + stretch.len();
        if stretch.iter().filter(|&&other| other == tier).count() >= FAN_IN {
            return Some(start..end);
        }
        start = end + 1;
    }
    None
}

fn choose_cheapest(sizes: &[u64]) -> Option<Range<usize>> {
    let excess = sizes.len().checked_sub(RUNS_IDLE_MAX).filter(|&excess| excess > 0)?;
    let width = (excess + 1).max(FAN_IN);
    let cost = |window: &[u64]| window.iter().fold(0u64, |sum, &bytes| sum.saturating_add(bytes));
    let (start, _) = sizes.windows(width).enumerate().min_by_key(|(_, window)| cost(window))?;
    Some(start..start + width)
}

/// Iterates over several runs: every key once, in order, with its newest entry, including tombstones.
pub(super) struct MergeIterator {
    inputs: BinaryHeap<Box<MergeInput>>,
    key: Vec<u8>,
    value: Vec<u8>,
    removed: bool,
}

/// A run being merged. Ordered for a max-heap: the greatest has the smallest key and, among equal keys, is the newest.
struct MergeInput {
    cursor: RunCursor,
    /// Index among the runs, newest first.
    age: usize,
}

impl Ord for MergeInput {
    fn cmp(&self, other: &MergeInput) -> Ordering {
        other.cursor.key().cmp(self.cursor.key()).then(other.age.cmp(&self.age))
    }
}

impl PartialOrd for MergeInput {
    fn partial_cmp(&self, other: &MergeInput) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for MergeInput {
    fn eq(&self, other: &MergeInput) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for MergeInput {}

/// Advances the first input, or removes it at its end.
fn step(mut first: PeekMut<'_, Box<MergeInput>>) -> Result<(), StoreError> {
    if !first.cursor.advance()? {
        PeekMut::pop(first);
    }
    Ok(())
}

impl MergeIterator {
    /// Iterates over `runs`, which are ordered newest first, from `start` on.
    pub(super) fn new(runs: &[Arc<Run>], start: &[u8], ahead: ReadAhead) -> Result<MergeIterator, StoreError> {
        let mut inputs = BinaryHeap::with_capacity(runs.len());
        for (age, run) in runs.iter().enumerate().filter(|(_, run)| *run.largest >= *start) {
            let mut cursor = RunCursor::new(Arc::clone(run), ahead);
            if cursor.seek(start)? {
                inputs.push(Box::new(MergeInput { cursor, age }));
            }
        }
        Ok(MergeIterator { inputs, key: Vec::new(), value: Vec::new(), removed: false })
    }

    /// Moves to the next key; `false` when there is none. After an error it must not be used further.
    pub(super) fn advance(&mut self) -> Result<bool, StoreError> {
        let Some(newest) = self.inputs.peek_mut() else { return Ok(false) };
        self.key.clear();
        self.key.extend_from_slice(newest.cursor.key());
        self.value.clear();
        self.removed = match newest.cursor.value() {
            Some(value) => {
                self.value.extend_from_slice(value);
                false
            }
            None => true,
        };
        step(newest)?;
        while let Some(older) = self.inputs.peek_mut() {
            if older.cursor.key() != self.key {
                break;
            }
            step(older)?;
        }
        Ok(true)
    }

    /// The current key.
    pub(super) fn key(&self) -> &[u8] {
        &self.key
    }

    /// Its value; `None` for a tombstone.
    pub(super) fn value(&self) -> Option<&[u8]> {
        (!self.removed).then_some(&self.value)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_tier_holds_four_times_the_one_below() {
        let sizes = [0, 1, 4 * MIB, 4 * MIB + 4, 16 * MIB, 16 * MIB + 16, 64 * MIB, u64::MAX];
        assert_eq!(sizes.map(tier), [0, 0, 0, 1, 1, 2, 2, 21]);
    }

    #[test]
    fn four_neighbours_of_a_tier_are_merged_with_the_smaller_ones_among_them() {
        assert_eq!(choose(&[]), None);
        assert_eq!(choose(&[MIB; 3]), None);
        assert_eq!(choose(&[MIB; 5]), Some(0..5));
        assert_eq!(choose(&[MIB, 9 * MIB, MIB, MIB, MIB, MIB]), Some(2..6));
        assert_eq!(choose(&[MIB, 9 * MIB, 9 * MIB, MIB, 9 * MIB, 9 * MIB, 900 * MIB]), Some(0..6));
        assert_eq!(choose(&[9 * MIB, 9 * MIB, 900 * MIB, 9 * MIB, 9 * MIB]), None);
    }

    #[test]
    fn whatever_the_sizes_merging_ends_with_few_runs_and_little_rewriting() {
        // Sizes in an order that defeats the tiers: three small ones behind each large one.
        let mut sizes: Vec<u64> = Vec::new();
        let (mut arrived, mut written) = (0, 0);
        for n in 0..5_000u64 {
            let bytes = if n % 4 == 3 { (300 * MIB) >> (n % 7) } else { MIB << (n % 3) };
            arrived += bytes;
            sizes.insert(0, bytes);
            while let Some(window) = choose(&sizes) {
                assert!(window.len() >= FAN_IN);
                let merged = sizes[window.clone()].iter().sum();
                written += merged;
                sizes.splice(window, [merged]);
            }
            assert!(sizes.len() <= RUNS_IDLE_MAX, "{}", sizes.len());
        }
        assert!(written < 8 * arrived, "each byte was rewritten {} times", written / arrived);
    }
}
