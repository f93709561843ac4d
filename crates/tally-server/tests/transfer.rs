//! `tally export` and `tally import` between embedded servers.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::disallowed_methods)]

mod harness;

use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use harness::transfer::{counter_lines, export, fill, import, import_all, start_import};
use harness::{Server, run, tally, wait_for};
use serde_json::{Value, json};

fn increment(server: &Server, key: &str, amount: i64, id: &str) -> Value {
    let body = json!({ "amount": amount, "request_id": id }).to_string();
    let answer = server.send("POST", &format!("/api/v1/counters/{key}/increment"), &body);
    assert_eq!(answer.status, 200, "{}", answer.text);
    answer.json
}

#[test]
fn everything_moves_and_importing_again_changes_nothing() {
    let (source, destination) = (Server::start(), Server::start());
    let dir = tempfile::tempdir().unwrap();
    fill(&source);
    increment(&source, "orders", 7, "order-1");
    let file = export(&source, dir.path(), "source");
    let report = import_all(&destination, &file, &[]);
    assert_eq!((&report["counters"], &report["refused"]), (&json!(1_206), &json!(0)), "{report}");
    assert_eq!((&report["ledger_entries"], &report["request_ids"]), (&json!(305), &json!(1)), "{report}");
    assert_eq!(report["unchanged"], 0);
    // The same bytes: values, statistics, times, expiries, ledgers and request ids.
    let moved = export(&destination, dir.path(), "destination");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), std::fs::read_to_string(&moved).unwrap());
    for flags in [&[][..], &["--replace"]] {
        let again = import_all(&destination, &file, flags);
        assert_eq!((&again["imported"], &again["refused"]), (&json!(0), &json!(0)), "{again}");
    }
    assert_eq!(counter_lines(&export(&destination, dir.path(), "again")), counter_lines(&file));
    // A retry of a request that the source answered.
    let retry = increment(&destination, "orders", 7, "order-1");
    assert_eq!((&retry["value"], &retry["duplicate"]), (&json!(7), &json!(true)), "{retry}");
    // The ledger continues where it was.
    let set = json!({ "value": 1, "reason": "after the move" }).to_string();
    assert_eq!(destination.send("PUT", "/api/v1/counters/gone", &set).status, 200);
    let ledger = destination.send("GET", "/api/v1/counters/gone/ledger", "").json;
    assert_eq!(ledger["entries"].as_array().unwrap().len(), 3, "{ledger}");
}

#[test]
fn an_import_survives_a_restart() {
    let source = Server::start();
    let dir = tempfile::tempdir().unwrap();
    fill(&source);
    let file = export(&source, dir.path(), "source");
    let data = dir.path().join("data");
    let destination = Server::start_in(&data);
    import_all(&destination, &file, &[]);
    // Once from the journal, once from the store.
    destination.kill();
    let mut destination = Server::start_in(&data);
    assert_eq!(counter_lines(&export(&destination, dir.path(), "replayed")), counter_lines(&file));
    assert!(destination.terminate().success(), "{}", destination.log());
    let destination = Server::start_in(&data);
    assert_eq!(counter_lines(&export(&destination, dir.path(), "stored")), counter_lines(&file));
}

#[test]
fn an_unfinished_or_damaged_file_is_refused_and_nothing_is_imported() {
    let (source, destination) = (Server::start(), Server::start());
    let dir = tempfile::tempdir().unwrap();
    increment(&source, "a", 1, "1");
    increment(&source, "b", 2, "2");
    let whole = std::fs::read(export(&source, dir.path(), "whole")).unwrap();
    let lines: Vec<&[u8]> = whole.split_inclusive(|byte| *byte == b'\n').collect();
    let damaged = String::from_utf8(whole.clone()).unwrap().replace("\"min\":0", "\"min\":1").into_bytes();
    for (content, message) in [
        (whole[..whole.len() - 1].to_vec(), "unfinished"),
        (lines[..3].concat(), "unfinished"),
        (lines[..1].concat(), "unfinished"),
        (damaged, "damaged"),
        ([&lines[..2], &lines[3..]].concat().concat(), "damaged"),
        (b"{\"tally_export\":7}\n".to_vec(), "Upgrade Tally"),
        (b"something else\n".to_vec(), "not an export"),
        (Vec::new(), "not an export"),
    ] {
        let file = dir.path().join("broken");
        std::fs::write(&file, content).unwrap();
        let ran = import(&destination, &file, &[]);
        assert_eq!(ran.code, 65, "{message}: {} {}", ran.out, ran.err);
        assert!(ran.err.contains(message), "{message}: {}", ran.err);
    }
    let listed = destination.send("GET", "/api/v1/counters", "").json;
    assert_eq!(listed["counters"], json!([]));
    let missing = import(&destination, &dir.path().join("no-such-file"), &[]);
    assert_eq!(missing.code, 1, "{}", missing.err);
}

