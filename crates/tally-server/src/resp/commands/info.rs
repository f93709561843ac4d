//! Writes what `COMMAND` and its subcommands answer, and the `HELP` of containers.

use super::{Keys, Spec, find, find_full, find_subcommand, short_name, syntax, top_level};
use crate::resp::glob;
use crate::resp::reply::Reply;

/// Elements that describe one command.
const INFO_ELEMENTS: usize = 10;

/// How many commands there are, for `COMMAND COUNT`.
pub fn count() -> usize {
    top_level().count()
}

/// `COMMAND` and `COMMAND INFO`: a description of each named command, or of all when none is named.
pub fn info<'a>(reply: &mut Reply<'_>, names: impl ExactSizeIterator<Item = &'a [u8]>) {
    if names.len() == 0 {
        reply.array(count());
        top_level().for_each(|spec| describe(reply, spec));
        return;
    }
    reply.array(names.len());
    for name in names {
        match find_full(name) {
            Some(spec) => describe(reply, spec),
            None => reply.null(),
        }
    }
}

/// `COMMAND DOCS`: an explanation of each named command, or of all when none is named. Unknown names are left out.
pub fn docs<'a>(reply: &mut Reply<'_>, names: impl ExactSizeIterator<Item = &'a [u8]>) {
    let specs: Vec<_> = if names.len() == 0 { top_level().collect() } else { names.filter_map(find_full).collect() };
    reply.map(specs.len());
    specs.into_iter().for_each(|spec| explain(reply, spec));
}

/// `COMMAND LIST`: the names of all commands.
pub fn list(reply: &mut Reply<'_>) {
    names(reply, &top_level().map(|spec| spec.name).collect::<Vec<_>>());
}

/// `COMMAND LIST FILTERBY`: the names that pass. An error text if there is no such filter.
pub fn list_filtered(reply: &mut Reply<'_>, filter: &[u8], by: &[u8]) -> Result<(), &'static str> {
    let with_subcommands = top_level().flat_map(|spec| std::iter::once(spec).chain(spec.subcommands()));
    let found: Vec<_> = if filter.eq_ignore_ascii_case(b"pattern") {
        let matching = with_subcommands.filter(|spec| glob::matches(by, spec.name.as_bytes(), glob::Case::Ignored));
        matching.map(|spec| spec.name).collect()
    } else if filter.eq_ignore_ascii_case(b"aclcat") {
        let has =
            |spec: &&Spec| words(spec.categories).any(|category| category.as_bytes()[1..].eq_ignore_ascii_case(by));
        with_subcommands.filter(has).map(|spec| spec.name).collect()
    } else if filter.eq_ignore_ascii_case(b"module") {
        // No command comes from a loaded module.
        Vec::new()
    } else {
        return Err("ERR syntax error");
    };
    names(reply, &found);
    Ok(())
}

/// `COMMAND GETKEYS`: the keys of a request, given its arguments. An error text if it has none.
pub fn keys_of<'a>(request: &[&'a [u8]]) -> Result<Vec<&'a [u8]>, &'static str> {
    const UNKNOWN: &str = "ERR Invalid command specified";
    const KEYLESS: &str = "ERR The command has no key arguments";
    let mut spec = request.first().and_then(|name| find(name)).ok_or(UNKNOWN)?;
    if spec.is_container()
        && let Some(sub) = request.get(1)
    {
        spec = find_subcommand(spec, sub).ok_or(UNKNOWN)?;
    }
    let keys = spec.keys.as_ref().ok_or(KEYLESS)?;
    if !spec.takes(request.len()) {
        return Err("ERR Invalid number of arguments specified for command");
    }
    let last = match usize::try_from(keys.last) {
        Ok(last) => last,
        Err(_) => request.len() - usize::from(keys.last.unsigned_abs()),
    };
    let places = (usize::from(keys.first.unsigned_abs())..=last).step_by(usize::from(keys.step.unsigned_abs()).max(1));
    Ok(places.filter_map(|place| request.get(place).copied()).collect())
}

/// `CLIENT HELP` and the like: the subcommands of the container that `spec` is the help of.
pub fn help(reply: &mut Reply<'_>, spec: &Spec) {
    let container = spec.name.split('|').next().unwrap_or_default();
    let subcommands = find(container.as_bytes()).into_iter().flat_map(Spec::subcommands);
    reply.array(1 + 2 * subcommands.clone().count());
    let container = container.to_ascii_uppercase();
    reply.simple(&format!("{container} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:"));
    for spec in subcommands {
        reply.simple(&short_name(spec).to_ascii_uppercase());
        reply.simple(&format!("    {}", spec.summary));
    }
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
    let (first, last, step) = spec.keys.as_ref().map_or((0, 0, 0), |keys| (keys.first, keys.last, keys.step));
    [first, last, step].into_iter().for_each(|number| reply.integer(number.into()));
    set_of_words(reply, spec.categories);
    reply.set(words(spec.tips).count());
    words(spec.tips).for_each(|tip| reply.bulk(tip.as_bytes()));
    reply.set(spec.keys.iter().count());
    spec.keys.iter().for_each(|keys| describe_keys(reply, keys));
    // As Redis has it: an empty set, but an array of subcommands.
    match spec.subcommands().count() {
        0 => reply.set(0),
        subcommands => reply.array(subcommands),
    }
    spec.subcommands().for_each(|sub| describe(reply, sub));
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
    let subcommands = spec.subcommands();
    let has_some = subcommands.clone().next().is_some();
    let texts =
        [("summary", spec.summary), ("since", spec.since), ("group", spec.group), ("complexity", spec.complexity)];
    reply.bulk(spec.name.as_bytes());
    let has_arguments = syntax::has_arguments(spec.id);
    reply.map(texts.len() + usize::from(has_arguments) + usize::from(has_some));
    for (name, text) in texts {
        reply.bulk(name.as_bytes());
        reply.bulk(text.as_bytes());
    }
    if has_arguments {
        reply.bulk(b"arguments");
        syntax::arguments(reply, spec.id);
    }
    if has_some {
        reply.bulk(b"subcommands");
        reply.map(subcommands.clone().count());
        subcommands.for_each(|sub| explain(reply, sub));
    }
}

fn set_of_words(reply: &mut Reply<'_>, text: &str) {
    reply.set(words(text).count());
    words(text).for_each(|word| reply.simple(word));
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split_ascii_whitespace()
}
