//! The command line: parses arguments and runs the command.

mod args;
mod backup;
mod check;
mod client;
mod cluster;
mod completions;
mod corrections;
mod counters;
mod export_file;
mod man;
mod output;
mod serve;
mod server;
mod transfer;
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
        CliCommand::List(args) => counters::list(&args),
        CliCommand::Set(args) => corrections::set(&args),
        CliCommand::Delete(args) => corrections::delete(&args),
        CliCommand::Ledger(args) => corrections::ledger(&args),
        CliCommand::Export(args) => transfer::export(&args),
        CliCommand::Import(args) => transfer::import(&args),
        CliCommand::Backup(args) => backup::run(&args),
        CliCommand::Check(args) => check::run(&args),
        CliCommand::Cluster(args) => cluster::run(&args, matches.subcommand_matches("cluster")),
        CliCommand::Completions(args) => completions::run(&args),
        CliCommand::Man(args) => man::run(&args),
        CliCommand::Version => {
            output::json(&concat!("tally ", env!("CARGO_PKG_VERSION")));
            ExitCode::SUCCESS
        }
    }
}

/// The arguments. `tally help --help` becomes `tally help`, because clap would take the flag for a command. `--server` and
/// `--output` may come before the command, too.
fn arguments() -> Vec<OsString> {
    let mut args = after_command(std::env::args_os().collect());
    if let [_, help, flag] = args.as_slice()
        && help == "help"
        && (flag == "--help" || flag == "-h")
    {
        args.truncate(2);
    }
    args
}

/// Moves `--server`, `-o` and `--output` from before the command to after it.
fn after_command(mut args: Vec<OsString>) -> Vec<OsString> {
    const MOVED: [&str; 3] = ["--server", "--output", "-o"];
    let mut moved = 1;
    while let Some(flag) = args.get(moved).and_then(|flag| flag.to_str()) {
        match () {
            () if MOVED.contains(&flag) => moved += 2,
            () if flag.starts_with("--server=") || flag.starts_with("--output=") => moved += 1,
            () if flag.starts_with("-o") => moved += 1,
            () => break,
        }
    }
    if moved >= args.len() {
        // There is no command: clap says so.
        return args;
    }
    let flags: Vec<OsString> = args.drain(1..moved).collect();
    // `cluster` has subcommands.
    let depth = if args.get(1).is_some_and(|command| command == "cluster") { 3 } else { 2 };
    let at = depth.min(args.len());
    args.splice(at..at, flags);
    args
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_server_and_the_output_format_may_come_before_the_command() {
        let moved = |text: &str| {
            let args = after_command(text.split(' ').map(OsString::from).collect());
            args.join(" ".as_ref()).into_string().unwrap_or_default()
        };
        for (given, expected) in [
            ("tally -o json get a", "tally get -o json a"),
            ("tally --server h -ojson get a b", "tally get --server h -ojson a b"),
            ("tally --output=json --server=h incr a 5", "tally incr --output=json --server=h a 5"),
            ("tally -o json cluster status", "tally cluster status -o json"),
            ("tally get a -o json", "tally get a -o json"),
            ("tally --version", "tally --version"),
            ("tally -o json", "tally -o json"),
            ("tally", "tally"),
        ] {
            assert_eq!(moved(given), expected);
        }
    }
}
