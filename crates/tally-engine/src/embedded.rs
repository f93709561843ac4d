//! The embedded engine: the machine and the threads that drive it.
//!
//! Four threads, each with one duty. The *flusher* seals what has gathered, flushes it and wakes its callers; while
//! one flush is under way the next batch fills, so there is no timer. The *checkpointer* moves changes to the store.
//! The *merger* fills memory after a restart and then keeps the store's runs few. The *marker* records how far the
//! journal is durable.

mod mark;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tally_core::batch::Events;
use tally_core::consistency::Consistency;
use tally_core::event::Change;
use tally_core::key::Key;
use tally_core::ledger::LedgerEntry;
use tally_core::limits::{CHECKPOINT_EVERY_MS, CHECKPOINT_RETRY_MS, MEMORY_BYTES_MIN, WARM_PAUSE_MICROS, WARM_SLICE};
use tally_core::outcome::{Reads, Receipt, Token};
use tally_core::reading::{Reading, Stats};
use tally_core::surface::{
    Engine, EngineError, Figure, FlushBy, Health, Measure, Page, PageRequest, ReadOptions, SubmitOptions,
};

use crate::checkpoint::Step;
use crate::clock::SystemClock;
use crate::disk::{Disk, RealDisk};
use crate::durability::Durability;
use crate::lock::{DirLock, Purpose};
use crate::machine::{Machine, Nudge, OpenError, Seal, Settings, Sweep, Warmth};
use crate::signal::{Signal, lock};
use crate::store::StoreError;

/// How to open an embedded engine.
#[derive(Clone, Debug)]
pub struct Config {
    /// The data directory; created if need be.
    pub data: PathBuf,
    /// Memory budget: beyond it, cold counters and old request ids leave RAM for the store.
    pub memory_bytes: u64,
    /// What to do if the time of the last batch is ahead of the system's clock.
    pub clock: StoredClock,
}

impl Config {
    /// A data directory and a memory budget; the rest as usual.
    #[must_use]
    pub fn new(data: impl Into<PathBuf>, memory_bytes: u64) -> Config {
        Config { data: data.into(), memory_bytes, clock: StoredClock::Keep }
    }
}

/// What to do with a stored clock that is ahead of the system's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StoredClock {
    /// Time goes on from there; a clock that is far ahead is reported.
    #[default]
    Keep,
    /// Time goes back to the system's clock.
    Reset,
}

/// The embedded engine: cheap to clone, all clones are one engine.
#[derive(Clone)]
pub struct Embedded {
    shared: Arc<Shared>,
}

struct Shared {
    machine: Machine,
    /// A batch waits for the flusher.
    flusher: Signal,
    /// A checkpoint may be due.
    checkpointer: Signal,
    /// A checkpoint is due now, whatever the journal's length.
    checkpoint_now: AtomicBool,
    /// Runs may be worth merging.
    merger: Signal,
    /// The journal was flushed further.
    flushed: Signal,
    /// The journal was flushed further than `journal.end` says.
    unmarked: Signal,
    /// The engine stops, so marking need not wait.
    marker_stop: Signal,
    /// The flusher stops once nothing waits for it.
    draining: AtomicBool,
    /// The other threads stop.
    stopping: AtomicBool,
    threads: Mutex<Vec<JoinHandle<()>>>,
    lock: Mutex<Option<DirLock>>,
}

