//! Commands that write what they read: `RENAME`, `RENAMENX`, `COPY`.
//!
//! The engine has no event that moves a value from one counter to another. So the source is read, and its value is
//! written behind a guard: if the source has changed in between, nothing is written, and both steps are retried.

use tally_core::batch::Events;
use tally_core::event::{Change, Condition, Correction, Deadline, Expiry, Field, VERSION_ABSENT};
use tally_core::key::{Key, KeyRef};
use tally_core::outcome::{Outcome, Refusal};
use tally_core::surface::EngineError;
use tally_core::time::Millis;

use super::call::{CommandError, EngineCall};
use super::database::{OUT_OF_RANGE, SAME_OBJECT};
use super::spec::{EngineReply, Execution, Keys, Spec};
use super::transactions::refuse_ungrouped;
use crate::admission::{self, Action};
use crate::limits::RESP_COPY_TRIES_MAX;
use crate::metrics::Verb;
use crate::policy::Consistency;
use crate::resp::errors::{NOT_AN_INTEGER, SYNTAX};
use crate::resp::wire::{Args, integer};
use crate::service::Failure;

const NO_SUCH_KEY: &str = "ERR no such key";
const TOO_BUSY: &str = "ERR the source kept changing; nothing was changed: try again";

pub static RENAME: Spec = Spec::new("rename", 3, Execution::Engine(rename))
    .verb(Verb::Set)
    .keys(Keys::first("RW access delete"))
    .second_key("OW update")
    .redis("write", "@keyspace @write @slow", "")
    .syntax(&["key", "newkey"])
    .docs("generic", "1.0.0", "O(1)", "Moves the value and expiration of a counter to another key.");

fn rename(call: EngineCall, args: Args<'_>) -> Result<EngineReply, CommandError> {
    start(call, args, CopyKind { name: "RENAME", removes_source: true, replaces: true })
}

pub static RENAMENX: Spec = Spec::new("renamenx", 3, Execution::Engine(renamenx))
    .verb(Verb::Set)
    .keys(Keys::first("RW access delete"))
    .second_key("OW insert")
    .redis("write fast", "@keyspace @write @fast", "")
    .syntax(&["key", "newkey"])
    .docs("generic", "1.0.0", "O(1)", "Moves the value and expiration of a counter to a key that does not exist.");

fn renamenx(call: EngineCall, args: Args<'_>) -> Result<EngineReply, CommandError> {
    start(call, args, CopyKind { name: "RENAMENX", removes_source: true, replaces: false })
}

pub static COPY: Spec = Spec::new("copy", -3, Execution::Engine(copy))
    .verb(Verb::Set)
    .keys(Keys::first("RO access"))
    .second_key("OW update")
    .redis("write denyoom", "@keyspace @write @slow", "")
    .syntax(&["source", "destination", "[DB destination-db]", "[REPLACE]"])
    .docs("generic", "6.2.0", "O(1)", "Copies the value and expiration of a counter to another key.");

fn copy(call: EngineCall, args: Args<'_>) -> Result<EngineReply, CommandError> {
    let mut replaces = false;
    let mut options = args.iter().skip(3);
    while let Some(word) = options.next() {
        if word.eq_ignore_ascii_case(b"REPLACE") {
            replaces = true;
        } else if word.eq_ignore_ascii_case(b"DB") && options.len() > 0 {
            match integer(options.next().unwrap_or_default()) {
                Some(0) => {}
                Some(_) => return Err(OUT_OF_RANGE.into()),
                None => return Err(NOT_AN_INTEGER.into()),
            }
        } else {
            return Err(SYNTAX.into());
        }
    }
    if args.get(1) == args.get(2) {
        return Err(SAME_OBJECT.into());
    }
    start(call, args, CopyKind { name: "COPY", removes_source: false, replaces })
}

/// What one of the commands does.
#[derive(Clone, Copy)]
struct CopyKind {
    name: &'static str,
    removes_source: bool,
    /// Whether a destination that exists is overwritten.
    replaces: bool,
}

