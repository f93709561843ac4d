//! `COMMAND`: describes the commands; also the `HELP` of containers.

use super::refusal;
use super::spec::{CommandTable, Execution, ImmediateCall, Keys, Spec};
use crate::resp::errors::SYNTAX;
use crate::resp::glob::{Case, Pattern};
use crate::resp::reply::Reply;

/// Elements that describe one command.
const INFO_ELEMENTS: usize = 10;

pub static COMMAND: Spec = Spec::new("command", -1, Execution::Immediate(command))
    .redis("loading stale", "@slow @connection", "nondeterministic_output_order")
    .subcommands(&[&COMMAND_COUNT, &COMMAND_DOCS, &COMMAND_INFO, &COMMAND_LIST, &COMMAND_GETKEYS, &COMMAND_HELP])
    .docs(
        "server",
        "2.8.13",
        "O(N) for N commands",
        "Returns details about all commands. Also a container for subcommands.",
    );

pub static COMMAND_INFO: Spec = Spec::new("command|info", -2, Execution::Immediate(command))
    .redis("loading stale", "@slow @connection", "nondeterministic_output_order")
    .syntax(&["[command-name...]"])
    .docs("server", "2.8.13", "O(N) for N commands", "Returns details about one or more commands, or about all.");

/// A description of each command named, or of all if none is named.
fn command(call: &ImmediateCall<'_>, reply: &mut Reply<'_>) {
    describe_all(call.commands, call.args.iter().skip(2), reply);
}

/// The reply of `COMMAND INFO`.
pub fn describe_all<'a>(
    commands: &CommandTable,
    names: impl ExactSizeIterator<Item = &'a [u8]>,
    reply: &mut Reply<'_>,
) {
    if names.len() == 0 {
        reply.array(commands.commands().len());
        commands.commands().for_each(|spec| describe(reply, spec));
        return;
    }
    reply.array(names.len());
    for name in names {
        match commands.find_full(name) {
            Some(spec) => describe(reply, spec),
            None => reply.null(),
        }
    }
}

pub static COMMAND_COUNT: Spec = Spec::new("command|count", 2, Execution::Immediate(count))
    .redis("loading stale", "@slow @connection", "")
    .docs("server", "2.8.13", "O(1)", "Returns the number of commands.");

fn count(call: &ImmediateCall<'_>, reply: &mut Reply<'_>) {
    reply.integer(i64::try_from(call.commands.commands().len()).unwrap_or(i64::MAX));
}

pub static COMMAND_DOCS: Spec = Spec::new("command|docs", -2, Execution::Immediate(docs))
    .redis("loading stale", "@slow @connection", "nondeterministic_output_order")
    .syntax(&["[command-name...]"])
    .docs("server", "7.0.0", "O(N) for N commands", "Returns the documentation of commands.");

/// The documentation of each command named, or of all if none is named. Unknown names are left out.
fn docs(call: &ImmediateCall<'_>, reply: &mut Reply<'_>) {
    explain_all(call.commands, call.args.iter().skip(2), reply);
}

/// The reply of `COMMAND DOCS`.
pub fn explain_all<'a>(commands: &CommandTable, names: impl ExactSizeIterator<Item = &'a [u8]>, reply: &mut Reply<'_>) {
    let specs: Vec<_> = match names.len() {
        0 => commands.commands().collect(),
        _ => names.filter_map(|name| commands.find_full(name)).collect(),
    };
    reply.map(specs.len());
    specs.into_iter().for_each(|spec| explain(reply, spec));
}

pub static COMMAND_LIST: Spec = Spec::new("command|list", -2, Execution::Immediate(list))
    .redis("loading stale", "@slow @connection", "nondeterministic_output_order")
    .syntax(&["[FILTERBY filter]"])
    .docs("server", "7.0.0", "O(N) for N commands", "Returns the names of commands.");

