//! The command line: parses arguments and runs the command.

mod args;
mod check;
mod client;
mod cluster;
mod completions;
mod counters;
mod export_file;
mod moving;
mod output;
mod serve;
mod server;
mod usage;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches};

use args::{Cli, CliCommand};

/// The exit code of a command that failed.
const EXIT_FAILED: u8 = 1;
/// The exit code of invalid arguments and settings; also clap's.
const EXIT_USAGE: u8 = 2;
/// The exit code of damaged data: `EX_DATAERR` of sysexits.
const EXIT_DAMAGED: u8 = 65;
/// The exit code if the server cannot be reached: `EX_UNAVAILABLE` of sysexits.
const EXIT_UNAVAILABLE: u8 = 69;

/// Runs the command given on the command line.
pub fn run() -> ExitCode {
    let args = arguments();
    let matches = match Cli::command().try_get_matches_from(&args) {
        Ok(matches) => matches,
        Err(error) => return usage::refuse(&error, &args),
    };
    let cli = match Cli::from_arg_matches(&matches) {
        Ok(cli) => cli,
        Err(error) => return usage::refuse(&error, &args),
    };
    match cli.command {
        CliCommand::Serve(_) => serve::run(matches.subcommand_matches("serve")),
        CliCommand::Incr(args) => counters::incr(&args),
        CliCommand::Decr(args) => counters::decr(&args),
        CliCommand::Get(args) => counters::get(&args),
        CliCommand::Stats(args) => counters::stats(&args),
        CliCommand::Export(args) => moving::export(&args),
        CliCommand::Import(args) => moving::import(&args),
        CliCommand::Check(args) => check::run(&args),
        CliCommand::Cluster(args) => cluster::run(&args, matches.subcommand_matches("cluster")),
        CliCommand::Completions(args) => completions::run(&args),
    }
}

/// The arguments. `tally help --help` becomes `tally help`, because clap would take the flag for a command.
fn arguments() -> Vec<OsString> {
    let mut args: Vec<OsString> = std::env::args_os().collect();
    if let [_, help, flag] = args.as_slice()
        && help == "help"
        && (flag == "--help" || flag == "-h")
    {
        args.truncate(2);
    }
    args
}
