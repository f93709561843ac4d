//! `tally completions`: completion scripts for shells.

use std::io::Write;
use std::process::ExitCode;

use clap::CommandFactory;

use super::args::{Cli, CompletionsArgs};

/// Prints the script.
pub fn run(args: &CompletionsArgs) -> ExitCode {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "tally", &mut script);
    match std::io::stdout().lock().write_all(&script) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::from(super::EXIT_FAILED),
    }
}
