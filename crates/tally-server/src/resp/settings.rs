//! `CONFIG`: the settings that tools ask for, told in the words of Redis.

use super::door::Door;
use super::errors::shown;
use super::glob::{Case, matches};
use super::reply::Reply;
use super::wire::Args;

/// Every setting with its value. Each acknowledgement is flushed first, which Redis calls `appendfsync always`.
fn all(door: &Door) -> [(&'static str, String); 13] {
    let about = &door.about;
    [
        ("appendfsync", "always".to_owned()),
        ("appendonly", "yes".to_owned()),
        ("bind", about.address.ip().to_string()),
        ("databases", "1".to_owned()),
        ("dir", about.data.clone()),
        ("maxclients", about.connections_max.to_string()),
        ("maxmemory", about.memory_bytes.to_string()),
        ("maxmemory-policy", "noeviction".to_owned()),
        ("port", about.address.port().to_string()),
        ("proto-max-bulk-len", crate::limits::RESP_BULK_BYTES_MAX.to_string()),
        ("save", String::new()),
        ("tcp-keepalive", crate::limits::RESP_KEEPALIVE.as_secs().to_string()),
        ("timeout", "0".to_owned()),
    ]
}

/// `CONFIG GET pattern …`.
pub fn get(door: &Door, args: Args<'_>, reply: &mut Reply<'_>) {
    let mut found = all(door).to_vec();
    found.retain(|(name, _)| args.iter().skip(2).any(|pattern| matches(pattern, name.as_bytes(), Case::Ignored)));
    reply.map(found.len());
    for (name, value) in found {
        reply.bulk(name.as_bytes());
        reply.bulk(value.as_bytes());
    }
}

/// `CONFIG SET`: nothing can be changed while running; what is already so may be said again.
pub fn set(door: &Door, args: Args<'_>, reply: &mut Reply<'_>) {
    let settings = all(door);
    let mut pairs = args.iter().skip(2);
    while let Some(name) = pairs.next() {
        let shown = shown(name);
        let Some((_, current)) = settings.iter().find(|(known, _)| name.eq_ignore_ascii_case(known.as_bytes())) else {
            return reply.error(format!("ERR Unknown option or number of arguments for CONFIG SET - '{shown}'"));
        };
        let Some(value) = pairs.next() else {
            return reply.error(format!("ERR Unknown option or number of arguments for CONFIG SET - '{shown}'"));
        };
        if !value.eq_ignore_ascii_case(current.as_bytes()) {
            let text = "can't set immutable config";
            return reply.error(format!("ERR CONFIG SET failed (possibly related to argument '{shown}') - {text}"));
        }
    }
    reply.ok();
}
