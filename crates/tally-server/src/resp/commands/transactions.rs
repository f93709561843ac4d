//! Transactions: `MULTI`, `EXEC` and `DISCARD`, and the queue between them.

use tally_core::key::KeyRef;
use tally_core::outcome::Refusal;
use tally_core::surface::Grouping;

use super::call::{CallContext, CommandCall, CommandError, EventTarget};
use super::spec::{CommandTable, Execution, ImmediateCall, NextStep, SessionCall, Spec};
use super::{counters, database, watch};
use crate::limits::{RESP_SHARE_BYTES_MAX, RESP_TRANSACTION_ARGS_MAX, RESP_TRANSACTION_BYTES_MAX};
use crate::policy::Consistency;
use crate::resp::errors::{NOT_IN_TRANSACTION, failure};
use crate::resp::reply::{ProtocolVersion, Reply};
use crate::resp::reply_plan::ReplyPlan;
use crate::resp::session::{Session, Transaction};
use crate::resp::turn::{CommandStatus, Turn};
use crate::resp::wire::{Args, Limits, Parsed, Parser};
use crate::service::Service;

const CROSS_SLOT: &str = "CROSSSLOT Keys in request don't hash to the same slot";
const REPLIES_TOO_LARGE: &str = "ERR the replies of the transaction are too large";

pub static MULTI: Spec = Spec::new("multi", 1, Execution::Session(multi))
    .redis("noscript loading stale fast allow_busy", "@fast @transaction", "")
    .docs("transactions", "1.2.0", "O(1)", "Starts a transaction.");

fn multi(call: &mut SessionCall<'_>) -> NextStep {
    if call.session.transaction.is_some() {
        call.reply(|reply| reply.error("ERR MULTI calls can not be nested"));
        return NextStep::Continue;
    }
    call.session.transaction = Some(Transaction::default());
    call.context.client.set_queueing(true);
    call.reply(|reply| reply.ok());
    NextStep::Continue
}

/// Refuses a request. `EXEC` will then refuse the transaction that is being queued.
pub fn refuse(session: &mut Session, turn: &mut Turn, text: impl AsRef<[u8]>) -> NextStep {
    if let Some(transaction) = &mut session.transaction {
        transaction.aborted = true;
    }
    turn.reply(session.version, |reply| reply.error(text));
    NextStep::Continue
}

/// Queues a command for `EXEC`.
pub fn queue(session: &mut Session, spec: &Spec, args: Args<'_>, turn: &mut Turn) -> NextStep {
    if std::ptr::eq(spec, &raw const watch::WATCH) {
        turn.reply(session.version, |reply| reply.error(watch::INSIDE_MULTI));
        return NextStep::Continue;
    }
    // `HELLO` would change the protocol version in the middle of the replies, and `MONITOR` would mix its lines into
    // them.
    if matches!(spec.execution, Execution::Handshake(_) | Execution::Engine(_)) {
        return refuse(session, turn, NOT_IN_TRANSACTION);
    }
    if matches!(spec.execution, Execution::Select)
        && let Err(text) = database::selected(args)
    {
        database::note(session, args);
        return refuse(session, turn, text);
    }
    let Some(transaction) = &mut session.transaction else { return NextStep::Continue };
    let bytes: usize = args.iter().map(<[u8]>::len).sum();
    if transaction.requests.len() + bytes > RESP_TRANSACTION_BYTES_MAX
        || transaction.args + args.len() > RESP_TRANSACTION_ARGS_MAX
    {
        let most = format!("{RESP_TRANSACTION_ARGS_MAX} arguments and {RESP_TRANSACTION_BYTES_MAX} bytes");
        let text = format!("ERR the transaction is too large; all of its commands have at most {most}");
        return refuse(session, turn, text);
    }
    transaction.commands += 1;
    transaction.args += args.len();
    let mut request = Reply::new(&mut transaction.requests, session.version);
    request.array(args.len());
    args.iter().for_each(|arg| request.bulk(arg));
    turn.reply(session.version, |reply| reply.simple("QUEUED"));
    NextStep::Continue
}

