//! The binary form of a batch.
//!
//! ```text
//! batch   = version:u8  flags:u8  at:varint  count:varint  event*  crc32:u32le (over everything before it)
//! flags   = bit 0 resets the clock to `at`, even if that is earlier · the others must be 0
//! event   = head:u8  key:bytes  change  [request_id:16 bytes]  [details:bytes]
//! head    = bits 0-2 kind of change · bit 3 has request id · bit 4 has details · bit 5 combined adds
//!           (excludes all others) · bits 6 and 7 must be 0
//! change  = Add delta | combined adds: runs:varint, then for each: delta, times:varint
//!         | Set value,terms:u8,[expected],[deadline],why | Reset why | Adjust delta,why | Delete why
//!         | Expire terms:u8,[deadline] | Read field:u8 | more:u8, then Sweep expires_at, or Sum count, then for each:
//!           shard × 2 (+ 1 if closed), incarnation, increments, decrements, or Import import,
//!           or ImportRequest record:bytes, or Guard version,covers
//! import  = parts:u8  [counter record:bytes]  entries:varint  (ledger entry record:bytes)*
//! parts   = bit 0 replaces · bit 1 is the last part · bit 2 has a counter
//! terms   = of Set: bits 0-1 always, equals, absent, present · bits 2-3 expiry keep, never, at, after
//!           of Expire: bits 0-2 condition · bit 3 has a deadline · bit 4 the deadline is a duration
//! why     = actor:bytes reason:bytes
//! details = (tag:u8 value:bytes)*       tags: 1 member · 2 dimensions · 3 at · 4 bounds · 5 expiry
//! bytes   = length:varint, that many bytes;  numbers are varints, signed ones zigzag
//! ```
//!
//! Version 3 is version 2 with imports or sums of sub-counters, and version 4 is version 3 with guards. A batch has the
//! lowest version that its events allow, so that a journal without them can be read by earlier builds.
//!
//! Version 1 is still read. It has no flags, has the sum of combined adds instead of their runs, and sets bit 6 of the
//! head if an event is in the same group as the previous one.
//!
//! An unknown version, flag, kind or tag makes the whole batch unreadable: stopping is better than guessing at counts.

use super::import_codec::{put_import, put_import_request, read_import, read_import_request};
use super::{BARE_SUM, Batch, Extra, HAS_REQUEST_ID, OPEN, Shape, Slot};
use crate::event::{
    AddExpiry, Bounds, Change, ChangeRef, Condition, Correction, Deadline, Details, Expiry, ExpiryCondition, Field,
    Member, OnBound, RequestId,
};
use crate::key::KeyRef;
use crate::limits::{
    BATCH_BYTES_MAX, BATCH_EVENTS_MAX, BATCH_PARTS_MAX, DIMENSION_BYTES_MAX, EVENT_BYTES_MAX, KEY_BYTES_MAX,
    REASON_BYTES_MAX, REPORT_BYTES_MAX,
};
use crate::sub_counters::{ShardReports, decode_reports, encode_reports};
use crate::time::Millis;
use crate::varint::{Cursor, put_bytes, put_i64, put_u64};

/// The version that is written, unless an event needs a later one.
const VERSION: u8 = 2;
/// The version of a batch with imports or sums of sub-counters.
const VERSION_3: u8 = 3;
/// The version of a batch with guards.
const VERSION_4: u8 = 4;
/// Version 1, which is only read: no flags, and sums instead of runs for combined adds.
const VERSION_BARE_SUMS: u8 = 1;

const FLAG_RESETS_CLOCK: u8 = 1;

const KIND_ADD: u8 = 0;
const KIND_SET: u8 = 1;
const KIND_RESET: u8 = 2;
const KIND_ADJUST: u8 = 3;
const KIND_DELETE: u8 = 4;
const KIND_EXPIRE: u8 = 5;
const KIND_READ: u8 = 6;
/// The kind is in a separate byte, before the change.
const KIND_MORE: u8 = 7;
const KIND_MASK: u8 = 0b111;
const HEAD_REQUEST_ID: u8 = 1 << 3;
const HEAD_DETAILS: u8 = 1 << 4;
const HEAD_COMBINED: u8 = 1 << 5;
/// Only in version 1.
const HEAD_FOLLOWS: u8 = 1 << 6;