/// `[FILTERBY (MODULE | ACLCAT | PATTERN) value]`
fn list(call: &ImmediateCall<'_>, reply: &mut Reply<'_>) {
    match call.args.len() {
        2 => names(reply, &call.commands.commands_and_subcommands().map(|spec| spec.name).collect::<Vec<_>>()),
        5 if call.arg(2).eq_ignore_ascii_case(b"FILTERBY") => match filtered(call.commands, call.arg(3), call.arg(4)) {
            Ok(found) => names(reply, &found),
            Err(text) => reply.error(text),
        },
        _ => reply.error(SYNTAX),
    }
}

/// The names that pass a filter; the text of an error if there is no such filter.
pub fn filtered(commands: &CommandTable, filter: &[u8], by: &[u8]) -> Result<Vec<&'static str>, String> {
    let has_category =
        |spec: &Spec| words(spec.categories).any(|category| category.as_bytes()[1..].eq_ignore_ascii_case(by));
    let all = commands.commands_and_subcommands();
    if filter.eq_ignore_ascii_case(b"pattern") {
        let pattern = Pattern::parse(by)?;
        let matching = all.filter(|spec| pattern.matches(spec.name.as_bytes(), Case::Insensitive));
        Ok(matching.map(|spec| spec.name).collect())
    } else if filter.eq_ignore_ascii_case(b"aclcat") {
        Ok(all.filter(|spec| has_category(spec)).map(|spec| spec.name).collect())
    } else if filter.eq_ignore_ascii_case(b"module") {
        // No command comes from a loaded module.
        Ok(Vec::new())
    } else {
        Err(SYNTAX.to_owned())
    }
}

pub static COMMAND_GETKEYS: Spec = Spec::new("command|getkeys", -4, Execution::Immediate(get_keys))
    .redis("loading stale", "@slow @connection", "")
    .syntax(&["command", "[arg...]"])
    .docs("server", "2.8.13", "O(N) for N arguments", "Extracts the keys from a request.");

fn get_keys(call: &ImmediateCall<'_>, reply: &mut Reply<'_>) {
    let request: Vec<&[u8]> = call.args.iter().skip(2).collect();
    match keys_of(call.commands, &request) {
        Ok(keys) => {
            reply.array(keys.len());
            keys.iter().for_each(|key| reply.bulk(key));
        }
        Err(text) => reply.error(text),
    }
}

/// The keys of a request, given its arguments; the text of an error if it has none.
pub fn keys_of<'a>(commands: &CommandTable, request: &[&'a [u8]]) -> Result<Vec<&'a [u8]>, &'static str> {
    const UNKNOWN: &str = "ERR Invalid command specified";
    const KEYLESS: &str = "ERR The command has no key arguments";
    let mut spec = request.first().and_then(|name| commands.find(name)).ok_or(UNKNOWN)?;
    if !spec.subcommands.is_empty()
        && let Some(sub) = request.get(1)
    {
        spec = spec.subcommand(sub).ok_or(UNKNOWN)?;
    }
    if spec.keys.is_none() {
        return Err(KEYLESS);
    }
    if !spec.takes(request.len()) {
        return Err("ERR Invalid number of arguments specified for command");
    }
    let places = spec.key_ranges().flat_map(|keys| {
        let last = match usize::try_from(keys.last) {
            Ok(last) => last,
            Err(_) => request.len() - usize::from(keys.last.unsigned_abs()),
        };
        (usize::from(keys.first.unsigned_abs())..=last).step_by(usize::from(keys.step.unsigned_abs()).max(1))
    });
    Ok(places.filter_map(|place| request.get(place).copied()).collect())
}

pub static COMMAND_HELP: Spec = Spec::new("command|help", 2, Execution::Immediate(help))
    .redis("loading stale", "@slow @connection", "")
    .docs("server", "5.0.0", "O(1)", "Lists the subcommands.");

/// The `HELP` of a container.
pub fn help(call: &ImmediateCall<'_>, reply: &mut Reply<'_>) {
    help_of(call.commands, call.spec, reply);
}

