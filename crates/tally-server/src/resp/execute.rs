//! What a request comes to: events in the turn, a reply that is known at once, or a command for later.

use tally_core::time::Millis;

use super::clients::Client;
use super::commands::{self, Command, Spec};
use super::door::Door;
use super::errors::{NOT_IN_TRANSACTION, SYNTAX, failure};
use super::op::{self, Asker, Op, Refused};
use super::plan::Plan;
use super::reply::Reply;
use super::session::{Session, Transaction};
use super::slow::Slow;
use super::turn::{Turn, Went};
use super::wire::{Args, Limits, Parsed, Parser, Sent};
use super::{about, settings};
use crate::limits::{RESP_REPEATS_MAX, RESP_SHARE_BYTES_MAX, RESP_TRANSACTION_ARGS_MAX, RESP_TRANSACTION_BYTES_MAX};
use crate::metrics::Verb;
use crate::policy::Consistency;

const REPLIES_TOO_LARGE: &str = "ERR the replies of the transaction are too large";

/// What to do after a request.
pub enum Next {
    /// Read on.
    Go,
    /// Read on behind as many requests as this: they are the same, and all are planned.
    GoBehind(usize),
    /// Carry this out once everything before it is answered.
    Slow(Verb, Slow),
    /// Close, once everything is answered.
    Close,
}

/// Plans one request, and those behind it that say the same if it is a plain add: the hot path.
#[inline]
pub fn plan(
    door: &Door,
    client: &Client,
    session: &mut Session,
    (args, sent): (Args<'_>, Sent<'_>),
    now: Millis,
    turn: &mut Turn,
) -> Next {
    let spec = match commands::resolve(&args) {
        Ok(spec) => spec,
        Err(text) => {
            turn.count(Verb::Other, Went::Refused);
            if args.name().eq_ignore_ascii_case(b"EXEC") {
                return misspoken_exec(client, session, turn, &text);
            }
            return refused(session, turn, text);
        }
    };
    if session.transaction.is_some() && !ends_transaction(spec.id) {
        return queue(session, spec, args, turn);
    }
    let asker = Asker { peer: client.peer.ip(), now };
    if let Some(added) = add(door, spec.id, (args, sent), turn) {
        return added;
    }
    if let Some(planned) = operate(door, spec.id, args, asker, turn) {
        let went = match planned {
            Ok(plan) => {
                turn.plan(plan);
                Went::Through
            }
            Err((went, text)) => {
                turn.reply(session.version, |reply| reply.error(text.as_bytes()));
                went
            }
        };
        turn.count(verb(spec.id), went);
        return Next::Go;
    }
    client.set_last_command(spec.name);
    match Slow::read(spec.id, args) {
        // Counted when it is done.
        Some(Ok(slow)) => return Next::Slow(verb(spec.id), slow),
        Some(Err(text)) => {
            turn.count(verb(spec.id), Went::Refused);
            return refused(session, turn, text.as_bytes());
        }
        None => turn.count(verb(spec.id), Went::Through),
    }
    match spec.id {
        Command::Multi => multi(client, session, turn),
        Command::Exec => exec(door, client, session, turn, asker),
        Command::Discard => discard(client, session, turn),
        Command::Quit => {
            turn.reply(session.version, |reply| reply.ok());
            Next::Close
        }
        _ => {
            answer_at_once(door, client, session, spec, args, turn);
            Next::Go
        }
    }
}

/// Plain adds. The same as by way of `Op`, without building one, and at once for all of a pipeline that say the same.
/// What is wrong with one is for `Op` to say.
#[inline]
fn add(door: &Door, command: Command, (args, sent): (Args<'_>, Sent<'_>), turn: &mut Turn) -> Option<Next> {
    let delta = op::delta(command, args)?.ok()?;
    let key = op::key(args).ok()?;
    let events = turn.events(&door.service, door.service.consistency(key)).ok()?;
    let times = sent.times(RESP_REPEATS_MAX);
    events.add_times(key, delta, times);
    turn.count_times(verb(command), times);
    turn.plan(if times == 1 { Plan::Value } else { Plan::Values { times, delta } });
    Some(Next::GoBehind(times as usize))
}

