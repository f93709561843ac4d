//! Messages between API nodes and workers: a version, a kind, and fields as varints.

use tally_core::key::Key;
use tally_core::ledger::LedgerEntry;
use tally_core::limits::{CALL_EVENTS_MAX, KEY_BYTES_MAX, PAGE_ITEMS_MAX, REASON_BYTES_MAX};
use tally_core::outcome::Outcomes;
use tally_core::record;
use tally_core::time::{Millis, Position};
use tally_core::varint::{Cursor, put_bytes, put_u64};

use crate::limits::{PARTITIONS_MAX, RPC_BYTES_MAX};

const VERSION: u8 = 1;

/// What an API node asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// The outcomes of the batch at this offset.
    Outcomes {
        /// Its partition.
        partition: u32,
        /// Its offset.
        offset: u64,
    },
    /// Counters.
    Read {
        /// Their partition.
        partition: u32,
        /// How current they must be.
        need: Need,
        /// Their keys.
        keys: Vec<Key>,
    },
    /// The corrections of a counter.
    Ledger {
        /// Its key.
        key: Key,
        /// Its partition.
        partition: u32,
        /// Only entries after this one.
        after: u64,
        /// At most this many.
        limit: usize,
    },
    /// How many counters there are.
    Count {
        /// The partition.
        partition: u32,
    },
    /// What the worker hosts.
    Status,
}

/// How current a reading must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// As it is. The total is published from then on.
    Any,
    /// With everything in the journal as of the request.
    End,
    /// With everything before this position.
    Position(Position),
}

/// What a worker answers.
#[derive(Clone, Debug)]
pub enum Response {
    /// The outcomes of a batch.
    Outcomes {
        /// The position after it.
        end: Position,
        /// When it was applied.
        at: Millis,
        /// One per event.
        outcomes: Outcomes,
    },
    /// Counters, in the order of the keys.
    Read {
        /// What was applied.
        position: Position,
        /// The time.
        at: Millis,
        /// Values of their records; `None` for counters that do not exist.
        records: Vec<Option<Vec<u8>>>,
    },
    /// Corrections.
    Ledger {
        /// Oldest first.
        entries: Vec<LedgerEntry>,
    },
    /// How many counters there are.
    Count {
        /// The number.
        counters: u64,
        /// The time.
        at: Millis,
    },
    /// What the worker hosts.
    Status {
        /// Its partitions.
        partitions: Vec<PartitionStatus>,
    },
}

/// A hosted partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionStatus {
    /// Its number.
    pub partition: u32,
    /// The epoch of the claim.
    pub epoch: u64,
    /// What is applied.
    pub applied: Position,
    /// What is persisted.
    pub persisted: Position,
    /// Where the journal ends, if Kafka said.
    pub end: Option<Position>,
    /// Whether the worker owns it.
    pub role: Role,
}

/// How a worker hosts a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It publishes and persists.
    Owner,
    /// It only applies.
    Standby,
}

/// Why a worker did not answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RpcError {
    /// It does not host the partition.
    #[error("the worker does not host the partition")]
    NotHosted {
        /// Who does, if it knows.
        owner: Option<String>,
    },
    /// The outcomes are no longer kept.
    #[error("the worker no longer has the outcome")]
    Gone,
    /// Too many requests wait, or the partition is behind.
    #[error("the worker is overloaded or behind")]
    Overloaded,
    /// It is shutting down.
    #[error("the worker is shutting down")]
    Closing,
    /// Anything else.
    #[error("the worker failed: {0}")]
    Failed(String),
}

fn put_position(out: &mut Vec<u8>, position: Position) {
    put_u64(out, position.0);
}

