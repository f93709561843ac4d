//! The binary `tally`: a durable counter service and its command line.

mod admission;
mod cli;
mod config;
mod hint;
mod http;
mod limits;
mod log;
mod metrics;
mod policy;
mod progress;
mod serve;
mod service;

fn main() -> std::process::ExitCode {
    cli::run()
}
