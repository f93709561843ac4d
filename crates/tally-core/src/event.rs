//! Events: one intended change of a counter each, with its details.

use sha2::{Digest, Sha256};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::batch::Runs;
use crate::import::ImportedCounter;
use crate::key::KeyRef;
use crate::limits::{DIMENSION_BYTES_MAX, DIMENSIONS_MAX, MEMBER_BYTES_MAX, REASON_BYTES_MAX, REQUEST_ID_BYTES_MAX};
use crate::request_ids::FirstOutcome;
use crate::sub_counters::ShardReports;
use crate::time::Millis;

/// What an event does to its counter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Adds a delta; the only change that can be combined.
    Add(i64),
    /// Sets the value, if the condition is met.
    Set {
        /// The new value.
        value: i64,
        /// The condition; if it is not met, nothing changes.
        when: Condition,
        /// The effect on the counter's expiry.
        expiry: Expiry,
        /// Who and why.
        why: Correction,
    },
    /// Sets the value to zero.
    Reset(Correction),
    /// Adds a delta as an audited correction.
    Adjust {
        /// The delta.
        delta: i64,
        /// Who and why.
        why: Correction,
    },
    /// Removes the counter; its ledger stays.
    Delete(Correction),
    /// Sets or removes the expiry. Does not change the value and writes no ledger entry. `applied` is 1 if the expiry
    /// was set or removed, and 0 if the condition was not met, there was no counter or no expiry to remove.
    Expire {
        /// When the counter expires; `None` is never.
        at: Option<Deadline>,
        /// The condition on the current expiry.
        when: ExpiryCondition,
    },
    /// Reads the counter at this point in the submission. Changes nothing, and ignores a request id.
    Read(Field),
    /// Removes the counter if it has expired, and deletes this expiry record from the store. Submitted by engines to
    /// free memory and storage: the counter stopped existing when it expired. Writes no ledger entry. `applied` is 1 if
    /// the counter was removed.
    Sweep {
        /// The expiry record's time. The counter may have another expiry by now.
        expires_at: Millis,
    },
    /// Adds what sub-counters have counted since they were last summed. Submitted by engines that keep sub-counters
    /// outside the journal. Writes no ledger entry. `applied` is the change of the value. What would take the value out
    /// of its range is dropped.
    Sum(ShardReports),
    /// Imports a counter of another server, with its ledger. `applied` is 1 if anything changed, and 0 if everything
    /// was already here.
    Import(Box<ImportedCounter>),
    /// Protects the changes that follow it: if the counter is not at this version, the event is refused with
    /// [`Refusal::NotExpected`](crate::outcome::Refusal::NotExpected), and so are the next `covers` changes of the
    /// batch. Reads among them are answered. Must be in the same group as these changes.
    Guard {
        /// The version, as read with [`Field::Version`].
        version: i64,
        /// How many changes it protects, other guards included.
        covers: u32,
    },
    /// Imports a request that another server answered: records this first outcome for the event's request id, unless
    /// the id is known here or has expired. The key only selects the partition. `applied` is 1 if the outcome was
    /// recorded.
    ImportRequest(FirstOutcome),
}

/// When something expires. A duration counts from the time of the batch, so only the partition's clock matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deadline {
    /// At this time; if it is past, at once.
    At(Millis),
    /// This many milliseconds after the batch; zero means at once.
    After(u64),
}

impl Deadline {
    /// The time, for a batch that is applied at `now`.
    #[must_use]
    pub fn resolve(self, now: Millis) -> Millis {
        match self {
            Deadline::At(at) => at,
            Deadline::After(millis) => Millis(now.0.saturating_add(millis)),
        }
    }
}

/// The condition of a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// No condition.
    Always,
    /// The value is this; a counter that does not exist is zero.
    Equals(i64),
    /// The counter does not exist.
    Absent,
    /// The counter exists.
    Present,
}

/// The effect of a set on the expiry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expiry {
    /// Keeps it.
    Keep,
    /// Removes it.
    Never,
    /// Replaces it.
    At(Deadline),
}

/// When an expiry may be changed. No expiry counts as later than any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpiryCondition {
    /// Always.
    Always,
    /// If the counter has none.
    IfNone,
    /// If the counter has one.
    IfSome,
    /// If the new one is later.
    IfLater,
    /// If the new one is earlier.
    IfEarlier,
    /// If the counter has one and the new one is earlier.
    IfSomeAndEarlier,
}

/// What to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    /// The value.
    Value,
    /// The expiry, as the outcome's value: milliseconds since the epoch, or -1 for never.
    Expiry,
    /// A digest that changes whenever the counter does, for [`Change::Guard`]; [`VERSION_ABSENT`] if there is no
    /// counter.
    Version,
}