impl Request {
    /// The request as bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![VERSION];
        match self {
            Request::Outcomes { partition, offset } => {
                out.push(0);
                put_u64(&mut out, u64::from(*partition));
                put_u64(&mut out, *offset);
            }
            Request::Read { partition, need, keys } => {
                out.push(1);
                put_u64(&mut out, u64::from(*partition));
                match need {
                    Need::Any => out.push(0),
                    Need::End => out.push(1),
                    Need::Position(position) => {
                        out.push(2);
                        put_position(&mut out, *position);
                    }
                }
                put_u64(&mut out, keys.len() as u64);
                keys.iter().for_each(|key| put_bytes(&mut out, key.as_bytes()));
            }
            Request::Ledger { key, partition, after, limit } => {
                out.push(2);
                put_bytes(&mut out, key.as_bytes());
                put_u64(&mut out, u64::from(*partition));
                put_u64(&mut out, *after);
                put_u64(&mut out, *limit as u64);
            }
            Request::Count { partition } => {
                out.push(3);
                put_u64(&mut out, u64::from(*partition));
            }
            Request::Status => out.push(4),
        }
        out
    }

    /// Reads what [`Request::encode`] wrote; `None` if it is something else.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Request> {
        let mut cursor = Cursor::new(bytes);
        if cursor.u8()? != VERSION {
            return None;
        }
        let partition = |cursor: &mut Cursor<'_>| u32::try_from(cursor.u64()?).ok();
        let request = match cursor.u8()? {
            0 => Request::Outcomes { partition: partition(&mut cursor)?, offset: cursor.u64()? },
            1 => {
                let partition = partition(&mut cursor)?;
                let need = match cursor.u8()? {
                    0 => Need::Any,
                    1 => Need::End,
                    2 => Need::Position(Position(cursor.u64()?)),
                    _ => return None,
                };
                let keys = list(&mut cursor, CALL_EVENTS_MAX, |cursor| Key::new(cursor.bytes(KEY_BYTES_MAX)?).ok())?;
                Request::Read { partition, need, keys }
            }
            2 => Request::Ledger {
                key: Key::new(cursor.bytes(KEY_BYTES_MAX)?).ok()?,
                partition: partition(&mut cursor)?,
                after: cursor.u64()?,
                limit: usize::try_from(cursor.u64()?).ok()?.min(PAGE_ITEMS_MAX + 1),
            },
            3 => Request::Count { partition: partition(&mut cursor)? },
            4 => Request::Status,
            _ => return None,
        };
        cursor.is_done().then_some(request)
    }
}

fn list<T>(
    cursor: &mut Cursor<'_>,
    max: usize,
    mut item: impl FnMut(&mut Cursor<'_>) -> Option<T>,
) -> Option<Vec<T>> {
    let len = usize::try_from(cursor.u64()?).ok().filter(|len| *len <= max)?;
    (0..len).map(|_| item(cursor)).collect()
}

fn put_option<T>(out: &mut Vec<u8>, option: Option<&T>, put: impl FnOnce(&mut Vec<u8>, &T)) {
    out.push(u8::from(option.is_some()));
    if let Some(value) = option {
        put(out, value);
    }
}

fn option<T>(cursor: &mut Cursor<'_>, read: impl FnOnce(&mut Cursor<'_>) -> Option<T>) -> Option<Option<T>> {
    match cursor.u8()? {
        0 => Some(None),
        1 => Some(Some(read(cursor)?)),
        _ => None,
    }
}

