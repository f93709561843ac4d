//! How a command's reply follows from the outcomes of its events.
//!
//! A command is planned when it is read and written out when its events are durable. A plan is small and has no memory
//! of its own, because a pipeline makes thousands.

use tally_core::outcome::{Outcome, Refusal};

use super::reply::Reply;

/// The reply of one command, to be written once its outcomes are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plan {
    /// A finished reply of this many bytes.
    Bytes(u32),
    /// One change: the value afterwards.
    Value,
    /// The replies of so many requests in a row, each the same change: the value after each of them.
    Values {
        /// How many requests.
        times: u32,
        /// What each of them adds.
        delta: i64,
    },
    /// One look: the value as a string, or null.
    Text,
    /// So many looks: an array of strings and nulls.
    Texts(u32),
    /// One look: what kind of value the key holds.
    Kind,
    /// So many looks: how many of the keys exist.
    Existing(u32),
    /// So many pairs of a look and a removal: how many keys were there.
    Removed(u32),
    /// One set: `OK`, or null if its condition was not met.
    Set,
    /// A look and a set: the value before, or null.
    Before,
    /// A look and a removal: the value before, or null.
    Taken,
    /// One bounded change: the value afterwards and the part that was applied.
    Bounded,
    /// One change of an expiry: 1 if there was something to change, else 0.
    Done,
    /// One look at an expiry.
    Expiry(Clock),
    /// One change with everything that is known about it.
    Written,
}

/// How an expiry is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// Seconds left.
    SecondsLeft,
    /// Milliseconds left.
    MillisLeft,
    /// The second it comes.
    Second,
    /// The millisecond it comes.
    Milli,
}

/// What Redis says when a number would leave the range of 64 bits.
pub const OVERFLOW: &str = "ERR increment or decrement would overflow";
const NO_KEY: i64 = -2;

impl Plan {
    /// How many outcomes the command has.
    #[inline]
    pub fn outcomes(self) -> usize {
        match self {
            Plan::Bytes(_) => 0,
            Plan::Value
            | Plan::Text
            | Plan::Kind
            | Plan::Set
            | Plan::Bounded
            | Plan::Done
            | Plan::Expiry(_)
            | Plan::Values { .. }
            | Plan::Written => 1,
            Plan::Before | Plan::Taken => 2,
            Plan::Texts(looks) | Plan::Existing(looks) => looks as usize,
            Plan::Removed(keys) => 2 * keys as usize,
        }
    }

    /// How many requests wait for a reply: also when there are no outcomes, each gets its own.
    #[inline]
    pub fn replies(self) -> usize {
        match self {
            Plan::Values { times, .. } => times as usize,
            _ => 1,
        }
    }

    /// Writes the reply; `outcomes` are those of the command's events.
    #[inline]
    pub fn write(self, outcomes: &[Outcome], reply: &mut Reply<'_>) {
        match (self, outcomes) {
            (Plan::Value, [changed]) if changed.refusal.is_none() => reply.integer(changed.value),
            (Plan::Values { times, delta }, [changed]) => {
                let applied = changed.applied_times(delta, times);
                let behind_first = i64::from(applied.saturating_sub(1));
                let first = changed.value.wrapping_sub(delta.wrapping_mul(behind_first));
                reply.integers(first, delta, applied);
                (applied..times).for_each(|_| reply.error(OVERFLOW));
            }
            (Plan::Written, [changed]) if changed.refusal == Some(Refusal::Overflow) && changed.is_duplicate() => {
                reply.error(
                    "ERR increment or decrement would overflow; this ID was refused before, use a new ID to try again",
                );
            }
            (Plan::Value | Plan::Set | Plan::Written, [changed]) if changed.refusal == Some(Refusal::Overflow) => {
                reply.error(OVERFLOW);
            }
            (Plan::Text, [look]) => text(look, reply),
            (Plan::Texts(_), looks) => {
                reply.array(looks.len());
                looks.iter().for_each(|look| text(look, reply));
            }
            (Plan::Kind, [look]) => reply.simple(if look.exists { "string" } else { "none" }),
            (Plan::Existing(_), looks) => count(looks.iter(), reply),
            (Plan::Removed(_), outcomes) => count(outcomes.iter().step_by(2), reply),
            (Plan::Set, [set]) => match set.refusal {
                None => reply.ok(),
                Some(_) => reply.null(),
            },
            (Plan::Before, [look, set]) => match set.refusal {
                Some(Refusal::Overflow) => reply.error(OVERFLOW),
                _ => text(look, reply),
            },
            (Plan::Taken, [look, _]) => text(look, reply),
            (Plan::Bounded, [changed]) if changed.refusal == Some(Refusal::Overflow) => {
                reply.error("ERR applied increment would overflow");
            }
            (Plan::Bounded, [changed]) => {
                reply.array(2);
                reply.integer(changed.value);
                reply.integer(changed.applied);
            }
            (Plan::Done, [changed]) => reply.integer(changed.applied),
            (Plan::Expiry(clock), [look]) => reply.integer(clock.tell(look)),
            (Plan::Written, [changed]) => written(changed, reply),
            _ => (0..self.replies()).for_each(|_| reply.error("ERR the engine answered without an outcome")),
        }
    }
}

impl Clock {
    fn tell(self, look: &Outcome) -> i64 {
        if !look.exists {
            return NO_KEY;
        }
        // Already -1 where there is no expiry.
        if look.value < 0 {
            return look.value;
        }
        let now = i64::try_from(look.at.0).unwrap_or(i64::MAX);
        let left = look.value.saturating_sub(now).max(0);
        let rounded = |millis: i64| millis.saturating_add(500) / 1000;
        match self {
            Clock::SecondsLeft => rounded(left),
            Clock::MillisLeft => left,
            Clock::Second => rounded(look.value),
            Clock::Milli => look.value,
        }
    }
}

#[inline]
fn text(look: &Outcome, reply: &mut Reply<'_>) {
    if look.exists { reply.bulk_integer(look.value) } else { reply.null() }
}

fn count<'a>(looks: impl Iterator<Item = &'a Outcome>, reply: &mut Reply<'_>) {
    let existing = looks.filter(|look| look.exists).count();
    reply.integer(i64::try_from(existing).unwrap_or(i64::MAX));
}

fn written(changed: &Outcome, reply: &mut Reply<'_>) {
    if changed.refusal == Some(Refusal::PayloadMismatch) {
        return reply.error("ERR this ID was used before for another key, call, delta or bound; nothing was changed");
    }
    reply.map(5);
    reply.bulk(b"value");
    reply.integer(changed.value);
    reply.bulk(b"applied");
    reply.integer(changed.applied);
    reply.bulk(b"duplicate");
    match changed.duplicate {
        Some(duplicate) => reply.boolean(duplicate),
        None => reply.null(),
    }
    reply.bulk(b"exact");
    reply.boolean(changed.exact);
    reply.bulk(b"as_of");
    reply.integer(i64::try_from(changed.at.0).unwrap_or(i64::MAX));
}
