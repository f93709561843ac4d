//! Commands that set and read the expiry of a counter.

use tally_core::event::{Change, Deadline, ExpiryCondition, Field};
use tally_core::outcome::Outcome;

use super::call::{CommandCall, CommandError};
use super::deadlines::{TimeOrigin, TimeUnit, deadline};
use super::spec::{Execution, Keys, Spec};
use crate::admission::Action;
use crate::metrics::Verb;
use crate::resp::errors::shown;
use crate::resp::reply::Reply;
use crate::resp::reply_plan::{NO_OUTCOME, ReplyPlan};
use crate::resp::wire::Args;

const CONDITION: &str = "[NX | XX | GT | LT]";
/// The reply for a key that does not exist.
const NO_KEY: i64 = -2;

pub static EXPIRE: Spec = Spec::new("expire", -3, Execution::Counter(expire))
    .verb(Verb::Expire)
    .keys(Keys::first("RW update"))
    .redis("write fast", "@keyspace @write @fast", "")
    .syntax(&["key", "seconds", CONDITION])
    .docs("generic", "1.0.0", "O(1)", "Sets the time to live of a counter in seconds.");

fn expire(call: &mut CommandCall<'_, '_>) -> Result<ReplyPlan, CommandError> {
    expire_at(call, TimeUnit::Seconds, TimeOrigin::Batch(call.context.now), "expire")
}

pub static PEXPIRE: Spec = Spec::new("pexpire", -3, Execution::Counter(pexpire))
    .verb(Verb::Expire)
    .keys(Keys::first("RW update"))
    .redis("write fast", "@keyspace @write @fast", "")
    .syntax(&["key", "milliseconds", CONDITION])
    .docs("generic", "2.6.0", "O(1)", "Sets the time to live of a counter in milliseconds.");

fn pexpire(call: &mut CommandCall<'_, '_>) -> Result<ReplyPlan, CommandError> {
    expire_at(call, TimeUnit::Millis, TimeOrigin::Batch(call.context.now), "pexpire")
}

pub static EXPIREAT: Spec = Spec::new("expireat", -3, Execution::Counter(expireat))
    .verb(Verb::Expire)
    .keys(Keys::first("RW update"))
    .redis("write fast", "@keyspace @write @fast", "")
    .syntax(&["key", "unix-time-seconds", CONDITION])
    .docs("generic", "1.2.0", "O(1)", "Sets the expiration of a counter as a Unix timestamp in seconds.");

fn expireat(call: &mut CommandCall<'_, '_>) -> Result<ReplyPlan, CommandError> {
    expire_at(call, TimeUnit::Seconds, TimeOrigin::Epoch, "expireat")
}

pub static PEXPIREAT: Spec = Spec::new("pexpireat", -3, Execution::Counter(pexpireat))
    .verb(Verb::Expire)
    .keys(Keys::first("RW update"))
    .redis("write fast", "@keyspace @write @fast", "")
    .syntax(&["key", "unix-time-milliseconds", CONDITION])
    .docs("generic", "2.6.0", "O(1)", "Sets the expiration of a counter as a Unix timestamp in milliseconds.");

fn pexpireat(call: &mut CommandCall<'_, '_>) -> Result<ReplyPlan, CommandError> {
    expire_at(call, TimeUnit::Millis, TimeOrigin::Epoch, "pexpireat")
}

fn expire_at(
    call: &mut CommandCall<'_, '_>,
    unit: TimeUnit,
    origin: TimeOrigin,
    command: &'static str,
) -> Result<ReplyPlan, CommandError> {
    let when = condition(call.args)?;
    let at = deadline(unit, call.integer(2)?, origin, command)?;
    change_expiry(call, Some(at), when)
}

fn condition(args: Args<'_>) -> Result<ExpiryCondition, CommandError> {
    let (mut nx, mut xx, mut gt, mut lt) = (false, false, false, false);
    for word in args.iter().skip(3) {
        let options: [(&[u8], &mut bool); 4] = [(b"NX", &mut nx), (b"XX", &mut xx), (b"GT", &mut gt), (b"LT", &mut lt)];
        match options.into_iter().find(|(name, _)| word.eq_ignore_ascii_case(name)) {
            Some((_, flag)) => *flag = true,
            None => return Err(format!("ERR Unsupported option {}", shown(word)).into()),
        }
    }
    Ok(match (nx, xx, gt, lt) {
        (true, false, false, false) => ExpiryCondition::IfNone,
        (true, ..) => return Err("ERR NX and XX, GT or LT options at the same time are not compatible".into()),
        (_, _, true, true) => return Err("ERR GT and LT options at the same time are not compatible".into()),
        (_, true, false, true) => ExpiryCondition::IfSomeAndEarlier,
        (_, _, true, _) => ExpiryCondition::IfLater,
        (_, _, _, true) => ExpiryCondition::IfEarlier,
        (_, true, ..) => ExpiryCondition::IfSome,
        _ => ExpiryCondition::Always,
    })
}

