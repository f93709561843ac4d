//! Request ids: what was answered to each, for as long as it may be asked again.
//!
//! An id is remembered for the idempotency window, counted in whole generations from the batch that first carried
//! it, so whether a repeat is a duplicate follows from batch times alone. Ids are only ever added, in layers: the
//! newest takes new ids; a checkpoint closes it and writes it out; from then on its ids are looked up in the store.

use std::sync::Arc;

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;

use crate::event::RequestId;
use crate::limits::{GENERATION_MS, IDEMPOTENCY_WINDOW_MS};
use crate::outcome::{Outcome, Refusal};
use crate::time::Millis;
use crate::varint::{Cursor, put_i64, put_u64};

/// The first outcome of a request, with enough of the request to tell another one that borrowed its id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FirstOutcome {
    /// Hash of everything the request asked for.
    pub fingerprint: u64,
    /// Time of the batch.
    pub at: Millis,
    value: i64,
    applied: i64,
    refusal: u8,
    exists: bool,
}

impl FirstOutcome {
    /// Remembers an outcome.
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

    /// The outcome as given again.
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

    /// Whether the window has passed at `now`.
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

/// Ids of one stretch of time. Once closed it never changes.
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

    /// The ids in no order.
    pub fn iter(&self) -> impl Iterator<Item = (RequestId, &FirstOutcome)> {
        self.ids.iter().map(|(id, first)| (*id, first))
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.ids.len()
    }

    fn memory_bytes(&self) -> usize {
        self.ids.allocation_size()
    }
}

/// Ids are digests already: any eight bytes of one are a hash.
fn hash(id: RequestId) -> u64 {
    let [a, b, c, d, e, f, g, h, ..] = id.0;
    u64::from_le_bytes([a, b, c, d, e, f, g, h])
}

/// All remembered ids that are in memory.
#[derive(Debug, Default)]
pub(crate) struct RequestIds {
    current: Layer,
    /// Closed, not yet in the store; newest last.
    unsaved: Vec<Arc<Layer>>,
    /// Found in the store again.
    recalled: Layer,
    /// Whether the store may hold ids that no layer does.
    in_store_only: bool,
}

impl RequestIds {
    /// A memory of ids beside a store that may hold some.
    pub(crate) fn beside_store() -> Self {
        RequestIds { in_store_only: true, ..RequestIds::default() }
    }

    /// What the layer that takes new ids knows. It has the last word: an expired id may have been used afresh.
    pub(crate) fn get_current(&self, id: RequestId) -> Option<&FirstOutcome> {
        self.current.get(id)
    }

    /// Has the place of an id on its way to the processor's cache.
    pub(crate) fn fetch(&self, id: RequestId) {
        std::hint::black_box(self.current.get(id).is_some());
    }

    /// What the other layers know, the newest first. Nothing here changes while a batch is applied.
    pub(crate) fn get_closed(&self, id: RequestId) -> Option<&FirstOutcome> {
        for layer in self.unsaved.iter().rev() {
            if let Some(first) = layer.get(id) {
                return Some(first);
            }
        }
        if self.recalled.ids.is_empty() { None } else { self.recalled.get(id) }
    }

    /// Lets go of what the store can tell again; says whether there was any.
    pub(crate) fn drop_recalled(&mut self) -> bool {
        let recalled = std::mem::take(&mut self.recalled);
        recalled.memory_bytes() > 0
    }

    /// Whether the store may hold ids that are not in memory.
    pub(crate) fn is_beside_store(&self) -> bool {
        self.in_store_only
    }

    /// Whether only the store can tell if the id was seen.
    pub(crate) fn is_unknown(&self, id: RequestId) -> bool {
        self.in_store_only && self.get_current(id).or_else(|| self.get_closed(id)).is_none()
    }

    pub(crate) fn insert(&mut self, id: RequestId, first: FirstOutcome) {
        self.current.insert(id, first);
    }

    pub(crate) fn recall(&mut self, id: RequestId, first: FirstOutcome) {
        self.recalled.insert(id, first);
    }

    pub(crate) fn is_dirty(&self) -> bool {
        !self.current.ids.is_empty() || !self.unsaved.is_empty()
    }

    /// Closes the current layer; what the store lacks is returned.
    pub(crate) fn begin_capture(&mut self) -> Vec<Arc<Layer>> {
        if !self.current.ids.is_empty() {
            self.unsaved.push(Arc::new(std::mem::take(&mut self.current)));
        }
        self.unsaved.clone()
    }

    /// The first `layers` unsaved ones are in the store now, which also answers for them from now on: its filters tell a new
    /// id from a known one as cheaply as another layer would.
    pub(crate) fn committed(&mut self, layers: usize) {
        self.unsaved.drain(..layers.min(self.unsaved.len()));
        self.recalled = Layer::default();
        self.in_store_only |= layers > 0;
    }

    pub(crate) fn len(&self) -> usize {
        let closed = self.unsaved.iter().map(|layer| layer.ids.len());
        self.current.ids.len() + closed.sum::<usize>()
    }

    /// Bytes of ids that only a checkpoint can move out of memory.
    pub(crate) fn unsaved_bytes(&self) -> usize {
        self.current.memory_bytes() + self.unsaved.iter().map(|layer| layer.memory_bytes()).sum::<usize>()
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.unsaved_bytes() + self.recalled.memory_bytes()
    }
}
