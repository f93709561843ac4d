//! The encoding of requests and responses.
//!
//! ```text
//! message: version:u8, kind:u8, fields
//! ```
//!
//! Numbers are varints; texts, keys and records have their length before them. Nothing may follow the last field. A
//! number of items must be within its limit, and the rest of the message long enough for them, so that a short message
//! cannot cause a large allocation.

use tally_core::key::{Key, KeyRef};
use tally_core::ledger::{ChainHead, LedgerEntry};
use tally_core::limits::{CALL_KEYS_MAX, KEY_BYTES_MAX, REASON_BYTES_MAX};
use tally_core::outcome::Outcomes;
use tally_core::record::{Records, read_counter, read_ledger, write_counter};
use tally_core::surface::CounterSnapshot;
use tally_core::time::{Millis, Position};
use tally_core::varint::{Cursor, put_bytes, put_u64};

use super::limits::{ADDRESS_BYTES_MAX, ERROR_BYTES_MAX, LEDGER_ENTRIES_MAX, RECORD_BYTES_MAX, STATUS_PARTITIONS_MAX};
use super::message::{Need, PartitionStatus, Role, RpcError, RpcRequest, RpcResponse};

const VERSION: u8 = 2;

/// Kinds of requests, and of the responses to them. Numbers are never reused.
mod kind {
    pub const OUTCOMES: u8 = 1;
    pub const READ: u8 = 2;
    pub const LEDGER: u8 = 3;
    pub const COUNT: u8 = 4;
    pub const STATUS: u8 = 5;
    pub const PERSIST: u8 = 6;
    pub const SNAPSHOTS: u8 = 7;
    pub const NOT_HOSTED: u8 = 64;
    pub const GONE: u8 = 65;
    pub const OVERLOADED: u8 = 66;
    pub const CLOSING: u8 = 67;
    pub const FAILED: u8 = 68;
}

/// Largest encoded ledger entry.
const ENTRY_BYTES_MAX: usize = 2 * REASON_BYTES_MAX + 256;
/// Any key: it is not part of an entry's value.
const NO_KEY: &[u8] = b"-";

/// Encodes a request.
pub fn encode_request(request: &RpcRequest) -> Vec<u8> {
    let mut out = Vec::with_capacity(32);
    match request {
        RpcRequest::Outcomes { partition, offset } => {
            out.extend([VERSION, kind::OUTCOMES]);
            put_u64(&mut out, u64::from(*partition));
            put_u64(&mut out, *offset);
        }
        RpcRequest::Read { partition, need, keys } => {
            out.extend([VERSION, kind::READ]);
            put_u64(&mut out, u64::from(*partition));
            put_need(&mut out, *need);
            put_u64(&mut out, keys.len() as u64);
            keys.iter().for_each(|key| put_bytes(&mut out, key.as_bytes()));
        }
        RpcRequest::Ledger { partition, key, after, limit } => {
            out.extend([VERSION, kind::LEDGER]);
            put_u64(&mut out, u64::from(*partition));
            put_bytes(&mut out, key.as_bytes());
            put_u64(&mut out, *after);
            put_u64(&mut out, u64::from(*limit));
        }
        RpcRequest::Count { partition } => {
            out.extend([VERSION, kind::COUNT]);
            put_u64(&mut out, u64::from(*partition));
        }
        RpcRequest::Persist { partition } => {
            out.extend([VERSION, kind::PERSIST]);
            put_u64(&mut out, u64::from(*partition));
        }
        RpcRequest::Snapshots { partition, keys } => {
            out.extend([VERSION, kind::SNAPSHOTS]);
            put_u64(&mut out, u64::from(*partition));
            put_u64(&mut out, keys.len() as u64);
            keys.iter().for_each(|key| put_bytes(&mut out, key.as_bytes()));
        }
        RpcRequest::Status => out.extend([VERSION, kind::STATUS]),
    }
    out
}

/// Decodes a request; `None` if it is malformed or exceeds a limit.
pub fn decode_request(message: &[u8]) -> Option<RpcRequest> {
    let (kind, mut cursor) = open(message)?;
    let request = match kind {
        kind::OUTCOMES => RpcRequest::Outcomes { partition: number(&mut cursor)?, offset: cursor.u64()? },
        kind::READ => RpcRequest::Read {
            partition: number(&mut cursor)?,
            need: need(&mut cursor)?,
            keys: items(&mut cursor, CALL_KEYS_MAX, 2, key)?,
        },
        kind::LEDGER => RpcRequest::Ledger {
            partition: number(&mut cursor)?,
            key: key(&mut cursor)?,
            after: cursor.u64()?,
            limit: number(&mut cursor).filter(|limit| *limit as usize <= LEDGER_ENTRIES_MAX)?,
        },
        kind::COUNT => RpcRequest::Count { partition: number(&mut cursor)? },
        kind::PERSIST => RpcRequest::Persist { partition: number(&mut cursor)? },
        kind::SNAPSHOTS => {
            RpcRequest::Snapshots { partition: number(&mut cursor)?, keys: items(&mut cursor, CALL_KEYS_MAX, 2, key)? }
        }
        kind::STATUS => RpcRequest::Status,
        _ => return None,
    };
    cursor.is_done().then_some(request)
}