pub static PERSIST: Spec = Spec::new("persist", 2, Execution::Counter(persist))
    .verb(Verb::Expire)
    .keys(Keys::first("RW update"))
    .redis("write fast", "@keyspace @write @fast", "")
    .syntax(&["key"])
    .docs("generic", "2.2.0", "O(1)", "Removes the expiration of a counter.");

fn persist(call: &mut CommandCall<'_, '_>) -> Result<ReplyPlan, CommandError> {
    change_expiry(call, None, ExpiryCondition::Always)
}

fn change_expiry(
    call: &mut CommandCall<'_, '_>,
    at: Option<Deadline>,
    when: ExpiryCondition,
) -> Result<ReplyPlan, CommandError> {
    let key = call.key(Action::Expire)?;
    call.writes(key)?.push(key, Change::Expire { at, when }, None, None);
    Ok(ReplyPlan::of_one(write_changed))
}

/// 1 if the expiry was changed, otherwise 0.
fn write_changed(outcomes: &[Outcome], reply: &mut Reply<'_>) {
    match outcomes {
        [changed] => reply.integer(changed.applied),
        _ => reply.error(NO_OUTCOME),
    }
}

pub static TTL: Spec = Spec::new("ttl", 2, Execution::Read(Field::Expiry, ReplyPlan::of_reads(1, seconds_left)))
    .verb(Verb::Read)
    .keys(Keys::first("RO access"))
    .redis("readonly fast", "@keyspace @read @fast", "nondeterministic_output")
    .syntax(&["key"])
    .docs("generic", "1.0.0", "O(1)", "Returns the remaining time to live of a counter in seconds.");

fn seconds_left(outcomes: &[Outcome], reply: &mut Reply<'_>) {
    TtlFormat::SecondsLeft.write(outcomes, reply);
}

pub static PTTL: Spec = Spec::new("pttl", 2, Execution::Read(Field::Expiry, ReplyPlan::of_reads(1, millis_left)))
    .verb(Verb::Read)
    .keys(Keys::first("RO access"))
    .redis("readonly fast", "@keyspace @read @fast", "nondeterministic_output")
    .syntax(&["key"])
    .docs("generic", "2.6.0", "O(1)", "Returns the remaining time to live of a counter in milliseconds.");

fn millis_left(outcomes: &[Outcome], reply: &mut Reply<'_>) {
    TtlFormat::MillisLeft.write(outcomes, reply);
}

pub static EXPIRETIME: Spec =
    Spec::new("expiretime", 2, Execution::Read(Field::Expiry, ReplyPlan::of_reads(1, at_second)))
        .verb(Verb::Read)
        .keys(Keys::first("RO access"))
        .redis("readonly fast", "@keyspace @read @fast", "")
        .syntax(&["key"])
        .docs("generic", "7.0.0", "O(1)", "Returns the expiration of a counter as a Unix timestamp in seconds.");

fn at_second(outcomes: &[Outcome], reply: &mut Reply<'_>) {
    TtlFormat::AtSecond.write(outcomes, reply);
}

pub static PEXPIRETIME: Spec =
    Spec::new("pexpiretime", 2, Execution::Read(Field::Expiry, ReplyPlan::of_reads(1, at_milli)))
        .verb(Verb::Read)
        .keys(Keys::first("RO access"))
        .redis("readonly fast", "@keyspace @read @fast", "")
        .syntax(&["key"])
        .docs("generic", "7.0.0", "O(1)", "Returns the expiration of a counter as a Unix timestamp in milliseconds.");

fn at_milli(outcomes: &[Outcome], reply: &mut Reply<'_>) {
    TtlFormat::AtMilli.write(outcomes, reply);
}

/// How an expiry is returned.
#[derive(Clone, Copy)]
enum TtlFormat {
    /// Seconds left.
    SecondsLeft,
    /// Milliseconds left.
    MillisLeft,
    /// Seconds since the epoch.
    AtSecond,
    /// Milliseconds since the epoch.
    AtMilli,
}

impl TtlFormat {
    fn write(self, outcomes: &[Outcome], reply: &mut Reply<'_>) {
        match outcomes {
            [read] => reply.integer(self.of(read)),
            _ => reply.error(NO_OUTCOME),
        }
    }

    fn of(self, read: &Outcome) -> i64 {
        if !read.exists {
            return NO_KEY;
        }
        // Already -1 where there is no expiry.
        if read.value < 0 {
            return read.value;
        }
        let now = i64::try_from(read.at.0).unwrap_or(i64::MAX);
        let left = read.value.saturating_sub(now).max(0);
        let rounded = |millis: i64| millis.saturating_add(500) / 1000;
        match self {
            TtlFormat::SecondsLeft => rounded(left),
            TtlFormat::MillisLeft => left,
            TtlFormat::AtSecond => rounded(read.value),
            TtlFormat::AtMilli => read.value,
        }
    }
}
