//! The binary `tally`: a durable counter service and its command line.

mod accept;
mod admission;
mod cli;
mod config;
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

/// Requests allocate small things on one thread and free them on another, which this allocator is made for.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    cli::run()
}
