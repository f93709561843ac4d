//! Batches: events in order, the unit of journalling and of application.
//!
//! A [`Batch`] keeps its keys in one buffer and its events in one vector, so that filling, encoding and applying
//! it costs no allocation per event. [`Events`] is what a protocol fills for one call; [`Combiner`] combines the
//! calls of many threads into the next batch to be journalled.
//!
//! Plain adds of one key and the same sign share a slot. Equal adds form a *run*: a delta and how many times it is
//! added. Adds of different amounts are a list of runs, in order of arrival. The journal keeps the runs, not their sum:
//! when the sum overflows, `apply` can still apply the adds that fit, and replay gives the same result.

mod codec;
mod combine;
mod events;
mod import_codec;

pub(crate) use codec::put_payload;
pub use codec::{CodecError, decode, encode, encode_with_reads};
pub use combine::{Combiner, Placed};
pub use events::{DividedCall, Events, SlotOutcome};

use crate::event::{Adds, Change, ChangeRef, Details, EventRef, RequestId};
use crate::key::KeyRef;

use crate::limits::{
    BATCH_EVENTS_MAX, BATCH_PARTS_MAX, CALL_BYTES_MAX, CALL_EVENTS_MAX, CALL_PARTS_MAX, JOIN_PARTS_MAX,
};
use crate::outcome::moved;
use crate::time::Position;

/// Hash of a key. The seed differs per process, so that clients cannot craft colliding keys.
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
    /// The lists of runs that slots of [`Shape::Mixed`] refer to.
    mixes: Vec<Mix>,
    parts: Vec<Part>,
    reads: usize,
    /// The lowest codec version that can encode its events.
    needs_version: u8,
    resets_clock: bool,
    /// The position of the store that slots marked `UNSTORED` were checked against.
    checked_at: Option<Position>,
}

/// One event of a batch; its key is in the batch's buffer.
#[derive(Clone, Copy, Debug)]
struct Slot {
    hash: u64,
    /// For a run, the delta of each add; for a mix, their sum.
    delta: i64,
    request_id: [u8; 16],
    key_start: u32,
    /// Index into `extras`, or into `mixes` for [`Shape::Mixed`].
    extra: u32,
    times: u32,
    key_len: u16,
    flags: u8,
    shape: Shape,
}

/// The slot has a request id.
const HAS_REQUEST_ID: u8 = 1;
/// The store does not hold the request id.
const UNSTORED: u8 = 1 << 1;
/// Later adds of the same key may be combined into the slot.
const OPEN: u8 = 1 << 2;
/// The sum of several adds without its runs, as in journals of format 1.
const BARE_SUM: u8 = 1 << 3;

/// What a slot holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    /// One event that is more than a plain add.
    Single,
    /// `times` equal plain adds.
    Run,
    /// Plain adds of different amounts and the same sign, listed in a mix. Their sum fits 64 bits.
    Mixed,
}

/// The linked list of runs of a mixed slot: its first and last node in `parts`.
#[derive(Clone, Copy, Debug)]
struct Mix {
    first: u32,
    last: u32,
}

/// A run within a mix.
#[derive(Clone, Copy, Debug)]
struct Part {
    delta: i64,
    times: u32,
    next: u32,
}

/// Everything of an event besides key, delta and request id.
#[derive(Clone, Debug)]
struct Extra {
    /// `None` is a plain add of the slot's delta.
    change: Option<Change>,
    details: Option<Details>,
}

const NONE: u32 = u32::MAX;

const _: () = assert!(NONE as usize > BATCH_EVENTS_MAX + BATCH_PARTS_MAX);
const _: () = assert!(size_of::<Slot>() == 48);

impl Slot {
    fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    fn request_id(&self) -> Option<RequestId> {
        self.has(HAS_REQUEST_ID).then_some(RequestId(self.request_id))
    }

