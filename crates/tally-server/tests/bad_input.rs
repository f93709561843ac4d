//! Bad input: each kind is refused with its own problem, and nothing changes.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::disallowed_methods)]

mod harness;

use std::io::{Read, Write};

use harness::Server;
use serde_json::json;

/// Method, path below `/api/v1/counters`, body, status, slug, and what the detail must say.
type Case<'a> = (&'a str, &'a str, &'a str, u16, &'a str, &'a str);

fn assert_refused(server: &Server, cases: &[Case<'_>]) {
    server.send("POST", "/api/v1/counters/a/increment", r#"{"amount":7}"#);
    for (method, path, body, status, slug, says) in cases {
        let answer = server.send(method, &format!("/api/v1/counters{path}"), body);
        let case = format!("{method} {path} {body}: {}", answer.text);
        assert_eq!((answer.status, answer.problem()), (*status, *slug), "{case}");
        assert_eq!(answer.header("content-type"), "application/problem+json", "{case}");
        assert_eq!(answer.json["status"], *status, "{case}");
        assert!(answer.json["title"].is_string(), "{case}");
        assert!(answer.json["detail"].as_str().unwrap().contains(says), "{case}");
        let instance = format!("/api/v1/counters{}", path.split('?').next().unwrap());
        assert_eq!(answer.json["instance"], instance.as_str(), "{case}");
        assert_eq!(server.value("a"), 7, "{case}");
    }
    let listed = server.send("GET", "/api/v1/counters", "");
    assert_eq!(listed.json["counters"].as_array().unwrap().len(), 1, "{}", listed.text);
}

#[test]
fn a_bad_amount_is_refused_and_named() {
    let server = Server::start();
    let range = "`amount`";
    assert_refused(
        &server,
        &[
            ("POST", "/a/increment", r#"{"amount":0}"#, 400, "invalid-amount", "decrement"),
            ("POST", "/a/increment", r#"{"amount":-5}"#, 400, "invalid-amount", "decrement"),
            ("POST", "/a/decrement", r#"{"amount":-5}"#, 400, "invalid-amount", "from 1 to 9223372036854775807"),
            ("POST", "/a/increment", r#"{"amount":-9223372036854775808}"#, 400, "invalid-amount", ""),
            ("POST", "/a/increment", r#"{"amount":1.5}"#, 400, "invalid-field", range),
            (
                "POST",
                "/a/increment",
                r#"{"amount":1.0}"#,
                400,
                "invalid-field",
                "expected an integer from 1 to 9223372036854775807",
            ),
            ("POST", "/a/increment", r#"{"amount":1e3}"#, 400, "invalid-field", range),
            ("POST", "/a/increment", r#"{"amount":"5"}"#, 400, "invalid-field", range),
            ("POST", "/a/increment", r#"{"amount":null}"#, 400, "invalid-field", range),
            ("POST", "/a/increment", r#"{"amount":true}"#, 400, "invalid-field", range),
            ("POST", "/a/increment", r#"{"amount":[1]}"#, 400, "invalid-field", range),
            ("POST", "/a/increment", r#"{"amount":9223372036854775808}"#, 400, "invalid-field", "9223372036854775807"),
            ("POST", "/a/increment", r#"{"amount":99999999999999999999999}"#, 400, "invalid-field", range),
            ("POST", "/a/increment", r#"{"amount":1,"amount":2}"#, 400, "invalid-field", "duplicate field `amount`"),
        ],
    );
}

#[test]
fn a_bad_body_is_refused_and_explained() {
    let server = Server::start();
    assert_refused(
        &server,
        &[
            ("POST", "/a/increment", r#"{"amount":5"#, 400, "invalid-json", "EOF"),
            ("POST", "/a/increment", r#"{"amount":5}}"#, 400, "invalid-json", "trailing"),
            ("POST", "/a/increment", r#"{"amount":5} x"#, 400, "invalid-json", "trailing"),
            ("POST", "/a/increment", "amount=5", 400, "invalid-json", "line 1"),
            ("POST", "/a/increment", "{amount:5}", 400, "invalid-json", "line 1"),
            ("POST", "/a/increment", " ", 400, "invalid-json", "empty"),
            ("POST", "/a/increment", "[5]", 400, "invalid-field", "not an object"),
            ("POST", "/a/increment", "5", 400, "invalid-field", "not an object"),
            ("POST", "/a/increment", "null", 400, "invalid-field", "not an object"),
            ("POST", "/a/increment", r#"{"amout":5}"#, 400, "unknown-field", "did you mean `amount`?"),
            ("POST", "/a/increment", r#"{"key":"b"}"#, 400, "unknown-field", "`key`"),
            ("POST", "/a/increment", r#"{"member":"m"}"#, 400, "unsupported-field", "not supported in this version"),
            ("POST", "/a/increment", r#"{"dimensions":{}}"#, 400, "unsupported-field", "`dimensions`"),
            ("POST", "/a/increment", r#"{"at":"now"}"#, 400, "unsupported-field", "`at`"),
            ("POST", "/a/increment", r#"{"request_id":7}"#, 400, "invalid-field", "`request_id`"),
            ("POST", "/a/increment", r#"{"request_id":""}"#, 400, "invalid-request-id", "empty"),
            ("POST", "/a/increment", r#"{"floor":"0"}"#, 400, "invalid-field", "`floor`"),
            ("POST", "/a/increment", r#"{"floor":5,"ceiling":4}"#, 400, "invalid-field", "`ceiling`"),
            ("POST", "/a/increment", r#"{"on_bound":"explode","floor":1}"#, 400, "invalid-field", "saturate"),
            ("POST", "/a/increment", r#"{"on_bound":false,"floor":1}"#, 400, "invalid-field", "`refuse` or `saturate`"),
            ("POST", "/a/increment", r#"{"on_bound":{"refuse":null},"floor":1}"#, 400, "invalid-field", "`on_bound`"),
            ("POST", "/a/increment", r#"{"on_bound":"refuse"}"#, 400, "invalid-field", "`floor` or `ceiling`"),
        ],
    );
    let long = format!(r#"{{"request_id":"{}"}}"#, "r".repeat(256));
    assert_refused_alone(&server, &long, "invalid-request-id");
    let deep = format!(r#"{{"amount":{}1{}}}"#, "[".repeat(5_000), "]".repeat(5_000));
    assert_eq!(server.send("POST", "/api/v1/counters/a/increment", &deep).status, 400);
    let named = format!(r#"{{"{}":1}}"#, "f".repeat(10_000));
    let answer = server.send("POST", "/api/v1/counters/a/increment", &named);
    assert_eq!((answer.problem(), answer.text.len() < 1_000), ("unknown-field", true));
}

fn assert_refused_alone(server: &Server, body: &str, slug: &str) {
    let answer = server.send("POST", "/api/v1/counters/a/increment", body);
    assert_eq!((answer.status, answer.problem()), (400, slug), "{}", answer.text);
}

#[test]
fn a_bad_correction_is_refused() {
    let server = Server::start();
    let long = format!(r#"{{"reason":"{}"}}"#, "r".repeat(1025));
    assert_refused(
        &server,
        &[
            ("PUT", "/a", r#"{"value":1}"#, 400, "invalid-reason", "`reason`"),
            ("PUT", "/a", r#"{"value":1,"reason":""}"#, 400, "invalid-reason", "`reason`"),
            ("PUT", "/a", r#"{"reason":"r"}"#, 400, "missing-field", "`value` is missing"),
            ("PUT", "/a", r#"{"value":"1","reason":"r"}"#, 400, "invalid-field", "`value`"),
            ("PUT", "/a", r#"{"value":1,"reason":"r","expected":null}"#, 400, "invalid-field", "`expected`"),
            ("PUT", "/a", r#"{"value":1,"reason":"r","expect":7}"#, 400, "unknown-field", "`expected`"),
            ("PUT", "/a", "", 400, "invalid-json", "empty"),
            ("POST", "/a/reset", "", 400, "invalid-json", "empty"),
            ("POST", "/a/reset", "{}", 400, "invalid-reason", "`reason`"),
            ("POST", "/a/reset", &long, 400, "invalid-reason", "1025"),
            ("POST", "/a/adjust", r#"{"delta":0,"reason":"r"}"#, 400, "invalid-amount", "`delta`"),
            ("POST", "/a/adjust", r#"{"delta":1}"#, 400, "invalid-reason", "`reason`"),
            ("POST", "/a/adjust", r#"{"amount":1,"reason":"r"}"#, 400, "unknown-field", "`amount`"),
            ("DELETE", "/a?reason=", "", 400, "invalid-reason", "`reason`"),
            ("DELETE", "/a?why=x", "", 400, "unknown-parameter", "`why`"),
            ("DELETE", "/a", r#"{"reason":"x"}"#, 400, "unexpected-body", "?reason="),
        ],
    );
}

#[test]
fn a_bad_key_is_refused() {
    let server = Server::start();
    let long = format!("/{}/increment", "k".repeat(513));
    assert_refused(
        &server,
        &[
            ("POST", &long, "", 400, "invalid-key", "513"),
            ("POST", "//increment", "", 400, "invalid-key", "empty"),
            ("GET", "/", "", 400, "invalid-key", "empty"),
            ("POST", "/%zz/increment", "", 400, "invalid-key", "%25"),
            ("POST", "/%/increment", "", 400, "invalid-key", "%25"),
            ("POST", "/%ff/increment", "", 400, "invalid-key", "UTF-8"),
            ("GET", "/%C3%28", "", 400, "invalid-key", "UTF-8"),
            ("GET", "?keys=", "", 400, "invalid-key", "empty"),
            ("GET", "?keys=a,,b", "", 400, "invalid-key", "empty"),
            ("GET", "?keys=a,%zz", "", 400, "invalid-key", "%25"),
            ("GET", "?key=a&key=", "", 400, "invalid-key", "empty"),
        ],
    );
}

#[test]
fn a_bad_parameter_is_refused() {
    let server = Server::start();
    let many = format!("?keys={}", vec!["k"; 1_001].join(","));
    assert_refused(
        &server,
        &[
            ("GET", &many, "", 400, "invalid-parameter", "1001"),
            ("GET", "?limit=0", "", 400, "invalid-parameter", "1 to 1000"),
            ("GET", "?limit=1001", "", 400, "invalid-parameter", "1 to 1000"),
            ("GET", "?limit=ten", "", 400, "invalid-parameter", "an integer from 1 to 1000"),
            ("GET", "?key=a&keys=b", "", 400, "invalid-parameter", "use one of them"),
            ("GET", "?key=a&prefix=b", "", 400, "invalid-parameter", "`key`"),
            ("GET", "?limit=-1", "", 400, "invalid-parameter", "`limit`"),
            ("GET", "?limit=1&limit=2", "", 400, "invalid-parameter", "more than once"),
            ("GET", "?prefx=a", "", 400, "unknown-parameter", "did you mean `prefix`?"),
            ("GET", "?prefix=%ff", "", 400, "invalid-parameter", "`prefix`"),
            ("GET", "?cursor=zz", "", 400, "invalid-cursor", "next_cursor"),
            ("GET", "?cursor=123", "", 400, "invalid-cursor", "next_cursor"),
            ("GET", "?keys=a&prefix=b", "", 400, "invalid-parameter", "`keys`"),
            ("GET", "/a?max=1", "", 400, "unknown-parameter", "use one of `token`, `max_staleness_ms`"),
            ("GET", "/a?token=", "", 400, "invalid-parameter", "`token` is ``"),
            ("GET", "/a?token=zz", "", 400, "invalid-parameter", "the `token` of a write"),
            ("GET", "/a?token=%ff", "", 400, "invalid-parameter", "UTF-8"),
            ("GET", "/a/exact?token=1.0", "", 400, "invalid-parameter", "`token` is `1.0`"),
            ("GET", "/a/stats?token=-1", "", 400, "invalid-parameter", "`token`"),
            ("GET", "?keys=a&token=zz", "", 400, "invalid-parameter", "`token`"),
            ("GET", "/a?max_staleness_ms=", "", 400, "invalid-parameter", "an integer from 0"),
            ("GET", "/a?max_staleness_ms=-1", "", 400, "invalid-parameter", "an integer from 0"),
            ("GET", "/a?max_staleness_ms=+1", "", 400, "invalid-parameter", "an integer from 0"),
            ("GET", "/a/exact?max_staleness_ms=1s", "", 400, "invalid-parameter", "an integer from 0"),
            (
                "GET",
                "/a/stats?max_staleness_ms=99999999999999999999",
                "",
                400,
                "invalid-parameter",
                "an integer from 0",
            ),
            ("GET", "?key=a&max_staleness_ms=x", "", 400, "invalid-parameter", "an integer from 0"),
            ("GET", "?token=1", "", 400, "invalid-parameter", "cannot be combined with a listing"),
            ("GET", "?prefix=a&max_staleness_ms=1", "", 400, "invalid-parameter", "cannot be combined with a listing"),
            ("GET", "/a/ledger?token=1", "", 400, "unknown-parameter", "`token`"),
            ("GET", "/a/ledger?after=x", "", 400, "invalid-parameter", "`after`"),
            ("GET", "/a/ledger?limit=0", "", 400, "invalid-parameter", "`limit`"),
            ("POST", "/a/increment?amount=5", "", 400, "unknown-parameter", "`amount`"),
        ],
    );
}

#[test]
fn a_bad_batch_is_refused_as_a_whole() {
    let server = Server::start();
    let many = json!({"increments": vec![json!({"key": "a"}); 10_001]}).to_string();
    assert_refused(
        &server,
        &[
            ("POST", "/batch-increment", "", 400, "invalid-json", "empty"),
            ("POST", "/batch-increment", "{}", 400, "missing-field", "`increments` is missing"),
            ("POST", "/batch-increment", r#"{"increments":[]}"#, 400, "batch-empty", "1 to 10000"),
            ("POST", "/batch-increment", r#"{"increments":{}}"#, 400, "invalid-field", "`increments`"),
            ("POST", "/batch-increment", r#"{"increments":[{"key":"a"}"#, 400, "invalid-json", "EOF"),
            ("POST", "/batch-increment", r#"[{"key":"a"}]"#, 400, "invalid-field", "not an object"),
            ("POST", "/batch-increment", r#"{"increments":[],"x":1}"#, 400, "unknown-field", "`x`"),
        ],
    );
    let answer = server.send("POST", "/api/v1/counters/batch-increment", &many);
    assert_eq!((answer.status, answer.problem()), (413, "batch-too-large"));
    assert_eq!(server.value("a"), 7);
}

#[test]
fn a_body_that_is_not_utf8_is_not_json() {
    let server = Server::start();
    for call in ["a/increment", "batch-increment"] {
        let head = format!("POST /api/v1/counters/{call} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n");
        let body = b"{\"request_id\":\"\xff\"}";
        let request = [format!("{head}content-length: {}\r\n\r\n", body.len()).as_bytes(), body].concat();
        let answer = server.raw(&request);
        assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
        assert!(answer.contains("/problems/invalid-json") && answer.contains("utf-8"), "{answer}");
    }
}

#[test]
fn an_unknown_path_is_404_and_an_unknown_method_405() {
    let server = Server::start();
    assert_refused(
        &server,
        &[
            ("POST", "/a/explode", "", 404, "not-found", "/docs"),
            ("GET", "/a/b/c", "", 404, "not-found", "%2F"),
            ("PATCH", "/a", "", 405, "method-not-allowed", "PATCH"),
            ("GET", "/a/increment", "", 405, "method-not-allowed", "GET"),
            ("DELETE", "", "", 405, "method-not-allowed", "DELETE"),
            ("BREW", "/a", "", 405, "method-not-allowed", "BREW"),
        ],
    );
    let allow = |method, path: &str| server.send(method, path, "").header("allow").to_owned();
    assert_eq!(allow("PATCH", "/api/v1/counters/a"), "GET,HEAD,PUT,DELETE");
    assert_eq!(allow("GET", "/api/v1/counters/a/increment"), "POST");
    assert_eq!(allow("POST", "/livez"), "GET,HEAD");
    assert_eq!(server.send("GET", "/api/v2/counters", "").status, 404);
}

#[test]
fn a_body_that_is_too_large_is_refused_before_it_is_read() {
    let server = Server::start();
    let announced = server.raw(
        b"POST /api/v1/counters/a/increment HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: 16777217\r\n\r\n",
    );
    assert!(announced.starts_with("HTTP/1.1 413"), "{announced}");
    assert!(announced.contains("/problems/body-too-large"), "{announced}");
    let mut chunked =
        b"POST /api/v1/counters/a/increment HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n"
            .to_vec();
    for _ in 0..17 {
        chunked.extend(b"100000\r\n");
        chunked.extend(vec![b' '; 1 << 20]);
        chunked.extend(b"\r\n");
    }
    let answer = server.raw(&chunked);
    assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
    assert_eq!(server.value("a"), 0);
}

#[test]
fn a_client_that_sends_a_whole_body_first_gets_the_answer_that_refuses_it() {
    let server = Server::start();
    let body = vec![b' '; (16 << 20) + 1];
    let calls = [
        ("POST /api/v1/counters/a/increment", "", "413"),
        ("POST /api/v1/counters/batch-increment", "", "413"),
        ("POST /api/v1/counters/a/increment", "origin: http://example.org\r\n", "403"),
        ("POST /api/v1/nothing", "", "404"),
        ("DELETE /api/v1/counters/a", "", "400"),
    ];
    for (call, header, status) in calls {
        let mut request =
            format!("{call} HTTP/1.1\r\nhost: localhost\r\n{header}content-length: {}\r\n\r\n", body.len())
                .into_bytes();
        request.extend(&body);
        let mut stream = server.connect();
        stream.write_all(&request).unwrap_or_else(|error| panic!("{call}: {error}"));
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap_or_else(|error| panic!("{call}: {error}"));
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{call}: {answer}");
    }
}

#[test]
fn input_that_is_not_http_does_no_harm() {
    let server = Server::start();
    for garbage in [&b"\x16\x03\x01\x02\x00"[..], b"INCR a\r\n", b"GET\r\n\r\n", &[0xff; 4096], b"*1\r\n$4\r\nPING\r\n"]
    {
        let answer = server.raw(garbage);
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 400"), "{answer}");
    }
    assert_eq!(server.value("a"), 0);
}

/// Asserts that an answer is a whole problem document, and that its type is listed.
fn assert_is_problem(server: &Server, answer: &str, status: u16, slug: &str) {
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {answer}"));
    assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
    for header in ["content-type: application/problem+json", "connection: close", "date: "] {
        assert!(head.contains(header), "{header}: {answer}");
    }
    assert_eq!(head.matches("content-length: ").count(), 1, "{answer}");
    assert!(head.contains(&format!("content-length: {}", body.len())), "{answer}");
    let problem: serde_json::Value = serde_json::from_str(body).unwrap();
    let kind = format!("/problems/{slug}");
    assert_eq!((&problem["type"], &problem["status"]), (&json!(kind), &json!(status)), "{answer}");
    assert!(problem["title"].is_string() && problem["detail"].is_string(), "{answer}");
    assert_eq!(server.send("GET", &kind, "").json["status"], status);
}

#[test]
fn a_head_that_cannot_be_parsed_is_answered_with_a_problem() {
    let server = Server::start();
    let request = |line: &str, headers: &str| format!("{line} HTTP/1.1\r\nhost: localhost\r\n{headers}\r\n");
    let get = "GET /api/v1/counters/a";
    let post = "POST /api/v1/counters/a/increment";
    let malformed = [
        "GET\r\n\r\n".to_owned(),
        "G@T / HTTP/1.1\r\nhost: localhost\r\n\r\n".to_owned(),
        "GET / HTTP/9.9\r\nhost: localhost\r\n\r\n".to_owned(),
        "GET /a b HTTP/1.1\r\nhost: localhost\r\n\r\n".to_owned(),
        request(get, "no colon\r\n"),
        request(get, "bad name: x\r\n"),
        request(get, "x: a\0b\r\n"),
        request(post, "content-length: 1\r\ncontent-length: 2\r\n"),
        request(post, "content-length: many\r\n"),
        request(post, "transfer-encoding: unheard-of\r\n"),
    ];
    for bytes in malformed {
        assert_is_problem(&server, &server.raw(bytes.as_bytes()), 400, "malformed-request");
    }
    let too_large = [
        request(get, &format!("x: {}\r\n", "y".repeat(16_384))),
        request(get, &format!("x: {}\r\n", "y".repeat(1 << 20))),
        request(&format!("GET /{}", "y".repeat(16_383)), ""),
        request(get, &"x: y\r\n".repeat(100)),
    ];
    for bytes in too_large {
        assert_is_problem(&server, &server.raw(bytes.as_bytes()), 431, "head-too-large");
    }
    assert_eq!(server.raw(request(get, "connection: close\r\n").as_bytes()).matches("HTTP/1.1 200").count(), 1);
    assert_eq!(server.value("a"), 0);
}

#[test]
fn requests_before_a_malformed_head_are_answered() {
    let server = Server::start();
    let empty = "POST /api/v1/counters/a/increment HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n";
    let with_body =
        "POST /api/v1/counters/a/increment HTTP/1.1\r\nhost: localhost\r\ncontent-length: 12\r\n\r\n{\"amount\":1}";
    for _ in 0..50 {
        let answer = server.raw(format!("{empty}{with_body}{empty}garbage\r\n\r\n").as_bytes());
        assert_eq!(answer.matches("HTTP/1.1 200").count(), 3, "{answer}");
        let last = answer.rfind("HTTP/1.1 ").unwrap();
        assert_is_problem(&server, &answer[last..], 400, "malformed-request");
    }
    assert_eq!(server.value("a"), 150);
}