/// Encodes a response or an error.
pub fn encode_response(response: &Result<RpcResponse, RpcError>) -> Vec<u8> {
    let mut out = Vec::with_capacity(64);
    match response {
        Ok(response) => put_response(&mut out, response),
        Err(error) => put_error(&mut out, error),
    }
    out
}

/// Decodes a response or an error; `None` if it is malformed or exceeds a limit.
pub fn decode_response(message: &[u8]) -> Option<Result<RpcResponse, RpcError>> {
    let (kind, mut cursor) = open(message)?;
    let response = match kind {
        kind::OUTCOMES => Ok(RpcResponse::Outcomes {
            end: Position(cursor.u64()?),
            at: Millis(cursor.u64()?),
            outcomes: Outcomes::decode(&mut cursor)?,
        }),
        kind::READ => Ok(RpcResponse::Read {
            position: Position(cursor.u64()?),
            at: Millis(cursor.u64()?),
            summed_at: Millis(cursor.u64()?),
            records: items(&mut cursor, CALL_KEYS_MAX, 1, record)?,
        }),
        kind::LEDGER => Ok(RpcResponse::Ledger { entries: items(&mut cursor, LEDGER_ENTRIES_MAX, 64, entry)? }),
        kind::COUNT => Ok(RpcResponse::Count { counters: cursor.u64()?, at: Millis(cursor.u64()?) }),
        kind::PERSIST => Ok(RpcResponse::Persisted { position: Position(cursor.u64()?) }),
        kind::SNAPSHOTS => Ok(RpcResponse::Snapshots { snapshots: items(&mut cursor, CALL_KEYS_MAX, 2, snapshot)? }),
        kind::STATUS => Ok(RpcResponse::Status { partitions: items(&mut cursor, STATUS_PARTITIONS_MAX, 6, status)? }),
        kind::NOT_HOSTED => Err(RpcError::NotHosted { owner: owner(&mut cursor)? }),
        kind::GONE => Err(RpcError::Gone),
        kind::OVERLOADED => Err(RpcError::Overloaded),
        kind::CLOSING => Err(RpcError::Closing),
        kind::FAILED => Err(RpcError::Failed(cursor.text(ERROR_BYTES_MAX)?.into())),
        _ => return None,
    };
    cursor.is_done().then_some(response)
}

fn put_response(out: &mut Vec<u8>, response: &RpcResponse) {
    match response {
        RpcResponse::Outcomes { end, at, outcomes } => {
            out.extend([VERSION, kind::OUTCOMES]);
            put_u64(out, end.0);
            put_u64(out, at.0);
            outcomes.encode(out);
        }
        RpcResponse::Read { position, at, summed_at, records } => {
            out.extend([VERSION, kind::READ]);
            put_u64(out, position.0);
            put_u64(out, at.0);
            put_u64(out, summed_at.0);
            put_u64(out, records.len() as u64);
            // A record is never empty.
            records.iter().for_each(|record| put_bytes(out, record.as_deref().unwrap_or_default()));
        }
        RpcResponse::Ledger { entries } => {
            out.extend([VERSION, kind::LEDGER]);
            put_u64(out, entries.len() as u64);
            entries.iter().for_each(|entry| put_entry(out, entry));
        }
        RpcResponse::Count { counters, at } => {
            out.extend([VERSION, kind::COUNT]);
            put_u64(out, *counters);
            put_u64(out, at.0);
        }
        RpcResponse::Persisted { position } => {
            out.extend([VERSION, kind::PERSIST]);
            put_u64(out, position.0);
        }
        RpcResponse::Snapshots { snapshots } => {
            out.extend([VERSION, kind::SNAPSHOTS]);
            put_u64(out, snapshots.len() as u64);
            snapshots.iter().for_each(|snapshot| put_snapshot(out, snapshot));
        }
        RpcResponse::Status { partitions } => {
            out.extend([VERSION, kind::STATUS]);
            put_u64(out, partitions.len() as u64);
            partitions.iter().for_each(|status| put_status(out, status));
        }
    }
}

fn put_error(out: &mut Vec<u8>, error: &RpcError) {
    match error {
        RpcError::NotHosted { owner } => {
            out.extend([VERSION, kind::NOT_HOSTED]);
            let owner = owner.as_deref().filter(|owner| owner.len() <= ADDRESS_BYTES_MAX);
            put_bytes(out, owner.unwrap_or_default().as_bytes());
        }
        RpcError::Gone => out.extend([VERSION, kind::GONE]),
        RpcError::Overloaded => out.extend([VERSION, kind::OVERLOADED]),
        RpcError::Closing => out.extend([VERSION, kind::CLOSING]),
        RpcError::Failed(reason) => {
            out.extend([VERSION, kind::FAILED]);
            put_bytes(out, cut(reason, ERROR_BYTES_MAX).as_bytes());
        }
    }
}

