//! The binary form of a batch.
//!
//! ```text
//! batch   = version:u8  at:varint  count:varint  event*  crc32:u32le (over everything before it)
//! event   = flags:u8  key:bytes  change  [request_id:16 bytes]  [details:bytes]
//! flags   = bits 0-2 kind of change · bit 3 has request id · bit 4 has details · bit 5 stands for several adds
//!           (and has none of the others) · bit 6 in one group with the event before · bit 7 must be 0
//! change  = Add delta | Set value,terms:u8,[expected],[expires],why | Reset why | Adjust delta,why | Delete why
//!         | Expire terms:u8,[expires] | Look what:u8
//! terms   = of Set: bits 0-1 always, equals, absent, present · bits 2-3 expiry stays, goes, is given
//!           of Expire: bits 0-2 condition · bit 3 expiry is given
//! why     = actor:bytes reason:bytes
//! details = (tag:u8 value:bytes)*       tags: 1 member · 2 dimensions · 3 at · 4 bounds · 5 expiry
//! bytes   = length:varint, that many bytes;  numbers are varints, signed ones zigzag
//! ```
//!
//! A look is written only within a group that changes something.
//!
//! A reader that meets a version, flag, kind or tag it does not know refuses the batch: guessing at somebody's
//! counts is worse than stopping.

use super::{Batch, Extra, Merging, NO_EXTRA, Slot};
use crate::event::{
    AddExpiry, Bounds, Change, ChangeRef, Condition, Correction, Details, Expiry, ExpiryCondition, Look, OnBound,
    RequestId,
};
use crate::key::KeyRef;
use crate::limits::{
    BATCH_EVENTS_MAX, DIMENSION_BYTES_MAX, DIMENSIONS_MAX, EVENT_BYTES_MAX, KEY_BYTES_MAX, MEMBER_BYTES_MAX,
    REASON_BYTES_MAX,
};
use crate::time::Millis;
use crate::varint::{Cursor, put_bytes, put_i64, put_u64};

const VERSION: u8 = 1;

const KIND_ADD: u8 = 0;
const KIND_SET: u8 = 1;
const KIND_RESET: u8 = 2;
const KIND_ADJUST: u8 = 3;
const KIND_DELETE: u8 = 4;
const KIND_EXPIRE: u8 = 5;
const KIND_LOOK: u8 = 6;
const KIND_MASK: u8 = 0b111;
const HAS_REQUEST_ID: u8 = 1 << 3;
const HAS_DETAILS: u8 = 1 << 4;
const COMBINED: u8 = 1 << 5;
const FOLLOWS: u8 = 1 << 6;

const TERMS_CONDITION: u8 = 0b11;
const TERMS_NEVER: u8 = 1 << 2;
const TERMS_AT: u8 = 2 << 2;
const TERMS_EXPIRES: u8 = 1 << 3;

/// The conditions of an expiry by their number.
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

/// Why bytes are not a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CodecError {
    /// The checksum does not match.
    #[error("the checksum of the batch does not match")]
    Checksum,
    /// Written by a version this one does not know.
    #[error("batch format {0} is newer than this version of Tally knows (up to {VERSION})")]
    Version(u8),
    /// The checksum matches but the content makes no sense.
    #[error("the batch is malformed at event {0}")]
    Malformed(usize),
}

/// Appends the binary form of `batch` to `out`; looks that have no say in what a replay does are left out.
pub fn encode(batch: &Batch, at: Millis, out: &mut Vec<u8>) {
    let start = out.len();
    out.push(VERSION);
    put_u64(out, at.0);
    put_u64(out, batch.journalled_len() as u64);
    if batch.looks == 0 {
        for slot in &batch.slots {
            put_event(out, batch, slot);
        }
    } else {
        for slot in batch.journalled() {
            put_event(out, batch, slot);
        }
    }
    let crc = crc32fast::hash(&out[start..]);
    out.extend_from_slice(&crc.to_le_bytes());
}

