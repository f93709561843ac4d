//! A cluster on one machine: Kafka, Redis Cluster, PostgreSQL, one API node and one worker.
//!
//! Two patterns that people build by hand are measured on the same services for comparison: sub-counters in Redis,
//! which are not durable, and a row in PostgreSQL. Both sides have the same connections and pipelining, and take turns.

mod nodes;
mod outage;
mod tools;

use std::thread;

use nodes::BenchCluster;
use tools::{ToolResult, pgbench, redis_benchmark};

use crate::progress::BenchProgress;
use crate::redis::paced::{self, Percentiles, Request};
use crate::report::{Row, Target};
use crate::server::Tally;
use crate::usage::cpu_seconds;
use crate::{BenchError, Options};

/// Pipelining, and the minimum ratio to sub-counters in Redis.
const HOT: [(u64, f64); 3] = [(1, 0.6), (16, 1.5), (128, 4.0)];
/// Connections to the hot counter.
const HOT_CONNECTIONS: u64 = 50;
/// Sub-counters of the pattern in Redis.
const SUB_COUNTERS: &str = "16";
/// Connections that decrement a counter with a floor.
const FLOOR_CONNECTIONS: u64 = 64;
/// Reads per second while increments run at half their peak rate.
const READS_PER_SECOND: f64 = 500.0;

const APPROXIMATE: Request = Request { command: ["GET", "hot"], reply_lines: 2 };
const ACCURATE: Request = Request { command: ["GET", "accurate:hot"], reply_lines: 2 };
const INCREMENT: Request = Request { command: ["INCR", "hot"], reply_lines: 1 };

/// Seconds of load before anything is measured: a broker that has just started runs code that its JVM has not compiled
/// yet, and handles a third of the appends that it handles later.
const WARM_UP_SECONDS: f64 = 20.0;

/// Seconds of reads that are not measured: the first reads of a counter make its worker publish it to Redis.
const FIRST_READS_SECONDS: f64 = 1.0;

/// Number of standbys, for each outage.
const STANDBYS: [u32; 2] = [0, 1];

/// Steps of the progress bar.
pub fn steps(options: &Options) -> u64 {
    (2 + options.rounds * (2 * HOT.len() + 1 + 2 + 2 + STANDBYS.len())) as u64
}

/// All measurements, one value per round.
#[derive(Default)]
struct Measured {
    /// By pipelining: Tally, and sub-counters in Redis.
    hot: [[Vec<f64>; 2]; HOT.len()],
    spread: Vec<Spread>,
    floor: Vec<ToolResult>,
    row: Vec<ToolResult>,
    approximate: Vec<Percentiles>,
    accurate: Vec<Percentiles>,
    /// By number of standbys.
    outages: [Vec<outage::Outage>; STANDBYS.len()],
}

/// Increments of many keys, and what they cost.
#[derive(Clone, Copy)]
struct Spread {
    per_second: f64,
    /// CPU seconds per million increments.
    api_cpu: f64,
    worker_cpu: f64,
    /// Bytes of the journal per increment.
    journal_bytes: f64,
    /// Bytes of a counter in PostgreSQL, with its indexes.
    row_bytes: f64,
}

