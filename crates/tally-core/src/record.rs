//! The records of the store: codecs for their keys and values.
//!
//! ```text
//! 'c' key                              → version, counter; version 2 adds its expiry
//! 'e' expires at:u64be, key            → empty: the counter may expire then
//! 'i' request id (16 bytes)            → version, first outcome
//! 'l' key length:u16be, key, seq:u64be → version, ledger entry
//! 'h' key                              → version, head of the key's ledger chain
//! 's' key                              → version, summed reports of the key's sub-counters
//! 'm'                                  → version, metadata of the partition; version 2 adds how many counters expire
//! ```
//!
//! The first byte of a store key is its family, so each family is one range in key order. The first byte of a value
//! is its version. A new layout gets a new version or a new family; an old one never changes its meaning.

use std::convert::Infallible;

use crate::counter::{Counter, CounterState};
use crate::event::RequestId;
use crate::key::{Key, KeyRef};
use crate::ledger::{ChainHead, CorrectionKind, LedgerEntry};
use crate::limits::{KEY_BYTES_MAX, REASON_BYTES_MAX};
use crate::request_ids::FirstOutcome;
use crate::sub_counters::SummedShards;
use crate::time::Millis;
use crate::varint::{Cursor, put_bytes, put_i64, put_u64};

const VERSION: u8 = 1;
/// Version of a counter that expires.
const VERSION_EXPIRES: u8 = 2;
/// Version of the metadata that has the number of expiring counters.
const VERSION_COUNTS_EXPIRING: u8 = 2;

pub(crate) const COUNTER: u8 = b'c';
const REQUEST: u8 = b'i';
const LEDGER: u8 = b'l';
const HEAD: u8 = b'h';
const EXPIRY: u8 = b'e';
const META: u8 = b'm';
const SUMMED: u8 = b's';

/// Store key of the partition's metadata.
pub const META_KEY: &[u8] = &[META];
/// Prefix of the store keys of expiries, which sort by time.
pub const EXPIRY_PREFIX: &[u8] = &[EXPIRY];

/// Prefix of the store keys of the heads of ledger chains.
pub const HEAD_PREFIX: &[u8] = &[HEAD];

/// Prefix of the store keys of request ids.
pub const REQUEST_PREFIX: &[u8] = &[REQUEST];

/// Metadata of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meta {
    /// The time of its last batch.
    pub clock: Millis,
    /// Counters in memory or in the store, including expired ones not removed yet.
    pub counters: u64,
    /// How many of `counters` have an expiry.
    pub expiring: u64,
}

/// Store key of a counter. Maps a prefix of keys to the prefix of their store keys.
#[must_use]
pub fn counter_key(key: &[u8]) -> Vec<u8> {
    [&[COUNTER], key].concat()
}

/// The key of a counter, if this is the store key of one.
#[must_use]
pub fn counter_of(store_key: &[u8]) -> Option<KeyRef<'_>> {
    store_key.strip_prefix(&[COUNTER]).and_then(|key| KeyRef::new(key).ok())
}

/// Store key of an expiry.
#[must_use]
pub fn expiry_key(expires_at: Millis, key: KeyRef<'_>) -> Vec<u8> {
    [EXPIRY_PREFIX, &expires_at.0.to_be_bytes(), key.as_bytes()].concat()
}

/// The time and the counter of an expiry, if this is the store key of one.
#[must_use]
pub fn expiry_of(store_key: &[u8]) -> Option<(Millis, KeyRef<'_>)> {
    let (at, key) = store_key.strip_prefix(EXPIRY_PREFIX)?.split_first_chunk::<8>()?;
    Some((Millis(u64::from_be_bytes(*at)), KeyRef::new(key).ok()?))
}

/// Store key of a request id: all have this length.
pub type RequestKey = [u8; 17];

/// Store key of a request id.
#[must_use]
pub fn request_key(id: RequestId) -> RequestKey {
    let mut key = [REQUEST; 17];
    key[1..].copy_from_slice(&id.0);
    key
}

/// Appends the value of a request id.
pub fn write_request(first: &FirstOutcome, out: &mut Vec<u8>) {
    out.push(VERSION);
    first.encode(out);
}

/// Store key of a ledger entry.
#[must_use]
pub fn ledger_key(key: KeyRef<'_>, seq: u64) -> Vec<u8> {
    let bytes = key.as_bytes();
    [&[LEDGER], &(bytes.len() as u16).to_be_bytes()[..], bytes, &seq.to_be_bytes()].concat()
}

/// Whether this is the store key of a ledger entry of `key`.
#[must_use]
pub fn is_ledger_of(store_key: &[u8], key: KeyRef<'_>) -> bool {
    let first = ledger_key(key, 0);
    store_key.len() == first.len() && store_key.starts_with(&first[..first.len() - 8])
}