fn put_event(out: &mut Vec<u8>, batch: &Batch, slot: &Slot) {
    let extra = batch.extras.get(slot.extra as usize);
    let change = extra.and_then(|extra| extra.change.as_ref());
    let details = extra.and_then(|extra| extra.details.as_ref());
    let id_flag = if slot.has_request_id { HAS_REQUEST_ID } else { 0 };
    let details_flag = if details.is_some() { HAS_DETAILS } else { 0 };
    let combined_flag = if slot.merging == Merging::Joined { COMBINED } else { 0 };
    let follows_flag = if slot.follows { FOLLOWS } else { 0 };
    out.push(kind_of(change) | id_flag | details_flag | combined_flag | follows_flag);
    put_bytes(out, batch.key(slot));
    match change {
        None => put_i64(out, slot.delta),
        Some(change) => put_change(out, change),
    }
    if slot.has_request_id {
        out.extend_from_slice(&slot.request_id);
    }
    if let Some(details) = details {
        let mut coded = Vec::new();
        put_details(&mut coded, details);
        put_bytes(out, &coded);
    }
}

/// Appends what an event asks for, without its key and id: what its fingerprint covers.
pub(crate) fn put_asked(out: &mut Vec<u8>, change: ChangeRef<'_>, details: Option<&Details>) {
    match change {
        ChangeRef::Add(delta) => {
            out.push(KIND_ADD);
            put_i64(out, delta);
        }
        ChangeRef::Other(change) => {
            let mut change = change.clone();
            if let Change::Set { why, .. } | Change::Adjust { why, .. } | Change::Reset(why) | Change::Delete(why) =
                &mut change
            {
                why.actor = Box::default();
            }
            out.push(kind_of(Some(&change)));
            put_change(out, &change);
        }
    }
    if let Some(details) = details {
        put_details(out, details);
    }
}

/// Reads a batch back; `seed` is what its keys are hashed with.
pub fn decode(bytes: &[u8], seed: u64, batch: &mut Batch) -> Result<Millis, CodecError> {
    let (body, crc) = bytes.split_last_chunk::<4>().ok_or(CodecError::Checksum)?;
    if crc32fast::hash(body) != u32::from_le_bytes(*crc) {
        return Err(CodecError::Checksum);
    }
    batch.clear();
    let mut cursor = Cursor::new(body);
    match cursor.u8() {
        Some(VERSION) => {}
        Some(other) => return Err(CodecError::Version(other)),
        None => return Err(CodecError::Malformed(0)),
    }
    let header = cursor.u64().zip(cursor.u64());
    let (at, count) = header.filter(|&(_, n)| n <= BATCH_EVENTS_MAX as u64).ok_or(CodecError::Malformed(0))?;
    for event in 0..count as usize {
        read_event(&mut cursor, seed, batch).ok_or(CodecError::Malformed(event))?;
    }
    if !cursor.is_done() {
        return Err(CodecError::Malformed(count as usize));
    }
    Ok(Millis(at))
}

fn read_event(cursor: &mut Cursor<'_>, seed: u64, batch: &mut Batch) -> Option<()> {
    let flags = cursor.u8()?;
    let combined = flags == KIND_ADD | COMBINED;
    let follows = flags & FOLLOWS != 0;
    let nothing_before = batch.slots.is_empty();
    if !combined && flags & !(KIND_MASK | HAS_REQUEST_ID | HAS_DETAILS | FOLLOWS) != 0 || follows && nothing_before {
        return None;
    }
    let key = KeyRef::new(cursor.bytes(KEY_BYTES_MAX)?).ok()?;
    let change = read_change(cursor, flags & KIND_MASK)?;
    let id = if flags & HAS_REQUEST_ID != 0 { Some(RequestId(cursor.array()?)) } else { None };
    let details = if flags & HAS_DETAILS != 0 { Some(read_details(cursor.bytes(EVENT_BYTES_MAX)?)?) } else { None };
    let hash = super::key_hash(seed, key.as_bytes());
    batch.push_event(key, hash, change, id, details);
    if let Some(slot) = batch.slots.last_mut() {
        slot.follows = follows;
        if combined {
            slot.merging = Merging::Joined;
        }
    }
    Some(())
}

