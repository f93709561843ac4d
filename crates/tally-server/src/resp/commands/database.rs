//! Databases and cluster nodes, of which there is one each: `SELECT`, `SWAPDB`, `MOVE`, and what cluster clients send.
//!
//! Some clients carry on after a refused `SELECT`, and would then count in database 0 what belongs elsewhere. So a
//! connection that selected another database gets errors until it selects database 0 or resets
//! ([decision 0027](../../../../../docs/decisions/0027-a-refused-select-stops-the-connection.md)).

use super::call::{CommandCall, CommandError};
use super::spec::{Execution, ImmediateCall, Keys, NextStep, SessionCall, Spec};
use super::transactions;
use crate::admission::Action;
use crate::limits::RESP_DATABASE_SHOWN_BYTES_MAX;
use crate::resp::errors::{NOT_AN_INTEGER, shown};
use crate::resp::reply::Reply;
use crate::resp::reply_plan::ReplyPlan;
use crate::resp::session::Session;
use crate::resp::turn::{CommandStatus, Turn};
use crate::resp::wire::{Args, integer};

/// No database has this number.
pub const OUT_OF_RANGE: &str = "ERR DB index is out of range";
/// Source and destination are the same key of the same database.
pub const SAME_OBJECT: &str = "ERR source and destination objects are the same";
const NO_CLUSTER: &str = "ERR This instance has cluster support disabled";

pub static SELECT: Spec = Spec::new("select", 2, Execution::Select)
    .redis("loading stale fast", "@fast @connection", "")
    .syntax(&["index"])
    .docs("connection", "1.0.0", "O(1)", "Selects the database. There is only database 0.");

/// Whether the argument names the only database.
pub fn is_known(args: Args<'_>) -> bool {
    integer(args.get(1).unwrap_or_default()) == Some(0)
}

/// Selects the database, or makes the connection refuse commands.
pub fn select(call: &mut SessionCall<'_>) -> NextStep {
    let args = call.args;
    note(call.session, args);
    call.reply(|reply| write_selected(args, reply));
    NextStep::Continue
}

/// Remembers whether the selected database exists.
pub fn note(session: &mut Session, args: Args<'_>) {
    let name = args.get(1).unwrap_or_default();
    let name = name.get(..RESP_DATABASE_SHOWN_BYTES_MAX).unwrap_or(name);
    session.refused_database = if is_known(args) { None } else { Some(shown(name).into()) };
}

/// The reply of `SELECT`.
pub fn write_selected(args: Args<'_>, reply: &mut Reply<'_>) {
    match selected(args) {
        Ok(()) => reply.ok(),
        Err(text) => reply.error(text),
    }
}

