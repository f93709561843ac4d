//! Tally compared with Redis on the same machine, both loaded by redis-benchmark.
//!
//! Tally acknowledges after its flush. Redis runs twice: in memory, and with an fsync before every acknowledgement.
//! Within a round every load runs against each server in turn; the order rotates from round to round.

mod baseline;
mod chart;
pub mod client;
mod counting;
pub mod load;
pub mod paced;
mod servers;

use std::path::Path;

pub use baseline::{BaselineArgs, serve as serve_baseline};
pub use chart::svg;
use load::{LoadResult, RedisLoad};
use paced::{Percentiles, Request};
use servers::{ComparedServer, ServerKind};

use crate::progress::BenchProgress;
use crate::report::{Row, Target};
use crate::{BenchError, Options};

const KEYS: u64 = 1_000_000;
const INCREMENT: [&str; 2] = ["INCR", "hot"];
const INCREMENT_ANY: [&str; 2] = ["INCR", "key:__rand_int__"];
const READ: [&str; 2] = ["GET", "hot"];

/// A load and the targets for Tally under it.
struct Comparison {
    load: RedisLoad,
    /// Minimum ratio to Redis in memory and to Redis with fsync.
    ratios_min: Option<[f64; 2]>,
    /// Maximum CPU time, as a ratio to Redis in memory.
    cpu_ratio_max: Option<f64>,
}

const fn comparison(name: &'static str, command: [&'static str; 2], pipeline: u64, ratios_min: [f64; 2]) -> Comparison {
    let load = RedisLoad { name, command, pipeline, keys: KEYS };
    Comparison { load, ratios_min: Some(ratios_min), cpu_ratio_max: None }
}

const COMPARISONS: [Comparison; 7] = [
    comparison("one hot key, pipeline 1", INCREMENT, 1, [1.0, 1.5]),
    Comparison { cpu_ratio_max: Some(0.6), ..comparison("one hot key, pipeline 16", INCREMENT, 16, [1.3, 2.5]) },
    Comparison { cpu_ratio_max: Some(0.6), ..comparison("one hot key, pipeline 128", INCREMENT, 128, [2.2, 4.0]) },
    comparison("1 M keys, pipeline 1", INCREMENT_ANY, 1, [0.9, 1.2]),
    comparison("1 M keys, pipeline 16", INCREMENT_ANY, 16, [1.0, 1.5]),
    comparison("1 M keys, pipeline 128", INCREMENT_ANY, 128, [1.3, 2.0]),
    Comparison { ratios_min: None, ..comparison("reads of one key, pipeline 1", READ, 1, [0.0, 0.0]) },
];

/// Name, comparison whose peak is halved, request, maximum p99 in milliseconds.
const PACED: [(&str, usize, Request, f64); 2] = [
    ("increments at half the peak", 0, Request { command: INCREMENT, reply_lines: 1 }, 10.0),
    ("reads at half the peak", 6, Request { command: READ, reply_lines: 2 }, 5.0),
];

/// The baseline servers take part in the first comparisons: one hot key, and many keys without pipelining.
const BASELINE_COMPARISONS: usize = 4;

/// The number of servers in a comparison: all, or all but the baseline servers, which are last.
fn servers_in(comparison: usize) -> usize {
    if comparison < BASELINE_COMPARISONS {
        ServerKind::ALL.len()
    } else {
        ServerKind::ALL.len() - ServerKind::BASELINE.len()
    }
}

/// Servers of the paced loads. Redis runs at Tally's rate and shows the latency that the machine itself causes.
const PACED_KINDS: [ServerKind; 2] = [ServerKind::Tally, ServerKind::RedisMemory];

const MEASURED_FOR_MEMORY: [ServerKind; 2] = [ServerKind::Tally, ServerKind::RedisMemory];