const MORE_SWEEP: u8 = 0;
const MORE_SUM: u8 = 1;
const MORE_IMPORT: u8 = 2;
const MORE_IMPORT_REQUEST: u8 = 3;
const MORE_GUARD: u8 = 4;

/// The encoded number of a field is its index.
const FIELDS: [Field; 3] = [Field::Value, Field::Expiry, Field::Version];

const TERMS_CONDITION: u8 = 0b11;
const TERMS_NEVER: u8 = 1 << 2;
const TERMS_AT: u8 = 2 << 2;
const TERMS_AFTER: u8 = 3 << 2;
const TERMS_EXPIRES: u8 = 1 << 3;
const TERMS_RELATIVE: u8 = 1 << 4;

/// The encoded number of an expiry condition is its index.
const EXPIRY_CONDITIONS: [ExpiryCondition; 6] = [
    ExpiryCondition::Always,
    ExpiryCondition::IfNone,
    ExpiryCondition::IfSome,
    ExpiryCondition::IfLater,
    ExpiryCondition::IfEarlier,
    ExpiryCondition::IfSomeAndEarlier,
];

const TAG_MEMBER: u8 = 1;
const TAG_DIMENSIONS: u8 = 2;
const TAG_AT: u8 = 3;
const TAG_BOUNDS: u8 = 4;
const TAG_EXPIRY: u8 = 5;

const EXPIRY_ONLY_IF_NONE: u8 = 1;
const EXPIRY_RELATIVE: u8 = 1 << 1;

/// Why bytes are not a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CodecError {
    /// The checksum does not match.
    #[error("the checksum of the batch does not match")]
    Checksum,
    /// Written by a newer version.
    #[error("batch format {0} is newer than this version of Tally knows (up to {VERSION_4})")]
    Version(u8),
    /// The checksum matches but the content is invalid.
    #[error("the batch is malformed at event {0}")]
    Malformed(usize),
}

/// Appends the binary form of `batch`, without reads, to `out`.
///
/// # Panics
///
/// If the batch is larger than [`decode`] accepts, because the journal could not be replayed. This cannot happen: every
/// part of an event is bounded by its type, and engines refuse calls above the limits.
pub fn encode(batch: &Batch, at: Millis, out: &mut Vec<u8>) {
    put_batch(batch, at, batch.journalled_len(), |slot| batch.reads == 0 || !batch.is_read(slot), out);
}

/// Appends the binary form of `batch`, with reads, to `out`: for an applier in another process, which must answer them.
///
/// # Panics
///
/// Like [`encode`].
pub fn encode_with_reads(batch: &Batch, at: Millis, out: &mut Vec<u8>) {
    put_batch(batch, at, batch.len(), |_| true, out);
}

fn put_batch(batch: &Batch, at: Millis, len: usize, is_written: impl Fn(&Slot) -> bool, out: &mut Vec<u8>) {
    let start = out.len();
    assert!(batch.len() <= BATCH_EVENTS_MAX && batch.parts() <= BATCH_PARTS_MAX, "the batch exceeds its limits");
    out.push(batch.needs_version.max(VERSION));
    out.push(if batch.resets_clock { FLAG_RESETS_CLOCK } else { 0 });
    put_u64(out, at.0);
    put_u64(out, len as u64);
    for slot in batch.slots.iter().filter(|slot| is_written(slot)) {
        put_event(out, batch, slot);
    }
    let crc = crc32fast::hash(&out[start..]);
    out.extend_from_slice(&crc.to_le_bytes());
    assert!(out.len() - start <= BATCH_BYTES_MAX, "the batch exceeds its limits");
}

fn put_event(out: &mut Vec<u8>, batch: &Batch, slot: &Slot) {
    let extra = batch.extra(slot);
    let change = extra.and_then(|extra| extra.change.as_ref());
    let details = extra.and_then(|extra| extra.details.as_ref());
    let is_combined = slot.shape == Shape::Mixed || slot.times > 1;
    let id_flag = if slot.has(HAS_REQUEST_ID) { HEAD_REQUEST_ID } else { 0 };
    let details_flag = if details.is_some() { HEAD_DETAILS } else { 0 };
    let combined_flag = if is_combined { HEAD_COMBINED } else { 0 };
    out.push(kind_of(change) | id_flag | details_flag | combined_flag);
    put_bytes(out, batch.key(slot));
    match change {
        None if is_combined => put_runs(out, batch, slot),
        None => put_i64(out, slot.delta),
        Some(change) => put_change(out, change),
    }
    if slot.has(HAS_REQUEST_ID) {
        out.extend_from_slice(&slot.request_id);
    }
    if let Some(details) = details {
        let mut coded = Vec::new();
        put_details(&mut coded, details);
        put_bytes(out, &coded);
    }
}