pub static DISCARD: Spec = Spec::new("discard", 1, Execution::Session(discard))
    .redis("noscript loading stale fast allow_busy", "@fast @transaction", "")
    .docs("transactions", "2.0.0", "O(N) for N commands", "Discards a transaction.");

fn discard(call: &mut SessionCall<'_>) -> NextStep {
    let discarded = call.session.transaction.take();
    if discarded.is_some() {
        call.context.watched.clear();
    }
    call.context.client.set_queueing(false);
    call.reply(|reply| match discarded {
        Some(_) => reply.ok(),
        None => reply.error("ERR DISCARD without MULTI"),
    });
    NextStep::Continue
}

pub static EXEC: Spec = Spec::new("exec", 1, Execution::Session(exec))
    .redis("noscript loading stale skip_slowlog", "@slow @transaction", "")
    .docs(
        "transactions",
        "1.2.0",
        "Depends on the commands.",
        "Executes the commands of a transaction, with no others in between.",
    );

/// An `EXEC` with arguments drops the transaction, as in Redis.
pub fn refuse_exec(context: &CallContext<'_>, session: &mut Session, turn: &mut Turn, text: &[u8]) -> NextStep {
    session.transaction = None;
    context.watched.clear();
    context.client.set_queueing(false);
    let text = String::from_utf8_lossy(text.strip_prefix(b"ERR ").unwrap_or(text));
    let text = format!("EXECABORT Transaction discarded because of: {text}");
    turn.reply(session.version, |reply| reply.error(text));
    NextStep::Continue
}

