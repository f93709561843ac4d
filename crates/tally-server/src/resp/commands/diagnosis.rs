//! Commands that monitoring tools and client libraries send to inspect a server: `OBJECT`, `MEMORY`, `SLOWLOG`, `LATENCY`,
//! `ROLE`, `LASTSAVE`, `WAIT`, `ACL`, `MODULE`. What Tally does not record is empty or an error, never made up.

use tally_core::event::{Change, Field};
use tally_core::outcome::Outcome;
use tally_core::surface::counter_memory_bytes;
use tally_core::time::Millis;

use super::call::{CommandCall, CommandError, EngineCall};
use super::introspection::{help, wrong_arguments};
use super::spec::{EngineReply, Execution, ImmediateCall, Keys, Spec};
use crate::admission::Action;
use crate::metrics::Verb;
use crate::resp::errors::{NOT_AN_INTEGER, SYNTAX};
use crate::resp::reply::Reply;
use crate::resp::reply_plan::{NO_OUTCOME, ReplyPlan};
use crate::resp::wire::{Args, integer};
use crate::service::{Failure, Freshness};

const NO_FREQUENCY: &str = "ERR An LFU maxmemory policy is not selected, access frequency not tracked. Please note that \
    when switching between policies at runtime LRU and LFU data will take some time to adjust.";

/// The key after a subcommand.
const SECOND: Keys = Keys { first: 2, last: 2, step: 1, access: "RO" };

pub static OBJECT: Spec = Spec::new("object", -2, Execution::Immediate(wrong_arguments))
    .redis("", "@slow", "")
    .subcommands(&[&OBJECT_ENCODING, &OBJECT_FREQ, &OBJECT_IDLETIME, &OBJECT_HELP])
    .docs("generic", "2.2.3", "Depends on the subcommand.", "A container for object introspection commands.");

pub static OBJECT_ENCODING: Spec = Spec::new("object|encoding", 3, Execution::Counter(encoding))
    .verb(Verb::Read)
    .keys(SECOND)
    .redis("readonly", "@keyspace @read @slow", "nondeterministic_output")
    .syntax(&["key"])
    .docs("generic", "2.2.3", "O(1)", "Returns the encoding of a value, which is int.");

fn encoding(call: &mut CommandCall<'_, '_>) -> Result<ReplyPlan, CommandError> {
    read_second(call, |exists, reply| if exists { reply.bulk(b"int") } else { reply.null() })
}

pub static OBJECT_FREQ: Spec = Spec::new("object|freq", 3, Execution::Counter(frequency))
    .verb(Verb::Read)
    .keys(SECOND)
    .redis("readonly", "@keyspace @read @slow", "nondeterministic_output")
    .syntax(&["key"])
    .docs(
        "generic",
        "4.0.0",
        "O(1)",
        "Refused as in Redis without an LFU policy: how often keys are used is not recorded.",
    );

fn frequency(call: &mut CommandCall<'_, '_>) -> Result<ReplyPlan, CommandError> {
    read_second(call, |exists, reply| if exists { reply.error(NO_FREQUENCY) } else { reply.null() })
}

pub static OBJECT_IDLETIME: Spec = Spec::new("object|idletime", 3, Execution::Engine(idle_time))
    .verb(Verb::Read)
    .keys(SECOND)
    .redis("readonly", "@keyspace @read @slow", "nondeterministic_output")
    .syntax(&["key"])
    .docs(
        "generic",
        "2.2.3",
        "O(1)",
        "Returns the seconds since the last change of a counter; reads are not recorded.",
    );

fn idle_time(call: EngineCall, args: Args<'_>) -> Result<EngineReply, CommandError> {
    let service = &call.server.service;
    let key = service.admission().admit(&call.caller, args.get(2).unwrap_or_default(), Action::Read)?.to_key();
    Ok(Box::pin(async move {
        let readings = call.server.service.read(vec![key], Freshness::default()).await?;
        let reading = readings.first().ok_or(Failure::Recovering)?;
        Ok(call.reply(|reply| match reading.updated_at.filter(|_| reading.exists) {
            Some(updated) => {
                let seconds = call.server.now().since(updated) / 1000;
                reply.integer(i64::try_from(seconds).unwrap_or(i64::MAX));
            }
            None => reply.null(),
        }))
    }))
}