#[test]
fn counters_that_differ_are_refused_and_named_unless_they_are_to_be_replaced() {
    let (source, destination) = (Server::start(), Server::start());
    let dir = tempfile::tempdir().unwrap();
    increment(&source, "likes:a", 5, "1");
    increment(&source, "likes:b", 6, "2");
    increment(&destination, "likes:a", 1, "3");
    let file = export(&source, dir.path(), "source");
    let refused = import(&destination, &file, &[]);
    let report: Value = serde_json::from_str(&refused.out).unwrap();
    assert_eq!((refused.code, &report["refused"]), (1, &json!(1)), "{report}");
    assert_eq!(report["first_refused"][0]["key"], "likes:a", "{report}");
    assert_eq!((destination.value("likes:a"), destination.value("likes:b")), (1, 6));
    let table = run(tally().args(["import", "--server", &destination.base]).arg(&file));
    assert_eq!(table.code, 1);
    assert!(table.err.contains("likes:a: the counter exists with the value 1"), "{}", table.err);
    assert!(table.err.contains("--replace"), "{}", table.err);
    import_all(&destination, &file, &["--replace"]);
    assert_eq!(counter_lines(&export(&destination, dir.path(), "replaced")), counter_lines(&file));
    // A ledger that has diverged is never rewritten.
    for (server, reason) in [(&source, "here"), (&destination, "there")] {
        let set = json!({ "value": 1, "reason": reason }).to_string();
        assert_eq!(server.send("PUT", "/api/v1/counters/likes:a", &set).status, 200);
    }
    let file = export(&source, dir.path(), "diverged");
    let diverged = import(&destination, &file, &["--replace"]);
    assert_eq!(diverged.code, 1, "{}", diverged.out);
    assert!(diverged.out.contains("ledger"), "{}", diverged.out);
    let ledger = destination.send("GET", "/api/v1/counters/likes:a/ledger", "").json;
    assert_eq!(ledger["entries"][0]["reason"], "there");
}

