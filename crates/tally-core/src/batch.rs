//! Batches: events in order, the unit of journalling and of application.
//!
//! A [`Batch`] keeps its keys in one buffer and its events in one vector, so that filling, encoding and applying
//! it costs no allocation per event. [`Events`] is what a front door fills for one call; [`Combiner`] gathers the
//! calls of many threads into the batch that is journalled next.

mod codec;
mod combine;
mod events;

pub(crate) use codec::put_asked;
pub use codec::{CodecError, decode, encode};
pub use combine::{Combiner, Placed};
pub use events::{Events, SlotOutcome};

use crate::event::{Change, ChangeRef, Details, EventRef, RequestId};
use crate::key::KeyRef;
use crate::time::Position;

/// Hash of a key. The seed differs per process, so that nobody can craft keys that collide.
#[must_use]
pub fn key_hash(seed: u64, key: &[u8]) -> u64 {
    xxhash_rust::xxh3::xxh3_64_with_seed(key, seed)
}

/// Events in order.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    keys: Vec<u8>,
    slots: Vec<Slot>,
    extras: Vec<Extra>,
    extra_bytes: usize,
    looks: usize,
    /// The state of the store that slots marked `unstored` were looked for in.
    looked_at: Option<Position>,
}

/// One event of a batch; the key lies in the batch's buffer.
#[derive(Clone, Copy, Debug)]
struct Slot {
    hash: u64,
    delta: i64,
    request_id: [u8; 16],
    key_start: u32,
    extra: u32,
    key_len: u16,
    has_request_id: bool,
    /// The store does not hold its request id.
    unstored: bool,
    /// Belongs to one group with the slot before it.
    follows: bool,
    merging: Merging,
}

/// Whether later adds of the same key may join a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Merging {
    /// A plain add that nothing joined yet.
    Open,
    /// A plain add that others joined.
    Joined,
    /// Stays itself: it carries more than a delta, or the caller wants its own verdict.
    Closed,
}

/// What a slot carries besides key, delta and request id.
#[derive(Clone, Debug)]
struct Extra {
    /// `None` is a plain add of the slot's delta.
    change: Option<Change>,
    details: Option<Details>,
}

const NO_EXTRA: u32 = u32::MAX;

impl Slot {
    /// Whether an add of `delta` may become part of this slot: same direction, so that the values in between
    /// lie between the ends and combining cannot be observed; and no overflow of the sum.
    fn joined_delta(&self, delta: i64) -> Option<i64> {
        let same_direction = (self.delta < 0) == (delta < 0);
        (self.merging != Merging::Closed && same_direction).then(|| self.delta.checked_add(delta)).flatten()
    }
}

impl Batch {
    /// Number of events, after combining.
    #[must_use]
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether there is no event.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Forgets the events, keeps the memory.
    pub fn clear(&mut self) {
        self.keys.clear();
        self.slots.clear();
        self.extras.clear();
        self.extra_bytes = 0;
        self.looks = 0;
        self.looked_at = None;
    }

    /// Whether the events' request ids were looked for in the store as it is `at` this position. See [`EventRef::unstored`].
    #[must_use]
    pub(crate) fn looked_at(&self, at: Position) -> bool {
        self.looked_at == Some(at)
    }

    /// How many of the events only look.
    #[must_use]
    pub fn looks(&self) -> usize {
        self.looks
    }

    /// Number of events that the journal gets.
    #[must_use]
    pub fn journalled_len(&self) -> usize {
        if self.looks == 0 { self.slots.len() } else { self.journalled().count() }
    }

    /// The slots that the journal gets: all but looks. A look within a group is among them where its key may have a say in
    /// what is put off, because a replay has to come to the same conclusion: if the group changes something, and if some
    /// increments are combined, since then a group of looks that is put off puts off what comes after any of them.
    fn journalled(&self) -> impl Iterator<Item = &Slot> {
        let may_put_off = self.slots.iter().any(|slot| slot.merging == Merging::Joined);
        let groups = self.slots.chunk_by(|_, next| next.follows);
        let counts =
            move |group: &&[Slot]| may_put_off && group.len() > 1 || !group.iter().all(|slot| self.is_look(slot));
        groups.filter(counts).flatten()
    }