/// Steps of the progress bar: one per server to prepare, then every measurement of each round.
pub fn steps(options: &Options) -> u64 {
    let comparisons: usize = (0..COMPARISONS.len()).map(servers_in).sum();
    let round = comparisons + PACED.len() * PACED_KINDS.len() + MEASURED_FOR_MEMORY.len();
    (ServerKind::ALL.len() + options.rounds * round) as u64
}

/// By server, one per round; empty for servers that do not take part.
type ResultsByServer = [Vec<LoadResult>; ServerKind::ALL.len()];

/// All measurements.
#[derive(Default)]
struct Measurements {
    /// By comparison.
    results: [ResultsByServer; COMPARISONS.len()],
    /// By paced load and by server, one per round.
    latencies: [[Vec<Percentiles>; PACED_KINDS.len()]; PACED.len()],
    /// Bytes per counter.
    memory: [Vec<f64>; MEASURED_FOR_MEMORY.len()],
}

/// Runs the suite.
pub fn run(options: &Options, progress: &BenchProgress) -> Result<Vec<Row>, BenchError> {
    let dir = options.scratch()?;
    let mut servers = Vec::new();
    let mut requests = Vec::new();
    for kind in ServerKind::ALL {
        progress.show(&format!("redis: preparing {}", kind.name()));
        let (server, counts) = prepare(kind, &dir.path().join(kind.name()), options)?;
        servers.push(server);
        requests.push(counts);
        progress.step();
    }
    let mut measured = Measurements::default();
    for round in 0..options.rounds {
        let show = |what: &str| progress.show(&format!("redis: {what} (round {} of {})", round + 1, options.rounds));
        for (at, Comparison { load, .. }) in COMPARISONS.iter().enumerate() {
            for turn in 0..servers_in(at) {
                let index = (round + turn) % servers_in(at);
                show(&format!("{}, {}", load.name, servers[index].kind.name()));
                measured.results[at][index].push(load::run(&servers[index], load, requests[index][at])?);
                progress.step();
            }
        }
        for (latencies, (name, comparison, request, _)) in measured.latencies.iter_mut().zip(PACED) {
            let peak = measured.results[comparison][0].last().map_or(f64::NAN, |result| result.per_second);
            for turn in 0..PACED_KINDS.len() {
                let index = (round + turn) % PACED_KINDS.len();
                show(&format!("{name}, {}", PACED_KINDS[index].name()));
                latencies[index].push(paced::run(servers[index].port, request, peak / 2.0, options.seconds)?);
                progress.step();
            }
        }
        for (memory, kind) in measured.memory.iter_mut().zip(MEASURED_FOR_MEMORY) {
            show(&format!("memory, {}", kind.name()));
            let data = dir.path().join(format!("memory-{round}-{}", kind.name()));
            memory.push(bytes_per_counter(kind, &data)?);
            progress.step();
        }
    }
    Ok(measured.rows())
}

/// Starts a server, creates its keys, and determines the number of requests per load.
fn prepare(kind: ServerKind, data: &Path, options: &Options) -> Result<(ComparedServer, Vec<f64>), BenchError> {
    let server = ComparedServer::start(kind, data)?;
    let mut client = server.connect()?;
    client.call(&INCREMENT)?;
    // The keys that redis-benchmark generates from `key:__rand_int__`.
    client.increment_all(KEYS, |number| format!("key:{number:012}"))?;
    if ServerKind::BASELINE.contains(&kind) {
        let requests = requests_of(&server, &COMPARISONS[..BASELINE_COMPARISONS], options)?;
        return Ok((server, requests));
    }
    let requests = requests_of(&server, &COMPARISONS, options)?;
    let counters = client.call(&["DBSIZE"])?;
    if counters != (KEYS + 1).to_string() {
        return Err(BenchError::new(&format!("{} has {counters} keys, not {KEYS} and the hot one", kind.name())));
    }
    Ok((server, requests))
}