/// Any other command on counters.
fn operate(
    door: &Door,
    command: Command,
    args: Args<'_>,
    asker: Asker,
    turn: &mut Turn,
) -> Option<Result<Plan, (Went, Refused)>> {
    let refused = |text| (Went::Refused, text);
    Some(Op::read(command, args, asker)?.map_err(refused).and_then(|op| {
        let consistency = op.consistency(&door.service);
        let unserved = |error| (Went::Unserved, Refused::from(failure(&error)));
        let events = match op.is_read() {
            true => turn.read_events(&door.service, consistency),
            false => turn.events(&door.service, consistency),
        };
        op.push(events.map_err(unserved)?, asker).map_err(refused)
    }))
}

/// What a command asks for, as metrics have it.
#[inline]
fn verb(command: Command) -> Verb {
    match command {
        Command::Incr | Command::IncrBy | Command::IncrEx | Command::TallyAdd => Verb::Increment,
        Command::Decr | Command::DecrBy => Verb::Decrement,
        Command::Get | Command::Exists | Command::Type | Command::Ttl | Command::PTtl => Verb::Read,
        Command::ExpireTime | Command::PExpireTime | Command::TallyRead => Verb::Read,
        Command::MGet => Verb::Many,
        Command::Scan | Command::DbSize | Command::RandomKey => Verb::List,
        Command::Set | Command::GetSet => Verb::Set,
        Command::Del | Command::Unlink | Command::GetDel | Command::FlushAll | Command::FlushDb => Verb::Delete,
        Command::Expire | Command::PExpire | Command::ExpireAt | Command::PExpireAt | Command::Persist => Verb::Expire,
        _ => Verb::Other,
    }
}

/// An error: it also spoils the transaction that is being queued.
fn refused(session: &mut Session, turn: &mut Turn, text: impl AsRef<[u8]>) -> Next {
    if let Some(transaction) = &mut session.transaction {
        transaction.aborted = true;
    }
    turn.reply(session.version, |reply| reply.error(text));
    Next::Go
}

/// An `EXEC` with arguments drops the transaction, as in Redis.
fn misspoken_exec(client: &Client, session: &mut Session, turn: &mut Turn, text: &[u8]) -> Next {
    session.transaction = None;
    client.set_queueing(false);
    let text = String::from_utf8_lossy(text.strip_prefix(b"ERR ").unwrap_or(text));
    let text = format!("EXECABORT Transaction discarded because of: {text}");
    turn.reply(session.version, |reply| reply.error(text));
    Next::Go
}

/// Commands that are carried out although a transaction is being queued.
fn ends_transaction(command: Command) -> bool {
    matches!(command, Command::Exec | Command::Discard | Command::Multi | Command::Quit | Command::Reset)
}

fn multi(client: &Client, session: &mut Session, turn: &mut Turn) -> Next {
    if session.transaction.is_some() {
        turn.reply(session.version, |reply| reply.error("ERR MULTI calls can not be nested"));
        return Next::Go;
    }
    session.transaction = Some(Transaction::default());
    client.set_queueing(true);
    turn.reply(session.version, |reply| reply.ok());
    Next::Go
}

fn discard(client: &Client, session: &mut Session, turn: &mut Turn) -> Next {
    let was = session.transaction.take();
    client.set_queueing(false);
    turn.reply(session.version, |reply| match was {
        Some(_) => reply.ok(),
        None => reply.error("ERR DISCARD without MULTI"),
    });
    Next::Go
}

