//! Running the server: health, metrics, documentation, signals and connections.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::disallowed_methods)]

mod harness;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

use harness::wire::Resp;
use harness::{PATIENCE, Server, limited, run, serve, wait_for, wait_until_equal};
use serde_json::Value;

#[test]
fn a_ready_server_is_live_and_ready() {
    let server = Server::start();
    let live = server.send("GET", "/livez", "");
    assert_eq!((live.status, live.text.as_str()), (200, "ok"));
    let ready = server.send("GET", "/readyz", "");
    assert_eq!((ready.status, &ready.json["state"]), (200, &Value::from("ready")));
    assert_eq!((&ready.json["reads"], &ready.json["writes"]), (&Value::from(true), &Value::from(true)));
    let head = server.send("HEAD", "/readyz", "");
    assert_eq!((head.status, head.text.as_str()), (200, ""));
}

/// Every sample of the metrics, by name and labels; fails on an invalid line.
fn samples(text: &str) -> BTreeMap<String, f64> {
    assert!(text.ends_with('\n'), "the last line must be complete");
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| {
            let (name, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("no sample: {line}"));
            assert!(name.starts_with("tally_") || name.starts_with("process_"), "{line}");
            (name.to_owned(), value.parse::<f64>().unwrap_or_else(|_| panic!("no number: {line}")))
        })
        .collect()
}

