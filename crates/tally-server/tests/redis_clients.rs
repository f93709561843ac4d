//! Real Redis clients, unmodified: redis-cli, redis-benchmark and redis-py. `make test` installs them.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::disallowed_methods)]

mod harness;

use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use harness::resp::request;
use harness::{Ran, Server, run};

/// The port of the Redis protocol.
fn port(server: &Server) -> &str {
    server.redis.rsplit(':').next().unwrap()
}

/// Runs a client to completion. It must succeed and print nothing to standard error.
fn run_cleanly(command: &mut Command) -> String {
    let Ran { code, out, err } = run(command);
    assert_eq!((code, err.as_str()), (0, ""), "{command:?} said {out}");
    out
}

fn cli(server: &Server, args: &[&str]) -> String {
    run_cleanly(Command::new("redis-cli").args(["-p", port(server)]).args(args))
}

/// Runs a program with this input and returns its output.
fn run_with_input(command: &mut Command, input: &[u8]) -> String {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{command:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn redis_cli_works_in_both_versions_of_the_protocol() {
    let server = Server::start();
    // redis-cli prints maps of version 3 as lines of name and value.
    for (version, between) in [("-2", "\n"), ("-3", " ")] {
        let cli = |args: &[&str]| cli(&server, &[&[version], args].concat());
        cli(&["FLUSHALL"]);
        assert_eq!(cli(&["INCR", "a"]), "1\n");
        assert_eq!(cli(&["INCRBY", "a", "41"]), "42\n");
        assert_eq!(cli(&["--no-raw", "MGET", "a", "missing"]), "1) \"42\"\n2) (nil)\n");
        assert!(cli(&["HELLO"]).contains(&format!("proto{between}{}\n", &version[1..])));
        assert!(cli(&["INFO"]).contains("db0:keys=1,"));
        assert!(cli(&["INFO", "server"]).contains("redis_version:7."));
        assert!(cli(&["CONFIG", "GET", "maxclients"]).starts_with("maxclients"));
        assert!(cli(&["CLIENT", "LIST"]).contains(&format!(" resp={}", &version[1..])));
        assert!(cli(&["CLIENT", "ID"]).trim().parse::<u64>().unwrap() > 0);
        assert_eq!(cli(&["CLIENT", "SETNAME", "me"]), "OK\n");
        assert_eq!(cli(&["CLIENT", "SETINFO", "LIB-NAME", "mine"]), "OK\n");
        assert!(cli(&["COMMAND", "COUNT"]).trim().parse::<u64>().unwrap() > 40);
        assert!(cli(&["COMMAND", "INFO", "incr"]).starts_with("incr\n2\nwrite\n"));
        assert!(cli(&["COMMAND", "DOCS", "incr"]).contains("Increments a counter by one."));
        let transaction = run_with_input(
            Command::new("redis-cli").args(["-p", port(&server), version]),
            b"MULTI\nINCR a\nGET a\nDEL a\nEXEC\n",
        );
        assert_eq!(transaction, "OK\nQUEUED\nQUEUED\nQUEUED\n43\n43\n1\n");
    }
}

#[test]
fn redis_cli_mass_insertion_works_and_scan_lists_every_key() {
    let server = Server::start();
    let input: Vec<u8> = (0..20_000).flat_map(|at| request(&["INCRBY", &format!("mass:{at}"), "3"])).collect();
    let said = run_with_input(Command::new("redis-cli").args(["-p", port(&server), "--pipe"]), &input);
    assert!(said.contains("errors: 0, replies: 20000"), "{said}");
    let listed = cli(&server, &["--scan", "--pattern", "mass:*"]);
    let mut keys: Vec<&str> = listed.lines().collect();
    keys.sort_unstable();
    keys.dedup();
    assert_eq!((listed.lines().count(), keys.len()), (20_000, 20_000));
}

/// Runs a command in a terminal of typical width.
fn on_a_terminal(command: &str) -> Child {
    let mut script = Command::new("script");
    script.args(["-qec", &format!("stty cols 100 rows 40 -echo; {command}"), "/dev/null"]);
    script.env("TERM", "xterm").env("HOME", env!("CARGO_TARGET_TMPDIR"));
    script.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
}

/// Reads until `text` has arrived and returns everything read.
fn read_until(from: &mut impl Read, text: &str) -> String {
    let mut seen = Vec::new();
    while !String::from_utf8_lossy(&seen).contains(text) {
        let mut byte = [0];
        let read = from.read(&mut byte).unwrap();
        assert_ne!(read, 0, "no {text:?} in {:?}", String::from_utf8_lossy(&seen));
        seen.extend(byte);
    }
    String::from_utf8_lossy(&seen).into_owned()
}

#[test]
fn redis_cli_shows_help_and_hints() {
    let server = Server::start();
    let mut child = on_a_terminal(&format!("redis-cli -p {}", port(&server)));
    let (mut keys, mut screen) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
    let prompt = format!("{}> ", server.redis);
    read_until(&mut screen, &prompt);
    keys.write_all(b"INCR typed\r").unwrap();
    read_until(&mut screen, "(integer) 1");
    read_until(&mut screen, &prompt);
    keys.write_all(b"HELP INCRBY\r").unwrap();
    let help = read_until(&mut screen, "group:");
    assert!(help.contains("Increments a counter by a number."), "{help}");
    read_until(&mut screen, &prompt);
    // The hint appears before the line is complete.
    keys.write_all(b"INCRBY ").unwrap();
    read_until(&mut screen, "key increment");
    keys.write_all(b"typed 4\r").unwrap();
    read_until(&mut screen, "(integer) 5");
    keys.write_all(b"quit\r").unwrap();
    drop(keys);
    assert!(child.wait().unwrap().success());
}

#[test]
fn redis_cli_shows_live_statistics() {
    let server = Server::start();
    (0..5).for_each(|at| drop(cli(&server, &["INCR", &format!("live:{at}")])));
    let mut child = on_a_terminal(&format!("redis-cli -p {} --stat -i 0.01", port(&server)));
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let mut figures = lines.by_ref().filter(|line| line.starts_with('5'));
    let requests = |line: &str| line.split_whitespace().nth(4).unwrap().parse::<u64>().unwrap();
    let (first, second) = (figures.next().unwrap(), figures.next().unwrap());
    assert!(requests(&first) < requests(&second), "{first}\n{second}");
    // Killing its terminal ends it, too.
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn redis_benchmark_runs_without_a_warning() {
    let server = Server::start();
    let bench = |args: &[&str]| {
        let fixed = ["-p", port(&server), "-P", "16", "-n", "4000", "-c", "20", "--csv"];
        run_cleanly(Command::new("redis-benchmark").args(fixed).args(args))
    };
    for version in [&[][..], &["-3"]] {
        let table = bench(&[version, &["-t", "ping,incr,get", "-r", "1000"]].concat());
        let tests: Vec<&str> = table.lines().map(|line| line.split('"').nth(1).unwrap()).collect();
        assert_eq!(tests, ["test", "PING_INLINE", "PING_MBULK", "GET", "INCR"], "{table}");
        // The built-in SET writes text, which is not an integer, so it is given one here.
        let table = bench(&[version, &["-r", "1000", "SET", "set:__rand_int__", "7"]].concat());
        assert_eq!(table.lines().count(), 2, "{table}");
    }
    assert!(cli(&server, &["DBSIZE"]).trim().parse::<u64>().unwrap() > 1000);
    let refused = run(Command::new("redis-benchmark").args(["-p", port(&server), "-t", "set", "-n", "10", "--csv"]));
    assert!(refused.err.contains("ERR value is not an integer or out of range"), "{}", refused.err);
}

#[test]
fn redis_py_works_in_both_versions_of_the_protocol() {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients/redis_py.py");
    let installed = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap().join("redis-py");
    assert!(installed.join("redis").is_dir(), "no redis-py in {}: `make test` installs it", installed.display());
    let server = Server::start();
    for version in ["2", "3"] {
        let mut python = Command::new("python3");
        // Warnings are errors: a client that has to work around something warns.
        python.args(["-B", "-W", "error"]).arg(&tests).args([port(&server), version]);
        let said = run_cleanly(python.env("PYTHONPATH", &installed));
        assert_eq!(said.lines().count(), 9, "{said}");
    }
}
