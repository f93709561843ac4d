//! The load balancer's configuration, by itself. With a cluster behind it: `tests/cluster/balancer.rs`.

use std::io::Read;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::{Arc, Mutex};
use std::thread;

use serde_json::json;

use crate::harness::nginx::{Loopback, Nginx};
use crate::harness::wire::{Reply, Resp};
use crate::harness::{Answer, Client, Server, tally, wait_for};

/// Requests that nodes got, as method and path.
type Got = Arc<Mutex<Vec<String>>>;

/// A node that dies with every request: it reads it and closes the connection.
fn dying_node(at: Ipv4Addr, got: &Got) {
    let listener = TcpListener::bind((at, 7300)).unwrap();
    let got = Arc::clone(got);
    // Ends with the test's process.
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, mut request) = (stream.unwrap(), Vec::new());
            while !request.windows(4).any(|bytes| bytes == b"\r\n\r\n") {
                let mut bytes = [0; 1024];
                match stream.read(&mut bytes).unwrap() {
                    0 => break,
                    count => request.extend_from_slice(&bytes[..count]),
                }
            }
            if !request.is_empty() {
                let request = String::from_utf8_lossy(&request).into_owned();
                got.lock().unwrap().push(request.split(" HTTP/1.1").next().unwrap().to_owned());
            }
        }
    });
}

#[test]
fn a_write_is_sent_to_a_second_node_only_if_it_counts_once() {
    let loopback = Loopback::choose();
    let nodes = [loopback.address(1), loopback.address(2)];
    let got = Got::default();
    nodes.iter().for_each(|node| dying_node(*node, &got));
    // Nodes that failed must not be left out, because all fail here.
    let nginx = Nginx::start(loopback.address(3), nodes, |conf| conf.replace("max_fails=1", "max_fails=0"));
    let key: &[(&str, &str)] = &[("Idempotency-Key", "a")];
    for (method, headers, deliveries) in [
        ("GET", &[][..], 2),
        ("POST", &[], 1),
        ("PUT", &[], 1),
        ("DELETE", &[], 1),
        ("PATCH", &[], 1),
        ("POST", key, 2),
        ("PUT", key, 2),
        ("DELETE", key, 2),
    ] {
        let body = if method == "GET" { "" } else { "{}" };
        let answer = Client::new(&nginx.base).send(method, "/api/v1/counters/a%2Fb", headers, body);
        let delivered = std::mem::take(&mut *got.lock().unwrap());
        assert_eq!(delivered, vec![format!("{method} /api/v1/counters/a%2Fb"); deliveries], "{headers:?}");
        // The answer is Tally's, not a page of nginx.
        assert_eq!((answer.status, &answer.json["outcome"]), (503, &json!("unknown")), "{}", answer.text);
        assert_eq!(answer.header("content-type"), "application/problem+json");
        assert_eq!((answer.problem(), answer.header("retry-after")), ("outcome-unknown", "1"));
    }
}

#[test]
fn with_one_node_away_the_other_one_gets_everything() {
    let loopback = Loopback::choose();
    let nodes = [loopback.address(1), loopback.address(2)];
    let dir = tempfile::tempdir().unwrap();
    let mut command = tally();
    command.arg("serve").arg("--data").arg(dir.path().join("data"));
    command.args(["--http", &format!("{}:7300", nodes[0]), "--resp", &format!("{}:7379", nodes[0])]);
    let _node = Server::start_with(command);
    let nginx = Nginx::start(loopback.address(3), nodes, |conf| conf);
    let client = Client::new(&nginx.base);
    let ok = |answer: Answer| {
        assert_eq!(answer.status, 200, "{}", answer.text);
        answer.json["value"].clone()
    };
    for value in 1..=20 {
        assert_eq!(ok(client.send("POST", "/api/v1/counters/a%2Fb%25/increment", &[], "")), json!(value));
        assert_eq!(ok(client.send("GET", "/api/v1/counters/a%2Fb%25", &[], "")), json!(value));
    }
    // A PUT without a key is not repeated, so the first may meet the node that is away.
    let put = wait_for("a PUT", || {
        let answer = client.send("PUT", "/api/v1/counters/a%2Fb%25", &[], r#"{"value": 7, "reason": "test"}"#);
        if answer.status == 200 { Ok(answer.json) } else { Err(answer.text) }
    });
    assert_eq!((&put["value"], &put["key"]), (&json!(7), &json!("a/b%")));
    let mut redis = Resp::try_to(&nginx.redis).unwrap();
    assert_eq!(redis.say("INCR r"), Reply::Integer(1));
    // Problems of the node pass through, and so does a batch of several MiB.
    assert_eq!(client.send("POST", "/api/v1/counters/a/increment", &[], "nonsense").problem(), "invalid-json");
    let padding = "k".repeat(500);
    let increments: Vec<_> = (0..10_000).map(|at| json!({ "key": format!("{padding}{at}"), "amount": 1 })).collect();
    let batch =
        client.send("POST", "/api/v1/counters/batch-increment", &[], &json!({ "increments": increments }).to_string());
    assert_eq!((batch.status, &batch.json["succeeded"]), (200, &json!(10_000)));
    let status = |path: &str| client.send("GET", path, &[], "").status;
    assert_eq!((status("/livez"), status("/readyz"), status("/metrics")), (200, 200, 404));
    assert!(nginx.log().lines().all(|line| !line.contains("[emerg]") && !line.contains("[crit]")), "{}", nginx.log());
}
