//! Plain counting: increments, decrements, reads, and setting or deleting a value.

use tally_core::batch::Events;
use tally_core::event::{Change, Condition, Expiry, Field};
use tally_core::key::KeyRef;
use tally_core::outcome::{Outcome, Refusal};

use super::call::{CommandCall, CommandError};
use super::deadlines::{ExpiryKind, ExpiryOption};
use super::spec::{AddStep, Execution, Keys, Spec};
use crate::admission::Action;
use crate::limits::RESP_REPEATS_MAX;
use crate::metrics::Verb;
use crate::resp::errors::{NOT_AN_INTEGER, SYNTAX};
use crate::resp::reply::Reply;
use crate::resp::reply_plan::{NO_OUTCOME, OVERFLOW, ReplyPlan, text};
use crate::resp::wire::{Args, Sent, integer};

const LIFETIME_OR_KEEP: &str =
    "[EX seconds | PX milliseconds | EXAT unix-time-seconds | PXAT unix-time-milliseconds | KEEPTTL]";

pub static INCR: Spec = Spec::new("incr", 2, Execution::Add(AddStep::One))
    .verb(Verb::Increment)
    .keys(Keys::first("RW access update"))
    .redis("write denyoom fast", "@write @string @fast", "")
    .syntax(&["key"])
    .docs("string", "1.0.0", "O(1)", "Increments a counter by one.");

pub static INCRBY: Spec = Spec::new("incrby", 3, Execution::Add(AddStep::Argument))
    .verb(Verb::Increment)
    .keys(Keys::first("RW access update"))
    .redis("write denyoom fast", "@write @string @fast", "")
    .syntax(&["key", "increment"])
    .docs("string", "1.0.0", "O(1)", "Increments a counter by a number.");

pub static DECR: Spec = Spec::new("decr", 2, Execution::Add(AddStep::MinusOne))
    .verb(Verb::Decrement)
    .keys(Keys::first("RW access update"))
    .redis("write denyoom fast", "@write @string @fast", "")
    .syntax(&["key"])
    .docs("string", "1.0.0", "O(1)", "Decrements a counter by one.");

pub static DECRBY: Spec = Spec::new("decrby", 3, Execution::Add(AddStep::NegatedArgument))
    .verb(Verb::Decrement)
    .keys(Keys::first("RW access update"))
    .redis("write denyoom fast", "@write @string @fast", "")
    .syntax(&["key", "decrement"])
    .docs("string", "1.0.0", "O(1)", "Decrements a counter by a number.");

impl AddStep {
    #[inline]
    fn delta(self, args: Args<'_>) -> Result<i64, CommandError> {
        let argument = || integer(args.get(2).unwrap_or_default()).ok_or(NOT_AN_INTEGER);
        match self {
            AddStep::One => Ok(1),
            AddStep::MinusOne => Ok(-1),
            AddStep::Argument => Ok(argument()?),
            AddStep::NegatedArgument => Ok(argument()?.checked_neg().ok_or("ERR decrement would overflow")?),
        }
    }
}

/// Adds once for the request and for each equal one that directly follows it in `sent`. Also returns how many there are.
#[inline]
pub fn add(
    call: &mut CommandCall<'_, '_>,
    step: AddStep,
    sent: Option<Sent<'_>>,
) -> Result<(ReplyPlan, u32), CommandError> {
    let delta = step.delta(call.args)?;
    let key = call.key(Action::Add)?;
    let events = call.writes(key)?;
    let times = sent.map_or(1, |sent| sent.times(RESP_REPEATS_MAX));
    events.add_times(key, delta, times);
    Ok((if times == 1 { ReplyPlan::Value } else { ReplyPlan::Values { times, delta } }, times))
}

pub static GET: Spec = Spec::new("get", 2, Execution::Read(Field::Value, ReplyPlan::Text))
    .verb(Verb::Read)
    .keys(Keys::first("RO access"))
    .redis("readonly fast", "@read @string @fast", "")
    .syntax(&["key"])
    .docs("string", "1.0.0", "O(1)", "Returns the value of a counter.");

/// Reads one counter.
#[inline]
pub fn read(call: &mut CommandCall<'_, '_>, field: Field, plan: ReplyPlan) -> Result<ReplyPlan, CommandError> {
    let key = call.key(Action::Read)?;
    call.reads(key)?.push(key, Change::Read(field), None, None);
    Ok(plan)
}

pub static MGET: Spec = Spec::new("mget", -2, Execution::Counter(mget))
    .verb(Verb::Many)
    .keys(Keys::all("RO access"))
    .redis("readonly fast", "@read @string @fast", "request_policy:multi_shard")
    .syntax(&["key..."])
    .docs("string", "1.0.0", "O(N) for N keys", "Returns the values of several counters.");

fn mget(call: &mut CommandCall<'_, '_>) -> Result<ReplyPlan, CommandError> {
    fn write(reads: &[Outcome], reply: &mut Reply<'_>) {
        reply.array(reads.len());
        reads.iter().for_each(|read| text(read, reply));
    }
    let keys = call.keys(Action::Read)?;
    let events = call.reads_with(keys.consistency)?;
    keys.iter().for_each(|key| events.push(key, Change::Read(Field::Value), None, None));
    Ok(ReplyPlan::of_reads(keys.len(), write))
}

