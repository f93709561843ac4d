//! Counting within bounds: `INCREX`.

use tally_core::event::{AddExpiry, Bounds, Change, Details, OnBound};
use tally_core::outcome::{Outcome, Refusal};

use super::call::{CommandCall, CommandError};
use super::deadlines::{ExpiryKind, ExpiryOption};
use super::spec::{Execution, Keys, Spec};
use crate::admission::Action;
use crate::metrics::Verb;
use crate::resp::errors::SYNTAX;
use crate::resp::reply::Reply;
use crate::resp::reply_plan::{NO_OUTCOME, ReplyPlan};
use crate::resp::wire::{Args, integer};

const LIFETIME: &str =
    "[EX seconds | PX milliseconds | EXAT unix-time-seconds | PXAT unix-time-milliseconds | PERSIST]";

pub static INCREX: Spec = Spec::new("increx", -2, Execution::Counter(increx))
    .verb(Verb::Increment)
    .keys(Keys::first("RW access update"))
    .redis("write denyoom fast", "@write @string @fast", "")
    .syntax(&["key", "[BYINT increment]", "[LBOUND lowest]", "[UBOUND highest]", "[SATURATE]", LIFETIME, "[ENX]"])
    .docs("string", "0.1.0", "O(1)", "Increments a counter within bounds and optionally sets its expiration.");

/// The options as sent.
#[derive(Default)]
struct IncrexOptions<'a> {
    by: Option<&'a [u8]>,
    floor: Option<&'a [u8]>,
    ceiling: Option<&'a [u8]>,
    expiry: Option<ExpiryOption<'a>>,
    saturate: bool,
    persist: bool,
    only_if_none: bool,
}

impl<'a> IncrexOptions<'a> {
    /// `[BYINT n] [LBOUND l] [UBOUND u] [SATURATE] [EX n | PX n | EXAT n | PXAT n | PERSIST] [ENX]`
    fn parse(args: Args<'a>) -> Result<Self, CommandError> {
        let mut found = IncrexOptions::default();
        let mut words = args.iter().skip(2);
        while let Some(word) = words.next() {
            let is = |name: &[u8]| word.eq_ignore_ascii_case(name);
            if is(b"BYFLOAT") {
                return Err("ERR BYFLOAT is not supported: counters are 64-bit integers".into());
            } else if is(b"BYINT") {
                once(&mut found.by, words.next())?;
            } else if is(b"LBOUND") {
                once(&mut found.floor, words.next())?;
            } else if is(b"UBOUND") {
                once(&mut found.ceiling, words.next())?;
            } else if is(b"SATURATE") && !found.saturate {
                found.saturate = true;
            } else if is(b"PERSIST") && !found.persist && found.expiry.is_none() {
                found.persist = true;
            } else if is(b"ENX") && !found.only_if_none {
                found.only_if_none = true;
            } else if let Some(kind) = ExpiryKind::named(word)
                && !found.persist
                && found.expiry.is_none()
            {
                found.expiry = Some(ExpiryOption { kind, count: words.next().ok_or(SYNTAX)? });
            } else {
                return Err(SYNTAX.into());
            }
        }
        if found.persist && found.only_if_none {
            return Err(SYNTAX.into());
        }
        if found.only_if_none && found.expiry.is_none() {
            return Err("ERR ENX flag requires an expiration".into());
        }
        Ok(found)
    }
}

/// Takes the value of an option that may be given once.
fn once<'a>(slot: &mut Option<&'a [u8]>, value: Option<&'a [u8]>) -> Result<(), CommandError> {
    if slot.is_some() || value.is_none() {
        return Err(SYNTAX.into());
    }
    *slot = value;
    Ok(())
}

fn number(text: Option<&[u8]>, name: &str) -> Result<Option<i64>, CommandError> {
    let Some(text) = text else { return Ok(None) };
    match integer(text) {
        Some(number) => Ok(Some(number)),
        None => Err(format!("ERR {name} is not an integer or out of range").into()),
    }
}

fn increx(call: &mut CommandCall<'_, '_>) -> Result<ReplyPlan, CommandError> {
    let options = IncrexOptions::parse(call.args)?;
    let delta = number(options.by, "Increment")?.unwrap_or(1);
    let (floor, ceiling) = (number(options.floor, "LBOUND")?, number(options.ceiling, "UBOUND")?);
    if floor > ceiling && ceiling.is_some() {
        return Err("ERR LBOUND can't be greater than UBOUND".into());
    }
    let expiry = match options.expiry {
        Some(option) => {
            let at = Some(option.deadline(call.context.now, "increx")?);
            Some(AddExpiry { at, only_if_none: options.only_if_none })
        }
        None if options.persist => Some(AddExpiry { at: None, only_if_none: false }),
        None => None,
    };
    let on_bound = if options.saturate { OnBound::Clamp } else { OnBound::RefuseOutside };
    let bounds = Some(Bounds { floor, ceiling, on_bound });
    let key = call.key(Action::Add)?;
    let details = Details { bounds, expiry, ..Details::default() };
    call.writes(key)?.push(key, Change::Add(delta), None, Some(details));
    Ok(ReplyPlan::of_one(write_bounded))
}

/// The value afterwards and the part that was applied.
fn write_bounded(outcomes: &[Outcome], reply: &mut Reply<'_>) {
    match outcomes {
        [changed] if changed.refusal == Some(Refusal::Overflow) => reply.error("ERR applied increment would overflow"),
        [changed] => {
            reply.array(2);
            reply.integer(changed.value);
            reply.integer(changed.applied);
        }
        _ => reply.error(NO_OUTCOME),
    }
}