impl Embedded {
    /// Opens the directory, recovers what it holds and starts the engine's threads. `progress` hears how many of
    /// how many journal bytes have been replayed.
    pub fn open(config: &Config, progress: &mut dyn FnMut(u64, u64)) -> Result<Embedded, OpenError> {
        crate::lock::check_files(config.memory_bytes.max(MEMORY_BYTES_MIN))?;
        let mut dir_lock = DirLock::take(&config.data, Purpose::Serve)?;
        let disk: Arc<dyn Disk> = Arc::new(RealDisk::new(&config.data)?);
        let settings = Settings {
            memory_bytes: config.memory_bytes.max(MEMORY_BYTES_MIN),
            seed: random_seed(),
            ..Settings::default()
        };
        let machine = Machine::open(disk, Arc::new(SystemClock), settings, progress)?;
        dir_lock.claim()?;
        if let Some(ahead_ms) = machine.clock_ahead_ms() {
            if config.clock == StoredClock::Reset {
                machine.reset_clock().map_err(|error| std::io::Error::other(error.to_string()))?;
                tracing::warn!(ahead_ms, "the stored clock was ahead of the system's and has been reset to it");
            } else {
                report_clock_ahead(ahead_ms);
            }
        }
        let shared = Arc::new(Shared::new(machine, Some(dir_lock)));
        for (name, duty) in [
            ("tally-flusher", Shared::flush_until_stopped as fn(&Shared)),
            ("tally-checkpoint", Shared::checkpoint_until_stopped),
            ("tally-merge", Shared::merge_until_stopped),
            ("tally-mark", Shared::mark_until_stopped),
        ] {
            let handle = start(name, duty, &shared)?;
            lock(&shared.threads).push(handle);
        }
        Ok(Embedded { shared })
    }

    /// Refuses new work, drains, flushes, checkpoints and stops the engine's threads. Blocks until done. Closing
    /// twice is closing once.
    pub fn close(&self) -> Result<(), EngineError> {
        let shared = &self.shared;
        shared.machine.begin_close();
        shared.machine.store.stop_merging();
        let threads = std::mem::take(&mut *lock(&shared.threads));
        // The flusher first: while it drains it may need a checkpoint to make room.
        for (number, thread) in threads.into_iter().enumerate() {
            let stop = if number == 0 { &shared.draining } else { &shared.stopping };
            stop.store(true, Ordering::Release);
            shared.nudge_all();
            // A thread that panicked has poisoned the engine already.
            let _ = thread.join();
        }
        if shared.machine.poison.reason().is_none() {
            shared.checkpoint();
        }
        lock(&shared.lock).take();
        match shared.machine.health() {
            Health::Poisoned(reason) => Err(EngineError::Poisoned(reason)),
            _ => Ok(()),
        }
    }
}

/// The stored clock never goes back by itself, because deadlines and request ids were judged by it.
fn report_clock_ahead(ahead_ms: u64) {
    tracing::error!(
        ahead_seconds = ahead_ms / 1_000,
        "the data directory was last written at a time that lies ahead of the system clock: one of the two was or is wrong. \
         Durations stay right, but timestamps, and deadlines given as a time of day, are off by the difference. If the system \
         clock is wrong, correct it and restart. If it was wrong before and is right now, restart with --reset-clock, which \
         takes Tally's clock back; counters whose deadlines were set meanwhile keep those deadlines"
    );
}

/// Key hashes are seeded from the system's randomness, so that nobody can craft colliding keys.
fn random_seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(0u8)
}

fn start(name: &str, duty: fn(&Shared), shared: &Arc<Shared>) -> std::io::Result<JoinHandle<()>> {
    let shared = Arc::clone(shared);
    thread::Builder::new().name(name.to_owned()).spawn(move || {
        if catch_unwind(AssertUnwindSafe(|| duty(&shared))).is_err() {
            shared.machine.poison(format!("the thread {} panicked", thread::current().name().unwrap_or("?")));
            shared.nudge_all();
        }
    })
}

impl Shared {
    fn new(machine: Machine, dir_lock: Option<DirLock>) -> Shared {
        Shared {
            machine,
            flusher: Signal::default(),
            checkpointer: Signal::default(),
            checkpoint_now: AtomicBool::new(false),
            merger: Signal::default(),
            flushed: Signal::default(),
            unmarked: Signal::default(),
            marker_stop: Signal::default(),
            draining: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
            threads: Mutex::new(Vec::new()),
            lock: Mutex::new(dir_lock),
        }
    }

    fn is_stopping(&self) -> bool {
        self.is_told(&self.stopping)
    }

    fn is_told(&self, stop: &AtomicBool) -> bool {
        stop.load(Ordering::Acquire) || self.machine.poison.reason().is_some()
    }

    fn nudge_all(&self) {
        for signal in
            [&self.flusher, &self.checkpointer, &self.merger, &self.flushed, &self.unmarked, &self.marker_stop]
        {
            signal.set();
        }
    }

