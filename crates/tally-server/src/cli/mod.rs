//! The command line: what can be typed, and which part of the program does it.

mod args;
mod check;
mod client;
mod completions;
mod counters;
mod output;
mod serve;
mod server;
mod usage;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches};

use args::{Cli, Command};

/// The exit code of a command that could not do what it was asked.
const EXIT_FAILED: u8 = 1;
/// The exit code of settings that cannot work, as for flags that do not exist.
const EXIT_USAGE: u8 = 2;
/// The exit code of data that is damaged: `EX_DATAERR` of sysexits.
const EXIT_DAMAGED: u8 = 65;
/// The exit code when no server answers: `EX_UNAVAILABLE` of sysexits.
const EXIT_UNAVAILABLE: u8 = 69;

/// Runs what was typed.
pub fn run() -> ExitCode {
    let typed = typed();
    let matches = match Cli::command().try_get_matches_from(&typed) {
        Ok(matches) => matches,
        Err(error) => return usage::refuse(&error, &typed),
    };
    let cli = match Cli::from_arg_matches(&matches) {
        Ok(cli) => cli,
        Err(error) => return usage::refuse(&error, &typed),
    };
    match cli.command {
        Command::Serve(_) => serve::run(matches.subcommand_matches("serve")),
        Command::Incr(args) => counters::incr(&args),
        Command::Decr(args) => counters::decr(&args),
        Command::Get(args) => counters::get(&args),
        Command::Stats(args) => counters::stats(&args),
        Command::Check(args) => check::run(&args),
        Command::Completions(args) => completions::run(&args),
    }
}

/// What was typed. `tally help --help` asks for what `tally help` shows; clap would call the flag a command.
fn typed() -> Vec<OsString> {
    let mut typed: Vec<OsString> = std::env::args_os().collect();
    if let [_, help, flag] = typed.as_slice()
        && help == "help"
        && (flag == "--help" || flag == "-h")
    {
        typed.truncate(2);
    }
    typed
}
