//! `tally backup`: a consistent copy of a running server. Copies that were interrupted are refused.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::disallowed_methods)]

mod harness;

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering::SeqCst};
use std::thread;

use harness::resp::{Redis, Reply, request};
use harness::{Ran, Server, run, serve, tally, wait_for};
use tempfile::TempDir;

/// Counters that only make the directory larger.
const FILLED: usize = 40_000;
const WRITERS: usize = 4;
const UNFINISHED: &str = "an unfinished backup";

/// A server with enough counters that a backup takes a while.
fn filled(data: &Path) -> Server {
    let server = Server::start_in(data);
    let mut redis = Redis::connect(&server.redis);
    // More than socket buffers hold, even after the store has compressed what keys have in common.
    let digits =
        |number: usize| (1..=24).map(move |part| number.wrapping_mul(part).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let keys = (0..FILLED).map(|number| digits(number).map(|part| format!("{part:016x}")).collect::<String>());
    let requests: Vec<u8> = keys.flat_map(|key| request(&["INCR", &key])).collect();
    let mut sender = redis.sender();
    thread::scope(|scope| {
        scope.spawn(move || sender.write_all(&requests).unwrap());
        for _ in 0..FILLED {
            assert_eq!(redis.read(), Some(Reply::Integer(1)));
        }
    });
    server
}

fn backup(server: &Server, dir: &Path) -> Command {
    let mut command = tally();
    command.arg("backup").arg("--server").arg(&server.base).arg(dir);
    command
}

fn back_up(server: &Server, dir: &Path) {
    let Ran { code, err, .. } = run(&mut backup(server, dir));
    assert_eq!((code, err.as_str()), (0, ""));
}

/// The last acknowledged values of a writer's two counters. It adds to them in turn, beginning with the first.
#[derive(Default)]
struct Acknowledged([AtomicI64; 2]);

/// Adds to the writer's two counters in turn, each time after the last answer, until stopped.
fn write_until(stop: &AtomicBool, address: &str, writer: usize, acknowledged: &Acknowledged) {
    let mut redis = Redis::connect(address);
    for turn in 0.. {
        if stop.load(SeqCst) {
            return;
        }
        let counter = format!("written:{writer}:{}", turn % 2);
        let id = format!("{writer}-{turn}");
        let Reply::Array(items) = redis.call(&["TALLY.ADD", &counter, "1", "ID", &id]) else { panic!("no answer") };
        let [_, Reply::Integer(value), ..] = &items[..] else { panic!("{items:?}") };
        acknowledged.0[turn % 2].store(*value, SeqCst);
    }
}

/// Runs `action` while writers write, and passes it what was acknowledged to them.
fn under_load(server: &Server, action: impl FnOnce(&[Acknowledged])) {
    let acknowledged: Vec<Acknowledged> = (0..WRITERS).map(|_| Acknowledged::default()).collect();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for (writer, acknowledged) in acknowledged.iter().enumerate() {
            let (stop, address) = (&stop, &server.redis);
            scope.spawn(move || write_until(stop, address, writer, acknowledged));
        }
        wait_for("the writers", || match acknowledged.iter().all(|of| of.0[1].load(SeqCst) > 0) {
            true => Ok(()),
            false => Err("they have not begun"),
        });
        // Stops the writers even if it panics; otherwise they would never end.
        let acted = catch_unwind(AssertUnwindSafe(|| action(&acknowledged)));
        stop.store(true, SeqCst);
        acted.unwrap_or_else(|panic| resume_unwind(panic));
    });
}

fn values(acknowledged: &[Acknowledged]) -> Vec<[i64; 2]> {
    acknowledged.iter().map(|Acknowledged([first, second])| [first.load(SeqCst), second.load(SeqCst)]).collect()
}

/// Starts a server on a copy that was begun after `before` and done before `after`, and checks what it has.
fn expect_prefix(dir: &Path, before: &[[i64; 2]], after: &[[i64; 2]]) {
    let server = Server::start_in(dir);
    let mut redis = Redis::connect(&server.redis);
    for (writer, (before, after)) in before.iter().zip(after).enumerate() {
        let found = [0, 1].map(|counter| server.value(&format!("written:{writer}:{counter}")));
        let [first, second] = found;
        // One write may have been applied and not acknowledged yet.
        assert!((second..=second + 1).contains(&first), "writer {writer} has {found:?}, which was never so");
        for counter in 0..2 {
            let possible = before[counter]..=after[counter] + 1;
            assert!(possible.contains(&found[counter]), "writer {writer} has {found:?}, not {possible:?}");
        }
        // Its request ids are there, too: the last write that is in the copy counts once.
        let turn = first + second - 1;
        let (counter, id) = (format!("written:{writer}:{}", turn % 2), format!("{writer}-{turn}"));
        redis.call(&["TALLY.ADD", &counter, "1", "ID", &id]);
        assert_eq!(server.value(&counter), found[turn as usize % 2], "{id} counted twice");
    }
    assert_eq!(redis.call(&["DBSIZE"]), Reply::Integer((FILLED + 2 * WRITERS) as i64));
}

