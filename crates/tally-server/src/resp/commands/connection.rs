//! Commands about the connection itself.

use super::introspection::{help, wrong_arguments};
use super::refusal;
use super::spec::{Execution, ImmediateCall, NextStep, SessionCall, Spec};
use crate::limits::RESP_NAME_BYTES_MAX;
use crate::resp::clients::{ClosingMode, RespClient};
use crate::resp::errors::{SYNTAX, shown};
use crate::resp::reply::{ProtocolVersion, Reply};
use crate::resp::session::{ReplyMode, Session};
use crate::resp::turn::Silence;
use crate::resp::wire::{Args, integer};

/// The version of Redis whose replies are reproduced.
pub const REDIS_VERSION: &str = "7.0.15";

const NO_PASSWORD: &str = "ERR AUTH <password> called without any password configured for the default user. Are you \
    sure your configuration is correct?";
const WRONG_PASSWORD: &str = "WRONGPASS invalid username-password pair or user is disabled.";
const BAD_NAME: &str = "ERR Client names cannot contain spaces, newlines or special characters.";
const LONG_NAME: &str = "ERR Client names cannot be that long.";

pub static PING: Spec = Spec::new("ping", -1, Execution::Immediate(ping))
    .redis("fast", "@fast @connection", "request_policy:all_shards response_policy:all_succeeded")
    .syntax(&["[message]"])
    .docs("connection", "1.0.0", "O(1)", "Returns PONG, or its argument.");

fn ping(call: &ImmediateCall<'_>, reply: &mut Reply<'_>) {
    match (call.args.len(), call.args.get(1)) {
        (1, _) => reply.simple("PONG"),
        (2, Some(text)) => reply.bulk(text),
        _ => reply.error(refusal::wrong_arguments(call.spec.name)),
    }
}

pub static ECHO: Spec = Spec::new("echo", 2, Execution::Immediate(echo))
    .redis("loading stale fast", "@fast @connection", "")
    .syntax(&["message"])
    .docs("connection", "1.0.0", "O(1)", "Returns its argument.");

fn echo(call: &ImmediateCall<'_>, reply: &mut Reply<'_>) {
    reply.bulk(call.arg(1));
}

pub static AUTH: Spec = Spec::new("auth", -2, Execution::Immediate(auth))
    .redis("noscript loading stale fast no_auth allow_busy", "@fast @connection", "")
    .syntax(&["[username]", "password"])
    .docs("connection", "1.0.0", "O(1)", "Authenticates the connection.");

/// With the name of the default user, any password is accepted, because that user has none. There is no other user. As
/// in Redis, a password without a name is an error.
fn auth(call: &ImmediateCall<'_>, reply: &mut Reply<'_>) {
    match call.args.len() {
        2 => reply.error(NO_PASSWORD),
        3 if call.arg(1) == b"default" => reply.ok(),
        3 => reply.error(WRONG_PASSWORD),
        _ => reply.error(SYNTAX),
    }
}

pub static HELLO: Spec = Spec::new("hello", -1, Execution::Handshake(hello))
    .redis("noscript loading stale fast no_auth allow_busy", "@fast @connection", "")
    .syntax(&["[protover]", "[AUTH username password]", "[SETNAME clientname]"])
    .docs(
        "connection",
        "6.0.0",
        "O(1)",
        "Sets the protocol version, and optionally authenticates and names the connection.",
    );

fn hello(call: &mut SessionCall<'_>) -> NextStep {
    let client = call.context.client;
    match greeted(client, call.args) {
        Ok(version) => {
            if let Some(version) = version {
                call.session.version = version;
                client.set_version(number(version));
            }
            let version = call.session.version;
            call.reply(|reply| welcome(client, version, reply));
        }
        Err(text) => call.reply(|reply| reply.error(text)),
    }
    NextStep::Continue
}

fn number(version: ProtocolVersion) -> u8 {
    match version {
        ProtocolVersion::V2 => 2,
        ProtocolVersion::V3 => 3,
    }
}

/// The requested version. As in Redis, a name is set at once, even if a later option is invalid.
fn greeted(client: &RespClient, args: Args<'_>) -> Result<Option<ProtocolVersion>, String> {
    let version = match args.get(1).map(integer) {
        None => None,
        Some(Some(2)) => Some(ProtocolVersion::V2),
        Some(Some(3)) => Some(ProtocolVersion::V3),
        Some(Some(_)) => return Err("NOPROTO unsupported protocol version".to_owned()),
        Some(None) => return Err("ERR Protocol version is not an integer or out of range".to_owned()),
    };
    let mut options = args.iter().skip(2);
    while let Some(word) = options.next() {
        let left = options.len();
        if word.eq_ignore_ascii_case(b"AUTH") && left >= 2 {
            let user = options.next();
            options.next();
            if user != Some(b"default") {
                return Err(WRONG_PASSWORD.to_owned());
            }
        } else if word.eq_ignore_ascii_case(b"SETNAME") && left >= 1 {
            let name = options.next().unwrap_or_default();
            if name.len() > RESP_NAME_BYTES_MAX {
                return Err(LONG_NAME.to_owned());
            }
            if !is_name(name) {
                return Err(BAD_NAME.to_owned());
            }
            client.set_name(name);
        } else {
            return Err(format!("ERR Syntax error in HELLO option '{}'", shown(word)));
        }
    }
    Ok(version)
}