/// Executes the queued commands: their events are one group, which the engine applies without others in between.
fn exec(call: &mut SessionCall<'_>) -> NextStep {
    let Some(transaction) = call.session.transaction.take() else {
        call.reply(|reply| reply.error("ERR EXEC without MULTI"));
        return NextStep::Continue;
    };
    call.context.client.set_queueing(false);
    let watched = call.context.watched.take();
    if transaction.aborted {
        call.reply(|reply| reply.error("EXECABORT Transaction discarded because of previous errors."));
        return NextStep::Continue;
    }
    let new_queue = || QueuedCommands {
        context: call.context,
        version: call.session.version,
        commands: call.commands,
        known: Vec::new(),
        replies: Vec::with_capacity(transaction.commands),
    };
    let guards: Vec<(KeyRef<'_>, i64)> = watched.iter().map(|(key, version)| (key.as_ref(), *version)).collect();
    if let Err(error) = check_grouping(call.context, &transaction, &guards, new_queue()) {
        call.reply(|reply| reply.error(error.text().as_bytes()));
        return NextStep::Continue;
    }
    let mut queue = new_queue();
    match call.turn.events(&call.context.server.service, Consistency::Exact) {
        Ok(events) => {
            events.group_if(&guards, |events| queue.run(&transaction, events));
            let transaction_begin = call.turn.begin_guarded(guards.len());
            call.reply(|reply| reply.array(transaction.commands));
            queue.add_to(call.turn);
            call.turn.end_guarded(transaction_begin);
        }
        Err(error) => {
            let text = failure(&error);
            call.reply(|reply| reply.error(text));
        }
    }
    NextStep::Continue
}

/// An error if the engine cannot apply the events of a transaction as one group.
fn check_grouping(
    context: &CallContext<'_>,
    transaction: &Transaction,
    guards: &[(KeyRef<'_>, i64)],
    mut queue: QueuedCommands<'_>,
) -> Result<(), CommandError> {
    let service = &context.server.service;
    let Some(mut events) = service.events().ok().filter(|_| !service.keeps_all_together()) else {
        return Ok(());
    };
    queue.run(transaction, &mut events);
    let watched = guards.iter().map(|(key, _)| key.as_bytes());
    let keys: Vec<&[u8]> = events.batch().iter().map(|event| event.key.as_bytes()).chain(watched).collect();
    refuse_ungrouped(service, &keys)
}

/// An error if the engine cannot apply events of these keys as one group.
pub fn refuse_ungrouped(service: &Service, keys: &[&[u8]]) -> Result<(), CommandError> {
    if service.keeps_all_together() {
        return Ok(());
    }
    match service.grouping(keys) {
        Grouping::Possible => Ok(()),
        Grouping::AcrossPartitions => Err(CROSS_SLOT.into()),
        Grouping::BestEffort => Err(format!("ERR {}", Refusal::BEST_EFFORT_TEXT).into()),
    }
}

/// The commands of a transaction and their replies.
struct QueuedCommands<'a> {
    context: &'a CallContext<'a>,
    version: ProtocolVersion,
    commands: &'static CommandTable,
    /// Replies that need no outcome, in order.
    known: Vec<u8>,
    replies: Vec<(&'static Spec, Result<QueuedReply, CommandError>)>,
}

/// The reply of a queued command.
enum QueuedReply {
    /// Built from the outcomes of its events.
    Planned(ReplyPlan),
    /// The next bytes of the replies that need no outcome.
    Known(usize),
}

impl QueuedCommands<'_> {
    fn run(&mut self, transaction: &Transaction, events: &mut tally_core::batch::Events) {
        let (mut parser, mut at) = (Parser::default(), 0);
        while let Parsed::Request(args, bytes) =
            parser.next(transaction.requests.get(at..).unwrap_or_default(), &Limits::AUTHENTICATED)
        {
            at += bytes;
            let Ok(spec) = self.commands.resolve(&args, None) else { continue };
            let target = EventTarget::Transaction(&mut *events);
            let mut call = CommandCall { args, context: self.context, target };
            let planned = match spec.execution {
                Execution::Add(step) => counters::add(&mut call, step, None).map(|(plan, _)| plan),
                Execution::Read(field, plan) => counters::read(&mut call, field, plan),
                Execution::Counter(run) => run(&mut call),
                Execution::Immediate(run) => {
                    let reply = self.run_immediate(spec, args, run);
                    self.replies.push((spec, reply));
                    continue;
                }
                // Only `SELECT 0` is queued.
                Execution::Select => {
                    let reply =
                        self.run_immediate(spec, args, |call, reply| database::write_selected(call.args, reply));
                    self.replies.push((spec, reply));
                    continue;
                }
                // These are not queued.
                Execution::Engine(_) | Execution::Session(_) | Execution::Handshake(_) => continue,
            };
            self.replies.push((spec, planned.map(QueuedReply::Planned)));
        }
    }

    fn run_immediate(
        &mut self,
        spec: &'static Spec,
        args: Args<'_>,
        run: fn(&ImmediateCall<'_>, &mut Reply<'_>),
    ) -> Result<QueuedReply, CommandError> {
        if self.known.len() > RESP_SHARE_BYTES_MAX {
            return Err(REPLIES_TOO_LARGE.into());
        }
        let before = self.known.len();
        let call = ImmediateCall { args, context: self.context, spec, commands: self.commands };
        run(&call, &mut Reply::new(&mut self.known, self.version));
        Ok(QueuedReply::Known(self.known.len() - before))
    }

    fn add_to(self, turn: &mut Turn) {
        let mut known = self.known.as_slice();
        for (spec, reply) in self.replies {
            let status = reply.as_ref().map_or_else(CommandError::status, |_| CommandStatus::Accepted);
            match reply {
                Ok(QueuedReply::Planned(plan)) => turn.plan(plan),
                Ok(QueuedReply::Known(bytes)) => {
                    let (own, rest) = known.split_at_checked(bytes).unwrap_or((known, &[]));
                    turn.known_reply(own);
                    known = rest;
                }
                Err(error) => turn.reply(self.version, |reply| reply.error(error.text().as_bytes())),
            }
            turn.count((spec.name, spec.verb), status, 1);
        }
    }
}
