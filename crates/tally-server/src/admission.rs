//! Admission: checks every call before it reaches the engine, whatever its protocol.
//!
//! Protocols decode requests; this decides on them. [`Admission::admit`] is the one way to a key: every HTTP call and
//! every Redis command goes through it before it makes an event, plain `INCR` included. Authentication, scopes and quotas
//! will be checked there.

use std::net::IpAddr;
use std::ops::RangeInclusive;

use tally_core::event::{Bounds, Correction, Details, OnBound, RequestId, RequestIdError};
use tally_core::key::{KeyError, KeyRef};
use tally_core::limits::{CALL_EVENTS_MAX, CALL_KEYS_MAX, PAGE_ITEMS_DEFAULT, PAGE_ITEMS_MAX, REASON_BYTES_MAX};

/// Why a call is refused before it reaches the engine. Nothing changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    /// Not a key.
    #[error("{0}")]
    Key(#[from] KeyError),
    /// Not a request id.
    #[error("{0}")]
    RequestId(#[from] RequestIdError),
    /// An amount must be positive; the verb carries the sign.
    #[error("`amount` is {0}; it must be an integer from 1 to {max}: `increment` adds it, `decrement` subtracts it", max = i64::MAX)]
    Amount(i64),
    /// A correction that changes nothing.
    #[error("`delta` is 0; an adjustment must change the value")]
    DeltaZero,
    /// A correction without a reason.
    #[error("`reason` is missing or empty; say in 1 to {REASON_BYTES_MAX} bytes why the counter is corrected")]
    ReasonEmpty,
    /// A reason that is too long.
    #[error("`reason` has {0} bytes; it must have 1 to {REASON_BYTES_MAX}")]
    ReasonTooLong(usize),
    /// Bounds that no value satisfies.
    #[error("`floor` {floor} lies above `ceiling` {ceiling}; no value fits between them")]
    BoundsCrossed {
        /// The floor given.
        floor: i64,
        /// The ceiling given.
        ceiling: i64,
    },
    /// `on_bound` without a bound.
    #[error("`on_bound` needs `floor` or `ceiling`")]
    BoundMissing,
    /// An empty batch.
    #[error("`increments` is empty; a batch has 1 to {CALL_EVENTS_MAX} items")]
    BatchEmpty,
    /// A batch with too many items.
    #[error("`increments` has {0} items; a batch has at most {CALL_EVENTS_MAX}: send several")]
    BatchTooLarge(usize),
    /// Too many keys in one read.
    #[error("`keys` names {0} counters; one call reads 1 to {CALL_KEYS_MAX}: send several")]
    TooManyKeys(usize),
    /// An invalid page size.
    #[error("`limit` is {0}; it must be an integer from 1 to {PAGE_ITEMS_MAX}")]
    Limit(u64),
}

/// How many items a page may have.
pub const PAGE_LIMITS: RangeInclusive<u64> = 1..=PAGE_ITEMS_MAX as u64;

/// The caller. There is no authentication yet, so only its address is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    peer: IpAddr,
}

impl Caller {
    /// A client at this address.
    pub fn new(peer: IpAddr) -> Self {
        Caller { peer }
    }

    /// The name recorded with a correction.
    fn actor(&self) -> Box<str> {
        format!("anonymous@{}", self.peer.to_canonical()).into()
    }
}

/// What a call does to a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Reads its value, expiry, statistics or ledger.
    Read,
    /// Finds it in a listing.
    List,
    /// Adds to its value, or subtracts from it.
    Add,
    /// Sets, resets or adjusts its value.
    Correct,
    /// Changes when it expires.
    Expire,
    /// Removes it.
    Delete,
    /// Imports it from another server.
    Import,
}

/// Decides who may do what to which counters. For now, it only validates keys.
#[derive(Debug, Default)]
pub struct Admission {}

impl Admission {
    /// Admits one call on one key.
    #[inline]
    pub fn admit<'k>(&self, _caller: &Caller, key: &'k [u8], _action: Action) -> Result<KeyRef<'k>, Denied> {
        Ok(KeyRef::new(key)?)
    }

    /// Admits a call on all counters whose key begins with `prefix`.
    pub fn admit_prefix(&self, _caller: &Caller, _prefix: &[u8], _action: Action) -> Result<(), Denied> {
        Ok(())
    }
}

/// A request id within the namespace of `key`.
pub fn request_id(key: KeyRef<'_>, id: &[u8]) -> Result<RequestId, Denied> {
    Ok(RequestId::new(key, id)?)
}

/// A positive amount.
pub fn amount(amount: i64) -> Result<i64, Denied> {
    if amount >= 1 { Ok(amount) } else { Err(Denied::Amount(amount)) }
}

/// A correction that changes something.
pub fn delta(delta: i64) -> Result<i64, Denied> {
    if delta == 0 { Err(Denied::DeltaZero) } else { Ok(delta) }
}

/// The caller and the reason of a correction. The reason must have a valid length.
pub fn correction(caller: &Caller, reason: &str) -> Result<Correction, Denied> {
    match reason.len() {
        0 => Err(Denied::ReasonEmpty),
        n => Correction::new(&caller.actor(), reason).map_err(|_| Denied::ReasonTooLong(n)),
    }
}

/// Bounds as the details of an event; `None` without any.
pub fn bounds(floor: Option<i64>, ceiling: Option<i64>, on_bound: Option<OnBound>) -> Result<Option<Details>, Denied> {
    match (floor, ceiling) {
        (None, None) if on_bound.is_some() => Err(Denied::BoundMissing),
        (None, None) => Ok(None),
        (Some(floor), Some(ceiling)) if floor > ceiling => Err(Denied::BoundsCrossed { floor, ceiling }),
        _ => {
            let on_bound = on_bound.unwrap_or(OnBound::Refuse);
            Ok(Some(Details { bounds: Some(Bounds { floor, ceiling, on_bound }), ..Details::default() }))
        }
    }
}

/// A batch of the right size.
pub fn batch_len(items: usize) -> Result<(), Denied> {
    match items {
        0 => Err(Denied::BatchEmpty),
        1..=CALL_EVENTS_MAX => Ok(()),
        n => Err(Denied::BatchTooLarge(n)),
    }
}

/// A number of keys that one call may read.
pub fn keys_len(keys: usize) -> Result<(), Denied> {
    if (1..=CALL_KEYS_MAX).contains(&keys) { Ok(()) } else { Err(Denied::TooManyKeys(keys)) }
}

/// The size of a page.
pub fn page_limit(limit: Option<u64>) -> Result<usize, Denied> {
    match limit {
        None => Ok(PAGE_ITEMS_DEFAULT),
        Some(n) if PAGE_LIMITS.contains(&n) => Ok(n as usize),
        Some(n) => Err(Denied::Limit(n)),
    }
}
