//! The arguments of commands as `COMMAND DOCS` tells them, so that terminals can hint at what comes next.

use super::Command;
use crate::resp::reply::Reply;

const EXPIRE: &[&str] = &["key", "seconds", "[NX | XX | GT | LT]"];
const PEXPIRE: &[&str] = &["key", "milliseconds", "[NX | XX | GT | LT]"];
const EXPIRE_AT: &[&str] = &["key", "unix-time-seconds", "[NX | XX | GT | LT]"];
const PEXPIRE_AT: &[&str] = &["key", "unix-time-milliseconds", "[NX | XX | GT | LT]"];
const LIFETIME: &str = "[EX seconds | PX milliseconds | EXAT unix-time-seconds | PXAT unix-time-milliseconds]";
const LIFETIME_OR_KEEP: &str =
    "[EX seconds | PX milliseconds | EXAT unix-time-seconds | PXAT unix-time-milliseconds | KEEPTTL]";

/// What comes after the name, in order. In brackets: may be left out. With dots: as many as one likes.
fn syntax(command: Command) -> &'static [&'static str] {
    match command {
        Command::Incr | Command::Decr | Command::Get | Command::GetDel | Command::Type => &["key"],
        Command::Ttl | Command::PTtl | Command::ExpireTime | Command::PExpireTime | Command::Persist => &["key"],
        Command::IncrBy => &["key", "increment"],
        Command::DecrBy => &["key", "decrement"],
        Command::TallyAdd => &["key", "increment", "[ID request-id]"],
        Command::TallyRead => &["key", "[EXACT]"],
        Command::IncrEx => {
            &["key", "[BYINT increment]", "[LBOUND lowest]", "[UBOUND highest]", "[SATURATE]", LIFETIME, "[ENX]"]
        }
        Command::MGet | Command::Del | Command::Unlink | Command::Exists => &["key..."],
        Command::Set => &["key", "value", "[NX | XX]", "[GET]", LIFETIME_OR_KEEP],
        Command::GetSet => &["key", "value"],
        Command::Expire => EXPIRE,
        Command::PExpire => PEXPIRE,
        Command::ExpireAt => EXPIRE_AT,
        Command::PExpireAt => PEXPIRE_AT,
        Command::Scan => &["cursor", "[MATCH pattern]", "[COUNT count]", "[TYPE type]"],
        Command::FlushAll | Command::FlushDb | Command::FunctionFlush => &["[ASYNC | SYNC]"],
        Command::Ping => &["[message]"],
        Command::Echo => &["message"],
        Command::Hello => &["[protover]", "[AUTH username password]", "[SETNAME clientname]"],
        Command::Auth => &["[username]", "password"],
        Command::Select => &["index"],
        Command::Info => &["[section...]"],
        Command::ClientSetName => &["connection-name"],
        Command::ClientSetInfo => &["LIB-NAME | LIB-VER", "value"],
        Command::ClientList => &["[TYPE type]", "[ID client-id...]"],
        Command::ClientNoEvict | Command::ClientNoTouch => &["ON | OFF"],
        Command::CommandDocs | Command::CommandInfo => &["[command-name...]"],
        Command::CommandList => &["[FILTERBY filter]"],
        Command::CommandGetKeys => &["command", "[arg...]"],
        Command::ConfigGet => &["parameter..."],
        Command::ConfigSet => &["parameter", "value"],
        _ => &[],
    }
}

/// Whether there is anything to tell.
pub fn has_arguments(command: Command) -> bool {
    !syntax(command).is_empty()
}

/// Writes the list of arguments.
pub fn arguments(reply: &mut Reply<'_>, command: Command) {
    reply.array(syntax(command).len());
    for text in syntax(command) {
        let inner = text.strip_prefix('[').and_then(|text| text.strip_suffix(']'));
        let name = inner.unwrap_or(text);
        let one = name.strip_suffix("...");
        let flags = [inner.map(|_| "optional"), one.map(|_| "multiple")];
        let name = one.unwrap_or(name);
        let count = flags.iter().flatten().count();
        reply.map(2 + usize::from(name == "key") + usize::from(count > 0));
        reply.bulk(b"name");
        reply.bulk(name.as_bytes());
        reply.bulk(b"type");
        reply.bulk(if name == "key" { b"key" } else { b"string" });
        if name == "key" {
            reply.bulk(b"key_spec_index");
            reply.integer(0);
        }
        if count > 0 {
            reply.bulk(b"flags");
            reply.set(count);
            flags.iter().flatten().for_each(|flag| reply.simple(flag));
        }
    }
}