/// Reads the key after the subcommand, and replies depending on whether it exists.
fn read_second(call: &mut CommandCall<'_, '_>, write: WriteExistence) -> Result<ReplyPlan, CommandError> {
    let service = &call.context.server.service;
    let key = service.admission().admit(&call.context.caller, call.args.get(2).unwrap_or_default(), Action::Read)?;
    call.reads(key)?.push(key, Change::Read(Field::Value), None, None);
    Ok(ReplyPlan::Existence(write))
}

type WriteExistence = fn(bool, &mut Reply<'_>);

pub static OBJECT_HELP: Spec = Spec::new("object|help", 2, Execution::Immediate(help))
    .redis("loading stale", "@keyspace @slow", "")
    .docs("generic", "6.2.0", "O(1)", "Lists the subcommands.");

pub static MEMORY: Spec = Spec::new("memory", -2, Execution::Immediate(wrong_arguments))
    .redis("", "@slow", "")
    .subcommands(&[&MEMORY_USAGE, &MEMORY_HELP])
    .docs("server", "4.0.0", "Depends on the subcommand.", "A container for memory diagnostics commands.");

pub static MEMORY_USAGE: Spec = Spec::new("memory|usage", -3, Execution::Engine(memory_usage))
    .verb(Verb::Read)
    .keys(SECOND)
    .redis("readonly", "@read @slow", "")
    .syntax(&["key", "[SAMPLES count]"])
    .docs("server", "4.0.0", "O(1)", "Returns the bytes that a counter takes in memory.");

fn memory_usage(call: EngineCall, args: Args<'_>) -> Result<EngineReply, CommandError> {
    let mut options = args.iter().skip(3);
    while let Some(word) = options.next() {
        let value = options.next().filter(|_| word.eq_ignore_ascii_case(b"SAMPLES")).ok_or(SYNTAX)?;
        if integer(value).ok_or(NOT_AN_INTEGER)? < 0 {
            return Err(SYNTAX.into());
        }
    }
    let service = &call.server.service;
    let key = service.admission().admit(&call.caller, args.get(2).unwrap_or_default(), Action::Read)?.to_key();
    Ok(Box::pin(async move {
        let service = &call.server.service;
        let mut events = service.events()?;
        events.push(key.as_ref(), Change::Read(Field::Expiry), None, None);
        let reads = service.read_events(events, service.consistency(key.as_ref())).await?;
        if !reads.unflushed.is_empty() {
            service.durable(reads.receipt.token.clone()).await?;
        }
        Ok(call.reply(|reply| match reads.receipt.outcomes.first() {
            Some(Outcome { exists: true, value, .. }) => {
                let bytes = counter_memory_bytes(key.as_ref(), u64::try_from(*value).ok().map(Millis));
                reply.integer(i64::try_from(bytes).unwrap_or(i64::MAX));
            }
            Some(_) => reply.null(),
            None => reply.error(NO_OUTCOME),
        }))
    }))
}

pub static MEMORY_HELP: Spec = Spec::new("memory|help", 2, Execution::Immediate(help))
    .redis("loading stale", "@slow", "")
    .docs("server", "4.0.0", "O(1)", "Lists the subcommands.");

pub static ROLE: Spec = Spec::new("role", 1, Execution::Immediate(role))
    .redis("noscript loading stale fast", "@admin @fast @dangerous", "")
    .docs("server", "2.8.12", "O(1)", "Returns that the server is a master without replicas.");

fn role(_: &ImmediateCall<'_>, reply: &mut Reply<'_>) {
    reply.array(3);
    reply.bulk(b"master");
    reply.integer(0);
    reply.array(0);
}

pub static LASTSAVE: Spec = Spec::new("lastsave", 1, Execution::Immediate(last_save))
    .redis("loading stale fast", "@admin @fast @dangerous", "nondeterministic_output")
    .docs(
        "server",
        "1.0.0",
        "O(1)",
        "Returns the server's time: what was acknowledged is on disk, unless it is best-effort.",
    );

fn last_save(call: &ImmediateCall<'_>, reply: &mut Reply<'_>) {
    reply.integer(i64::try_from(call.context.now.0 / 1000).unwrap_or(i64::MAX));
}

pub static WAIT: Spec = Spec::new("wait", 3, Execution::Immediate(wait))
    .redis("noscript", "@slow @connection", "request_policy:all_shards response_policy:agg_min")
    .syntax(&["numreplicas", "timeout"])
    .docs("generic", "3.0.0", "O(1)", "Returns the number of replicas, which is 0, without waiting for more.");

fn wait(call: &ImmediateCall<'_>, reply: &mut Reply<'_>) {
    match (integer(call.arg(1)), integer(call.arg(2))) {
        (None, _) => reply.error(NOT_AN_INTEGER),
        (_, None) => reply.error("ERR timeout is not an integer or out of range"),
        (_, Some(timeout)) if timeout < 0 => reply.error("ERR timeout is negative"),
        _ => reply.integer(0),
    }
}

pub static ACL: Spec = Spec::new("acl", -2, Execution::Immediate(wrong_arguments))
    .redis("", "@slow", "")
    .subcommands(&[&ACL_WHOAMI, &ACL_USERS, &ACL_HELP])
    .docs("server", "6.0.0", "Depends on the subcommand.", "A container for access control commands.");

pub static ACL_WHOAMI: Spec = Spec::new("acl|whoami", 2, Execution::Immediate(who_am_i))
    .redis("noscript loading stale", "@slow", "")
    .docs("server", "6.0.0", "O(1)", "Returns the user of this connection, which is default.");

fn who_am_i(_: &ImmediateCall<'_>, reply: &mut Reply<'_>) {
    reply.bulk(b"default");
}

pub static ACL_USERS: Spec = Spec::new("acl|users", 2, Execution::Immediate(users))
    .redis("admin noscript loading stale", "@admin @slow @dangerous", "")
    .docs("server", "6.0.0", "O(1)", "Lists the users. There is one, default.");

fn users(_: &ImmediateCall<'_>, reply: &mut Reply<'_>) {
    reply.array(1);
    reply.bulk(b"default");
}

pub static ACL_HELP: Spec = Spec::new("acl|help", 2, Execution::Immediate(help))
    .redis("loading stale", "@slow", "")
    .docs("server", "6.0.0", "O(1)", "Lists the subcommands.");

pub static MODULE: Spec = Spec::new("module", -2, Execution::Immediate(wrong_arguments))
    .redis("", "@slow", "")
    .subcommands(&[&MODULE_LIST, &MODULE_HELP])
    .docs("server", "4.0.0", "Depends on the subcommand.", "A container for module commands.");

pub static MODULE_LIST: Spec = Spec::new("module|list", 2, Execution::Immediate(nothing))
    .redis("admin noscript", "@admin @slow @dangerous", "nondeterministic_output_order")
    .docs("server", "4.0.0", "O(1)", "Returns an empty list: there are no modules.");

pub static MODULE_HELP: Spec = Spec::new("module|help", 2, Execution::Immediate(help))
    .redis("loading stale", "@slow", "")
    .docs("server", "5.0.0", "O(1)", "Lists the subcommands.");

fn nothing(_: &ImmediateCall<'_>, reply: &mut Reply<'_>) {
    reply.array(0);
}

pub static SLOWLOG: Spec = Spec::new("slowlog", -2, Execution::Immediate(wrong_arguments))
    .redis("", "@slow", "")
    .subcommands(&[&SLOWLOG_GET, &SLOWLOG_LEN, &SLOWLOG_RESET, &SLOWLOG_HELP])
    .docs("server", "2.2.12", "Depends on the subcommand.", "A container for slow log commands.");

pub static SLOWLOG_GET: Spec = Spec::new("slowlog|get", -2, Execution::Immediate(slow_commands))
    .redis("admin loading stale", "@admin @slow @dangerous", "request_policy:all_nodes nondeterministic_output")
    .syntax(&["[count]"])
    .docs("server", "2.2.12", "O(1)", "Returns an empty list: slow commands are not logged.");

fn slow_commands(call: &ImmediateCall<'_>, reply: &mut Reply<'_>) {
    match (call.args.len(), call.args.get(2).map(integer)) {
        (2, _) => reply.array(0),
        (3, Some(Some(-1..))) => reply.array(0),
        (3, _) => reply.error("ERR count should be greater than or equal to -1"),
        _ => reply.error(super::refusal::wrong_arguments(call.spec.name)),
    }
}

pub static SLOWLOG_LEN: Spec = Spec::new("slowlog|len", 2, Execution::Immediate(zero))
    .redis(
        "admin loading stale",
        "@admin @slow @dangerous",
        "request_policy:all_nodes response_policy:agg_sum nondeterministic_output",
    )
    .docs("server", "2.2.12", "O(1)", "Returns 0: slow commands are not logged.");

fn zero(_: &ImmediateCall<'_>, reply: &mut Reply<'_>) {
    reply.integer(0);
}

pub static SLOWLOG_RESET: Spec = Spec::new("slowlog|reset", 2, Execution::Immediate(done))
    .redis("admin loading stale", "@admin @slow @dangerous", "request_policy:all_nodes response_policy:all_succeeded")
    .docs("server", "2.2.12", "O(1)", "Accepted for compatibility. Slow commands are not logged.");

fn done(_: &ImmediateCall<'_>, reply: &mut Reply<'_>) {
    reply.ok();
}

pub static SLOWLOG_HELP: Spec = Spec::new("slowlog|help", 2, Execution::Immediate(help))
    .redis("loading stale", "@slow", "")
    .docs("server", "6.2.0", "O(1)", "Lists the subcommands.");

pub static LATENCY: Spec = Spec::new("latency", -2, Execution::Immediate(wrong_arguments))
    .redis("", "@slow", "")
    .subcommands(&[&LATENCY_LATEST, &LATENCY_HISTORY, &LATENCY_RESET, &LATENCY_HELP])
    .docs("server", "2.8.13", "Depends on the subcommand.", "A container for latency diagnostics commands.");

pub static LATENCY_LATEST: Spec = Spec::new("latency|latest", 2, Execution::Immediate(nothing))
    .redis(
        "admin noscript loading stale",
        "@admin @slow @dangerous",
        "nondeterministic_output request_policy:all_nodes response_policy:special",
    )
    .docs("server", "2.8.13", "O(1)", "Returns an empty list: spikes are not recorded. Latencies are at /metrics.");

pub static LATENCY_HISTORY: Spec = Spec::new("latency|history", 3, Execution::Immediate(nothing))
    .redis(
        "admin noscript loading stale",
        "@admin @slow @dangerous",
        "nondeterministic_output request_policy:all_nodes response_policy:special",
    )
    .syntax(&["event"])
    .docs("server", "2.8.13", "O(1)", "Returns an empty list: spikes are not recorded. Latencies are at /metrics.");

pub static LATENCY_RESET: Spec = Spec::new("latency|reset", -2, Execution::Immediate(zero))
    .redis(
        "admin noscript loading stale",
        "@admin @slow @dangerous",
        "request_policy:all_nodes response_policy:all_succeeded",
    )
    .syntax(&["[event...]"])
    .docs("server", "2.8.13", "O(1)", "Returns 0: there is nothing to reset.");

pub static LATENCY_HELP: Spec = Spec::new("latency|help", 2, Execution::Immediate(help))
    .redis("loading stale", "@slow", "")
    .docs("server", "2.8.13", "O(1)", "Lists the subcommands.");
