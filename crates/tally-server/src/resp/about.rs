//! Commands about the connection itself.

use tally_core::time::Millis;

use super::clients::Client;
use super::door::Door;
use super::errors::{NOT_AN_INTEGER, SYNTAX, shown};
use super::reply::{Reply, Version};
use super::session::Session;
use super::turn::Turn;
use super::wire::{Args, integer};
use crate::limits::RESP_NAME_BYTES_MAX;

/// The version of Redis whose replies these are.
pub const REDIS_VERSION: &str = "7.0.15";

const NO_PASSWORD: &str = "ERR AUTH <password> called without any password configured for the default user. Are you \
    sure your configuration is correct?";
const WRONG_PASSWORD: &str = "WRONGPASS invalid username-password pair or user is disabled.";
const BAD_NAME: &str = "ERR Client names cannot contain spaces, newlines or special characters.";
const LONG_NAME: &str = "ERR Client names cannot be that long.";

/// `TIME`: seconds and microseconds.
pub fn time(now: Millis, reply: &mut Reply<'_>) {
    reply.array(2);
    reply.bulk((now.0 / 1000).to_string().as_bytes());
    reply.bulk((now.0 % 1000 * 1000).to_string().as_bytes());
}

/// `SELECT`: there is one database.
pub fn select(index: &[u8], reply: &mut Reply<'_>) {
    match integer(index) {
        Some(0) => reply.ok(),
        Some(_) => reply.error("ERR DB index is out of range"),
        None => reply.error(NOT_AN_INTEGER),
    }
}

/// `AUTH`: there is nobody to be yet.
pub fn auth(args: Args<'_>, reply: &mut Reply<'_>) {
    match args.len() {
        2 => reply.error(NO_PASSWORD),
        3 => authenticate(args.get(1).unwrap_or_default(), reply),
        _ => reply.error(SYNTAX),
    }
}

/// The default user needs no password, so any will do; nobody else exists.
fn authenticate(user: &[u8], reply: &mut Reply<'_>) {
    if user == b"default" { reply.ok() } else { reply.error(WRONG_PASSWORD) }
}

/// `HELLO [2|3 [AUTH user password] [SETNAME name]]`.
pub fn hello(client: &Client, session: &mut Session, args: Args<'_>, turn: &mut Turn) {
    match greeted(client, args) {
        Ok(version) => {
            if let Some(version) = version {
                session.version = version;
                client.set_version(number(version));
            }
            let version = session.version;
            turn.reply(version, |reply| welcome(client, version, reply));
        }
        Err(text) => turn.reply(session.version, |reply| reply.error(text)),
    }
}

fn number(version: Version) -> u8 {
    match version {
        Version::V2 => 2,
        Version::V3 => 3,
    }
}

/// The version that was asked for. As in Redis, a name is taken at once, even if something after it is wrong.
fn greeted(client: &Client, args: Args<'_>) -> Result<Option<Version>, String> {
    let version = match args.get(1).map(integer) {
        None => None,
        Some(Some(2)) => Some(Version::V2),
        Some(Some(3)) => Some(Version::V3),
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

fn welcome(client: &Client, version: Version, reply: &mut Reply<'_>) {
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

/// Printable, and nothing that would break a line of `CLIENT LIST`.
fn is_name(name: &[u8]) -> bool {
    name.iter().all(|byte| (b'!'..=b'~').contains(byte))
}

/// `CLIENT SETNAME`.
pub fn set_name(client: &Client, name: &[u8], reply: &mut Reply<'_>) {
    if name.len() > RESP_NAME_BYTES_MAX {
        return reply.error(LONG_NAME);
    }
    if !is_name(name) {
        return reply.error(BAD_NAME);
    }
    client.set_name(name);
    reply.ok();
}

/// `CLIENT GETNAME`.
pub fn get_name(client: &Client, reply: &mut Reply<'_>) {
    match client.name() {
        name if name.is_empty() => reply.null(),
        name => reply.bulk(&name),
    }
}

/// `CLIENT NO-EVICT` and `CLIENT NO-TOUCH`: nobody is ever dropped to make room, and looking does not keep anything.
pub fn switch(word: &[u8], reply: &mut Reply<'_>) {
    let is_switch = word.eq_ignore_ascii_case(b"ON") || word.eq_ignore_ascii_case(b"OFF");
    if is_switch { reply.ok() } else { reply.error(SYNTAX) }
}

/// `CLIENT SETINFO`.
pub fn set_info(client: &Client, attribute: &[u8], value: &[u8], reply: &mut Reply<'_>) {
    let name = String::from_utf8_lossy(attribute).to_lowercase();
    let set: fn(&Client, &[u8]) = match name.as_str() {
        "lib-name" => Client::set_library,
        "lib-ver" => Client::set_library_version,
        _ => return reply.error(format!("ERR Unrecognized option '{}'", shown(attribute))),
    };
    if value.len() > RESP_NAME_BYTES_MAX {
        return reply.error(format!("ERR {name} is too long."));
    }
    if !is_name(value) {
        return reply.error(format!("ERR {name} cannot contain spaces, newlines or special characters."));
    }
    set(client, value);
    reply.ok();
}

/// `CLIENT LIST [TYPE type | ID id …]`.
pub fn list(door: &Door, args: Args<'_>, reply: &mut Reply<'_>) {
    let mut wanted = door.clients.all();
    match args.get(2) {
        None => {}
        Some(word) if word.eq_ignore_ascii_case(b"TYPE") && args.len() == 4 => {
            let kind = args.get(3).unwrap_or_default();
            let known: [&[u8]; 5] = [b"normal", b"master", b"replica", b"slave", b"pubsub"];
            if !known.iter().any(|name| kind.eq_ignore_ascii_case(name)) {
                return reply.error(format!("ERR Unknown client type '{}'", shown(kind)));
            }
            wanted.retain(|_| kind.eq_ignore_ascii_case(b"normal"));
        }
        Some(word) if word.eq_ignore_ascii_case(b"ID") && args.len() > 3 => {
            let ids: Option<Vec<i64>> = args.iter().skip(3).map(integer).collect();
            let Some(ids) = ids else { return reply.error("ERR Invalid client ID") };
            wanted.retain(|client| i64::try_from(client.id).is_ok_and(|id| ids.contains(&id)));
        }
        Some(_) => return reply.error(SYNTAX),
    }
    let now = door.now();
    let lines: String = wanted.iter().map(|client| client.line(now) + "\n").collect();
    reply.verbatim(&lines);
}

/// `FUNCTION FLUSH`: there are no functions to forget.
pub fn flush_functions(args: Args<'_>, reply: &mut Reply<'_>) {
    let is_known = |how: &[u8]| how.eq_ignore_ascii_case(b"SYNC") || how.eq_ignore_ascii_case(b"ASYNC");
    match (args.len(), args.get(2)) {
        (2, _) => reply.ok(),
        (3, Some(how)) if is_known(how) => reply.ok(),
        (3, _) => reply.error("ERR FUNCTION FLUSH only supports SYNC|ASYNC option"),
        _ => {
            let name = shown(args.get(1).unwrap_or_default());
            let text = format!("ERR unknown subcommand or wrong number of arguments for '{name}'. Try FUNCTION HELP.");
            reply.error(text);
        }
    }
}
