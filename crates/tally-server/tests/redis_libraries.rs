//! Redis libraries of other languages, used as their manuals show: they set, count, expire, watch and select a
//! database, and none of them silently does anything else. The programs are in `tests/clients`; `make redis-libraries`
//! builds them.
//!
//! redis-py is in `redis_clients.rs`.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::disallowed_methods)]

mod harness;

use std::path::{Path, PathBuf};
use std::process::Command;

use harness::{Ran, Server, run};

/// What every program does, in this order.
const CHECKS: [&str; 7] =
    ["counts", "sets", "expires", "pipelines", "transactions", "optimistictransactions", "otherdatabases"];

/// Where `make redis-libraries` puts the library.
fn installed(name: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap().join(name);
    assert!(dir.exists(), "no {}: run `make redis-libraries`", dir.display());
    dir
}

fn program(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients").join(name)
}

/// Runs a program against a new server: it must make all its checks and print nothing to standard error.
fn check_all(command: &mut Command, args: &[&str]) {
    let server = Server::start();
    let port = server.redis.rsplit(':').next().unwrap();
    let Ran { code, out, err } = run(command.arg(port).args(args));
    assert_eq!((code, err.as_str()), (0, ""), "{command:?} said {out}");
    let checks: Vec<String> =
        out.lines().map(|line| line.trim_start_matches("ok ").replace('_', "").to_lowercase()).collect();
    assert_eq!(checks, CHECKS, "{out}");
}

#[test]
fn go_redis_counts_and_watches_and_is_refused_another_database() {
    for version in ["2", "3"] {
        check_all(&mut Command::new(installed("go-redis/client")), &[version]);
    }
}

#[test]
fn ioredis_counts_and_watches_and_is_refused_another_database() {
    check_all(Command::new("node").arg(program("ioredis.mjs")).arg(installed("ioredis")), &[]);
}

#[test]
fn jedis_counts_and_watches_and_is_refused_another_database() {
    let jars = installed("jedis");
    let path = std::env::join_paths([jars.join("*"), jars]).unwrap();
    for version in ["2", "3"] {
        let mut java = Command::new("java");
        java.args(["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp"]).arg(&path).arg("Client");
        check_all(&mut java, &[version]);
    }
}

#[test]
fn phpredis_counts_and_watches_and_is_refused_another_database() {
    check_all(Command::new("php").arg(program("phpredis.php")), &[]);
}
