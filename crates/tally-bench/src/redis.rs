//! Tally beside Redis on the same machine, both loaded by redis-benchmark.
//!
//! Tally acknowledges after its flush. Redis runs twice: from memory alone, and with a flush before every
//! acknowledgement. Within a round every load goes to each server in turn, and the order rotates from round to round.

mod bare;
mod client;
mod counting;
mod load;
mod paced;
mod peer;

use std::path::Path;

pub use bare::{BareArgs, serve as serve_bare};
use load::{Load, Outcome};
use paced::{Latency, Request};
use peer::{Kind, Peer};

use crate::progress::Progress;
use crate::report::{Row, Target};
use crate::{Failure, Options};

const KEYS: u64 = 1_000_000;
const INCREMENT: [&str; 2] = ["INCR", "hot"];
const INCREMENT_ANY: [&str; 2] = ["INCR", "key:__rand_int__"];
const READ: [&str; 2] = ["GET", "hot"];

/// A load and what is asked of Tally under it.
struct Contest {
    load: Load,
    /// Least ratio to Redis in memory and to Redis with fsync.
    ratios_min: Option<[f64; 2]>,
    /// Most processor time, as a ratio to Redis in memory.
    cpu_ratio_max: Option<f64>,
}

const fn contest(name: &'static str, command: [&'static str; 2], pipeline: u64, ratios_min: [f64; 2]) -> Contest {
    let load = Load { name, command, pipeline, keys: KEYS };
    Contest { load, ratios_min: Some(ratios_min), cpu_ratio_max: None }
}

const CONTESTS: [Contest; 7] = [
    contest("one hot key, pipeline 1", INCREMENT, 1, [1.0, 1.5]),
    Contest { cpu_ratio_max: Some(0.6), ..contest("one hot key, pipeline 16", INCREMENT, 16, [1.3, 2.5]) },
    Contest { cpu_ratio_max: Some(0.6), ..contest("one hot key, pipeline 128", INCREMENT, 128, [2.2, 4.0]) },
    contest("1 M keys, pipeline 1", INCREMENT_ANY, 1, [0.9, 1.2]),
    contest("1 M keys, pipeline 16", INCREMENT_ANY, 16, [1.0, 1.5]),
    contest("1 M keys, pipeline 128", INCREMENT_ANY, 128, [1.3, 2.0]),
    Contest { ratios_min: None, ..contest("reads of one key, pipeline 1", READ, 1, [0.0, 0.0]) },
];

/// Name, contest whose peak is halved, request, p99 to stay below in milliseconds.
const PACED: [(&str, usize, Request, f64); 2] = [
    ("increments at half the peak", 0, Request { command: INCREMENT, reply_lines: 1 }, 10.0),
    ("reads at half the peak", 6, Request { command: READ, reply_lines: 2 }, 5.0),
];

/// The contests that the bare servers take part in: those of one hot key, and of many without pipelining.
const BARE_CONTESTS: usize = 4;

/// How many take part in a contest: all, or all but the bare servers, which come last.
fn contestants(contest: usize) -> usize {
    if contest < BARE_CONTESTS { Kind::ALL.len() } else { Kind::ALL.len() - Kind::BARE.len() }
}

/// Who is asked at a pace: Redis at the pace of Tally, for what the machine itself does to latencies.
const PACED_KINDS: [Kind; 2] = [Kind::Tally, Kind::RedisMemory];

const MEASURED_FOR_MEMORY: [Kind; 2] = [Kind::Tally, Kind::RedisMemory];

/// Steps of the progress bar: one per server to get ready, then everything each round measures.
pub fn steps(options: &Options) -> u64 {
    let contests: usize = (0..CONTESTS.len()).map(contestants).sum();
    let round = contests + PACED.len() * PACED_KINDS.len() + MEASURED_FOR_MEMORY.len();
    (Kind::ALL.len() + options.rounds * round) as u64
}

/// By server, one for each round; none of those that do not take part.
type Outcomes = [Vec<Outcome>; Kind::ALL.len()];

/// Everything the rounds found.
#[derive(Default)]
struct Found {
    /// By contest.
    outcomes: [Outcomes; CONTESTS.len()],
    /// By pace and by server, one for each round.
    latencies: [[Vec<Latency>; PACED_KINDS.len()]; PACED.len()],
    /// Bytes per counter.
    memory: [Vec<f64>; MEASURED_FOR_MEMORY.len()],
}

