//! `tally man`: manual pages, made from the help texts.

use std::process::ExitCode;

use clap::CommandFactory;

use super::args::{Cli, ManArgs};
use super::{EXIT_FAILED, EXIT_USAGE, output};

/// Prints the page of a command.
pub fn run(args: &ManArgs) -> ExitCode {
    let mut tally = Cli::command();
    tally.build();
    let command = match &args.command {
        None => tally,
        Some(name) => match tally.find_subcommand(name) {
            Some(command) => command.clone(),
            None => {
                output::error(&format!("there is no command `{name}`; `tally --help` lists them"));
                return ExitCode::from(EXIT_USAGE);
            }
        },
    };
    let mut page = Vec::new();
    match clap_mangen::Man::new(command).render(&mut page) {
        Ok(()) => {
            output::text(&String::from_utf8_lossy(&page));
            ExitCode::SUCCESS
        }
        Err(error) => {
            output::error(&error);
            ExitCode::from(EXIT_FAILED)
        }
    }
}
