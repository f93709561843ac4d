//! The `Host` header: a server on a loopback address answers to local names and to allowed hosts.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::disallowed_methods)]

mod harness;

use harness::{Server, run, serve, tally, write};

/// Sends the head of a request with these headers on a new connection and returns the answer.
fn ask(server: &Server, call: &str, headers: &str, body: &str) -> String {
    let length = body.len();
    let head = format!("{call} HTTP/1.1\r\n{headers}connection: close\r\ncontent-length: {length}\r\n\r\n");
    server.raw(format!("{head}{body}").as_bytes())
}

const INCREMENT: &str = "POST /api/v1/counters/a/increment";

/// The status of an increment, which bypasses the router, and of a read, which does not.
fn both_ways(server: &Server, headers: &str) -> [String; 2] {
    [INCREMENT, "GET /api/v1/counters/a"].map(|call| {
        let answer = ask(server, call, headers, "");
        answer.split(' ').nth(1).unwrap_or_else(|| panic!("no answer: {answer}")).to_owned()
    })
}

fn assert_answers_to(server: &Server, hosts: &[&str]) {
    for host in hosts {
        assert_eq!(both_ways(server, &format!("host: {host}\r\n")), ["200", "200"], "{host}");
    }
}

fn assert_refuses(server: &Server, hosts: &[&str]) {
    for host in hosts {
        assert_eq!(both_ways(server, &format!("host: {host}\r\n")), ["421", "421"], "{host}");
    }
}

