//! The engine in this process: two threads, every increment acknowledged after its flush.

use tally_core::limits::MEMORY_BYTES_DEFAULT;
use tally_engine::{Config, Embedded};

use crate::in_process::{EventPattern, throughput};
use crate::progress::BenchProgress;
use crate::report::{Row, Target};
use crate::usage::cpu_seconds;
use crate::{BenchError, Options};

/// Name, events, target in increments per second.
type EngineLoad = (&'static str, EventPattern, Option<f64>);

const LOADS: [EngineLoad; 4] = [
    ("one hot key", EventPattern::Hot, Some(10e6)),
    ("100 k random keys", EventPattern::Random(100_000), None),
    ("1 M random keys", EventPattern::Random(1_000_000), Some(1.5e6)),
    ("distinct request ids", EventPattern::Ids(1_000_000), Some(0.7e6)),
];

/// The loads to run.
pub fn loads(options: &Options) -> impl Iterator<Item = EngineLoad> {
    LOADS.into_iter().filter(|(name, ..)| name.contains(&options.load))
}

/// Runs the suite with interleaved rounds. Each load has its own engine for all rounds, so later rounds include the
/// cost of checkpoints, merges, and request ids that no longer fit into memory.
pub fn run(options: &Options, progress: &BenchProgress) -> Result<Vec<Row>, BenchError> {
    let dir = options.scratch()?;
    let mut rates = [const { Vec::new() }; LOADS.len()];
    let mut costs = [const { Vec::new() }; LOADS.len()];
    let mut engines = Vec::new();
    for (at, (name, work, _)) in loads(options).enumerate() {
        progress.show(&format!("engine: {name} (warming up)"));
        let engine = open(&dir.path().join(at.to_string()), MEMORY_BYTES_DEFAULT)?;
        // Creating the counters is not part of the measurement.
        throughput(&engine, work, options.seconds.min(2.0), u64::MAX / 4)?;
        engines.push(engine);
    }
    for round in 0..options.rounds {
        for (at, ((name, work, _), engine)) in loads(options).zip(&engines).enumerate() {
            progress.show(&format!("engine: {name} (round {} of {})", round + 1, options.rounds));
            let cpu = cpu_seconds(std::process::id());
            let rate = throughput(engine, work, options.seconds, round as u64)?;
            let cpu = cpu_seconds(std::process::id()) - cpu;
            rates[at].push(rate);
            costs[at].push(cpu / (rate * options.seconds) * 1e6);
            progress.step();
        }
    }
    for engine in engines {
        engine.close().map_err(|error| BenchError::new(&error))?;
    }
    let mut rows = Vec::new();
    for (((name, _, target), rates), costs) in loads(options).zip(rates).zip(costs) {
        let rate = Row::new("engine", name, "increments/s", rates);
        rows.push(match target {
            Some(bound) => rate.target(Target::AtLeast(bound)),
            None => rate,
        });
        rows.push(Row::new("engine", format!("{name}, CPU time"), "µs/increment", costs));
    }
    Ok(rows)
}

/// Opens an engine.
pub fn open(data: &std::path::Path, memory_bytes: u64) -> Result<Embedded, BenchError> {
    let config = Config::new(data, memory_bytes);
    Embedded::open(&config, &mut |_, _| {}).map_err(|error| BenchError::new(&error))
}
