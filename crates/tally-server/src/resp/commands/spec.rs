//! The specification of a command, how it is executed, and how commands are found by name.

use std::pin::Pin;

use tally_core::event::Field;

use super::call::{CallContext, CommandCall, CommandError, EngineCall};
use super::refusal::{unknown_command, unknown_subcommand, wrong_arguments};
use crate::metrics::Verb;
use crate::resp::reply::Reply;
use crate::resp::reply_plan::ReplyPlan;
use crate::resp::session::Session;
use crate::resp::turn::Turn;
use crate::resp::wire::Args;
use crate::service::Failure;

/// A command or subcommand.
#[derive(Debug)]
pub struct Spec {
    /// Its name in lower case. A subcommand has its container's before it: `client|id`.
    pub name: &'static str,
    /// How many arguments it takes, including the name; if negative, at least that many.
    pub arity: i8,
    /// How it is executed.
    pub execution: Execution,
    /// How metrics count it.
    pub verb: Verb,
    /// Redis's flags, separated by spaces.
    pub flags: &'static str,
    /// Redis's access categories, separated by spaces.
    pub categories: &'static str,
    /// Redis's tips for cluster clients, separated by spaces.
    pub tips: &'static str,
    /// Which arguments are keys.
    pub keys: Option<Keys>,
    /// Redis's key flags of a second key, directly after the first one; `None` if there is none.
    pub second_key: Option<&'static str>,
    /// The group it is documented in.
    pub group: &'static str,
    /// The version of Redis that introduced it; Tally's own version for its own commands.
    pub since: &'static str,
    /// Its time complexity.
    pub complexity: &'static str,
    /// What it does, in a sentence.
    pub summary: &'static str,
    /// The arguments in order: optional ones in brackets, repeatable ones with dots.
    pub syntax: &'static [&'static str],
    /// Its subcommands. Empty for most commands.
    pub subcommands: &'static [&'static Spec],
}

/// Which arguments of a command are keys, and what happens to them.
#[derive(Clone, Copy, Debug)]
pub struct Keys {
    /// The first one. The command's name is 0.
    pub first: i8,
    /// The last one; if negative, counted from the end.
    pub last: i8,
    /// The step from one key to the next.
    pub step: i8,
    /// Redis's key flags, separated by spaces.
    pub access: &'static str,
}

impl Keys {
    /// The argument after the name is the key.
    pub const fn first(access: &'static str) -> Keys {
        Keys { first: 1, last: 1, step: 1, access }
    }

    /// All arguments are keys.
    pub const fn all(access: &'static str) -> Keys {
        Keys { first: 1, last: -1, step: 1, access }
    }
}

