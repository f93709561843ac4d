//! More ways to set and read values: `SETEX`, `PSETEX`, `SETNX`, `MSET`, `MSETNX`, `GETEX`, `STRLEN`.

use tally_core::event::{Change, Condition, Expiry, ExpiryCondition, Field, VERSION_ABSENT};
use tally_core::key::KeyRef;
use tally_core::outcome::{Outcome, Refusal};

use super::call::{CommandCall, CommandError, EventTarget};
use super::counters::{SetReply, read, set_value, write_before};
use super::deadlines::{ExpiryKind, ExpiryOption};
use super::refusal::wrong_arguments;
use super::spec::{Execution, Keys, Spec};
use super::transactions::refuse_ungrouped;
use crate::admission::Action;
use crate::metrics::Verb;
use crate::resp::errors::{NOT_AN_INTEGER, SYNTAX, invalid_expiry};
use crate::resp::reply::Reply;
use crate::resp::reply_plan::{NO_OUTCOME, OVERFLOW, ReplyPlan};
use crate::resp::wire::integer;

pub static SETEX: Spec = Spec::new("setex", 4, Execution::Counter(setex))
    .verb(Verb::Set)
    .keys(Keys::first("OW update"))
    .redis("write denyoom", "@write @string @slow", "")
    .syntax(&["key", "seconds", "value"])
    .docs("string", "2.0.0", "O(1)", "Sets the value of a counter and its time to live in seconds.");

fn setex(call: &mut CommandCall<'_, '_>) -> Result<ReplyPlan, CommandError> {
    set_for(call, b"EX", "setex")
}

pub static PSETEX: Spec = Spec::new("psetex", 4, Execution::Counter(psetex))
    .verb(Verb::Set)
    .keys(Keys::first("OW update"))
    .redis("write denyoom", "@write @string @slow", "")
    .syntax(&["key", "milliseconds", "value"])
    .docs("string", "2.6.0", "O(1)", "Sets the value of a counter and its time to live in milliseconds.");

fn psetex(call: &mut CommandCall<'_, '_>) -> Result<ReplyPlan, CommandError> {
    set_for(call, b"PX", "psetex")
}

/// `key duration value`
fn set_for(call: &mut CommandCall<'_, '_>, unit: &[u8], command: &'static str) -> Result<ReplyPlan, CommandError> {
    let kind = ExpiryKind::named(unit).ok_or(SYNTAX)?;
    let option = ExpiryOption { kind, count: call.args.get(2).unwrap_or_default() };
    let expiry = Expiry::At(option.deadline(call.context.now, command)?);
    let value = call.integer(3)?;
    set_value(call, value, ("SETEX", Condition::Always), expiry, SetReply::Done)
}

pub static SETNX: Spec = Spec::new("setnx", 3, Execution::Counter(setnx))
    .verb(Verb::Set)
    .keys(Keys::first("OW insert"))
    .redis("write denyoom fast", "@write @string @fast", "")
    .syntax(&["key", "value"])
    .docs("string", "1.0.0", "O(1)", "Sets the value of a counter if it does not exist.");

fn setnx(call: &mut CommandCall<'_, '_>) -> Result<ReplyPlan, CommandError> {
    let value = call.integer(2)?;
    set_value(call, value, ("SETNX", Condition::Absent), Expiry::Never, SetReply::Number)
}

pub static MSET: Spec = Spec::new("mset", -3, Execution::Counter(mset))
    .verb(Verb::Set)
    .keys(Keys { first: 1, last: -1, step: 2, access: "OW update" })
    .redis("write denyoom", "@write @string @slow", "request_policy:multi_shard response_policy:all_succeeded")
    .syntax(&["key value..."])
    .docs("string", "1.0.1", "O(N) for N keys", "Sets the values of several counters in one step.");

fn mset(call: &mut CommandCall<'_, '_>) -> Result<ReplyPlan, CommandError> {
    set_all(call, "mset", OnExisting::Replace)
}

pub static MSETNX: Spec = Spec::new("msetnx", -3, Execution::Counter(msetnx))
    .verb(Verb::Set)
    .keys(Keys { first: 1, last: -1, step: 2, access: "OW insert" })
    .redis("write denyoom", "@write @string @slow", "request_policy:multi_shard response_policy:agg_min")
    .syntax(&["key value..."])
    .docs(
        "string",
        "1.0.1",
        "O(N) for N keys",
        "Sets the values of several counters in one step if none of them exists.",
    );

fn msetnx(call: &mut CommandCall<'_, '_>) -> Result<ReplyPlan, CommandError> {
    set_all(call, "msetnx", OnExisting::SetNone)
}

/// What happens if one of the counters exists.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OnExisting {
    /// It is set like the others.
    Replace,
    /// None is set.
    SetNone,
}

