//! A data directory of format 1 opens with all its data and is converted to the current format.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tally_contract::block_on;
use tally_core::event::{Change, RequestId};
use tally_core::key::{Key, KeyRef};
use tally_core::limits::MEMORY_BYTES_MIN;
use tally_core::reading::Reading;
use tally_core::surface::{Engine, ReadOptions};
use tally_core::time::Millis;
use tally_engine::check::check;
use tally_engine::clock::Clock;
use tally_engine::disk::RealDisk;
use tally_engine::{Config, Embedded, Machine, OpenError, Settings, Step};
use tempfile::TempDir;

/// Shortly after the fixture was made, so that its request ids are still remembered.
struct Then;

impl Clock for Then {
    fn wall(&self) -> Millis {
        Millis(1_794_795_270_000)
    }

    fn elapsed(&self) -> Duration {
        Duration::ZERO
    }
}

const EXPIRY: Millis = Millis(4_102_444_800_000);
const LAST_HASH: &str = "e16d66b1a294ae0f758a777b7c0b1bfaac233070b3de2d544c93a2735df3b3c2";

fn fixture() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/format-1")).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), dir.path().join(entry.file_name())).unwrap();
    }
    dir
}

fn files(dir: &TempDir) -> BTreeMap<String, Vec<u8>> {
    let read = |entry: fs::DirEntry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap());
    fs::read_dir(dir.path()).unwrap().map(|entry| read(entry.unwrap())).collect()
}

fn open(dir: &TempDir) -> Result<Machine, OpenError> {
    let settings = Settings { segment_bytes: 64 << 10, seed: 3, ..Settings::default() };
    let disk = Arc::new(RealDisk::new(dir.path()).unwrap());
    Machine::open(disk, Arc::new(Then), settings, &mut |_, _| {})
}

fn read(machine: &Machine, key: &str) -> Reading {
    block_on(machine.read(&[Key::new(key).unwrap()], tally_engine::Durability::Flushed)).unwrap()[0]
}

/// Adds with a request id. Returns the new value and whether it was a duplicate.
fn add(machine: &Machine, key: &str, id: &str, amount: i64) -> (i64, bool) {
    let mut events = machine.events();
    let key = KeyRef::new(key.as_bytes()).unwrap();
    events.push(key, Change::Add(amount), Some(RequestId::new(key, id.as_bytes()).unwrap()), None);
    let drive = |_| {
        machine.seal();
        machine.flush().unwrap();
    };
    let outcome = block_on(machine.submit(events, tally_engine::Durability::Flushed, drive)).unwrap().outcomes[0];
    (outcome.value, outcome.is_duplicate())
}

fn assert_values(machine: &Machine) {
    for number in 1..=20 {
        let expected = 10 * number + i64::from(number <= 10);
        assert_eq!(read(machine, &format!("likes:post:{number}")).value, expected);
    }
    for (key, expected) in [("orders:1", 3), ("orders:2", 4), ("stock:widget", 480), ("late:1", 11)] {
        assert_eq!(read(machine, key).value, expected, "{key}");
    }
    for (key, expected) in [("session:1", 7), ("session:2", 8)] {
        let reading = read(machine, key);
        assert_eq!((reading.value, reading.expires_at), (expected, Some(EXPIRY)), "{key}");
    }
    assert!(!read(machine, "gone:1").exists);
    assert_eq!(add(machine, "orders:1", "order-1", 3), (3, true), "an id that the store holds");
    assert_eq!(add(machine, "orders:2", "order-2", 4), (4, true), "an id that the journal holds");
    let key = Key::new("stock:widget").unwrap();
    let ledger = block_on(machine.ledger(&key, 0, 10)).unwrap();
    assert_eq!(ledger.iter().map(|entry| (entry.before, entry.after)).collect::<Vec<_>>(), [(0, 500), (500, 480)]);
    let hash: String = ledger[1].hash.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hash, LAST_HASH);
}

fn checkpoint(machine: &Machine) {
    let mut checkpoint = machine.checkpoint().unwrap();
    while checkpoint.step().unwrap() != Step::Done {}
}

#[test]
fn a_directory_of_format_1_opens_with_all_its_data_and_so_do_later_starts() {
    let dir = fixture();
    let before = files(&dir);
    check(dir.path(), &mut |_, _| {}).unwrap();
    assert_eq!(files(&dir), before, "check changes nothing");
    let machine = open(&dir).unwrap();
    assert_eq!(files(&dir)["manifest"][8], 2, "the manifest is of version 2 now");
    assert_values(&machine);
    drop(machine);
    check(dir.path(), &mut |_, _| {}).unwrap();
    let machine = open(&dir).unwrap();
    assert_values(&machine);
    checkpoint(&machine);
    drop(machine);
    check(dir.path(), &mut |_, _| {}).unwrap();
    let machine = open(&dir).unwrap();
    assert_values(&machine);
}

#[test]
fn the_first_start_records_the_new_format() {
    let dir = fixture();
    let config = Config::new(dir.path(), MEMORY_BYTES_MIN);
    for _ in 0..2 {
        let engine = Embedded::open(&config, &mut |_, _| {}).unwrap();
        let lock = fs::read_to_string(dir.path().join("tally.lock")).unwrap();
        assert_eq!(lock, format!("tally-data-format 2\nprocess {}\n", std::process::id()));
        let reading = block_on(engine.read(vec![Key::new("likes:post:3").unwrap()], ReadOptions::default())).unwrap();
        assert_eq!(reading[0].value, 31);
        engine.close().unwrap();
        check(dir.path(), &mut |_, _| {}).unwrap();
    }
}

#[test]
fn a_missing_manifest_of_format_1_is_not_damage_if_the_journal_is_complete() {
    let dir = fixture();
    fs::remove_file(dir.path().join("manifest")).unwrap();
    check(dir.path(), &mut |_, _| {}).unwrap();
    let machine = open(&dir).unwrap();
    assert_values(&machine);
    assert!(!files(&dir).keys().any(|name| name.ends_with(".run")), "runs that no manifest names are gone");
}

#[test]
fn a_directory_of_format_1_without_manifest_and_beginning_of_journal_is_refused_unchanged() {
    for lost in [
        &["manifest", "journal-0000000000000000.seg"][..],
        &["manifest", "journal-0000000000000000.seg", "journal-0000000000000610.seg"],
    ] {
        let dir = fixture();
        for name in lost {
            fs::remove_file(dir.path().join(name)).unwrap();
        }
        let before = files(&dir);
        let checked = check(dir.path(), &mut |_, _| {}).unwrap_err().to_string();
        let refused = open(&dir).err().unwrap().to_string();
        for words in [checked, refused] {
            assert!(words.contains("manifest is damaged at byte 0: the file is missing"), "{words}");
        }
        assert_eq!(files(&dir), before);
    }
}
