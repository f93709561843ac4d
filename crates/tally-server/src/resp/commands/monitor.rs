//! `MONITOR`, and how requests are executed while there are monitors.

use super::call::CallContext;
use super::dispatch::{dispatch, is_executed, is_queued};
use super::spec::{Execution, NextStep, SessionCall, Spec};
use super::table::resolve;
use super::transactions;
use crate::limits::RESP_MONITORS_MAX;
use crate::resp::monitors::MonitorLines;
use crate::resp::session::{Session, Transaction};
use crate::resp::turn::{CommandStatus, Turn};
use crate::resp::wire::{Args, Limits, Parsed, Parser, Sent};

/// A monitor is a kind of replica in Redis.
const NO_KEYSPACE: &str = "ERR Replica can't interact with the keyspace";

pub static MONITOR: Spec = Spec::new("monitor", 1, Execution::Handshake(monitor))
    .redis("admin noscript loading stale", "@admin @slow @dangerous", "")
    .docs("server", "1.0.0", "O(1)", "Shows the commands of all connections as they arrive.");

/// The reply comes before the first line. A second `MONITOR` gets none, as in Redis.
fn monitor(call: &mut SessionCall<'_>) -> NextStep {
    if call.session.monitor.is_some() {
        return NextStep::Continue;
    }
    call.session.monitor = call.context.server.monitors.add(call.context.client);
    match call.session.monitor {
        Some(_) => call.reply(|reply| reply.ok()),
        None => call.reply(|reply| {
            reply.error(format!("ERR there are already {RESP_MONITORS_MAX} monitors, the maximum; close one first"));
        }),
    }
    NextStep::Continue
}

/// Executes a request like `dispatch`, and records it for the monitors.
#[cold]
pub fn dispatch_monitored(
    context: &CallContext<'_>,
    session: &mut Session,
    (args, request): (Args<'_>, &[u8]),
    turn: &mut Turn,
    lines: &mut MonitorLines<'_>,
) -> NextStep {
    if let Ok(spec) = resolve(&args)
        && is_executed(context, session, spec)
    {
        if session.monitor.is_some() && uses_keyspace(spec) {
            turn.count((spec.name, spec.verb), CommandStatus::Refused, 1);
            return transactions::refuse(session, turn, NO_KEYSPACE);
        }
        if !is_queued(session, spec) {
            record(context, session, (spec, &args), lines);
        }
    }
    // Equal requests behind it are executed separately, so that each is recorded.
    dispatch(context, session, (args, Sent { request, behind: &[] }), turn)
}

/// As in Redis, the commands of a transaction are shown with `EXEC`, and administrative commands are not shown.
fn record(
    context: &CallContext<'_>,
    session: &Session,
    (spec, args): (&Spec, &Args<'_>),
    lines: &mut MonitorLines<'_>,
) {
    if let Some(transaction) = session.transaction.as_ref().filter(|queued| spec.name == "exec" && !queued.aborted) {
        record_queued(context, transaction, lines);
    }
    record_one(context, spec, args, lines);
}

fn record_queued(context: &CallContext<'_>, transaction: &Transaction, lines: &mut MonitorLines<'_>) {
    let (mut parser, mut at) = (Parser::default(), 0);
    while let Parsed::Request(args, bytes) =
        parser.next(transaction.requests.get(at..).unwrap_or_default(), &Limits::AUTHENTICATED)
    {
        at += bytes;
        if let Ok(spec) = resolve(&args) {
            record_one(context, spec, &args, lines);
        }
    }
}

fn record_one(context: &CallContext<'_>, spec: &Spec, args: &Args<'_>, lines: &mut MonitorLines<'_>) {
    if has_flag(spec, &["admin"]) {
        return;
    }
    let auth_option = args.iter().position(|word| spec.name == "hello" && word.eq_ignore_ascii_case(b"AUTH"));
    lines.add(context.now, context.client.peer, args, |at| match auth_option {
        Some(option) => at == option + 1 || at == option + 2,
        None => spec.name == "auth" && at > 0,
    });
}

fn uses_keyspace(spec: &Spec) -> bool {
    has_flag(spec, &["write", "readonly"])
}

fn has_flag(spec: &Spec, flags: &[&str]) -> bool {
    spec.flags.split(' ').any(|flag| flags.contains(&flag))
}