/// Lists the subcommands of the container whose `HELP` is `spec`.
pub fn help_of(commands: &CommandTable, spec: &Spec, reply: &mut Reply<'_>) {
    let container = spec.name.split('|').next().unwrap_or_default();
    let subcommands = commands.find(container.as_bytes()).map_or(&[][..], |spec| spec.subcommands);
    reply.array(1 + 2 * subcommands.len());
    let container = container.to_ascii_uppercase();
    reply.simple(&format!("{container} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:"));
    for spec in subcommands {
        reply.simple(&spec.short_name().to_ascii_uppercase());
        reply.simple(&format!("    {}", spec.summary));
    }
}

/// A container without a subcommand.
pub fn wrong_arguments(call: &ImmediateCall<'_>, reply: &mut Reply<'_>) {
    reply.error(refusal::wrong_arguments(call.spec.name));
}

fn names(reply: &mut Reply<'_>, names: &[&str]) {
    reply.array(names.len());
    names.iter().for_each(|name| reply.bulk(name.as_bytes()));
}

fn describe(reply: &mut Reply<'_>, spec: &Spec) {
    reply.array(INFO_ELEMENTS);
    reply.bulk(spec.name.as_bytes());
    reply.integer(spec.arity.into());
    set_of_words(reply, spec.flags);
    let ranges = spec.key_ranges();
    let (first, step) = ranges.clone().next().map_or((0, 0), |keys| (keys.first, keys.step));
    let last = ranges.clone().last().map_or(0, |keys| keys.last);
    [first, last, step].into_iter().for_each(|number| reply.integer(number.into()));
    set_of_words(reply, spec.categories);
    reply.set(words(spec.tips).count());
    words(spec.tips).for_each(|tip| reply.bulk(tip.as_bytes()));
    reply.set(ranges.clone().count());
    ranges.for_each(|keys| describe_keys(reply, &keys));
    // As in Redis: an empty set, but an array of subcommands.
    match spec.subcommands.len() {
        0 => reply.set(0),
        subcommands => reply.array(subcommands),
    }
    spec.subcommands.iter().for_each(|sub| describe(reply, sub));
}

fn describe_keys(reply: &mut Reply<'_>, keys: &Keys) {
    reply.map(3);
    reply.bulk(b"flags");
    set_of_words(reply, keys.access);
    reply.bulk(b"begin_search");
    search(reply, b"index", &[(b"index", keys.first)]);
    reply.bulk(b"find_keys");
    // Counted from the first key, or from the end when negative.
    let last = if keys.last < 0 { keys.last } else { keys.last - keys.first };
    search(reply, b"range", &[(b"lastkey", last), (b"keystep", keys.step), (b"limit", 0)]);
}

fn search(reply: &mut Reply<'_>, kind: &[u8], numbers: &[(&[u8], i8)]) {
    reply.map(2);
    reply.bulk(b"type");
    reply.bulk(kind);
    reply.bulk(b"spec");
    reply.map(numbers.len());
    for (name, number) in numbers {
        reply.bulk(name);
        reply.integer((*number).into());
    }
}

fn explain(reply: &mut Reply<'_>, spec: &Spec) {
    let has_subcommands = !spec.subcommands.is_empty();
    let texts =
        [("summary", spec.summary), ("since", spec.since), ("group", spec.group), ("complexity", spec.complexity)];
    reply.bulk(spec.name.as_bytes());
    let has_arguments = !spec.syntax.is_empty();
    reply.map(texts.len() + usize::from(has_arguments) + usize::from(has_subcommands));
    for (name, text) in texts {
        reply.bulk(name.as_bytes());
        reply.bulk(text.as_bytes());
    }
    if has_arguments {
        reply.bulk(b"arguments");
        arguments(reply, spec.syntax);
    }
    if has_subcommands {
        reply.bulk(b"subcommands");
        reply.map(spec.subcommands.len());
        spec.subcommands.iter().for_each(|sub| explain(reply, sub));
    }
}

fn set_of_words(reply: &mut Reply<'_>, text: &str) {
    reply.set(words(text).count());
    words(text).for_each(|word| reply.simple(word));
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split_ascii_whitespace()
}