fn welcome(client: &RespClient, version: ProtocolVersion, reply: &mut Reply<'_>) {
    reply.map(7);
    for (name, value) in [(&b"server"[..], &b"redis"[..]), (b"version", REDIS_VERSION.as_bytes())] {
        reply.bulk(name);
        reply.bulk(value);
    }
    reply.bulk(b"proto");
    reply.integer(i64::from(number(version)));
    reply.bulk(b"id");
    reply.integer(i64::try_from(client.id).unwrap_or(i64::MAX));
    for (name, value) in [(&b"mode"[..], &b"standalone"[..]), (b"role", b"master")] {
        reply.bulk(name);
        reply.bulk(value);
    }
    reply.bulk(b"modules");
    reply.array(0);
}

pub static RESET: Spec = Spec::new("reset", 1, Execution::Session(reset))
    .redis("noscript loading stale fast no_auth allow_busy", "@fast @connection", "")
    .docs("connection", "6.2.0", "O(1)", "Resets the state of the connection.");

fn reset(call: &mut SessionCall<'_>) -> NextStep {
    *call.session = Session::default();
    call.turn.set_silence(Silence::Off);
    call.context.watched.clear();
    let client = call.context.client;
    client.set_queueing(false);
    client.set_name(b"");
    client.set_version(2);
    call.reply(|reply| reply.simple("RESET"));
    NextStep::Continue
}

pub static QUIT: Spec = Spec::new("quit", -1, Execution::Session(quit))
    .redis("noscript loading stale fast no_auth allow_busy", "@fast @connection", "")
    .docs("connection", "1.0.0", "O(1)", "Closes the connection.");

fn quit(call: &mut SessionCall<'_>) -> NextStep {
    call.reply(|reply| reply.ok());
    NextStep::Close
}

pub static CLIENT: Spec = Spec::new("client", -2, Execution::Immediate(wrong_arguments))
    .redis("", "@slow", "")
    .subcommands(&[
        &CLIENT_ID,
        &CLIENT_GETNAME,
        &CLIENT_SETNAME,
        &CLIENT_SETINFO,
        &CLIENT_LIST,
        &CLIENT_INFO,
        &CLIENT_KILL,
        &CLIENT_REPLY,
        &CLIENT_NO_EVICT,
        &CLIENT_NO_TOUCH,
        &CLIENT_HELP,
    ])
    .docs("connection", "2.4.0", "Depends on the subcommand.", "A container for client connection commands.");

pub static CLIENT_ID: Spec = Spec::new("client|id", 2, Execution::Immediate(client_id))
    .redis("noscript loading stale", "@slow @connection", "")
    .docs("connection", "5.0.0", "O(1)", "Returns the ID of this connection.");

fn client_id(call: &ImmediateCall<'_>, reply: &mut Reply<'_>) {
    reply.integer(i64::try_from(call.context.client.id).unwrap_or(i64::MAX));
}

pub static CLIENT_GETNAME: Spec = Spec::new("client|getname", 2, Execution::Immediate(get_name))
    .redis("noscript loading stale", "@slow @connection", "")
    .docs("connection", "2.6.9", "O(1)", "Returns the name of this connection.");

fn get_name(call: &ImmediateCall<'_>, reply: &mut Reply<'_>) {
    match call.context.client.name() {
        name if name.is_empty() => reply.null(),
        name => reply.bulk(&name),
    }
}

pub static CLIENT_SETNAME: Spec = Spec::new("client|setname", 3, Execution::Immediate(set_name))
    .redis("noscript loading stale", "@slow @connection", "")
    .syntax(&["connection-name"])
    .docs("connection", "2.6.9", "O(1)", "Sets the name of this connection.");

fn set_name(call: &ImmediateCall<'_>, reply: &mut Reply<'_>) {
    let name = call.arg(2);
    if name.len() > RESP_NAME_BYTES_MAX {
        return reply.error(LONG_NAME);
    }
    if !is_name(name) {
        return reply.error(BAD_NAME);
    }
    call.context.client.set_name(name);
    reply.ok();
}

/// Only printable characters, and no spaces, because spaces separate the fields of `CLIENT LIST`.
fn is_name(name: &[u8]) -> bool {
    name.iter().all(|byte| (b'!'..=b'~').contains(byte))
}

