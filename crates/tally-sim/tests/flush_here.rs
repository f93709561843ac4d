//! Which thread flushes: the submitter if flushes are fast, otherwise the flusher.
#![allow(clippy::unwrap_used)]

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tally_core::key::KeyRef;
use tally_core::limits::{FLUSH_HERE_EVENTS_MAX, FLUSH_HERE_MICROS_MAX};
use tally_core::time::Millis;
use tally_engine::clock::Clock;
use tally_engine::disk::{Disk, DiskFile};
use tally_engine::{Durability, Machine, Seal, Settings};
use tally_sim::SimDisk;

/// A clock that advances only while the disk syncs.
#[derive(Default)]
struct Syncing {
    elapsed_micros: AtomicU64,
    sync_micros: AtomicU64,
}

impl Clock for Syncing {
    fn wall(&self) -> Millis {
        Millis(1_000)
    }

    fn elapsed(&self) -> Duration {
        Duration::from_micros(self.elapsed_micros.load(Ordering::Relaxed))
    }
}

/// A disk whose syncs take as long as the clock says.
struct Slow<T: ?Sized>(Arc<T>, Arc<Syncing>);

impl Disk for Slow<dyn Disk> {
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(Slow(self.0.open(name)?, Arc::clone(&self.1))))
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(Slow(self.0.create(name)?, Arc::clone(&self.1))))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.0.rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.0.remove(name)
    }

    fn names(&self) -> io::Result<Vec<String>> {
        self.0.names()
    }

    fn sync_names(&self) -> io::Result<()> {
        self.0.sync_names()
    }
}

impl DiskFile for Slow<dyn DiskFile> {
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.0.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.write_at(offset, data)
    }

    fn allocate(&self, len: u64) -> io::Result<()> {
        self.0.allocate(len)
    }

    fn truncate(&self, len: u64) -> io::Result<()> {
        self.0.truncate(len)
    }

    fn sync(&self) -> io::Result<()> {
        self.1.elapsed_micros.fetch_add(self.1.sync_micros.load(Ordering::Relaxed), Ordering::Relaxed);
        self.0.sync()
    }
}

struct Place {
    machine: Machine,
    clock: Arc<Syncing>,
}

impl Place {
    fn new() -> Place {
        let clock = Arc::new(Syncing::default());
        let disk = Arc::new(Slow(SimDisk::new(1).disk(), Arc::clone(&clock)));
        let settings = Settings { segment_bytes: 1 << 20, seed: 1, ..Settings::default() };
        Place { machine: Machine::open(disk, clock.clone(), settings, &mut |_, _| {}).unwrap(), clock }
    }

    /// Submits an increment of each of `counters` counters, after a flush that took `last_flush_micros`. Returns
    /// whether the submitting thread flushed them. If not, it must have flushed nothing, and the flusher does.
    fn flushes_here(&self, last_flush_micros: u64, counters: usize) -> bool {
        self.clock.sync_micros.store(last_flush_micros, Ordering::Relaxed);
        self.submit(1, || self.flush());
        self.clock.sync_micros.store(0, Ordering::Relaxed);
        let mut here = false;
        self.submit(counters, || {
            let before = (self.machine.flushed(), self.clock.elapsed());
            match self.machine.try_flush() {
                Some(done) => {
                    assert_eq!(done, (Seal::Applied, Ok(true)));
                    here = true;
                }
                None => {
                    assert_eq!((self.machine.flushed(), self.clock.elapsed()), before);
                    self.flush();
                }
            }
        });
        here
    }

    /// Seals and flushes like the flusher.
    fn flush(&self) {
        assert_eq!((self.machine.seal(), self.machine.flush()), (Seal::Applied, Ok(true)));
    }

    fn submit(&self, counters: usize, then: impl FnOnce()) {
        let mut events = self.machine.events();
        for number in 0..counters {
            events.add(KeyRef::new(format!("stock:{number}").as_bytes()).unwrap(), 1);
        }
        let mut call = pin!(self.machine.submit(events, Durability::Flushed, |_| {}));
        let context = &mut Context::from_waker(Waker::noop());
        assert!(call.as_mut().poll(context).is_pending());
        then();
        assert!(matches!(call.as_mut().poll(context), Poll::Ready(Ok(receipt)) if receipt.outcomes.len() == counters));
    }
}

#[test]
fn submitters_do_not_flush_inline_while_the_disk_is_slow() {
    let place = Place::new();
    assert!(place.flushes_here(FLUSH_HERE_MICROS_MAX, 1));
    assert!(!place.flushes_here(FLUSH_HERE_MICROS_MAX + 1, 1));
    assert!(!place.flushes_here(1_000_000, 1));
    assert!(place.flushes_here(FLUSH_HERE_MICROS_MAX, 1));
}

#[test]
fn submitters_do_not_flush_large_batches_inline() {
    let place = Place::new();
    assert!(place.flushes_here(0, FLUSH_HERE_EVENTS_MAX));
    assert!(!place.flushes_here(0, FLUSH_HERE_EVENTS_MAX + 1));
    assert!(place.flushes_here(0, 1));
}