#[test]
fn a_backup_under_load_is_a_prefix_of_what_was_acknowledged_and_has_all_that_was_before() {
    let dir = TempDir::new().unwrap();
    let server = filled(&dir.path().join("data"));
    under_load(&server, |acknowledged| {
        for round in 0..3 {
            let copy = dir.path().join(format!("copy-{round}"));
            let before = values(acknowledged);
            back_up(&server, &copy);
            let after = values(acknowledged);
            let checked = run(tally().arg("check").arg(&copy));
            assert_eq!(checked.code, 0, "{}", checked.err);
            expect_prefix(&copy, &before, &after);
        }
    });
}

/// Bytes of the files in a directory.
fn bytes_in(dir: &Path) -> u64 {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.metadata().ok()).map(|metadata| metadata.len()).sum()
}

/// No command accepts the directory, and each says why.
fn expect_refused(dir: &Path) {
    let checked = run(tally().arg("check").arg(dir));
    assert!(checked.code == 1 && checked.err.contains(UNFINISHED), "{}: {}", checked.code, checked.err);
    let served = run(&mut serve(dir));
    assert!(served.code == 1 && served.err.contains(UNFINISHED), "{}: {}", served.code, served.err);
}

/// Waits until a copy has this many bytes, or has ended.
fn wait_for_bytes(child: &mut Child, dir: &Path, bytes: u64) {
    wait_for("the copy", || match child.try_wait().unwrap().is_some() || bytes_in(dir) >= bytes {
        true => Ok(()),
        false => Err(bytes_in(dir)),
    });
}

#[test]
fn a_backup_that_is_killed_at_any_moment_is_refused_as_unfinished() {
    let dir = TempDir::new().unwrap();
    let data = dir.path().join("data");
    let mut server = filled(&data);
    back_up(&server, &dir.path().join("whole"));
    let whole = bytes_in(&dir.path().join("whole"));
    let (mut refused, mut finished) = (0, 0);
    for round in 0..16 {
        let copy = dir.path().join(format!("copy-{round}"));
        let mut child = backup(&server, &copy).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        // From its first bytes on. Every other time, the server is killed instead of the copying command.
        wait_for_bytes(&mut child, &copy, whole * round / 15 + 1);
        if round % 2 == 0 {
            child.kill().unwrap();
            child.wait().unwrap();
        } else {
            server.kill();
            let mut err = String::new();
            child.stderr.take().unwrap().read_to_string(&mut err).unwrap();
            let is_done = child.wait().unwrap().success();
            assert!(is_done || err.contains("unfinished backup: remove it"), "{err}");
            server = Server::start_in(&data);
        }
        // The copy may have been complete before the kill.
        match run(tally().arg("check").arg(&copy)).code {
            0 => finished += 1,
            _ => {
                expect_refused(&copy);
                refused += 1;
            }
        }
    }
    assert!(refused >= 8, "{refused} refused, {finished} finished");
}

/// Downloads an archive with curl.
fn download(server: &Server, to: &Path) {
    let url = format!("{}/api/v1/backup", server.base);
    let ran = run(Command::new("curl").args(["--silent", "--fail", "--output"]).arg(to).arg(url));
    assert_eq!(ran.code, 0, "{}", ran.err);
}

fn unpack(archive: &Path, dir: PathBuf) -> (PathBuf, i32) {
    fs::create_dir(&dir).unwrap();
    let ran = run(Command::new("tar").arg("xf").arg(archive).arg("-C").arg(&dir));
    (dir, ran.code)
}

#[test]
fn the_archive_unpacks_to_a_data_directory_and_one_that_was_cut_off_to_an_unfinished_backup() {
    let dir = TempDir::new().unwrap();
    let server = filled(&dir.path().join("data"));
    let archive = dir.path().join("backup.tar");
    download(&server, &archive);
    let (whole, code) = unpack(&archive, dir.path().join("whole"));
    assert_eq!(code, 0);
    let copied = Server::start_in(&whole);
    assert_eq!(Redis::connect(&copied.redis).call(&["DBSIZE"]), Reply::Integer(FILLED as i64));
    let bytes = fs::read(&archive).unwrap();
    // The last file is a header and one block, and two blocks of zeros follow.
    let complete = bytes.len() as u64 - 4 * 512;
    for cut in 1..=12 {
        let len = 1024 + (complete - 1024) * cut / 12;
        let part = dir.path().join(format!("{cut}.tar"));
        fs::write(&part, &bytes[..len as usize]).unwrap();
        let (copy, _) = unpack(&part, dir.path().join(format!("cut-{cut}")));
        expect_refused(&copy);
    }
}

