//! Every command by name: who it is, how many arguments it takes, and what is said when they do not fit.

mod info;
mod refusal;
mod syntax;
mod table;
#[cfg(test)]
mod tests;

pub use info::{count, docs, help, info, keys_of, list, list_filtered};
pub use refusal::{unknown_command, unknown_subcommand, wrong_arguments};
pub use table::Command;

use super::wire::Args;
use table::SPECS;

/// What is known about a command.
#[derive(Debug)]
pub struct Spec {
    /// Which one it is.
    pub id: Command,
    /// Its name in lower case. A subcommand has its container's before it: `client|id`.
    pub name: &'static str,
    /// How many arguments it takes, the name included; when negative, at least so many.
    pub arity: i8,
    /// Redis's flags, blanks between.
    pub flags: &'static str,
    /// Redis's access categories, blanks between.
    pub categories: &'static str,
    /// What cluster clients should know, blanks between.
    pub tips: &'static str,
    /// Which arguments are keys.
    pub keys: Option<Keys>,
    /// The group it is documented in.
    pub group: &'static str,
    /// The version of Redis that brought it; Tally's own version for its own commands.
    pub since: &'static str,
    /// What it costs.
    pub complexity: &'static str,
    /// What it does, in a sentence.
    pub summary: &'static str,
}

/// Which arguments of a command are keys, and what happens to them.
#[derive(Debug)]
pub struct Keys {
    /// The first one. The command's name is 0.
    pub first: i8,
    /// The last one; when negative, counted from the end.
    pub last: i8,
    /// From one to the next.
    pub step: i8,
    /// Redis's key flags, blanks between.
    pub access: &'static str,
}

impl Spec {
    /// Whether a request with this many arguments, the name included, can be one of these.
    #[inline]
    pub fn takes(&self, args: usize) -> bool {
        let bound = usize::from(self.arity.unsigned_abs());
        if self.arity < 0 { args >= bound } else { args == bound }
    }

    /// Whether clients may send it that have yet to say who they are.
    #[cfg_attr(not(test), expect(dead_code, reason = "until somebody can sign in, everybody is known"))]
    pub fn is_open_to_strangers(&self) -> bool {
        self.flags.split(' ').any(|flag| flag == "no_auth")
    }

    /// The commands below this one. Only `CLIENT`, `COMMAND`, `CONFIG` and `FUNCTION` have some.
    pub fn subcommands(&self) -> impl Iterator<Item = &'static Spec> + Clone + use<> {
        let container = self.name;
        SPECS.iter().filter(move |spec| spec.name.split_once('|').is_some_and(|(parent, _)| parent == container))
    }

    fn is_container(&self) -> bool {
        matches!(self.id, Command::Client | Command::Command | Command::Config | Command::Function)
    }
}

/// The command of a request; when there is none, or its arguments are too many or too few, the text of the error.
#[inline]
pub fn resolve(args: &Args<'_>) -> Result<&'static Spec, Vec<u8>> {
    let found = busy(args.name()).or_else(|| find(args.name()));
    let Some(mut spec) = found else { return Err(unknown_command(args)) };
    if spec.is_container()
        && let Some(sub) = args.get(1)
    {
        spec = find_subcommand(spec, sub).ok_or_else(|| unknown_subcommand(spec, sub))?;
    }
    if spec.takes(args.len()) { Ok(spec) } else { Err(wrong_arguments(spec)) }
}

/// The busiest commands as clients spell them, told apart by their length and one comparison.
#[inline]
fn busy(name: &[u8]) -> Option<&'static Spec> {
    const fn place(command: Command) -> usize {
        let mut at = 0;
        while SPECS[at].id as usize != command as usize {
            at += 1;
        }
        at
    }
    let place = match name {
        b"INCR" | b"incr" => const { place(Command::Incr) },
        b"INCRBY" | b"incrby" => const { place(Command::IncrBy) },
        b"GET" | b"get" => const { place(Command::Get) },
        b"DECR" | b"decr" => const { place(Command::Decr) },
        _ => return None,
    };
    SPECS.get(place)
}

/// The command with this name, in any case. Subcommands are not found here.
#[inline]
pub fn find(name: &[u8]) -> Option<&'static Spec> {
    let mut slot = home(name);
    // There are always empty slots, see `SLOTS`, so this ends.
    while let Some(spec) = SPECS.get(usize::from(SLOTS[slot])) {
        if spec.name.as_bytes().eq_ignore_ascii_case(name) {
            return Some(spec);
        }
        slot = (slot + 1) % SLOTS.len();
    }
    None
}

/// The subcommand of a container, in any case.
pub fn find_subcommand(container: &Spec, name: &[u8]) -> Option<&'static Spec> {
    container.subcommands().find(|spec| short_name(spec).as_bytes().eq_ignore_ascii_case(name))
}

/// The command or subcommand with this full name, such as `client|id`.
fn find_full(name: &[u8]) -> Option<&'static Spec> {
    match name.iter().position(|byte| *byte == b'|') {
        None => find(name),
        Some(bar) => find_subcommand(find(&name[..bar])?, &name[bar + 1..]),
    }
}

/// All commands and subcommands.
#[cfg(test)]
pub fn all() -> impl Iterator<Item = &'static Spec> {
    SPECS.iter()
}

/// All commands that are not below another.
fn top_level() -> impl Iterator<Item = &'static Spec> + Clone {
    SPECS.iter().filter(|spec| !spec.name.contains('|'))
}

/// A subcommand's name without its container's.
fn short_name(spec: &Spec) -> &'static str {
    spec.name.split_once('|').map_or(spec.name, |(_, name)| name)
}

/// Marks a slot that leads nowhere.
const EMPTY: u8 = u8::MAX;

/// Where commands are found: at the place their name gives, or in the next free one. Commands that stand first in the
/// table are put in first, so the busiest are found at the first look.
static SLOTS: [u8; 128] = {
    assert!(SPECS.len() < EMPTY as usize);
    let mut slots = [EMPTY; 128];
    let (mut at, mut used) = (0, 0);
    while at < SPECS.len() {
        let name = SPECS[at].name.as_bytes();
        if !has_bar(name) {
            let mut slot = home(name);
            while slots[slot] != EMPTY {
                slot = (slot + 1) % slots.len();
            }
            slots[slot] = at as u8;
            used += 1;
        }
        at += 1;
    }
    assert!(used <= slots.len() / 2, "a fuller table makes unknown names slow: double it");
    slots
};

/// The slot a name gives: its length, its first two letters, its last and the one in the middle, in lower case.
#[inline]
const fn home(name: &[u8]) -> usize {
    if name.is_empty() {
        return 0;
    }
    let second = if name.len() > 1 { name[1] } else { 0 };
    let picked = u32::from_le_bytes([name[0], second, name[name.len() / 2], name[name.len() - 1]]) | 0x2020_2020;
    let mixed = (picked ^ (name.len() as u32)).wrapping_mul(0x9e37_79b1);
    (mixed >> 25) as usize
}

const fn has_bar(name: &[u8]) -> bool {
    let mut at = 0;
    while at < name.len() {
        if name[at] == b'|' {
            return true;
        }
        at += 1;
    }
    false
}