/// The answer as bytes.
#[must_use]
pub fn encode_answer(answer: &Result<Response, RpcError>) -> Vec<u8> {
    let mut out = vec![VERSION];
    match answer {
        Ok(Response::Outcomes { end, at, outcomes }) => {
            out.push(0);
            put_position(&mut out, *end);
            put_u64(&mut out, at.0);
            outcomes.encode(&mut out);
        }
        Ok(Response::Read { position, at, records }) => {
            out.push(1);
            put_position(&mut out, *position);
            put_u64(&mut out, at.0);
            put_u64(&mut out, records.len() as u64);
            for record in records {
                put_option(&mut out, record.as_ref(), |out, record| put_bytes(out, record));
            }
        }
        Ok(Response::Ledger { entries }) => {
            out.push(2);
            put_u64(&mut out, entries.len() as u64);
            for entry in entries {
                let mut value = Vec::new();
                record::write_ledger(entry, &mut value);
                put_bytes(&mut out, &value);
            }
        }
        Ok(Response::Count { counters, at }) => {
            out.push(3);
            put_u64(&mut out, *counters);
            put_u64(&mut out, at.0);
        }
        Ok(Response::Status { partitions }) => {
            out.push(4);
            put_u64(&mut out, partitions.len() as u64);
            for status in partitions {
                put_u64(&mut out, u64::from(status.partition));
                put_u64(&mut out, status.epoch);
                put_position(&mut out, status.applied);
                put_position(&mut out, status.persisted);
                put_option(&mut out, status.end.as_ref(), |out, end| put_position(out, *end));
                out.push(u8::from(status.role == Role::Standby));
            }
        }
        Err(error) => {
            out.push(match error {
                RpcError::NotHosted { .. } => 128,
                RpcError::Gone => 129,
                RpcError::Overloaded => 130,
                RpcError::Closing => 131,
                RpcError::Failed(_) => 132,
            });
            match error {
                RpcError::NotHosted { owner } => {
                    put_option(&mut out, owner.as_ref(), |out, owner| put_bytes(out, owner.as_bytes()));
                }
                RpcError::Failed(why) => {
                    let end = why.floor_char_boundary(REASON_BYTES_MAX);
                    put_bytes(&mut out, &why.as_bytes()[..end]);
                }
                RpcError::Gone | RpcError::Overloaded | RpcError::Closing => {}
            }
        }
    }
    out
}

/// Reads what [`encode_answer`] wrote; `None` if it is something else.
#[must_use]
pub fn decode_answer(bytes: &[u8]) -> Option<Result<Response, RpcError>> {
    let mut cursor = Cursor::new(bytes);
    if cursor.u8()? != VERSION {
        return None;
    }
    let answer = match cursor.u8()? {
        0 => Ok(Response::Outcomes {
            end: Position(cursor.u64()?),
            at: Millis(cursor.u64()?),
            outcomes: Outcomes::decode(&mut cursor)?,
        }),
        1 => Ok(Response::Read {
            position: Position(cursor.u64()?),
            at: Millis(cursor.u64()?),
            records: list(&mut cursor, CALL_EVENTS_MAX, |cursor| {
                option(cursor, |cursor| cursor.bytes(RPC_BYTES_MAX).map(<[u8]>::to_vec))
            })?,
        }),
        2 => Ok(Response::Ledger {
            entries: list(&mut cursor, PAGE_ITEMS_MAX + 1, |cursor| record::read_ledger(cursor.bytes(RPC_BYTES_MAX)?))?,
        }),
        3 => Ok(Response::Count { counters: cursor.u64()?, at: Millis(cursor.u64()?) }),
        4 => Ok(Response::Status {
            partitions: list(&mut cursor, PARTITIONS_MAX as usize, |cursor| {
                Some(PartitionStatus {
                    partition: u32::try_from(cursor.u64()?).ok()?,
                    epoch: cursor.u64()?,
                    applied: Position(cursor.u64()?),
                    persisted: Position(cursor.u64()?),
                    end: option(cursor, |cursor| Some(Position(cursor.u64()?)))?,
                    role: if cursor.u8()? == 0 { Role::Owner } else { Role::Standby },
                })
            })?,
        }),
        128 => Err(RpcError::NotHosted { owner: option(&mut cursor, |cursor| cursor.text(REASON_BYTES_MAX).map(String::from))? }),
        129 => Err(RpcError::Gone),
        130 => Err(RpcError::Overloaded),
        131 => Err(RpcError::Closing),
        132 => Err(RpcError::Failed(cursor.text(REASON_BYTES_MAX)?.into())),
        _ => return None,
    };
    cursor.is_done().then_some(answer)
}

