//! Moving counters between servers with the real commands.

use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use serde_json::{Value, json};

use super::resp::{Redis, request};
use super::{Ran, Server, run, tally};

/// Exports to a file in this directory.
pub fn export(server: &Server, dir: &Path, name: &str) -> PathBuf {
    let file = dir.join(name);
    let ran = run(tally().args(["export", "--server", &server.base, "-o"]).arg(&file));
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(ran.err.contains("exported"), "{}", ran.err);
    file
}

/// Runs an import.
pub fn import(server: &Server, file: &Path, flags: &[&str]) -> Ran {
    run(tally().args(["import", "-o", "json", "--server", &server.base]).args(flags).arg(file))
}

/// Starts an import that reads its standard input.
pub fn start_import(server: &Server) -> Child {
    let mut command = tally();
    command.args(["import", "--server", &server.base, "-"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// An import that must succeed, and its report.
pub fn import_all(server: &Server, file: &Path, flags: &[&str]) -> Value {
    let ran = import(server, file, flags);
    assert_eq!(ran.code, 0, "{} {}", ran.out, ran.err);
    serde_json::from_str(&ran.out).unwrap()
}

/// The lines of an export that have counters and their ledgers, in order.
pub fn counter_lines(file: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(file).unwrap();
    text.lines().filter(|line| line.starts_with("{\"key")).map(str::to_owned).collect()
}

/// Counters of every kind: counted, corrected, expiring, deleted, with a key that is not text, and with a long ledger.
pub fn fill(server: &Server) {
    let increments: Vec<Value> =
        (0..1_200).map(|number| json!({ "key": format!("many:{number}"), "amount": number + 1 })).collect();
    let batch = json!({ "increments": increments }).to_string();
    assert_eq!(server.send("POST", "/api/v1/counters/batch-increment", &batch).json["failed"], 0);
    let client = server.client();
    let must = |method: &str, path: &str, body: Value| {
        let answer = client.send(method, &format!("/api/v1/counters/{path}"), &[], &body.to_string());
        assert_eq!(answer.status, 200, "{}", answer.text);
    };
    must("POST", "stock/decrement", json!({ "amount": 3 }));
    must("PUT", "stock", json!({ "value": 40, "reason": "delivery \u{e9} \u{1}" }));
    must("POST", "stock/adjust", json!({ "delta": -2, "reason": "broken" }));
    must("PUT", "gone", json!({ "value": 1, "reason": "opened" }));
    assert_eq!(server.send("DELETE", "/api/v1/counters/gone?reason=closed", "").status, 200);
    // Longer than one item of an export holds.
    let reason = "x".repeat(1_000);
    for number in 0..300 {
        must("PUT", "audited", json!({ "value": number, "reason": reason }));
    }
    let mut redis = Redis::connect(&server.redis);
    redis.call(&["SET", "session", "5", "EX", "86400"]);
    assert!(redis.send(&request(&[&b"INCR"[..], b"\xff\x00"])));
    redis.read().unwrap();
}