/// Why a database cannot be selected.
pub fn selected(args: Args<'_>) -> Result<(), &'static str> {
    match integer(args.get(1).unwrap_or_default()) {
        Some(0) => Ok(()),
        Some(_) => Err(OUT_OF_RANGE),
        None => Err(NOT_AN_INTEGER),
    }
}

/// Whether a command is executed even though the selected database does not exist.
#[cold]
pub fn is_allowed(session: &Session, spec: &Spec) -> bool {
    match spec.name {
        "select" | "hello" | "auth" | "reset" | "quit" => true,
        // They end the transaction, which the refused `SELECT` has aborted.
        "exec" | "discard" => session.transaction.is_some(),
        _ => false,
    }
}

/// Refuses a command because the selected database does not exist.
#[cold]
pub fn refuse(session: &mut Session, spec: &Spec, turn: &mut Turn) -> NextStep {
    turn.count((spec.name, spec.verb), CommandStatus::Refused, 1);
    let name = session.refused_database.as_deref().unwrap_or_default();
    let text = format!(
        "ERR this connection selected database {name}, but there is only database 0; nothing was executed: send SELECT \
         0, or connect without a database number"
    );
    transactions::refuse(session, turn, text)
}

pub static SWAPDB: Spec = Spec::new("swapdb", 3, Execution::Immediate(swapdb))
    .redis("write fast", "@keyspace @write @fast @dangerous", "")
    .syntax(&["index1", "index2"])
    .docs("server", "4.0.0", "O(1)", "Swaps two databases. There is only database 0, which swaps with itself.");

fn swapdb(call: &ImmediateCall<'_>, reply: &mut Reply<'_>) {
    match [1, 2].map(|at| integer(call.arg(at))) {
        [None, _] => reply.error("ERR invalid first DB index"),
        [_, None] => reply.error("ERR invalid second DB index"),
        [Some(0), Some(0)] => reply.ok(),
        _ => reply.error(OUT_OF_RANGE),
    }
}

pub static MOVE: Spec = Spec::new("move", 3, Execution::Counter(move_key))
    .keys(Keys::first("RW access update"))
    .redis("write fast", "@keyspace @write @fast", "")
    .syntax(&["key", "db"])
    .docs("generic", "1.0.0", "O(1)", "Moves a key to another database. There is only database 0.");

/// Always refused: there is nowhere to move a key to.
fn move_key(call: &mut CommandCall<'_, '_>) -> Result<ReplyPlan, CommandError> {
    call.key(Action::Read)?;
    Err(if call.integer(2)? == 0 { SAME_OBJECT } else { OUT_OF_RANGE }.into())
}

pub static CLUSTER: Spec = Spec::new("cluster", -2, Execution::Immediate(no_cluster))
    .redis("", "@slow", "")
    .subcommands(&CLUSTER_SUBCOMMANDS)
    .docs("cluster", "3.0.0", "O(1)", "Refused: clients see a single server, even in a Tally cluster.");

/// Commands that Redis refuses without a cluster: name, arity, flags, categories and tips.
macro_rules! refused_without_cluster {
    ($(($name:literal, $arity:literal, $flags:literal, $categories:literal, $tips:literal),)*) => {
        [$({
            static SPEC: Spec = Spec::new($name, $arity, Execution::Immediate(no_cluster))
                .redis($flags, $categories, $tips)
                .docs("cluster", "3.0.0", "O(1)", "Refused: clients see a single server, even in a Tally cluster.");
            &SPEC
        }),*]
    };
}

static CLUSTER_SUBCOMMANDS: [&Spec; 27] = refused_without_cluster![
    ("cluster|addslots", -3, "admin stale no_async_loading", "@admin @slow @dangerous", ""),
    ("cluster|addslotsrange", -4, "admin stale no_async_loading", "@admin @slow @dangerous", ""),
    ("cluster|bumpepoch", 2, "admin stale no_async_loading", "@admin @slow @dangerous", "nondeterministic_output"),
    ("cluster|count-failure-reports", 3, "admin stale", "@admin @slow @dangerous", "nondeterministic_output"),
    ("cluster|countkeysinslot", 3, "stale", "@slow", ""),
    ("cluster|delslots", -3, "admin stale no_async_loading", "@admin @slow @dangerous", ""),
    ("cluster|delslotsrange", -4, "admin stale no_async_loading", "@admin @slow @dangerous", ""),
    ("cluster|failover", -2, "admin stale no_async_loading", "@admin @slow @dangerous", ""),
    ("cluster|flushslots", 2, "admin stale no_async_loading", "@admin @slow @dangerous", ""),
    ("cluster|forget", 3, "admin stale no_async_loading", "@admin @slow @dangerous", ""),
    ("cluster|getkeysinslot", 4, "stale", "@slow", "nondeterministic_output"),
    ("cluster|help", 2, "loading stale", "@slow", ""),
    ("cluster|info", 2, "stale", "@slow", "nondeterministic_output"),
    ("cluster|keyslot", 3, "stale", "@slow", ""),
    ("cluster|links", 2, "stale", "@slow", "nondeterministic_output"),
    ("cluster|meet", -4, "admin stale no_async_loading", "@admin @slow @dangerous", ""),
    ("cluster|myid", 2, "stale", "@slow", ""),
    ("cluster|nodes", 2, "stale", "@slow", "nondeterministic_output"),
    ("cluster|replicas", 3, "admin stale", "@admin @slow @dangerous", "nondeterministic_output"),
    ("cluster|replicate", 3, "admin stale no_async_loading", "@admin @slow @dangerous", ""),
    ("cluster|reset", -2, "admin noscript stale", "@admin @slow @dangerous", ""),
    ("cluster|saveconfig", 2, "admin stale no_async_loading", "@admin @slow @dangerous", ""),
    ("cluster|set-config-epoch", 3, "admin stale no_async_loading", "@admin @slow @dangerous", ""),
    ("cluster|setslot", -4, "admin stale no_async_loading", "@admin @slow @dangerous", ""),
    ("cluster|shards", 2, "stale", "@slow", "nondeterministic_output"),
    ("cluster|slaves", 3, "admin stale", "@admin @slow @dangerous", "nondeterministic_output"),
    ("cluster|slots", 2, "stale", "@slow", "nondeterministic_output"),
];

pub static READONLY: Spec = Spec::new("readonly", 1, Execution::Immediate(no_cluster))
    .redis("loading stale fast", "@fast @connection", "")
    .docs("cluster", "3.0.0", "O(1)", "Refused: clients see a single server, even in a Tally cluster.");

pub static READWRITE: Spec = Spec::new("readwrite", 1, Execution::Immediate(no_cluster))
    .redis("loading stale fast", "@fast @connection", "")
    .docs("cluster", "3.0.0", "O(1)", "Refused: clients see a single server, even in a Tally cluster.");

pub static ASKING: Spec = Spec::new("asking", 1, Execution::Immediate(no_cluster))
    .redis("fast", "@fast @connection", "")
    .docs("cluster", "3.0.0", "O(1)", "Refused: clients see a single server, even in a Tally cluster.");

fn no_cluster(_: &ImmediateCall<'_>, reply: &mut Reply<'_>) {
    reply.error(NO_CLUSTER);
}
