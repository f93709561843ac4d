//! Copy-on-write snapshots of the dirty state, for checkpoints that run while batches continue.
//!
//! `begin_capture` fixes the point in time; its cost does not grow with the number of counters. Dirty counters are then
//! copied in slices. A batch about to change one that is not copied yet saves its pre-image first. So the checkpoint
//! sees every counter as of `begin_capture`, and a batch waits for one slice at most.

use std::sync::Arc;

use super::Partition;
use super::deletions::Deletions;
use crate::bits::Bits;
use crate::counter_table::CellId;
use crate::event::RequestId;
use crate::key::{Key, KeyRef};
use crate::ledger::ChainHead;
use crate::ledger_heads::UnsavedEntries;
use crate::record::{Meta, Records, request_key, write_request};
use crate::request_ids::{FirstOutcome, Layer};
use crate::sub_counters::{SummedLayer, SummedShards};
use crate::time::Millis;

/// The partition's side of a capture in progress.
pub(super) struct Capturing {
    /// Cells of the capture that are not copied yet.
    pending: Bits,
    /// All cells of the capture.
    cells: Bits,
    cursor: usize,
    /// Counters copied ahead of their slice because a batch was about to change them.
    preimages: Records,
    pub(super) removed: Arc<Deletions<Key>>,
    /// Bytes of the outdated expiry records, which are in the [`Capture`].
    outdated_bytes: usize,
    id_layers: usize,
    ledger_layers: usize,
    summed_layers: usize,
}

/// The immutable parts of a capture, which can be written without locking the partition.
pub struct Capture {
    id_layers: Vec<Arc<Layer>>,
    ledger_layers: Vec<Arc<UnsavedEntries>>,
    summed_layers: Vec<Arc<SummedLayer>>,
    removed: Arc<Deletions<Key>>,
    outdated: Vec<(Millis, Key)>,
    meta: Meta,
}

impl Capturing {
    /// The cells of the capture. They must stay resident until it is committed.
    pub(super) fn cells(&self) -> &Bits {
        &self.cells
    }

    /// Drops a cell that no longer holds the captured counter.
    pub(super) fn discard(&mut self, id: CellId) {
        self.cells.clear(id as usize);
    }
}

impl Capture {
    /// The time of the last batch it includes.
    #[must_use]
    pub fn at(&self) -> Millis {
        self.meta.clock
    }

    /// Upper bound on the number of request ids.
    #[must_use]
    pub fn requests_max(&self) -> usize {
        self.id_layers.iter().map(|layer| layer.len()).sum()
    }

