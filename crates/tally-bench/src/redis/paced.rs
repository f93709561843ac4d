//! A load that keeps its pace whatever the server does, for latencies that hide nothing.
//!
//! Request `i` is due `i` gaps after the start and goes over connection `i` modulo their number. Its latency counts
//! from when it was due, so a server that stalls pays for everybody who would have come meanwhile. Replies of a
//! connection come in order: the number of a reply says when its request was due, and nothing need be remembered.

use std::io::{self, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::thread;
use std::time::Duration;

use hdrhistogram::Histogram;
use tokio::runtime::Runtime;

use super::client::encode;
use crate::Failure;
use crate::stopwatch::Stopwatch;

const CONNECTIONS: u64 = 50;
/// Longest latency that is told apart from longer ones.
const LATENCY_MAX: Duration = Duration::from_secs(60);
/// How long replies may take after the last request was due.
const GRACE: Duration = Duration::from_secs(30);

/// What is sent, and how many lines answer it.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// The command.
    pub command: [&'static str; 2],
    /// Lines of its reply.
    pub reply_lines: u64,
}

/// Latencies in milliseconds.
#[derive(Clone, Copy, Debug)]
pub struct Latency {
    /// Of half of the requests at most this.
    pub p50: f64,
    /// Of 99 %.
    pub p99: f64,
    /// Of 99.9 %.
    pub p999: f64,
}

/// When each request is due.
#[derive(Clone, Copy, Debug)]
struct Schedule {
    started: Stopwatch,
    gap_seconds: f64,
    /// Requests of each connection.
    each: u64,
}

impl Schedule {
    fn due(&self, request: u64) -> Duration {
        Duration::from_secs_f64(request as f64 * self.gap_seconds)
    }
}

/// Sends so many requests a second for so long.
pub fn run(port: u16, request: Request, per_second: f64, seconds: f64) -> Result<Latency, Failure> {
    let each = (per_second * seconds / CONNECTIONS as f64).ceil() as u64;
    let (writers, readers) = connect(port).map_err(|error| Failure::new(&error))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::new(&error))?;
    let schedule = Schedule { started: Stopwatch::start(), gap_seconds: 1.0 / per_second, each };
    let histogram = thread::scope(|scope| {
        let pacer = thread::Builder::new().name("pacer".to_owned());
        let pacer = pacer.spawn_scoped(scope, || send(writers, request, schedule));
        let pacer = pacer.map_err(|error| Failure::new(&error))?;
        let histogram = receive(&runtime, readers, request, schedule);
        pacer.join().map_err(|_| Failure::new(&"the pacing thread panicked"))??;
        histogram
    })?;
    let milliseconds = |quantile| histogram.value_at_quantile(quantile) as f64 / 1e3;
    Ok(Latency { p50: milliseconds(0.5), p99: milliseconds(0.99), p999: milliseconds(0.999) })
}

/// The connections, to write to and to read from.
fn connect(port: u16) -> io::Result<(Vec<TcpStream>, Vec<TcpStream>)> {
    let mut ends = (Vec::new(), Vec::new());
    for _ in 0..CONNECTIONS {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        ends.0.push(stream.try_clone()?);
        ends.1.push(stream);
    }
    Ok(ends)
}

fn send(mut writers: Vec<TcpStream>, request: Request, schedule: Schedule) -> Result<(), Failure> {
    let bytes = encode(&request.command);
    for number in 0..schedule.each * CONNECTIONS {
        while let Some(early) = schedule.due(number).checked_sub(schedule.started.elapsed())
            && !early.is_zero()
        {
            thread::park_timeout(early);
        }
        let writer = &mut writers[(number % CONNECTIONS) as usize];
        // A socket that takes no more has tens of thousands of requests waiting in it.
        writer.write_all(&bytes).map_err(|error| Failure::new(&format!("the server does not keep up: {error}")))?;
    }
    Ok(())
}