    fn nudge(&self, nudge: Nudge) {
        match nudge {
            Nudge::None => {}
            Nudge::Flusher => self.flusher.set(),
            Nudge::Seal => {
                // The flusher may be waiting for the disk: apply meanwhile, if nobody else is at it.
                // A panic would leave a half-applied batch behind, on somebody else's thread.
                match catch_unwind(AssertUnwindSafe(|| self.machine.try_seal())) {
                    Ok(sealed) => self.request_checkpoint_if_needed(sealed),
                    Err(_) => drop(self.machine.poison("sealing a batch panicked".to_owned())),
                }
                self.flusher.set();
            }
        }
    }

    /// Does what the flusher would, on the calling thread, or leaves it to the flusher.
    fn flush_here(&self) {
        match catch_unwind(AssertUnwindSafe(|| self.machine.try_flush())) {
            Ok(None) => self.flusher.set(),
            Ok(Some((_, Err(_)))) => self.nudge_all(),
            Ok(Some((sealed, Ok(flushed)))) => {
                self.request_checkpoint_if_needed(Some(sealed));
                // Also when nothing was sealed: others may have sealed what was flushed, and a checkpoint may wait for it.
                if flushed {
                    self.after_flush();
                }
                // The flusher knows what to do with a batch that cannot be sealed now.
                if sealed != Seal::Applied || self.machine.needs_maintenance() {
                    self.flusher.set();
                }
            }
            Err(_) => {
                self.machine.poison("flushing a batch panicked".to_owned());
                self.nudge_all();
            }
        }
    }

    fn request_checkpoint_if_needed(&self, sealed: Option<Seal>) {
        let refused_for_room = sealed == Some(Seal::Refused) && self.machine.health() == Health::DiskFull;
        let wanted = self.machine.checkpoint_wanted.swap(false, Ordering::AcqRel);
        if sealed == Some(Seal::NeedsCheckpoint) || refused_for_room || wanted {
            self.ask_for_checkpoint();
        }
    }

    fn ask_for_checkpoint(&self) {
        self.checkpoint_now.store(true, Ordering::Release);
        self.checkpointer.set();
    }

    /// Group commit: whatever gathered while the last flush was under way is the next one.
    fn flush_until_stopped(&self) {
        loop {
            // Asked before sealing: from then on nobody joins, so a batch found empty stays empty.
            let is_draining = self.is_told(&self.draining);
            if self.machine.needs_maintenance() {
                self.machine.maintain_journal();
            }
            let sealed = self.machine.seal();
            self.request_checkpoint_if_needed(Some(sealed));
            match self.machine.flush() {
                Ok(true) => self.after_flush(),
                Ok(false) if sealed == Seal::Empty && is_draining => return,
                // Looks were answered without a flush: what has gathered meanwhile comes next.
                Ok(false) if matches!(sealed, Seal::BackedUp | Seal::Applied) => {}
                Ok(false) => self.flusher.wait(),
                Err(_) => return self.nudge_all(),
            }
        }
    }

    fn after_flush(&self) {
        self.flushed.set();
        self.unmarked.set();
        if self.machine.journal_lag() >= self.machine.settings.checkpoint_journal_bytes {
            self.checkpointer.set();
        }
    }

    fn checkpoint_until_stopped(&self) {
        self.sweep();
        while !self.is_stopping() {
            let lag = self.machine.journal_lag();
            let due = self.checkpoint_now.swap(false, Ordering::AcqRel)
                || lag >= self.machine.settings.checkpoint_journal_bytes;
            if !due {
                self.checkpointer.wait_up_to(Duration::from_millis(CHECKPOINT_EVERY_MS));
            }
            if self.is_stopping() {
                break;
            }
            self.checkpoint();
            self.sweep();
        }
    }

    fn checkpoint(&self) {
        let Some(mut checkpoint) = self.machine.checkpoint() else {
            // Nothing has changed, so a batch that waits for room can take the place of anything.
            return self.flusher.set();
        };
        loop {
            match checkpoint.step() {
                Ok(Step::More) => {}
                Ok(Step::AwaitFlush(position)) => {
                    if self.machine.poison.reason().is_some() {
                        return;
                    }
                    self.flusher.set();
                    if self.machine.flushed() < position {
                        self.flushed.wait();
                    }
                }
                Ok(Step::Done) => break,
                Err(error) => return self.checkpoint_failed(&error),
            }
        }
        drop(checkpoint);
        // Headroom in memory and segments to recycle: both are the flusher's business.
        self.flusher.set();
        self.merger.set();
    }

