//! Outcomes of events, and the receipts and tokens that callers get.

use std::collections::BTreeMap;

use crate::limits::TOKEN_PARTITIONS_MAX;
use crate::time::{Millis, Position};

/// The outcome of one event: the value afterwards and the change the event made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The value after the event; after a refusal, the unchanged value.
    pub value: i64,
    /// The signed change this event made; zero if it was refused. Adds that share an outcome may have been applied in
    /// part: see [`Outcome::applied_times`].
    pub applied: i64,
    /// Whether the counter exists afterwards.
    pub exists: bool,
    /// Whether `value` and `applied` come from the state machine. An engine that acknowledges a write before applying
    /// it returns an estimate.
    pub exact: bool,
    /// Whether the request id was a duplicate, so that this is the first outcome again; `None` if not known yet.
    pub duplicate: Option<bool>,
    /// Why the event was refused, if it was.
    pub refusal: Option<Refusal>,
    /// The time of the batch; for a duplicate, of the first request's batch.
    pub at: Millis,
}

impl Outcome {
    /// Whether this is known to be the outcome of a duplicate.
    #[must_use]
    pub fn is_duplicate(&self) -> bool {
        self.duplicate == Some(true)
    }

    /// The outcome of reading a counter that does not exist, at time zero.
    pub const EMPTY: Outcome = Outcome {
        value: 0,
        applied: 0,
        exists: false,
        exact: true,
        duplicate: Some(false),
        refusal: None,
        at: Millis(0),
    };

    /// How many of `times` adds of `delta` were applied, if this is their joint outcome. These are the first ones: once
    /// one add overflows, so do the rest. [`Outcome::value`] is the value after the last applied add; after each add
    /// before that, it was `delta` less.
    #[must_use]
    pub fn applied_times(&self, delta: i64, times: u32) -> u32 {
        if self.refusal.is_none() {
            return times;
        }
        // The sum may span the whole range and exceed 63 bits; modulo 2⁶⁴ it is still exact.
        let sum = if delta < 0 { self.applied.wrapping_neg() } else { self.applied } as u64;
        sum.checked_div(delta.unsigned_abs()).and_then(|applied| u32::try_from(applied).ok()).unwrap_or(0).min(times)
    }
}

/// How many of `times` adds of `delta` can be applied before the value overflows.
#[must_use]
pub(crate) fn fitting(value: i64, delta: i64, times: u32) -> u32 {
    let room = match delta {
        0 => return times,
        1.. => i64::MAX.abs_diff(value),
        _ => value.abs_diff(i64::MIN),
    };
    u32::try_from(room / delta.unsigned_abs()).unwrap_or(u32::MAX).min(times)
}

/// The value after `times` adds of `delta`, all of which fit.
#[must_use]
pub(crate) fn moved(value: i64, delta: i64, times: u32) -> i64 {
    value.wrapping_add(delta.wrapping_mul(i64::from(times)))
}

/// The outcomes of a batch, one per slot. Their encoding is in `outcome_codec.rs`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcomes {
    pub(crate) slots: Vec<Outcome>,
    /// For slots of combined adds of which some overflowed, by slot, ascending.
    pub(crate) splits: Vec<(usize, Split)>,
}

impl Outcomes {
    pub(crate) fn reserve(&mut self, slots: usize) {
        self.slots.reserve(slots);
    }

    pub(crate) fn push(&mut self, outcome: Outcome) {
        self.slots.push(outcome);
    }

    pub(crate) fn push_split(&mut self, outcome: Outcome, split: Split) {
        self.splits.push((self.slots.len(), split));
        self.slots.push(outcome);
    }

    /// One outcome per event of the batch; combined adds are one event.
    #[must_use]
    pub fn slots(&self) -> &[Outcome] {
        &self.slots
    }

