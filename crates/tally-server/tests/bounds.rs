//! Limits under load: many or misbehaving clients stay within the documented memory.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::disallowed_methods)]
#![cfg(target_os = "linux")]

mod harness;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use harness::wire::{Reply, Resp, request};
use harness::{Client, PATIENCE, Server, serve, wait_for};
use serde_json::json;

const MIB: usize = 1 << 20;
/// The largest body of a batch, and the memory limit that all bodies share.
const BODY_BYTES_MAX: usize = 16 * MIB;
const SHARED_BYTES_MAX: usize = 128 * MIB;
/// Largest bodies that fit the limit.
const FITTING: usize = SHARED_BYTES_MAX / BODY_BYTES_MAX;
/// Timeout for a body, including waiting for memory, and for a client that does not read.
const STALL_MAX: Duration = Duration::from_secs(30);

fn batch_head(bytes: usize) -> String {
    format!(
        "POST /api/v1/counters/batch-increment HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
         content-length: {bytes}\r\n\r\n"
    )
}

/// A batch of one increment, padded to the largest body.
fn largest_batch() -> Vec<u8> {
    let (start, end) = (r#"{"increments":[{"key":"batched"}"#, "]}");
    let mut body = start.as_bytes().to_vec();
    body.resize(BODY_BYTES_MAX - end.len(), b' ');
    body.extend(end.as_bytes());
    body
}

fn assert_counts(client: &Client) {
    let answer = client.send("POST", "/api/v1/counters/single/increment", &[], "");
    assert_eq!(answer.status, 200, "{}", answer.text);
}

/// Sends a batch, but its last byte only once the gate is open, and returns the answer.
fn send_batch(mut stream: TcpStream, body: &[u8], sent: &Sender<()>, gate: &Mutex<()>) -> String {
    let (last, most) = body.split_last().unwrap();
    // A refused batch is not read: writing fails, and the answer says why.
    let written = stream.write_all(batch_head(body.len()).as_bytes()).and_then(|()| stream.write_all(most));
    if written.is_ok() {
        sent.send(()).unwrap();
        drop(gate.lock().unwrap());
        let _ = stream.write_all(&[*last]);
    }
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

/// Sends a batch until it is accepted, as the server asks of clients that waited too long for memory.
fn send_batch_until_taken(server: &str, body: &[u8], sent: &Sender<()>, gate: &Mutex<()>) {
    wait_for("memory for a batch", || {
        let begun = Instant::now();
        let answer = send_batch(connect(server), body, sent, gate);
        if answer.starts_with("HTTP/1.1 200") {
            return Ok(());
        }
        // On a slow machine the gate may also be closed for longer than a body may take.
        let is_late = ["/problems/overloaded", "/problems/body-timeout"].iter().any(|kind| answer.contains(kind));
        assert!(answer.is_empty() || is_late, "{answer}");
        assert!(begun.elapsed() >= STALL_MAX, "refused after only {:?}: {answer}", begun.elapsed());
        Err(answer)
    });
}

/// A connection to `http://…`.
fn connect(server: &str) -> TcpStream {
    let stream = TcpStream::connect(server.strip_prefix("http://").unwrap()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

#[test]
fn large_batches_wait_for_memory_while_single_increments_are_served() {
    const BATCHES: usize = 6 * FITTING;
    /// Increments while the limit is reached. They also give the waiting batches time to be read, if nothing stops that.
    const SINGLES: i64 = 100;
    let server = Server::start();
    let client = server.client();
    assert_counts(&client);
    let before = server.memory_peak_bytes();
    let (body, gate) = (largest_batch(), Mutex::new(()));
    let (sent, arrived) = channel();
    let begun = Instant::now();
    std::thread::scope(|scope| {
        let closed = gate.lock().unwrap();
        for _ in 0..BATCHES {
            scope.spawn(|| send_batch_until_taken(&server.base, &body, &sent.clone(), &gate));
        }
        // However the others share the memory, one body at a time can be read.
        arrived.recv_timeout(PATIENCE).unwrap();
        (0..SINGLES).for_each(|_| assert_counts(&client));
        // Before the timeout no batch releases its memory.
        let is_full = begun.elapsed() < STALL_MAX;
        assert!(!is_full || arrived.try_iter().count() < FITTING, "a batch was read although the limit was reached");
        drop(closed);
    });
    assert_eq!((server.value("batched"), server.value("single")), (BATCHES as i64, 1 + SINGLES));
    // A body is copied when its buffer grows; the rest is for other buffers.
    let grown = server.memory_peak_bytes() - before;
    eprintln!("grown by {} MiB", grown >> 20);
    assert!(grown < 3 * SHARED_BYTES_MAX as u64, "grown by {} MiB", grown >> 20);
}

#[test]
fn a_page_of_a_ledger_is_bounded_in_bytes_and_the_pages_together_hold_every_entry() {
    /// Limit for the actors and reasons of one page, which the last entry may exceed.
    const PAGE_BYTES_MAX: usize = 256 << 10;
    const REASON_BYTES_MAX: usize = 1024;
    const ENTRIES: u64 = 600;
    let server = Server::start();
    let client = server.client();
    // A control character takes one byte in a reason and six in JSON, which is the worst case.
    let reason = |seq: u64| format!("{seq:04}") + &"\u{1}".repeat(REASON_BYTES_MAX - 4);
    for seq in 1..=ENTRIES {
        let body = json!({ "delta": 1, "reason": reason(seq) }).to_string();
        assert_eq!(client.send("POST", "/api/v1/counters/a/adjust", &[], &body).status, 200);
    }
    let (mut seen, mut after, mut pages) = (0, Some(0), 0);
    while let Some(from) = after {
        let page = client.send("GET", &format!("/api/v1/counters/a/ledger?limit=1000&after={from}"), &[], "");
        let entries = page.json["entries"].as_array().unwrap();
        let length = |field: &serde_json::Value| field.as_str().unwrap().len();
        let bytes: usize = entries.iter().map(|entry| length(&entry["actor"]) + length(&entry["reason"])).sum();
        assert!(bytes < PAGE_BYTES_MAX + 2 * REASON_BYTES_MAX, "{bytes} bytes in one page");
        assert!(page.text.len() < 8 * PAGE_BYTES_MAX, "{} bytes as JSON", page.text.len());
        for entry in entries {
            seen += 1;
            assert_eq!((entry["seq"].as_u64(), entry["reason"].as_str()), (Some(seen), Some(&*reason(seen))));
        }
        after = page.json["next"].as_u64();
        pages += 1;
        assert!(after.is_none() || bytes >= PAGE_BYTES_MAX, "a page that is not the last one is full");
    }
    assert_eq!((seen, pages), (ENTRIES, 3));
}

fn connections(client: &Client) -> f64 {
    let metrics = client.send("GET", "/metrics", &[], "").text;
    let line = metrics.lines().find(|line| line.starts_with("tally_connections{")).unwrap();
    line.rsplit_once(' ').unwrap().1.parse().unwrap()
}

#[test]
fn a_client_that_never_reads_its_answers_is_disconnected() {
    const CLIENTS: usize = 10;
    let server = Server::start();
    let client = server.client();
    assert!(connections(&client) < 2.0);
    let before = server.memory_peak_bytes();
    let answer_bytes = client.send("GET", "/openapi.json", &[], "").text.len();
    // Answers of 100 MiB for each of them, far more than the socket buffers hold.
    let asked = 100 * MIB / answer_bytes;
    let requests = Arc::new("GET /openapi.json HTTP/1.1\r\nhost: localhost\r\n\r\n".repeat(asked));
    let silent: Vec<_> = (0..CLIENTS).map(|_| server.connect()).collect();
    let started = Instant::now();
    for stream in &silent {
        let (mut stream, requests) = (stream.try_clone().unwrap(), Arc::clone(&requests));
        // Ends when everything is written or the server closes the connection.
        std::thread::spawn(move || drop(stream.write_all(requests.as_bytes())));
    }
    let wait_for_connections = |is_right: &dyn Fn(f64) -> bool| {
        wait_for("the number of connections", || {
            assert_counts(&client);
            let open = connections(&client);
            if is_right(open) { Ok(()) } else { Err(open) }
        });
    };
    wait_for_connections(&|open| open > CLIENTS as f64);
    wait_for_connections(&|open| open <= 1.0);
    assert!(started.elapsed() >= STALL_MAX / 2, "a client that is merely slow has time");
    let grown = server.memory_peak_bytes() - before;
    assert!(grown < 64 * MIB as u64, "grown by {} MiB", grown >> 20);
    drop(silent);
}

/// The budget covers the whole process, so that an operator can set the container's limit to it.
#[test]
fn the_process_stays_within_its_memory_budget_while_counters_exceed_it() {
    const COUNTERS: u64 = 1_500_000;
    const PIPELINE: u64 = 5_000;
    let dir = tempfile::tempdir().unwrap();
    let mut command = serve(dir.path());
    command.args(["--memory", "160MiB"]);
    let server = Server::start_with(command);
    let mut resp = Resp::to(&server);
    for first in (0..COUNTERS).step_by(PIPELINE as usize) {
        // 700001 is coprime to the number of counters: each is visited once, in scattered order.
        let keys = (first..first + PIPELINE).map(|number| format!("visits:page:{}", number * 700_001 % COUNTERS));
        let pipeline: Vec<u8> = keys.flat_map(|key| request(&["INCR", &key])).collect();
        resp.send(&pipeline).unwrap();
        assert!((0..PIPELINE).all(|_| resp.reply().unwrap() == Reply::Integer(1)));
    }
    let peak_mib = server.memory_peak_bytes() >> 20;
    assert!(peak_mib <= 160, "{peak_mib} MiB");
}