    /// Removes counters that have expired. Does not wait for the batch that removes them: it may in turn wait for a
    /// checkpoint, which is this thread's work.
    fn sweep(&self) {
        let mut sweep = Sweep::default();
        while !self.is_stopping() {
            let expired = match self.machine.find_expired(&mut sweep) {
                Ok(expired) => expired,
                Err(error) => return self.store_failed(&error),
            };
            if expired.is_empty() {
                break;
            }
            let mut events = self.machine.events();
            for (expires_at, key) in expired {
                events.push(key.as_ref(), Change::Sweep { expires_at }, None, None);
            }
            match self.machine.submit_detached(events) {
                Ok(Some(nudge)) => self.nudge(nudge),
                // There is more to do for the flusher than for us: the next sweep finds the rest.
                Ok(None) | Err(_) => return,
            }
        }
        if sweep.is_exhausted() {
            self.ask_for_checkpoint();
        }
    }

    fn checkpoint_failed(&self, error: &StoreError) {
        if error.is_full() {
            tracing::warn!(%error, "no room for a checkpoint; the journal keeps everything until there is");
            // A batch that waits for room in memory is refused now.
            self.flusher.set();
            return self.wait_for_room();
        }
        self.store_failed(error);
    }

    /// Lets some time pass, however many ask for a checkpoint meanwhile: nothing gets better by trying at once.
    fn wait_for_room(&self) {
        let until = self.machine.clock.elapsed() + Duration::from_millis(CHECKPOINT_RETRY_MS);
        while !self.is_stopping() {
            let left = until.saturating_sub(self.machine.clock.elapsed());
            if left.is_zero() {
                return;
            }
            self.checkpointer.wait_up_to(left);
        }
    }

    /// Fills memory after a restart, unhurriedly.
    fn warm(&self) {
        let mut from = Vec::new();
        while !self.is_stopping() {
            match self.machine.warm(&mut from, WARM_SLICE) {
                Ok(Warmth::Warming) => self.merger.wait_up_to(Duration::from_micros(WARM_PAUSE_MICROS)),
                Ok(Warmth::Warm) => return,
                Err(error) => return self.store_failed(&error),
            }
        }
    }

    fn store_failed(&self, error: &StoreError) {
        self.machine.poison(format!("the store failed: {error}. `tally check` reads it all and changes nothing"));
        self.nudge_all();
    }

    fn merge_until_stopped(&self) {
        self.warm();
        while !self.is_stopping() {
            match self.machine.merge() {
                Ok(true) => {}
                Ok(false) => self.merger.wait(),
                Err(error) if error.is_full() => {
                    tracing::warn!(%error, "no room to merge runs; trying again after the next checkpoint");
                    self.merger.wait();
                }
                Err(error) => self.store_failed(&error),
            }
        }
    }
}

impl Engine for Embedded {
    fn events(&self) -> Events {
        self.shared.machine.events()
    }

    async fn submit(&self, events: Events, options: SubmitOptions) -> Result<Receipt, EngineError> {
        let durability = options.consistency.into();
        let flushes_here = options.flush == FlushBy::Caller && durability == Durability::Flushed;
        let nudge = |nudge| match nudge {
            Nudge::Flusher if flushes_here => self.shared.flush_here(),
            nudge => self.shared.nudge(nudge),
        };
        self.shared.machine.submit(events, durability, nudge).await
    }

    async fn read_events(&self, events: Events, options: ReadOptions) -> Result<Reads, EngineError> {
        self.shared.machine.require(&options)?;
        let mut reads = self.shared.machine.read_events(&events)?;
        if options.consistency == Consistency::BestEffort {
            reads.unflushed.clear();
        }
        Ok(reads)
    }

    async fn durable(&self, token: Token) -> Result<(), EngineError> {
        self.shared.machine.durable(&token).await
    }

    async fn read(&self, keys: Vec<Key>, options: ReadOptions) -> Result<Vec<Reading>, EngineError> {
        self.shared.machine.require(&options)?;
        self.shared.machine.read(&keys, options.consistency.into()).await
    }