/// Store key of the head of a ledger chain.
#[must_use]
pub fn head_key(key: KeyRef<'_>) -> Vec<u8> {
    [&[HEAD], key.as_bytes()].concat()
}

/// The counter whose ledger chain has this head, if this is the store key of one.
#[must_use]
pub fn head_of(store_key: &[u8]) -> Option<KeyRef<'_>> {
    store_key.strip_prefix(&[HEAD]).and_then(|key| KeyRef::new(key).ok())
}

/// Store key of the summed reports of a counter's sub-counters.
#[must_use]
pub fn summed_key(key: KeyRef<'_>) -> Vec<u8> {
    [&[SUMMED], key.as_bytes()].concat()
}

/// The counter, if this is the store key of the summed reports of its sub-counters.
#[must_use]
pub fn summed_of(store_key: &[u8]) -> Option<KeyRef<'_>> {
    store_key.strip_prefix(&[SUMMED]).and_then(|key| KeyRef::new(key).ok())
}

/// Appends the value of a counter.
pub fn write_counter(state: &CounterState, out: &mut Vec<u8>) {
    out.push(if state.expires_at.is_some() { VERSION_EXPIRES } else { VERSION });
    state.counter.encode(out);
    if let Some(expires_at) = state.expires_at {
        put_u64(out, expires_at.0);
    }
}

/// Reads a counter.
#[must_use]
pub fn read_counter(value: &[u8]) -> Option<CounterState> {
    let mut cursor = Cursor::new(value);
    let version = cursor.u8()?;
    let counter = Counter::decode(&mut cursor)?;
    let expires_at = match version {
        VERSION => None,
        VERSION_EXPIRES => Some(Millis(cursor.u64()?)),
        _ => return None,
    };
    cursor.is_done().then_some(CounterState { counter, expires_at })
}

/// Reads the metadata of the partition. Version 1 lacks the number of expiring counters: `count_expiring` supplies it.
pub fn read_meta<E>(value: &[u8], count_expiring: impl FnOnce() -> Result<u64, E>) -> Result<Option<Meta>, E> {
    let mut cursor = Cursor::new(value);
    let (Some(version), Some(clock), Some(counters)) = (cursor.u8(), cursor.u64(), cursor.u64()) else {
        return Ok(None);
    };
    let expiring = match version {
        VERSION => Some(count_expiring()?),
        VERSION_COUNTS_EXPIRING => cursor.u64(),
        _ => None,
    };
    let meta = expiring.map(|expiring| Meta { clock: Millis(clock), counters, expiring });
    Ok(meta.filter(|_| cursor.is_done()))
}

/// Reads the first outcome of a request.
#[must_use]
pub fn read_request(value: &[u8]) -> Option<FirstOutcome> {
    read(value, FirstOutcome::decode)
}

/// Reads the head of a ledger chain.
#[must_use]
pub fn read_head(value: &[u8]) -> Option<ChainHead> {
    read(value, |cursor| Some(ChainHead { seq: cursor.u64()?, hash: cursor.array()? }))
}

/// Reads the summed reports of a counter's sub-counters.
#[must_use]
pub fn read_summed(value: &[u8]) -> Option<SummedShards> {
    read(value, SummedShards::decode)
}

/// Appends the value of a ledger entry.
pub fn write_ledger(entry: &LedgerEntry, out: &mut Vec<u8>) {
    out.push(VERSION);
    put_u64(out, entry.seq);
    put_u64(out, entry.at.0);
    out.push(entry.kind as u8);
    put_bytes(out, entry.actor.as_bytes());
    put_bytes(out, entry.reason.as_bytes());
    put_i64(out, entry.before);
    put_i64(out, entry.after);
    out.extend_from_slice(&entry.previous);
    out.extend_from_slice(&entry.hash);
}

/// Reads a ledger entry.
#[must_use]
pub fn read_ledger(value: &[u8]) -> Option<LedgerEntry> {
    read(value, |cursor| {
        Some(LedgerEntry {
            seq: cursor.u64()?,
            at: Millis(cursor.u64()?),
            kind: CorrectionKind::from_code(cursor.u8()?)?,
            actor: cursor.text(REASON_BYTES_MAX)?,
            reason: cursor.text(REASON_BYTES_MAX)?,
            before: cursor.i64()?,
            after: cursor.i64()?,
            previous: cursor.array()?,
            hash: cursor.array()?,
        })
    })
}

