//! HTTP connections whose client stops sending before it has read its answers.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::disallowed_methods)]

mod harness;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};

use harness::Server;

const EMPTY: &str = "POST /api/v1/counters/a/increment HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n";
const WITH_BODY: &str =
    "POST /api/v1/counters/a/increment HTTP/1.1\r\nhost: localhost\r\ncontent-length: 12\r\n\r\n{\"amount\":1}";

/// Sends everything and then closes the sending side only.
fn send_and_half_close(server: &Server, request: &str) -> TcpStream {
    let mut stream = server.connect();
    stream.write_all(request.as_bytes()).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    stream
}

/// Reads until the server closes the connection.
fn read_to_end(mut stream: TcpStream) -> String {
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("the server closes the connection without resetting it");
    answer
}

fn answered(answer: &str) -> usize {
    answer.matches("HTTP/1.1 200").count()
}

#[test]
fn a_client_that_half_closes_after_its_request_is_answered() {
    let server = Server::start();
    let clients: Vec<_> =
        (0..300).map(|n| send_and_half_close(&server, if n % 2 == 0 { EMPTY } else { WITH_BODY })).collect();
    let answers: Vec<_> = clients.into_iter().map(read_to_end).collect();
    assert_eq!(answers.iter().map(|answer| answered(answer)).sum::<usize>(), 300);
    assert_eq!(server.value("a"), 300);
}

/// Otherwise a client would send its next request on a connection that the server is about to close.
#[test]
fn an_answer_that_does_not_wait_for_the_body_says_that_the_connection_is_closed() {
    let server = Server::start();
    for (path, origin) in [("a/increment", "https://evil.example"), ("a/nothing", &server.base)] {
        let mut stream = server.connect();
        let head = format!("POST /api/v1/counters/{path} HTTP/1.1\r\nhost: localhost\r\norigin: {origin}\r\n");
        stream.write_all(format!("{head}content-length: 12\r\n\r\n").as_bytes()).unwrap();
        let answer = read_to_end(stream);
        assert!(answer.starts_with("HTTP/1.1 40") && answer.contains("\r\nconnection: close\r\n"), "{answer}");
    }
    let mut stream = server.connect();
    stream
        .write_all(format!("{WITH_BODY}{}", EMPTY.replace("host:", "connection: close\r\nhost:")).as_bytes())
        .unwrap();
    assert_eq!(answered(&read_to_end(stream)), 2, "one whose body was read stays open");
}

#[test]
fn every_pipelined_request_before_a_half_close_is_answered() {
    let server = Server::start();
    let pair = format!("{WITH_BODY}{EMPTY}");
    let clients: Vec<_> = (0..100).map(|_| send_and_half_close(&server, &pair)).collect();
    for client in clients {
        let answer = read_to_end(client);
        assert_eq!(answered(&answer), 2, "{answer}");
    }
    assert_eq!(server.value("a"), 200);
}

#[test]
fn a_half_close_while_the_answer_is_awaited_does_not_cancel_the_request() {
    let server = Server::start();
    let mut clients: Vec<_> = (0..100).map(|_| server.connect()).collect();
    // The server sees the request and the end of input at different moments.
    clients.iter_mut().for_each(|client| client.write_all(EMPTY.as_bytes()).unwrap());
    clients.iter().for_each(|client| client.shutdown(Shutdown::Write).unwrap());
    let answers: Vec<_> = clients.into_iter().map(read_to_end).collect();
    assert_eq!(answers.iter().map(|answer| answered(answer)).sum::<usize>(), 100);
    assert_eq!(server.value("a"), 100);
}

#[test]
fn a_half_closed_connection_without_a_request_is_closed() {
    let server = Server::start();
    assert_eq!(read_to_end(send_and_half_close(&server, "")), "", "nothing was sent");
    assert_eq!(read_to_end(send_and_half_close(&server, "POST /api/v1/coun")), "", "the head is not complete");
    let half_a_body = &WITH_BODY[..WITH_BODY.len() - 5];
    let answer = read_to_end(send_and_half_close(&server, half_a_body));
    assert!(answer.contains("/problems/unreadable-body"), "{answer}");
    let mut idle = server.connect();
    idle.write_all(EMPTY.as_bytes()).unwrap();
    let mut first = [0; 12];
    idle.read_exact(&mut first).unwrap();
    assert_eq!(&first, b"HTTP/1.1 200");
    idle.shutdown(Shutdown::Write).unwrap();
    assert!(read_to_end(idle).ends_with("}\n"), "kept alive after its answer, then closed");
    assert_eq!(server.value("a"), 1);
}

#[test]
fn half_closed_connections_do_not_stay_open() {
    let server = Server::start();
    for request in ["", EMPTY, "POST /api/v1/coun"] {
        (0..50).for_each(|_| drop(read_to_end(send_and_half_close(&server, request))));
    }
    // The connection that reads the metric is open.
    let open = || {
        let metrics = server.raw(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
        let gauge = metrics.lines().find(|line| line.starts_with("tally_connections{") && line.contains("http"));
        gauge.unwrap().rsplit_once(' ').unwrap().1.parse::<f64>().unwrap()
    };
    assert!((0..1_000).any(|_| open() == 1.0), "{} are open", open());
}

#[test]
fn sigterm_finishes_a_request_of_a_half_closed_connection() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::start_in(dir.path());
    let mut slow = server.connect();
    let (head, body) = WITH_BODY.split_at(WITH_BODY.len() - 12);
    slow.write_all(head.replace("content-length", "expect: 100-continue\r\ncontent-length").as_bytes()).unwrap();
    // The server asks for the body: it has begun to answer.
    let mut go_on = [0; 25];
    slow.read_exact(&mut go_on).unwrap();
    assert_eq!(&go_on, b"HTTP/1.1 100 Continue\r\n\r\n");
    server.signal();
    server.wait_for_log("draining");
    slow.write_all(body.as_bytes()).unwrap();
    slow.shutdown(Shutdown::Write).unwrap();
    let answer = read_to_end(slow);
    assert_eq!(answered(&answer), 1, "{answer}");
    assert_eq!(server.exit().code(), Some(0), "{}", server.log());
    assert_eq!(Server::start_in(dir.path()).value("a"), 1);
}