    /// Passes the unexpired request ids to `sink`, as store key and value, in key order.
    ///
    /// They are sorted one range at a time, in about `memory_bytes`. Ids are digests and therefore evenly distributed,
    /// and one pass over all ids per range is far cheaper than merging sorted runs later.
    pub fn requests<E>(
        &self,
        memory_bytes: usize,
        mut sink: impl FnMut(&[u8], &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        const CHUNK: usize = 64;
        type Item<'l> = (u128, &'l FirstOutcome);
        let ids = || self.id_layers.iter().flat_map(|layer| layer.iter());
        let ranges = (self.requests_max() * size_of::<Item<'_>>()).div_ceil(memory_bytes.max(1)).max(1);
        let range_of = |id: u128| (((id >> 96) * ranges as u128) >> 32) as usize;
        let mut sorted: Vec<Item<'_>> = Vec::new();
        let (mut firsts, mut value) = (Vec::with_capacity(CHUNK), Vec::new());
        for range in 0..ranges {
            let keyed = ids().map(|(id, first)| (u128::from_be_bytes(id.0), first));
            sorted.extend(keyed.filter(|(id, first)| range_of(*id) == range && !first.is_expired(self.at())));
            sorted.sort_unstable_by_key(|(id, _)| *id);
            // After a reset of the clock, an id that had expired and was used again may be in two layers.
            sorted.dedup_by(|next, kept| {
                let is_same = next.0 == kept.0;
                if is_same && next.1.at > kept.1.at {
                    kept.1 = next.1;
                }
                is_same
            });
            for chunk in sorted.chunks(CHUNK) {
                // The outcomes are scattered in memory: copying them in a tight loop overlaps the cache misses.
                firsts.clear();
                firsts.extend(chunk.iter().map(|(_, first)| **first));
                for ((id, _), first) in chunk.iter().zip(&firsts) {
                    value.clear();
                    write_request(first, &mut value);
                    sink(&request_key(RequestId(id.to_be_bytes())), &value)?;
                }
            }
            sorted.clear();
        }
        Ok(())
    }

    /// Passes everything except counters and request ids to `sink`, one record at a time, so that `sink` can flush
    /// between any two.
    pub fn records<E>(&self, mut sink: impl FnMut(&mut dyn FnMut(&mut Records)) -> Result<(), E>) -> Result<(), E> {
        for key in self.removed.iter() {
            sink(&mut |records| records.remove_counter(key))?;
        }
        for (expires_at, key) in &self.outdated {
            sink(&mut |records| records.remove_expiry(*expires_at, key))?;
        }
        for (key, entries) in self.ledger_layers.iter().flat_map(|layer| layer.iter()) {
            for entry in entries {
                sink(&mut |records| records.put_ledger(key.as_ref(), entry))?;
            }
        }
        for (key, head) in self.heads() {
            sink(&mut |records| records.put_head(key.as_ref(), &head))?;
        }
        for (key, summed) in self.summed() {
            sink(&mut |records| records.put_summed(key.as_ref(), summed))?;
        }
        sink(&mut |records| records.put_meta(&self.meta))
    }

    /// The summed reports of each counter for which they changed, from the newest layer that has them.
    fn summed(&self) -> impl Iterator<Item = (&Key, &SummedShards)> {
        self.summed_layers.iter().enumerate().flat_map(move |(number, layer)| {
            let newer = &self.summed_layers[number + 1..];
            layer.iter().filter(move |(key, _)| !newer.iter().any(|layer| layer.contains_key(*key)))
        })
    }

    /// The head of every chain that grew, from the newest layer that has entries of it.
    fn heads(&self) -> impl Iterator<Item = (&Key, ChainHead)> {
        self.ledger_layers.iter().enumerate().flat_map(move |(number, layer)| {
            let newer = &self.ledger_layers[number + 1..];
            layer.iter().filter(move |(key, _)| !newer.iter().any(|layer| layer.contains_key(*key))).filter_map(
                |(key, entries)| entries.last().map(|entry| (key, ChainHead { seq: entry.seq, hash: entry.hash })),
            )
        })
    }
}

impl Partition {
    /// Whether anything changed since the last capture began.
    #[must_use]
    pub fn is_dirty(&self) -> bool {
        let has_deletions = !self.removed.is_empty() || !self.outdated.is_empty();
        let has_records = self.request_ids.is_dirty() || self.ledger_heads.is_dirty() || self.summed.is_dirty();
        self.dirty.count() > 0 || has_deletions || has_records
    }

    /// Counters changed since the last capture began.
    #[must_use]
    pub fn dirty_counters(&self) -> usize {
        self.dirty.count()
    }

    /// Fixes the point in time of a checkpoint. Only one capture may be in progress: end it with `capture_committed`
    /// or `capture_abandoned`. One that was not ended, because its thread panicked, is abandoned.
    pub fn begin_capture(&mut self) -> Capture {
        self.capture_abandoned();
        let cells = std::mem::take(&mut self.dirty);
        let removed = Arc::new(std::mem::take(&mut self.removed));
        let outdated_bytes = self.outdated.memory_bytes();
        // A counter recreated with the same expiry needs its record: the capture writes it again.
        let outdated = std::mem::take(&mut self.outdated).into_items().into_iter().filter(|(expires_at, key)| {
            self.state_of(key.as_ref()).is_none_or(|state| state.expires_at != Some(*expires_at))
        });
        let outdated = outdated.collect();
        let capture = Capture {
            id_layers: self.request_ids.begin_capture(),
            ledger_layers: self.ledger_heads.begin_capture(),
            summed_layers: self.summed.begin_capture(),
            removed: Arc::clone(&removed),
            outdated,
            meta: Meta { clock: self.clock, counters: self.counters, expiring: self.expiring },
        };
        self.capturing = Some(Capturing {
            pending: cells.clone(),
            cells,
            cursor: 0,
            preimages: Records::default(),
            removed,
            outdated_bytes,
            id_layers: capture.id_layers.len(),
            ledger_layers: capture.ledger_layers.len(),
            summed_layers: capture.summed_layers.len(),
        });
        capture
    }