/// The version of a counter that does not exist.
pub const VERSION_ABSENT: i64 = 0;

/// Who corrects a counter, and why.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Correction {
    actor: Box<str>,
    reason: Box<str>,
}

/// A part of an event is too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} is too long: {len}, the maximum is {max}")]
pub struct TooLong {
    /// Which part.
    pub what: &'static str,
    /// Its length, in bytes or in list entries.
    pub len: usize,
    /// The maximum length.
    pub max: usize,
}

fn at_most(what: &'static str, len: usize, max: usize) -> Result<(), TooLong> {
    if len <= max { Ok(()) } else { Err(TooLong { what, len, max }) }
}

impl Correction {
    /// `actor` is the authenticated caller, or a substitute such as an address.
    pub fn new(actor: &str, reason: &str) -> Result<Correction, TooLong> {
        at_most("the actor of a correction", actor.len(), REASON_BYTES_MAX)?;
        at_most("the reason of a correction", reason.len(), REASON_BYTES_MAX)?;
        Ok(Correction { actor: actor.into(), reason: reason.into() })
    }

    /// Who made it.
    #[must_use]
    pub fn actor(&self) -> &str {
        &self.actor
    }

    /// The reason given.
    #[must_use]
    pub fn reason(&self) -> &str {
        &self.reason
    }

    /// The same correction without its actor.
    pub(crate) fn without_actor(&self) -> Correction {
        Correction { actor: Box::default(), reason: self.reason.clone() }
    }
}

/// Who or what is counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member(Box<[u8]>);

impl Member {
    /// Checks the length; every byte value is allowed.
    pub fn new(bytes: &[u8]) -> Result<Member, TooLong> {
        at_most("a member", bytes.len(), MEMBER_BYTES_MAX)?;
        Ok(Member(bytes.into()))
    }

    /// The bytes of the member.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// Named values by which a count is broken down.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dimensions(Vec<(Box<str>, Box<str>)>);

impl Dimensions {
    /// Adds a dimension and its value.
    pub fn push(&mut self, name: &str, value: &str) -> Result<(), TooLong> {
        at_most("the list of dimensions", self.0.len() + 1, DIMENSIONS_MAX)?;
        at_most("the name of a dimension", name.len(), DIMENSION_BYTES_MAX)?;
        at_most("the value of a dimension", value.len(), DIMENSION_BYTES_MAX)?;
        self.0.push((name.into(), value.into()));
        Ok(())
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Names and values, in the order they were added.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (&**name, &**value))
    }
}

/// Bounds on the value that one event may lead to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// The value may not fall below this.
    pub floor: Option<i64>,
    /// The value may not rise above this.
    pub ceiling: Option<i64>,
    /// What happens at a bound.
    pub on_bound: OnBound,
}

/// What happens to an event that would cross a bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnBound {
    /// Refuses the event.
    Refuse,
    /// Applies the part of the delta that fits.
    Saturate,
    /// Refuses the event unless the new value is within both bounds, even if the old one was not.
    RefuseOutside,
    /// Clamps the new value to both bounds, even if the old one was outside.
    Clamp,
}

/// Optional details of an event. Most events have none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Details {
    /// Who or what is counted, for uniques and once-per-member.
    pub member: Option<Member>,
    /// Named values by which the count is broken down.
    pub dimensions: Dimensions,
    /// When it happened, if not on arrival.
    pub at: Option<Millis>,
    /// Bounds for this change.
    pub bounds: Option<Bounds>,
    /// The new expiry, if the add is applied.
    pub expiry: Option<AddExpiry>,
}

/// The expiry that an add sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddExpiry {
    /// When the counter expires; `None` is never.
    pub at: Option<Deadline>,
    /// Keeps an expiry that the counter already has.
    pub only_if_none: bool,
}

impl Details {
    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Details::default()
    }
}

/// A digest of namespace and request id, so that ids of any length cost sixteen bytes and ids of different namespaces
/// never collide.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub [u8; 16]);

/// Why bytes are not a request id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestIdError {
    /// A request id has at least one byte.
    #[error("the request id is empty; it must have 1 to {REQUEST_ID_BYTES_MAX} bytes")]
    Empty,
    /// A request id has at most 255 bytes.
    #[error("the request id has {0} bytes; it must have 1 to {REQUEST_ID_BYTES_MAX}")]
    TooLong(usize),
}

