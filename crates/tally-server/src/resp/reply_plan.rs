//! How a command's reply is built from the outcomes of its events.
//!
//! A command is planned when it is read and answered when its events are durable. A plan is small and owns no memory,
//! because a pipeline creates thousands of them. Plain adds and `GET` have variants of their own; every other command
//! supplies the function that writes its reply.

use tally_core::outcome::{Outcome, Refusal};

use super::reply::Reply;

/// Writes a reply, given the outcomes of the command's events.
pub type WriteReply = fn(&[Outcome], &mut Reply<'_>);

/// The reply of one command, written once its outcomes are known.
#[derive(Clone, Copy, Debug)]
pub enum ReplyPlan {
    /// A finished reply of this many bytes.
    Bytes(u32),
    /// One change: the value afterwards.
    Value,
    /// Equal changes in a row: the value after each of them.
    Values {
        /// Number of requests.
        times: u32,
        /// What each of them adds.
        delta: i64,
    },
    /// One read: the value as a string, or null.
    Text,
    /// Reads that answer whether a counter exists, and count as hits or misses.
    Existence(fn(bool, &mut Reply<'_>)),
    /// Other reads, which count as hits or misses.
    Reads {
        /// Number of outcomes.
        count: u32,
        /// Writes the reply.
        write: WriteReply,
    },
    /// The guards of a transaction: if one was refused, null takes the place of all replies of the transaction.
    Guards {
        /// Number of guards.
        count: u32,
        /// Number of plans of the transaction, which follow.
        plans: u32,
    },
    /// The client wants no reply.
    Silent {
        /// Number of outcomes.
        count: u32,
    },
    /// Anything else.
    Outcomes {
        /// Number of outcomes.
        count: u32,
        /// Writes the reply.
        write: WriteReply,
    },
}

/// Redis's error for a value that would leave the 64-bit range.
pub const OVERFLOW: &str = "ERR increment or decrement would overflow";
/// The engine broke its contract.
pub const NO_OUTCOME: &str = "ERR the engine answered without an outcome";

impl ReplyPlan {
    /// A reply to one outcome.
    pub const fn of_one(write: WriteReply) -> ReplyPlan {
        ReplyPlan::Outcomes { count: 1, write }
    }

    /// A reply to this many outcomes.
    pub const fn of_many(count: u32, write: WriteReply) -> ReplyPlan {
        ReplyPlan::Outcomes { count, write }
    }

    /// A reply to this many reads.
    pub const fn of_reads(count: u32, write: WriteReply) -> ReplyPlan {
        ReplyPlan::Reads { count, write }
    }

    /// How many of the outcomes are reads of a counter that exists, and of one that does not.
    #[inline]
    pub fn hits_and_misses(self, outcomes: &[Outcome]) -> (u64, u64) {
        match self {
            ReplyPlan::Text | ReplyPlan::Existence(_) | ReplyPlan::Reads { .. } => {
                let hits = outcomes.iter().filter(|read| read.exists).count() as u64;
                (hits, outcomes.len() as u64 - hits)
            }
            _ => (0, 0),
        }
    }

    /// Number of outcomes the command has.
    #[inline]
    pub fn outcomes(self) -> usize {
        match self {
            ReplyPlan::Bytes(_) => 0,
            ReplyPlan::Value | ReplyPlan::Text | ReplyPlan::Existence(_) | ReplyPlan::Values { .. } => 1,
            ReplyPlan::Outcomes { count, .. } | ReplyPlan::Reads { count, .. } => count as usize,
            ReplyPlan::Guards { count, .. } | ReplyPlan::Silent { count } => count as usize,
        }
    }

    /// Number of requests that get a reply, even if there are no outcomes.
    #[inline]
    pub fn replies(self) -> usize {
        match self {
            ReplyPlan::Values { times, .. } => times as usize,
            ReplyPlan::Guards { .. } | ReplyPlan::Silent { .. } => 0,
            _ => 1,
        }
    }

    /// Writes the reply; `outcomes` are those of the command's events.
    #[inline]
    pub fn write(self, outcomes: &[Outcome], reply: &mut Reply<'_>) {
        match (self, outcomes) {
            (ReplyPlan::Value, [changed]) => match changed.refusal {
                None => reply.integer(changed.value),
                Some(Refusal::Overflow) => reply.error(OVERFLOW),
                Some(_) => reply.error(NO_OUTCOME),
            },
            (ReplyPlan::Values { times, delta }, [changed]) => {
                let applied = changed.applied_times(delta, times);
                let after_first = i64::from(applied.saturating_sub(1));
                let first = changed.value.wrapping_sub(delta.wrapping_mul(after_first));
                reply.integers(first, delta, applied);
                (applied..times).for_each(|_| reply.error(OVERFLOW));
            }
            (ReplyPlan::Text, [read]) => text(read, reply),
            (ReplyPlan::Existence(write), [read]) => write(read.exists, reply),
            (ReplyPlan::Outcomes { write, .. } | ReplyPlan::Reads { write, .. }, outcomes) => write(outcomes, reply),
            (ReplyPlan::Guards { .. } | ReplyPlan::Silent { .. }, _) => {}
            _ => (0..self.replies()).for_each(|_| reply.error(NO_OUTCOME)),
        }
    }
}

/// The value of a counter as a string, or null.
#[inline]
pub fn text(read: &Outcome, reply: &mut Reply<'_>) {
    if read.exists { reply.bulk_integer(read.value) } else { reply.null() }
}
