//! The engine in this process, two threads, every acknowledgement after its flush.

use tally_core::limits::MEMORY_BYTES_DEFAULT;
use tally_engine::{Config, Embedded};

use crate::in_process::{Work, throughput};
use crate::progress::Progress;
use crate::report::{Row, Target};
use crate::usage::cpu_seconds;
use crate::{Failure, Options};

/// Name, events, increments a second to reach.
type Load = (&'static str, Work, Option<f64>);

const LOADS: [Load; 4] = [
    ("one hot key", Work::Hot, Some(10e6)),
    ("100 k random keys", Work::Random(100_000), None),
    ("1 M random keys", Work::Random(1_000_000), Some(1.5e6)),
    ("distinct request ids", Work::Ids(1_000_000), Some(0.7e6)),
];

/// The loads to run.
pub fn loads(options: &Options) -> impl Iterator<Item = Load> {
    LOADS.into_iter().filter(|(name, ..)| name.contains(&options.load))
}

/// Runs the suite, rounds interleaved; each load has an engine of its own that lives through all rounds, so later
/// rounds meet what earlier ones left: checkpoints, merges, and request ids that no longer fit into memory.
pub fn run(options: &Options, progress: &Progress) -> Result<Vec<Row>, Failure> {
    let dir = options.scratch()?;
    let mut rates = [const { Vec::new() }; LOADS.len()];
    let mut costs = [const { Vec::new() }; LOADS.len()];
    let mut engines = Vec::new();
    for (at, (name, work, _)) in loads(options).enumerate() {
        progress.say(&format!("engine: {name} (warming up)"));
        let engine = open(&dir.path().join(at.to_string()), MEMORY_BYTES_DEFAULT)?;
        // The first seconds create the counters: that is another measurement.
        throughput(&engine, work, options.seconds.min(2.0), u64::MAX / 4)?;
        engines.push(engine);
    }
    for round in 0..options.rounds {
        for (at, ((name, work, _), engine)) in loads(options).zip(&engines).enumerate() {
            progress.say(&format!("engine: {name} (round {} of {})", round + 1, options.rounds));
            let cpu = cpu_seconds(std::process::id());
            let rate = throughput(engine, work, options.seconds, round as u64)?;
            let cpu = cpu_seconds(std::process::id()) - cpu;
            rates[at].push(rate);
            costs[at].push(cpu / (rate * options.seconds) * 1e6);
            progress.step();
        }
    }
    for engine in engines {
        engine.close().map_err(|error| Failure::new(&error))?;
    }
    let mut rows = Vec::new();
    for (((name, _, target), rates), costs) in loads(options).zip(rates).zip(costs) {
        let rate = Row::new("engine", name, "increments/s", rates);
        rows.push(match target {
            Some(bound) => rate.target(Target::AtLeast(bound)),
            None => rate,
        });
        rows.push(Row::new("engine", format!("{name}, processor time"), "µs/increment", costs));
    }
    Ok(rows)
}

/// Opens an engine.
pub fn open(data: &std::path::Path, memory_bytes: u64) -> Result<Embedded, Failure> {
    let config = Config::new(data, memory_bytes);
    Embedded::open(&config, &mut |_, _| {}).map_err(|error| Failure::new(&error))
}
