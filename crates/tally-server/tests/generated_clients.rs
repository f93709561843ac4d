//! The description at `/openapi.json` as other tools use it: a linter, and client generators. `make api-tools` installs
//! what this needs.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::disallowed_methods)]

mod harness;

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use harness::api_tools::api_tools;
use harness::{Ran, Server, run, write};
use serde_json::{Value, json};
use tempfile::TempDir;

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients").join(name)
}

/// A tool from npm.
fn tool(name: &str) -> Command {
    Command::new(api_tools().join("node_modules/.bin").join(name))
}

/// Runs a command that must succeed, and returns its output.
fn succeed(command: &mut Command) -> String {
    let Ran { code, out, err } = run(command);
    assert_eq!(code, 0, "{command:?}\n{out}{err}");
    out
}

/// A directory with the description of this server in `openapi.json`.
fn described(server: &Server) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path().join("openapi.json"), &server.send("GET", "/openapi.json", "").text);
    dir
}

fn lint(dir: &Path, api: &Value) -> Ran {
    write(dir.join("openapi.json"), &api.to_string());
    let mut redocly = tool("redocly");
    redocly.args(["lint", "openapi.json", "--max-problems=1000", "--format=json"]).current_dir(dir);
    // Otherwise it would send telemetry and check for updates.
    run(redocly.env("REDOCLY_TELEMETRY", "off").env("REDOCLY_SUPPRESS_UPDATE_NOTICE", "true"))
}

#[test]
fn the_linter_has_nothing_to_say() {
    let server = Server::start();
    let dir = described(&server);
    let mut api = server.send("GET", "/openapi.json", "").json;
    let clean = lint(dir.path(), &api);
    let report: Value = serde_json::from_str(&clean.out).unwrap_or_else(|_| panic!("{}{}", clean.out, clean.err));
    assert_eq!((clean.code, &report["problems"]), (0, &json!([])), "{}", clean.err);
    // The check can fail.
    api.as_object_mut().unwrap().remove("servers");
    assert_ne!(lint(dir.path(), &api).code, 0);
}

#[test]
fn a_generated_python_client_counts_reads_and_understands_a_refusal() {
    let server = Server::start();
    let dir = described(&server);
    let packages = api_tools().join("python");
    let mut generate = Command::new("python3");
    generate.args(["-m", "openapi_python_client", "generate", "--path", "openapi.json", "--fail-on-warning"]);
    // No metadata: only the package. Formatting it is left out, because nobody reads it.
    generate.args(["--meta", "none", "--output-path", "tally_client", "--config"]);
    generate.arg(write(dir.path().join("config.json"), r#"{"post_hooks": []}"#));
    succeed(generate.current_dir(dir.path()).env("PYTHONPATH", &packages));
    let paths = std::env::join_paths([dir.path(), &packages]).unwrap();
    let mut client = Command::new("python3");
    client.arg("-B").arg(script("generated_python.py")).arg(&server.base).env("PYTHONPATH", paths);
    assert_eq!(succeed(&mut client), "ok\n");
    assert_eq!(server.value("likes:post:43"), 1);
}

#[test]
fn a_generated_typescript_client_counts_reads_and_understands_a_refusal() {
    let server = Server::start();
    let dir = described(&server);
    symlink(api_tools().join("node_modules"), dir.path().join("node_modules")).unwrap();
    succeed(tool("openapi-typescript").args(["openapi.json", "--output", "tally.d.ts"]).current_dir(dir.path()));
    std::fs::copy(script("generated_typescript.ts"), dir.path().join("client.ts")).unwrap();
    write(dir.path().join("package.json"), r#"{"type": "module"}"#);
    let options =
        json!({ "strict": true, "target": "es2022", "lib": ["es2022", "dom"], "module": "nodenext", "types": [] });
    write(dir.path().join("tsconfig.json"), &json!({ "compilerOptions": options, "files": ["client.ts"] }).to_string());
    succeed(tool("tsc").current_dir(dir.path()));
    let mut client = Command::new("node");
    assert_eq!(succeed(client.arg("client.js").arg(&server.base).current_dir(dir.path())), "ok\n");
    // The compiler enforces the description.
    let source = std::fs::read_to_string(dir.path().join("client.ts")).unwrap();
    write(dir.path().join("client.ts"), &source.replace("on_bound: \"refuse\"", "on_bound: \"wait\""));
    assert_ne!(run(tool("tsc").current_dir(dir.path())).code, 0, "a value that is not in the description compiles");
}
