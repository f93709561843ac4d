//! Nodes whose wall clock is years off: times are those of the brokers.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::wire::{Reply, Resp};
use crate::harness::{Server, run, tally, wait_for, write};
use crate::place::{EXACT, TestCluster};

/// Far more than anything takes, far less than the clocks are off.
const HOUR: Duration = Duration::from_secs(3_600);

/// Preloaded: moves the wall clock by `CLOCK_OFFSET_S` seconds and leaves the monotonic clocks, as on a machine whose
/// clock was set. `cnd_timedwait`, which librdkafka waits with, takes a time of the wall clock.
const SHIM: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <threads.h>
#include <time.h>
#include <unistd.h>

static long offset(void) { return atol(getenv("CLOCK_OFFSET_S")); }

int clock_gettime(clockid_t clock, struct timespec *now) {
    int failed = syscall(SYS_clock_gettime, clock, now);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        now->tv_sec += offset();
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return 0;
}

int timespec_get(struct timespec *now, int base) {
    return clock_gettime(CLOCK_REALTIME, now) ? 0 : base;
}

int cnd_timedwait(cnd_t *restrict condition, mtx_t *restrict mutex, const struct timespec *restrict until) {
    int (*wait)(cnd_t *, mtx_t *, const struct timespec *) = dlsym(RTLD_NEXT, "cnd_timedwait");
    struct timespec right = *until;
    right.tv_sec -= offset();
    return wait(condition, mutex, &right);
}

time_t time(time_t *result) {
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    if (result) *result = exact.tv_sec;
    return exact.tv_sec;
}
"#;

/// Starts nodes with a wrong clock.
struct WrongClocks {
    library: PathBuf,
    _dir: TempDir,
}

impl WrongClocks {
    fn new() -> WrongClocks {
        let dir = tempfile::tempdir().unwrap();
        let source = write(dir.path().join("shim.c"), SHIM);
        let library = dir.path().join("shim.so");
        let mut cc = Command::new("cc");
        cc.args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(source).arg("-ldl");
        let compiled = run(&mut cc);
        assert_eq!(compiled.code, 0, "{}", compiled.err);
        WrongClocks { library, _dir: dir }
    }

    /// A node whose wall clock is off by this many years.
    fn node(&self, cluster: &TestCluster, role: &str, years: i64) -> Server {
        let mut command = cluster.command(role);
        command.env("LD_PRELOAD", &self.library).env("CLOCK_OFFSET_S", (years * 365 * 86_400).to_string());
        Server::start_with(command)
    }
}

/// What `TIME` answers: the wall clock of the node, since 1970.
fn wall_clock(redis: &mut Resp) -> Duration {
    match redis.say("TIME") {
        Reply::Many(_, parts) => Duration::from_secs(parts[0].number() as u64),
        other => panic!("{other:?}"),
    }
}

/// Asserts that a timestamp of an answer is from around now.
fn assert_recent(time: &Value) {
    let time = humantime::parse_rfc3339(time.as_str().unwrap()).unwrap();
    let now = SystemTime::now();
    assert!(now - HOUR < time && time < now + HOUR, "{time:?}");
}

