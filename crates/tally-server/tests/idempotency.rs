//! Request ids: a retry counts once and gets the first answer.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::disallowed_methods)]

mod harness;

use std::sync::Barrier;

use harness::{Answer, Client, Server};
use serde_json::json;

const INCREMENT: &str = "/api/v1/counters/a/increment";

fn increment(server: &Server, header: &[(&str, &str)], body: &str) -> Answer {
    server.client().send("POST", INCREMENT, header, body)
}

#[test]
fn a_retry_counts_once_and_gets_the_first_answer() {
    let server = Server::start();
    let first = increment(&server, &[("Idempotency-Key", "r1")], r#"{"amount":5}"#);
    assert_eq!((&first.json["value"], &first.json["duplicate"]), (&json!(5), &json!(false)));
    assert_eq!(first.header("idempotent-replayed"), "");
    increment(&server, &[], "");
    let again = increment(&server, &[("Idempotency-Key", "r1")], r#"{"amount":5}"#);
    assert_eq!((again.status, &again.json["value"], &again.json["applied"]), (200, &json!(5), &json!(5)));
    assert_eq!((&again.json["duplicate"], again.header("idempotent-replayed")), (&json!(true), "true"));
    assert_eq!(again.json["as_of"], first.json["as_of"], "the value is as of the first request");
    assert_eq!(server.value("a"), 6);
}

#[test]
fn the_id_may_be_in_the_header_quoted_or_bare_or_in_the_body() {
    let server = Server::start();
    assert_eq!(increment(&server, &[("Idempotency-Key", "r1")], "").json["duplicate"], false);
    assert_eq!(increment(&server, &[("Idempotency-Key", "\"r1\"")], "").json["duplicate"], true);
    assert_eq!(increment(&server, &[], r#"{"request_id":"r1"}"#).json["duplicate"], true);
    assert_eq!(increment(&server, &[("idempotency-key", "r1")], r#"{"request_id":"r1"}"#).json["duplicate"], true);
    assert_eq!(increment(&server, &[], r#"{"request_id":"r1","amount":1}"#).json["duplicate"], true);
    assert_eq!(server.value("a"), 1);
}

#[test]
fn header_and_body_that_differ_are_refused() {
    let server = Server::start();
    let conflict = increment(&server, &[("Idempotency-Key", "r1")], r#"{"request_id":"r2"}"#);
    assert_eq!((conflict.status, conflict.problem()), (400, "request-id-conflict"));
    let twice = increment(&server, &[("Idempotency-Key", "r1"), ("Idempotency-Key", "r2")], "");
    assert_eq!((twice.status, twice.problem()), (400, "invalid-request-id"));
    for broken in ["\"r1", "\"\"", "\"a\"b\""] {
        let answer = increment(&server, &[("Idempotency-Key", broken)], "");
        assert_eq!((answer.status, answer.problem()), (400, "invalid-request-id"), "{broken}");
    }
    let long = "r".repeat(256);
    assert_eq!(increment(&server, &[("Idempotency-Key", &long)], "").problem(), "invalid-request-id");
    assert_eq!(increment(&server, &[("Idempotency-Key", &long[..255])], "").status, 200);
    assert_eq!(server.value("a"), 1);
}

#[test]
fn another_payload_under_a_known_id_is_refused() {
    let server = Server::start();
    increment(&server, &[("Idempotency-Key", "r1")], r#"{"amount":5}"#);
    let id = [("Idempotency-Key", "r1")];
    let client = server.client();
    let others = [
        ("POST", INCREMENT, r#"{"amount":6}"#),
        ("POST", INCREMENT, r#"{"amount":5,"floor":0}"#),
        ("POST", "/api/v1/counters/a/decrement", r#"{"amount":5}"#),
        ("POST", "/api/v1/counters/b/increment", r#"{"amount":5}"#),
        ("PUT", "/api/v1/counters/a", r#"{"value":5,"reason":"r"}"#),
        ("DELETE", "/api/v1/counters/a", ""),
    ];
    for (method, path, body) in others {
        let answer = client.send(method, path, &id, body);
        assert_eq!((answer.status, answer.problem()), (422, "idempotency-mismatch"), "{method} {path} {body}");
        assert!(
            answer.json["detail"]
                .as_str()
                .unwrap()
                .contains("another key, call, amount, bound, expected value or reason")
        );
        assert_eq!(answer.header("content-type"), "application/problem+json");
    }
    assert_eq!((server.value("a"), server.value("b")), (5, 0));
}

#[test]
fn ids_of_different_namespaces_are_independent() {
    let server = Server::start();
    for key in ["likes:1", "views:1"] {
        let answer = server.send("POST", &format!("/api/v1/counters/{key}/increment"), r#"{"request_id":"r1"}"#);
        assert_eq!(answer.json["duplicate"], false, "{key}");
    }
}

#[test]
fn a_retry_of_a_refused_request_is_refused_even_if_it_would_fit_now() {
    let server = Server::start();
    let body = r#"{"amount":5,"ceiling":3,"request_id":"r1"}"#;
    let first = increment(&server, &[], body);
    assert_eq!((first.status, first.problem(), first.header("idempotent-replayed")), (409, "bound", ""));
    server.send("POST", "/api/v1/counters/a/decrement", r#"{"amount":5}"#);
    let again = increment(&server, &[], body);
    assert_eq!((again.status, again.problem(), again.header("idempotent-replayed")), (409, "bound", "true"));
    assert_eq!((&again.json["value"], &again.json["duplicate"]), (&json!(0), &json!(true)));
    assert!(!first.text.contains("refused before") && again.text.contains("use a new id to try again"));
    assert_eq!(server.value("a"), -5);
}

#[test]
fn corrections_and_deletions_can_be_retried() {
    let server = Server::start();
    let client = server.client();
    increment(&server, &[], r#"{"amount":5}"#);
    let calls = [
        ("POST", "/api/v1/counters/a/adjust", r#"{"delta":2,"reason":"r"}"#, "r1"),
        ("PUT", "/api/v1/counters/a", r#"{"value":100,"reason":"r","expected":7}"#, "r2"),
        ("POST", "/api/v1/counters/a/reset", r#"{"reason":"r"}"#, "r3"),
        ("DELETE", "/api/v1/counters/a?reason=r", "", "r4"),
    ];
    for (method, path, body, id) in calls {
        let first = client.send(method, path, &[("Idempotency-Key", id)], body);
        let again = client.send(method, path, &[("Idempotency-Key", id)], body);
        assert_eq!((first.status, &first.json["duplicate"]), (200, &json!(false)), "{}", first.text);
        assert_eq!((again.status, &again.json["duplicate"]), (200, &json!(true)), "{}", again.text);
        assert_eq!((&again.json["value"], &again.json["applied"]), (&first.json["value"], &first.json["applied"]));
    }
    let ledger = server.send("GET", "/api/v1/counters/a/ledger", "");
    assert_eq!(ledger.json["entries"].as_array().unwrap().len(), 4, "{}", ledger.text);
}

#[test]
fn a_batch_takes_ids_by_item_and_no_header() {
    let server = Server::start();
    let body = r#"{"increments":[{"key":"a","request_id":"r1"},{"key":"a","request_id":"r1"}]}"#;
    let path = "/api/v1/counters/batch-increment";
    let refused = server.client().send("POST", path, &[("Idempotency-Key", "r9")], body);
    assert_eq!((refused.status, refused.problem()), (400, "invalid-request-id"));
    let answer = server.send("POST", path, body);
    assert_eq!(
        (&answer.json["results"][0]["duplicate"], &answer.json["results"][1]["duplicate"]),
        (&json!(false), &json!(true))
    );
    assert_eq!(server.value("a"), 1);
}

#[test]
fn the_same_id_from_64_clients_at_once_counts_once() {
    let server = Server::start();
    let (base, start) = (&server.base, Barrier::new(64));
    let answers: Vec<Answer> = std::thread::scope(|scope| {
        let sent = || {
            let client = Client::new(base);
            start.wait();
            client.send("POST", INCREMENT, &[("Idempotency-Key", "r1")], r#"{"amount":3}"#)
        };
        let clients: Vec<_> = (0..64).map(|_| scope.spawn(sent)).collect();
        clients.into_iter().map(|client| client.join().unwrap()).collect()
    });
    let first = answers.iter().filter(|answer| answer.json["duplicate"] == false).count();
    assert_eq!(first, 1);
    assert!(answers.iter().all(|answer| answer.status == 200 && answer.json["value"] == 3));
    assert_eq!(server.value("a"), 3);
}

#[test]
fn ids_survive_a_restart_and_a_crash() {
    let dir = tempfile::tempdir().unwrap();
    let send = |server: &Server, id: &str| increment(server, &[("Idempotency-Key", id)], r#"{"amount":2}"#);
    let mut server = Server::start_in(dir.path());
    send(&server, "r1");
    assert!(server.terminate().success());
    let server = Server::start_in(dir.path());
    assert_eq!(send(&server, "r1").json["duplicate"], true);
    assert_eq!(send(&server, "r2").json["duplicate"], false);
    server.kill();
    let server = Server::start_in(dir.path());
    for id in ["r1", "r2"] {
        let again = send(&server, id);
        assert_eq!((&again.json["duplicate"], again.header("idempotent-replayed")), (&json!(true), "true"));
    }
    let other = increment(&server, &[("Idempotency-Key", "r2")], r#"{"amount":9}"#);
    assert_eq!((other.status, other.problem()), (422, "idempotency-mismatch"));
    assert_eq!(server.value("a"), 4);
}