fn read<T>(value: &[u8], fields: impl FnOnce(&mut Cursor<'_>) -> Option<T>) -> Option<T> {
    let mut cursor = Cursor::new(value);
    if cursor.u8()? != VERSION {
        return None;
    }
    let read = fields(&mut cursor)?;
    cursor.is_done().then_some(read)
}

/// Whether a record can be decoded: its store key and, unless it is a tombstone, its value.
#[must_use]
pub fn decodes(store_key: &[u8], value: Option<&[u8]>) -> bool {
    let value_is = |reads: fn(&[u8]) -> bool| value.is_none_or(reads);
    let Some((&family, rest)) = store_key.split_first() else { return false };
    match family {
        COUNTER => KeyRef::new(rest).is_ok() && value_is(|value| read_counter(value).is_some()),
        EXPIRY => expiry_of(store_key).is_some() && value_is(<[u8]>::is_empty),
        REQUEST => store_key.len() == size_of::<RequestKey>() && value_is(|value| read_request(value).is_some()),
        HEAD => KeyRef::new(rest).is_ok() && value_is(|value| read_head(value).is_some()),
        SUMMED => KeyRef::new(rest).is_ok() && value_is(|value| read_summed(value).is_some()),
        LEDGER => ledger_of(store_key)
            .is_some_and(|seq| value.is_none_or(|value| read_ledger(value).is_some_and(|entry| entry.seq == seq))),
        META => rest.is_empty() && value_is(|value| matches!(read_meta::<Infallible>(value, || Ok(0)), Ok(Some(_)))),
        _ => false,
    }
}

/// The number of a ledger entry, if this is the store key of one.
fn ledger_of(store_key: &[u8]) -> Option<u64> {
    let (length, rest) = store_key.strip_prefix(&[LEDGER])?.split_first_chunk::<2>()?;
    let (key, seq) = rest.split_last_chunk::<8>()?;
    let is_key = KeyRef::new(key).is_ok() && key.len() == usize::from(u16::from_be_bytes(*length));
    is_key.then_some(u64::from_be_bytes(*seq))
}

/// Whether a record can be dropped at `now`: a request id past its idempotency window.
#[must_use]
pub fn is_expired(store_key: &[u8], value: &[u8], now: Millis) -> bool {
    store_key.first() == Some(&REQUEST) && read_request(value).is_some_and(|first| first.is_expired(now))
}

/// Records to be written to the store: keys and values in one buffer.
#[derive(Clone, Debug, Default)]
pub struct Records {
    bytes: Vec<u8>,
    spans: Vec<RecordSpan>,
}

#[derive(Clone, Copy, Debug)]
struct RecordSpan {
    start: u32,
    key_len: u16,
    /// `None` is a tombstone.
    value_len: Option<u32>,
}

impl Records {
    /// Number of records.
    #[must_use]
    pub fn len(&self) -> usize {
        self.spans.len()
    }

    /// Whether there are no records.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// Bytes used.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.bytes.len() + self.spans.len() * size_of::<RecordSpan>()
    }

    /// Sorts by key.
    pub fn sort(&mut self) {
        sort_by_bytes(&mut self.spans, self.bytes.as_slice(), |span, bytes| span.key(bytes));
    }

    /// The records: key, and value or `None` for a tombstone.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], Option<&[u8]>)> {
        self.spans.iter().map(|span| {
            let value_start = span.start as usize + usize::from(span.key_len);
            let value = span.value_len.map(|len| &self.bytes[value_start..value_start + len as usize]);
            (span.key(&self.bytes), value)
        })
    }

    /// Removes all records, keeps the allocation.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.spans.clear();
    }

    /// Moves every record of `other` to the end.
    pub fn append(&mut self, other: &mut Records) {
        let shift = self.bytes.len() as u32;
        self.bytes.append(&mut other.bytes);
        self.spans.extend(other.spans.drain(..).map(|span| RecordSpan { start: span.start + shift, ..span }));
    }

    /// Adds a counter, and its expiry if it has one.
    pub fn put_counter(&mut self, key: &[u8], state: &CounterState) {
        self.put_raw(&[&[COUNTER], key], |out| write_counter(state, out));
        let Some(expires_at) = state.expires_at else { return };
        self.put_raw(&[EXPIRY_PREFIX, &expires_at.0.to_be_bytes(), key], |_| {});
    }

    /// Adds a tombstone for a counter.
    pub fn remove_counter(&mut self, key: &Key) {
        self.remove(&[&[COUNTER], key.as_bytes()]);
    }

    /// Adds a tombstone for an expiry.
    pub fn remove_expiry(&mut self, expires_at: Millis, key: &Key) {
        self.remove(&[EXPIRY_PREFIX, &expires_at.0.to_be_bytes(), key.as_bytes()]);
    }

    /// Adds the metadata of the partition.
    pub fn put_meta(&mut self, meta: &Meta) {
        self.put_raw(&[META_KEY], |out| {
            out.push(VERSION_COUNTS_EXPIRING);
            put_u64(out, meta.clock.0);
            put_u64(out, meta.counters);
            put_u64(out, meta.expiring);
        });
    }

    /// Adds the head of a ledger chain.
    pub fn put_head(&mut self, key: KeyRef<'_>, head: &ChainHead) {
        self.put(&[&[HEAD], key.as_bytes()], |out| {
            put_u64(out, head.seq);
            out.extend_from_slice(&head.hash);
        });
    }

    /// Adds the summed reports of a counter's sub-counters.
    pub fn put_summed(&mut self, key: KeyRef<'_>, summed: &SummedShards) {
        self.put(&[&[SUMMED], key.as_bytes()], |out| summed.encode(out));
    }

    /// Adds a ledger entry.
    pub fn put_ledger(&mut self, key: KeyRef<'_>, entry: &LedgerEntry) {
        self.put_raw(&[&ledger_key(key, entry.seq)], |out| write_ledger(entry, out));
    }

    fn put(&mut self, key: &[&[u8]], value: impl FnOnce(&mut Vec<u8>)) {
        self.put_raw(key, |out| {
            out.push(VERSION);
            value(out);
        });
    }

    fn put_raw(&mut self, key: &[&[u8]], value: impl FnOnce(&mut Vec<u8>)) {
        self.remove(key);
        let value_start = self.bytes.len();
        value(&mut self.bytes);
        let value_len = (self.bytes.len() - value_start) as u32;
        if let Some(span) = self.spans.last_mut() {
            span.value_len = Some(value_len);
        }
    }

    fn remove(&mut self, key: &[&[u8]]) {
        let start = self.bytes.len();
        for part in key {
            self.bytes.extend_from_slice(part);
        }
        let key_len = (self.bytes.len() - start) as u16;
        self.spans.push(RecordSpan { start: start as u32, key_len, value_len: None });
    }
}