#[test]
fn a_wrong_clock_changes_no_count_no_expiry_and_no_timestamp() {
    let cluster = TestCluster::new(EXACT);
    let clocks = WrongClocks::new();
    let (ahead, behind) = (clocks.node(&cluster, "api", 5), clocks.node(&cluster, "api", -5));
    let worker = clocks.node(&cluster, "worker", 5);
    cluster.wait_until_hosted();

    let (mut first, mut second) = (Resp::to(&ahead), Resp::to(&behind));
    let (wrong, right) = (wall_clock(&mut first), SystemTime::now().duration_since(UNIX_EPOCH).unwrap());
    assert!(wrong > right + 10_000 * HOUR, "the clock is not off: {wrong:?}");

    // Timestamps.
    let written = ahead.send("POST", "/api/v1/counters/exact:1/increment", r#"{"request_id": "a"}"#);
    assert_eq!(written.json["value"], json!(1), "{}", written.text);
    assert_recent(&written.json["as_of"]);
    let read = behind.send("GET", "/api/v1/counters/exact:1", "");
    for time in ["as_of", "created_at", "updated_at"] {
        assert_recent(&read.json[time]);
    }
    wait_for("an eventual reading", || {
        let read = behind.send("GET", "/api/v1/counters/views:1", "");
        let is_recent = read.json["staleness_ms"].as_u64().is_some_and(|age| u128::from(age) < HOUR.as_millis());
        if read.status == 200 && is_recent { Ok(()) } else { Err(read.text) }
    });

    // Expiry: a counter that lasts an hour stays, and one that lasts a moment expires.
    assert_eq!(first.say("SET exact:long 7 EX 3600"), Reply::Simple("OK".into()));
    assert_eq!(first.say("SET exact:short 7 PX 300"), Reply::Simple("OK".into()));
    let tomorrow = (SystemTime::now() + 24 * HOUR).duration_since(UNIX_EPOCH).unwrap().as_secs();
    assert_eq!(second.say(&format!("SET exact:until 7 EXAT {tomorrow}")), Reply::Simple("OK".into()));
    wait_for("an expiry", || match second.say("GET exact:short") {
        value @ Reply::Bulk(_) => Err(value),
        _ => Ok(()),
    });
    for (key, most) in [("exact:long", 3_600), ("exact:until", 86_400)] {
        for redis in [&mut first, &mut second] {
            assert_eq!(redis.say(&format!("GET {key}")).number(), 7);
            let left = redis.say(&format!("TTL {key}")).number();
            assert!((most - 600..=most).contains(&left), "{key}: {left} s left");
        }
    }

    // Request ids are known to a worker with another wrong clock.
    worker.kill();
    let _other = clocks.node(&cluster, "worker", -5);
    for node in [&ahead, &behind] {
        let again = wait_for("an outcome", || {
            let again = node.send("POST", "/api/v1/counters/exact:1/increment", r#"{"request_id": "a"}"#);
            if again.status == 200 { Ok(again) } else { Err(again.text) }
        });
        assert_eq!((&again.json["value"], &again.json["duplicate"]), (&json!(1), &json!(true)), "{}", again.text);
    }
    assert_eq!(second.say("GET exact:long").number(), 7);
}

#[test]
fn resetting_clocks_that_are_right_changes_nothing_and_says_so() {
    let cluster = TestCluster::new(EXACT);
    let (api, _worker) = (cluster.node("api"), cluster.node("worker"));
    cluster.wait_until_hosted();
    let written = api.send("POST", "/api/v1/counters/exact:1/increment", "");
    assert_eq!(written.json["value"], json!(1), "{}", written.text);
    let reset =
        |args: &[&str]| run(tally().args(["cluster", "reset-clock", "--config"]).arg(&cluster.config).args(args));

    let all = reset(&["-o", "json"]);
    assert_eq!(all.code, 0, "{}", all.err);
    let all: Value = serde_json::from_str(&all.out).unwrap();
    let partitions = all["partitions"].as_array().unwrap();
    assert_eq!(partitions.len(), 4);
    for partition in partitions {
        assert_recent(&partition["clock"]);
        assert_eq!(partition["result"], json!("was not ahead"), "{partition}");
    }
    let one = reset(&["--partition", "2"]);
    let lines: Vec<&str> = one.out.lines().collect();
    assert_eq!((one.code, lines.len()), (0, 2), "{}{}", one.out, one.err);
    assert!(lines[1].starts_with("2 ") && lines[1].ends_with("was not ahead"), "{}", one.out);
    let none = reset(&["--partition", "9"]);
    assert_eq!(none.code, 1);
    assert!(none.err.contains("there is no partition 9"), "{}", none.err);
    cluster.wait_until_hosted();
    assert_eq!(api.send("GET", "/api/v1/counters/exact:1/exact", "").json["value"], json!(1));
}
