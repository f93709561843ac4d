//! An open-loop load at a constant rate, whose latencies are free of coordinated omission.
//!
//! Request `i` is due `i` intervals after the start and is sent on connection `i` modulo the number of connections. Its
//! latency counts from the time it was due, so a stall also delays the requests after it. Replies of a connection are
//! in order, so the number of a reply gives the time its request was due.

use std::io::{self, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::thread;
use std::time::Duration;

use hdrhistogram::Histogram;
use tokio::runtime::Runtime;

use super::client::encode;
use crate::BenchError;
use crate::timer::Timer;

const CONNECTIONS: u64 = 50;
/// Longest latency recorded; longer ones count as this.
const LATENCY_MAX: Duration = Duration::from_secs(60);
/// Timeout for replies after the last request was due.
const GRACE: Duration = Duration::from_secs(30);

/// A command and the number of lines in its reply.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// The command.
    pub command: [&'static str; 2],
    /// Lines of its reply.
    pub reply_lines: u64,
}

/// Latency percentiles in milliseconds.
#[derive(Clone, Copy, Debug)]
pub struct Percentiles {
    /// 50th percentile.
    pub p50: f64,
    /// 99th percentile.
    pub p99: f64,
    /// 99.9th percentile.
    pub p999: f64,
}

/// When each request is due.
#[derive(Clone, Copy, Debug)]
struct Schedule {
    started: Timer,
    interval_seconds: f64,
    /// Requests per connection.
    each: u64,
}

impl Schedule {
    fn due(&self, request: u64) -> Duration {
        Duration::from_secs_f64(request as f64 * self.interval_seconds)
    }
}

/// Sends requests at this rate for this long.
pub fn run(port: u16, request: Request, per_second: f64, seconds: f64) -> Result<Percentiles, BenchError> {
    let each = (per_second * seconds / CONNECTIONS as f64).ceil() as u64;
    let (writers, readers) = connect(port).map_err(|error| BenchError::new(&error))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| BenchError::new(&error))?;
    let schedule = Schedule { started: Timer::start(), interval_seconds: 1.0 / per_second, each };
    let histogram = thread::scope(|scope| {
        let pacer = thread::Builder::new().name("pacer".to_owned());
        let pacer = pacer.spawn_scoped(scope, || send(writers, request, schedule));
        let pacer = pacer.map_err(|error| BenchError::new(&error))?;
        let histogram = receive(&runtime, readers, request, schedule);
        pacer.join().map_err(|_| BenchError::new(&"the pacing thread panicked"))??;
        histogram
    })?;
    let milliseconds = |quantile| histogram.value_at_quantile(quantile) as f64 / 1e3;
    Ok(Percentiles { p50: milliseconds(0.5), p99: milliseconds(0.99), p999: milliseconds(0.999) })
}

/// Opens the connections; each as a writer and a reader.
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

fn send(mut writers: Vec<TcpStream>, request: Request, schedule: Schedule) -> Result<(), BenchError> {
    let bytes = encode(&request.command);
    for number in 0..schedule.each * CONNECTIONS {
        while let Some(early) = schedule.due(number).checked_sub(schedule.started.elapsed())
            && !early.is_zero()
        {
            thread::park_timeout(early);
        }
        let writer = &mut writers[(number % CONNECTIONS) as usize];
        // A full socket buffer holds tens of thousands of requests.
        writer.write_all(&bytes).map_err(|error| BenchError::new(&format!("the server cannot keep up: {error}")))?;
    }
    Ok(())
}

fn receive(
    runtime: &Runtime,
    readers: Vec<TcpStream>,
    request: Request,
    schedule: Schedule,
) -> Result<Histogram<u64>, BenchError> {
    let late_max = schedule.due(schedule.each * CONNECTIONS) + GRACE;
    let readers: Vec<_> = (0..)
        .zip(readers)
        .map(|(connection, reader)| {
            runtime.spawn(receive_connection(connection, reader, request.reply_lines, schedule))
        })
        .collect();
    let all = async {
        let mut histogram = empty_histogram()?;
        for reader in readers {
            histogram
                .add(reader.await.map_err(|error| BenchError::new(&error))??)
                .map_err(|error| BenchError::new(&error))?;
        }
        Ok(histogram)
    };
    let in_time = runtime.block_on(async { tokio::time::timeout(late_max, all).await });
    in_time.unwrap_or_else(|_| Err(BenchError::new(&format!("replies are missing {GRACE:?} after the last request"))))
}

async fn receive_connection(
    connection: u64,
    reader: TcpStream,
    reply_lines: u64,
    schedule: Schedule,
) -> Result<Histogram<u64>, BenchError> {
    let reader = tokio::net::TcpStream::from_std(reader).map_err(|error| BenchError::new(&error))?;
    let mut histogram = empty_histogram()?;
    let mut lines = Lines { reply_lines, lines: 0, at_start: true };
    let mut buffer = [0; 4096];
    let mut replies = 0;
    while replies < schedule.each {
        reader.readable().await.map_err(|error| BenchError::new(&error))?;
        let read = match reader.try_read(&mut buffer) {
            Ok(0) => return Err(BenchError::new(&"the server closed a connection")),
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            Err(error) => return Err(BenchError::new(&error)),
        };
        let now = schedule.started.elapsed();
        let complete = lines.replies_after(&buffer[..read])?;
        for reply in replies..complete {
            let latency = now.saturating_sub(schedule.due(reply * CONNECTIONS + connection));
            histogram.saturating_record(u64::try_from(latency.as_micros()).unwrap_or(u64::MAX));
        }
        replies = complete;
    }
    Ok(histogram)
}

/// Microseconds, with three significant digits.
fn empty_histogram() -> Result<Histogram<u64>, BenchError> {
    let most = u64::try_from(LATENCY_MAX.as_micros()).unwrap_or(u64::MAX);
    Histogram::new_with_bounds(1, most, 3).map_err(|error| BenchError::new(&error))
}

/// Counts replies in a stream by their lines.
struct Lines {
    reply_lines: u64,
    lines: u64,
    at_start: bool,
}

impl Lines {
    /// The number of complete replies, including these bytes.
    fn replies_after(&mut self, bytes: &[u8]) -> Result<u64, BenchError> {
        for byte in bytes {
            if self.at_start && *byte == b'-' {
                return Err(BenchError::new(&"the server replied with an error"));
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
    fn replies_are_counted_across_reads() {
        let stream = b"$2\r\n10\r\n$2\r\n11\r\n";
        for cut in 0..stream.len() {
            let mut lines = Lines { reply_lines: 2, lines: 0, at_start: true };
            assert_eq!(lines.replies_after(&stream[..cut]).unwrap(), cut as u64 / 8, "{cut}");
            assert_eq!(lines.replies_after(&stream[cut..]).unwrap(), 2, "{cut}");
        }
    }

    #[test]
    fn an_error_reply_is_an_error() {
        let mut lines = Lines { reply_lines: 1, lines: 0, at_start: true };
        assert_eq!(lines.replies_after(b":1\r\n").unwrap(), 1);
        assert!(lines.replies_after(b"-ERR no\r\n").is_err());
    }
}
