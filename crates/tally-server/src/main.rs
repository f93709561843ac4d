//! The binary `tally`: a durable counter service and its command line.

mod accept;
mod admission;
mod cli;
mod cluster;
mod config;
mod engine;
mod hint;
mod host;
mod http;
mod limits;
mod log;
mod metrics;
mod policy;
mod progress;
mod resp;
mod serve;
mod service;

/// Requests often allocate on one thread and free on another; mimalloc handles that well.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    cli::run()
}
