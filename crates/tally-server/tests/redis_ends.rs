//! Redis connections that end at any point, and connections of a server that is told to stop.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::disallowed_methods)]
#![cfg(target_os = "linux")]

mod harness;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use harness::resp::{Redis, Reply, connect, request};
use harness::{Server, wait_for};

/// How many requests of a well-behaved client are checked during an attack.
const ROUNDS: usize = 200;

/// Resets the connection: later writes of the server fail.
fn reset(stream: TcpStream) {
    rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
    drop(stream);
}

#[test]
fn a_client_that_disconnects_during_a_deep_pipeline_affects_no_other_client() {
    let server = Server::start();
    let address = server.redis.as_str();
    let mut good = Redis::connect(address);
    // More commands in one read than one connection may have in progress.
    let deep = b"PING\r\n".repeat(60_000);
    good.counts_during(ROUNDS, || {
        for _ in 0..300 {
            let mut stream = connect(address);
            stream.set_nonblocking(true).unwrap();
            let _ = stream.write(&deep);
            reset(stream);
        }
    });
    good.wait_for_clients(1);
}

#[test]
fn connections_that_end_at_any_point_leave_nothing_behind() {
    let server = Server::start();
    let address = server.redis.as_str();
    let mut good = Redis::connect(address);
    let large = "x".repeat(300_000);
    let all = [
        request(&["INCR", "cut"]).repeat(3),
        b"INCR cut\r\n".to_vec(),
        request(&["HELLO", "3"]),
        request(&["COMMAND", "DOCS"]).repeat(8),
        request(&["SCAN", "0"]).repeat(3),
        request(&["MULTI"]),
        request(&["ECHO", &large]).repeat(2),
        request(&["EXEC"]),
        request(&["MULTI"]),
        request(&["ECHO", &large]),
    ]
    .concat();
    let rounds = 600;
    good.counts_during(ROUNDS, || {
        for round in 0..rounds {
            // Half of the cuts are in the short requests, where most boundaries are.
            let span = if round % 2 == 0 { 700 } else { all.len() };
            let cut = round * 7919 % span;
            let mut stream = connect(address);
            let _ = stream.write_all(&all[..cut]);
            match round % 3 {
                0 => reset(stream),
                1 => drop(stream),
                _ => {
                    // Every complete request is answered.
                    stream.shutdown(std::net::Shutdown::Write).unwrap();
                    let _ = stream.read_to_end(&mut Vec::new());
                }
            }
        }
    });
    good.wait_for_clients(1);
    assert_eq!(good.call(&["CLIENT", "LIST"]).text().lines().count(), 1);
    // The memory for unfinished requests is free again: 50 of 1 MiB fit at the same time.
    let echo = request(&["ECHO", &"x".repeat(1 << 20)]);
    let mut unfinished: Vec<Redis> = (0..50).map(|_| Redis::connect(address)).collect();
    for client in &mut unfinished {
        assert!(client.send(&echo[..echo.len() - 2]));
    }
    for client in &mut unfinished {
        assert!(client.send(&echo[echo.len() - 2..]));
        assert_eq!(client.read().unwrap().text().len(), 1 << 20);
    }
}

#[test]
fn requests_before_a_half_close_are_executed_and_answered() {
    let server = Server::start();
    let mut stream = connect(&server.redis);
    stream.write_all(&request(&["INCR", "last"]).repeat(10_000)).unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut answers = String::new();
    stream.read_to_string(&mut answers).unwrap();
    let expected: String = (1..=10_000).map(|value| format!(":{value}\r\n")).collect();
    assert!(answers == expected, "ended with {:?}", answers.lines().last());
}

#[test]
fn sigterm_closes_idle_connections_at_once() {
    let mut server = Server::start();
    let mut idle: Vec<Redis> = (0..100).map(|_| Redis::connect(&server.redis)).collect();
    idle.iter_mut().for_each(|client| assert_eq!(client.call(&["PING"]).text(), "PONG"));
    // An incomplete request and an open transaction do not count as in progress.
    assert!(idle[0].send(b"*2\r\n$3\r\nGET\r\n$5\r\nun"));
    assert_eq!(idle[1].call(&["MULTI"]).text(), "OK");
    server.signal();
    idle.iter_mut().for_each(|client| assert_eq!(client.read(), None));
    assert_eq!(server.exit().code(), Some(0));
    let log = server.log();
    assert!(!log.contains("some requests were cut off"), "the drain timed out: {log}");
}

/// Closing a socket with unread requests resets it. Replies that the kernel had not sent yet, because the client had no
/// room for them, would be lost.
#[test]
fn after_sigterm_a_client_that_reads_late_and_keeps_sending_gets_every_reply() {
    const SENT: usize = 20_000;
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let mut server = Server::start_in(&data);
    let mut stream = connect(&server.redis);
    socket2::SockRef::from(&stream).set_recv_buffer_size(4 << 10).unwrap();
    let incr = request(&["INCR", "late"]);
    stream.write_all(&incr.repeat(SENT)).unwrap();
    let mut other = Redis::connect(&server.redis);
    wait_for("the commands to be executed", || match other.call(&["GET", "late"]) {
        Reply::Text(value) if value == SENT.to_string() => Ok(()),
        other => Err(format!("{other:?}")),
    });
    server.signal();
    // For twice as long as a connection lingers whose replies have all been sent.
    let until = Instant::now() + Duration::from_secs(2);
    while Instant::now() < until {
        stream.write_all(&incr).unwrap();
    }
    let mut answers = String::new();
    let ended = stream.read_to_string(&mut answers);
    let last = answers.lines().last().unwrap_or_default().trim_start_matches(':').to_owned();
    assert!(last.parse::<usize>().unwrap() >= SENT, "ended with {last:?}, {ended:?}");
    assert_eq!(server.exit().code(), Some(0));
    let server = Server::start_in(&data);
    assert_eq!(Redis::connect(&server.redis).call(&["GET", "late"]), Reply::Text(last));
}

#[test]
fn after_sigterm_every_executed_command_is_answered() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let mut server = Server::start_in(&data);
    let address = server.redis.clone();
    let counts: Vec<i64> = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..8)
            .map(|number| {
                let mut client = Redis::connect(&address);
                let mut sender = client.sender();
                let incr = request(&["INCR", &format!("stopped:{number}")]);
                // Writes until the server is gone, but not more than can be answered within the drain timeout.
                let (sent, answered) = mpsc::sync_channel(200);
                scope.spawn(move || while sender.write_all(&incr.repeat(100)).is_ok() && sent.send(()).is_ok() {});
                assert_eq!(client.read(), Some(Reply::Integer(1)));
                (client, answered)
            })
            .collect();
        server.signal();
        let count = |mut client: Redis, answered: mpsc::Receiver<()>| {
            let mut last = 1;
            while let Some(reply) = client.read() {
                assert_eq!(reply, Reply::Integer(last + 1));
                last += 1;
                if last % 100 == 0 {
                    let _ = answered.try_recv();
                }
            }
            last
        };
        let counting: Vec<_> =
            clients.into_iter().map(|(client, answered)| scope.spawn(move || count(client, answered))).collect();
        counting.into_iter().map(|count| count.join().unwrap()).collect()
    });
    assert_eq!(server.exit().code(), Some(0));
    let server = Server::start_in(&data);
    let mut client = Redis::connect(&server.redis);
    for (number, count) in counts.into_iter().enumerate() {
        let stored = client.call(&["GET", &format!("stopped:{number}")]);
        assert_eq!(stored, Reply::Text(count.to_string()), "client {number}");
    }
}