/// Runs the suite.
pub fn run(options: &Options, progress: &BenchProgress) -> Result<Vec<Row>, BenchError> {
    let dir = options.scratch()?;
    progress.show("cluster: starting Kafka, Redis Cluster and PostgreSQL");
    let cluster = BenchCluster::start(dir.path())?;
    progress.step();
    progress.show("cluster: warming up");
    warm_up(&cluster)?;
    progress.step();
    let mut measured = Measured::default();
    for round in 0..options.rounds {
        let show = |what: &str| progress.show(&format!("cluster: {what} (round {} of {})", round + 1, options.rounds));
        {
            let worker = cluster.node("worker", 0)?;
            let api = cluster.node("api", 0)?;
            cluster.wait_until_hosted()?;
            for (at, (pipeline, _)) in HOT.iter().enumerate() {
                for turn in 0..2 {
                    let side = (round + turn) % 2;
                    show(&format!("hot key, pipeline {pipeline}, {}", ["Tally", "sub-counters"][side]));
                    let result = if side == 0 {
                        hot_key(api.resp_port, *pipeline, options.seconds)?
                    } else {
                        sub_counters(&cluster, *pipeline, options.seconds)?
                    };
                    measured.hot[at][side].push(result.per_second);
                    progress.step();
                }
            }
            for turn in 0..2 {
                if (round + turn) % 2 == 0 {
                    show("decrements with a floor, Tally");
                    measured.floor.push(floor(api.resp_port, options.seconds)?);
                } else {
                    show("decrements with a floor, a row in PostgreSQL");
                    measured.row.push(pgbench(&cluster, FLOOR_CONNECTIONS, options.seconds)?);
                }
                progress.step();
            }
            let half = measured.hot[0][0].last().copied().unwrap_or(1_000.0) / 2.0;
            for (request, into) in [(APPROXIMATE, &mut measured.approximate), (ACCURATE, &mut measured.accurate)] {
                show(&format!("{} at half the load", request.command.join(" ")));
                into.push(read_at(api.resp_port, half, request, options.seconds)?);
                progress.step();
            }
            // Last: PostgreSQL is busy for a while afterwards.
            show("1 M random keys, Tally");
            measured.spread.push(spread(&cluster, &api, &worker, options.seconds)?);
            progress.step();
            drop((api, worker));
        }
        for (standbys, outages) in STANDBYS.iter().zip(&mut measured.outages) {
            show(&format!("a worker dies, {standbys} standbys"));
            outages.push(outage::run(&cluster, *standbys)?);
            progress.step();
        }
    }
    Ok(measured.rows())
}

fn warm_up(cluster: &BenchCluster) -> Result<(), BenchError> {
    let _worker = cluster.node("worker", 0)?;
    let api = cluster.node("api", 0)?;
    cluster.wait_until_hosted()?;
    hot_key(api.resp_port, 1, WARM_UP_SECONDS).map(drop)
}

fn hot_key(port: u16, pipeline: u64, seconds: f64) -> Result<ToolResult, BenchError> {
    redis_benchmark(port, HOT_CONNECTIONS, pipeline, seconds, &[], &["INCR", "hot"])
}

/// Increments of a million keys: each is an event of its own.
fn spread(cluster: &BenchCluster, api: &Tally, worker: &Tally, seconds: f64) -> Result<Spread, BenchError> {
    let cpu = || [api, worker].map(|node| cpu_seconds(node.process.0.id()));
    let (before, journal) = (cpu(), cluster.journal_bytes()?);
    let command = ["INCR", "key:__rand_int__"];
    let result = redis_benchmark(api.resp_port, HOT_CONNECTIONS, 128, seconds, &["-r", "1000000"], &command)?;
    // Until the worker has applied and persisted all of it.
    cluster.wait_until_persisted()?;
    let after = cpu();
    let millions = result.requests / 1e6;
    Ok(Spread {
        per_second: result.per_second,
        api_cpu: (after[0] - before[0]) / millions,
        worker_cpu: (after[1] - before[1]) / millions,
        journal_bytes: (cluster.journal_bytes()? - journal) / result.requests,
        row_bytes: cluster.row_bytes()?,
    })
}

/// The pattern that people build: an increment of one of several keys, chosen at random.
fn sub_counters(cluster: &BenchCluster, pipeline: u64, seconds: f64) -> Result<ToolResult, BenchError> {
    let options = ["--cluster", "-r", SUB_COUNTERS];
    let command = ["INCR", "sub:{tag}:__rand_int__"];
    redis_benchmark(cluster.redis_port(), HOT_CONNECTIONS, pipeline, seconds, &options, &command)
}

fn floor(port: u16, seconds: f64) -> Result<ToolResult, BenchError> {
    let command = ["INCREX", "exact:stock", "BYINT", "-1", "LBOUND", "0"];
    let mut client = crate::redis::client::RespClient::connect(port).map_err(|error| BenchError::new(&error))?;
    client.call(&["SET", "exact:stock", "1000000000"])?;
    redis_benchmark(port, FLOOR_CONNECTIONS, 1, seconds, &[], &command)
}

