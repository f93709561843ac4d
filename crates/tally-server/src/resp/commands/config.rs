//! `CONFIG`: the settings that tools read, under Redis's names.

use super::introspection::{help, wrong_arguments};
use super::spec::{Execution, ImmediateCall, Spec};
use crate::resp::errors::shown;
use crate::resp::glob::{Case, Pattern};
use crate::resp::reply::Reply;
use crate::resp::server::RespServer;

pub static CONFIG: Spec = Spec::new("config", -2, Execution::Immediate(wrong_arguments))
    .redis("", "@slow", "")
    .subcommands(&[&CONFIG_GET, &CONFIG_SET, &CONFIG_RESETSTAT, &CONFIG_HELP])
    .docs("server", "2.0.0", "Depends on the subcommand.", "A container for server configuration commands.");

/// Every setting with its value. Except in `best-effort` namespaces, writes are flushed before they are acknowledged,
/// which Redis calls `appendfsync always`.
fn all(server: &RespServer) -> [(&'static str, String); 15] {
    let settings = &server.settings;
    [
        ("appendfsync", "always".to_owned()),
        ("appendonly", "yes".to_owned()),
        ("bind", settings.address.ip().to_string()),
        ("databases", "1".to_owned()),
        ("dir", settings.data.clone()),
        ("latency-monitor-threshold", "0".to_owned()),
        ("maxclients", settings.connections_max.to_string()),
        ("maxmemory", settings.memory_bytes.to_string()),
        ("maxmemory-policy", "noeviction".to_owned()),
        ("port", settings.address.port().to_string()),
        ("proto-max-bulk-len", crate::limits::RESP_BULK_BYTES_MAX.to_string()),
        ("save", String::new()),
        ("slowlog-log-slower-than", "-1".to_owned()),
        ("tcp-keepalive", crate::limits::RESP_KEEPALIVE.as_secs().to_string()),
        ("timeout", "0".to_owned()),
    ]
}

pub static CONFIG_GET: Spec = Spec::new("config|get", -3, Execution::Immediate(get))
    .redis("admin noscript loading stale", "@admin @slow @dangerous", "")
    .syntax(&["parameter..."])
    .docs("server", "2.0.0", "O(N) for N settings", "Returns the settings that match a pattern.");

fn get(call: &ImmediateCall<'_>, reply: &mut Reply<'_>) {
    let patterns: Vec<Pattern> = match call.args.iter().skip(2).map(Pattern::parse).collect() {
        Ok(patterns) => patterns,
        Err(text) => return reply.error(text),
    };
    let mut found = all(call.context.server).to_vec();
    found.retain(|(name, _)| patterns.iter().any(|pattern| pattern.matches(name.as_bytes(), Case::Insensitive)));
    reply.map(found.len());
    for (name, value) in found {
        reply.bulk(name.as_bytes());
        reply.bulk(value.as_bytes());
    }
}

pub static CONFIG_SET: Spec = Spec::new("config|set", -4, Execution::Immediate(set))
    .redis(
        "admin noscript loading stale",
        "@admin @slow @dangerous",
        "request_policy:all_nodes response_policy:all_succeeded",
    )
    .syntax(&["parameter", "value"])
    .docs(
        "server",
        "2.0.0",
        "O(N) for N settings",
        "Accepts only the current value of a setting; nothing can be changed while the server runs.",
    );

/// Nothing can be changed while the server runs; setting the current value is accepted.
fn set(call: &ImmediateCall<'_>, reply: &mut Reply<'_>) {
    let settings = all(call.context.server);
    let mut pairs = call.args.iter().skip(2);
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

pub static CONFIG_RESETSTAT: Spec = Spec::new("config|resetstat", 2, Execution::Immediate(reset_stat))
    .redis("admin noscript loading stale", "@admin @slow @dangerous", "")
    .docs("server", "2.0.0", "O(1)", "Accepted for compatibility. Does not reset the statistics of INFO.");

fn reset_stat(_: &ImmediateCall<'_>, reply: &mut Reply<'_>) {
    reply.ok();
}

pub static CONFIG_HELP: Spec = Spec::new("config|help", 2, Execution::Immediate(help))
    .redis("loading stale", "@slow", "")
    .docs("server", "5.0.0", "O(1)", "Lists the subcommands.");