fn put_runs(out: &mut Vec<u8>, batch: &Batch, slot: &Slot) {
    put_u64(out, batch.runs(slot).count() as u64);
    for (delta, times) in batch.runs(slot) {
        put_i64(out, delta);
        put_u64(out, u64::from(times));
    }
}

/// Appends what a fingerprint covers: the change without its actor, and the details.
pub(crate) fn put_payload(out: &mut Vec<u8>, change: ChangeRef<'_>, details: Option<&Details>) {
    match change {
        ChangeRef::Add(delta) => {
            out.push(KIND_ADD);
            put_i64(out, delta);
        }
        // Only plain adds are combined, and they have no request id.
        ChangeRef::Adds(_) => {}
        ChangeRef::Other(change) => {
            let mut change = change.clone();
            if let Change::Set { why, .. } | Change::Adjust { why, .. } | Change::Reset(why) | Change::Delete(why) =
                &mut change
            {
                *why = why.without_actor();
            }
            out.push(kind_of(Some(&change)));
            put_change(out, &change);
        }
    }
    if let Some(details) = details {
        put_details(out, details);
    }
}

/// Decodes a batch, hashing its keys with `seed`, and returns its time.
pub fn decode(bytes: &[u8], seed: u64, batch: &mut Batch) -> Result<Millis, CodecError> {
    let (body, crc) = bytes.split_last_chunk::<4>().ok_or(CodecError::Checksum)?;
    if crc32fast::hash(body) != u32::from_le_bytes(*crc) {
        return Err(CodecError::Checksum);
    }
    batch.clear();
    let mut cursor = Cursor::new(body);
    let version = cursor.u8().ok_or(CodecError::Malformed(0))?;
    let flags = match version {
        VERSION_BARE_SUMS => Some(0),
        VERSION | VERSION_3 | VERSION_4 => cursor.u8().filter(|flags| flags & !FLAG_RESETS_CLOCK == 0),
        other => return Err(CodecError::Version(other)),
    };
    batch.resets_clock = flags.ok_or(CodecError::Malformed(0))? & FLAG_RESETS_CLOCK != 0;
    let header = cursor.u64().zip(cursor.u64());
    let (at, count) = header.filter(|&(_, n)| n <= BATCH_EVENTS_MAX as u64).ok_or(CodecError::Malformed(0))?;
    for event in 0..count as usize {
        read_event(&mut cursor, version, seed, batch).ok_or(CodecError::Malformed(event))?;
    }
    if !cursor.is_done() || batch.needs_version > version {
        return Err(CodecError::Malformed(count as usize));
    }
    Ok(Millis(at))
}

fn read_event(cursor: &mut Cursor<'_>, version: u8, seed: u64, batch: &mut Batch) -> Option<()> {
    let head = cursor.u8()?;
    let is_combined = head & HEAD_COMBINED != 0;
    let follows = if version == VERSION_BARE_SUMS { HEAD_FOLLOWS } else { 0 };
    let known = KIND_MASK | HEAD_REQUEST_ID | HEAD_DETAILS | HEAD_COMBINED | follows;
    if head & !known != 0 || is_combined && head != KIND_ADD | HEAD_COMBINED {
        return None;
    }
    let key = KeyRef::new(cursor.bytes(KEY_BYTES_MAX)?).ok()?;
    let hash = super::key_hash(seed, key.as_bytes());
    if is_combined && version != VERSION_BARE_SUMS {
        read_runs(cursor, key, hash, batch)?;
    } else {
        let change = read_change(cursor, head & KIND_MASK)?;
        let id = if head & HEAD_REQUEST_ID != 0 { Some(RequestId(cursor.array()?)) } else { None };
        let details = if head & HEAD_DETAILS != 0 { Some(read_details(cursor.bytes(EVENT_BYTES_MAX)?)?) } else { None };
        match change {
            Change::Add(delta) if id.is_none() && details.is_none() => {
                batch.push_run(key, hash, (delta, 1), if is_combined { BARE_SUM } else { 0 });
            }
            change => batch.push_event(key, hash, change, id, details),
        }
    }
    Some(())
}

