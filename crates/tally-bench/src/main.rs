//! Benchmarks.

mod block_on;
mod in_process;
mod stopwatch;

use in_process::{Work, throughput};
use tally_engine::{Config, Embedded};

/// Why a benchmark stopped.
#[derive(Debug)]
pub struct Failure(String);

impl Failure {
    fn new(what: impl ToString) -> Self {
        Failure(what.to_string())
    }
}

fn main() -> Result<(), Failure> {
    let dir = tempfile::tempdir_in(".").map_err(Failure::new)?;
    for (name, work) in [
        ("hot", Work::Hot),
        ("100k", Work::Random(100_000)),
        ("1M", Work::Random(1_000_000)),
        ("ids", Work::Ids(1_000_000)),
    ] {
        let data = dir.path().join(name);
        let engine = Embedded::open(&Config { data, memory_bytes: 1 << 30 }, &mut |_, _| {}).map_err(Failure::new)?;
        for round in 0..3 {
            let rate = throughput(&engine, work, 4.0, round)?;
            println!("{name}: {:.2} M/s", rate / 1e6);
        }
        engine.close().map_err(Failure::new)?;
    }
    Ok(())
}
