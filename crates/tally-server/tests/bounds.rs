//! Bounds under pressure: what many or unwilling clients ask for at once stays within the memory that is stated.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::disallowed_methods)]
#![cfg(target_os = "linux")]

mod harness;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use harness::{Client, PATIENCE, Server, pause};
use serde_json::json;

const MIB: usize = 1 << 20;
/// The largest body of a batch, and the room all of them share.
const BODY_BYTES_MAX: usize = 16 * MIB;
const ROOM_BYTES: usize = 128 * MIB;
/// Bodies that fit into the room.
const FITTING: usize = ROOM_BYTES / BODY_BYTES_MAX;
/// Time after which a wait for room, for a body or for a client that takes nothing is over.
const STALL_MAX: Duration = Duration::from_secs(30);

fn batch_head(bytes: usize) -> String {
    format!(
        "POST /api/v1/counters/batch-increment HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
         content-length: {bytes}\r\n\r\n"
    )
}

/// A batch of one increment that is as large as a body may be.
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

/// Sends a batch, the last byte of it once the gate is open, and returns the answer.
fn send_batch(mut stream: TcpStream, body: &[u8], sent: &Sender<()>, gate: &Mutex<()>) -> String {
    let (last, most) = body.split_last().unwrap();
    stream.write_all(batch_head(body.len()).as_bytes()).unwrap();
    stream.write_all(most).unwrap();
    sent.send(()).unwrap();
    drop(gate.lock().unwrap());
    stream.write_all(&[*last]).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn many_large_batches_at_once_wait_for_room_while_single_increments_get_through() {
    const BATCHES: usize = 6 * FITTING;
    let server = Server::start();
    let client = server.client();
    assert_counts(&client);
    let before = server.memory_peak_bytes();
    let (body, gate) = (largest_batch(), Mutex::new(()));
    let (sent, arrived) = channel();
    let answers: Vec<String> = std::thread::scope(|scope| {
        let closed = gate.lock().unwrap();
        let (body, sent, gate) = (&body, &sent, &gate);
        let send = |stream| scope.spawn(move || send_batch(stream, body, sent, gate));
        let senders: Vec<_> = (0..BATCHES).map(|_| send(server.connect())).collect();
        (0..FITTING).for_each(|_| arrived.recv_timeout(PATIENCE).unwrap());
        // Time for the others to be read as well, if nothing kept them out.
        pause(Duration::from_secs(2));
        (0..20).for_each(|_| assert_counts(&client));
        drop(closed);
        senders.into_iter().map(|sender| sender.join().unwrap()).collect()
    });
    for answer in answers {
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
    assert_eq!((server.value("batched"), server.value("single")), (BATCHES as i64, 21));
    // A body that has arrived is put together from its pieces, which takes its size again; the rest is for buffers.
    let grown = server.memory_peak_bytes() - before;
    assert!(grown < 3 * ROOM_BYTES as u64, "grown by {} MiB", grown >> 20);
}

#[test]
fn a_batch_that_waits_too_long_for_room_is_refused_and_told_to_come_back() {
    let server = Server::start();
    let client = server.client();
    let stall = || {
        let mut stream = server.connect();
        stream.write_all(batch_head(BODY_BYTES_MAX).as_bytes()).unwrap();
        stream
    };
    let _holding: Vec<_> = (0..FITTING).map(|_| stall()).collect();
    pause(Duration::from_secs(1));
    // When those that hold the room are given up, as many of these get it; the others have waited long enough.
    let waiting: Vec<_> = (0..2 * FITTING).map(|_| stall()).collect();
    let (answered, answers) = channel();
    for mut stream in waiting {
        let answered = answered.clone();
        std::thread::spawn(move || {
            let mut answer = String::new();
            let _ = stream.read_to_string(&mut answer);
            let _ = answered.send(answer);
        });
    }
    assert_counts(&client);
    for _ in 0..FITTING {
        let answer = answers.recv_timeout(PATIENCE).unwrap();
        assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
        assert!(answer.contains("/problems/overloaded") && answer.contains("retry-after: 1\r\n"), "{answer}");
        assert!(answer.contains(r#""outcome":"none""#), "{answer}");
    }
    assert_counts(&client);
}

#[test]
fn a_page_of_a_ledger_is_bounded_in_bytes_and_the_pages_together_hold_every_entry() {
    /// What actors and reasons of one page may take; the last entry may reach beyond.
    const PAGE_BYTES_MAX: usize = 256 << 10;
    const REASON_BYTES_MAX: usize = 1024;
    const ENTRIES: u64 = 600;
    let server = Server::start();
    let client = server.client();
    // A control character takes one byte in a reason and six in JSON: nothing makes a page longer.
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
fn a_client_that_never_reads_its_answers_is_cut_off_and_harms_nobody() {
    const CLIENTS: usize = 10;
    let server = Server::start();
    let client = server.client();
    assert!(connections(&client) < 2.0);
    let before = server.memory_peak_bytes();
    let answer_bytes = client.send("GET", "/openapi.json", &[], "").text.len();
    // Answers of 100 MiB for each of them, far more than lies between the server and its client.
    let asked = 100 * MIB / answer_bytes;
    let requests = Arc::new("GET /openapi.json HTTP/1.1\r\nhost: localhost\r\n\r\n".repeat(asked));
    let silent: Vec<_> = (0..CLIENTS).map(|_| server.connect()).collect();
    for stream in &silent {
        let (mut stream, requests) = (stream.try_clone().unwrap(), Arc::clone(&requests));
        // Ends when everything is written or the server cuts it off.
        std::thread::spawn(move || drop(stream.write_all(requests.as_bytes())));
    }
    let started = Instant::now();
    while connections(&client) <= CLIENTS as f64 {
        assert!(started.elapsed() < PATIENCE, "they are not all served");
        pause(Duration::from_millis(10));
    }
    while connections(&client) > 1.0 {
        assert_counts(&client);
        assert!(started.elapsed() < 2 * STALL_MAX, "{} connections are still open", connections(&client));
        pause(Duration::from_millis(200));
    }
    assert!(started.elapsed() >= STALL_MAX / 2, "a client that is merely slow has time");
    let grown = server.memory_peak_bytes() - before;
    assert!(grown < 64 * MIB as u64, "grown by {} MiB", grown >> 20);
    drop(silent);
}