/// Reads while increments run at half their peak rate.
fn read_at(port: u16, half: f64, request: Request, seconds: f64) -> Result<Percentiles, BenchError> {
    // A counter that exists, so that every reply has a value.
    let mut client = crate::redis::client::RespClient::connect(port).map_err(|error| BenchError::new(&error))?;
    client.call(&["INCR", request.command[1]])?;
    thread::scope(|scope| {
        let load = scope.spawn(|| paced::run(port, INCREMENT, half, seconds + FIRST_READS_SECONDS));
        paced::run(port, request, READS_PER_SECOND, FIRST_READS_SECONDS)?;
        let reads = paced::run(port, request, READS_PER_SECOND, seconds);
        load.join().map_err(|_| BenchError::new(&"the load panicked"))??;
        reads
    })
}

impl Measured {
    fn rows(&self) -> Vec<Row> {
        let mut rows = Vec::new();
        let mut row = |name: String, unit: &'static str, values: Vec<f64>, target: Option<Target>| {
            let row = Row::new("cluster", name, unit, values);
            rows.push(match target {
                Some(target) => row.target(target),
                None => row,
            });
        };
        for ((pipeline, ratio_min), [tally, redis]) in HOT.iter().zip(&self.hot) {
            let name = |what: &str| format!("hot key, pipeline {pipeline}: {what}");
            row(name("Tally, eventual"), "increments/s", tally.clone(), None);
            row(name("16 sub-counters in Redis, not durable"), "increments/s", redis.clone(), None);
            let ratios = tally.iter().zip(redis).map(|(tally, redis)| tally / redis).collect();
            row(name("Tally ÷ sub-counters"), "", ratios, Some(Target::AtLeast(*ratio_min)));
        }
        let of = |pick: fn(&Spread) -> f64| self.spread.iter().map(pick).collect::<Vec<f64>>();
        let name = |what: &str| format!("1 M random keys, pipeline 128: {what}");
        row(name("Tally, eventual"), "increments/s", of(|spread| spread.per_second), None);
        row(name("CPU time of the API node"), "s/million", of(|spread| spread.api_cpu), None);
        row(name("CPU time of the worker"), "s/million", of(|spread| spread.worker_cpu), None);
        row(name("journal"), "bytes/increment", of(|spread| spread.journal_bytes), None);
        row("a counter in PostgreSQL, with indexes".to_owned(), "bytes", of(|spread| spread.row_bytes), None);
        let of = |results: &[ToolResult], pick: fn(&ToolResult) -> f64| results.iter().map(pick).collect::<Vec<f64>>();
        let name = |what: &str| format!("decrements with a floor, {FLOOR_CONNECTIONS} connections: {what}");
        row(name("Tally, exact"), "decrements/s", of(&self.floor, |result| result.per_second), None);
        row(name("a row in PostgreSQL"), "decrements/s", of(&self.row, |result| result.per_second), None);
        let ratios = self.floor.iter().zip(&self.row).map(|(tally, row)| tally.per_second / row.per_second).collect();
        row(name("Tally ÷ PostgreSQL"), "", ratios, Some(Target::AtLeast(10.0)));
        row(name("Tally, p50"), "ms", of(&self.floor, |result| result.p50_ms), None);
        row(name("Tally, p99"), "ms", of(&self.floor, |result| result.p99_ms), None);
        row(name("PostgreSQL, mean"), "ms", of(&self.row, |result| result.p50_ms), None);
        for (what, latencies, p99_max) in
            [("approximate read", &self.approximate, 5.0), ("accurate read", &self.accurate, 50.0)]
        {
            let of = |pick: fn(&Percentiles) -> f64| latencies.iter().map(pick).collect::<Vec<f64>>();
            row(format!("{what} at half the load: p50"), "ms", of(|latency| latency.p50), None);
            row(
                format!("{what} at half the load: p99"),
                "ms",
                of(|latency| latency.p99),
                Some(Target::AtMost(p99_max)),
            );
        }
        for ((standbys, seconds_max), outages) in STANDBYS.iter().zip([10.0, 5.0]).zip(&self.outages) {
            let name = |what: &str| format!("a worker is killed, {standbys} standbys: {what}");
            let back = outages.iter().map(|outage| outage.exact_back_seconds).collect();
            row(name("exact writes are back after"), "s", back, Some(Target::AtMost(seconds_max)));
            let failed = outages.iter().map(|outage| outage.eventual_failed as f64).collect();
            row(name("eventual writes that failed"), "", failed, Some(Target::AtMost(0.0)));
        }
        rows
    }
}
