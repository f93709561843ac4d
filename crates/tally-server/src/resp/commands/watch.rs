//! Optimistic transactions: `WATCH` remembers the versions of counters, and `EXEC` applies nothing if one has changed.
//!
//! The check is part of the transaction: `EXEC` puts a guard for each counter before its events, and the engine applies
//! both as one group. So nothing can come between the check and the changes.

use tally_core::event::{Change, Field};
use tally_core::key::Key;

use super::call::{CommandError, EngineCall};
use super::spec::{EngineReply, Execution, ImmediateCall, Keys, Spec};
use crate::admission::Action;
use crate::limits::RESP_WATCHED_KEYS_MAX;
use crate::metrics::Verb;
use crate::policy::Consistency;
use crate::resp::reply::Reply;
use crate::resp::wire::Args;
use crate::service::Failure;

/// `WATCH` while a transaction is queued.
pub const INSIDE_MULTI: &str = "ERR WATCH inside MULTI is not allowed";

pub static WATCH: Spec = Spec::new("watch", -2, Execution::Engine(watch))
    .verb(Verb::Read)
    .keys(Keys::all("RO"))
    .redis("noscript loading stale fast allow_busy", "@fast @transaction", "")
    .syntax(&["key..."])
    .docs("transactions", "2.2.0", "O(N) for N keys", "Makes the next transaction depend on counters not changing.");

fn watch(call: EngineCall, args: Args<'_>) -> Result<EngineReply, CommandError> {
    let mut keys: Vec<Key> = Vec::new();
    for key in args.iter().skip(1) {
        let key = call.server.service.admission().admit(&call.caller, key, Action::Read)?.to_key();
        if !call.watched.contains(&key) && !keys.contains(&key) {
            keys.push(key);
        }
    }
    if call.watched.len() + keys.len() > RESP_WATCHED_KEYS_MAX {
        return Err(format!("ERR a connection can watch at most {RESP_WATCHED_KEYS_MAX} keys").into());
    }
    Ok(Box::pin(async move { run_watch(&call, keys).await }))
}

async fn run_watch(call: &EngineCall, keys: Vec<Key>) -> Result<Vec<u8>, Failure> {
    let service = &call.server.service;
    let mut events = service.events()?;
    keys.iter().for_each(|key| events.push(key.as_ref(), Change::Read(Field::Version), None, None));
    if !events.is_empty() {
        // A version that a crash could undo is harmless, because the crash also ends the connection.
        let reads = service.read_events(events, Consistency::Exact).await?;
        for (key, read) in keys.into_iter().zip(&reads.receipt.outcomes) {
            call.watched.add(key, read.value);
        }
    }
    Ok(call.reply(|reply| reply.ok()))
}

pub static UNWATCH: Spec = Spec::new("unwatch", 1, Execution::Immediate(unwatch))
    .redis("noscript loading stale fast allow_busy", "@fast @transaction", "")
    .docs("transactions", "2.2.0", "O(1)", "Forgets all watched counters.");

fn unwatch(call: &ImmediateCall<'_>, reply: &mut Reply<'_>) {
    call.context.watched.clear();
    reply.ok();
}
