//! Counters that are deleted during a listing: pages may be empty, but following the cursors finds the rest.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, Weak};

use tally_contract::block_on;
use tally_core::event::{Change, Correction};
use tally_core::key::{Key, KeyRef};
use tally_core::surface::{Page, PageRequest};
use tally_engine::clock::SystemClock;
use tally_engine::disk::{Disk, DiskFile, RealDisk};
use tally_engine::{Machine, Settings, Step};

const SETTINGS: Settings =
    Settings { memory_bytes: 64 << 20, segment_bytes: 1 << 20, checkpoint_journal_bytes: 1 << 16, seed: 7 };

/// Runs at the next read of a file, once.
type AtRead = Arc<Mutex<Option<Box<dyn FnOnce() + Send>>>>;

/// A disk that can run a hook during a read. A listing scans memory, then the store, and then looks up the keys it
/// found, so the hook runs between the scan and the lookup.
struct Interrupted {
    disk: RealDisk,
    at_read: AtRead,
}

struct InterruptedFile {
    file: Arc<dyn DiskFile>,
    at_read: AtRead,
}

impl Interrupted {
    fn wrap(&self, file: Arc<dyn DiskFile>) -> Arc<dyn DiskFile> {
        Arc::new(InterruptedFile { file, at_read: Arc::clone(&self.at_read) })
    }
}

impl Disk for Interrupted {
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        Ok(self.wrap(self.disk.open(name)?))
    }
    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        Ok(self.wrap(self.disk.create(name)?))
    }
    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.disk.rename(from, to)
    }
    fn remove(&self, name: &str) -> io::Result<()> {
        self.disk.remove(name)
    }
    fn names(&self) -> io::Result<Vec<String>> {
        self.disk.names()
    }
    fn sync_names(&self) -> io::Result<()> {
        self.disk.sync_names()
    }
}

impl DiskFile for InterruptedFile {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        // Taken first, because the hook may read as well.
        let happens = self.at_read.lock().unwrap().take();
        if let Some(happens) = happens {
            happens();
        }
        self.file.read_at(offset, buf)
    }
    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.file.write_at(offset, data)
    }
    fn allocate(&self, len: u64) -> io::Result<()> {
        self.file.allocate(len)
    }
    fn truncate(&self, len: u64) -> io::Result<()> {
        self.file.truncate(len)
    }
    fn sync(&self) -> io::Result<()> {
        self.file.sync()
    }
}

/// A machine, and the hook between its scan and its lookup.
struct Listed {
    machine: Arc<Machine>,
    at_read: AtRead,
}

fn name(number: usize) -> Key {
    Key::new(format!("k:{number:03}")).unwrap()
}

fn drive(machine: &Machine) {
    machine.maintain_journal();
    machine.seal();
    machine.flush().unwrap();
}

fn delete(machine: &Machine, numbers: Range<usize>) {
    let mut events = machine.events();
    for number in numbers {
        let why = Correction::new("test", "gone").unwrap();
        events.push(name(number).as_ref(), Change::Delete(why), None, None);
    }
    block_on(machine.submit(events, tally_engine::Durability::Flushed, |_| drive(machine))).unwrap();
}

impl Listed {
    /// Counters `k:000` and so on, only in memory, and one in the store that sorts after them.
    fn with(dir: &Path, counters: usize) -> Listed {
        let at_read = AtRead::default();
        let disk = Interrupted { disk: RealDisk::new(dir).unwrap(), at_read: Arc::clone(&at_read) };
        let clock = Arc::new(SystemClock);
        let machine = Arc::new(Machine::open(Arc::new(disk), clock, SETTINGS, &mut |_, _| {}).unwrap());
        let listed = Listed { machine, at_read };
        listed.add(&[Key::new("k:stored").unwrap()]);
        let mut checkpoint = listed.machine.checkpoint().unwrap();
        loop {
            match checkpoint.step().unwrap() {
                Step::More => {}
                Step::AwaitFlush(_) => drop(listed.machine.flush()),
                Step::Done => break,
            }
        }
        drop(checkpoint);
        listed.add(&(0..counters).map(name).collect::<Vec<_>>());
        listed
    }

    fn add(&self, keys: &[Key]) {
        let mut events = self.machine.events();
        keys.iter().for_each(|key| events.add(KeyRef::new(key.as_bytes()).unwrap(), 1));
        block_on(self.machine.submit(events, tally_engine::Durability::Flushed, |_| drive(&self.machine))).unwrap();
    }

    /// One page, with these counters deleted between its scan and its lookup.
    fn page_while_deleting(&self, after: Option<Key>, limit: usize, gone: Range<usize>) -> Page {
        let machine: Weak<Machine> = Arc::downgrade(&self.machine);
        let happened = Arc::new(OnceLock::new());
        let done = Arc::clone(&happened);
        *self.at_read.lock().unwrap() = Some(Box::new(move || {
            delete(&machine.upgrade().unwrap(), gone);
            done.set(()).unwrap();
        }));
        let page = self.page(after, limit);
        assert!(happened.get().is_some(), "the scan read nothing, so nothing happened in the middle of it");
        page
    }

    fn page(&self, after: Option<Key>, limit: usize) -> Page {
        block_on(self.machine.list(&PageRequest { prefix: b"k:".to_vec(), after, limit })).unwrap()
    }

    /// The keys of all pages from here on, following the cursors.
    fn rest(&self, mut next: Option<Key>, limit: usize) -> Vec<Key> {
        let mut keys = Vec::new();
        while let Some(after) = next {
            let page = self.page(Some(after), limit);
            keys.extend(page.items.into_iter().map(|(key, _)| key));
            next = page.next;
        }
        keys
    }
}

#[test]
fn a_page_whose_counters_were_all_deleted_is_empty_and_its_cursor_leads_to_the_rest() {
    let dir = tempfile::tempdir().unwrap();
    let listed = Listed::with(dir.path(), 10);
    let page = listed.page_while_deleting(None, 4, 0..4);
    assert!(page.items.is_empty(), "{:?}", page.items);
    assert_eq!(page.next, Some(name(3)), "more follow, although nothing is shown");
    let expected: Vec<Key> = (4..10).map(name).chain([Key::new("k:stored").unwrap()]).collect();
    assert_eq!(listed.rest(page.next, 4), expected);
}

#[test]
fn deletions_during_a_page_make_no_other_counter_missed_or_listed_twice() {
    for (limit, gone) in [(1, 0..1), (1, 0..9), (3, 1..2), (3, 2..5), (4, 3..4), (4, 4..5), (9, 0..9), (100, 0..10)] {
        let dir = tempfile::tempdir().unwrap();
        let listed = Listed::with(dir.path(), 10);
        let page = listed.page_while_deleting(None, limit, gone.clone());
        let mut keys: Vec<Key> = page.items.into_iter().map(|(key, _)| key).collect();
        keys.extend(listed.rest(page.next, limit));
        let expected: Vec<Key> =
            (0..10).filter(|number| !gone.contains(number)).map(name).chain([Key::new("k:stored").unwrap()]).collect();
        assert_eq!(keys, expected, "pages of {limit} while {gone:?} go");
    }
}