    async fn stats(&self, key: Key, options: ReadOptions) -> Result<Stats, EngineError> {
        self.shared.machine.require(&options)?;
        self.shared.machine.stats(&key, options.consistency.into()).await
    }

    async fn list(&self, page: PageRequest) -> Result<Page, EngineError> {
        self.shared.machine.list(&page).await
    }

    async fn ledger(&self, key: Key, after: u64, limit: usize) -> Result<Vec<LedgerEntry>, EngineError> {
        self.shared.machine.ledger(&key, after, limit).await
    }

    async fn count(&self, options: ReadOptions) -> Result<u64, EngineError> {
        self.shared.machine.count(options.consistency.into()).await
    }

    async fn sample(&self, number: u64) -> Result<Option<Key>, EngineError> {
        self.shared.machine.sample(number).await
    }

    fn health(&self) -> Health {
        self.shared.machine.health()
    }

    async fn poisoned(&self) -> String {
        self.shared.machine.poison.wait().await
    }

    fn measures(&self) -> Vec<Measure> {
        self.shared.measures()
    }
}

impl Shared {
    fn measures(&self) -> Vec<Measure> {
        let machine = &self.machine;
        let meters = &machine.meters;
        let (all, expiring, memory, counters, requests, dirty) = {
            let state = machine.state.lock();
            let partition = &state.partition;
            let figures = (partition.resident_counters(), partition.resident_requests(), partition.dirty_counters());
            let all = (partition.counters(), partition.expiring());
            (all.0, all.1, partition.memory_bytes(), figures.0, figures.1, figures.2)
        };
        let count = |name, help, figure: &std::sync::atomic::AtomicU64| Measure {
            name,
            help,
            figure: Figure::Counter(figure.load(Ordering::Relaxed)),
        };
        let gauge = |name, help, figure: f64| Measure { name, help, figure: Figure::Gauge(figure) };
        vec![
            count(
                "tally_events_total",
                "Events applied, before combining, each once however often it was tried",
                &meters.events,
            ),
            count("tally_journalled_events_total", "Events journalled, after combining", &meters.journalled_events),
            count("tally_duplicates_total", "Events answered from a remembered request id", &meters.duplicates),
            count(
                "tally_expired_counters_total",
                "Counters that had expired when they were forgotten or counted afresh",
                &meters.expired,
            ),
            count("tally_journal_bytes_total", "Bytes written to the journal", &meters.journal_bytes),
            count(
                "tally_store_reads_total",
                "Records fetched from the store because memory lacked them",
                &meters.store_reads,
            ),
            count("tally_checkpoints_total", "Checkpoints completed", &meters.checkpoints),
            count("tally_checkpoint_records_total", "Records written by checkpoints", &meters.checkpoint_records),
            Measure {
                name: "tally_journal_flush_seconds",
                help: "Time to write and sync one flush",
                figure: meters.flush_micros.figure(1e-6),
            },
            Measure {
                name: "tally_batch_events",
                help: "Events per batch, before combining",
                figure: meters.batch_events.figure(1.0),
            },
            gauge("tally_persist_lag_bytes", "Journal behind the last checkpoint", machine.journal_lag() as f64),
            gauge("tally_memory_bytes", "Memory held by counters and request ids", memory as f64),
            gauge("tally_counters", "Counters in memory and in the store", all as f64),
            gauge(
                "tally_expiring_counters",
                "Counters in memory and in the store that have an expiry, past ones included until they are forgotten",
                expiring as f64,
            ),
            gauge("tally_resident_counters", "Counters in memory", counters as f64),
            gauge("tally_dirty_counters", "Counters changed since the last checkpoint began", dirty as f64),
            gauge("tally_idempotency_entries", "Request ids in memory", requests as f64),
            gauge("tally_store_bytes", "Bytes of the store on disk", machine.store.disk_bytes() as f64),
            gauge("tally_store_runs", "Runs of the store", machine.store.runs() as f64),
            gauge("tally_poisoned", "1 after a failed flush", f64::from(u8::from(machine.poison.reason().is_some()))),
        ]
    }
}

#[cfg(test)]
mod tests;
