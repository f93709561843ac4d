//! Executes one request: finds its command, and runs it or queues it for a transaction.

use super::call::{CallContext, CommandCall, EngineCall, EventTarget};
use super::spec::{Execution, ImmediateCall, NextStep, SessionCall, Spec};
use super::table::{COMMANDS, resolve};
use super::{counters, database, transactions};
use crate::metrics::Verb;
use crate::resp::errors::failure;
use crate::resp::session::Session;
use crate::resp::turn::{CommandStatus, Turn};
use crate::resp::wire::{Args, Sent};
use crate::service::Failure;

/// Executes a request and, if it is a plain add, also the equal requests that directly follow it.
#[inline]
pub fn dispatch(
    context: &CallContext<'_>,
    session: &mut Session,
    (args, sent): (Args<'_>, Sent<'_>),
    turn: &mut Turn,
) -> NextStep {
    let spec = match resolve(&args) {
        Ok(spec) => spec,
        Err(text) => return refuse_unknown(context, session, args, turn, &text),
    };
    if is_loading(context, spec) {
        return refuse_loading(session, spec, turn);
    }
    if is_elsewhere(session, spec) {
        return database::refuse(session, spec, turn);
    }
    if is_queued(session, spec) {
        return transactions::queue(session, spec, args, turn);
    }
    let mut call = CommandCall { args, context, target: EventTarget::Turn(turn) };
    let planned = match spec.execution {
        Execution::Add(step) => counters::add(&mut call, step, Some(sent)),
        Execution::Read(field, plan) => counters::read(&mut call, field, plan).map(|plan| (plan, 1)),
        Execution::Counter(run) => run(&mut call).map(|plan| (plan, 1)),
        _ => return run_other(context, session, spec, args, turn),
    };
    match planned {
        Ok((plan, times)) => {
            turn.count((spec.name, spec.verb), CommandStatus::Accepted, times);
            turn.plan(plan);
            NextStep::SkipRepeats(times as usize - 1)
        }
        Err(error) => {
            turn.count((spec.name, spec.verb), error.status(), 1);
            turn.reply(session.version, |reply| reply.error(error.text().as_bytes()));
            NextStep::Continue
        }
    }
}

/// Whether the command is refused because the server has not recovered yet.
#[inline]
fn is_loading(context: &CallContext<'_>, spec: &Spec) -> bool {
    context.server.service.is_recovering() && !spec.works_while_loading()
}

/// Whether the command is refused because the selected database does not exist.
#[inline]
fn is_elsewhere(session: &Session, spec: &Spec) -> bool {
    session.refused_database.is_some() && !database::is_allowed(session, spec)
}

/// Whether the command is added to the queued transaction.
#[inline]
pub fn is_queued(session: &Session, spec: &Spec) -> bool {
    session.transaction.is_some() && !matches!(spec.execution, Execution::Session(_))
}

/// Whether the command is executed or queued, rather than refused.
pub fn is_executed(context: &CallContext<'_>, session: &Session, spec: &Spec) -> bool {
    !is_loading(context, spec) && !is_elsewhere(session, spec)
}

/// As in Redis, only commands that need no counters are executed before the server has recovered.
#[cold]
fn refuse_loading(session: &mut Session, spec: &Spec, turn: &mut Turn) -> NextStep {
    turn.count((spec.name, spec.verb), CommandStatus::Failed, 1);
    transactions::refuse(session, turn, failure(&Failure::Recovering))
}

#[cold]
fn refuse_unknown(
    context: &CallContext<'_>,
    session: &mut Session,
    args: Args<'_>,
    turn: &mut Turn,
    text: &[u8],
) -> NextStep {
    turn.count(("", Verb::Other), CommandStatus::Refused, 1);
    if args.name().eq_ignore_ascii_case(b"EXEC") {
        return transactions::refuse_exec(context, session, turn, text);
    }
    transactions::refuse(session, turn, text)
}

/// Executes a command that adds no events to the turn.
fn run_other(
    context: &CallContext<'_>,
    session: &mut Session,
    spec: &'static Spec,
    args: Args<'_>,
    turn: &mut Turn,
) -> NextStep {
    context.client.set_last_command(spec.name);
    if let Execution::Engine(run) = spec.execution {
        let (server, caller, watched) = (context.server.clone(), context.caller.clone(), context.watched.clone());
        return match run(EngineCall { server, caller, version: session.version, watched }, args) {
            // Counted when it is done.
            Ok(reply) => NextStep::Defer(spec, reply),
            Err(error) => {
                turn.count((spec.name, spec.verb), error.status(), 1);
                transactions::refuse(session, turn, error.text().as_bytes())
            }
        };
    }
    turn.count((spec.name, spec.verb), CommandStatus::Accepted, 1);
    match spec.execution {
        Execution::Session(run) | Execution::Handshake(run) => {
            run(&mut SessionCall { args, context, session, turn, commands: &COMMANDS })
        }
        Execution::Select => database::select(&mut SessionCall { args, context, session, turn, commands: &COMMANDS }),
        Execution::Immediate(run) => {
            let call = ImmediateCall { args, context, spec, commands: &COMMANDS };
            turn.reply(session.version, |reply| run(&call, reply));
            NextStep::Continue
        }
        Execution::Add(_) | Execution::Read(..) | Execution::Counter(_) | Execution::Engine(_) => NextStep::Continue,
    }
}
