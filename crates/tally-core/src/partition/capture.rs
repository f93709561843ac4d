//! Copying what changed for a checkpoint, at one moment, while batches go on.
//!
//! `begin_capture` fixes the moment and costs nothing that grows with the state. The changed counters are then
//! copied in slices; a batch that changes one before its turn copies it first. So the checkpoint sees every counter
//! as it stood at that moment, and no batch waits for more than a slice.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::Partition;
use crate::bits::Bits;
use crate::counter_table::CellId;
use crate::event::RequestId;
use crate::key::{Key, KeyRef};
use crate::ledger::ChainHead;
use crate::ledger_heads::UnsavedEntries;
use crate::record::{Meta, Records, request_key, write_request};
use crate::request_ids::{FirstOutcome, Layer};
use crate::time::Millis;

/// A capture under way, as the partition sees it.
pub(super) struct Capturing {
    /// Cells that belong to the capture and were not copied yet.
    pending: Bits,
    /// All cells that belong to the capture.
    cells: Bits,
    cursor: usize,
    /// Counters copied early because a batch was about to change them.
    preimages: Records,
    pub(super) removed: Arc<BTreeSet<Key>>,
    layers: usize,
    pages: usize,
}

/// The parts of a capture that never change once closed: they can be written without holding the partition.
pub struct Capture {
    layers: Vec<Arc<Layer>>,
    pages: Vec<Arc<UnsavedEntries>>,
    removed: Arc<BTreeSet<Key>>,
    outdated: Vec<(Millis, Key)>,
    meta: Meta,
}

impl Capturing {
    /// The cells of the capture, which is not in the store yet.
    pub(super) fn cells(&self) -> &Bits {
        &self.cells
    }

    /// The cell no longer holds the counter that was captured.
    pub(super) fn forget(&mut self, id: CellId) {
        self.cells.clear(id as usize);
    }
}

impl Capture {
    /// The time of the last batch before it.
    #[must_use]
    pub fn at(&self) -> Millis {
        self.meta.clock
    }

    /// How many request ids there are at most.
    #[must_use]
    pub fn requests_max(&self) -> usize {
        self.layers.iter().map(|layer| layer.len()).sum()
    }

    /// Hands the request ids that are still to be remembered to `sink`, as store key and value, in key order.
    ///
    /// They are sorted a share at a time, in about `memory_bytes`. Ids are digests, so equal ranges of them hold about as
    /// many, and one walk over all ids for each range is far cheaper than merging sorted pieces later.
    pub fn requests<E>(
        &self,
        memory_bytes: usize,
        mut sink: impl FnMut(&[u8], &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        const AT_ONCE: usize = 64;
        type Place<'l> = (u128, &'l FirstOutcome);
        let ids = || self.layers.iter().flat_map(|layer| layer.iter());
        let shares = (self.requests_max() * size_of::<Place<'_>>()).div_ceil(memory_bytes.max(1)).max(1);
        let share_of = |id: u128| (((id >> 96) * shares as u128) >> 32) as usize;
        let mut sorted: Vec<Place<'_>> = Vec::new();
        let (mut firsts, mut value) = (Vec::with_capacity(AT_ONCE), Vec::new());
        for share in 0..shares {
            let keyed = ids().map(|(id, first)| (u128::from_be_bytes(id.0), first));
            sorted.extend(keyed.filter(|(id, first)| share_of(*id) == share && !first.is_expired(self.at())));
            sorted.sort_unstable_by_key(|(id, _)| *id);
            for some in sorted.chunks(AT_ONCE) {
                // They lie all over memory: fetched in a row, they arrive together.
                firsts.clear();
                firsts.extend(some.iter().map(|(_, first)| **first));
                for ((id, _), first) in some.iter().zip(&firsts) {
                    value.clear();
                    write_request(first, &mut value);
                    sink(&request_key(RequestId(id.to_be_bytes())), &value)?;
                }
            }
            sorted.clear();
        }
        Ok(())
    }

    /// Hands everything but counters and request ids to `sink`, one record at a time; `sink` may write out what it has
    /// gathered whenever it likes.
    pub fn records<E>(&self, mut sink: impl FnMut(&mut dyn FnMut(&mut Records)) -> Result<(), E>) -> Result<(), E> {
        for key in self.removed.iter() {
            sink(&mut |records| records.remove_counter(key))?;
        }
        for (expires_at, key) in &self.outdated {
            sink(&mut |records| records.remove_expiry(*expires_at, key))?;
        }
        for (key, entries) in self.pages.iter().flat_map(|pages| pages.iter()) {
            for entry in entries {
                sink(&mut |records| records.put_ledger(key.as_ref(), entry))?;
            }
        }
        for (key, head) in self.heads() {
            sink(&mut |records| records.put_head(key.as_ref(), &head))?;
        }
        sink(&mut |records| records.put_meta(&self.meta))
    }

    /// The end of every chain that grew: of several pages the newest has the last word.
    fn heads(&self) -> impl Iterator<Item = (&Key, ChainHead)> {
        self.pages.iter().enumerate().flat_map(move |(number, pages)| {
            let newer = &self.pages[number + 1..];
            pages.iter().filter(move |(key, _)| !newer.iter().any(|pages| pages.contains_key(*key))).filter_map(
                |(key, entries)| entries.last().map(|entry| (key, ChainHead { seq: entry.seq, hash: entry.hash })),
            )
        })
    }
}

impl Partition {
    /// Whether anything changed since the last capture began.
    #[must_use]
    pub fn is_dirty(&self) -> bool {
        let gone = !self.removed.is_empty() || !self.outdated.is_empty();
        self.dirty.count() > 0 || gone || self.request_ids.is_dirty() || self.ledger_heads.is_dirty()
    }

