//! Corrections, their ledger, and listings.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::disallowed_methods)]

mod harness;

use harness::{Client, Server};
use serde_json::{Value, json};
use tally_core::key::KeyRef;
use tally_core::ledger::{CHAIN_START, ChainHash, CorrectionKind, LedgerEntry};
use tally_core::time::Millis;

#[test]
fn a_counter_is_set_reset_adjusted_and_deleted() {
    let server = Server::start();
    let set = server.send("PUT", "/api/v1/counters/a", r#"{"value":10,"reason":"import"}"#);
    assert_eq!((set.status, &set.json["value"], &set.json["applied"]), (200, &json!(10), &json!(10)));
    let adjusted = server.send("POST", "/api/v1/counters/a/adjust", r#"{"delta":-3,"reason":"bots"}"#);
    assert_eq!((&adjusted.json["value"], &adjusted.json["applied"]), (&json!(7), &json!(-3)));
    let reset = server.send("POST", "/api/v1/counters/a/reset", r#"{"reason":"new year"}"#);
    assert_eq!(
        (&reset.json["value"], &reset.json["applied"], &reset.json["exists"]),
        (&json!(0), &json!(-7), &json!(true))
    );
    let deleted = server.send("DELETE", "/api/v1/counters/a", "");
    assert_eq!((deleted.status, &deleted.json["exists"]), (200, &json!(false)));
    let read = server.send("GET", "/api/v1/counters/a", "");
    assert_eq!((&read.json["value"], &read.json["exists"]), (&json!(0), &json!(false)));
    assert!(server.send("GET", "/api/v1/counters", "").json["counters"].as_array().unwrap().is_empty());
}

#[test]
fn deleting_a_missing_counter_changes_nothing_and_adds_no_entry() {
    let server = Server::start();
    let deleted = server.send("DELETE", "/api/v1/counters/a", "");
    let answer = (deleted.status, &deleted.json["exists"], &deleted.json["applied"]);
    assert_eq!(answer, (200, &json!(false), &json!(0)));
    let entries = || server.send("GET", "/api/v1/counters/a/ledger", "").json["entries"].clone();
    assert_eq!(entries(), json!([]));
    server.send("POST", "/api/v1/counters/a/increment", "");
    server.send("DELETE", "/api/v1/counters/a", "");
    assert_eq!(entries()[0]["reason"], "deleted without a reason", "the reason is optional");
}

#[test]
fn compare_and_set_changes_only_the_expected_value() {
    let server = Server::start();
    let set = |value: i64, expected: i64| {
        let body = json!({"value": value, "reason": "cas", "expected": expected}).to_string();
        server.send("PUT", "/api/v1/counters/a", &body)
    };
    assert_eq!(set(5, 0).json["value"], 5);
    let refused = set(9, 4);
    assert_eq!((refused.status, refused.problem(), &refused.json["value"]), (409, "unexpected-value", &json!(5)));
    assert_eq!(set(9, 5).status, 200);
    assert_eq!(server.value("a"), 9);
}

#[test]
fn of_concurrent_compare_and_sets_one_wins() {
    let server = Server::start();
    let base = &server.base;
    let wins = std::thread::scope(|scope| {
        let attempt = |value: usize| {
            let client = Client::new(base);
            let body = json!({"value": value, "reason": "race", "expected": 0}).to_string();
            client.send("PUT", "/api/v1/counters/a", &[], &body).status
        };
        let racing: Vec<_> = (1..=16).map(|value| scope.spawn(move || attempt(value))).collect();
        racing.into_iter().map(|racer| racer.join().unwrap()).filter(|status| *status == 200).count()
    });
    assert_eq!(wins, 1);
}

#[test]
fn an_adjustment_that_leaves_the_range_is_refused() {
    let server = Server::start();
    server.send("PUT", "/api/v1/counters/a", &json!({"value": i64::MAX, "reason": "edge"}).to_string());
    let refused = server.send("POST", "/api/v1/counters/a/adjust", r#"{"delta":1,"reason":"r"}"#);
    assert_eq!((refused.status, refused.problem(), &refused.json["value"]), (409, "overflow", &json!(i64::MAX)));
    let ledger = server.send("GET", "/api/v1/counters/a/ledger", "").json;
    assert_eq!(ledger["entries"].as_array().unwrap().len(), 1, "a refused correction leaves no entry");
}

fn hash(value: &Value) -> ChainHash {
    let text = value.as_str().unwrap();
    let bytes: Vec<u8> = (0..64).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect();
    bytes.try_into().unwrap()
}

fn entry(value: &Value) -> LedgerEntry {
    let at = humantime::parse_rfc3339(value["at"].as_str().unwrap()).unwrap();
    let at = at.duration_since(std::time::UNIX_EPOCH).unwrap().as_millis();
    LedgerEntry {
        seq: value["seq"].as_u64().unwrap(),
        at: Millis(u64::try_from(at).unwrap()),
        kind: match value["kind"].as_str().unwrap() {
            "set" => CorrectionKind::Set,
            "reset" => CorrectionKind::Reset,
            "adjust" => CorrectionKind::Adjust,
            "delete" => CorrectionKind::Delete,
            other => panic!("unknown kind {other}"),
        },
        actor: value["actor"].as_str().unwrap().into(),
        reason: value["reason"].as_str().unwrap().into(),
        before: value["before"].as_i64().unwrap(),
        after: value["after"].as_i64().unwrap(),
        previous: hash(&value["previous"]),
        hash: hash(&value["hash"]),
    }
}

#[test]
fn the_ledger_is_a_chain_anyone_can_verify_and_outlives_the_counter() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start_in(dir.path());
    server.send("PUT", "/api/v1/counters/a%2Fb", r#"{"value":10,"reason":"import ✓"}"#);
    server.send("POST", "/api/v1/counters/a%2Fb/increment", "");
    server.send("POST", "/api/v1/counters/a%2Fb/adjust", r#"{"delta":-3,"reason":"bots"}"#);
    server.send("DELETE", "/api/v1/counters/a%2Fb?reason=gone+for%20good", "");
    server.send("POST", "/api/v1/counters/a%2Fb/increment", "");
    server.send("POST", "/api/v1/counters/a%2Fb/reset", r#"{"reason":"anew"}"#);
    server.kill();

    let server = Server::start_in(dir.path());
    let mut entries = Vec::new();
    let mut after = Some(0);
    while let Some(from) = after {
        let page = server.send("GET", &format!("/api/v1/counters/a%2Fb/ledger?after={from}&limit=3"), "").json;
        assert_eq!(page["key"], "a/b");
        entries.extend(page["entries"].as_array().unwrap().iter().map(entry));
        after = page["next"].as_u64();
        let more = server.send("GET", &format!("/api/v1/counters/a%2Fb/ledger?after={}", entries.len()), "").json;
        assert_eq!(
            after.is_some(),
            !more["entries"].as_array().unwrap().is_empty(),
            "there is a next page if it has entries"
        );
    }
    let mut previous = CHAIN_START;
    for (seq, entry) in (1..).zip(&entries) {
        assert_eq!((entry.seq, entry.previous), (seq, previous));
        assert_eq!(entry.hash, entry.expected_hash(KeyRef::new(b"a/b").unwrap()));
        assert_eq!(&*entry.actor, "anonymous@127.0.0.1");
        previous = entry.hash;
    }
    let recorded: Vec<_> = entries.iter().map(|entry| (entry.before, entry.after, &*entry.reason)).collect();
    assert_eq!(recorded, [(0, 10, "import ✓"), (11, 8, "bots"), (8, 0, "gone for good"), (1, 0, "anew")]);
}

#[test]
fn the_last_page_of_a_ledger_has_no_next_even_if_it_is_full() {
    let server = Server::start();
    for value in 0..1_001 {
        server.send("PUT", "/api/v1/counters/a", &format!(r#"{{"value":{value},"reason":"r"}}"#));
    }
    for (limit, entries, next) in [(1_000, 1_000, json!(1_000)), (7, 7, json!(7)), (100, 100, json!(100))] {
        let page = server.send("GET", &format!("/api/v1/counters/a/ledger?limit={limit}"), "").json;
        assert_eq!((page["entries"].as_array().unwrap().len(), &page["next"]), (entries, &next));
    }
    let last = server.send("GET", "/api/v1/counters/a/ledger?after=994&limit=7", "").json;
    assert_eq!((last["entries"].as_array().unwrap().len(), &last["next"]), (7, &json!(null)));
}

#[test]
fn a_counter_without_corrections_has_an_empty_ledger() {
    let server = Server::start();
    let ledger = server.send("GET", "/api/v1/counters/a/ledger", "").json;
    assert_eq!(ledger, json!({"key": "a", "entries": [], "next": null}));
}

fn listed(server: &Server, query: &str) -> (Vec<String>, Option<String>) {
    let page = server.send("GET", &format!("/api/v1/counters{query}"), "");
    assert_eq!(page.status, 200, "{}", page.text);
    let keys = page.json["counters"].as_array().unwrap().iter().map(|c| c["key"].as_str().unwrap().to_owned());
    (keys.collect(), page.json["next_cursor"].as_str().map(str::to_owned))
}

#[test]
fn a_listing_has_every_counter_once_in_key_order() {
    let server = Server::start();
    let items: Vec<_> = (0..250).map(|i| json!({"key": format!("likes:{i:03}")})).collect();
    let mut items: Vec<Value> = items.into_iter().rev().collect();
    items.extend([json!({"key": "views:1"}), json!({"key": "a b"}), json!({"key": "é"})]);
    server.send("POST", "/api/v1/counters/batch-increment", &json!({ "increments": items }).to_string());

    let mut all = Vec::new();
    let mut query = "?limit=100&prefix=likes:".to_owned();
    loop {
        let (keys, next) = listed(&server, &query);
        all.extend(keys);
        match next {
            Some(cursor) => query = format!("?limit=100&prefix=likes:&cursor={cursor}"),
            None => break,
        }
    }
    assert_eq!(all, (0..250).map(|i| format!("likes:{i:03}")).collect::<Vec<_>>());
    assert_eq!(listed(&server, "?prefix=a+b").0, ["a b"]);
    assert_eq!(listed(&server, "?prefix=%C3%A9").0, ["é"]);
    assert_eq!(listed(&server, "?prefix=none"), (vec![], None));
    let (everything, next) = listed(&server, "?limit=1000");
    assert_eq!((everything.len(), next), (253, None));
    assert_eq!(listed(&server, "").0.len(), 100, "the default page size is 100");
    let (exactly, next) = listed(&server, "?limit=250&prefix=likes:");
    assert_eq!((exactly.len(), next), (250, None), "a full last page is the last");
}

#[test]
fn a_listed_counter_is_a_complete_reading() {
    let server = Server::start();
    server.send("POST", "/api/v1/counters/a/increment", r#"{"amount":4}"#);
    let listed = &server.send("GET", "/api/v1/counters?prefix=a", "").json["counters"][0];
    let read = server.send("GET", "/api/v1/counters/a", "").json;
    for field in ["key", "value", "exists", "exact", "created_at", "updated_at", "shards", "consistency"] {
        assert_eq!(listed[field], read[field], "{field}");
    }
}
