//! What became of an event.

use std::collections::BTreeMap;

use crate::limits::TOKEN_PARTITIONS_MAX;
use crate::time::{Millis, Position};

/// What became of one event: the value afterwards and what the event did to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The value after the event; after a refusal, the value that stands.
    pub value: i64,
    /// The signed change this event made: zero when it was refused.
    pub applied: i64,
    /// Whether the counter exists afterwards.
    pub exists: bool,
    /// Whether the value and what was applied are what the state machine decided. An engine that acknowledges a write
    /// before it is applied gives an estimate.
    pub exact: bool,
    /// Whether the request id had been seen, so that this is the first answer again; `None` if that is not known yet.
    pub duplicate: Option<bool>,
    /// Why nothing changed, if nothing did.
    pub refusal: Option<Refusal>,
    /// When it was decided: for a duplicate, when the first answer was.
    pub at: Millis,
}

impl Outcome {
    /// Whether this is known to be the first answer again.
    #[must_use]
    pub fn is_duplicate(&self) -> bool {
        self.duplicate == Some(true)
    }

    /// Stands where nothing has been decided yet.
    pub const EMPTY: Outcome = Outcome {
        value: 0,
        applied: 0,
        exists: false,
        exact: true,
        duplicate: Some(false),
        refusal: None,
        at: Millis(0),
    };

    /// How many of `times` adds of `delta` were applied, of which this is the outcome together: the first ones, because
    /// what does not fit once does not fit again. Each left the value `delta` short of the next, and the last of them left
    /// [`Outcome::value`].
    #[must_use]
    pub fn applied_times(&self, delta: i64, times: u32) -> u32 {
        if self.refusal.is_none() {
            return times;
        }
        // From one end of the range to the other is more than the sum can say, but not modulo 2⁶⁴.
        let sum = if delta < 0 { self.applied.wrapping_neg() } else { self.applied } as u64;
        sum.checked_div(delta.unsigned_abs()).and_then(|applied| u32::try_from(applied).ok()).unwrap_or(0).min(times)
    }
}

/// How many of `times` adds of `delta` fit before the value would leave the range of a 64-bit integer.
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

/// The outcomes of a batch: one per slot.
#[derive(Clone, Debug, Default)]
pub struct Outcomes {
    slots: Vec<Outcome>,
    /// Of combined adds that did not all fit, by slot in ascending order.
    splits: Vec<(usize, Split)>,
}

impl Outcomes {
    /// Makes room for this many more.
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

    /// One outcome per event of the batch, combined adds being one event.
    #[must_use]
    pub fn slots(&self) -> &[Outcome] {
        &self.slots
    }

    /// Removes all outcomes, keeps the memory.
    pub fn clear(&mut self) {
        self.slots.clear();
        self.splits.clear();
    }

    /// What became of a slot, and of its adds one by one if not all of them were applied.
    pub(crate) fn of_slot(&self, slot: usize) -> (Outcome, Option<&Split>) {
        let split = if self.splits.is_empty() {
            None
        } else {
            self.splits.binary_search_by_key(&slot, |(slot, _)| *slot).ok().map(|at| &self.splits[at].1)
        };
        (self.slots[slot], split)
    }
}

/// What became of combined adds that did not all fit: one entry per run of equal adds, in order.
#[derive(Clone, Debug, Default)]
pub struct Split {
    runs: Vec<SplitRun>,
}

#[derive(Clone, Copy, Debug)]
struct SplitRun {
    /// What the adds before this run come to, had all of them been applied.
    offset: i64,
    /// The value before this run.
    value: i64,
    delta: i64,
    applied: u32,
}

impl Split {
    /// Applies the runs to `value` one by one; returns the value afterwards with what became of each.
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

    /// Whether any of the adds was applied.
    pub(crate) fn has_applied(&self) -> bool {
        self.runs.iter().any(|run| run.applied > 0)
    }

    /// The outcome of `times` equal adds that stand at `offset` within the slot, whose outcome as a whole is given.
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

    /// The value before the add that stands at `offset`. Offsets only move away from zero.
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
    /// Compare-and-set found another value.
    NotExpected = 4,
    /// The journal has no room for the change. Never stored: a change that cannot be journalled is not applied.
    NoRoom = 5,
}

impl Refusal {
    /// The refusal with this stored number.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Refusal> {
        [Refusal::Overflow, Refusal::PayloadMismatch, Refusal::Bound, Refusal::NotExpected]
            .into_iter()
            .find(|refusal| *refusal as u8 == code)
    }
}

/// The outcomes of one submission, in the order of its events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receipt {
    /// One per event; those of one [`add_times`](crate::batch::Events::add_times) have one together.
    pub outcomes: Vec<Outcome>,
    /// The time of the batch the last event went into.
    pub as_of: Millis,
    /// Where in the journal the submission ends: a later read can ask to see at least this.
    pub token: Token,
}

/// The answers to events that only read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reads {
    /// One outcome per event; the token names the newest batch that any of them saw and that is not flushed.
    pub receipt: Receipt,
    /// Places of the outcomes that rest on a batch that is not flushed, ascending.
    pub unflushed: Vec<u32>,
}

/// Proof of writes, opaque to callers: a read that presents it sees them. It names a position in the journal of each
/// partition that was written to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Token {
    /// By partition, ascending. One partition is the rule, and then nothing is allocated.
    first: Option<(u32, Position)>,
    others: Vec<(u32, Position)>,
}

/// Why text is not a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this is not a token that Tally gave out")]
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

    /// Names what both name: of each partition the later position.
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

/// Hexadecimal: the partition and a dash unless it is partition 0, then the position; several with dots between them.
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
    fn a_token_comes_back_from_its_text_and_other_text_is_none() {
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