/// The number of requests of each comparison that takes about `options.seconds`.
fn requests_of(server: &ComparedServer, comparisons: &[Comparison], options: &Options) -> Result<Vec<f64>, BenchError> {
    let few = |load: &RedisLoad| 20_000.0 + 10_000.0 * load.pipeline as f64;
    comparisons
        .iter()
        .map(|Comparison { load, .. }| Ok(load::run(server, load, few(load))?.per_second * options.seconds))
        .collect()
}

/// Memory that a million counters with 14-byte keys add to a fresh server, per counter.
fn bytes_per_counter(kind: ServerKind, data: &Path) -> Result<f64, BenchError> {
    let server = ComparedServer::start(kind, data)?;
    let mut client = server.connect()?;
    let empty = server.resident_bytes();
    client.increment_all(KEYS, |number| format!("key:{number:010}"))?;
    Ok((server.resident_bytes() - empty) / KEYS as f64)
}

impl Measurements {
    fn rows(&self) -> Vec<Row> {
        let mut rows = Vec::new();
        for (comparison, results) in COMPARISONS.iter().zip(&self.results) {
            rows.extend(comparison_rows(comparison, results));
        }
        for (comparison, results) in COMPARISONS.iter().zip(&self.results).take(BASELINE_COMPARISONS) {
            rows.extend(ServerKind::BASELINE.iter().flat_map(|kind| baseline_rows(comparison, *kind, results)));
        }
        for ((name, .., p99_max), latencies) in PACED.iter().zip(&self.latencies) {
            for (kind, latencies) in PACED_KINDS.iter().zip(latencies) {
                let row = |which: &str, pick: fn(&Percentiles) -> f64| {
                    let name = format!("{name}: {}, {which}", kind.name());
                    Row::new("redis", name, "ms", latencies.iter().map(pick).collect())
                };
                let p99 = row("p99", |latency| latency.p99);
                rows.push(row("p50", |latency| latency.p50));
                rows.push(if *kind == ServerKind::Tally { p99.target(Target::AtMost(*p99_max)) } else { p99 });
                rows.push(row("p99.9", |latency| latency.p999));
            }
        }
        for (kind, memory) in MEASURED_FOR_MEMORY.iter().zip(&self.memory) {
            rows.push(Row::new("redis", format!("memory per counter, {}", kind.name()), "bytes", memory.clone()));
        }
        rows.push(Row::new("redis", "memory per counter, Tally ÷ Redis", "", ratios(&self.memory[0], &self.memory[1])));
        rows
    }
}

fn comparison_rows(comparison: &Comparison, results: &ResultsByServer) -> Vec<Row> {
    let of =
        |pick: fn(&LoadResult) -> f64| results.each_ref().map(|rounds| rounds.iter().map(pick).collect::<Vec<f64>>());
    let rates = of(|result| result.per_second);
    let printed = of(|result| result.printed_per_second);
    let cpu = of(|result| result.cpu_per_million);
    let row = |what: &str, unit, values| Row::new("redis", format!("{}: {what}", comparison.load.name), unit, values);
    let mut rows = Vec::new();
    for (kind, rates) in ServerKind::ALL.iter().zip(&rates).filter(|(_, rates)| !rates.is_empty()) {
        rows.push(row(kind.name(), "requests/s", rates.clone()));
    }
    for (at, kind) in [(1, ServerKind::RedisMemory), (2, ServerKind::RedisFsync)] {
        let ratio = row(&format!("Tally ÷ {}", kind.name()), "", ratios(&rates[0], &rates[at]));
        rows.push(match comparison.ratios_min {
            Some(bounds) => ratio.target(Target::AtLeast(bounds[at - 1])),
            None => ratio,
        });
        let name = format!("Tally ÷ {}, as printed by redis-benchmark", kind.name());
        rows.push(row(&name, "", ratios(&printed[0], &printed[at])));
    }
    for (kind, cpu) in ServerKind::ALL.iter().zip(&cpu).take(2) {
        rows.push(row(&format!("{}, CPU time", kind.name()), "s/million", cpu.clone()));
    }
    let ratio = row("CPU time, Tally ÷ Redis in memory", "", ratios(&cpu[0], &cpu[1]));
    rows.push(match comparison.cpu_ratio_max {
        Some(bound) => ratio.target(Target::AtMost(bound)),
        None => ratio,
    });
    rows
}