#[test]
fn a_move_under_load_ends_with_equal_totals_after_the_second_pass() {
    let (source, destination) = (Server::start(), Server::start());
    let dir = tempfile::tempdir().unwrap();
    fill(&source);
    let (stop, sent) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for writer in 0..4 {
            let (client, stop, sent) = (source.client(), &stop, &sent);
            scope.spawn(move || {
                for number in 0.. {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    // Counters that come and go, grow, and are corrected: the ledger says what the value is.
                    let set = json!({ "value": number, "reason": "load" }).to_string();
                    client.send("PUT", &format!("/api/v1/counters/set:{writer}"), &[], &set);
                    let id = json!({ "request_id": format!("{writer}-{number}") }).to_string();
                    client.send("POST", &format!("/api/v1/counters/load:{}/increment", number % 50), &[], &id);
                    client.send("POST", &format!("/api/v1/counters/new:{writer}:{number}/increment"), &[], "");
                    client.send("DELETE", &format!("/api/v1/counters/new:{writer}:{}", number / 2), &[], "");
                    sent.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let more = |count: u64| {
            let wanted = sent.load(Ordering::Relaxed) + count;
            wait_for("load", || {
                let sent = sent.load(Ordering::Relaxed);
                if sent >= wanted { Ok(()) } else { Err(sent) }
            });
        };
        more(50);
        let first = export(&source, dir.path(), "first");
        more(50);
        import_all(&destination, &first, &[]);
        stop.store(true, Ordering::Relaxed);
        // Each line is of one moment: a value that was only ever set is the last entry's.
        let set = counter_lines(&first).into_iter().filter(|line| line.contains("\"key\":\"set:"));
        for line in set {
            let line: Value = serde_json::from_str(&line).unwrap();
            if line["counter"].is_object() {
                let last = line["ledger"].as_array().unwrap().last().unwrap();
                assert_eq!(line["counter"]["value"], last["after"], "{line}");
            }
        }
    });
    let last = export(&source, dir.path(), "last");
    let report = import_all(&destination, &last, &["--replace"]);
    assert!(report["imported"].as_u64() > Some(0) && report["unchanged"].as_u64() > Some(0), "{report}");
    assert_eq!(counter_lines(&export(&destination, dir.path(), "moved")), counter_lines(&last));
}

#[test]
fn an_import_into_a_server_that_is_killed_can_be_run_again() {
    let source = Server::start();
    let dir = tempfile::tempdir().unwrap();
    fill(&source);
    fill(&source);
    let file = export(&source, dir.path(), "source");
    let data = dir.path().join("data");
    let destination = Server::start_in(&data);
    let mut importing = start_import(&destination);
    let mut input = importing.stdin.take().unwrap();
    let text = std::fs::read(&file).unwrap();
    let (first, rest) = text.split_at(text.len() * 9 / 10);
    input.write_all(first).unwrap();
    // The first counter has a ledger that takes several calls, so this is in the middle of it.
    wait_for("the first entries of a ledger", || {
        let ledger = destination.send("GET", "/api/v1/counters/audited/ledger?limit=1", "").json;
        if ledger["entries"] == json!([]) { Err(()) } else { Ok(()) }
    });
    destination.kill();
    // The import may have ended already.
    let _ = input.write_all(rest);
    drop(input);
    let ended = importing.wait_with_output().unwrap();
    assert!(matches!(ended.status.code(), Some(1 | 69)), "{ended:?}");
    let destination = Server::start_in(&data);
    import_all(&destination, &file, &[]);
    assert_eq!(counter_lines(&export(&destination, dir.path(), "moved")), counter_lines(&file));
}

#[test]
fn a_pipe_that_ends_early_is_an_error() {
    let (source, destination) = (Server::start(), Server::start());
    let dir = tempfile::tempdir().unwrap();
    increment(&source, "a", 1, "1");
    let file = export(&source, dir.path(), "source");
    let text = std::fs::read(&file).unwrap();
    let mut importing = start_import(&destination);
    importing.stdin.take().unwrap().write_all(&text[..text.len() - 20]).unwrap();
    let ended = importing.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(65), "{ended:?}");
    assert!(String::from_utf8_lossy(&ended.stderr).contains("unfinished"), "{ended:?}");
    // To standard output and from standard input.
    let piped = run(std::process::Command::new("sh").arg("-c").arg(format!(
        "{0} export --server {1} | {0} import --server {2} -",
        env!("CARGO_BIN_EXE_tally"),
        source.base,
        destination.base
    )));
    assert_eq!(piped.code, 0, "{}", piped.err);
    assert_eq!(destination.value("a"), 1);
}

#[test]
fn an_item_that_is_not_one_is_refused_on_its_own() {
    let server = Server::start();
    let counter = json!({
        "value": 2, "increments": "2", "decrements": "0", "min": 0, "max": 2, "created_at_ms": 1, "updated_at_ms": 2,
        "rates": [0, 0, 0, 0, 0, 0],
    });
    let items = json!([{ "key": "a", "counter": counter }, { "key": "" }, { "nonsense": 1 }, 7, { "request": "00" }]);
    let answer = server.send("POST", "/api/v1/import", &json!({ "items": items }).to_string());
    assert_eq!(answer.status, 200, "{}", answer.text);
    assert_eq!((&answer.json["imported"], &answer.json["unchanged"]), (&json!(1), &json!(0)));
    let failed: Vec<u64> =
        answer.json["failed"].as_array().unwrap().iter().map(|item| item["index"].as_u64().unwrap()).collect();
    assert_eq!(failed, [1, 2, 3, 4]);
    assert_eq!(server.value("a"), 2);
    for (body, status) in [
        ("{}", 400),
        (r#"{"items":[]}"#, 400),
        (r#"{"items":[],"typo":1}"#, 400),
        (&json!({ "items": vec![json!({}); 1_001] }).to_string(), 413),
    ] {
        assert_eq!(server.send("POST", "/api/v1/import", body).status, status, "{}", &body[..body.len().min(80)]);
    }
    for query in ["cursor=x", "cursor=k6", "limit=0", "limit=1001", "typo=1"] {
        assert_eq!(server.send("GET", &format!("/api/v1/export?{query}"), "").status, 400, "{query}");
    }
}
