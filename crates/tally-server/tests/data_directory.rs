//! A data directory that is incomplete, damaged at its end, or in use: the server refuses it, and `check` says the same.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::disallowed_methods)]

mod harness;

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use harness::{Server, run, serve, tally, wait_for};

const EXIT_DAMAGED: i32 = 65;

/// Increments `a` and kills the server once it has recorded where its journal ends.
fn killed(data: &Path) {
    let server = Server::start_in(data);
    let end = data.join("journal.end");
    let before = fs::read(&end).unwrap();
    assert_eq!(server.send("POST", "/api/v1/counters/a/increment", "").status, 200);
    wait_for("a server that pauses records where its journal ends", || {
        if fs::read(&end).unwrap() != before { Ok(()) } else { Err("it is as before") }
    });
    server.kill();
}

fn file(data: &Path, prefix: &str) -> PathBuf {
    let names = fs::read_dir(data).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    data.join(names.filter(|name| name.starts_with(prefix)).max().unwrap())
}

/// Both the server and `check` refuse the directory with this error.
fn assert_refused(data: &Path, words: &str) {
    let served = run(&mut serve(data));
    assert!(served.code == 1 && served.err.contains(words), "{}: {}", served.code, served.err);
    let checked = run(tally().arg("check").arg(data));
    assert!(checked.code == EXIT_DAMAGED && checked.err.contains(words), "{}: {}", checked.code, checked.err);
}

#[test]
fn a_refused_start_changes_nothing_so_a_missing_manifest_can_be_restored() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let mut server = Server::start_in(&data);
    assert_eq!(server.send("POST", "/api/v1/counters/a/increment", "").status, 200);
    assert!(server.terminate().success());
    let aside = dir.path().join("manifest");
    fs::rename(data.join("manifest"), &aside).unwrap();
    for _ in 0..2 {
        assert_refused(&data, "manifest is damaged at byte 0: the file is missing");
    }
    fs::rename(&aside, data.join("manifest")).unwrap();
    assert_eq!(Server::start_in(&data).value("a"), 1);
}

#[test]
fn damage_at_the_end_of_the_journal_of_a_killed_server_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    for (number, damage) in ["zeroed", "flipped", "truncated", "removed"].into_iter().enumerate() {
        let data = dir.path().join(number.to_string());
        killed(&data);
        assert_eq!(run(tally().arg("check").arg(&data)).code, 0);
        let segment = file(&data, "journal-0");
        let open = || OpenOptions::new().read(true).write(true).open(&segment).unwrap();
        match damage {
            "zeroed" => open().write_all_at(&[0; 4056], 40).unwrap(),
            "flipped" => {
                let mut byte = [0];
                open().read_exact_at(&mut byte, 60).unwrap();
                open().write_all_at(&[byte[0] ^ 1], 60).unwrap();
            }
            "truncated" => open().set_len(40).unwrap(),
            _ => fs::remove_file(&segment).unwrap(),
        }
        let name = segment.file_name().unwrap().to_str().unwrap();
        assert_refused(&data, &format!("{name} is damaged at byte {}", if damage == "removed" { 0 } else { 40 }));
    }
}

#[test]
fn removing_the_lock_file_does_not_let_a_second_server_in() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let server = Server::start_in(&data);
    fs::remove_file(data.join("tally.lock")).unwrap();
    let second = run(&mut serve(&data));
    assert!(second.code == 1 && second.err.contains("is in use by another process"), "{}", second.err);
    let checked = run(tally().arg("check").arg(&data));
    assert!(checked.code == 1 && checked.err.contains("is in use"), "{}", checked.err);
    assert_eq!(server.send("POST", "/api/v1/counters/a/increment", "").status, 200);
}

#[test]
fn a_server_with_too_few_file_descriptors_does_not_start_and_says_how_many_it_needs() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -n 32 && exec \"$0\" serve --data \"$1\" --http 127.0.0.1:0 --resp 127.0.0.1:0"]);
    command.arg(env!("CARGO_BIN_EXE_tally")).arg(dir.path().join("data"));
    let ran = run(&mut command);
    assert!(ran.code == 1 && ran.err.contains("needs 176 file descriptors"), "{}: {}", ran.code, ran.err);
    assert!(ran.err.contains("the limit of this process is 32"), "{}", ran.err);
    assert!(!dir.path().join("data").exists(), "nothing is created");
}