/// Runs the suite.
pub fn run(options: &Options, progress: &Progress) -> Result<Vec<Row>, Failure> {
    let dir = options.scratch()?;
    let mut peers = Vec::new();
    let mut requests = Vec::new();
    for kind in Kind::ALL {
        progress.say(&format!("redis: getting {} ready", kind.name()));
        let (peer, counts) = ready(kind, &dir.path().join(kind.name()), options)?;
        peers.push(peer);
        requests.push(counts);
        progress.step();
    }
    let mut found = Found::default();
    for round in 0..options.rounds {
        let say = |what: &str| progress.say(&format!("redis: {what} (round {} of {})", round + 1, options.rounds));
        for (at, Contest { load, .. }) in CONTESTS.iter().enumerate() {
            for turn in 0..contestants(at) {
                let who = (round + turn) % contestants(at);
                say(&format!("{}, {}", load.name, peers[who].kind.name()));
                found.outcomes[at][who].push(load::run(&peers[who], load, requests[who][at])?);
                progress.step();
            }
        }
        for (latencies, (name, contest, request, _)) in found.latencies.iter_mut().zip(PACED) {
            let peak = found.outcomes[contest][0].last().map_or(f64::NAN, |outcome| outcome.per_second);
            for turn in 0..PACED_KINDS.len() {
                let who = (round + turn) % PACED_KINDS.len();
                say(&format!("{name}, {}", PACED_KINDS[who].name()));
                latencies[who].push(paced::run(peers[who].port, request, peak / 2.0, options.seconds)?);
                progress.step();
            }
        }
        for (memory, kind) in found.memory.iter_mut().zip(MEASURED_FOR_MEMORY) {
            say(&format!("memory, {}", kind.name()));
            let data = dir.path().join(format!("memory-{round}-{}", kind.name()));
            memory.push(bytes_per_counter(kind, &data)?);
            progress.step();
        }
    }
    Ok(found.rows())
}

/// Starts a server, creates its keys, and finds out how many requests of each load take the wanted time.
fn ready(kind: Kind, data: &Path, options: &Options) -> Result<(Peer, Vec<f64>), Failure> {
    let peer = Peer::start(kind, data)?;
    let mut client = peer.connect()?;
    client.call(&INCREMENT)?;
    // The keys that redis-benchmark makes of `key:__rand_int__`.
    client.increment_all(KEYS, |number| format!("key:{number:012}"))?;
    if Kind::BARE.contains(&kind) {
        let requests = requests_of(&peer, &CONTESTS[..BARE_CONTESTS], options)?;
        return Ok((peer, requests));
    }
    let requests = requests_of(&peer, &CONTESTS, options)?;
    let counters = client.call(&["DBSIZE"])?;
    if counters != (KEYS + 1).to_string() {
        return Err(Failure::new(&format!("{} has {counters} keys, not {KEYS} and the hot one", kind.name())));
    }
    Ok((peer, requests))
}

/// How many requests of each contest take the wanted time.
fn requests_of(peer: &Peer, contests: &[Contest], options: &Options) -> Result<Vec<f64>, Failure> {
    let few = |load: &Load| 20_000.0 + 10_000.0 * load.pipeline as f64;
    contests
        .iter()
        .map(|Contest { load, .. }| Ok(load::run(peer, load, few(load))?.per_second * options.seconds))
        .collect()
}

/// What a million counters with 14-byte keys add to a fresh server.
fn bytes_per_counter(kind: Kind, data: &Path) -> Result<f64, Failure> {
    let peer = Peer::start(kind, data)?;
    let mut client = peer.connect()?;
    let empty = peer.resident_bytes();
    client.increment_all(KEYS, |number| format!("key:{number:010}"))?;
    Ok((peer.resident_bytes() - empty) / KEYS as f64)
}