/// The beginning of a text, at most this many bytes.
pub fn cut(text: &str, bytes_max: usize) -> &str {
    let end = (0..=bytes_max.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    &text[..end.unwrap_or(0)]
}

fn open(message: &[u8]) -> Option<(u8, Cursor<'_>)> {
    let mut cursor = Cursor::new(message);
    let version = cursor.u8()?;
    let kind = cursor.u8()?;
    (version == VERSION).then_some((kind, cursor))
}

fn items<T>(
    cursor: &mut Cursor<'_>,
    max: usize,
    item_bytes_min: usize,
    item: impl Fn(&mut Cursor<'_>) -> Option<T>,
) -> Option<Vec<T>> {
    let count = usize::try_from(cursor.u64()?).ok()?;
    if count > max || count > cursor.rest().len() / item_bytes_min {
        return None;
    }
    (0..count).map(|_| item(cursor)).collect()
}

fn number(cursor: &mut Cursor<'_>) -> Option<u32> {
    u32::try_from(cursor.u64()?).ok()
}

fn key(cursor: &mut Cursor<'_>) -> Option<Key> {
    Key::new(cursor.bytes(KEY_BYTES_MAX)?).ok()
}

fn record(cursor: &mut Cursor<'_>) -> Option<Option<Vec<u8>>> {
    let record = cursor.bytes(RECORD_BYTES_MAX)?;
    Some((!record.is_empty()).then(|| record.to_vec()))
}

fn owner(cursor: &mut Cursor<'_>) -> Option<Option<String>> {
    let owner = cursor.text(ADDRESS_BYTES_MAX)?;
    Some((!owner.is_empty()).then(|| owner.into()))
}

fn put_need(out: &mut Vec<u8>, need: Need) {
    match need {
        Need::Refill => out.push(0),
        Need::End => out.push(1),
        Need::Position(position) => {
            out.push(2);
            put_u64(out, position.0);
        }
    }
}

fn need(cursor: &mut Cursor<'_>) -> Option<Need> {
    match cursor.u8()? {
        0 => Some(Need::Refill),
        1 => Some(Need::End),
        2 => Some(Need::Position(Position(cursor.u64()?))),
        _ => None,
    }
}

fn put_entry(out: &mut Vec<u8>, entry: &LedgerEntry) {
    let mut records = Records::default();
    if let Ok(key) = KeyRef::new(NO_KEY) {
        records.put_ledger(key, entry);
    }
    records.iter().filter_map(|(_, value)| value).for_each(|value| put_bytes(out, value));
}

fn entry(cursor: &mut Cursor<'_>) -> Option<LedgerEntry> {
    read_ledger(cursor.bytes(ENTRY_BYTES_MAX)?)
}

fn put_snapshot(out: &mut Vec<u8>, snapshot: &CounterSnapshot) {
    let mut record = Vec::new();
    if let Some(state) = &snapshot.state {
        write_counter(state, &mut record);
    }
    put_bytes(out, &record);
    put_u64(out, snapshot.head.seq);
    if snapshot.head.seq > 0 {
        out.extend_from_slice(&snapshot.head.hash);
    }
}

fn snapshot(cursor: &mut Cursor<'_>) -> Option<CounterSnapshot> {
    let state = match record(cursor)? {
        Some(record) => Some(read_counter(&record)?),
        None => None,
    };
    let head = match cursor.u64()? {
        0 => ChainHead::default(),
        seq => ChainHead { seq, hash: cursor.array()? },
    };
    Some(CounterSnapshot { state, head })
}

fn put_status(out: &mut Vec<u8>, status: &PartitionStatus) {
    put_u64(out, u64::from(status.partition));
    put_u64(out, status.epoch);
    put_u64(out, status.applied.0);
    put_u64(out, status.persisted.0);
    match status.end {
        None => out.push(0),
        Some(end) => {
            out.push(1);
            put_u64(out, end.0);
        }
    }
    out.push(status.role as u8);
}

fn status(cursor: &mut Cursor<'_>) -> Option<PartitionStatus> {
    Some(PartitionStatus {
        partition: number(cursor)?,
        epoch: cursor.u64()?,
        applied: Position(cursor.u64()?),
        persisted: Position(cursor.u64()?),
        end: match cursor.u8()? {
            0 => None,
            1 => Some(Position(cursor.u64()?)),
            _ => return None,
        },
        role: match cursor.u8()? {
            1 => Role::Owner,
            2 => Role::Standby,
            _ => return None,
        },
    })
}

#[cfg(test)]
mod tests;