/// Reads combined adds back into one slot, with the same runs.
fn read_runs(cursor: &mut Cursor<'_>, key: KeyRef<'_>, hash: u64, batch: &mut Batch) -> Option<()> {
    let count = cursor.u64()?;
    let mut run = || Some((cursor.i64()?, u32::try_from(cursor.u64()?).ok().filter(|&times| times > 0)?));
    let first = run()?;
    let at = batch.slots.len();
    batch.push_run(key, hash, first, OPEN);
    if count > 1 {
        i64::try_from(batch.slots[at].sum()).ok()?;
        batch.mix(at);
    }
    for _ in 1..count {
        let (delta, times) = run()?;
        batch.slots[at].joinable(delta.checked_mul(i64::from(times))?)?;
        batch.push_part(at, (delta, times));
        if batch.parts.len() > BATCH_PARTS_MAX {
            return None;
        }
    }
    batch.slots[at].flags = 0;
    (count > 0).then_some(())
}

fn kind_of(change: Option<&Change>) -> u8 {
    match change {
        None | Some(Change::Add(_)) => KIND_ADD,
        Some(Change::Set { .. }) => KIND_SET,
        Some(Change::Reset(_)) => KIND_RESET,
        Some(Change::Adjust { .. }) => KIND_ADJUST,
        Some(Change::Delete(_)) => KIND_DELETE,
        Some(Change::Expire { .. }) => KIND_EXPIRE,
        Some(Change::Read(_)) => KIND_READ,
        Some(Change::Sweep { .. } | Change::Sum(_) | Change::Import(_)) => KIND_MORE,
        Some(Change::ImportRequest(_) | Change::Guard { .. }) => KIND_MORE,
    }
}

/// The lowest version that can encode this change.
pub(super) fn version_needed(change: Option<&Change>) -> u8 {
    match change {
        Some(Change::Import(_) | Change::ImportRequest(_) | Change::Sum(_)) => VERSION_3,
        Some(Change::Guard { .. }) => VERSION_4,
        _ => VERSION_BARE_SUMS,
    }
}

fn put_change(out: &mut Vec<u8>, change: &Change) {
    match change {
        Change::Add(delta) => put_i64(out, *delta),
        Change::Set { value, when, expiry, why } => {
            put_i64(out, *value);
            put_terms(out, *when, *expiry);
            put_why(out, why);
        }
        Change::Reset(why) | Change::Delete(why) => put_why(out, why),
        Change::Adjust { delta, why } => {
            put_i64(out, *delta);
            put_why(out, why);
        }
        Change::Expire { at, when } => {
            let number = EXPIRY_CONDITIONS.iter().position(|condition| condition == when).unwrap_or_default();
            out.push(
                number as u8
                    | match at {
                        None => 0,
                        Some(Deadline::At(_)) => TERMS_EXPIRES,
                        Some(Deadline::After(_)) => TERMS_EXPIRES | TERMS_RELATIVE,
                    },
            );
            put_deadline(out, *at);
        }
        Change::Read(field) => {
            out.push(FIELDS.iter().position(|known| known == field).unwrap_or_default() as u8);
        }
        Change::Sweep { expires_at } => {
            out.push(MORE_SWEEP);
            put_u64(out, expires_at.0);
        }
        Change::Sum(reports) => {
            out.push(MORE_SUM);
            encode_reports(reports.as_slice(), out);
        }
        Change::Import(imported) => {
            out.push(MORE_IMPORT);
            put_import(out, imported);
        }
        Change::ImportRequest(first) => {
            out.push(MORE_IMPORT_REQUEST);
            put_import_request(out, first);
        }
        Change::Guard { version, covers } => {
            out.push(MORE_GUARD);
            put_i64(out, *version);
            put_u64(out, u64::from(*covers));
        }
    }
}

fn put_terms(out: &mut Vec<u8>, when: Condition, expiry: Expiry) {
    let condition = match when {
        Condition::Always => 0,
        Condition::Equals(_) => 1,
        Condition::Absent => 2,
        Condition::Present => 3,
    };
    out.push(
        condition
            | match expiry {
                Expiry::Keep => 0,
                Expiry::Never => TERMS_NEVER,
                Expiry::At(Deadline::At(_)) => TERMS_AT,
                Expiry::At(Deadline::After(_)) => TERMS_AFTER,
            },
    );
    if let Condition::Equals(expected) = when {
        put_i64(out, expected);
    }
    if let Expiry::At(deadline) = expiry {
        put_deadline(out, Some(deadline));
    }
}