#[test]
fn dns_rebinding_is_refused() {
    let server = Server::start();
    let port = server.base.rsplit_once(':').unwrap().1;
    let calls = [
        (INCREMENT, ""),
        ("POST /api/v1/counters/a/decrement", r#"{"amount":5}"#),
        ("POST /api/v1/counters/batch-increment", r#"{"increments":[{"key":"a"}]}"#),
        ("PUT /api/v1/counters/a", r#"{"value":5,"reason":"r"}"#),
        ("DELETE /api/v1/counters/a", ""),
        ("GET /api/v1/counters/a", ""),
        ("GET /api/v1/counters", ""),
        ("GET /metrics", ""),
        ("GET /docs/", ""),
        ("GET /nothing", ""),
    ];
    for (call, body) in calls {
        // For the browser, page and server have the same origin.
        let headers = format!("host: evil.example:{port}\r\norigin: http://evil.example:{port}\r\n");
        let answer = ask(&server, call, &headers, body);
        assert!(answer.starts_with("HTTP/1.1 421"), "{call}: {answer}");
        assert!(answer.contains("/problems/misdirected-host") && answer.contains("evil.example"), "{call}: {answer}");
        assert!(answer.contains("--allowed-host") && answer.contains("TALLY_ALLOWED_HOSTS"), "{call}: {answer}");
        let path = call.split(' ').nth(1).unwrap();
        assert!(answer.contains(&format!(r#""instance":"{path}""#)), "{call}: {answer}");
    }
    assert_eq!(server.value("a"), 0);
    assert_refuses(&server, &["localhost.evil.example", "127.0.0.1.evil.example", "192.0.2.1", "", "a b", "[::2]"]);
    let whole = ask(&server, "GET http://evil.example/api/v1/counters/a", "host: localhost\r\n", "");
    assert!(whole.starts_with("HTTP/1.1 421"), "{whole}");
    assert_eq!(server.value("a"), 0);
}

#[test]
fn a_request_without_exactly_one_host_header_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let mut reachable = tally();
    reachable.arg("serve").arg("--data").arg(dir.path()).args(["--http", "0.0.0.0:0", "--insecure"]);
    reachable.env("TALLY_RESP", "127.0.0.1:0");
    for server in [Server::start(), Server::start_with(reachable)] {
        let repeated = ["host: localhost\r\nhost: localhost\r\n", "host: localhost\r\nhost: evil.example\r\n"];
        for headers in ["", repeated[0], repeated[1]] {
            assert_eq!(both_ways(&server, headers), ["400", "400"], "{headers}");
            for call in [INCREMENT, "GET /livez", "GET /docs/", "GET /nothing", "GET http://localhost/livez"] {
                let answer = ask(&server, call, headers, "");
                assert!(answer.starts_with("HTTP/1.1 400"), "{call} {headers}: {answer}");
                assert!(answer.contains("content-type: application/problem+json"), "{call} {headers}: {answer}");
                assert!(answer.contains(r#""type":"/problems/invalid-host""#), "{call} {headers}: {answer}");
            }
        }
        let old = server.raw(b"GET /api/v1/counters/a HTTP/1.0\r\n\r\n");
        assert!(old.starts_with("HTTP/1.0 200"), "HTTP/1.0 has no Host: {old}");
        let old = server.raw(b"GET /livez HTTP/1.0\r\nhost: localhost\r\nhost: localhost\r\n\r\n");
        assert!(old.starts_with("HTTP/1.0 400"), "{old}");
        assert_eq!(server.send("GET", "/problems/invalid-host", "").json["status"], 400);
        assert_eq!(server.value("a"), 0);
    }
}

#[test]
fn a_server_answers_to_every_loopback_name() {
    let server = Server::start();
    let own = server.base.strip_prefix("http://").unwrap();
    assert_answers_to(&server, &[own, "localhost", "LOCALHOST:1", "tally.localhost", "127.9.9.9", "[::1]:7300"]);
    let unnamed = server.raw(format!("{INCREMENT} HTTP/1.0\r\ncontent-length: 0\r\n\r\n").as_bytes());
    assert!(unnamed.starts_with("HTTP/1.0 200"), "HTTP/1.0 clients need not send a host: {unnamed}");
    assert_eq!(server.value("a"), 7);
}

#[test]
fn hosts_are_allowed_by_flag_environment_or_file() {
    let dir = tempfile::tempdir().unwrap();
    let file = write(dir.path().join("tally.toml"), "allowed_hosts = [\"one.example\", \"Two.Example\"]\n");
    let file = file.to_str().unwrap();
    let start = |arguments: &[&str], environment: &str| {
        let mut command = serve(&dir.path().join("data"));
        command.args(arguments);
        if !environment.is_empty() {
            command.env("TALLY_ALLOWED_HOSTS", environment);
        }
        Server::start_with(command)
    };
    let by_flag = &["--allowed-host", "one.example", "--allowed-host", "two.example"][..];
    let by_file = &["--config", file];
    for (arguments, environment) in [(by_flag, ""), (&[], "one.example, two.example"), (by_file, "")] {
        let mut server = start(arguments, environment);
        assert_answers_to(&server, &["one.example", "two.example:80", "localhost"]);
        assert_refuses(&server, &["three.example", "www.one.example"]);
        server.terminate();
        assert!(!server.log().contains("is not a setting"), "{}", server.log());
    }
    let wins = start(&["--config", file, "--allowed-host", "three.example"], "two.example");
    assert_answers_to(&wins, &["three.example"]);
    assert_refuses(&wins, &["one.example", "two.example"]);
}

#[test]
fn an_invalid_allowed_host_stops_the_start() {
    for wrong in ["http://tally.internal", "tally.internal:80", "*", ""] {
        let flag = run(tally().args(["serve", "--allowed-host", wrong]));
        assert_eq!(flag.code, 2, "{wrong}: {}", flag.err);
        assert!(flag.err.contains(&format!("`--allowed-host`: `{wrong}` is not a host")), "{}", flag.err);
        assert!(flag.err.contains("such as tally.internal"), "{}", flag.err);
    }
    let environment = run(tally().arg("serve").env("TALLY_ALLOWED_HOSTS", "a.example,b:1"));
    assert!(environment.err.contains("`TALLY_ALLOWED_HOSTS`: `b:1` is not a host"), "{}", environment.err);
}

#[test]
fn off_loopback_a_server_answers_to_any_name() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = tally();
    command.arg("serve").arg("--data").arg(dir.path()).args(["--http", "0.0.0.0:0", "--resp", "off", "--insecure"]);
    assert_answers_to(&Server::start_with(command), &["tally.example", "192.0.2.1:7300"]);
}
