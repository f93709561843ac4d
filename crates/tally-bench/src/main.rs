//! `tally-bench`: throughput, latency and memory of Tally on this machine.

mod cluster;
mod engine;
mod http;
mod in_process;
mod progress;
mod redis;
mod report;
mod scale;
mod server;
mod timer;
mod usage;

use std::fmt;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand, ValueEnum};
use progress::BenchProgress;
use report::{Row, table, write_json};

/// The same allocator as the server's, so that memory use is comparable.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Benchmarks Tally and prints a table. Every increment is acknowledged after its flush.
#[derive(Debug, Parser)]
#[command(
    after_help = "Examples:\n  tally-bench\n  tally-bench --only engine --rounds 9\n  tally-bench --only scale --counters 1000000"
)]
struct BenchArgs {
    #[command(flatten)]
    options: Options,
    #[command(subcommand)]
    command: Option<Hidden>,
}

/// Options of a run.
#[derive(Clone, Debug, clap::Args)]
struct Options {
    /// Suites to run; all except redis and cluster by default, which need other servers installed.
    #[arg(long, value_enum)]
    only: Vec<Suite>,
    /// Run only engine loads whose name contains this.
    #[arg(long, default_value = "")]
    load: String,
    /// Number of rounds; the median is reported.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Seconds of load per round.
    #[arg(long, default_value_t = 4.0, overrides_with = "seconds")]
    seconds: f64,
    /// Number of counters in the scale suite.
    #[arg(long, default_value_t = 10_000_000)]
    counters: u64,
    /// Directory for temporary data, on the disk to be measured.
    #[arg(long, default_value = "target")]
    dir: PathBuf,
    /// File for the results as JSON.
    #[arg(long, default_value = "target/bench.json")]
    json: PathBuf,
    /// File for a chart of the redis suite, as SVG.
    #[arg(long)]
    chart: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Suite {
    /// The engine in this process.
    Engine,
    /// The server over HTTP, loaded by wrk.
    Http,
    /// Ten million counters.
    Scale,
    /// Tally compared with Redis, loaded by redis-benchmark.
    Redis,
    /// A cluster compared with sub-counters in Redis and a row in PostgreSQL.
    Cluster,
}

#[derive(Debug, Subcommand)]
enum Hidden {
    /// A child process of the scale suite.
    #[command(hide = true)]
    Child(scale::ChildArgs),
    /// The baseline server of the redis suite: only receives, flushes and answers, and counts with `--counting`.
    #[command(hide = true)]
    Baseline(redis::BaselineArgs),
}

impl Options {
    fn includes(&self, suite: Suite) -> bool {
        if self.only.is_empty() { !matches!(suite, Suite::Redis | Suite::Cluster) } else { self.only.contains(&suite) }
    }

    fn steps(&self) -> u64 {
        let steps_of = |suite| match suite {
            Suite::Engine => (engine::loads(self).count() * self.rounds) as u64,
            Suite::Http => 4 * self.rounds as u64,
            Suite::Scale => 5,
            Suite::Redis => redis::steps(self),
            Suite::Cluster => cluster::steps(self),
        };
        Suite::value_variants().iter().filter(|suite| self.includes(**suite)).map(|suite| steps_of(*suite)).sum()
    }

    fn scratch(&self) -> Result<tempfile::TempDir, BenchError> {
        let made = std::fs::create_dir_all(&self.dir).and_then(|()| tempfile::tempdir_in(&self.dir));
        made.map_err(|error| BenchError::new(&format!("{}: {error}; choose another --dir", self.dir.display())))
    }
}

/// Why a benchmark failed.
#[derive(Debug)]
pub struct BenchError(String);

impl BenchError {
    fn new(what: &dyn fmt::Display) -> Self {
        BenchError(what.to_string())
    }
}

fn main() -> ExitCode {
    let args = BenchArgs::parse();
    let result = match &args.command {
        Some(Hidden::Child(child)) => scale::child(child),
        Some(Hidden::Baseline(args)) => redis::serve_baseline(args),
        None => measure(&args.options),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(BenchError(what)) => {
            eprintln!("tally-bench: {what}");
            ExitCode::FAILURE
        }
    }
}

fn measure(options: &Options) -> Result<(), BenchError> {
    let progress = BenchProgress::new(options.steps());
    let mut rows: Vec<Row> = Vec::new();
    for suite in Suite::value_variants().iter().filter(|suite| options.includes(**suite)) {
        rows.extend(match suite {
            Suite::Engine => engine::run(options, &progress)?,
            Suite::Http => http::run(options, &progress)?,
            Suite::Scale => scale::run(options, &progress)?,
            Suite::Redis => redis::run(options, &progress)?,
            Suite::Cluster => cluster::run(options, &progress)?,
        });
    }
    progress.finish();
    print!("{}", table(&rows));
    write_json(&options.json, &rows)?;
    println!("results written to {}", options.json.display());
    if let Some(path) = &options.chart {
        let chart = redis::svg(&rows).ok_or_else(|| BenchError::new(&"a chart needs the redis suite: --only redis"))?;
        std::fs::write(path, chart).map_err(|error| BenchError::new(&format!("{}: {error}", path.display())))?;
        println!("chart written to {}", path.display());
    }
    Ok(())
}