/// Appends the number of a deadline. Its kind is in the terms.
fn put_deadline(out: &mut Vec<u8>, deadline: Option<Deadline>) {
    match deadline {
        Some(Deadline::At(at)) => put_u64(out, at.0),
        Some(Deadline::After(millis)) => put_u64(out, millis),
        None => {}
    }
}

fn read_terms(cursor: &mut Cursor<'_>) -> Option<(Condition, Expiry)> {
    let terms = cursor.u8()?;
    let when = match terms & TERMS_CONDITION {
        0 => Condition::Always,
        1 => Condition::Equals(cursor.i64()?),
        2 => Condition::Absent,
        _ => Condition::Present,
    };
    let expiry = match terms & !TERMS_CONDITION {
        0 => Expiry::Keep,
        TERMS_NEVER => Expiry::Never,
        TERMS_AT => Expiry::At(Deadline::At(Millis(cursor.u64()?))),
        TERMS_AFTER => Expiry::At(Deadline::After(cursor.u64()?)),
        _ => return None,
    };
    Some((when, expiry))
}

fn read_expire(cursor: &mut Cursor<'_>) -> Option<Change> {
    let terms = cursor.u8()?;
    let when = *EXPIRY_CONDITIONS.get(usize::from(terms & !(TERMS_EXPIRES | TERMS_RELATIVE)))?;
    let at = match terms & (TERMS_EXPIRES | TERMS_RELATIVE) {
        0 => None,
        TERMS_EXPIRES => Some(Deadline::At(Millis(cursor.u64()?))),
        TERMS_RELATIVE => return None,
        _ => Some(Deadline::After(cursor.u64()?)),
    };
    Some(Change::Expire { at, when })
}

fn read_change(cursor: &mut Cursor<'_>, kind: u8) -> Option<Change> {
    Some(match kind {
        KIND_ADD => Change::Add(cursor.i64()?),
        KIND_SET => {
            let value = cursor.i64()?;
            let (when, expiry) = read_terms(cursor)?;
            Change::Set { value, when, expiry, why: read_why(cursor)? }
        }
        KIND_RESET => Change::Reset(read_why(cursor)?),
        KIND_ADJUST => Change::Adjust { delta: cursor.i64()?, why: read_why(cursor)? },
        KIND_DELETE => Change::Delete(read_why(cursor)?),
        KIND_EXPIRE => read_expire(cursor)?,
        KIND_READ => Change::Read(*FIELDS.get(usize::from(cursor.u8()?))?),
        KIND_MORE => match cursor.u8()? {
            MORE_SWEEP => Change::Sweep { expires_at: Millis(cursor.u64()?) },
            MORE_SUM => Change::Sum(ShardReports::new(decode_reports(cursor)?)?),
            MORE_IMPORT => Change::Import(Box::new(read_import(cursor)?)),
            MORE_IMPORT_REQUEST => Change::ImportRequest(read_import_request(cursor)?),
            MORE_GUARD => Change::Guard { version: cursor.i64()?, covers: u32::try_from(cursor.u64()?).ok()? },
            _ => return None,
        },
        _ => return None,
    })
}

fn put_why(out: &mut Vec<u8>, why: &Correction) {
    put_bytes(out, why.actor().as_bytes());
    put_bytes(out, why.reason().as_bytes());
}

fn read_why(cursor: &mut Cursor<'_>) -> Option<Correction> {
    Correction::new(&cursor.text(REASON_BYTES_MAX)?, &cursor.text(REASON_BYTES_MAX)?).ok()
}

fn put_optional(out: &mut Vec<u8>, value: Option<i64>) {
    out.push(u8::from(value.is_some()));
    if let Some(value) = value {
        put_i64(out, value);
    }
}

fn read_optional(cursor: &mut Cursor<'_>) -> Option<Option<i64>> {
    Some(match cursor.u8()? {
        0 => None,
        1 => Some(cursor.i64()?),
        _ => return None,
    })
}

