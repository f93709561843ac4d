//! The page at `/docs` in a real browser: every call works as it is prefilled. `make api-tools` installs what this needs.
//!
//! The screenshots are in `target/tmp/docs-page`.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::disallowed_methods)]

mod harness;

use std::path::{Path, PathBuf};
use std::process::Command;

use harness::api_tools::api_tools;
use harness::{Ran, Server, run};
use serde_json::{Value, json};

/// The browser. Its driver wants a path, not a name.
fn chromium() -> PathBuf {
    let dirs = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&dirs).map(|dir| dir.join("chromium")).find(|path| path.is_file());
    found.unwrap_or_else(|| panic!("chromium is not installed: run `make api-tools`"))
}

/// Executes every call in a window of this size and returns what the page showed.
fn execute_all(server: &Server, name: &str, width: u32, height: u32) -> Value {
    let screenshots = Path::new(env!("CARGO_TARGET_TMPDIR")).join("docs-page");
    std::fs::create_dir_all(&screenshots).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients/docs_page.mjs");
    let screenshot = screenshots.join(name).with_extension("png");
    let _ = std::fs::remove_file(&screenshot);
    let mut command = Command::new("node");
    command.arg(script).arg(api_tools()).arg(chromium()).arg(format!("{}/docs/", server.base));
    let Ran { code, out, err } = run(command.args([width.to_string(), height.to_string()]).arg(&screenshot));
    assert_eq!(code, 0, "{out}{err}");
    assert!(std::fs::metadata(&screenshot).unwrap().len() > 10_000, "no screenshot");
    serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}{err}"))
}

fn assert_every_call_works(name: &str, width: u32, height: u32) {
    let server = Server::start();
    let seen = execute_all(&server, name, width, height);
    assert_eq!(seen["errors"], json!([]), "the console has no errors");
    assert_eq!(seen["hosts"], json!([server.base.strip_prefix("http://").unwrap()]), "nothing comes from elsewhere");
    assert_eq!((&seen["title"], &seen["hasExploreBox"]), (&json!("Tally: HTTP API"), &json!(false)));
    let api = server.send("GET", "/openapi.json", "").json;
    let described: usize = api["paths"].as_object().unwrap().values().map(|path| path.as_object().unwrap().len()).sum();
    let calls = seen["calls"].as_array().unwrap();
    assert_eq!(calls.len(), described, "every call was executed");
    for call in calls {
        let what = format!("{} {}: {}", call["method"], call["path"], call["body"]);
        assert_eq!(call["status"], "200", "{what}");
        assert!(call["requestId"].is_null() || call["requestId"] == "", "{what}: the request id is prefilled");
        assert!(call["width"].as_u64().unwrap() <= u64::from(width), "{what}: {} wide", call["width"]);
    }
    let count_by = |method: &str| calls.iter().filter(|call| call["method"] == method).count();
    assert!(count_by("POST") > 5 && count_by("PUT") == 1 && count_by("DELETE") == 1);
    // The calls did what the page said.
    assert_eq!(
        (server.value("likes:post:42"), server.value("likes:post:43"), server.value("likes:post:7")),
        (0, 1, 12)
    );
    let ledger = server.send("GET", "/api/v1/counters/likes:post:42/ledger", "").json;
    assert_eq!(ledger["entries"].as_array().unwrap().len(), 4, "set, delete, adjust and reset: {ledger}");
}

#[test]
fn every_call_works_as_it_is_prefilled_on_a_desktop() {
    assert_every_call_works("desktop", 1280, 900);
}

#[test]
fn every_call_works_as_it_is_prefilled_on_a_phone() {
    assert_every_call_works("phone", 390, 844);
}