fn receive(
    runtime: &Runtime,
    readers: Vec<TcpStream>,
    request: Request,
    schedule: Schedule,
) -> Result<Histogram<u64>, Failure> {
    let late_max = schedule.due(schedule.each * CONNECTIONS) + GRACE;
    let readers: Vec<_> = (0..)
        .zip(readers)
        .map(|(lane, reader)| runtime.spawn(receive_lane(lane, reader, request.reply_lines, schedule)))
        .collect();
    let all = async {
        let mut histogram = empty_histogram()?;
        for reader in readers {
            histogram
                .add(reader.await.map_err(|error| Failure::new(&error))??)
                .map_err(|error| Failure::new(&error))?;
        }
        Ok(histogram)
    };
    let in_time = runtime.block_on(async { tokio::time::timeout(late_max, all).await });
    in_time.unwrap_or_else(|_| Err(Failure::new(&format!("replies are missing {GRACE:?} after the last request"))))
}

async fn receive_lane(
    lane: u64,
    reader: TcpStream,
    reply_lines: u64,
    schedule: Schedule,
) -> Result<Histogram<u64>, Failure> {
    let reader = tokio::net::TcpStream::from_std(reader).map_err(|error| Failure::new(&error))?;
    let mut histogram = empty_histogram()?;
    let mut lines = Lines { reply_lines, lines: 0, at_start: true };
    let mut buffer = [0; 4096];
    let mut replies = 0;
    while replies < schedule.each {
        reader.readable().await.map_err(|error| Failure::new(&error))?;
        let read = match reader.try_read(&mut buffer) {
            Ok(0) => return Err(Failure::new(&"the server closed a connection")),
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            Err(error) => return Err(Failure::new(&error)),
        };
        let now = schedule.started.elapsed();
        let complete = lines.replies_after(&buffer[..read])?;
        for reply in replies..complete {
            let latency = now.saturating_sub(schedule.due(reply * CONNECTIONS + lane));
            histogram.saturating_record(u64::try_from(latency.as_micros()).unwrap_or(u64::MAX));
        }
        replies = complete;
    }
    Ok(histogram)
}

/// Microseconds, to three digits.
fn empty_histogram() -> Result<Histogram<u64>, Failure> {
    let most = u64::try_from(LATENCY_MAX.as_micros()).unwrap_or(u64::MAX);
    Histogram::new_with_bounds(1, most, 3).map_err(|error| Failure::new(&error))
}

/// Counts replies in a stream by their lines.
struct Lines {
    reply_lines: u64,
    lines: u64,
    at_start: bool,
}

impl Lines {
    /// Complete replies after these bytes, too.
    fn replies_after(&mut self, bytes: &[u8]) -> Result<u64, Failure> {
        for byte in bytes {
            if self.at_start && *byte == b'-' {
                return Err(Failure::new(&"the server replied with an error"));
            }
            self.at_start = *byte == b'\n';
            self.lines += u64::from(self.at_start);
        }
        Ok(self.lines / self.reply_lines)
    }
}

#[cfg(test)]
mod tests {
    use super::Lines;

    #[test]
    fn replies_are_counted_however_they_are_cut() {
        let stream = b"$2\r\n10\r\n$2\r\n11\r\n";
        for cut in 0..stream.len() {
            let mut lines = Lines { reply_lines: 2, lines: 0, at_start: true };
            assert_eq!(lines.replies_after(&stream[..cut]).unwrap(), cut as u64 / 8, "{cut}");
            assert_eq!(lines.replies_after(&stream[cut..]).unwrap(), 2, "{cut}");
        }
    }

    #[test]
    fn an_error_is_no_reply() {
        let mut lines = Lines { reply_lines: 1, lines: 0, at_start: true };
        assert_eq!(lines.replies_after(b":1\r\n").unwrap(), 1);
        assert!(lines.replies_after(b"-ERR no\r\n").is_err());
    }
}