/// Writes the list of arguments.
fn arguments(reply: &mut Reply<'_>, syntax: &[&str]) {
    reply.array(syntax.len());
    syntax.iter().for_each(|text| argument(reply, text));
}

/// Writes one argument: `name`, `TOKEN`, `TOKEN name`, or several of these separated by bars. Brackets make it
/// optional; dots make it repeatable.
fn argument(reply: &mut Reply<'_>, text: &str) {
    let inner = text.strip_prefix('[').and_then(|text| text.strip_suffix(']'));
    let text = inner.unwrap_or(text);
    let one = text.strip_suffix("...");
    let text = one.unwrap_or(text);
    let flags: Vec<&str> = [inner.map(|_| "optional"), one.map(|_| "multiple")].into_iter().flatten().collect();
    let parts = ArgumentParts::of(text);
    let fields = usize::from(parts.token.is_some()) + usize::from(!parts.arguments.is_empty());
    let is_key = parts.kind == "key";
    reply.map(2 + fields + usize::from(is_key) + usize::from(!flags.is_empty()));
    for (field, value) in [("name", parts.name.as_str()), ("type", parts.kind)] {
        reply.bulk(field.as_bytes());
        reply.bulk(value.as_bytes());
    }
    if is_key {
        reply.bulk(b"key_spec_index");
        reply.integer(0);
    }
    if let Some(token) = parts.token {
        reply.bulk(b"token");
        reply.bulk(token.as_bytes());
    }
    if !flags.is_empty() {
        reply.bulk(b"flags");
        reply.set(flags.len());
        flags.iter().for_each(|flag| reply.simple(flag));
    }
    if !parts.arguments.is_empty() {
        reply.bulk(b"arguments");
        arguments(reply, &parts.arguments);
    }
}

/// An argument as `COMMAND DOCS` describes it.
struct ArgumentParts<'a> {
    name: String,
    kind: &'static str,
    /// The word that goes before the value.
    token: Option<&'a str>,
    /// The alternatives, or the values after a token.
    arguments: Vec<&'a str>,
}

impl<'a> ArgumentParts<'a> {
    fn of(text: &'a str) -> Self {
        let is_token = |word: &str| word.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'-');
        let choices: Vec<&str> = text.split(" | ").collect();
        if choices.len() > 1 {
            let first_words = choices.iter().filter_map(|choice| choice.split(' ').next());
            let name = first_words.map(str::to_lowercase).collect::<Vec<_>>().join("-or-");
            return ArgumentParts { name, kind: "oneof", token: None, arguments: choices };
        }
        match text.split_once(' ') {
            None if is_token(text) => ArgumentParts {
                name: text.to_lowercase(),
                kind: "pure-token",
                token: Some(text),
                arguments: Vec::new(),
            },
            Some((token, name)) if is_token(token) && !name.contains(' ') => {
                ArgumentParts { name: name.to_owned(), kind: kind_of(name), token: Some(token), arguments: Vec::new() }
            }
            Some((token, rest)) if is_token(token) => {
                let arguments = rest.split(' ').collect();
                ArgumentParts { name: token.to_lowercase(), kind: "block", token: Some(token), arguments }
            }
            _ => ArgumentParts { name: text.to_owned(), kind: kind_of(text), token: None, arguments: Vec::new() },
        }
    }
}

/// Redis's type for the argument of this name.
fn kind_of(name: &str) -> &'static str {
    const INTEGERS: [&str; 18] = [
        "increment",
        "decrement",
        "lowest",
        "highest",
        "delta",
        "seconds",
        "milliseconds",
        "index",
        "index1",
        "index2",
        "count",
        "protover",
        "cursor",
        "db",
        "numreplicas",
        "timeout",
        "client-id",
        "destination-db",
    ];
    match name {
        "key" | "newkey" | "source" | "destination" => "key",
        "pattern" => "pattern",
        name if name.starts_with("unix-time-") => "unix-time",
        name if INTEGERS.contains(&name) => "integer",
        _ => "string",
    }
}
