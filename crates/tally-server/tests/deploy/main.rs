//! The files in `deploy/`, each checked with its own linter or validator. `make deploy-tools` installs these tools.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::disallowed_methods)]

mod containers;
mod dist;
#[path = "../harness/mod.rs"]
mod harness;
mod monitoring;
mod nginx;
mod systemd;

use std::path::{Path, PathBuf};
use std::process::Command;

use harness::{Ran, run};
use serde_json::Value;

/// A file of `deploy/`.
fn deployed(path: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy").join(path);
    assert!(path.exists(), "{} is gone", path.display());
    path
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Where `make deploy-tools` puts Python packages.
fn python_packages() -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap().join("deploy-tools");
    assert!(dir.join("yaml").is_dir(), "no tools in {}: run `make deploy-tools`", dir.display());
    dir
}

/// `python3` with these packages.
fn python(args: &[&str]) -> Command {
    let mut command = Command::new("python3");
    command.arg("-B").args(args).env("PYTHONPATH", python_packages());
    command
}

/// Runs a tool that must succeed, and returns all it printed.
fn succeed(command: &mut Command) -> String {
    let Ran { code, out, err } = run(command);
    assert_eq!(code, 0, "{command:?}\n{out}{err}");
    out + &err
}

/// The documents of a YAML file.
fn yaml(path: &Path) -> Vec<Value> {
    yaml_files(&[path.to_owned()])
}

/// The documents of several, read at once because Python starts slowly.
fn yaml_files(paths: &[PathBuf]) -> Vec<Value> {
    let script = "import json, sys, yaml; \
                  print(json.dumps([document for path in sys.argv[1:] for document in yaml.safe_load_all(open(path))]))";
    let Ran { code, out, err } = run(python(&["-c", script]).args(paths));
    assert_eq!(code, 0, "{paths:?}: {err}");
    serde_json::from_str(&out).unwrap()
}

/// Addresses of services at which nothing listens.
const CLOSED: [(&str, &str); 3] = [
    ("TALLY_CLUSTER_KAFKA", "127.0.0.1:1"),
    ("TALLY_CLUSTER_REDIS", "127.0.0.1:1"),
    ("TALLY_CLUSTER_POSTGRES", "postgres://tally@127.0.0.1:1/tally"),
];

/// Asserts that a command of a cluster gets past its settings, with known variables only, and fails to reach the services.
fn assert_settings_are_valid(command: &mut Command) {
    let Ran { code, err, .. } = run(command.envs(CLOSED));
    assert_eq!(code, 1, "{command:?}\n{err}");
    assert!(err.contains("127.0.0.1:1"), "{command:?}\n{err}");
    assert!(!err.contains("is not a setting"), "{command:?}\n{err}");
}