fn kind_of(change: Option<&Change>) -> u8 {
    match change {
        None | Some(Change::Add(_)) => KIND_ADD,
        Some(Change::Set { .. }) => KIND_SET,
        Some(Change::Reset(_)) => KIND_RESET,
        Some(Change::Adjust { .. }) => KIND_ADJUST,
        Some(Change::Delete(_)) => KIND_DELETE,
        Some(Change::Expire { .. }) => KIND_EXPIRE,
        Some(Change::Look(_)) => KIND_LOOK,
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
            out.push(number as u8 | if at.is_some() { TERMS_EXPIRES } else { 0 });
            if let Some(at) = at {
                put_u64(out, at.0);
            }
        }
        Change::Look(look) => out.push(u8::from(*look == Look::Expiry)),
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
                Expiry::At(_) => TERMS_AT,
            },
    );
    if let Condition::Equals(expected) = when {
        put_i64(out, expected);
    }
    if let Expiry::At(at) = expiry {
        put_u64(out, at.0);
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
        TERMS_AT => Expiry::At(Millis(cursor.u64()?)),
        _ => return None,
    };
    Some((when, expiry))
}

fn read_expire(cursor: &mut Cursor<'_>) -> Option<Change> {
    let terms = cursor.u8()?;
    let when = *EXPIRY_CONDITIONS.get(usize::from(terms & !TERMS_EXPIRES))?;
    let at = if terms & TERMS_EXPIRES != 0 { Some(Millis(cursor.u64()?)) } else { None };
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
        KIND_LOOK => Change::Look(match cursor.u8()? {
            0 => Look::Value,
            1 => Look::Expiry,
            _ => return None,
        }),
        _ => return None,
    })
}

fn put_why(out: &mut Vec<u8>, why: &Correction) {
    put_bytes(out, why.actor.as_bytes());
    put_bytes(out, why.reason.as_bytes());
}

fn read_why(cursor: &mut Cursor<'_>) -> Option<Correction> {
    Some(Correction { actor: cursor.text(REASON_BYTES_MAX)?, reason: cursor.text(REASON_BYTES_MAX)? })
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
        put(out, TAG_MEMBER, &|value| value.extend_from_slice(member));
    }
    if !details.dimensions.is_empty() {
        put(out, TAG_DIMENSIONS, &|value| {
            for (name, of) in &details.dimensions {
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
            value.push(u8::from(expiry.only_if_none));
            if let Some(at) = expiry.at {
                put_u64(value, at.0);
            }
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
            TAG_MEMBER => details.member = Some(take_rest(&mut value, MEMBER_BYTES_MAX)?.into()),
            TAG_DIMENSIONS => {
                while !value.is_done() && details.dimensions.len() < DIMENSIONS_MAX {
                    details.dimensions.push((value.text(DIMENSION_BYTES_MAX)?, value.text(DIMENSION_BYTES_MAX)?));
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
                let only_if_none = match value.u8()? {
                    0 => false,
                    1 => true,
                    _ => return None,
                };
                let at = if value.is_done() { None } else { Some(Millis(value.u64()?)) };
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

fn take_rest<'a>(cursor: &mut Cursor<'a>, max: usize) -> Option<&'a [u8]> {
    let rest = cursor.rest();
    (rest.len() <= max).then(|| cursor.take(rest.len())).flatten()
}

impl Extra {
    pub(super) fn encoded_len_max(&self) -> usize {
        const NUMBERS: usize = 128;
        let why = match &self.change {
            Some(Change::Set { why, .. } | Change::Adjust { why, .. } | Change::Reset(why) | Change::Delete(why)) => {
                why.actor.len() + why.reason.len()
            }
            Some(Change::Add(_) | Change::Expire { .. } | Change::Look(_)) | None => 0,
        };
        let details = self.details.as_ref().map_or(0, |details| {
            let dimensions: usize = details.dimensions.iter().map(|(name, of)| name.len() + of.len() + 4).sum();
            details.member.as_ref().map_or(0, |member| member.len()) + dimensions
        });
        NUMBERS + why + details
    }
}

const _: () = assert!(NO_EXTRA as usize > BATCH_EVENTS_MAX);