#[test]
fn a_backup_is_refused_into_a_directory_with_files_and_while_another_is_read() {
    let dir = TempDir::new().unwrap();
    let data = dir.path().join("data");
    let server = filled(&data);
    let into_itself = run(&mut backup(&server, &data));
    assert!(into_itself.code == 1 && into_itself.err.contains("in use by another process"), "{}", into_itself.err);
    let taken = dir.path().join("taken");
    fs::create_dir(&taken).unwrap();
    File::create(taken.join("notes.txt")).unwrap();
    // The server may still be sending the backup that was refused.
    wait_for("the refusal", || match run(&mut backup(&server, &taken)) {
        Ran { code: 1, err, .. } if err.contains("notes.txt") => Ok(()),
        Ran { err, .. } => Err(err),
    });
    assert_eq!(fs::read_dir(&taken).unwrap().count(), 1, "nothing was written");

    // A client that has asked for a backup and does not read it.
    let slow = wait_for("the turn", || {
        let mut slow = server.connect();
        write!(slow, "GET /api/v1/backup HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
        let mut begin = [0; 64];
        slow.read_exact(&mut begin).unwrap();
        if begin.starts_with(b"HTTP/1.1 200 OK") { Ok(slow) } else { Err(String::from_utf8_lossy(&begin).into_owned()) }
    });
    let copy = dir.path().join("copy");
    let busy = run(&mut backup(&server, &copy));
    assert!(busy.code == 1 && busy.err.contains("another backup is in progress"), "{}: {}", busy.code, busy.err);
    assert!(!copy.exists(), "no directory is created for nothing");
    drop(slow);
    wait_for("the turn", || match run(&mut backup(&server, &copy)) {
        Ran { code: 0, .. } => Ok(()),
        Ran { err, .. } => Err(err),
    });
    drop(server);
    let nobody = run(tally().args(["backup", "--server", "http://127.0.0.1:1"]).arg(dir.path().join("none")));
    assert_eq!(nobody.code, 69, "{}", nobody.err);
    assert!(!dir.path().join("none").exists());
}

/// A server that answers a backup call with these bytes, but announces more.
fn answering(body: Vec<u8>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len() + 1024);
        let mut request = [0; 16];
        stream.read_exact(&mut request).unwrap();
        let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&body));
    });
    address
}

#[test]
fn an_archive_that_no_server_writes_is_refused_and_not_read_into_memory() {
    let dir = TempDir::new().unwrap();
    // Entries that are not files: mostly extension headers, which readers of archives keep in memory.
    for kind in [b'L', b'x', b'K', b'2'] {
        let mut header = tar::Header::new_gnu();
        header.set_path("journal").unwrap();
        header.set_size(8 << 30);
        header.set_entry_type(tar::EntryType::new(kind));
        header.set_cksum();
        let server = answering([header.as_bytes().as_slice(), &[b'a'; 4096]].concat());
        let copy = dir.path().join(format!("copy-{kind}"));
        let refused = run(tally().args(["backup", "--server", &server]).arg(&copy));
        assert_eq!(refused.code, 1, "{}", refused.err);
        assert!(refused.err.contains("is not a file"), "{}", refused.err);
        assert_eq!(fs::read_dir(&copy).unwrap().count(), 0);
    }
}

/// Waits until every thread of a process has stopped.
fn wait_until_stopped(server: &Server) {
    wait_for("all threads to stop", || {
        let tasks = fs::read_dir(format!("/proc/{}/task", server.pid())).unwrap().flatten();
        let states = tasks.map(|task| fs::read_to_string(task.path().join("stat")).unwrap_or_default());
        let running = states.filter(|stat| stat.rsplit(')').next().is_some_and(|rest| !rest.starts_with(" T"))).count();
        if running == 0 { Ok(()) } else { Err(running) }
    });
}

#[test]
fn an_atomic_snapshot_of_the_directory_under_load_has_everything_that_was_acknowledged() {
    let dir = TempDir::new().unwrap();
    let server = filled(&dir.path().join("data"));
    under_load(&server, |acknowledged| {
        for round in 0..5 {
            let copy = dir.path().join(format!("snapshot-{round}"));
            let mut now = Vec::new();
            // As in a snapshot of the file system: all files as of one moment.
            server.hold(|| {
                wait_until_stopped(&server);
                let copied = run(Command::new("cp").arg("-a").arg(dir.path().join("data")).arg(&copy));
                assert_eq!(copied.code, 0, "{}", copied.err);
                now = values(acknowledged);
            });
            expect_prefix(&copy, &now, &now);
            fs::remove_dir_all(&copy).unwrap();
        }
    });
}
