//! `tally-bench`: what Tally does per second, in how much memory, on this machine.

mod engine;
mod http;
mod in_process;
mod progress;
mod redis;
mod report;
mod scale;
mod server;
mod stopwatch;
mod usage;

use std::fmt;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand, ValueEnum};
use progress::Progress;
use report::{Row, table, write_json};

/// The server's own, so that memory is measured as the server takes it.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Measures Tally and prints a table; every acknowledgement is counted after its flush.
#[derive(Debug, Parser)]
#[command(
    after_help = "Examples:\n  tally-bench\n  tally-bench --only engine --rounds 9\n  tally-bench --only scale --counters 1000000"
)]
struct Args {
    #[command(flatten)]
    options: Options,
    #[command(subcommand)]
    command: Option<Hidden>,
}

/// How to measure.
#[derive(Clone, Debug, clap::Args)]
struct Options {
    /// Only these suites. Without it, all but redis, which needs Redis installed.
    #[arg(long, value_enum)]
    only: Vec<Suite>,
    /// Only the engine's loads whose name contains this.
    #[arg(long, default_value = "")]
    load: String,
    /// Rounds; the median counts.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Seconds of load per round.
    #[arg(long, default_value_t = 4.0, overrides_with = "seconds")]
    seconds: f64,
    /// Counters of the scale suite.
    #[arg(long, default_value_t = 10_000_000)]
    counters: u64,
    /// Where to keep data meanwhile: a directory on the disk that is to be measured.
    #[arg(long, default_value = "target")]
    dir: PathBuf,
    /// Where to write the figures.
    #[arg(long, default_value = "target/bench.json")]
    json: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Suite {
    /// The engine in this process.
    Engine,
    /// The server over HTTP, loaded by wrk.
    Http,
    /// Ten million counters.
    Scale,
    /// Tally beside Redis, loaded by redis-benchmark.
    Redis,
}

#[derive(Debug, Subcommand)]
enum Hidden {
    /// What the scale suite runs in a process of its own.
    #[command(hide = true)]
    Child(scale::ChildArgs),
    /// What the redis suite compares with: a server that only receives, flushes and answers, or these and counts.
    #[command(hide = true)]
    Bare(redis::BareArgs),
}

impl Options {
    fn wants(&self, suite: Suite) -> bool {
        if self.only.is_empty() { suite != Suite::Redis } else { self.only.contains(&suite) }
    }

    fn steps(&self) -> u64 {
        let steps_of = |suite| match suite {
            Suite::Engine => (engine::loads(self).count() * self.rounds) as u64,
            Suite::Http => 4 * self.rounds as u64,
            Suite::Scale => 5,
            Suite::Redis => redis::steps(self),
        };
        Suite::value_variants().iter().filter(|suite| self.wants(**suite)).map(|suite| steps_of(*suite)).sum()
    }

    fn scratch(&self) -> Result<tempfile::TempDir, Failure> {
        let made = std::fs::create_dir_all(&self.dir).and_then(|()| tempfile::tempdir_in(&self.dir));
        made.map_err(|error| Failure::new(&format!("{}: {error}; choose another --dir", self.dir.display())))
    }
}

/// Why a benchmark stopped.
#[derive(Debug)]
pub struct Failure(String);

impl Failure {
    fn new(what: &dyn fmt::Display) -> Self {
        Failure(what.to_string())
    }
}

fn main() -> ExitCode {
    let args = Args::parse();
    let result = match &args.command {
        Some(Hidden::Child(child)) => scale::child(child),
        Some(Hidden::Bare(args)) => redis::serve_bare(args),
        None => measure(&args.options),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure(what)) => {
            eprintln!("tally-bench: {what}");
            ExitCode::FAILURE
        }
    }
}

fn measure(options: &Options) -> Result<(), Failure> {
    let progress = Progress::new(options.steps());
    let mut rows: Vec<Row> = Vec::new();
    for suite in Suite::value_variants().iter().filter(|suite| options.wants(**suite)) {
        rows.extend(match suite {
            Suite::Engine => engine::run(options, &progress)?,
            Suite::Http => http::run(options, &progress)?,
            Suite::Scale => scale::run(options, &progress)?,
            Suite::Redis => redis::run(options, &progress)?,
        });
    }
    progress.finish();
    print!("{}", table(&rows));
    write_json(&options.json, &rows)?;
    println!("figures written to {}", options.json.display());
    Ok(())
}
