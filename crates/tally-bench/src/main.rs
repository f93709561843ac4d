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
        if std::env::args().nth(1).is_some_and(|only| only != name) {
            continue;
        }
        let data = dir.path().join(name);
        let engine = Embedded::open(&Config { data, memory_bytes: 1 << 30 }, &mut |_, _| {}).map_err(Failure::new)?;
        for round in 0..3 {
            let cpu = cpu_seconds();
            let rate = throughput(&engine, work, 4.0, round)?;
            let cpu = cpu_seconds() - cpu;
            println!(
                "{name}: {:.2} M/s, {:.3} us CPU per event, {:.2} cores",
                rate / 1e6,
                cpu / rate / 4.0 * 1e6,
                cpu / 4.0
            );
        }
        engine.close().map_err(Failure::new)?;
    }
    Ok(())
}

fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap_or_default().split(' ').collect();
    let ticks = |at: usize| fields.get(at).and_then(|field| field.parse::<f64>().ok()).unwrap_or(0.0);
    (ticks(11) + ticks(12)) / 100.0
}
