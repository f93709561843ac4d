//! The server's clock, and `FUNCTION`, which exists for test suites.

use super::introspection::{help, wrong_arguments};
use super::spec::{Execution, ImmediateCall, Spec};
use crate::resp::errors::shown;
use crate::resp::reply::Reply;

pub static TIME: Spec = Spec::new("time", 1, Execution::Immediate(time))
    .redis("loading stale fast", "@fast", "nondeterministic_output")
    .docs("server", "2.6.0", "O(1)", "Returns the server's time.");

/// Seconds and microseconds.
fn time(call: &ImmediateCall<'_>, reply: &mut Reply<'_>) {
    let now = call.context.server.now();
    reply.array(2);
    reply.bulk((now.0 / 1000).to_string().as_bytes());
    reply.bulk((now.0 % 1000 * 1000).to_string().as_bytes());
}

pub static FUNCTION: Spec = Spec::new("function", -2, Execution::Immediate(wrong_arguments))
    .redis("", "@slow", "")
    .subcommands(&[&FUNCTION_FLUSH, &FUNCTION_HELP])
    .docs(
        "scripting",
        "7.0.0",
        "Depends on the subcommand.",
        "Accepted for test suites that start with FUNCTION FLUSH.",
    );

pub static FUNCTION_FLUSH: Spec = Spec::new("function|flush", -2, Execution::Immediate(flush_functions))
    .redis("write noscript", "@write @slow @scripting", "request_policy:all_shards response_policy:all_succeeded")
    .syntax(&["[ASYNC | SYNC]"])
    .docs("scripting", "7.0.0", "O(1)", "Accepted for compatibility. There are no functions to delete.");

/// There are no functions to delete.
fn flush_functions(call: &ImmediateCall<'_>, reply: &mut Reply<'_>) {
    let is_known = |how: &[u8]| how.eq_ignore_ascii_case(b"SYNC") || how.eq_ignore_ascii_case(b"ASYNC");
    match (call.args.len(), call.args.get(2)) {
        (2, _) => reply.ok(),
        (3, Some(how)) if is_known(how) => reply.ok(),
        (3, _) => reply.error("ERR FUNCTION FLUSH only supports SYNC|ASYNC option"),
        _ => {
            let name = shown(call.arg(1));
            let text = format!("ERR unknown subcommand or wrong number of arguments for '{name}'. Try FUNCTION HELP.");
            reply.error(text);
        }
    }
}

pub static FUNCTION_HELP: Spec = Spec::new("function|help", 2, Execution::Immediate(help))
    .redis("loading stale", "@slow @scripting", "")
    .docs("scripting", "7.0.0", "O(1)", "Lists the subcommands.");