/// Sets all counters as one group. With `SetNone`, guards before them make sure that none exists.
fn set_all(call: &mut CommandCall<'_, '_>, name: &str, existing: OnExisting) -> Result<ReplyPlan, CommandError> {
    if call.args.len().is_multiple_of(2) {
        return Err(String::from_utf8_lossy(&wrong_arguments(name)).into_owned().into());
    }
    let service = &call.context.server.service;
    let (mut sets, mut words) = (Vec::new(), call.args.iter().skip(1));
    while let (Some(key), Some(value)) = (words.next(), words.next()) {
        let key = service.admission().admit(&call.context.caller, key, Action::Correct)?;
        sets.push((key, integer(value).ok_or(NOT_AN_INTEGER)?));
    }
    if matches!(call.target, EventTarget::Turn(_)) {
        let keys: Vec<&[u8]> = sets.iter().map(|(key, _)| key.as_bytes()).collect();
        refuse_ungrouped(service, &keys)?;
    }
    let consistency = sets.iter().map(|(key, _)| service.consistency(*key)).max().unwrap_or_default();
    let why = call.correction(&name.to_ascii_uppercase())?;
    let guards: Vec<(KeyRef<'_>, i64)> = match existing {
        OnExisting::Replace => Vec::new(),
        OnExisting::SetNone => sets.iter().map(|(key, _)| (*key, VERSION_ABSENT)).collect(),
    };
    let count = u32::try_from(sets.len() + guards.len()).unwrap_or(u32::MAX);
    call.writes_with(consistency)?.group_if(&guards, |events| {
        for (key, value) in sets {
            let (when, expiry) = (Condition::Always, Expiry::Never);
            events.push(key, Change::Set { value, when, expiry, why: why.clone() }, None, None);
        }
    });
    Ok(match existing {
        OnExisting::Replace => ReplyPlan::of_many(count, write_all_set),
        OnExisting::SetNone => ReplyPlan::of_many(count, write_all_set_or_none),
    })
}

fn write_all_set(outcomes: &[Outcome], reply: &mut Reply<'_>) {
    match outcomes.iter().find_map(|outcome| outcome.refusal) {
        None => reply.ok(),
        Some(_) => reply.error(OVERFLOW),
    }
}

fn write_all_set_or_none(outcomes: &[Outcome], reply: &mut Reply<'_>) {
    match outcomes.iter().find_map(|outcome| outcome.refusal) {
        None => reply.integer(1),
        Some(Refusal::NotExpected) => reply.integer(0),
        Some(_) => reply.error(OVERFLOW),
    }
}

pub static GETEX: Spec = Spec::new("getex", -2, Execution::Counter(getex))
    .verb(Verb::Expire)
    .keys(Keys::first("RW access update"))
    .redis("write fast", "@write @string @fast", "")
    .syntax(&["key", "[EX seconds | PX milliseconds | EXAT unix-time-seconds | PXAT unix-time-milliseconds | PERSIST]"])
    .docs("string", "6.2.0", "O(1)", "Returns the value of a counter and sets or removes its expiration.");

fn getex(call: &mut CommandCall<'_, '_>) -> Result<ReplyPlan, CommandError> {
    let mut expiry: Option<ExpiryOption<'_>> = None;
    let mut persist = false;
    let mut options = call.args.iter().skip(2);
    while let Some(word) = options.next() {
        if word.eq_ignore_ascii_case(b"PERSIST") && expiry.is_none() {
            persist = true;
        } else if let Some(kind) = ExpiryKind::named(word)
            && !persist
            && expiry.is_none_or(|known| known.kind == kind)
        {
            expiry = Some(ExpiryOption { kind, count: options.next().ok_or(SYNTAX)? });
        } else {
            return Err(SYNTAX.into());
        }
    }
    // As in Redis, an invalid expiry is an error only for a counter that exists.
    let at = match expiry.map(|option| option.deadline(call.context.now, "getex")).transpose() {
        Ok(at) => at,
        Err(error) => {
            let write: fn(bool, &mut Reply<'_>) = match error.text() == NOT_AN_INTEGER {
                true => |exists, reply| if exists { reply.error(NOT_AN_INTEGER) } else { reply.null() },
                false => |exists, reply| if exists { reply.error(invalid_expiry("getex")) } else { reply.null() },
            };
            return read(call, Field::Value, ReplyPlan::Existence(write));
        }
    };
    if at.is_none() && !persist {
        return read(call, Field::Value, ReplyPlan::Text);
    }
    let key = call.key(Action::Expire)?;
    call.writes(key)?.group(|events| {
        events.push(key, Change::Read(Field::Value), None, None);
        events.push(key, Change::Expire { at, when: ExpiryCondition::Always }, None, None);
    });
    Ok(ReplyPlan::of_many(2, write_before))
}

pub static STRLEN: Spec = Spec::new("strlen", 2, Execution::Read(Field::Value, ReplyPlan::of_reads(1, length)))
    .verb(Verb::Read)
    .keys(Keys::first("RO"))
    .redis("readonly fast", "@read @string @fast", "")
    .syntax(&["key"])
    .docs("string", "2.2.0", "O(1)", "Returns how many characters the value of a counter has.");

fn length(outcomes: &[Outcome], reply: &mut Reply<'_>) {
    match outcomes {
        [read] if read.exists => reply.integer(itoa::Buffer::new().format(read.value).len() as i64),
        [_] => reply.integer(0),
        _ => reply.error(NO_OUTCOME),
    }
}
