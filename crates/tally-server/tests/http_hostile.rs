//! Hostile clients on the HTTP port: memory stays within the limits in docs/limits.md, and other clients are still
//! served.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::disallowed_methods)]
#![cfg(target_os = "linux")]

mod harness;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use harness::{Client, PATIENCE, Server, wait_for};
use serde_json::json;
use socket2::{Domain, Socket, Type};

const MIB: usize = 1 << 20;
/// Bytes of answers that clients have not read, as documented in docs/limits.md.
const ANSWERS_BYTES_MAX: usize = 64 * MIB;
/// Longest head of a request, as documented in docs/limits.md.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// Maximum memory of a connection with an unfinished head, as documented in docs/operating.md.
const UNFINISHED_BYTES_MAX: usize = 48 << 10;
/// Time limit for a client to read an answer, and for a request to wait for memory.
const STALL_MAX: Duration = Duration::from_secs(30);
/// Far longer than a request takes on a busy machine, far shorter than a time limit of the server.
const SOON: Duration = Duration::from_secs(10);

/// These tests measure memory and time, so they run one at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A connection whose receive buffer holds little of an answer.
fn connect_with_small_window(server: &Server) -> TcpStream {
    let address: SocketAddr = server.base.strip_prefix("http://").unwrap().parse().unwrap();
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.set_recv_buffer_size(4 << 10).unwrap();
    socket.connect(&address.into()).unwrap();
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

fn assert_counts(client: &Client) {
    let began = Instant::now();
    let answer = client.send("POST", "/api/v1/counters/single/increment", &[], "");
    assert_eq!(answer.status, 200, "{}", answer.text);
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
}

/// Open HTTP connections, including that of the client.
fn connections(client: &Client) -> f64 {
    let metrics = client.send("GET", "/metrics", &[], "").text;
    let line = metrics.lines().find(|line| line.starts_with("tally_connections{protocol=\"http\"")).unwrap();
    line.rsplit_once(' ').unwrap().1.parse().unwrap()
}

fn assert_grown_less(server: &Server, before: u64, bytes_max: usize) {
    let grown = server.memory_peak_bytes() - before;
    eprintln!("grown by {} MiB", grown >> 20);
    assert!(grown < bytes_max as u64, "grown by {} MiB", grown >> 20);
}

/// A control character takes one byte in a key and six in JSON, so that a page of these has 3.3 MB.
fn count_long_keys(client: &Client) {
    let key = |number: usize| "\u{1}".repeat(508) + &format!("{number:04}");
    let items: Vec<_> = (0..1_000).map(|number| json!({ "key": key(number) })).collect();
    let answer =
        client.send("POST", "/api/v1/counters/batch-increment", &[], &json!({ "increments": items }).to_string());
    assert_eq!(answer.status, 200);
}

#[test]
fn answers_that_nobody_reads_share_a_limit_and_are_dropped_after_the_stall_timeout() {
    const CLIENTS: usize = 300;
    const LISTING: &str = "/api/v1/counters?prefix=&limit=1000";
    let _alone = alone();
    let server = Server::start();
    let client = server.client();
    count_long_keys(&client);
    assert!(client.send("GET", LISTING, &[], "").text.len() > 3 * MIB);
    let before = server.memory_peak_bytes();
    let began = Instant::now();
    let silent: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let mut stream = connect_with_small_window(&server);
            write!(stream, "GET {LISTING} HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
            stream
        })
        .collect();
    // Time for the server to build every answer, if nothing stops it.
    wait_for("half of the stall timeout", || {
        assert_counts(&client);
        if began.elapsed() >= STALL_MAX / 2 { Ok(()) } else { Err(began.elapsed()) }
    });
    // Building an answer takes more memory than the answer, but only a few are built at a time.
    assert_grown_less(&server, before, 2 * ANSWERS_BYTES_MAX);
    let mut refused = 0;
    wait_for("a listing", || {
        let answer = client.send("GET", LISTING, &[], "");
        if answer.status == 200 {
            return Ok(());
        }
        assert_eq!((answer.status, &answer.headers["retry-after"]), (503, &"1".parse().unwrap()), "{}", answer.text);
        assert_eq!(answer.json["type"], "/problems/overloaded");
        refused += 1;
        Err(answer.text)
    });
    eprintln!("listed after {:?}, refused {refused} times", began.elapsed());
    assert!(began.elapsed() >= STALL_MAX / 2, "nobody had to wait");
    assert_grown_less(&server, before, 2 * ANSWERS_BYTES_MAX);
    drop(silent);
}

