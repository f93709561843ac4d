//! A disk that fails: flushes that report an error, and room that runs out.
//!
//! The faults are made by a small library that is loaded before libc and fails chosen calls for as long as a marker
//! file exists. It is compiled here with `cc`.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::disallowed_methods)]
#![cfg(target_os = "linux")]

mod harness;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use harness::{Answer, Client, Server, run, serve, tally, write};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Fails flushes with EIO while `$FAIL_FLUSH` exists, and reservations of room with ENOSPC while `$FAIL_ROOM` does.
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

/// A data directory, the library, and the markers that switch the faults on.
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

    fn start(&self) -> Server {
        let mut command = serve(&self.data());
        command.env("LD_PRELOAD", &self.library);
        command.env("FAIL_FLUSH", self.flush_marker()).env("FAIL_ROOM", self.room_marker());
        Server::start_with(command)
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
    assert!((5..=7).contains(&recovered), "what was acknowledged is there, what was not may be: {recovered}");
    for id in ["before-0", "during", "later"] {
        assert_eq!(increment(&server, "a", id).unwrap().status, 200);
    }
    assert_eq!(server.value("a"), 7, "each request counts once, whatever became of its first try");
}

#[test]
fn a_flush_that_fails_for_many_at_once_acknowledges_none_of_them() {
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

/// A batch of the longest keys, so that few of them fill the room the journal has reserved.
fn large_batch() -> String {
    let items: Vec<Value> = (0..10_000).map(|i| json!({"key": format!("{i:0>512}")})).collect();
    json!({ "increments": items }).to_string()
}

#[test]
fn a_full_disk_refuses_writes_answers_reads_and_recovers_when_there_is_room() {
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
        assert!(counted < 100, "the journal grows although there is no room");
    };
    assert_eq!((full.status, full.problem(), &full.json["outcome"]), (507, "disk-full", &json!("none")));
    let key = format!("{:0>512}", 4_711);
    assert_eq!(server.value(&key), counted, "what was refused changed nothing");
    let ready = server.send("GET", "/readyz", "");
    assert_eq!((ready.status, &ready.json["reads"]), (200, &json!(true)), "{}", ready.text);
    assert_eq!((&ready.json["state"], &ready.json["writes"]), (&json!("disk-full"), &json!(false)), "{}", ready.text);

    // What little room is left may still take a small one.
    let single = increment(&server, &key, "r1").unwrap();
    assert!([200, 507].contains(&single.status), "{}", single.text);

    switch_off(&faults.room_marker());
    let recovered = (0..200).any(|_| {
        let answer = send();
        let took = answer.status == 200;
        counted += i64::from(took);
        took
    });
    assert!(recovered, "writes go on once there is room");
    assert_eq!(increment(&server, &key, "r1").unwrap().status, 200);
    assert_eq!(server.value(&key), counted + 1);
    assert_eq!(server.send("GET", "/readyz", "").json["state"], "ready");
    server.kill();
    faults.check();
    assert_eq!(faults.start().value(&key), counted + 1);
}