    /// Bytes of memory used.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        let splits = self.splits.iter().map(|(_, split)| size_of::<(usize, Split)>() + size_of_val(&*split.runs));
        size_of_val(&*self.slots) + splits.sum::<usize>()
    }

    /// Removes all outcomes, keeps the allocation.
    pub fn clear(&mut self) {
        self.slots.clear();
        self.splits.clear();
    }

    /// The outcome of a slot, and of its individual adds if some of them overflowed.
    pub(crate) fn of_slot(&self, slot: usize) -> (Outcome, Option<&Split>) {
        let split = if self.splits.is_empty() {
            None
        } else {
            self.splits.binary_search_by_key(&slot, |(slot, _)| *slot).ok().map(|at| &self.splits[at].1)
        };
        (self.slots[slot], split)
    }
}

/// The outcome of combined adds of which some overflowed: one entry per run of equal adds, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Split {
    pub(crate) runs: Vec<SplitRun>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SplitRun {
    /// Sum of the adds before this run, whether or not they were applied.
    pub(crate) offset: i64,
    /// The value before this run.
    pub(crate) value: i64,
    pub(crate) delta: i64,
    pub(crate) applied: u32,
}

impl Split {
    /// Applies the runs to `value` one by one; returns the final value and the outcome of each run.
    pub(crate) fn of(value: i64, runs: impl Iterator<Item = (i64, u32)>) -> (i64, Split) {
        let (mut value, mut offset) = (value, 0i64);
        let runs = runs.map(|(delta, times)| {
            let run = SplitRun { offset, value, delta, applied: fitting(value, delta, times) };
            value = moved(value, delta, run.applied);
            offset = moved(offset, delta, times);
            run
        });
        let runs = runs.collect();
        (value, Split { runs })
    }

    /// Whether any add was applied.
    pub(crate) fn has_applied(&self) -> bool {
        self.runs.iter().any(|run| run.applied > 0)
    }

    /// The outcome of `times` equal adds at `offset` within the slot; `whole` is the outcome of the slot.
    pub(crate) fn of_run(&self, whole: &Outcome, offset: i64, delta: i64, times: u32) -> Outcome {
        let before = self.value_at(offset);
        let applied = fitting(before, delta, times);
        Outcome {
            value: moved(before, delta, applied),
            applied: delta.wrapping_mul(i64::from(applied)),
            refusal: whole.refusal.filter(|_| applied < times),
            ..*whole
        }
    }

    /// The value before the add at `offset`. All adds have the same sign, so offsets only move away from zero.
    fn value_at(&self, offset: i64) -> i64 {
        let after = self.runs.partition_point(|run| run.offset.unsigned_abs() <= offset.unsigned_abs());
        let Some(run) = after.checked_sub(1).and_then(|at| self.runs.get(at)) else {
            return 0;
        };
        let tried = (offset.abs_diff(run.offset)).checked_div(run.delta.unsigned_abs()).unwrap_or(0);
        let applied = u32::try_from(tried).unwrap_or(u32::MAX).min(run.applied);
        moved(run.value, run.delta, applied)
    }
}

/// Why an event changed nothing. Part of the API and of the stored format: numbers are never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Refusal {
    /// The value would leave the range of a 64-bit integer.
    Overflow = 1,
    /// The request id was used before with another payload.
    PayloadMismatch = 2,
    /// The value would cross the floor or ceiling.
    Bound = 3,
    /// The condition of a set was not met, a guarded counter has changed, or an imported counter already exists with
    /// different content.
    NotExpected = 4,
    /// The disk is full. Never stored: a change that cannot be journalled is not applied.
    NoRoom = 5,
    /// The outcome depends on the state, which a `best-effort` namespace does not wait for. Never stored.
    BestEffort = 6,
    /// The counter's local ledger is not a prefix of the imported one. A ledger is never rewritten.
    LedgerDiffers = 7,
}

impl Refusal {
    /// What [`Refusal::BestEffort`] means, for callers.
    pub const BEST_EFFORT_TEXT: &'static str = "the answer depends on the value, which a `best-effort` namespace does not \
        wait for; nothing was changed: give the namespace the consistency `eventual` or a stronger one";