    fn is_look(&self, slot: &Slot) -> bool {
        let extra = self.extras.get(slot.extra as usize);
        extra.is_some_and(|extra| matches!(extra.change, Some(Change::Look(_))))
    }

    /// The events in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = EventRef<'_>> + Clone {
        self.slots.iter().map(|slot| self.event(slot))
    }

    /// At least as many bytes as the encoded batch takes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        /// Flags, lengths, numbers and a request id.
        const PER_EVENT: usize = 48;
        self.keys.len() + (self.slots.len() + 1) * PER_EVENT + self.extra_bytes
    }

    /// Bytes of memory it holds, used or not.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.keys.capacity() + self.slots.capacity() * size_of::<Slot>() + self.extras.capacity() * size_of::<Extra>()
    }

    fn key(&self, slot: &Slot) -> &[u8] {
        let start = slot.key_start as usize;
        &self.keys[start..start + usize::from(slot.key_len)]
    }

    fn event(&self, slot: &Slot) -> EventRef<'_> {
        let extra = self.extras.get(slot.extra as usize);
        let change = match extra.and_then(|extra| extra.change.as_ref()) {
            None => ChangeRef::Add(slot.delta),
            Some(change) => ChangeRef::Other(change),
        };
        EventRef {
            key: KeyRef::trusted(self.key(slot)),
            hash: slot.hash,
            change,
            request_id: slot.has_request_id.then_some(RequestId(slot.request_id)),
            details: extra.and_then(|extra| extra.details.as_ref()),
            unstored: slot.unstored,
            combined: slot.merging == Merging::Joined,
            follows: slot.follows,
        }
    }

    fn push_key(&mut self, key: KeyRef<'_>) -> (u32, u16) {
        let start = self.keys.len() as u32;
        self.keys.extend_from_slice(key.as_bytes());
        (start, key.as_bytes().len() as u16)
    }

    fn push_extra(&mut self, extra: Extra) -> u32 {
        self.extra_bytes += extra.encoded_len_max();
        self.looks += usize::from(matches!(extra.change, Some(Change::Look(_))));
        self.extras.push(extra);
        (self.extras.len() - 1) as u32
    }

    fn push_add(&mut self, key: KeyRef<'_>, hash: u64, delta: i64, merging: Merging) {
        let (key_start, key_len) = self.push_key(key);
        self.slots.push(Slot {
            hash,
            delta,
            request_id: [0; 16],
            key_start,
            extra: NO_EXTRA,
            key_len,
            has_request_id: false,
            unstored: false,
            follows: false,
            merging,
        });
    }

    fn push_event(
        &mut self,
        key: KeyRef<'_>,
        hash: u64,
        change: Change,
        id: Option<RequestId>,
        details: Option<Details>,
    ) {
        // A look leaves no trace, so there is nothing to remember under an id.
        let is_look = matches!(change, Change::Look(_));
        let id = id.filter(|_| !is_look);
        let details = details.filter(|details| !is_look && !details.is_empty());
        let (key_start, key_len) = self.push_key(key);
        let (delta, change) = match change {
            Change::Add(delta) => (delta, None),
            other => (0, Some(other)),
        };
        let plain = change.is_none() && details.is_none();
        let extra = if plain { NO_EXTRA } else { self.push_extra(Extra { change, details }) };
        self.slots.push(Slot {
            hash,
            delta,
            request_id: id.map_or([0; 16], |id| id.0),
            key_start,
            extra,
            key_len,
            has_request_id: id.is_some(),
            unstored: false,
            follows: false,
            merging: if plain && id.is_none() { Merging::Open } else { Merging::Closed },
        });
    }

    /// Appends a copy of one slot of another batch.
    fn push_copy(&mut self, from: &Batch, slot: &Slot) {
        let (key_start, _) = self.push_key(KeyRef::trusted(from.key(slot)));
        let extra = match from.extras.get(slot.extra as usize) {
            None => NO_EXTRA,
            Some(extra) => self.push_extra(extra.clone()),
        };
        let unstored = slot.unstored && self.looked_at == from.looked_at;
        self.slots.push(Slot { key_start, extra, unstored, ..*slot });
    }
}