impl Found {
    fn rows(&self) -> Vec<Row> {
        let mut rows = Vec::new();
        for (contest, outcomes) in CONTESTS.iter().zip(&self.outcomes) {
            rows.extend(contest_rows(contest, outcomes));
        }
        for (contest, outcomes) in CONTESTS.iter().zip(&self.outcomes).take(BARE_CONTESTS) {
            rows.extend(Kind::BARE.iter().flat_map(|kind| bare_rows(contest, *kind, outcomes)));
        }
        for ((name, .., p99_max), latencies) in PACED.iter().zip(&self.latencies) {
            for (kind, latencies) in PACED_KINDS.iter().zip(latencies) {
                let row = |which: &str, pick: fn(&Latency) -> f64| {
                    let name = format!("{name}: {}, {which}", kind.name());
                    Row::new("redis", name, "ms", latencies.iter().map(pick).collect())
                };
                let p99 = row("p99", |latency| latency.p99);
                rows.push(row("p50", |latency| latency.p50));
                rows.push(if *kind == Kind::Tally { p99.target(Target::AtMost(*p99_max)) } else { p99 });
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

fn contest_rows(contest: &Contest, outcomes: &Outcomes) -> Vec<Row> {
    let of =
        |pick: fn(&Outcome) -> f64| outcomes.each_ref().map(|rounds| rounds.iter().map(pick).collect::<Vec<f64>>());
    let rates = of(|outcome| outcome.per_second);
    let printed = of(|outcome| outcome.printed_per_second);
    let cpu = of(|outcome| outcome.cpu_per_million);
    let row = |what: &str, unit, values| Row::new("redis", format!("{}: {what}", contest.load.name), unit, values);
    let mut rows = Vec::new();
    for (kind, rates) in Kind::ALL.iter().zip(&rates).filter(|(_, rates)| !rates.is_empty()) {
        rows.push(row(kind.name(), "requests/s", rates.clone()));
    }
    for (at, kind) in [(1, Kind::RedisMemory), (2, Kind::RedisFsync)] {
        let ratio = row(&format!("Tally ÷ {}", kind.name()), "", ratios(&rates[0], &rates[at]));
        rows.push(match contest.ratios_min {
            Some(bounds) => ratio.target(Target::AtLeast(bounds[at - 1])),
            None => ratio,
        });
        let name = format!("Tally ÷ {}, as printed", kind.name());
        rows.push(row(&name, "", ratios(&printed[0], &printed[at])));
    }
    for (kind, cpu) in Kind::ALL.iter().zip(&cpu).take(2) {
        rows.push(row(&format!("{}, processor time", kind.name()), "s/million", cpu.clone()));
    }
    let ratio = row("processor time, Tally ÷ Redis in memory", "", ratios(&cpu[0], &cpu[1]));
    rows.push(match contest.cpu_ratio_max {
        Some(bound) => ratio.target(Target::AtMost(bound)),
        None => ratio,
    });
    rows
}

/// What flushing leaves to a bare server, beside both kinds of Redis.
fn bare_rows(contest: &Contest, bare: Kind, outcomes: &Outcomes) -> [Row; 3] {
    let of = |kind: Kind, pick: fn(&Outcome) -> f64| {
        let at = Kind::ALL.iter().position(|other| *other == kind).unwrap_or_default();
        outcomes[at].iter().map(pick).collect::<Vec<f64>>()
    };
    let row = |what: &str, beside: Kind, pick: fn(&Outcome) -> f64| {
        let name = format!("{}: {what}{} ÷ {}", contest.load.name, bare.name(), beside.name());
        Row::new("redis", name, "", ratios(&of(bare, pick), &of(beside, pick)))
    };
    let rate = |outcome: &Outcome| outcome.per_second;
    [
        row("", Kind::RedisMemory, rate),
        row("", Kind::RedisFsync, rate),
        row("processor time, ", Kind::RedisMemory, |outcome| outcome.cpu_per_million),
    ]
}

/// Round by round.
fn ratios(over: &[f64], under: &[f64]) -> Vec<f64> {
    over.iter().zip(under).map(|(over, under)| over / under).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tally does 300 a second, Redis in memory 200, Redis with fsync 100; Tally costs half as much as Redis.
    fn found() -> Found {
        let outcome = |per_second, cpu_per_million| {
            vec![Outcome { per_second, printed_per_second: per_second, cpu_per_million }; 2]
        };
        Found {
            outcomes: std::array::from_fn(|_| {
                [(300.0, 1.0), (200.0, 2.0), (100.0, 3.0), (180.0, 1.0), (160.0, 1.5)]
                    .map(|(rate, cpu)| outcome(rate, cpu))
            }),
            latencies: std::array::from_fn(|_| [(); 2].map(|()| vec![Latency { p50: 1.0, p99: 6.0, p999: 9.0 }; 2])),
            memory: [vec![90.0; 2], vec![60.0; 2]],
        }
    }

    fn median(name: &str) -> f64 {
        found().rows().into_iter().find(|row| row.name == name).map(|row| row.median).unwrap()
    }

    #[test]
    fn ratios_are_tally_over_redis() {
        assert_eq!(median("one hot key, pipeline 16: Tally ÷ Redis in memory"), 1.5);
        assert_eq!(median("1 M keys, pipeline 128: Tally ÷ Redis with fsync"), 3.0);
        assert_eq!(median("one hot key, pipeline 16: processor time, Tally ÷ Redis in memory"), 0.5);
        assert_eq!(median("one hot key, pipeline 1: a bare server ÷ Redis in memory"), 0.9);
        assert_eq!(median("one hot key, pipeline 1: a bare server ÷ Redis with fsync"), 1.8);
        assert_eq!(median("one hot key, pipeline 1: processor time, a bare server ÷ Redis in memory"), 0.5);
        assert_eq!(median("1 M keys, pipeline 1: a bare server that counts ÷ Redis in memory"), 0.8);
        assert_eq!(median("memory per counter, Tally ÷ Redis"), 1.5);
    }

    #[test]
    fn every_target_has_a_row() {
        let rows = found().rows();
        let targets = rows.iter().filter(|row| row.target.is_some()).count();
        assert_eq!(targets, 12 + 2 + 2, "ratios of six loads to two servers, processor time, p99");
    }

    #[test]
    fn peaks_are_those_of_the_same_command() {
        for (name, contest, request, _) in PACED {
            assert_eq!(CONTESTS[contest].load.command, request.command, "{name}");
            assert_eq!(CONTESTS[contest].load.pipeline, 1, "{name}");
        }
    }
}