/// The result of a copy.
enum Copied {
    Done,
    /// The source does not exist.
    NoSource,
    /// The destination already exists.
    Exists,
}

fn start(call: EngineCall, args: Args<'_>, kind: CopyKind) -> Result<EngineReply, CommandError> {
    let service = &call.server.service;
    let removal = if kind.removes_source { Action::Delete } else { Action::Read };
    let [from, to] = [(1, removal), (2, Action::Correct)]
        .map(|(at, action)| service.admission().admit(&call.caller, args.get(at).unwrap_or_default(), action));
    let (from, to) = (from?.to_key(), to?.to_key());
    refuse_ungrouped(service, &[from.as_bytes(), to.as_bytes()])?;
    let why = admission::correction(&call.caller, kind.name)?;
    Ok(Box::pin(async move {
        for _ in 0..RESP_COPY_TRIES_MAX {
            if let Some(copied) = try_copy(&call, (&from, &to), kind, &why).await? {
                return Ok(call.reply(|reply| match (copied, kind.name) {
                    (Copied::Done, "RENAME") => reply.ok(),
                    (Copied::Done, _) => reply.integer(1),
                    (Copied::NoSource, "COPY") | (Copied::Exists, _) => reply.integer(0),
                    (Copied::NoSource, _) => reply.error(NO_SUCH_KEY),
                }));
            }
        }
        Ok(call.reply(|reply| reply.error(TOO_BUSY)))
    }))
}

/// Reads the source and writes the destination, if the source is still the same. `None` if it is not.
async fn try_copy(
    call: &EngineCall,
    (from, to): (&Key, &Key),
    kind: CopyKind,
    why: &Correction,
) -> Result<Option<Copied>, Failure> {
    let service = &call.server.service;
    let mut events = service.events()?;
    for field in [Field::Version, Field::Value, Field::Expiry, Field::Version] {
        events.push(from.as_ref(), Change::Read(field), None, None);
    }
    let reads = service.read_events(events, Consistency::Exact).await?;
    if !reads.unflushed.is_empty() {
        service.durable(reads.receipt.token.clone()).await?;
    }
    let [before, value, expiry, version] = reads.receipt.outcomes[..] else { return Ok(None) };
    if before.value != version.value {
        return Ok(None);
    }
    if !version.exists {
        return Ok(Some(Copied::NoSource));
    }
    if from == to {
        return Ok(Some(if kind.replaces { Copied::Done } else { Copied::Exists }));
    }
    let expiry = match u64::try_from(expiry.value) {
        Ok(at) => Expiry::At(Deadline::At(Millis(at))),
        Err(_) => Expiry::Never,
    };
    let set = Change::Set { value: value.value, when: Condition::Always, expiry, why: why.clone() };
    let mut guards: Vec<(KeyRef<'_>, i64)> = vec![(from.as_ref(), version.value)];
    if !kind.replaces {
        guards.push((to.as_ref(), VERSION_ABSENT));
    }
    let mut events: Events = service.events()?;
    events.group_if(&guards, |events| {
        events.push(to.as_ref(), set, None, None);
        if kind.removes_source {
            events.push(from.as_ref(), Change::Delete(why.clone()), None, None);
        }
    });
    let receipt = service.submit(events, Consistency::Exact).await?;
    copied(&receipt.outcomes, guards.len())
}

/// The result, given the outcomes of guards and changes.
fn copied(outcomes: &[Outcome], guards: usize) -> Result<Option<Copied>, Failure> {
    let refused = outcomes.iter().position(|outcome| outcome.refusal.is_some());
    match refused.and_then(|at| Some((at, outcomes.get(at)?.refusal?))) {
        None => Ok(Some(Copied::Done)),
        Some((_, Refusal::NoRoom)) => Err(EngineError::DiskFull.into()),
        Some((0, _)) => Ok(None),
        Some((at, _)) if at < guards => Ok(Some(Copied::Exists)),
        Some(_) => Err(EngineError::OutcomeUnknown("a change behind a guard was refused".into()).into()),
    }
}