/// Ratios of a baseline server to both kinds of Redis.
fn baseline_rows(comparison: &Comparison, baseline: ServerKind, results: &ResultsByServer) -> [Row; 3] {
    let of = |kind: ServerKind, pick: fn(&LoadResult) -> f64| {
        let at = ServerKind::ALL.iter().position(|other| *other == kind).unwrap_or_default();
        results[at].iter().map(pick).collect::<Vec<f64>>()
    };
    let row = |what: &str, redis: ServerKind, pick: fn(&LoadResult) -> f64| {
        let name = format!("{}: {what}{} ÷ {}", comparison.load.name, baseline.name(), redis.name());
        Row::new("redis", name, "", ratios(&of(baseline, pick), &of(redis, pick)))
    };
    let rate = |result: &LoadResult| result.per_second;
    [
        row("", ServerKind::RedisMemory, rate),
        row("", ServerKind::RedisFsync, rate),
        row("CPU time, ", ServerKind::RedisMemory, |result| result.cpu_per_million),
    ]
}

/// One ratio per round.
fn ratios(over: &[f64], under: &[f64]) -> Vec<f64> {
    over.iter().zip(under).map(|(over, under)| over / under).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tally does 300 per second, Redis in memory 200, Redis with fsync 100; Tally uses half the CPU time of Redis.
    fn measurements() -> Measurements {
        let result = |per_second, cpu_per_million| {
            vec![LoadResult { per_second, printed_per_second: per_second, cpu_per_million }; 2]
        };
        Measurements {
            results: std::array::from_fn(|_| {
                [(300.0, 1.0), (200.0, 2.0), (100.0, 3.0), (180.0, 1.0), (160.0, 1.5)]
                    .map(|(rate, cpu)| result(rate, cpu))
            }),
            latencies: std::array::from_fn(|_| {
                [(); 2].map(|()| vec![Percentiles { p50: 1.0, p99: 6.0, p999: 9.0 }; 2])
            }),
            memory: [vec![90.0; 2], vec![60.0; 2]],
        }
    }

    fn median(name: &str) -> f64 {
        measurements().rows().into_iter().find(|row| row.name == name).map(|row| row.median).unwrap()
    }

    #[test]
    fn ratios_are_tally_over_redis() {
        assert_eq!(median("one hot key, pipeline 16: Tally ÷ Redis in memory"), 1.5);
        assert_eq!(median("1 M keys, pipeline 128: Tally ÷ Redis with fsync"), 3.0);
        assert_eq!(median("one hot key, pipeline 16: CPU time, Tally ÷ Redis in memory"), 0.5);
        assert_eq!(median("one hot key, pipeline 1: baseline server ÷ Redis in memory"), 0.9);
        assert_eq!(median("one hot key, pipeline 1: baseline server ÷ Redis with fsync"), 1.8);
        assert_eq!(median("one hot key, pipeline 1: CPU time, baseline server ÷ Redis in memory"), 0.5);
        assert_eq!(median("1 M keys, pipeline 1: counting baseline server ÷ Redis in memory"), 0.8);
        assert_eq!(median("memory per counter, Tally ÷ Redis"), 1.5);
    }

    #[test]
    fn every_target_has_a_row() {
        let rows = measurements().rows();
        let targets = rows.iter().filter(|row| row.target.is_some()).count();
        assert_eq!(targets, 12 + 2 + 2, "ratios of six loads to two servers, CPU time, p99");
    }

    #[test]
    fn paced_loads_use_the_peak_of_the_same_command() {
        for (name, comparison, request, _) in PACED {
            assert_eq!(COMPARISONS[comparison].load.command, request.command, "{name}");
            assert_eq!(COMPARISONS[comparison].load.pipeline, 1, "{name}");
        }
    }
}