    /// The sum of its plain adds; zero for other slots.
    fn sum(&self) -> i128 {
        match self.shape {
            Shape::Run => i128::from(self.delta) * i128::from(self.times),
            Shape::Mixed => i128::from(self.delta),
            Shape::Single => 0,
        }
    }

    /// The sum of an open slot, which always fits 64 bits.
    fn open_sum(&self) -> i64 {
        debug_assert!(self.has(OPEN) && i64::try_from(self.sum()).is_ok());
        match self.shape {
            Shape::Run => self.delta.wrapping_mul(i64::from(self.times)),
            Shape::Mixed | Shape::Single => self.delta,
        }
    }

    /// The sum so far, if adds with this `sum` may be combined into the slot. They must have the same sign, so that the
    /// intermediate values are monotonic and combining cannot be observed. The total must fit 64 bits, so that every
    /// offset within it does.
    fn joinable(&self, sum: i64) -> Option<i64> {
        if !self.has(OPEN) {
            return None;
        }
        let before = self.open_sum();
        let same_direction = (before < 0) == (sum < 0);
        (same_direction && before.checked_add(sum).is_some()).then_some(before)
    }
}

impl Batch {
    /// Number of events, after combining.
    #[must_use]
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether there are no events.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Number of runs in combined adds of different amounts.
    #[must_use]
    pub fn parts(&self) -> usize {
        self.parts.len()
    }

    /// Whether it is within the limits of one call.
    #[must_use]
    pub fn fits_call(&self) -> bool {
        self.len() <= CALL_EVENTS_MAX && self.parts() <= CALL_PARTS_MAX && self.bytes() <= CALL_BYTES_MAX
    }

    /// Removes all events, keeps the allocation.
    pub fn clear(&mut self) {
        self.keys.clear();
        self.slots.clear();
        self.extras.clear();
        self.mixes.clear();
        self.parts.clear();
        self.extra_bytes = 0;
        self.reads = 0;
        self.needs_version = 0;
        self.resets_clock = false;
        self.checked_at = None;
    }

    /// A batch without events that sets the partition's clock to the batch's time, even if that is earlier.
    #[must_use]
    pub fn clock_reset() -> Batch {
        Batch { resets_clock: true, ..Batch::default() }
    }

    /// Whether applying the batch may set the clock back.
    #[must_use]
    pub fn resets_clock(&self) -> bool {
        self.resets_clock
    }

    /// Whether the request ids were checked against the store at this position. See [`EventRef::unstored`].
    #[must_use]
    pub(crate) fn is_checked_at(&self, at: Position) -> bool {
        self.checked_at == Some(at)
    }

    /// Number of events that are reads.
    #[must_use]
    pub fn reads(&self) -> usize {
        self.reads
    }