fn queue(session: &mut Session, spec: &Spec, args: Args<'_>, turn: &mut Turn) -> Next {
    // Replies after a change of the protocol would be of another version than those before.
    if spec.id == Command::Hello || Slow::read(spec.id, args).is_some() {
        return refused(session, turn, NOT_IN_TRANSACTION);
    }
    let Some(transaction) = &mut session.transaction else { return Next::Go };
    let bytes: usize = args.iter().map(<[u8]>::len).sum();
    if transaction.requests.len() + bytes > RESP_TRANSACTION_BYTES_MAX
        || transaction.args + args.len() > RESP_TRANSACTION_ARGS_MAX
    {
        let most = format!("{RESP_TRANSACTION_ARGS_MAX} arguments and {RESP_TRANSACTION_BYTES_MAX} bytes");
        return refused(
            session,
            turn,
            format!("ERR the transaction is too large; all of its commands have at most {most}"),
        );
    }
    transaction.commands += 1;
    transaction.args += args.len();
    let mut request = Reply::new(&mut transaction.requests, session.version);
    request.array(args.len());
    args.iter().for_each(|arg| request.bulk(arg));
    turn.reply(session.version, |reply| reply.simple("QUEUED"));
    Next::Go
}

/// Carries out a queued transaction: all its events are one group, which the engine applies in a row.
fn exec(door: &Door, client: &Client, session: &mut Session, turn: &mut Turn, asker: Asker) -> Next {
    let Some(transaction) = session.transaction.take() else {
        turn.reply(session.version, |reply| reply.error("ERR EXEC without MULTI"));
        return Next::Go;
    };
    client.set_queueing(false);
    if transaction.aborted {
        let text = "EXECABORT Transaction discarded because of previous errors.";
        turn.reply(session.version, |reply| reply.error(text));
        return Next::Go;
    }
    turn.reply(session.version, |reply| reply.array(transaction.commands));
    let mut replies = Turn::default();
    // What each command asks for, and its reply.
    let mut plans: Vec<(Verb, Result<Plan, Refused>)> = Vec::with_capacity(transaction.commands);
    let events = match turn.events(&door.service, Consistency::Exact) {
        Ok(events) => events,
        Err(error) => {
            let text = failure(&error);
            for _ in 0..transaction.commands {
                turn.reply(session.version, |reply| reply.error(&text));
            }
            return Next::Go;
        }
    };
    events.group(|events| {
        let (mut parser, mut at) = (Parser::default(), 0);
        while let Parsed::Request(args, bytes) =
            parser.next(transaction.requests.get(at..).unwrap_or_default(), &Limits::KNOWN)
        {
            at += bytes;
            let Ok(spec) = commands::resolve(&args) else { continue };
            let plan = match Op::read(spec.id, args, asker) {
                Some(op) => op.and_then(|op| op.push(events, asker)),
                None if replies.reply_bytes() > RESP_SHARE_BYTES_MAX => Err(REPLIES_TOO_LARGE.into()),
                None => {
                    let before = replies.reply_bytes();
                    answer_at_once(door, client, session, spec, args, &mut replies);
                    Ok(Plan::Bytes(u32::try_from(replies.reply_bytes() - before).unwrap_or(u32::MAX)))
                }
            };
            plans.push((verb(spec.id), plan));
        }
    });
    let mut known = replies.known();
    for (verb, plan) in plans {
        turn.count(verb, if plan.is_ok() { Went::Through } else { Went::Refused });
        match plan {
            Ok(Plan::Bytes(len)) => {
                let (own, rest) = known.split_at_checked(len as usize).unwrap_or((known, &[]));
                turn.known_reply(own);
                known = rest;
            }
            Ok(plan) => turn.plan(plan),
            Err(text) => turn.reply(session.version, |reply| reply.error(text.as_bytes())),
        }
    }
    Next::Go
}