fn put_details(out: &mut Vec<u8>, details: &Details) {
    let mut value = Vec::new();
    let mut put = |out: &mut Vec<u8>, tag: u8, fill: &dyn Fn(&mut Vec<u8>)| {
        value.clear();
        fill(&mut value);
        out.push(tag);
        put_bytes(out, &value);
    };
    if let Some(member) = &details.member {
        put(out, TAG_MEMBER, &|value| value.extend_from_slice(member.as_bytes()));
    }
    if !details.dimensions.is_empty() {
        put(out, TAG_DIMENSIONS, &|value| {
            for (name, of) in details.dimensions.iter() {
                put_bytes(value, name.as_bytes());
                put_bytes(value, of.as_bytes());
            }
        });
    }
    if let Some(at) = details.at {
        put(out, TAG_AT, &|value| put_u64(value, at.0));
    }
    if let Some(bounds) = details.bounds {
        put(out, TAG_BOUNDS, &|value| {
            put_optional(value, bounds.floor);
            put_optional(value, bounds.ceiling);
            value.push(match bounds.on_bound {
                OnBound::Refuse => 0,
                OnBound::Saturate => 1,
                OnBound::RefuseOutside => 2,
                OnBound::Clamp => 3,
            });
        });
    }
    if let Some(expiry) = details.expiry {
        put(out, TAG_EXPIRY, &|value| {
            let relative = if matches!(expiry.at, Some(Deadline::After(_))) { EXPIRY_RELATIVE } else { 0 };
            value.push(relative | if expiry.only_if_none { EXPIRY_ONLY_IF_NONE } else { 0 });
            put_deadline(value, expiry.at);
        });
    }
}

fn read_details(bytes: &[u8]) -> Option<Details> {
    let mut details = Details::default();
    let mut cursor = Cursor::new(bytes);
    while !cursor.is_done() {
        let tag = cursor.u8()?;
        let mut value = Cursor::new(cursor.bytes(EVENT_BYTES_MAX)?);
        match tag {
            TAG_MEMBER => details.member = Some(Member::new(value.take(value.rest().len())?).ok()?),
            TAG_DIMENSIONS => {
                while !value.is_done() {
                    let (name, of) = (value.text(DIMENSION_BYTES_MAX)?, value.text(DIMENSION_BYTES_MAX)?);
                    details.dimensions.push(&name, &of).ok()?;
                }
            }
            TAG_AT => details.at = Some(Millis(value.u64()?)),
            TAG_BOUNDS => {
                let (floor, ceiling) = (read_optional(&mut value)?, read_optional(&mut value)?);
                let on_bound = match value.u8()? {
                    0 => OnBound::Refuse,
                    1 => OnBound::Saturate,
                    2 => OnBound::RefuseOutside,
                    3 => OnBound::Clamp,
                    _ => return None,
                };
                details.bounds = Some(Bounds { floor, ceiling, on_bound });
            }
            TAG_EXPIRY => {
                let terms = value.u8()?;
                let only_if_none = terms & EXPIRY_ONLY_IF_NONE != 0;
                let at = match terms & !EXPIRY_ONLY_IF_NONE {
                    0 if value.is_done() => None,
                    0 => Some(Deadline::At(Millis(value.u64()?))),
                    EXPIRY_RELATIVE => Some(Deadline::After(value.u64()?)),
                    _ => return None,
                };
                details.expiry = Some(AddExpiry { at, only_if_none });
            }
            _ => return None,
        }
        if !value.is_done() {
            return None;
        }
    }
    Some(details)
}

impl Extra {
    pub(super) fn encoded_len_max(&self) -> usize {
        const NUMBERS: usize = 128;
        let change = match &self.change {
            Some(Change::Set { why, .. } | Change::Adjust { why, .. } | Change::Reset(why) | Change::Delete(why)) => {
                why.actor().len() + why.reason().len()
            }
            Some(Change::Sum(reports)) => reports.as_slice().len() * REPORT_BYTES_MAX,
            Some(Change::Import(imported)) => imported.encoded_len_max(),
            Some(
                Change::Add(_)
                | Change::Expire { .. }
                | Change::Read(_)
                | Change::Sweep { .. }
                | Change::Guard { .. }
                | Change::ImportRequest(_),
            )
            | None => 0,
        };
        let details = self.details.as_ref().map_or(0, |details| {
            let dimensions: usize = details.dimensions.iter().map(|(name, of)| name.len() + of.len() + 4).sum();
            details.member.as_ref().map_or(0, |member| member.as_bytes().len()) + dimensions
        });
        NUMBERS + change + details
    }
}
