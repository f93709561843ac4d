//! Counting over HTTP: increments, decrements, batches, readings, and keys and values of every kind.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::disallowed_methods)]

mod harness;

use harness::{Server, serve, write};
use serde_json::{Value, json};

const COUNTERS: &str = "/api/v1/counters";

fn increment(server: &Server, key: &str, body: &str) -> harness::Answer {
    server.send("POST", &format!("{COUNTERS}/{key}/increment"), body)
}

fn assert_timestamp(value: &Value) {
    let text = value.as_str().unwrap();
    assert_eq!(text.len(), "2026-03-02T09:14:07.482Z".len(), "{text}");
    assert!(text.ends_with('Z') && text.as_bytes()[10] == b'T' && text.as_bytes()[19] == b'.', "{text}");
}

#[test]
fn an_increment_answers_with_everything_the_contract_names() {
    let server = Server::start();
    let answer = increment(&server, "likes:post:42", r#"{"amount":5}"#);
    assert_eq!((answer.status, answer.header("content-type")), (200, "application/json"));
    let json = &answer.json;
    assert_eq!((&json["key"], &json["value"], &json["applied"]), (&json!("likes:post:42"), &json!(5), &json!(5)));
    assert_eq!((&json["duplicate"], &json["exact"], &json["exists"]), (&json!(false), &json!(true), &json!(true)));
    assert_eq!(json["consistency"], "eventual");
    assert!(!json["token"].as_str().unwrap().is_empty());
    assert_timestamp(&json["as_of"]);
}

#[test]
fn an_empty_body_counts_one_and_a_decrement_subtracts() {
    let server = Server::start();
    assert_eq!(increment(&server, "a", "").json["value"], 1);
    assert_eq!(increment(&server, "a", "{}").json["value"], 2);
    let answer = server.send("POST", "/api/v1/counters/a/decrement", r#"{"amount":5}"#);
    assert_eq!((&answer.json["value"], &answer.json["applied"]), (&json!(-3), &json!(-5)));
    assert_eq!(server.send("POST", "/api/v1/counters/a/decrement", "").json["value"], -4);
}

#[test]
fn the_content_type_is_ignored() {
    let server = Server::start();
    let client = server.client();
    for kind in ["application/x-www-form-urlencoded", "text/plain", "application/json; charset=utf-8"] {
        let answer = client.send("POST", "/api/v1/counters/a/increment", &[("content-type", kind)], r#"{"amount":2}"#);
        assert_eq!((answer.status, &answer.json["applied"]), (200, &json!(2)), "{kind}");
    }
}

#[test]
fn an_unknown_counter_reads_zero_and_does_not_exist() {
    let server = Server::start();
    for path in ["nobody", "nobody/exact", "nobody/stats"] {
        let answer = server.send("GET", &format!("{COUNTERS}/{path}"), "");
        assert_eq!(answer.status, 200);
        assert_eq!((&answer.json["value"], &answer.json["exists"]), (&json!(0), &json!(false)));
        assert_eq!((&answer.json["created_at"], &answer.json["updated_at"]), (&Value::Null, &Value::Null));
    }
}

#[test]
fn head_of_a_counter_is_answered_like_get_without_the_body() {
    let server = Server::start();
    increment(&server, "a", "");
    // On one connection: the rest of an answer would be read as the next one.
    let client = server.client();
    let head = client.send("HEAD", "/api/v1/counters/a", &[], "");
    let get = client.send("GET", "/api/v1/counters/a", &[], "");
    assert_eq!((head.status, head.text.as_str(), &get.json["value"]), (200, "", &json!(1)));
    assert_eq!(head.header("content-length"), get.text.len().to_string());
}

#[test]
fn a_reading_has_its_consistency_and_age() {
    let server = Server::start();
    increment(&server, "a", r#"{"amount":7}"#);
    for (path, consistency) in [("a", "eventual"), ("a/exact", "exact")] {
        let json = server.send("GET", &format!("{COUNTERS}/{path}"), "").json;
        assert_eq!((&json["key"], &json["value"], &json["exact"]), (&json!("a"), &json!(7), &json!(true)));
        assert_eq!((&json["exists"], &json["consistency"]), (&json!(true), &json!(consistency)));
        assert!(json["staleness_ms"].is_u64() && json["shards"].is_u64());
        ["as_of", "created_at", "updated_at"].iter().for_each(|field| assert_timestamp(&json[field]));
    }
}

#[test]
fn stats_have_totals_extremes_and_rates() {
    let server = Server::start();
    increment(&server, "a", r#"{"amount":10}"#);
    server.send("POST", "/api/v1/counters/a/decrement", r#"{"amount":14}"#);
    let json = server.send("GET", "/api/v1/counters/a/stats", "").json;
    assert_eq!((&json["value"], &json["total"]), (&json!(-4), &json!(-4)));
    assert_eq!((&json["increments"], &json["decrements"]), (&json!(10), &json!(14)));
    assert_eq!((&json["min"], &json["max"]), (&json!(-4), &json!(10)));
    ["rate_1s", "rate_1m", "rate_1h"].iter().for_each(|rate| assert!(json[rate].is_f64(), "{json}"));
    let shards: i64 = json["shard_values"].as_array().unwrap().iter().map(|value| value.as_i64().unwrap()).sum();
    assert_eq!(shards, -4);
}

#[test]
fn values_beyond_what_a_double_holds_survive() {
    let server = Server::start();
    let odd = (1_i64 << 53) + 1;
    assert_eq!(increment(&server, "big", &format!(r#"{{"amount":{odd}}}"#)).json["value"], odd);
    assert_eq!(server.value("big"), odd);
    assert_eq!(increment(&server, "max", &format!(r#"{{"amount":{}}}"#, i64::MAX)).json["value"], i64::MAX);
    let set = format!(r#"{{"value":{},"reason":"edge"}}"#, i64::MIN);
    assert_eq!(server.send("PUT", "/api/v1/counters/min", &set).json["value"], i64::MIN);
    let listed = server.send("GET", "/api/v1/counters?keys=big,max,min", "").json;
    let values: Vec<_> = listed["counters"].as_array().unwrap().iter().map(|c| c["value"].as_i64().unwrap()).collect();
    assert_eq!(values, [odd, i64::MAX, i64::MIN]);
}

#[test]
fn leaving_the_range_is_refused_with_the_current_value() {
    let server = Server::start();
    increment(&server, "a", &format!(r#"{{"amount":{}}}"#, i64::MAX));
    let over = increment(&server, "a", "");
    assert_eq!((over.status, over.problem(), &over.json["value"]), (409, "overflow", &json!(i64::MAX)));
    server.send("PUT", "/api/v1/counters/b", &format!(r#"{{"value":{},"reason":"edge"}}"#, i64::MIN));
    let under = server.send("POST", "/api/v1/counters/b/decrement", "");
    assert_eq!((under.status, under.problem(), &under.json["value"]), (409, "overflow", &json!(i64::MIN)));
    assert_eq!((server.value("a"), server.value("b")), (i64::MAX, i64::MIN));
}

#[test]
fn a_bound_refuses_or_saturates() {
    let server = Server::start();
    increment(&server, "stock", r#"{"amount":3}"#);
    let take = |body: &str| server.send("POST", "/api/v1/counters/stock/decrement", body);
    let refused = take(r#"{"amount":5,"floor":0}"#);
    assert_eq!((refused.status, refused.problem(), &refused.json["value"]), (409, "bound", &json!(3)));
    assert_eq!(refused.json["detail"], "the counter holds 3; subtracting 5 would cross its floor of 0");
    let below = take(r#"{"floor":4}"#);
    let detail = "the counter holds 3; that is below its floor of 4 already, so nothing can be subtracted";
    assert_eq!((below.status, &below.json["detail"]), (409, &json!(detail)));
    let saturated = take(r#"{"amount":5,"floor":0,"on_bound":"saturate"}"#);
    assert_eq!((saturated.status, &saturated.json["value"], &saturated.json["applied"]), (200, &json!(0), &json!(-3)));
    let above = increment(&server, "stock", r#"{"amount":5,"ceiling":4,"on_bound":"refuse"}"#);
    assert_eq!((above.status, above.problem()), (409, "bound"));
    assert!(above.text.contains("adding 5 would cross its ceiling of 4"), "{}", above.text);
    assert_eq!(increment(&server, "stock", r#"{"amount":4,"floor":0,"ceiling":4}"#).json["value"], 4);
}

#[test]
fn keys_of_any_text_work_when_percent_encoded() {
    let server = Server::start();
    let keys = [
        ("a%2Fb", "a/b"),
        ("a%2Fincrement", "a/increment"),
        ("100%25", "100%"),
        ("with%20space", "with space"),
        ("a+b", "a+b"),
        ("%2E", "."),
        ("%2E%2E", ".."),
        ("v1.2.3", "v1.2.3"),
        ("%E2%9C%93:%F0%9F%91%8D", "✓:👍"),
        ("batch-increment", "batch-increment"),
        ("increment", "increment"),
        ("a%3Fb%23c", "a?b#c"),
        ("%00%0A", "\0\n"),
        ("%22quoted%22", "\"quoted\""),
        ("a%2Cb", "a,b"),
    ];
    for (count, (path, key)) in (1..).zip(keys) {
        let body = format!(r#"{{"amount":{count}}}"#);
        let answer = increment(&server, path, &body);
        assert_eq!((answer.status, &answer.json["key"]), (200, &json!(key)), "{}", answer.text);
        assert_eq!(server.value(path), count, "{key:?}");
        let read = server.send("GET", &format!("{COUNTERS}/{path}"), "");
        assert_eq!((&read.json["key"], &read.json["value"]), (&json!(key), &json!(count)), "{}", read.text);
        let many = server.send("GET", &format!("{COUNTERS}?keys={},{path}", keys[0].0), "");
        if !path.contains('+') {
            assert_eq!(many.json["counters"][1]["key"], *key);
            assert_eq!(many.json["counters"][1]["value"], count);
        }
    }
    let longest = "k".repeat(512);
    assert_eq!(increment(&server, &longest, "").json["key"], longest.as_str());
}

#[test]
fn many_counters_are_read_in_the_order_of_the_request() {
    let server = Server::start();
    increment(&server, "a", r#"{"amount":1}"#);
    increment(&server, "b%2Cc", r#"{"amount":2}"#);
    let answer = server.send("GET", "/api/v1/counters?keys=b%2Cc,none,a,a", "");
    let read: Vec<_> = answer.json["counters"].as_array().unwrap().iter().map(|c| (&c["key"], &c["value"])).collect();
    let expected =
        [(json!("b,c"), json!(2)), (json!("none"), json!(0)), (json!("a"), json!(1)), (json!("a"), json!(1))];
    assert_eq!(read, expected.iter().map(|(key, value)| (key, value)).collect::<Vec<_>>());
    assert_eq!(answer.json["next_cursor"], Value::Null);
}

#[test]
fn keys_named_one_by_one_keep_their_commas_however_they_are_encoded() {
    let server = Server::start();
    increment(&server, "b%2Cc", r#"{"amount":2}"#);
    let answer = server.send("GET", "/api/v1/counters?key=b%2Cc&key=none&key=b,c", "");
    let read: Vec<_> = answer.json["counters"].as_array().unwrap().iter().map(|c| (&c["key"], &c["value"])).collect();
    let (known, unknown) = ((json!("b,c"), json!(2)), (json!("none"), json!(0)));
    assert_eq!(read, [&known, &unknown, &known].map(|(key, value)| (key, value)));
}

#[test]
fn each_item_of_a_batch_succeeds_or_fails_on_its_own() {
    let server = Server::start();
    let max = i64::MAX;
    let body = json!({"increments": [
        {"key": "a", "amount": 2},
        {"key": "a", "amount": 3, "request_id": "r1"},
        {"key": "a", "amount": 0},
        {"key": "", "amount": 1},
        {"key": "b", "amount": "5"},
        {"key": "b", "amuont": 5},
        {"key": "b", "member": "m"},
        ["b", 5],
        7,
        {"key": "top", "amount": max},
        {"key": "top", "amount": 1},
        {"key": "a", "amount": 3, "request_id": "r1"},
        {"key": "a", "amount": 4, "request_id": "r1"},
        {"amount": 4},
        {"key": "a"},
    ]});
    let answer = server.send("POST", "/api/v1/counters/batch-increment", &body.to_string());
    assert_eq!(answer.status, 200, "{}", answer.text);
    let results = answer.json["results"].as_array().unwrap();
    assert_eq!(results.len(), 15);
    let slug = |place: usize| results[place]["error"]["type"].as_str().map(|kind| kind.replace("/problems/", ""));
    let expected = [
        None,
        None,
        Some("invalid-amount"),
        Some("invalid-key"),
        Some("invalid-field"),
        Some("unknown-field"),
        Some("unsupported-field"),
        Some("invalid-field"),
        Some("invalid-field"),
        None,
        Some("overflow"),
        None,
        Some("idempotency-mismatch"),
        Some("missing-field"),
        None,
    ];
    for (place, expected) in expected.into_iter().enumerate() {
        assert_eq!(slug(place).as_deref(), expected, "{}", results[place]);
        assert!(!results[place].to_string().contains("line 1"), "no item has lines: {}", results[place]);
    }
    assert_eq!((&results[0]["value"], &results[1]["value"], &results[14]["value"]), (&json!(2), &json!(5), &json!(6)));
    assert_eq!((&results[11]["duplicate"], &results[11]["value"]), (&json!(true), &json!(5)));
    assert_eq!((&results[4]["key"], &results[10]["error"]["value"]), (&json!("b"), &json!(max)));
    assert_eq!((&answer.json["succeeded"], &answer.json["failed"]), (&json!(5), &json!(10)));
    assert_eq!((server.value("a"), server.value("b"), server.value("top")), (6, 0, max));
}

#[test]
fn a_valid_item_can_be_refused_by_itself() {
    let server = Server::start();
    let body = r#"{"increments":[{"key":"a","amount":0},{"key":""},{"key":"top","amount":9223372036854775807},
        {"key":"top"},{"key":"\u00e9\n\"","request_id":"\u0072"},{"key":"\u00e9\n\"","request_id":"r"}]}"#;
    let answer = server.send("POST", "/api/v1/counters/batch-increment", body);
    let shown = |item: &serde_json::Value| (item["key"].clone(), item["error"]["type"].clone(), item["value"].clone());
    let results: Vec<_> = answer.json["results"].as_array().unwrap().iter().map(shown).collect();
    let failed = |key, slug: &str| (key, json!(format!("/problems/{slug}")), json!(null));
    let expected = [
        failed(json!("a"), "invalid-amount"),
        failed(json!(null), "invalid-key"),
        (json!("top"), json!(null), json!(i64::MAX)),
        failed(json!("top"), "overflow"),
        (json!("é\n\""), json!(null), json!(1)),
        (json!("é\n\""), json!(null), json!(1)),
    ];
    assert_eq!(results, expected, "{}", answer.text);
    let duplicates = [4, 5].map(|place: usize| answer.json["results"][place]["duplicate"].clone());
    assert_eq!(duplicates, [json!(false), json!(true)], "{}", answer.text);
    assert_eq!((&answer.json["succeeded"], &answer.json["failed"]), (&json!(3), &json!(3)));
}

#[test]
fn the_largest_batch_of_the_longest_keys_is_accepted() {
    let server = Server::start();
    let items: Vec<_> = (0..10_000).map(|i| json!({"key": format!("{i:0>512}"), "amount": i + 1})).collect();
    let answer = server.send("POST", "/api/v1/counters/batch-increment", &json!({ "increments": items }).to_string());
    assert_eq!((answer.status, &answer.json["succeeded"]), (200, &json!(10_000)));
    assert_eq!(server.value(&format!("{:0>512}", 9_999)), 10_000);
}

#[test]
fn answers_have_the_consistency_of_the_namespace() {
    let dir = tempfile::tempdir().unwrap();
    let config = write(
        dir.path().join("tally.toml"),
        "[namespaces.views]\nconsistency = \"best-effort\"\n[namespaces.money]\nconsistency = \"exact\"\n",
    );
    let mut command = serve(&dir.path().join("data"));
    command.arg("--config").arg(config);
    let server = Server::start_with(command);
    for (key, consistency) in
        [("views:1", "best-effort"), ("money:1", "exact"), ("likes:1", "eventual"), ("views", "eventual")]
    {
        let (written, read) =
            (increment(&server, key, "").json, server.send("GET", &format!("{COUNTERS}/{key}"), "").json);
        assert_eq!((&written["consistency"], &read["consistency"]), (&consistency.into(), &consistency.into()));
        // What a crash can undo is not exact.
        let is_safe = consistency != "best-effort";
        assert_eq!((&written["exact"], &read["exact"]), (&is_safe.into(), &is_safe.into()), "{key}");
        let exact = server.send("GET", &format!("{COUNTERS}/{key}/exact"), "").json;
        assert_eq!((&exact["consistency"], &exact["exact"]), (&"exact".into(), &true.into()));
        assert_eq!(server.value(key), 1);
    }
}

#[test]
fn counters_survive_a_restart_and_a_crash() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::start_in(dir.path());
    increment(&server, "a", r#"{"amount":5}"#);
    assert!(server.terminate().success());
    let server = Server::start_in(dir.path());
    assert_eq!(increment(&server, "a", "").json["value"], 6);
    server.kill();
    assert_eq!(Server::start_in(dir.path()).value("a"), 6);
}

/// Every read that takes a token, by the path below `/counters`.
const READS: [&str; 5] = ["/a?", "/a/exact?", "/a/stats?", "?keys=a,b&", "?key=a&"];

/// The value of `a` in the answer to one of [`READS`].
fn value_of_a(answer: &harness::Answer) -> &Value {
    let listed = &answer.json["counters"][0];
    if listed.is_object() { &listed["value"] } else { &answer.json["value"] }
}

#[test]
fn a_read_with_the_token_of_a_write_includes_the_write() {
    let server = Server::start();
    for value in 1..=20 {
        let token = increment(&server, "a", "").json["token"].as_str().unwrap().to_owned();
        for path in READS {
            let answer = server.send("GET", &format!("{COUNTERS}{path}token={token}"), "");
            assert_eq!((answer.status, value_of_a(&answer)), (200, &json!(value)), "{path}: {}", answer.text);
        }
    }
}

#[test]
fn a_token_outlives_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::start_in(dir.path());
    let token = increment(&server, "a", "").json["token"].as_str().unwrap().to_owned();
    server.terminate();
    let server = Server::start_in(dir.path());
    let answer = server.send("GET", &format!("{COUNTERS}/a?token={token}"), "");
    assert_eq!((answer.status, &answer.json["value"]), (200, &json!(1)), "{}", answer.text);
}

#[test]
fn a_read_with_a_token_that_was_not_reached_is_refused_with_503() {
    let server = Server::start();
    increment(&server, "a", "");
    // A position far ahead, and a partition that the embedded engine does not have.
    for token in ["ffffffffffffffff", "3-1"] {
        for path in READS {
            let answer = server.send("GET", &format!("{COUNTERS}{path}token={token}"), "");
            assert_eq!((answer.status, answer.problem()), (503, "too-stale"), "{path}: {}", answer.text);
            assert_eq!((answer.header("retry-after"), &answer.json["outcome"]), ("1", &json!("none")), "{path}");
        }
    }
}

#[test]
fn the_embedded_engine_is_never_stale() {
    let server = Server::start();
    let token = increment(&server, "a", r#"{"amount":7}"#).json["token"].as_str().unwrap().to_owned();
    for path in READS {
        for query in ["max_staleness_ms=0".to_owned(), format!("max_staleness_ms={}&token={token}", u64::MAX)] {
            let answer = server.send("GET", &format!("{COUNTERS}{path}{query}"), "");
            assert_eq!((answer.status, value_of_a(&answer)), (200, &json!(7)), "{path}{query}: {}", answer.text);
        }
    }
}