/// Commands whose reply needs no engine.
fn answer_at_once(
    door: &Door,
    client: &Client,
    session: &mut Session,
    spec: &'static Spec,
    args: Args<'_>,
    turn: &mut Turn,
) {
    let arg = |at: usize| args.get(at).unwrap_or_default();
    match spec.id {
        Command::Ping if args.len() > 2 => {
            turn.reply(session.version, |reply| reply.error(commands::wrong_arguments(spec)));
        }
        Command::Ping => turn.reply(session.version, |reply| match args.get(1) {
            Some(text) => reply.bulk(text),
            None => reply.simple("PONG"),
        }),
        Command::Echo => turn.reply(session.version, |reply| reply.bulk(arg(1))),
        Command::Time => turn.reply(session.version, |reply| about::time(door.now(), reply)),
        Command::Select => turn.reply(session.version, |reply| about::select(arg(1), reply)),
        Command::Auth => turn.reply(session.version, |reply| about::auth(args, reply)),
        Command::Hello => about::hello(client, session, args, turn),
        Command::Reset => {
            *session = Session::default();
            client.set_queueing(false);
            client.set_name(b"");
            client.set_version(2);
            turn.reply(session.version, |reply| reply.simple("RESET"));
        }
        Command::Info => turn.reply(session.version, |reply| reply.verbatim(&super::info::info(door, args))),
        _ => turn.reply(session.version, |reply| answer_subcommand(door, client, spec, args, reply)),
    }
}

/// Subcommands, and the containers they stand in.
fn answer_subcommand(door: &Door, client: &Client, spec: &'static Spec, args: Args<'_>, reply: &mut Reply<'_>) {
    let arg = |at: usize| args.get(at).unwrap_or_default();
    match spec.id {
        Command::ClientId => reply.integer(i64::try_from(client.id).unwrap_or(i64::MAX)),
        Command::ClientGetName => about::get_name(client, reply),
        Command::ClientSetName => about::set_name(client, arg(2), reply),
        Command::ClientSetInfo => about::set_info(client, arg(2), arg(3), reply),
        Command::ClientList => about::list(door, args, reply),
        Command::ClientNoEvict | Command::ClientNoTouch => about::switch(arg(2), reply),
        Command::Command => commands::info(reply, [].into_iter()),
        Command::CommandCount => reply.integer(i64::try_from(commands::count()).unwrap_or(i64::MAX)),
        Command::CommandInfo => commands::info(reply, names(args)),
        Command::CommandDocs => commands::docs(reply, names(args)),
        Command::CommandList => list_commands(args, reply),
        Command::CommandGetKeys => {
            let request: Vec<&[u8]> = args.iter().skip(2).collect();
            match commands::keys_of(&request) {
                Ok(keys) => {
                    reply.array(keys.len());
                    keys.iter().for_each(|key| reply.bulk(key));
                }
                Err(text) => reply.error(text),
            }
        }
        Command::ConfigGet => settings::get(door, args, reply),
        Command::ConfigSet => settings::set(door, args, reply),
        Command::ConfigResetStat => reply.ok(),
        Command::FunctionFlush => about::flush_functions(args, reply),
        Command::ClientHelp | Command::CommandHelp | Command::ConfigHelp | Command::FunctionHelp => {
            commands::help(reply, spec);
        }
        _ => reply.error(commands::wrong_arguments(spec)),
    }
}

/// The names given to `COMMAND INFO` and `COMMAND DOCS`.
fn names(args: Args<'_>) -> impl ExactSizeIterator<Item = &[u8]> {
    args.iter().skip(2)
}

/// `COMMAND LIST [FILTERBY (MODULE | ACLCAT | PATTERN) value]`.
fn list_commands(args: Args<'_>, reply: &mut Reply<'_>) {
    let arg = |at: usize| args.get(at).unwrap_or_default();
    match args.len() {
        2 => commands::list(reply),
        5 if arg(2).eq_ignore_ascii_case(b"FILTERBY") => {
            if let Err(text) = commands::list_filtered(reply, arg(3), arg(4)) {
                reply.error(text);
            }
        }
        _ => reply.error(SYNTAX),
    }
}
