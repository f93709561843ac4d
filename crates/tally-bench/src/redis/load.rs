//! One run of redis-benchmark against one server: how fast, and at what cost to the server.
//!
//! With threads, redis-benchmark looks only every 250 ms whether it is done, so the rate it prints is up to a twelfth
//! too low in a run of three seconds. The rate here is that of the server's own count of commands, looked at every few
//! milliseconds from beside. What redis-benchmark prints is kept next to it.

use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use super::peer::Peer;
use crate::Failure;
use crate::server::Owned;
use crate::stopwatch::Stopwatch;

const CONNECTIONS: u64 = 50;
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// What redis-benchmark sends.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// What the table calls it.
    pub name: &'static str,
    /// The command.
    pub command: [&'static str; 2],
    /// Requests each connection sends before it reads the replies.
    pub pipeline: u64,
    /// Keys that `__rand_int__` stands for.
    pub keys: u64,
}

/// What one run found.
#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    /// Requests a second by the server's count.
    pub per_second: f64,
    /// Requests a second as redis-benchmark prints them.
    pub printed_per_second: f64,
    /// Processor seconds of the server for a million requests.
    pub cpu_per_million: f64,
}

/// Sends about so many requests and waits for their replies.
pub fn run(peer: &Peer, load: &Load, requests: f64) -> Result<Outcome, Failure> {
    // Every connection sends whole pipelines.
    let turn = CONNECTIONS * load.pipeline;
    let requests = (requests as u64).div_ceil(turn).max(1) * turn;
    let mut client = peer.connect()?;
    let cpu = peer.cpu_seconds();
    let before = client.commands_processed()?;
    let mut benchmark = start(peer, load, requests)?;
    let watch = Stopwatch::start();
    let (mut looks, mut began, mut ended) = (0, 0.0, None);
    loop {
        // Looked at before the count, so that the last count is one of everything.
        let is_over = benchmark.0.try_wait().map_err(|error| Failure::new(&error))?.is_some();
        if ended.is_none() {
            looks += 1;
            let done = client.commands_processed()?.saturating_sub(before + looks);
            // A few commands are redis-benchmark's own.
            if done < turn {
                began = watch.seconds();
            } else if done >= requests {
                ended = Some(watch.seconds());
            }
        }
        if is_over {
            break;
        }
        thread::park_timeout(LOOK_EVERY);
    }
    let printed_per_second = printed(&mut benchmark, load)?;
    let ended = ended.ok_or_else(|| {
        Failure::new(&format!("{}: {} did not process all {requests} requests", load.name, peer.kind.name()))
    })?;
    Ok(Outcome {
        per_second: requests as f64 / (ended - began),
        printed_per_second,
        cpu_per_million: (peer.cpu_seconds() - cpu) / requests as f64 * 1e6,
    })
}

fn start(peer: &Peer, load: &Load, requests: u64) -> Result<Owned, Failure> {
    let process = Command::new("redis-benchmark")
        .args(["-h", "127.0.0.1", "-p", &peer.port.to_string(), "--csv", "--threads", "2"])
        .args(["-c", &CONNECTIONS.to_string(), "-n", &requests.to_string()])
        .args(["-P", &load.pipeline.to_string(), "-r", &load.keys.to_string()])
        .args(load.command)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    process.map(Owned).map_err(|error| {
        Failure::new(&format!(
            "redis-benchmark could not be started ({error}); `make bench-redis` installs it, or: apt-get install redis-tools"
        ))
    })
}

/// The rate in what a finished redis-benchmark has printed. It ends with an error when a reply is one.
fn printed(benchmark: &mut Owned, load: &Load) -> Result<f64, Failure> {
    let read = |stream: Option<&mut dyn std::io::Read>| {
        let mut text = String::new();
        stream.map(|stream| stream.read_to_string(&mut text));
        text
    };
    let status = benchmark.0.wait().map_err(|error| Failure::new(&error))?;
    let out = read(benchmark.0.stdout.as_mut().map(|out| out as _));
    let said = read(benchmark.0.stderr.as_mut().map(|err| err as _));
    let rate = rate_in(&out).filter(|_| status.success());
    rate.ok_or_else(|| Failure::new(&format!("{}: redis-benchmark failed ({status}):\n{out}{said}", load.name)))
}

/// The field `rps` of the last line.
fn rate_in(csv: &str) -> Option<f64> {
    let mut lines = csv.lines().filter(|line| line.starts_with('"'));
    let at = lines.next()?.split("\",\"").position(|field| field.trim_matches('"') == "rps")?;
    lines.next_back()?.split("\",\"").nth(at)?.trim_matches('"').parse().ok()
}

#[cfg(test)]
mod tests {
    use super::rate_in;

    #[test]
    fn the_rate_is_found_by_the_name_of_its_column() {
        let csv = "\"test\",\"rps\",\"avg_latency_ms\"\n\"INCR hot\",\"49701.79\",\"0.736\"\n";
        assert_eq!(rate_in(csv), Some(49701.79));
        let moved = "\"test\",\"avg_latency_ms\",\"rps\"\n\"INCR a,b\",\"0.736\",\"12.5\"\n";
        assert_eq!(rate_in(moved), Some(12.5));
    }

    #[test]
    fn output_without_a_rate_is_not_a_rate() {
        assert_eq!(rate_in(""), None);
        assert_eq!(rate_in("\"test\",\"rps\"\n"), None);
        assert_eq!(rate_in("Error from server: ERR\n"), None);
    }
}