/// Sorts by a key of bytes, which `key_of` gets from an item and `context`. Most keys share a prefix and differ soon
/// after it, so the eight bytes after the prefix decide most comparisons without reading the keys, which may be
/// scattered in memory.
pub fn sort_by_bytes<T, B: ?Sized>(items: &mut Vec<T>, context: &B, key_of: impl for<'k> Fn(&'k T, &'k B) -> &'k [u8]) {
    let Some(first) = items.first().map(|first| key_of(first, context)) else {
        return;
    };
    let shared = items.iter().fold(first.len(), |shared, item| {
        first[..shared].iter().zip(key_of(item, context)).take_while(|(a, b)| a == b).count()
    });
    let lead = |item: T| (leading(&key_of(&item, context)[shared..]), item);
    let mut keyed: Vec<(u64, T)> = items.drain(..).map(lead).collect();
    keyed.sort_unstable_by(|(a_lead, a), (b_lead, b)| {
        a_lead.cmp(b_lead).then_with(|| key_of(a, context).cmp(key_of(b, context)))
    });
    items.extend(keyed.into_iter().map(|(_, item)| item));
}

/// The first eight bytes as a number that sorts like them, padded with zeros. Ties need a comparison of the whole keys.
fn leading(bytes: &[u8]) -> u64 {
    match bytes.first_chunk::<8>() {
        Some(eight) => u64::from_be_bytes(*eight),
        None => {
            let mut padded = [0; 8];
            padded[..bytes.len()].copy_from_slice(bytes);
            u64::from_be_bytes(padded)
        }
    }
}

impl RecordSpan {
    fn key<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        &bytes[self.start as usize..self.start as usize + usize::from(self.key_len)]
    }
}

const _: () = assert!(KEY_BYTES_MAX + 11 <= u16::MAX as usize);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn records_sort_by_key_whatever_prefix_they_share(
            keys in prop::collection::btree_set(prop::collection::vec(0u8..4, 1..14), 1..80),
            order in any::<u64>(),
        ) {
            let mut shuffled: Vec<Vec<u8>> = keys.iter().cloned().collect();
            let len = shuffled.len() as u64;
            for i in 0..shuffled.len() {
                shuffled.swap(i, (order.rotate_left(i as u32) % len) as usize);
            }
            let mut records = Records::default();
            for key in &shuffled {
                records.put_counter(key, &CounterState::new(Millis(0)));
            }
            records.sort();
            let sorted: Vec<Vec<u8>> = records.iter().map(|(key, _)| key[1..].to_vec()).collect();
            prop_assert_eq!(sorted, keys.into_iter().collect::<Vec<_>>());
        }
    }
}
