//! Tally's own commands: counting once per request id, and readings that say how fresh they are.

use tally_core::event::{Change, Details};
use tally_core::outcome::{Outcome, Refusal};
use tally_core::reading::Reading;
use tally_core::time::Millis;

use super::call::{CommandCall, CommandError, EngineCall};
use super::spec::{EngineReply, Execution, Keys, Spec};
use crate::admission::{self, Action};
use crate::metrics::Verb;
use crate::policy::Consistency;
use crate::resp::errors::SYNTAX;
use crate::resp::reply::Reply;
use crate::resp::reply_plan::{NO_OUTCOME, OVERFLOW, ReplyPlan};
use crate::resp::wire::Args;
use crate::service::{Failure, Freshness};

pub static TALLY_ADD: Spec = Spec::new("tally.add", -3, Execution::Counter(add))
    .verb(Verb::Increment)
    .keys(Keys::first("RW access update"))
    .redis("write denyoom fast", "@write @string @fast", "")
    .syntax(&["key", "increment", "[ID request-id]"])
    .docs("module", "0.1.0", "O(1)", "Adds a number to a counter, at most once per request ID.");

fn add(call: &mut CommandCall<'_, '_>) -> Result<ReplyPlan, CommandError> {
    let (key, delta) = (call.key(Action::Add)?, call.integer(2)?);
    let mut id = None;
    let mut options = call.args.iter().skip(3);
    while let Some(word) = options.next() {
        let is = |name: &[u8]| word.eq_ignore_ascii_case(name);
        if is(b"ID") && id.is_none() {
            id = Some(admission::request_id(key, options.next().ok_or(SYNTAX)?)?);
        } else if [&b"MEMBER"[..], b"DIM", b"AT"].into_iter().any(is) {
            let name = String::from_utf8_lossy(word).to_uppercase();
            return Err(format!("ERR {name} is not supported yet; nothing was changed").into());
        } else {
            return Err(SYNTAX.into());
        }
    }
    call.writes(key)?.push(key, Change::Add(delta), id, Some(Details::default()));
    Ok(ReplyPlan::of_one(write_added))
}

fn write_added(outcomes: &[Outcome], reply: &mut Reply<'_>) {
    let [changed] = outcomes else { return reply.error(NO_OUTCOME) };
    match changed.refusal {
        Some(Refusal::Overflow) if changed.is_duplicate() => {
            reply.error(
                "ERR increment or decrement would overflow; this ID was refused before, use a new ID to try again",
            );
        }
        Some(Refusal::Overflow) => reply.error(OVERFLOW),
        Some(Refusal::PayloadMismatch) => {
            reply.error("ERR this ID was used before for another key, call, delta or bound; nothing was changed");
        }
        _ => write_change(changed, reply),
    }
}

fn write_change(changed: &Outcome, reply: &mut Reply<'_>) {
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

pub static TALLY_READ: Spec = Spec::new("tally.read", -2, Execution::Engine(read))
    .verb(Verb::Read)
    .keys(Keys::first("RO access"))
    .redis("readonly fast", "@read @string @fast", "")
    .syntax(&["key", "[EXACT]"])
    .docs("module", "0.1.0", "O(1)", "Returns the value of a counter, whether it is exact, and as of when.");

fn read(call: EngineCall, args: Args<'_>) -> Result<EngineReply, CommandError> {
    let key = args.get(1).unwrap_or_default();
    let key = call.server.service.admission().admit(&call.caller, key, Action::Read)?.to_key();
    let freshness = match args.get(2) {
        None if call.watched.reads_min() == Consistency::Exact => Freshness::exact(),
        None => Freshness::default(),
        Some(word) if args.len() == 3 && word.eq_ignore_ascii_case(b"EXACT") => Freshness::exact(),
        Some(_) => return Err(SYNTAX.into()),
    };
    Ok(Box::pin(async move {
        let readings = call.server.service.read(vec![key], freshness).await?;
        let reading = readings.first().ok_or(Failure::Recovering)?;
        Ok(call.reply(|reply| write_reading(reading, reply)))
    }))
}

fn write_reading(reading: &Reading, reply: &mut Reply<'_>) {
    let time = |at: Option<Millis>, reply: &mut Reply<'_>| match at {
        Some(at) => reply.integer(i64::try_from(at.0).unwrap_or(i64::MAX)),
        None => reply.null(),
    };
    reply.map(8);
    reply.bulk(b"value");
    reply.integer(reading.value);
    reply.bulk(b"exists");
    reply.boolean(reading.exists);
    reply.bulk(b"exact");
    reply.boolean(reading.exact);
    reply.bulk(b"as_of");
    reply.integer(i64::try_from(reading.as_of.0).unwrap_or(i64::MAX));
    reply.bulk(b"staleness_ms");
    reply.integer(i64::try_from(reading.staleness_ms).unwrap_or(i64::MAX));
    reply.bulk(b"created_at");
    time(reading.created_at, reply);
    reply.bulk(b"updated_at");
    time(reading.updated_at, reply);
    reply.bulk(b"expires_at");
    time(reading.expires_at, reply);
}