    /// The refusal with this stored number.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Refusal> {
        use Refusal::{Bound, LedgerDiffers, NotExpected, Overflow, PayloadMismatch};
        [Overflow, PayloadMismatch, Bound, NotExpected, LedgerDiffers]
            .into_iter()
            .find(|refusal| *refusal as u8 == code)
    }
}

/// The outcomes of one submission, in the order of its events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receipt {
    /// One per event; the adds of one [`add_times`](crate::batch::Events::add_times) share one.
    pub outcomes: Vec<Outcome>,
    /// The time of the batch that has the last event.
    pub as_of: Millis,
    /// The journal position after the submission: a read that presents it sees the submission.
    pub token: Token,
}

/// The outcomes of a read-only submission.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reads {
    /// One outcome per event. The token is the position of the newest unflushed batch that any of them depends on.
    pub receipt: Receipt,
    /// Indices of the outcomes that depend on an unflushed batch, ascending.
    pub unflushed: Vec<u32>,
}

/// A consistency token, opaque to callers: a read that presents it sees the writes it was returned for. It has the
/// journal position of each partition that was written to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Token {
    /// By partition, ascending. Most tokens have one partition and need no allocation.
    first: Option<(u32, Position)>,
    others: Vec<(u32, Position)>,
}

/// Why text is not a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid token")]
pub struct TokenError;

impl Token {
    /// A position in one partition.
    #[must_use]
    pub fn new(partition: u32, position: Position) -> Token {
        Token { first: Some((partition, position)), others: Vec::new() }
    }

    /// The positions by partition, ascending.
    pub fn positions(&self) -> impl Iterator<Item = (u32, Position)> {
        self.first.into_iter().chain(self.others.iter().copied())
    }

    /// The position in this partition; zero if nothing was written there.
    #[must_use]
    pub fn position(&self, partition: u32) -> Position {
        let found = self.positions().find(|(other, _)| *other == partition);
        found.map_or(Position(0), |(_, position)| position)
    }

    /// Takes the later position for each partition.
    pub fn merge(&mut self, other: &Token) {
        let mut all: BTreeMap<u32, Position> = self.positions().collect();
        for (partition, position) in other.positions() {
            let known = all.entry(partition).or_default();
            *known = position.max(*known);
        }
        let mut all = all.into_iter();
        self.first = all.next();
        self.others = all.collect();
    }
}

/// Hexadecimal, separated by dots: `position` for partition 0, `partition-position` for the others.
impl std::fmt::Display for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (place, (partition, position)) in self.positions().enumerate() {
            if place > 0 {
                f.write_str(".")?;
            }
            if partition > 0 {
                write!(f, "{partition:x}-")?;
            }
            write!(f, "{:x}", position.0)?;
        }
        Ok(())
    }
}

impl std::str::FromStr for Token {
    type Err = TokenError;

    fn from_str(text: &str) -> Result<Token, TokenError> {
        let mut token = Token::default();
        for part in text.split('.').take(TOKEN_PARTITIONS_MAX) {
            let (partition, position) = part.split_once('-').unwrap_or(("0", part));
            let partition = u32::from_str_radix(partition, 16).map_err(|_| TokenError)?;
            let position = u64::from_str_radix(position, 16).map_err(|_| TokenError)?;
            token.merge(&Token::new(partition, Position(position)));
        }
        if token.to_string() == text { Ok(token) } else { Err(TokenError) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_survives_formatting_and_other_text_is_refused() {
        let mut token = Token::new(3, Position(255));
        token.merge(&Token::new(0, Position(16)));
        token.merge(&Token::new(3, Position(7)));
        assert_eq!(token.to_string(), "10.3-ff");
        assert_eq!("10.3-ff".parse(), Ok(token.clone()));
        assert_eq!((token.position(3), token.position(1)), (Position(255), Position(0)));
        for text in ["", "x", "10.", "3-ff.10", "+1", "010", "10.10", "-1", "1-"] {
            assert_eq!(text.parse::<Token>(), Err(TokenError), "{text:?}");
        }
    }
}