/// How a command is executed.
#[derive(Clone, Copy, Debug)]
pub enum Execution {
    /// A plain add: the hot path.
    Add(AddStep),
    /// Reads one counter: the event and its reply.
    Read(Field, ReplyPlan),
    /// Any other command on counters: adds its events and returns the plan of its reply.
    Counter(fn(&mut CommandCall<'_, '_>) -> Result<ReplyPlan, CommandError>),
    /// Calls the engine itself, once everything before it is answered.
    Engine(fn(EngineCall, Args<'_>) -> Result<EngineReply, CommandError>),
    /// Needs no engine: writes its reply at once.
    Immediate(fn(&ImmediateCall<'_>, &mut Reply<'_>)),
    /// Selects the database.
    Select,
    /// Changes the session. Executed at once, even while a transaction is queued.
    Session(fn(&mut SessionCall<'_>) -> NextStep),
    /// Changes the session in a way that is refused in a transaction.
    Handshake(fn(&mut SessionCall<'_>) -> NextStep),
}

/// What a plain add adds.
#[derive(Clone, Copy, Debug)]
pub enum AddStep {
    /// 1.
    One,
    /// -1.
    MinusOne,
    /// The second argument.
    Argument,
    /// The second argument, negated.
    NegatedArgument,
}

/// The reply of a command that calls the engine itself. The command starts when this is first polled.
pub type EngineReply = Pin<Box<dyn Future<Output = Result<Vec<u8>, Failure>>>>;

/// What the reader does after a command.
pub enum NextStep {
    /// Continues reading.
    Continue,
    /// Skips this many requests: they equal the last one and were executed with it.
    SkipRepeats(usize),
    /// Executes this once everything before it is answered.
    Defer(&'static Spec, EngineReply),
    /// Closes the connection once everything is answered.
    Close,
}

/// A command whose reply needs no engine.
pub struct ImmediateCall<'a> {
    /// The arguments. Their number is valid.
    pub args: Args<'a>,
    /// The caller.
    pub context: &'a CallContext<'a>,
    /// The command itself.
    pub spec: &'static Spec,
    /// All commands.
    pub commands: &'static CommandTable,
}

impl<'a> ImmediateCall<'a> {
    /// The argument at this index.
    pub fn arg(&self, at: usize) -> &'a [u8] {
        self.args.get(at).unwrap_or_default()
    }
}

/// A command that changes the session.
pub struct SessionCall<'a> {
    /// The arguments. Their number is valid.
    pub args: Args<'a>,
    /// The caller.
    pub context: &'a CallContext<'a>,
    /// What the connection remembers.
    pub session: &'a mut Session,
    /// Where replies and events go.
    pub turn: &'a mut Turn,
    /// All commands.
    pub commands: &'static CommandTable,
}

impl SessionCall<'_> {
    /// Adds a reply in the version of the session.
    pub fn reply(&mut self, write: impl FnOnce(&mut Reply<'_>)) {
        self.turn.reply(self.session.version, write);
    }
}

impl Spec {
    /// A command without flags, keys or documentation.
    pub const fn new(name: &'static str, arity: i8, execution: Execution) -> Spec {
        Spec {
            name,
            arity,
            execution,
            verb: Verb::Other,
            flags: "",
            categories: "",
            tips: "",
            keys: None,
            second_key: None,
            group: "",
            since: "",
            complexity: "",
            summary: "",
            syntax: &[],
            subcommands: &[],
        }
    }

    /// How metrics count it.
    pub const fn verb(mut self, verb: Verb) -> Spec {
        self.verb = verb;
        self
    }

    /// Which arguments are keys.
    pub const fn keys(mut self, keys: Keys) -> Spec {
        self.keys = Some(keys);
        self
    }

    /// The next argument is a key, too.
    pub const fn second_key(mut self, access: &'static str) -> Spec {
        self.second_key = Some(access);
        self
    }

    /// All its keys, in ranges.
    pub fn key_ranges(&self) -> impl Iterator<Item = Keys> + Clone {
        let second = self.keys.zip(self.second_key);
        let second = second.map(|(keys, access)| Keys { first: keys.first + 1, last: keys.last + 1, access, ..keys });
        self.keys.into_iter().chain(second)
    }

    /// Redis 7's flags, categories and tips, for clients that read them.
    pub const fn redis(mut self, flags: &'static str, categories: &'static str, tips: &'static str) -> Spec {
        (self.flags, self.categories, self.tips) = (flags, categories, tips);
        self
    }

    /// The arguments as `COMMAND DOCS` shows them.
    pub const fn syntax(mut self, syntax: &'static [&'static str]) -> Spec {
        self.syntax = syntax;
        self
    }

    /// Makes it a container.
    pub const fn subcommands(mut self, subcommands: &'static [&'static Spec]) -> Spec {
        self.subcommands = subcommands;
        self
    }

    /// The rest of `COMMAND DOCS`: group, version, complexity and summary.
    pub const fn docs(
        mut self,
        group: &'static str,
        since: &'static str,
        complexity: &'static str,
        summary: &'static str,
    ) -> Spec {
        (self.group, self.since) = (group, since);
        (self.complexity, self.summary) = (complexity, summary);
        self
    }

    /// Whether this many arguments, including the name, are valid for this command.
    #[inline]
    pub fn takes(&self, args: usize) -> bool {
        let bound = usize::from(self.arity.unsigned_abs());
        if self.arity < 0 { args >= bound } else { args == bound }
    }

    /// Whether clients may send it before they are authenticated.
    #[cfg_attr(not(test), expect(dead_code, reason = "there is no authentication yet"))]
    pub fn needs_no_authentication(&self) -> bool {
        self.flags.split(' ').any(|flag| flag == "no_auth")
    }

    /// Whether it is executed while the server is recovering.
    pub fn works_while_loading(&self) -> bool {
        self.flags.split(' ').any(|flag| flag == "loading")
    }

    /// A subcommand's name without its container's.
    pub fn short_name(&self) -> &'static str {
        self.name.split_once('|').map_or(self.name, |(_, name)| name)
    }

    /// The subcommand with this name, in any case.
    pub fn subcommand(&self, name: &[u8]) -> Option<&'static Spec> {
        self.subcommands.iter().copied().find(|spec| spec.short_name().as_bytes().eq_ignore_ascii_case(name))
    }
}

/// Longest name of a command.
const NAME_BYTES_MAX: usize = 16;

/// All commands by name, in the order in which they are listed.
pub struct CommandTable(pub phf::OrderedMap<&'static str, &'static Spec>);

impl CommandTable {
    /// The command with this name, in any case. Subcommands are not found here.
    pub fn find(&self, name: &[u8]) -> Option<&'static Spec> {
        let mut lower = [0; NAME_BYTES_MAX];
        let lower = lower.get_mut(..name.len())?;
        lower.copy_from_slice(name);
        lower.make_ascii_lowercase();
        self.0.get(std::str::from_utf8(lower).ok()?).copied()
    }

    /// The command or subcommand with this full name, such as `client|id`.
    pub fn find_full(&self, name: &[u8]) -> Option<&'static Spec> {
        match name.iter().position(|byte| *byte == b'|') {
            None => self.find(name),
            Some(bar) => self.find(&name[..bar])?.subcommand(&name[bar + 1..]),
        }
    }

    /// All commands in order.
    pub fn commands(&self) -> impl ExactSizeIterator<Item = &'static Spec> + Clone {
        self.0.values().copied()
    }

    /// All commands in order, each with its subcommands after it.
    pub fn commands_and_subcommands(&self) -> impl Iterator<Item = &'static Spec> {
        self.commands().flat_map(|spec| std::iter::once(spec).chain(spec.subcommands.iter().copied()))
    }

    /// The command of a request, or the text of the error if there is none or the number of arguments is wrong. `found`
    /// is the command, if it was already looked up.
    #[inline]
    pub fn resolve(&self, args: &Args<'_>, found: Option<&'static Spec>) -> Result<&'static Spec, Vec<u8>> {
        let Some(mut spec) = found.or_else(|| self.find(args.name())) else { return Err(unknown_command(args)) };
        if !spec.subcommands.is_empty()
            && let Some(name) = args.get(1)
        {
            spec = spec.subcommand(name).ok_or_else(|| unknown_subcommand(spec.name, name))?;
        }
        if spec.takes(args.len()) { Ok(spec) } else { Err(wrong_arguments(spec.name)) }
    }
}
