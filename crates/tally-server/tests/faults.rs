//! Disk faults: failed flushes and a full disk.
//!
//! A small library, compiled here with `cc` and preloaded before libc, makes chosen calls fail while a marker file
//! exists.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::disallowed_methods)]
#![cfg(target_os = "linux")]

mod harness;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use harness::wire::{Reply, Resp, request};
use harness::{Answer, Client, Server, limited, run, serve, tally, wait_for, wait_until_equal, write};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Fails flushes with EIO while `$FAIL_FLUSH` exists, and space reservations with ENOSPC while `$FAIL_ROOM` does. Blocks
/// flushes while `$HOLD_FLUSH` exists.
const SHIM: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/types.h>
#include <unistd.h>

static int marked(const char *variable) {
    const char *path = getenv(variable);
    int before = errno;
    int found = path != NULL && access(path, F_OK) == 0;
    errno = before;
    return found;
}

#define FLUSH(name)                                                     \
    int name(int fd) {                                                  \
        while (marked("HOLD_FLUSH")) usleep(1000);                      \
        if (marked("FAIL_FLUSH")) { errno = EIO; return -1; }           \
        int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, #name);       \
        return real(fd);                                                \
    }
FLUSH(fsync)
FLUSH(fdatasync)

#define ROOM(name)                                                      \
    int name(int fd, int mode, off_t offset, off_t length) {            \
        if (marked("FAIL_ROOM")) { errno = ENOSPC; return -1; }         \
        int (*real)(int, int, off_t, off_t) =                           \
            (int (*)(int, int, off_t, off_t))dlsym(RTLD_NEXT, #name);   \
        return real(fd, mode, offset, length);                          \
    }
ROOM(fallocate)
ROOM(fallocate64)
"#;

/// A data directory, the library, and the markers that enable the faults.
struct Faults {
    dir: TempDir,
    library: PathBuf,
}

impl Faults {
    fn new() -> Faults {
        let dir = tempfile::tempdir().unwrap();
        let source = write(dir.path().join("shim.c"), SHIM);
        let library = dir.path().join("shim.so");
        let mut cc = Command::new("cc");
        cc.args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(source).arg("-ldl");
        let compiled = cc.stderr(Stdio::inherit()).status().expect("these tests need a C compiler, `cc`");
        assert!(compiled.success());
        Faults { dir, library }
    }

    fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    fn flush_marker(&self) -> PathBuf {
        self.dir.path().join("fail-flush")
    }

    fn room_marker(&self) -> PathBuf {
        self.dir.path().join("fail-room")
    }

    fn hold_marker(&self) -> PathBuf {
        self.dir.path().join("hold-flush")
    }

    fn command(&self) -> Command {
        let mut command = serve(&self.data());
        command.env("LD_PRELOAD", &self.library).env("HOLD_FLUSH", self.hold_marker());
        command.env("FAIL_FLUSH", self.flush_marker()).env("FAIL_ROOM", self.room_marker());
        command
    }

    fn start(&self) -> Server {
        Server::start_with(self.command())
    }

    fn check(&self) {
        let checked = run(tally().arg("check").arg(self.data()));
        assert_eq!(checked.code, 0, "{}", checked.err);
    }
}

fn switch_on(marker: &Path) {
    std::fs::write(marker, "").unwrap();
}

fn switch_off(marker: &Path) {
    std::fs::remove_file(marker).unwrap();
}

fn increment(server: &Server, key: &str, id: &str) -> Option<Answer> {
    let body = json!({ "request_id": id }).to_string();
    server.client().try_send("POST", &format!("/api/v1/counters/{key}/increment"), &[], &body).ok()
}

/// No acknowledgement: either no answer, or one that says that the outcome is unknown or that nothing was done.
fn assert_not_acknowledged(answer: Option<&Answer>) {
    let Some(answer) = answer else { return };
    assert_eq!(answer.status, 503, "{}", answer.text);
    assert!(["outcome-unknown", "poisoned", "closing"].contains(&answer.problem()), "{}", answer.text);
    let outcome = if answer.problem() == "outcome-unknown" { "unknown" } else { "none" };
    assert_eq!(answer.json["outcome"], outcome, "{}", answer.text);
}

#[test]
fn after_a_failed_flush_nothing_is_acknowledged_and_the_process_says_why_and_exits() {
    let faults = Faults::new();
    let mut server = faults.start();
    for i in 0..5 {
        assert_eq!(increment(&server, "a", &format!("before-{i}")).unwrap().status, 200);
    }
    switch_on(&faults.flush_marker());
    let first = increment(&server, "a", "during");
    assert_not_acknowledged(first.as_ref());
    assert_not_acknowledged(increment(&server, "a", "later").as_ref());
    let status = server.exit();
    assert_eq!(status.code(), Some(70), "{}", server.log());
    assert!(server.log().contains("could not be flushed"), "{}", server.log());
    assert!(server.log().contains("os error 5") || server.log().contains("Input/output"), "{}", server.log());
    switch_off(&faults.flush_marker());
    faults.check();

    let server = faults.start();
    let recovered = server.value("a");
    assert!((5..=7).contains(&recovered), "acknowledged increments must survive, others may: {recovered}");
    for id in ["before-0", "during", "later"] {
        assert_eq!(increment(&server, "a", id).unwrap().status, 200);
    }
    assert_eq!(server.value("a"), 7, "each request counts once, whatever the result of its first attempt");
}

#[test]
fn a_failed_flush_acknowledges_none_of_many_concurrent_requests() {
    let faults = Faults::new();
    let mut server = faults.start();
    assert_eq!(increment(&server, "a", "before").unwrap().status, 200);
    switch_on(&faults.flush_marker());
    let base = &server.base;
    std::thread::scope(|scope| {
        for writer in 0..16 {
            scope.spawn(move || {
                let client = Client::new(base);
                let body = json!({"request_id": format!("w{writer}")}).to_string();
                let answer = client.try_send("POST", "/api/v1/counters/a/increment", &[], &body).ok();
                assert_not_acknowledged(answer.as_ref());
            });
        }
    });
    assert_eq!(server.exit().code(), Some(70), "{}", server.log());
    switch_off(&faults.flush_marker());
    let server = faults.start();
    for writer in 0..16 {
        assert_eq!(increment(&server, "a", &format!("w{writer}")).unwrap().status, 200);
    }
    assert_eq!(server.value("a"), 17);
}

/// A batch of the longest keys, so that few of them fill the space reserved for the journal.
fn large_batch() -> String {
    let items: Vec<Value> = (0..10_000).map(|i| json!({"key": format!("{i:0>512}")})).collect();
    json!({ "increments": items }).to_string()
}

#[test]
fn a_full_disk_refuses_writes_answers_reads_and_recovers_once_there_is_space() {
    let faults = Faults::new();
    let server = faults.start();
    switch_on(&faults.room_marker());
    let batch = large_batch();
    let send = || server.send("POST", "/api/v1/counters/batch-increment", &batch);
    let mut counted = 0;
    let full = loop {
        let answer = send();
        match answer.status {
            200 => counted += 1,
            _ => break answer,
        }
        assert!(counted < 100, "the journal grows although the disk is full");
    };
    assert_eq!((full.status, full.problem(), &full.json["outcome"]), (507, "disk-full", &json!("none")));
    let key = format!("{:0>512}", 4_711);
    assert_eq!(server.value(&key), counted, "a refused write changed something");
    let ready = server.send("GET", "/readyz", "");
    assert_eq!((ready.status, &ready.json["reads"]), (200, &json!(true)), "{}", ready.text);
    assert_eq!((&ready.json["state"], &ready.json["writes"]), (&json!("disk-full"), &json!(false)), "{}", ready.text);

    // A small write may still fit in the remaining space.
    let single = increment(&server, &key, "r1").unwrap();
    assert!([200, 507].contains(&single.status), "{}", single.text);

    switch_off(&faults.room_marker());
    wait_for("writes to go on once there is room", || {
        let answer = send();
        if answer.status == 200 { Ok(()) } else { Err(answer.text) }
    });
    counted += 1;
    assert_eq!(increment(&server, &key, "r1").unwrap().status, 200);
    assert_eq!(server.value(&key), counted + 1);
    wait_until_equal("the state", &json!("ready"), || server.send("GET", "/readyz", "").json["state"].clone());
    server.kill();
    faults.check();
    assert_eq!(faults.start().value(&key), counted + 1);
}

/// As when runs of the store pile up during a long merge.
#[test]
fn a_checkpoint_that_finds_no_file_descriptor_is_tried_again_until_there_is_one() {
    let mut server = Server::start();
    let client = server.client();
    let add = || client.send("POST", "/api/v1/counters/a/increment", &[], "").json["value"].clone();
    assert_eq!(add(), 1);
    let exported = server.client();
    assert_eq!(exported.send("GET", "/livez", &[], "").status, 200);
    let pid = server.pid();
    let is_used = |number: &u32| Path::new(&format!("/proc/{pid}/fd/{number}")).exists();
    let free = (0..).find(|number| !is_used(number)).unwrap();
    set_open_files(pid, free);
    std::thread::scope(|scope| {
        // An export begins with a checkpoint.
        let export = scope.spawn(|| exported.send("GET", "/api/v1/export", &[], ""));
        server.wait_for_log("no file descriptors for a checkpoint");
        assert_eq!(add(), 2);
        let ready = client.send("GET", "/readyz", &[], "");
        assert_eq!((ready.status, &ready.json["state"]), (200, &"degraded".into()), "{}", ready.text);
        set_open_files(pid, 1_024);
        let export = export.join().unwrap();
        assert_eq!(export.status, 200, "{}", export.text);
        assert!(export.text.contains("\"key\":\"a\""), "{}", export.text);
    });
    assert_eq!(add(), 3);
    assert!(server.terminate().success(), "{}", server.log());
}

/// Limits the open files of a running process.
fn set_open_files(pid: u32, max: u32) {
    let limited = run(Command::new("prlimit").arg(format!("--pid={pid}")).arg(format!("--nofile={max}:")));
    assert_eq!(limited.code, 0, "{}", limited.err);
}

#[test]
fn after_a_failed_flush_redis_clients_get_no_value_and_do_not_hang() {
    let faults = Faults::new();
    let mut server = faults.start();
    let mut resp = Resp::to(&server);
    let mut idle = Resp::to(&server);
    assert_eq!((resp.say("INCR a"), idle.say("INCR a")), (Reply::Integer(1), Reply::Integer(2)));
    switch_on(&faults.flush_marker());
    resp.send(&[request(&["INCR", "a"]).repeat(100), request(&["GET", "a"])].concat()).unwrap();
    for _ in 0..101 {
        match resp.reply() {
            Ok(Reply::Error(text)) => assert!(["UNKNOWN ", "ERR "].iter().any(|kind| text.starts_with(kind)), "{text}"),
            Ok(other) => panic!("acknowledged without a flush: {other:?}"),
            Err(_) => break,
        }
    }
    // Later clients get an error or a closed connection.
    let later = idle.send(&request(&["INCR", "a"])).and_then(|()| idle.reply());
    assert!(later.as_ref().map_or(true, |reply| !reply.error().is_empty()), "{later:?}");
    assert_eq!(server.exit().code(), Some(70), "{}", server.log());
    assert!(idle.is_closed());
    switch_off(&faults.flush_marker());
    faults.check();
    let recovered = Resp::to(&faults.start()).say("GET a").number();
    assert!((2..=103).contains(&recovered), "acknowledged increments must survive: {recovered}");
}

#[test]
fn a_full_disk_is_an_error_for_redis_clients_until_there_is_space() {
    let faults = Faults::new();
    let server = faults.start();
    let mut resp = Resp::to(&server);
    switch_on(&faults.room_marker());
    let keys: Vec<String> = (0..8000).map(|i| format!("{i:0>512}")).collect();
    let pipeline: Vec<u8> = keys.iter().flat_map(|key| request(&["INCR", key])).collect();
    let mut counted = vec![0; keys.len()];
    let mut send = |resp: &mut Resp| {
        resp.send(&pipeline).unwrap();
        let replies = counted.iter_mut().map(|count| match resp.reply().unwrap() {
            Reply::Integer(value) => {
                *count += 1;
                assert_eq!(value, *count, "a refused write changed something");
                false
            }
            refused => {
                assert!(refused.error().starts_with("MISCONF "), "{refused:?}");
                true
            }
        });
        replies.filter(|is_refused| *is_refused).count()
    };
    let refused = (0..100).map(|_| send(&mut resp)).find(|refused| *refused > 0);
    assert!(refused.is_some(), "the journal grows although the disk is full");
    assert!(resp.call(&["GET", &keys[0]]).number() > 0, "reads still work");
    assert_eq!(resp.say("PING"), Reply::Simple("PONG".into()));
    switch_off(&faults.room_marker());
    wait_until_equal("refusals once there is room", &0, || send(&mut resp));
    server.kill();
    faults.check();
    let server = faults.start();
    let mut resp = Resp::to(&server);
    for (key, count) in keys.iter().zip(&counted).step_by(97) {
        assert_eq!(resp.call(&["GET", key]).number(), *count);
    }
}

#[test]
fn identical_requests_are_refused_one_by_one_when_the_disk_is_full() {
    let faults = Faults::new();
    let server = faults.start();
    let mut resp = Resp::to(&server);
    switch_on(&faults.room_marker());
    let keys: Vec<String> = (0..4000).map(|i| format!("{i:0>512}")).collect();
    let pipeline: Vec<u8> = keys.iter().flat_map(|key| request(&["INCR", key]).repeat(3)).collect();
    let mut send = || {
        resp.send(&[pipeline.as_slice(), &request(&["PING"])].concat()).unwrap();
        let replies: Vec<Reply> = (0..=3 * keys.len()).map(|_| resp.reply().unwrap()).collect();
        assert_eq!(replies.last(), Some(&Reply::Simple("PONG".into())));
        replies.iter().filter(|reply| reply.error().starts_with("MISCONF ")).count()
    };
    assert!((0..200).any(|_| send() > 0), "the journal grows although the disk is full");
}

/// Waits until this many events have been applied, which shows in the metrics before they are flushed.
fn wait_until_applied(server: &Server, events: u64) {
    let sample = format!("tally_events_total {events}\n");
    wait_for("events to be applied", || {
        let metrics = server.send("GET", "/metrics", "").text;
        if metrics.contains(&sample) { Ok(()) } else { Err(metrics) }
    });
}

#[test]
fn redis_clients_get_loading_during_recovery_and_no_reply_before_the_flush() {
    let faults = Faults::new();
    switch_on(&faults.hold_marker());
    let mut server = Server::start_recovering(faults.command());
    let mut resp = Resp::to(&server);
    for line in ["INCR a", "GET a", "DBSIZE", "SCAN 0", "PING"] {
        assert_eq!(resp.say(line).error(), "LOADING Redis is loading the dataset in memory", "{line}");
    }
    switch_off(&faults.hold_marker());
    server.wait_until_ready();
    assert_eq!(resp.say("PING"), Reply::Simple("PONG".into()));
    assert_eq!(resp.say("INCR a"), Reply::Integer(1));
    for (verb, count) in [("increment", 1), ("read", 1), ("list", 2)] {
        let sample = format!("tally_requests_total{{protocol=\"resp\",verb=\"{verb}\",status=\"5xx\"}} {count}");
        wait_for(&sample, || {
            let metrics = server.send("GET", "/metrics", "").text;
            if metrics.lines().any(|line| line == sample) { Ok(()) } else { Err(metrics) }
        });
    }

    switch_on(&faults.hold_marker());
    let (mut writer, mut reader) = (Resp::to(&server), Resp::to(&server));
    writer.send(&request(&["INCR", "a"])).unwrap();
    // A read that overtakes it would be answered with the value before it.
    wait_until_applied(&server, 2);
    assert!(!writer.answers_within(Duration::from_millis(200)), "an increment is not answered before its flush");
    reader.send(&request(&["GET", "a"])).unwrap();
    assert!(!reader.answers_within(Duration::from_millis(200)), "nor is its value returned to readers");
    switch_off(&faults.hold_marker());
    assert_eq!((writer.reply().unwrap().number(), reader.reply().unwrap().number()), (2, 2));
}

#[test]
fn a_file_size_limit_acts_like_a_full_disk() {
    let dir = tempfile::tempdir().unwrap();
    // Less than the size of a journal segment, in blocks of 512 bytes or 1 KiB.
    let mut server = Server::start_with(limited("-f 4096", &serve(dir.path())));
    let refused = server.send("POST", "/api/v1/counters/a/increment", "");
    assert_eq!((refused.status, refused.problem()), (507, "disk-full"), "{}", refused.text);
    assert_eq!(server.value("a"), 0);
    assert!(server.terminate().success());
}

/// One client keeps retrying writes. Reads of other clients, and reads in a pipeline with writes, are still answered.
#[test]
fn on_a_full_disk_redis_reads_are_answered_while_writes_are_refused() {
    let faults = Faults::new();
    let mut server = faults.start();
    let mut writer = Resp::to(&server);
    assert_eq!(writer.say("SET here 7"), Reply::Simple("OK".into()));
    switch_on(&faults.room_marker());
    let keys: Vec<String> = (0..8_000).map(|i| format!("{i:0>512}")).collect();
    let writes: Vec<u8> = keys.iter().flat_map(|key| request(&["INCR", key])).collect();
    let refused_of = |writer: &mut Resp| {
        writer.send(&writes).unwrap();
        let replies: Vec<Reply> = keys.iter().map(|_| writer.reply().unwrap()).collect();
        replies.iter().filter(|reply| reply.error().starts_with("MISCONF ")).count()
    };
    assert!((0..100).any(|_| refused_of(&mut writer) > 0), "the journal grows although the disk is full");
    let mut reader = Resp::to(&server);
    std::thread::scope(|scope| {
        scope.spawn(|| (0..20).for_each(|_| assert!(refused_of(&mut writer) > 0)));
        scope.spawn(|| {
            // Each read follows a write and is in the same submission.
            let mixed = [request(&["INCR", &keys[17]]), request(&["GET", "here"])].concat().repeat(50);
            for _ in 0..60 {
                assert_eq!(reader.say("GET here").number(), 7);
                reader.send(&mixed).unwrap();
                for _ in 0..50 {
                    reader.reply().unwrap();
                    assert_eq!(reader.reply().unwrap().number(), 7);
                }
            }
        });
    });
    switch_off(&faults.room_marker());
    wait_until_equal("refusals once there is room", &0, || refused_of(&mut Resp::to(&server)));
    assert_eq!(server.terminate().code(), Some(0));
    let warnings = server.log().lines().filter(|line| line.contains("no disk space for the journal")).count();
    assert!((1..20).contains(&warnings), "a full disk is logged when it fills up, not for every write: {warnings}");
}

/// Only reads of unflushed values wait.
#[test]
fn on_a_slow_disk_redis_reads_of_other_keys_do_not_wait_for_the_flush() {
    let faults = Faults::new();
    let server = faults.start();
    let (mut writer, mut reader, mut diagnosis) = (Resp::to(&server), Resp::to(&server), Resp::to(&server));
    assert_eq!((writer.say("INCR a"), writer.say("INCR b")), (Reply::Integer(1), Reply::Integer(1)));
    // One slow flush, so that the next one is done by the engine's flusher thread.
    switch_on(&faults.hold_marker());
    writer.send(&request(&["INCR", "a"])).unwrap();
    wait_until_applied(&server, 3);
    assert!(!writer.answers_within(Duration::from_millis(200)));
    switch_off(&faults.hold_marker());
    assert_eq!(writer.reply().unwrap(), Reply::Integer(2));

    switch_on(&faults.hold_marker());
    writer.send(&request(&["INCR", "a"])).unwrap();
    wait_until_applied(&server, 4);
    assert_eq!(reader.say("PING"), Reply::Simple("PONG".into()));
    assert_eq!(reader.say("GET b").number(), 1);
    assert_eq!(reader.say("TTL b"), Reply::Integer(-1));
    assert_eq!(reader.say("GET none"), Reply::Line("$-1".into()));
    // The incremented value is not returned until it is durable.
    reader.send(&[request(&["GET", "b"]), request(&["GET", "a"])].concat()).unwrap();
    diagnosis.send(&request(&["MEMORY", "USAGE", "a"])).unwrap();
    assert!(!reader.answers_within(Duration::from_millis(50)));
    assert!(!diagnosis.answers_within(Duration::from_millis(50)));
    switch_off(&faults.hold_marker());
    assert_eq!(writer.reply().unwrap(), Reply::Integer(3));
    assert!(matches!(diagnosis.reply().unwrap(), Reply::Integer(1..)));
    assert_eq!(reader.reply().unwrap().number(), 1);
    assert_eq!(reader.reply().unwrap().number(), 3);
}