#[test]
fn a_client_that_takes_longer_than_the_stall_timeout_for_an_answer_is_disconnected() {
    /// Far more than the socket buffers hold.
    const ANSWERS: usize = 6;
    const READ_BYTES: usize = 128;
    let _alone = alone();
    let server = Server::start();
    let client = server.client();
    count_long_keys(&client);
    let mut stream = server.connect();
    let request = "GET /api/v1/counters?limit=1000 HTTP/1.1\r\nhost: localhost\r\n\r\n";
    stream.write_all(request.repeat(ANSWERS).as_bytes()).unwrap();
    let began = Instant::now();
    let mut some = [0; READ_BYTES];
    // With 2 ms between two attempts, one answer takes about a minute.
    wait_for("the end of the connection", || {
        let _ = stream.read(&mut some);
        let open = connections(&client);
        if open <= 1.0 { Ok(()) } else { Err(open) }
    });
    assert!(began.elapsed() >= STALL_MAX / 2, "{:?}", began.elapsed());
}

#[test]
fn unfinished_heads_take_little_memory() {
    const CLIENTS: usize = 2_000;
    let _alone = alone();
    let server = Server::start();
    let client = server.client();
    assert_counts(&client);
    let before = server.memory_peak_bytes();
    for line_bytes in [HEAD_BYTES_MAX - 1_000, 60_000] {
        let head = format!("GET /livez HTTP/1.1\r\nhost: localhost\r\nx: {}", "x".repeat(line_bytes));
        let open: Vec<_> = (0..CLIENTS)
            .map(|_| {
                let mut stream = server.connect();
                // The server may refuse the head before all of it is written.
                let _ = stream.write_all(head.as_bytes());
                stream
            })
            .collect();
        assert_counts(&client);
        drop(open);
    }
    assert_grown_less(&server, before, CLIENTS * UNFINISHED_BYTES_MAX);
}

#[test]
fn bodies_that_do_not_arrive_do_not_hold_up_other_batches() {
    const CLIENTS: usize = 1_000;
    let _alone = alone();
    let server = Server::start();
    let client = server.client();
    let idle: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let mut stream = server.connect();
            let head = "POST /api/v1/counters/batch-increment HTTP/1.1\r\nhost: localhost\r\n\
                content-length: 16777216\r\n\r\n{";
            stream.write_all(head.as_bytes()).unwrap();
            stream
        })
        .collect();
    let began = Instant::now();
    let items: Vec<_> = (0..1_000).map(|number| json!({ "key": format!("key:{number}") })).collect();
    let body = json!({ "increments": items }).to_string();
    let answer = client.send("POST", "/api/v1/counters/batch-increment", &[], &body);
    assert_eq!(answer.status, 200, "{}", answer.text);
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
    drop(idle);
}

#[test]
fn items_over_the_limit_take_no_memory() {
    let _alone = alone();
    let server = Server::start();
    let client = server.client();
    for (path, list) in [("import", "items"), ("counters/batch-increment", "increments")] {
        let body = format!("{{\"{list}\":[1{}]}}", ",1".repeat(8_000_000));
        let before = server.memory_peak_bytes();
        let answer = client.send("POST", &format!("/api/v1/{path}"), &[], &body);
        assert_eq!(answer.status, 413, "{}", answer.text);
        assert_grown_less(&server, before, 100 << 20);
    }
}