    /// Whether the batch cannot change the state, so that it needs no journalling.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.reads == self.slots.len() && !self.resets_clock
    }

    /// Number of events to be journalled: all except reads.
    #[must_use]
    pub fn journalled_len(&self) -> usize {
        self.slots.len() - self.reads
    }

    fn is_read(&self, slot: &Slot) -> bool {
        matches!(self.extra(slot), Some(Extra { change: Some(Change::Read(_)), .. }))
    }

    /// The events in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = EventRef<'_>> + Clone {
        self.slots.iter().map(|slot| self.event(slot))
    }

    /// Upper bound on the size of the encoded batch.
    #[must_use]
    pub fn bytes(&self) -> usize {
        /// Flags, lengths, numbers and a request id.
        const PER_EVENT: usize = 48;
        /// A delta and a number of times.
        const PER_PART: usize = 16;
        // An event that joins another takes no more bytes than a separate one, so the bounds of calls add up.
        const _: () = assert!(JOIN_PARTS_MAX * PER_PART <= PER_EVENT);
        self.keys.len() + (self.slots.len() + 1) * PER_EVENT + self.parts.len() * PER_PART + self.extra_bytes
    }

    /// Bytes allocated.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.keys.capacity()
            + self.slots.capacity() * size_of::<Slot>()
            + self.extras.capacity() * size_of::<Extra>()
            + self.mixes.capacity() * size_of::<Mix>()
            + self.parts.capacity() * size_of::<Part>()
    }

    fn key(&self, slot: &Slot) -> &[u8] {
        let start = slot.key_start as usize;
        &self.keys[start..start + usize::from(slot.key_len)]
    }

    fn extra(&self, slot: &Slot) -> Option<&Extra> {
        if slot.shape == Shape::Single { self.extras.get(slot.extra as usize) } else { None }
    }

    /// The runs of a slot of plain adds, in order.
    fn runs(&self, slot: &Slot) -> Runs<'_> {
        match slot.shape {
            Shape::Mixed => Runs { parts: &self.parts, only: None, next: self.mixes[slot.extra as usize].first },
            Shape::Run | Shape::Single => Runs { parts: &[], only: Some((slot.delta, slot.times)), next: NONE },
        }
    }

    fn event(&self, slot: &Slot) -> EventRef<'_> {
        let extra = self.extra(slot);
        let change = match (slot.shape, extra.and_then(|extra| extra.change.as_ref())) {
            (Shape::Single, Some(change)) => ChangeRef::Other(change),
            (Shape::Run, _) if slot.times > 1 => ChangeRef::Adds(Adds::new(slot.sum(), self.runs(slot))),
            (Shape::Mixed, _) => ChangeRef::Adds(Adds::new(slot.sum(), self.runs(slot))),
            (Shape::Run | Shape::Single, _) => ChangeRef::Add(slot.delta),
        };
        EventRef {
            key: KeyRef::trusted(self.key(slot)),
            hash: slot.hash,
            change,
            request_id: slot.request_id(),
            details: extra.and_then(|extra| extra.details.as_ref()),
            unstored: slot.has(UNSTORED),
            bare_sum: slot.has(BARE_SUM),
        }
    }

    fn push_key(&mut self, key: KeyRef<'_>) -> (u32, u16) {
        let start = self.keys.len() as u32;
        self.keys.extend_from_slice(key.as_bytes());
        (start, key.as_bytes().len() as u16)
    }

    fn push_extra(&mut self, extra: Extra) -> u32 {
        self.extra_bytes += extra.encoded_len_max();
        self.reads += usize::from(matches!(extra.change, Some(Change::Read(_))));
        self.needs_version = self.needs_version.max(codec::version_needed(extra.change.as_ref()));
        self.extras.push(extra);
        (self.extras.len() - 1) as u32
    }

    /// Makes each of these guards protect all changes after it.
    fn cover(&mut self, first: usize, guards: usize) {
        let changes = self.slots.iter().skip(first).filter(|slot| !self.is_read(slot)).count();
        for number in 0..guards {
            let at = self.slots[first + number].extra as usize;
            if let Some(Change::Guard { covers, .. }) = &mut self.extras[at].change {
                *covers = (changes - number - 1) as u32;
            }
        }
    }

    /// Appends `times` plain adds of `delta` as one slot.
    fn push_run(&mut self, key: KeyRef<'_>, hash: u64, (delta, times): (i64, u32), flags: u8) {
        let (key_start, key_len) = self.push_key(key);
        let shape = Shape::Run;
        self.slots.push(Slot {
            hash,
            delta,
            request_id: [0; 16],
            key_start,
            extra: NONE,
            times,
            key_len,
            flags,
            shape,
        });
    }

    /// Appends any event except a plain add without a request id.
    fn push_event(
        &mut self,
        key: KeyRef<'_>,
        hash: u64,
        change: Change,
        id: Option<RequestId>,
        details: Option<Details>,
    ) {
        // Reads change nothing and are not journalled, so an id would have nothing to deduplicate.
        let is_read = matches!(change, Change::Read(_));
        let id = id.filter(|_| !is_read);
        let details = details.filter(|details| !is_read && !details.is_empty());
        let (key_start, key_len) = self.push_key(key);
        let (delta, change) = match change {
            Change::Add(delta) => (delta, None),
            other => (0, Some(other)),
        };
        let plain = change.is_none() && details.is_none();
        let extra = if plain { NONE } else { self.push_extra(Extra { change, details }) };
        self.slots.push(Slot {
            hash,
            delta,
            request_id: id.map_or([0; 16], |id| id.0),
            key_start,
            extra,
            times: 1,
            key_len,
            flags: if id.is_some() { HAS_REQUEST_ID } else { 0 },
            shape: Shape::Single,
        });
    }

    /// Combines a run into a slot that allows it; see [`Slot::joinable`].
    #[inline]
    fn join_run(&mut self, at: usize, (delta, times): (i64, u32)) {
        let slot = &mut self.slots[at];
        if slot.shape == Shape::Run {
            if slot.delta == delta
                && let Some(times) = slot.times.checked_add(times)
            {
                slot.times = times;
                return;
            }
            self.mix(at);
        }
        let last = &mut self.parts[self.mixes[self.slots[at].extra as usize].last as usize];
        if last.delta == delta
            && let Some(times_all) = last.times.checked_add(times)
        {
            last.times = times_all;
            let slot = &mut self.slots[at];
            slot.delta = moved(slot.delta, delta, times);
            return;
        }
        self.push_part(at, (delta, times));
    }

    /// Appends a part to a mixed slot. Cannot overflow: [`Slot::joinable`] checked the total.
    fn push_part(&mut self, at: usize, (delta, times): (i64, u32)) {
        let slot = &mut self.slots[at];
        slot.delta = moved(slot.delta, delta, times);
        let mix = &mut self.mixes[slot.extra as usize];
        let next = self.parts.len() as u32;
        self.parts[mix.last as usize].next = next;
        mix.last = next;
        self.parts.push(Part { delta, times, next: NONE });
    }

    /// Turns a run into a mix with one part.
    fn mix(&mut self, at: usize) {
        let first = self.parts.len() as u32;
        let slot = &mut self.slots[at];
        self.parts.push(Part { delta: slot.delta, times: slot.times, next: NONE });
        slot.delta = moved(0, slot.delta, slot.times);
        slot.shape = Shape::Mixed;
        slot.extra = self.mixes.len() as u32;
        self.mixes.push(Mix { first, last: first });
    }

    /// Appends a copy of a slot of another batch.
    fn push_copy(&mut self, from: &Batch, slot: &Slot) {
        let (key_start, _) = self.push_key(KeyRef::trusted(from.key(slot)));
        let kept = if self.checked_at == from.checked_at { u8::MAX } else { !UNSTORED };
        let mut copy = Slot { key_start, extra: NONE, flags: slot.flags & kept, ..*slot };
        match slot.shape {
            Shape::Single => copy.extra = from.extra(slot).map_or(NONE, |extra| self.push_extra(extra.clone())),
            Shape::Run => {}
            Shape::Mixed => {
                let first = self.parts.len() as u32;
                let runs = from.runs(slot);
                self.parts.extend(runs.zip(first + 1..).map(|((delta, times), next)| Part { delta, times, next }));
                let last = self.parts.len() as u32 - 1;
                self.parts[last as usize].next = NONE;
                copy.extra = self.mixes.len() as u32;
                self.mixes.push(Mix { first, last });
            }
        }
        self.slots.push(copy);
    }
}

/// Runs of equal adds in order, as `(delta, times)`.
#[derive(Clone, Copy)]
pub struct Runs<'a> {
    parts: &'a [Part],
    only: Option<(i64, u32)>,
    next: u32,
}

impl Iterator for Runs<'_> {
    type Item = (i64, u32);

    fn next(&mut self) -> Option<(i64, u32)> {
        if let Some(only) = self.only.take() {
            return Some(only);
        }
        let part = self.parts.get(self.next as usize)?;
        self.next = part.next;
        Some((part.delta, part.times))
    }
}

impl std::fmt::Debug for Runs<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(*self).finish()
    }
}
