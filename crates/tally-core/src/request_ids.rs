//! Request ids and the first outcome of each, kept for the idempotency window.
//!
//! The window is counted in whole generations from the batch that first carried the id, so whether a request is a
//! duplicate depends on batch times only. Ids are never removed one by one. New ones go into the current layer; a
//! checkpoint closes the layer and writes it out, and from then on its ids are looked up in the store.

use std::sync::Arc;

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;

use crate::event::RequestId;
use crate::limits::{GENERATION_MS, IDEMPOTENCY_WINDOW_MS};
use crate::outcome::{Outcome, Refusal};
use crate::time::Millis;
use crate::varint::{Cursor, put_i64, put_u64};

/// The first outcome of a request, and a fingerprint that detects a different request with the same id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FirstOutcome {
    /// Hash of the request's payload.
    pub fingerprint: u64,
    /// Time of the batch.
    pub at: Millis,
    value: i64,
    applied: i64,
    refusal: u8,
    exists: bool,
}

impl FirstOutcome {
    /// Records an outcome.
    #[must_use]
    pub fn new(fingerprint: u64, at: Millis, outcome: &Outcome) -> Self {
        FirstOutcome {
            fingerprint,
            at,
            value: outcome.value,
            applied: outcome.applied,
            refusal: outcome.refusal.map_or(0, |refusal| refusal as u8),
            exists: outcome.exists,
        }
    }

    /// The outcome for a duplicate of the request.
    #[must_use]
    pub fn replay(&self) -> Outcome {
        Outcome {
            value: self.value,
            applied: self.applied,
            exists: self.exists,
            exact: true,
            duplicate: Some(true),
            refusal: Refusal::from_code(self.refusal),
            at: self.at,
        }
    }

    /// Whether the idempotency window has ended at `now`.
    #[must_use]
    pub fn is_expired(&self, now: Millis) -> bool {
        now.0 / GENERATION_MS > self.at.0 / GENERATION_MS + IDEMPOTENCY_WINDOW_MS / GENERATION_MS
    }

    /// Appends the stored form.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.fingerprint.to_le_bytes());
        put_u64(out, self.at.0);
        put_i64(out, self.value);
        put_i64(out, self.applied);
        out.push(self.refusal);
        out.push(u8::from(self.exists));
    }

    /// Reads the stored form.
    #[must_use]
    pub fn decode(cursor: &mut Cursor<'_>) -> Option<Self> {
        Some(FirstOutcome {
            fingerprint: u64::from_le_bytes(cursor.array()?),
            at: Millis(cursor.u64()?),
            value: cursor.i64()?,
            applied: cursor.i64()?,
            refusal: cursor.u8()?,
            exists: cursor.u8()? != 0,
        })
    }
}

/// The ids between two checkpoints. Immutable once closed.
#[derive(Clone, Debug, Default)]
pub struct Layer {
    ids: HashTable<(RequestId, FirstOutcome)>,
}

impl Layer {
    fn get(&self, id: RequestId) -> Option<&FirstOutcome> {
        self.ids.find(hash(id), |(other, _)| *other == id).map(|(_, first)| first)
    }

    fn insert(&mut self, id: RequestId, first: FirstOutcome) {
        match self.ids.entry(hash(id), |(other, _)| *other == id, |(id, _)| hash(*id)) {
            Entry::Occupied(mut entry) => entry.get_mut().1 = first,
            Entry::Vacant(entry) => {
                entry.insert((id, first));
            }
        }
    }

    /// The ids, unordered.
    pub fn iter(&self) -> impl Iterator<Item = (RequestId, &FirstOutcome)> {
        self.ids.iter().map(|(id, first)| (*id, first))
    }

    pub(crate) fn len(&self) -> usize {
        self.ids.len()
    }

    fn memory_bytes(&self) -> usize {
        self.ids.allocation_size()
    }
}

/// Ids are digests, so any eight bytes of one are a hash.
fn hash(id: RequestId) -> u64 {
    let [a, b, c, d, e, f, g, h, ..] = id.0;
    u64::from_le_bytes([a, b, c, d, e, f, g, h])
}

/// The resident request ids.
#[derive(Debug, Default)]
pub(crate) struct RequestIds {
    current: Layer,
    /// Closed layers that are not in the store yet, newest last.
    unsaved: Vec<Arc<Layer>>,
    /// Ids loaded from the store.
    restored: Layer,
    /// Whether the store may hold ids that no layer does.
    store_may_have_more: bool,
}

impl RequestIds {
    /// No resident ids, and a store that may hold some.
    pub(crate) fn with_store() -> Self {
        RequestIds { store_may_have_more: true, ..RequestIds::default() }
    }

    /// Looks up the current layer. It takes precedence over the others, because an expired id may have been reused.
    pub(crate) fn get_current(&self, id: RequestId) -> Option<&FirstOutcome> {
        self.current.get(id)
    }

    /// Loads the entry of an id into the processor's cache.
    pub(crate) fn prefetch(&self, id: RequestId) {
        std::hint::black_box(self.current.get(id).is_some());
    }

    /// Looks up the other layers, newest first. They do not change while a batch is applied.
    pub(crate) fn get_closed(&self, id: RequestId) -> Option<&FirstOutcome> {
        for layer in self.unsaved.iter().rev() {
            if let Some(first) = layer.get(id) {
                return Some(first);
            }
        }
        if self.restored.ids.is_empty() { None } else { self.restored.get(id) }
    }

    /// Evicts ids loaded from the store; returns whether there were any.
    pub(crate) fn evict_restored(&mut self) -> bool {
        let restored = std::mem::take(&mut self.restored);
        restored.memory_bytes() > 0
    }

    /// Whether the store may hold ids that are not in memory.
    pub(crate) fn store_may_have_more(&self) -> bool {
        self.store_may_have_more
    }

    /// Whether the id must be looked up in the store.
    pub(crate) fn is_unknown(&self, id: RequestId) -> bool {
        self.store_may_have_more && self.get_current(id).or_else(|| self.get_closed(id)).is_none()
    }

    pub(crate) fn insert(&mut self, id: RequestId, first: FirstOutcome) {
        self.current.insert(id, first);
    }

    pub(crate) fn restore(&mut self, id: RequestId, first: FirstOutcome) {
        self.restored.insert(id, first);
    }

    pub(crate) fn is_dirty(&self) -> bool {
        !self.current.ids.is_empty() || !self.unsaved.is_empty()
    }

    /// Closes the current layer and returns every layer that is not in the store.
    pub(crate) fn begin_capture(&mut self) -> Vec<Arc<Layer>> {
        if !self.current.ids.is_empty() {
            self.unsaved.push(Arc::new(std::mem::take(&mut self.current)));
        }
        self.unsaved.clone()
    }

    /// Drops the oldest `layers` unsaved layers, which are in the store now. The store's filters tell a new id from a
    /// known one as cheaply as a resident layer would.
    pub(crate) fn committed(&mut self, layers: usize) {
        self.unsaved.drain(..layers.min(self.unsaved.len()));
        self.restored = Layer::default();
        self.store_may_have_more |= layers > 0;
    }

    pub(crate) fn len(&self) -> usize {
        let closed = self.unsaved.iter().map(|layer| layer.ids.len());
        self.current.ids.len() + closed.sum::<usize>()
    }

    /// Bytes of ids that only a checkpoint can free.
    pub(crate) fn unsaved_bytes(&self) -> usize {
        self.current.memory_bytes() + self.unsaved.iter().map(|layer| layer.memory_bytes()).sum::<usize>()
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.unsaved_bytes() + self.restored.memory_bytes()
    }
}