#[test]
fn metrics_count_requests_by_verb_and_status_and_name_no_key() {
    let server = Server::start();
    for _ in 0..3 {
        server.send("POST", "/api/v1/counters/secret-key/increment", "");
    }
    server.send("POST", "/api/v1/counters/secret-key/increment", "nonsense");
    server.send("GET", "/api/v1/counters/secret-key", "");
    let answer = server.send("GET", "/metrics", "");
    assert_eq!(answer.header("content-type"), "text/plain; version=0.0.4; charset=utf-8");
    assert!(!answer.text.contains("secret-key"));
    let samples = samples(&answer.text);
    let labels = |verb, status| format!(r#"{{protocol="http",verb="{verb}",status="{status}"}}"#);
    let requests = |verb, status| samples[&format!("tally_requests_total{}", labels(verb, status))];
    assert_eq!((requests("increment", "2xx"), requests("increment", "4xx"), requests("read", "2xx")), (3.0, 1.0, 1.0));
    let count = format!("tally_request_duration_seconds_count{}", labels("increment", "2xx"));
    let all = r#"tally_request_duration_seconds_bucket{le="+Inf",protocol="http",verb="increment",status="2xx"}"#;
    assert_eq!((samples[&count], samples[all]), (3.0, 3.0));
    assert!(samples.keys().any(|name| name.starts_with("tally_build_info{version=")));
    assert!(samples.keys().any(|name| name.starts_with("tally_journal_")), "the engine's own metrics are included");
}

#[test]
fn redis_commands_are_counted_by_verb_and_those_of_a_transaction_on_exec() {
    let server = Server::start();
    let mut redis = Resp::to(&server);
    let counted = |verb: &str, status: &str| {
        let name = format!(r#"tally_requests_total{{protocol="resp",verb="{verb}",status="{status}"}}"#);
        samples(&server.send("GET", "/metrics", "").text).get(&name).copied().unwrap_or_default()
    };
    // Reads the counts until they are as expected.
    let wait = |expected: &[(&str, &str, f64)]| {
        let read = || expected.iter().map(|(verb, status, _)| (*verb, *status, counted(verb, status))).collect();
        wait_until_equal("the counts", &expected.to_vec(), read);
    };
    for line in ["MULTI", "INCR a", "INCR a", "GET a", "SET a many", "PING"] {
        redis.say(line);
    }
    // Queued commands are not counted.
    wait(&[("increment", "2xx", 0.0), ("other", "2xx", 1.0)]);
    redis.say("EXEC");
    // The others are MULTI, PING and EXEC.
    wait(&[("increment", "2xx", 2.0), ("read", "2xx", 1.0), ("set", "4xx", 1.0), ("other", "2xx", 3.0)]);
    for line in ["MULTI", "INCR a", "DISCARD"] {
        redis.say(line);
    }
    // A discarded increment is not counted.
    wait(&[("increment", "2xx", 2.0), ("other", "2xx", 5.0)]);
    for line in ["SCAN 0", "SCAN x", "DBSIZE", "TALLY.READ a", "FLUSHALL"] {
        redis.say(line);
    }
    wait(&[("list", "2xx", 2.0), ("list", "4xx", 1.0), ("read", "2xx", 2.0), ("delete", "2xx", 1.0)]);
}

/// Every operation in the description: method and path, with a key filled in.
fn operations(server: &Server) -> Vec<(String, String)> {
    let described = server.send("GET", "/openapi.json", "");
    assert_eq!(described.status, 200);
    let paths = described.json["paths"].as_object().unwrap();
    let of = |(path, item): (&String, &Value)| {
        let path = path.replace("{key}", "k").replace("{slug}", "bound");
        let methods: Vec<_> = item.as_object().unwrap().keys().map(|method| method.to_uppercase()).collect();
        methods.into_iter().map(move |method| (method, path.clone())).collect::<Vec<_>>()
    };
    paths.iter().flat_map(of).collect()
}

#[test]
fn the_description_lists_exactly_the_calls_that_exist() {
    let server = Server::start();
    let described = operations(&server);
    let expected = [
        ("POST", "/api/v1/counters/k/increment"),
        ("POST", "/api/v1/counters/k/decrement"),
        ("POST", "/api/v1/counters/batch-increment"),
        ("GET", "/api/v1/counters/k"),
        ("PUT", "/api/v1/counters/k"),
        ("DELETE", "/api/v1/counters/k"),
        ("GET", "/api/v1/counters/k/exact"),
        ("GET", "/api/v1/counters/k/stats"),
        ("GET", "/api/v1/counters/k/ledger"),
        ("GET", "/api/v1/counters"),
        ("POST", "/api/v1/counters/k/reset"),
        ("POST", "/api/v1/counters/k/adjust"),
        ("GET", "/api/v1/export"),
        ("GET", "/api/v1/backup"),
        ("POST", "/api/v1/import"),
        ("GET", "/livez"),
        ("GET", "/readyz"),
        ("GET", "/metrics"),
        ("GET", "/problems"),
        ("GET", "/problems/bound"),
    ];
    let expected: BTreeSet<_> =
        expected.iter().map(|(method, path)| ((*method).to_owned(), (*path).to_owned())).collect();
    assert_eq!(described.iter().cloned().collect::<BTreeSet<_>>(), expected);
    for (method, path) in &described {
        let answer = server.send(method, path, "");
        assert!(![404, 405].contains(&answer.status), "{method} {path}: {}", answer.text);
    }
}

#[test]
fn every_described_call_on_counters_is_counted_under_a_verb_of_its_own() {
    let server = Server::start();
    let calls: Vec<_> = operations(&server).into_iter().filter(|(_, path)| path.starts_with("/api/")).collect();
    let counted = || samples(&server.send("GET", "/metrics", "").text);
    let verbs = |samples: &BTreeMap<String, f64>| -> BTreeSet<String> {
        let totals = samples.keys().filter(|name| name.starts_with("tally_requests_total"));
        totals.map(|name| name.split("verb=\"").nth(1).unwrap().split('"').next().unwrap().to_owned()).collect()
    };
    assert_eq!(verbs(&counted()), BTreeSet::from(["other".to_owned()]));
    calls.iter().for_each(|(method, path)| drop(server.send(method, path, "")));
    assert_eq!(verbs(&counted()).len(), calls.len() + 1);
}

#[test]
fn the_documentation_works_without_a_network() {
    let server = Server::start();
    let moved = server.send("GET", "/docs", "");
    assert_eq!((moved.status / 100, moved.header("location")), (3, "/docs/"));
    let page = server.send("GET", "/docs/", "");
    assert_eq!(page.status, 200);
    assert!(!page.text.contains("//"), "nothing is loaded from other hosts: {}", page.text);
    let mut loaded = 0;
    for part in page.text.split(['"', '\'']).filter(|part| part.ends_with(".js") || part.ends_with(".css")) {
        let asset = server.send("GET", &format!("/docs/{}", part.trim_start_matches("./")), "");
        assert_eq!(asset.status, 200, "{part}");
        if part.contains("page.") {
            assert!(!asset.text.contains("://"), "{part} names another host");
            assert!(!part.ends_with(".js") || asset.text.contains("/openapi.json"));
        }
        loaded += 1;
    }
    assert!(loaded >= 4, "{}", page.text);
    assert!(page.header("content-security-policy").starts_with("default-src 'self';"));
    assert!(page.text.contains(r#"<meta name="viewport" content="width=device-width, initial-scale=1">"#));
    assert_eq!(server.send("GET", "/docs/index.html", "").status, 404);
}

#[test]
fn metrics_come_in_the_format_that_was_asked_for() {
    let server = Server::start();
    server.send("POST", "/api/v1/counters/a/increment", "");
    // A series appears when it is first used.
    server.send("GET", "/metrics", "");
    let scrape = |accept: &str| server.client().send("GET", "/metrics", &[("accept", accept)], "");
    let classic = scrape("*/*");
    assert!(classic.header("content-type").starts_with("text/plain; version=0.0.4"));
    assert!(classic.text.contains("# TYPE tally_requests_total counter\n") && !classic.text.contains("# EOF"));
    assert!(classic.text.contains("# TYPE tally_build_info gauge\n"));
    let open = scrape("application/openmetrics-text;version=1.0.0,text/plain;q=0.5");
    assert!(open.header("content-type").starts_with("application/openmetrics-text; version=1.0.0"));
    assert!(open.text.contains("# TYPE tally_requests counter\n") && open.text.ends_with("# EOF\n"));
    assert_eq!((classic.header("vary"), open.header("vary")), ("accept", "accept"));
    let names = |text: &str| samples(text).into_keys().collect::<BTreeSet<_>>();
    assert_eq!(names(&classic.text), names(&open.text));
}

#[test]
fn promtool_has_nothing_to_say_about_the_metrics() {
    let server = Server::start();
    server.send("POST", "/api/v1/counters/a/increment", "");
    let check = |text: &str| {
        let mut promtool = Command::new("promtool");
        promtool.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut promtool = promtool.spawn().expect("promtool is not installed: run `make deploy-tools`");
        promtool.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        let output = promtool.wait_with_output().unwrap();
        (
            output.status.code(),
            String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr),
        )
    };
    let text = server.send("GET", "/metrics", "").text;
    assert_eq!(check(&text), (Some(0), String::new()));
    assert_ne!(check(&text.replace("# HELP tally_counters ", "# HELP other ")).0, Some(0), "the check can fail");
}

#[test]
fn metrics_of_the_process_are_there_under_their_usual_names() {
    let server = Server::start();
    let text = server.send("GET", "/metrics", "").text;
    let samples = samples(&text);
    for name in ["cpu_seconds_total", "virtual_memory_bytes", "open_fds", "max_fds", "start_time_seconds"] {
        assert!(samples[&format!("process_{name}")] >= 0.0, "{name}");
    }
    assert!(samples["process_resident_memory_bytes"] > f64::from(1 << 20));
    assert!(samples["process_resident_memory_bytes"] <= samples["process_virtual_memory_bytes"]);
    assert!(samples["process_open_fds"] > 3.0 && samples["process_open_fds"] <= samples["process_max_fds"]);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
    let age_s = now - samples["process_start_time_seconds"];
    // The time of the boot is in whole seconds.
    assert!((-2.0..PATIENCE.as_secs_f64()).contains(&age_s), "{age_s}");
}

#[test]
fn every_type_of_problem_has_a_page() {
    let server = Server::start();
    let refused = server.send("POST", "/api/v1/counters/a/increment", "x");
    let kind = server.send("GET", refused.json["type"].as_str().unwrap(), "");
    assert_eq!((kind.status, &kind.json["status"]), (200, &Value::from(400)));
    assert!(!kind.json["meaning"].as_str().unwrap().is_empty() && !kind.json["next"].as_str().unwrap().is_empty());
    let all = server.send("GET", "/problems", "").json["problems"].as_array().unwrap().clone();
    assert!(all.contains(&kind.json));
    for listed in &all {
        let single = server.send("GET", listed["type"].as_str().unwrap(), "");
        assert_eq!((single.status, &single.json), (200, listed));
    }
    assert_eq!(server.send("GET", "/problems/nonsense", "").status, 404);
}

#[test]
fn the_root_path_redirects_to_the_documentation() {
    let moved = Server::start().send("GET", "/", "");
    assert_eq!((moved.status, moved.header("location")), (303, "/docs/"));
}

#[test]
fn a_page_of_another_site_cannot_change_counters() {
    let server = Server::start();
    let client = server.client();
    let own = server.base.clone();
    let port = own.rsplit_once(':').unwrap().1;
    let calls = [
        ("POST", "/api/v1/counters/a/increment", ""),
        ("POST", "/api/v1/counters/batch-increment", r#"{"increments":[{"key":"a"}]}"#),
        ("PUT", "/api/v1/counters/a", r#"{"value":5,"reason":"r"}"#),
        ("DELETE", "/api/v1/counters/a", ""),
    ];
    for (method, path, body) in calls {
        for origin in ["https://evil.example", "null", "http://127.0.0.1", &format!("http://localhost:{port}")] {
            let answer = client.send(method, path, &[("Origin", origin)], body);
            assert_eq!((answer.status, answer.problem()), (403, "cross-origin"), "{method} {path} {origin}");
            assert_eq!(answer.json["instance"], path);
        }
    }
    assert_eq!(server.value("a"), 0);
    let read = client.send("GET", "/api/v1/counters/a", &[("Origin", "https://evil.example")], "");
    assert_eq!((read.status, read.header("access-control-allow-origin")), (200, ""), "reading changes nothing");
    assert_eq!(client.send("POST", calls[0].1, &[("Origin", &own)], "").status, 200, "its own page may");
    assert_eq!(
        client.send("POST", calls[0].1, &[], "").status,
        200,
        "a request without Origin does not come from a page"
    );
}

#[test]
fn json_answers_end_with_a_newline() {
    let server = Server::start();
    let calls = [("POST", "/api/v1/counters/a/increment"), ("GET", "/api/v1/counters/a"), ("GET", "/api/v1/nothing")];
    for (method, path) in calls {
        let answer = server.send(method, path, "");
        assert!(answer.text.ends_with("}\n") && answer.text.matches('\n').count() == 1, "{:?}", answer.text);
        assert_eq!(answer.header("content-length"), answer.text.len().to_string());
    }
}

/// A request without its body, which the server has asked for.
fn request_without_body(server: &Server) -> TcpStream {
    const ASKED: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";
    let mut stream = server.connect();
    let head = "POST /api/v1/counters/a/increment HTTP/1.1\r\nhost: localhost\r\ncontent-length: 12\r\n\
        expect: 100-continue\r\n\r\n";
    stream.write_all(head.as_bytes()).unwrap();
    let mut asked = [0; ASKED.len()];
    stream.read_exact(&mut asked).unwrap();
    assert_eq!(asked, ASKED, "{}", String::from_utf8_lossy(&asked));
    stream
}

/// Logged when the drain timed out.
const CUT_OFF: &str = "remaining requests were cut off";

#[test]
fn sigterm_drains_and_exits_zero() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::start_in(dir.path());
    server.send("POST", "/api/v1/counters/a/increment", "");
    let mut slow = request_without_body(&server);
    server.signal();
    server.wait_for_log("draining");
    slow.write_all(br#"{"amount":4}"#).unwrap();
    let mut answer = String::new();
    slow.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert_eq!(server.exit().code(), Some(0), "{}", server.log());
    assert_eq!(Server::start_in(dir.path()).value("a"), 5);
}

#[test]
fn an_idle_connection_does_not_delay_the_shutdown() {
    let mut server = Server::start();
    let client = server.client();
    client.send("GET", "/livez", &[], "");
    assert_eq!(server.terminate().code(), Some(0));
    assert!(!server.log().contains(CUT_OFF), "the drain timed out: {}", server.log());
}

#[test]
fn a_second_signal_stops_at_once() {
    let mut server = Server::start();
    let _stuck = request_without_body(&server);
    server.signal();
    server.wait_for_log("draining");
    assert_eq!(server.terminate().code(), Some(130));
    assert!(!server.log().contains(CUT_OFF), "the drain timed out: {}", server.log());
}

#[test]
fn two_servers_do_not_share_a_data_directory() {
    let dir = tempfile::tempdir().unwrap();
    let _first = Server::start_in(dir.path());
    let second = run(&mut serve(dir.path()));
    assert_eq!(second.code, 1);
    assert!(second.err.contains("cannot open the data in"), "{}", second.err);
    assert_eq!(second.out, "", "a server that is never ready does not say where it listens");
}

#[test]
fn a_client_that_disconnects_before_the_answer_does_no_harm() {
    let server = Server::start();
    for _ in 0..50 {
        let mut stream = TcpStream::connect(server.base.strip_prefix("http://").unwrap()).unwrap();
        stream
            .write_all(b"POST /api/v1/counters/a/increment HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n")
            .unwrap();
    }
    let counted = server.send("POST", "/api/v1/counters/a/increment", "").json["value"].as_i64().unwrap();
    assert!((1..=51).contains(&counted), "each counts whole or not at all: {counted}");
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let server = Server::start();
    let one = "POST /api/v1/counters/a/increment HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n";
    let last = "GET /api/v1/counters/a HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    let answer = server.raw(format!("{}{last}", one.repeat(20)).as_bytes());
    let values: Vec<_> = answer.split("\"value\":").skip(1).map(|rest| rest.split(',').next().unwrap()).collect();
    let expected: Vec<String> = (1..=20).chain([20]).map(|value| value.to_string()).collect();
    assert_eq!(values, expected);
}

#[test]
fn a_connection_over_the_limit_is_refused_and_the_others_are_served() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start_with(limited("-n 256", &serve(dir.path())));
    let address = server.base.strip_prefix("http://").unwrap();
    // Of 256 file descriptors, 192 are kept back, and Redis clients have half of the rest.
    let mut open: Vec<_> = (0..32).map(|_| TcpStream::connect(address).unwrap()).collect();
    let refused = server.raw(b"");
    assert!(refused.starts_with("HTTP/1.1 503") && refused.contains("too-many-connections"), "{refused}");
    let (head, body) = refused.split_once("\r\n\r\n").unwrap();
    assert!(head.contains(&format!("content-length: {}", body.len())));
    let first = open.first_mut().unwrap();
    first.write_all(b"GET /livez HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    first.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    drop(open);
    wait_for("room for another connection", || {
        let request = b"GET /livez HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
        let answer = server.raw(request);
        if answer.starts_with("HTTP/1.1 200") { Ok(()) } else { Err(answer) }
    });
}