impl RequestId {
    /// The digest of `id` within the namespace of `key`.
    pub fn new(key: KeyRef<'_>, id: &[u8]) -> Result<Self, RequestIdError> {
        match id.len() {
            0 => return Err(RequestIdError::Empty),
            1..=REQUEST_ID_BYTES_MAX => {}
            n => return Err(RequestIdError::TooLong(n)),
        }
        let namespace = key.namespace();
        let mut hasher = Sha256::new();
        // The length prefix keeps ("a", "bc") and ("ab", "c") apart.
        hasher.update((namespace.len() as u16).to_le_bytes());
        hasher.update(namespace);
        hasher.update(id);
        let digest = hasher.finalize();
        let mut short = [0; 16];
        short.copy_from_slice(&digest[..16]);
        Ok(RequestId(short))
    }
}

/// One event, borrowed from the batch that holds it.
#[derive(Clone, Copy, Debug)]
pub struct EventRef<'a> {
    /// The counter.
    pub key: KeyRef<'a>,
    /// Hash of the key with the seed of the batch.
    pub hash: u64,
    /// What the event does.
    pub change: ChangeRef<'a>,
    /// Identifies the request, to detect duplicates.
    pub request_id: Option<RequestId>,
    /// Optional details.
    pub details: Option<&'a Details>,
    /// Whether the request id was not in the store when [`Events::check_requests`] checked it.
    ///
    /// [`Events::check_requests`]: crate::batch::Events::check_requests
    pub unstored: bool,
    /// Whether it is the sum of several adds without its runs, as in journals of format 1.
    pub bare_sum: bool,
}

impl EventRef<'_> {
    /// Whether it may change the state.
    #[must_use]
    pub fn is_change(&self) -> bool {
        !matches!(self.change, ChangeRef::Other(Change::Read(_)))
    }

    /// Whether the outcome depends on more than the sum of all adds.
    #[must_use]
    pub fn depends_on_state(&self) -> bool {
        let is_conditional = self.details.is_some_and(|details| details.bounds.is_some() || details.expiry.is_some());
        is_conditional || matches!(self.change, ChangeRef::Other(change) if !matches!(change, Change::Read(_)))
    }

    /// Hash of key, change and details, to detect a different request with the same id. Excludes the actor, because a
    /// retry may come from another address. Stored, so it must never change.
    #[must_use]
    pub fn fingerprint(&self) -> u64 {
        let key = self.key.as_bytes();
        match (self.change, self.details) {
            (ChangeRef::Add(delta), None) => xxh3_64_with_seed(key, delta as u64),
            (change, details) => {
                let mut payload = Vec::new();
                crate::batch::put_payload(&mut payload, change, details);
                xxh3_64_with_seed(&payload, xxh3_64_with_seed(key, 0))
            }
        }
    }
}

/// A [`Change`], borrowed.
#[derive(Clone, Copy, Debug)]
pub enum ChangeRef<'a> {
    /// Adds a delta.
    Add(i64),
    /// Combined plain adds.
    Adds(Adds<'a>),
    /// Anything else.
    Other(&'a Change),
}

/// Plain adds of one key and the same sign, combined into one event.
#[derive(Clone, Copy, Debug)]
pub struct Adds<'a> {
    sum: i128,
    runs: Runs<'a>,
}

impl<'a> Adds<'a> {
    pub(crate) fn new(sum: i128, runs: Runs<'a>) -> Adds<'a> {
        Adds { sum, runs }
    }

    /// The sum of all adds.
    #[must_use]
    pub fn sum(self) -> i128 {
        self.sum
    }

    /// Runs of equal adds in order, as `(delta, times)`.
    #[must_use]
    pub fn runs(self) -> Runs<'a> {
        self.runs
    }
}

impl ChangeRef<'_> {
    /// Whether it may write a ledger entry.
    pub(crate) fn is_correction(self) -> bool {
        match self {
            ChangeRef::Add(_) | ChangeRef::Adds(_) => false,
            ChangeRef::Other(
                Change::Add(_) | Change::Expire { .. } | Change::Read(_) | Change::Sweep { .. } | Change::Sum(_),
            ) => false,
            ChangeRef::Other(Change::ImportRequest(_) | Change::Guard { .. }) => false,
            ChangeRef::Other(Change::Set { .. } | Change::Reset(_) | Change::Adjust { .. } | Change::Delete(_)) => true,
            ChangeRef::Other(Change::Import(_)) => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_ids_are_scoped_to_the_namespace() -> Result<(), Box<dyn std::error::Error>> {
        let id = |key: &str, id: &str| -> Result<RequestId, Box<dyn std::error::Error>> {
            Ok(RequestId::new(KeyRef::new(key.as_bytes())?, id.as_bytes())?)
        };
        assert_eq!(id("a:x", "1")?, id("a:y", "1")?);
        assert_ne!(id("a:x", "1")?, id("b:x", "1")?);
        assert_ne!(id("a:x", "b1")?, id("ab:x", "1")?);
        Ok(())
    }
}