    /// Counters changed since the last capture began.
    #[must_use]
    pub fn dirty_counters(&self) -> usize {
        self.dirty.count()
    }

    /// Fixes the moment of a checkpoint. Only one capture may be under way: end it with `capture_committed` or
    /// `capture_abandoned`.
    pub fn begin_capture(&mut self) -> Capture {
        let cells = std::mem::take(&mut self.dirty);
        let removed = Arc::new(std::mem::take(&mut self.removed));
        // What expires at that moment again is captured with its record.
        let outdated = std::mem::take(&mut self.outdated).into_iter().filter(|(expires_at, key)| {
            self.state_of(key.as_ref()).is_none_or(|held| held.expires_at != Some(*expires_at))
        });
        let outdated = outdated.collect();
        let capture = Capture {
            layers: self.request_ids.begin_capture(),
            pages: self.ledger_heads.begin_capture(),
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
            layers: capture.layers.len(),
            pages: capture.pages.len(),
        });
        capture
    }

    /// Copies up to `max` more counters into `records`, which is empty, and those that were copied early; says whether any
    /// are left.
    pub fn capture_slice(&mut self, max: usize, records: &mut Records) -> bool {
        let Some(capturing) = &mut self.capturing else {
            return false;
        };
        debug_assert!(records.is_empty(), "what it holds would be left behind");
        // However many were copied early, they are handed over at once.
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

    /// Bytes of counters copied early that no slice has collected yet.
    #[must_use]
    pub fn preimage_bytes(&self) -> usize {
        self.capturing.as_ref().map_or(0, |capturing| capturing.preimages.memory_bytes())
    }

    /// The capture is in the store.
    pub fn capture_committed(&mut self) {
        let Some(capturing) = self.capturing.take() else {
            return;
        };
        self.departures += 1;
        self.created.remove_all(&capturing.cells);
        self.request_ids.committed(capturing.layers);
        self.ledger_heads.committed(capturing.pages);
    }

    /// The capture did not reach the store: what it held counts as changed again.
    pub fn capture_abandoned(&mut self) {
        let Some(capturing) = self.capturing.take() else {
            return;
        };
        self.dirty.absorb(&capturing.cells);
        for key in capturing.removed.iter() {
            if self.state_of(key.as_ref()).is_none() {
                self.removed.insert(key.clone());
            }
        }
    }

    /// Copies a cell that a capture still needs before it changes.
    pub(super) fn save_preimage(&mut self, id: CellId) {
        let Some(capturing) = &mut self.capturing else {
            return;
        };
        if capturing.pending.take(id as usize) {
            capturing.preimages.put_counter(self.table.key(id), &self.table.state(id));
        }
    }

    /// Whether the key was deleted and the store may not know yet.
    #[must_use]
    pub fn is_removed(&self, key: KeyRef<'_>) -> bool {
        let was_removed = |capturing: &Capturing| capturing.removed.contains(key.as_bytes());
        self.removed.contains(key.as_bytes())
            || self.capturing.as_ref().is_some_and(was_removed) && self.state_of(key).is_none()
    }
}