    /// Moves all saved pre-images and copies up to `max` more counters into `records`, which must be empty. Returns
    /// whether any are left.
    pub fn capture_slice(&mut self, max: usize, records: &mut Records) -> bool {
        let Some(capturing) = &mut self.capturing else {
            return false;
        };
        debug_assert!(records.is_empty(), "the swap would leave its records behind");
        std::mem::swap(records, &mut capturing.preimages);
        for _ in 0..max {
            let Some(at) = capturing.pending.next(capturing.cursor) else {
                return false;
            };
            capturing.pending.clear(at);
            capturing.cursor = at + 1;
            let id = at as CellId;
            records.put_counter(self.table.key(id), &self.table.state(id));
        }
        true
    }

    /// Bytes of pre-images that no slice has collected yet.
    #[must_use]
    pub fn preimage_bytes(&self) -> usize {
        self.capturing.as_ref().map_or(0, |capturing| capturing.preimages.memory_bytes())
    }

    /// Bytes of deletions that are not in the store yet.
    pub(super) fn deletion_bytes(&self) -> usize {
        let captured =
            self.capturing.as_ref().map_or(0, |capturing| capturing.removed.memory_bytes() + capturing.outdated_bytes);
        self.removed.memory_bytes() + self.outdated.memory_bytes() + captured
    }

    /// Ends a capture that is in the store.
    pub fn capture_committed(&mut self) {
        let Some(capturing) = self.capturing.take() else {
            return;
        };
        self.evictions += 1;
        self.created.difference_with(&capturing.cells);
        self.request_ids.committed(capturing.id_layers);
        self.ledger_heads.committed(capturing.ledger_layers);
        self.summed.committed(capturing.summed_layers);
    }

    /// Ends a capture that did not reach the store: its counters and removals are dirty again. Outdated expiry records
    /// stay in the store until the next sweep finds them.
    pub fn capture_abandoned(&mut self) {
        let Some(capturing) = self.capturing.take() else {
            return;
        };
        self.dirty.union_with(&capturing.cells);
        for key in capturing.removed.iter() {
            if self.state_of(key.as_ref()).is_none() {
                self.removed.insert(key.clone());
            }
        }
    }

    /// Saves the pre-image of a cell that the capture has not copied yet. Called before every change.
    pub(super) fn save_preimage(&mut self, id: CellId) {
        let Some(capturing) = &mut self.capturing else {
            return;
        };
        if capturing.pending.take(id as usize) {
            capturing.preimages.put_counter(self.table.key(id), &self.table.state(id));
        }
    }

    /// Whether the key was deleted but the store may still hold it.
    #[must_use]
    pub fn is_removed(&self, key: KeyRef<'_>) -> bool {
        let was_removed = |capturing: &Capturing| capturing.removed.contains(key.as_bytes());
        self.removed.contains(key.as_bytes())
            || self.capturing.as_ref().is_some_and(was_removed) && self.state_of(key).is_none()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::batch::{Batch, Events};
    use crate::event::Change;
    use crate::key::KeyRef;
    use crate::outcome::Outcomes;
    use crate::record::read_request;

    const DAY_MS: u64 = 24 * 3_600_000;

    #[test]
    fn an_id_that_was_used_again_before_a_clock_reset_is_captured_once() {
        let mut partition = Partition::new(1);
        let key = KeyRef::new(b"k").unwrap();
        let id = RequestId::new(key, b"id").unwrap();
        let add = |partition: &mut Partition, at: u64| {
            let mut events = Events::new(1);
            events.push(key, Change::Add(1), Some(id), None);
            let mut outcomes = Outcomes::default();
            partition.apply(Millis(at), events.batch(), &mut outcomes);
            assert!(!outcomes.slots()[0].is_duplicate());
        };
        add(&mut partition, DAY_MS);
        partition.begin_capture();
        partition.capture_abandoned();
        // A clock that is ahead: the id has expired.
        add(&mut partition, 5 * DAY_MS);
        partition.apply(Millis(DAY_MS), &Batch::clock_reset(), &mut Outcomes::default());
        let mut captured = Vec::new();
        let capture = partition.begin_capture();
        let captured_all: Result<(), ()> = capture.requests(1 << 20, |key, value| {
            captured.push((key.to_vec(), read_request(value).unwrap().at));
            Ok(())
        });
        assert_eq!(captured_all, Ok(()));
        assert_eq!(captured, [(request_key(id).to_vec(), Millis(5 * DAY_MS))]);
    }
}
