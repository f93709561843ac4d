//! One run of redis-benchmark against one server: throughput and CPU time of the server.
//!
//! With threads, redis-benchmark checks only every 250 ms whether it is done, so in a run of three seconds the rate it
//! prints is up to a twelfth too low. The rate here is computed from the server's own command counter, which is polled
//! every few milliseconds. The printed rate is reported as well.

use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use super::servers::ComparedServer;
use crate::BenchError;
use crate::server::ChildGuard;
use crate::timer::Timer;

const CONNECTIONS: u64 = 50;
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// A load of redis-benchmark.
#[derive(Clone, Copy, Debug)]
pub struct RedisLoad {
    /// Its name in the table.
    pub name: &'static str,
    /// The command.
    pub command: [&'static str; 2],
    /// Requests each connection sends before it reads the replies.
    pub pipeline: u64,
    /// Range of `__rand_int__`.
    pub keys: u64,
}

/// The result of one run.
#[derive(Clone, Copy, Debug)]
pub struct LoadResult {
    /// Requests per second, by the server's counter.
    pub per_second: f64,
    /// Requests per second, as printed by redis-benchmark.
    pub printed_per_second: f64,
    /// CPU seconds of the server per million requests.
    pub cpu_per_million: f64,
}

/// Sends about `requests` requests and waits for the replies.
pub fn run(server: &ComparedServer, load: &RedisLoad, requests: f64) -> Result<LoadResult, BenchError> {
    // Every connection sends whole pipelines.
    let pipelines = CONNECTIONS * load.pipeline;
    let requests = (requests as u64).div_ceil(pipelines).max(1) * pipelines;
    let mut client = server.connect()?;
    let cpu = server.cpu_seconds();
    let before = client.commands_processed()?;
    let mut benchmark = start(server, load, requests)?;
    let timer = Timer::start();
    let (mut polls, mut began, mut ended) = (0, 0.0, None);
    loop {
        // Checked before the counter is read, so that the last reading includes every request.
        let is_over = benchmark.0.try_wait().map_err(|error| BenchError::new(&error))?.is_some();
        if ended.is_none() {
            polls += 1;
            let done = client.commands_processed()?.saturating_sub(before + polls);
            // redis-benchmark sends a few commands of its own.
            if done < pipelines {
                began = timer.seconds();
            } else if done >= requests {
                ended = Some(timer.seconds());
            }
        }
        if is_over {
            break;
        }
        thread::park_timeout(POLL_INTERVAL);
    }
    let printed_per_second = printed(&mut benchmark, load)?;
    let ended = ended.ok_or_else(|| {
        BenchError::new(&format!("{}: {} did not process all {requests} requests", load.name, server.kind.name()))
    })?;
    Ok(LoadResult {
        per_second: requests as f64 / (ended - began),
        printed_per_second,
        cpu_per_million: (server.cpu_seconds() - cpu) / requests as f64 * 1e6,
    })
}

fn start(server: &ComparedServer, load: &RedisLoad, requests: u64) -> Result<ChildGuard, BenchError> {
    let process = Command::new("redis-benchmark")
        .args(["-h", "127.0.0.1", "-p", &server.port.to_string(), "--csv", "--threads", "2"])
        .args(["-c", &CONNECTIONS.to_string(), "-n", &requests.to_string()])
        .args(["-P", &load.pipeline.to_string(), "-r", &load.keys.to_string()])
        .args(load.command)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    process.map(ChildGuard).map_err(|error| {
        BenchError::new(&format!(
            "cannot start redis-benchmark ({error}); install it with `make bench-redis` or `apt-get install redis-tools`"
        ))
    })
}

/// The rate that redis-benchmark printed. It exits with an error if a reply is an error.
fn printed(benchmark: &mut ChildGuard, load: &RedisLoad) -> Result<f64, BenchError> {
    let read = |stream: Option<&mut dyn std::io::Read>| {
        let mut text = String::new();
        stream.map(|stream| stream.read_to_string(&mut text));
        text
    };
    let status = benchmark.0.wait().map_err(|error| BenchError::new(&error))?;
    let out = read(benchmark.0.stdout.as_mut().map(|out| out as _));
    let errors = read(benchmark.0.stderr.as_mut().map(|err| err as _));
    let rate = column(&out, "rps").filter(|_| status.success());
    rate.ok_or_else(|| BenchError::new(&format!("{}: redis-benchmark failed ({status}):\n{out}{errors}", load.name)))
}

/// A field of the last line that redis-benchmark printed.
pub fn column(csv: &str, name: &str) -> Option<f64> {
    let mut lines = csv.lines().filter(|line| line.starts_with('"'));
    let at = lines.next()?.split("\",\"").position(|field| field.trim_matches('"') == name)?;
    lines.next_back()?.split("\",\"").nth(at)?.trim_matches('"').parse().ok()
}

#[cfg(test)]
mod tests {
    use super::column;

    #[test]
    fn a_field_is_found_by_the_name_of_its_column() {
        let csv = "\"test\",\"rps\",\"avg_latency_ms\"\n\"INCR hot\",\"49701.79\",\"0.736\"\n";
        assert_eq!(column(csv, "rps"), Some(49701.79));
        let moved = "\"test\",\"avg_latency_ms\",\"rps\"\n\"INCR a,b\",\"0.736\",\"12.5\"\n";
        assert_eq!(column(moved, "rps"), Some(12.5));
    }

    #[test]
    fn output_without_a_rate_is_not_a_rate() {
        assert_eq!(column("", "rps"), None);
        assert_eq!(column("\"test\",\"rps\"\n", "rps"), None);
        assert_eq!(column("Error from server: ERR\n", "rps"), None);
    }
}