pub static CLIENT_SETINFO: Spec = Spec::new("client|setinfo", 4, Execution::Immediate(set_info))
    .redis("noscript loading stale", "@slow @connection", "")
    .syntax(&["LIB-NAME | LIB-VER", "value"])
    .docs("connection", "7.2.0", "O(1)", "Sets the name or version of the client library.");

fn set_info(call: &ImmediateCall<'_>, reply: &mut Reply<'_>) {
    let (attribute, value) = (call.arg(2), call.arg(3));
    let name = String::from_utf8_lossy(attribute).to_lowercase();
    let set: fn(&RespClient, &[u8]) = match name.as_str() {
        "lib-name" => RespClient::set_library,
        "lib-ver" => RespClient::set_library_version,
        _ => return reply.error(format!("ERR Unrecognized option '{}'", shown(attribute))),
    };
    if value.len() > RESP_NAME_BYTES_MAX {
        return reply.error(format!("ERR {name} is too long."));
    }
    if !is_name(value) {
        return reply.error(format!("ERR {name} cannot contain spaces, newlines or special characters."));
    }
    set(call.context.client, value);
    reply.ok();
}

pub static CLIENT_NO_EVICT: Spec = Spec::new("client|no-evict", 3, Execution::Immediate(switch))
    .redis("admin noscript loading stale", "@admin @slow @dangerous @connection", "")
    .syntax(&["ON | OFF"])
    .docs("connection", "7.0.0", "O(1)", "Accepted for compatibility. No connection is evicted to save memory.");

pub static CLIENT_NO_TOUCH: Spec = Spec::new("client|no-touch", 3, Execution::Immediate(switch))
    .redis("noscript loading stale", "@slow @connection", "")
    .syntax(&["ON | OFF"])
    .docs(
        "connection",
        "7.2.0",
        "O(1)",
        "Accepted for compatibility. No command returns when a key was last accessed.",
    );

fn switch(call: &ImmediateCall<'_>, reply: &mut Reply<'_>) {
    let word = call.arg(2);
    let is_switch = word.eq_ignore_ascii_case(b"ON") || word.eq_ignore_ascii_case(b"OFF");
    if is_switch { reply.ok() } else { reply.error(SYNTAX) }
}

pub static CLIENT_LIST: Spec = Spec::new("client|list", -2, Execution::Immediate(list))
    .redis("admin noscript loading stale", "@admin @slow @dangerous @connection", "nondeterministic_output")
    .syntax(&["[TYPE type]", "[ID client-id...]"])
    .docs("connection", "2.4.0", "O(N) for N connections", "Lists the connections.");

/// `[TYPE type | ID id …]`
fn list(call: &ImmediateCall<'_>, reply: &mut Reply<'_>) {
    let (args, server) = (call.args, call.context.server);
    let mut wanted = server.clients.all();
    match args.get(2) {
        None => {}
        Some(word) if word.eq_ignore_ascii_case(b"TYPE") && args.len() == 4 => {
            let kind = args.get(3).unwrap_or_default();
            match is_normal(kind) {
                Ok(is_normal) => wanted.retain(|_| is_normal),
                Err(text) => return reply.error(text),
            }
        }
        Some(word) if word.eq_ignore_ascii_case(b"ID") && args.len() > 3 => {
            let ids: Option<Vec<i64>> = args.iter().skip(3).map(integer).collect();
            let Some(ids) = ids else { return reply.error("ERR Invalid client ID") };
            wanted.retain(|client| i64::try_from(client.id).is_ok_and(|id| ids.contains(&id)));
        }
        Some(_) => return reply.error(SYNTAX),
    }
    let now = server.now();
    let lines: String = wanted.iter().map(|client| client.line(now) + "\n").collect();
    reply.verbatim(&lines);
}

pub static CLIENT_INFO: Spec = Spec::new("client|info", 2, Execution::Immediate(client_info))
    .redis("noscript loading stale", "@slow @connection", "nondeterministic_output")
    .docs("connection", "6.2.0", "O(1)", "Returns information about this connection.");

fn client_info(call: &ImmediateCall<'_>, reply: &mut Reply<'_>) {
    reply.verbatim(&(call.context.client.line(call.context.server.now()) + "\n"));
}

pub static CLIENT_REPLY: Spec = Spec::new("client|reply", 3, Execution::Session(client_reply))
    .redis("noscript loading stale", "@slow @connection", "")
    .syntax(&["ON | OFF | SKIP"])
    .docs("connection", "3.2.0", "O(1)", "Switches replies off or on, or skips the next one.");