pub static SET: Spec = Spec::new("set", -3, Execution::Counter(set))
    .verb(Verb::Set)
    .keys(Keys::first("RW access update variable_flags"))
    .redis("write denyoom", "@write @string @slow", "")
    .syntax(&["key", "value", "[NX | XX]", "[GET]", LIFETIME_OR_KEEP])
    .docs("string", "1.0.0", "O(1)", "Sets the value of a counter.");

fn set(call: &mut CommandCall<'_, '_>) -> Result<ReplyPlan, CommandError> {
    let mut when = Condition::Always;
    let mut expiry: Option<ExpiryOption<'_>> = None;
    let (mut get, mut keep) = (false, false);
    let mut options = call.args.iter().skip(3);
    while let Some(word) = options.next() {
        let is = |name: &[u8]| word.eq_ignore_ascii_case(name);
        if is(b"NX") && when != Condition::Present {
            when = Condition::Absent;
        } else if is(b"XX") && when != Condition::Absent {
            when = Condition::Present;
        } else if is(b"GET") {
            get = true;
        } else if is(b"KEEPTTL") && expiry.is_none() {
            keep = true;
        } else if let Some(kind) = ExpiryKind::named(word)
            && !keep
            && expiry.is_none_or(|known| known.kind == kind)
        {
            expiry = Some(ExpiryOption { kind, count: options.next().ok_or(SYNTAX)? });
        } else {
            return Err(SYNTAX.into());
        }
    }
    let expiry = match expiry {
        Some(option) => Expiry::At(option.deadline(call.context.now, "set")?),
        None if keep => Expiry::Keep,
        None => Expiry::Never,
    };
    // An invalid key is reported before an invalid value.
    call.key(Action::Correct)?;
    let value = call.integer(2)?;
    set_value(call, value, ("SET", when), expiry, if get { SetReply::Before } else { SetReply::Done })
}

pub static GETSET: Spec = Spec::new("getset", 3, Execution::Counter(getset))
    .verb(Verb::Set)
    .keys(Keys::first("RW access update"))
    .redis("write denyoom fast", "@write @string @fast", "")
    .syntax(&["key", "value"])
    .docs("string", "1.0.0", "O(1)", "Sets the value of a counter and returns the previous value.");

fn getset(call: &mut CommandCall<'_, '_>) -> Result<ReplyPlan, CommandError> {
    // An invalid value is reported before an invalid key.
    let value = call.integer(2)?;
    set_value(call, value, ("GETSET", Condition::Always), Expiry::Never, SetReply::Before)
}

/// The reply to a set.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum SetReply {
    /// `OK`, or null if its condition was not met.
    Done,
    /// 1, or 0 if its condition was not met.
    Number,
    /// The value before, or null.
    Before,
}

/// Sets the counter that the first argument names.
pub fn set_value(
    call: &mut CommandCall<'_, '_>,
    value: i64,
    (reason, when): (&'static str, Condition),
    expiry: Expiry,
    answer: SetReply,
) -> Result<ReplyPlan, CommandError> {
    let key = call.key(Action::Correct)?;
    let why = call.correction(reason)?;
    let events = call.writes(key)?;
    let set = Change::Set { value, when, expiry, why };
    Ok(match answer {
        SetReply::Done => {
            events.push(key, set, None, None);
            ReplyPlan::of_one(write_set)
        }
        SetReply::Number => {
            events.push(key, set, None, None);
            ReplyPlan::of_one(write_set_number)
        }
        SetReply::Before => {
            read_and_change(events, key, set);
            ReplyPlan::of_many(2, write_before)
        }
    })
}

fn write_set(outcomes: &[Outcome], reply: &mut Reply<'_>) {
    match outcomes.first().map(|set| set.refusal) {
        Some(None) => reply.ok(),
        Some(Some(Refusal::Overflow)) => reply.error(OVERFLOW),
        Some(Some(_)) => reply.null(),
        None => reply.error(NO_OUTCOME),
    }
}

fn write_set_number(outcomes: &[Outcome], reply: &mut Reply<'_>) {
    match outcomes.first().map(|set| set.refusal) {
        Some(None) => reply.integer(1),
        Some(Some(Refusal::Overflow)) => reply.error(OVERFLOW),
        Some(Some(_)) => reply.integer(0),
        None => reply.error(NO_OUTCOME),
    }
}

/// Reads the value that the change replaces. Both are one group, so nothing comes in between.
fn read_and_change(events: &mut Events, key: KeyRef<'_>, change: Change) {
    events.group(|events| {
        events.push(key, Change::Read(Field::Value), None, None);
        events.push(key, change, None, None);
    });
}

/// A read followed by a change: replies with the value read.
pub fn write_before(outcomes: &[Outcome], reply: &mut Reply<'_>) {
    match outcomes {
        [_, changed] if changed.refusal == Some(Refusal::Overflow) => reply.error(OVERFLOW),
        [read, _] => text(read, reply),
        _ => reply.error(NO_OUTCOME),
    }
}

pub static GETDEL: Spec = Spec::new("getdel", 2, Execution::Counter(getdel))
    .verb(Verb::Delete)
    .keys(Keys::first("RW access delete"))
    .redis("write fast", "@write @string @fast", "")
    .syntax(&["key"])
    .docs("string", "6.2.0", "O(1)", "Deletes a counter and returns its value.");

fn getdel(call: &mut CommandCall<'_, '_>) -> Result<ReplyPlan, CommandError> {
    let key = call.key(Action::Delete)?;
    let why = call.correction("GETDEL")?;
    let events = call.writes(key)?;
    read_and_change(events, key, Change::Delete(why));
    Ok(ReplyPlan::of_many(2, write_before))
}
