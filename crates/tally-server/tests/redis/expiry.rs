//! Expiries set over the Redis protocol, as HTTP, the command line, `INFO` and the metrics show them.

use serde_json::{Value, json};

use crate::harness::wire::{Reply, Resp};
use crate::harness::{Server, run, serve, tally, wait_for};

/// Noon on 1 January 2100.
const AT_MS: u64 = 4_102_488_000_000;
const AT: &str = "2100-01-01T12:00:00.000Z";

/// Every way to read counter `a` over HTTP.
fn readings(server: &Server) -> Vec<Value> {
    let get = |path: &str| {
        let answer = server.send("GET", &format!("/api/v1/counters{path}"), "");
        assert_eq!(answer.status, 200, "{path}: {}", answer.text);
        answer.json
    };
    let first_of = |listed: Value| listed["counters"][0].clone();
    let many = ["?keys=a,b", "?prefix=a"].map(|query| first_of(get(query)));
    ["/a", "/a/exact", "/a/stats"].map(get).into_iter().chain(many).collect()
}

fn info(resp: &mut Resp) -> String {
    let Reply::Bulk(text) = resp.say("INFO") else { panic!("INFO is a string") };
    String::from_utf8(text).unwrap()
}

#[test]
fn an_expiry_is_shown_over_http_until_it_is_removed() {
    let server = Server::start();
    let mut resp = Resp::to(&server);
    assert_eq!(resp.say("INCR a"), Reply::Integer(1));
    readings(&server).iter().for_each(|reading| assert_eq!(reading.get("expires_at"), None, "{reading}"));
    assert_eq!(resp.say(&format!("PEXPIREAT a {AT_MS}")), Reply::Integer(1));
    readings(&server).iter().for_each(|reading| assert_eq!(reading["expires_at"], AT, "{reading}"));
    let stats = || run(tally().args(["stats", "a", "--server", &server.base])).out;
    assert!(stats().contains(AT), "{}", stats());
    assert_eq!(resp.say("PERSIST a"), Reply::Integer(1));
    readings(&server).iter().for_each(|reading| assert_eq!(reading.get("expires_at"), None, "{reading}"));
    assert!(!stats().contains(AT), "{}", stats());

    // A duration counts from when it is applied, by the clock that readings show.
    let time = |reading: &Value, name: &str| {
        let time = reading[name].as_str().map(humantime::parse_rfc3339).unwrap().unwrap();
        time.duration_since(std::time::UNIX_EPOCH).unwrap().as_millis()
    };
    let before = time(&readings(&server)[0], "as_of");
    assert_eq!(resp.say("EXPIRE a 1000"), Reply::Integer(1));
    let after = &readings(&server)[0];
    let applied = time(after, "expires_at") - 1_000_000;
    assert!((before..=time(after, "as_of")).contains(&applied), "{before} {after}");
}

#[test]
fn the_description_has_the_expiry_as_an_optional_field() {
    let server = Server::start();
    let schema = server.send("GET", "/openapi.json", "").json["components"]["schemas"]["ReadAnswer"].clone();
    let described = &schema["properties"]["expires_at"];
    assert_eq!((&described["type"], &described["format"]), (&json!("string"), &json!("date-time")));
    assert!(described["description"].as_str().is_some_and(|text| text.contains("absent if")), "{described}");
    let required = schema["required"].as_array().unwrap();
    assert!(required.contains(&json!("updated_at")) && !required.contains(&json!("expires_at")), "{required:?}");
}

#[test]
fn info_and_metrics_show_how_many_counters_expire_and_have_expired() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::start_with(serve(dir.path()));
    let mut resp = Resp::to(&server);
    for line in ["SET a 1 EX 1000", "SET b 1", "SET c 1 EX 1000", "EXPIRE b 1000", "PERSIST c"] {
        assert!(!matches!(resp.say(line), Reply::Error(_)), "{line}");
    }
    assert!(info(&mut resp).contains("\r\ndb0:keys=3,expires=2,"), "{}", info(&mut resp));
    assert!(info(&mut resp).contains("\r\nexpired_keys:0\r\n"), "{}", info(&mut resp));
    // The time is in the past, so the next increment starts a new counter.
    assert_eq!(resp.say("PEXPIREAT a 1"), Reply::Integer(1));
    assert_eq!(resp.say("INCR a"), Reply::Integer(1));
    let shown = info(&mut resp);
    assert!(shown.contains("\r\nexpired_keys:1\r\n") && shown.contains("\r\ndb0:keys=3,expires=1,"), "{shown}");
    let metrics = server.send("GET", "/metrics", "").text;
    for sample in ["tally_expiring_counters 1", "tally_expired_counters_total 1"] {
        assert!(metrics.lines().any(|line| line.strip_suffix(".0").unwrap_or(line) == sample), "{metrics}");
    }
    assert!(server.terminate().success());
    let server = Server::start_in(dir.path());
    let shown = info(&mut Resp::to(&server));
    assert!(shown.contains("\r\nexpired_keys:0\r\n") && shown.contains("\r\ndb0:keys=3,expires=1,"), "{shown}");
}

/// What `docs/recipes.md` warns of: with 100 for each window, 199 requests are accepted in less time than half a window.
#[test]
fn a_fixed_window_lets_a_burst_of_199_through_at_its_edge() {
    const WINDOW_MS: i64 = 2_000;
    let server = Server::start();
    let mut resp = Resp::to(&server);
    let accepted = |resp: &mut Resp, key: &str, requests: usize| -> i64 {
        let request = format!("INCREX {key} UBOUND 100 PX {WINDOW_MS} ENX\r\n");
        resp.send(request.repeat(requests).as_bytes()).unwrap();
        (0..requests).map(|_| resp.reply().unwrap().items()[1].number()).sum()
    };
    let mut attempts = 0;
    wait_for("a window that lasts until its burst", || {
        attempts += 1;
        let key = format!("limit:{attempts}");
        assert_eq!(accepted(&mut resp, &key, 1), 1);
        let pttl = |resp: &mut Resp| resp.say(&format!("pttl {key}")).number();
        wait_for("the end of the window to come near", || match pttl(&mut resp) {
            left if left <= WINDOW_MS / 4 => Ok(()),
            left => Err(left),
        });
        let at_the_end = accepted(&mut resp, &key, 200);
        if at_the_end > 99 {
            return Err("the window ended before the burst");
        }
        assert_eq!(at_the_end, 99, "with the first one, 100");
        wait_for("the window to end", || match pttl(&mut resp) {
            -2 => Ok(()),
            left => Err(left),
        });
        assert_eq!(accepted(&mut resp, &key, 200), 100);
        // Both bursts lie between a quarter of a window before the end of the first one and now.
        match pttl(&mut resp) {
            left if left >= WINDOW_MS * 3 / 4 => Ok(()),
            _ => Err("the second burst was late"),
        }
    });
}