fn client_reply(call: &mut SessionCall<'_>) -> NextStep {
    let mode = call.args.get(2).unwrap_or_default();
    if mode.eq_ignore_ascii_case(b"ON") {
        call.session.replies = ReplyMode::On;
        call.turn.set_silence(Silence::Off);
        call.reply(|reply| reply.ok());
    } else if mode.eq_ignore_ascii_case(b"OFF") {
        call.session.replies = ReplyMode::Off;
    } else if mode.eq_ignore_ascii_case(b"SKIP") {
        if call.session.replies != ReplyMode::Off {
            call.session.replies = ReplyMode::SkipNext;
        }
    } else {
        call.reply(|reply| reply.error(SYNTAX));
    }
    NextStep::Continue
}

pub static CLIENT_KILL: Spec = Spec::new("client|kill", -3, Execution::Immediate(kill))
    .redis("admin noscript loading stale", "@admin @slow @dangerous @connection", "")
    .syntax(&[
        "[addr:port]",
        "[ID client-id]",
        "[TYPE type]",
        "[USER username]",
        "[ADDR addr:port]",
        "[LADDR addr:port]",
        "[SKIPME yes/no]",
    ])
    .docs("connection", "2.4.0", "O(N) for N connections", "Closes connections.");

/// Which connections to close.
#[derive(Default)]
struct KillFilter<'a> {
    id: Option<i64>,
    address: Option<&'a [u8]>,
    local: Option<&'a [u8]>,
    /// Whether the filter names a type that no connection has.
    other_type: bool,
    keeps_caller: bool,
}

impl<'a> KillFilter<'a> {
    /// Options come in pairs.
    fn parse(args: Args<'a>) -> Result<Self, String> {
        let mut filter = KillFilter { keeps_caller: true, ..KillFilter::default() };
        let mut options = args.iter().skip(2);
        while let Some(word) = options.next() {
            let value = options.next().ok_or(SYNTAX)?;
            match word.to_ascii_uppercase().as_slice() {
                b"ID" => {
                    let id = integer(value).filter(|id| *id > 0);
                    filter.id = Some(id.ok_or("ERR client-id should be greater than 0")?);
                }
                b"TYPE" => filter.other_type = !is_normal(value)?,
                b"USER" if value != b"default" => return Err(format!("ERR No such user '{}'", shown(value))),
                b"USER" => {}
                b"ADDR" => filter.address = Some(value),
                b"LADDR" => filter.local = Some(value),
                b"SKIPME" if value.eq_ignore_ascii_case(b"yes") => filter.keeps_caller = true,
                b"SKIPME" if value.eq_ignore_ascii_case(b"no") => filter.keeps_caller = false,
                _ => return Err(SYNTAX.to_owned()),
            }
        }
        Ok(filter)
    }

    fn matches(&self, client: &RespClient, caller: u64) -> bool {
        let is = |wanted: Option<&[u8]>, address: std::net::SocketAddr| {
            wanted.is_none_or(|wanted| wanted == address.to_string().as_bytes())
        };
        let has_id = self.id.is_none_or(|id| u64::try_from(id) == Ok(client.id));
        has_id
            && is(self.address, client.peer)
            && is(self.local, client.local)
            && !self.other_type
            && !(self.keeps_caller && client.id == caller)
    }
}

/// Whether this is the type `normal`, which all connections have. An error if Redis has no such type.
fn is_normal(kind: &[u8]) -> Result<bool, String> {
    let known: [&[u8]; 5] = [b"normal", b"master", b"replica", b"slave", b"pubsub"];
    if !known.iter().any(|name| kind.eq_ignore_ascii_case(name)) {
        return Err(format!("ERR Unknown client type '{}'", shown(kind)));
    }
    Ok(kind.eq_ignore_ascii_case(b"normal"))
}

/// `addr:port`, or options.
fn kill(call: &ImmediateCall<'_>, reply: &mut Reply<'_>) {
    let (caller, clients) = (call.context.client.id, &call.context.server.clients);
    let is_old_form = call.args.len() == 3;
    let filter = match is_old_form {
        true => Ok(KillFilter { address: Some(call.arg(2)), ..KillFilter::default() }),
        false => KillFilter::parse(call.args),
    };
    let filter = match filter {
        Ok(filter) => filter,
        Err(text) => return reply.error(text),
    };
    let mut closed = 0;
    for client in clients.all().iter().filter(|client| filter.matches(client, caller)) {
        client.close(if client.id == caller { ClosingMode::AfterReplies } else { ClosingMode::AtOnce });
        closed += 1;
    }
    match (is_old_form, closed) {
        (true, 0) => reply.error("ERR No such client"),
        (true, _) => reply.ok(),
        (false, closed) => reply.integer(closed),
    }
}

pub static CLIENT_HELP: Spec = Spec::new("client|help", 2, Execution::Immediate(help))
    .redis("loading stale", "@slow @connection", "")
    .docs("connection", "5.0.0", "O(1)", "Lists the subcommands.");
