//! The embedded engine: the machine and the threads that drive it.
//!
//! There are four threads. The *flusher* seals and flushes the open batch and wakes its callers; the next batch fills
//! during a flush, so no timer is needed. The *checkpointer* moves changes to the store. The *merger* loads counters
//! into memory after a restart and then merges runs. The *marker* records how far the journal is durable.

mod mark;

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tally_core::batch::Events;
use tally_core::consistency::Consistency;
use tally_core::event::Change;
use tally_core::key::Key;
use tally_core::ledger::LedgerEntry;
use tally_core::limits::{
    CHECKPOINT_EVERY_MS, CHECKPOINT_RETRY_MS, MEMORY_BYTES_MIN, PROCESS_BYTES, WARM_PAUSE_MICROS, WARM_SLICE,
};
use tally_core::outcome::{Reads, Receipt, Token};
use tally_core::reading::{Reading, Stats};
use tally_core::surface::{
    CounterSnapshot, Engine, EngineError, FlushBy, Health, KeyPage, Metric, Page, PageRequest, ReadOptions,
    RequestCursor, RequestPage, SubmitOptions,
};

use crate::backup::{Backup, BackupPermit};
use crate::checkpoint::Step;
use crate::clock::SystemClock;
use crate::disk::Disk;
use crate::lock::{DirLock, Purpose};
use crate::machine::{Durability, Machine, Nudge, OpenError, Seal, Settings, Sweep, WarmUp};
use crate::signal::{Signal, WakerList, lock};
use crate::store::StoreError;

/// How to open an embedded engine.
#[derive(Clone, Debug)]
pub struct Config {
    /// The data directory. Created if it does not exist.
    pub data: PathBuf,
    /// Memory budget of the process. Cold counters and old request ids beyond it are evicted to the store.
    pub memory_bytes: u64,
    /// What to do if the time of the last batch is ahead of the system clock.
    pub clock: StoredClock,
}

impl Config {
    /// The defaults for this data directory and memory budget.
    #[must_use]
    pub fn new(data: impl Into<PathBuf>, memory_bytes: u64) -> Config {
        Config { data: data.into(), memory_bytes, clock: StoredClock::Keep }
    }
}

/// What to do with a stored clock that is ahead of the system clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StoredClock {
    /// Continue from the stored time. If it is far ahead, log an error.
    #[default]
    Keep,
    /// Reset the stored clock to the system clock.
    Reset,
}

/// The embedded engine. Cheap to clone; all clones are one engine.
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
    /// A checkpoint is due, however short the journal is.
    checkpoint_now: AtomicBool,
    /// Calls that wait for a checkpoint.
    checkpointed: WakerList,
    /// Runs may be worth merging.
    merger: Signal,
    /// The journal was flushed. The checkpointer waits for it.
    flushed: Signal,
    /// The journal was flushed. The marker waits for it.
    unmarked: Signal,
    /// Interrupts the marker's pause when the engine stops.
    marker_stop: Signal,
    /// Tells the flusher to stop once there is nothing left to flush.
    draining: AtomicBool,
    /// Tells the other threads to stop.
    stopping: AtomicBool,
    threads: Mutex<Vec<JoinHandle<()>>>,
    lock: Mutex<Option<DirLock>>,
    backups: Mutex<BackupPermit>,
}

impl Embedded {
    /// Opens and recovers the data directory and starts the engine's threads. `progress` is called with the journal
    /// bytes replayed so far and their total.
    pub fn open(config: &Config, progress: &mut dyn FnMut(u64, u64)) -> Result<Embedded, OpenError> {
        let memory_bytes = config.memory_bytes.max(MEMORY_BYTES_MIN) - PROCESS_BYTES;
        crate::lock::check_files(memory_bytes)?;
        let mut dir_lock = DirLock::take(&config.data, Purpose::Serve)?;
        let disk: Arc<dyn Disk> = Arc::new(dir_lock.disk(Purpose::Serve)?);
        let settings = Settings { memory_bytes, seed: random_seed(), ..Settings::default() };
        let machine = Machine::open(disk, Arc::new(SystemClock), settings, progress)?;
        dir_lock.claim()?;
        if let Some(ahead_ms) = machine.clock_ahead_ms() {
            if config.clock == StoredClock::Reset {
                machine.reset_clock().map_err(|error| std::io::Error::other(error.to_string()))?;
                tracing::warn!(ahead_ms, "the stored clock was ahead of the system clock and has been reset to it");
            } else {
                report_clock_ahead(ahead_ms);
            }
        }
        let shared = Arc::new(Shared::new(machine, Some(dir_lock)));
        for (name, work) in [
            ("tally-flusher", Shared::flush_until_stopped as fn(&Shared)),
            ("tally-checkpoint", Shared::checkpoint_until_stopped),
            ("tally-merge", Shared::merge_until_stopped),
            ("tally-mark", Shared::mark_until_stopped),
        ] {
            let handle = start(name, work, &shared)?;
            lock(&shared.threads).push(handle);
        }
        Ok(Embedded { shared })
    }

    /// A consistent copy of everything acknowledged before the call; it may include later changes. `None` if another
    /// backup is being read.
    pub async fn backup(&self) -> Result<Option<Backup>, EngineError> {
        let permit = lock(&self.shared.backups).take();
        let Some(permit) = permit else { return Ok(None) };
        self.shared.sync_store().await?;
        Ok(Some(self.shared.machine.backup(permit)))
    }

    /// Refuses new calls, flushes what was accepted, writes a checkpoint and stops the threads. Blocks until done.
    /// Idempotent.
    pub fn close(&self) -> Result<(), EngineError> {
        let shared = &self.shared;
        shared.machine.begin_close();
        shared.machine.store.stop_merging();
        let threads = std::mem::take(&mut *lock(&shared.threads));
        // The flusher first: it may still need a checkpoint to make room.
        for (number, thread) in threads.into_iter().enumerate() {
            let stop = if number == 0 { &shared.draining } else { &shared.stopping };
            stop.store(true, Ordering::Release);
            shared.wake_all();
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

/// Not corrected automatically, because deadlines and request ids were decided by the stored clock.
fn report_clock_ahead(ahead_ms: u64) {
    tracing::error!(
        ahead_seconds = ahead_ms / 1_000,
        "the data directory was last written at a time ahead of the system clock. Durations are not affected; timestamps and \
         deadlines given as a time of day are off. If the system clock is wrong, correct it and restart. If it was wrong \
         before, restart with --reset-clock; deadlines set meanwhile stay as they are"
    );
}

/// Random, so that clients cannot craft colliding keys.
fn random_seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(0u8)
}

fn start(name: &str, work: fn(&Shared), shared: &Arc<Shared>) -> std::io::Result<JoinHandle<()>> {
    let shared = Arc::clone(shared);
    thread::Builder::new().name(name.to_owned()).spawn(move || {
        if catch_unwind(AssertUnwindSafe(|| work(&shared))).is_err() {
            shared.machine.poison(format!("the thread {} panicked", thread::current().name().unwrap_or("?")));
            shared.wake_all();
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
            checkpointed: WakerList::default(),
            merger: Signal::default(),
            flushed: Signal::default(),
            unmarked: Signal::default(),
            marker_stop: Signal::default(),
            draining: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
            threads: Mutex::new(Vec::new()),
            lock: Mutex::new(dir_lock),
            backups: Mutex::default(),
        }
    }

    fn is_stopping(&self) -> bool {
        self.should_stop(&self.stopping)
    }

    fn should_stop(&self, stop: &AtomicBool) -> bool {
        stop.load(Ordering::Acquire) || self.machine.poison.reason().is_some()
    }

    fn wake_all(&self) {
        for signal in
            [&self.flusher, &self.checkpointer, &self.merger, &self.flushed, &self.unmarked, &self.marker_stop]
        {
            signal.set();
        }
        self.checkpointed.wake_all();
    }

    fn nudge(&self, nudge: Nudge) {
        match nudge {
            Nudge::None => {}
            Nudge::Flusher => self.flusher.set(),
            Nudge::Seal => {
                // The flusher may be waiting for the disk, so seal here, unless another thread is sealing.
                // This is a caller's thread: a panic must not unwind into it, and leaves a half-applied batch.
                match catch_unwind(AssertUnwindSafe(|| self.machine.try_seal())) {
                    Ok(sealed) => self.request_checkpoint_if_needed(sealed),
                    Err(_) => drop(self.machine.poison("sealing a batch panicked".to_owned())),
                }
                self.flusher.set();
            }
        }
    }

    /// Seals and flushes on the calling thread, or wakes the flusher if that could take long.
    fn flush_here(&self) {
        match catch_unwind(AssertUnwindSafe(|| self.machine.try_flush())) {
            Ok(None) => self.flusher.set(),
            Ok(Some((_, Err(_)))) => self.wake_all(),
            Ok(Some((sealed, Ok(flushed)))) => {
                self.request_checkpoint_if_needed(Some(sealed));
                // Even if nothing was sealed here: another thread may have sealed what was flushed.
                if flushed {
                    self.after_flush();
                }
                // The flusher retries a batch that cannot be sealed now.
                if sealed != Seal::Applied || self.machine.needs_maintenance() {
                    self.flusher.set();
                }
            }
            Err(_) => {
                self.machine.poison("flushing a batch panicked".to_owned());
                self.wake_all();
            }
        }
    }

    fn request_checkpoint_if_needed(&self, sealed: Option<Seal>) {
        let refused_for_room = sealed == Some(Seal::Refused) && self.machine.health() == Health::DiskFull;
        let wanted = self.machine.checkpoint_wanted.swap(false, Ordering::AcqRel);
        if sealed == Some(Seal::NeedsCheckpoint) || refused_for_room || wanted {
            self.request_checkpoint();
        }
    }

    fn request_checkpoint(&self) {
        self.checkpoint_now.store(true, Ordering::Release);
        self.checkpointer.set();
    }

    /// Group commit: everything that joined during one flush is written by the next.
    fn flush_until_stopped(&self) {
        loop {
            // Read before sealing: once draining, nobody joins, so an empty batch stays empty.
            let is_draining = self.should_stop(&self.draining);
            if self.machine.needs_maintenance() {
                self.machine.maintain_journal();
            }
            let sealed = self.machine.seal();
            self.request_checkpoint_if_needed(Some(sealed));
            match self.machine.flush() {
                Ok(true) => self.after_flush(),
                Ok(false) if sealed == Seal::Empty && is_draining => return,
                // Another thread flushed, or only reads were answered: continue with what joined since.
                Ok(false) if matches!(sealed, Seal::BackedUp | Seal::Applied) => {}
                Ok(false) => self.flusher.wait(),
                Err(_) => return self.wake_all(),
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

    /// Resolves once a checkpoint includes everything applied before the call.
    async fn sync_store(&self) -> Result<(), EngineError> {
        let Some(position) = self.machine.checkpoint_target() else { return Ok(()) };
        poll_fn(|context| {
            self.checkpointed.register(context.waker());
            if self.machine.store.position() >= position {
                return Poll::Ready(Ok(()));
            }
            match self.machine.health() {
                Health::Poisoned(reason) => return Poll::Ready(Err(EngineError::Poisoned(reason))),
                Health::Closing => return Poll::Ready(Err(EngineError::Closing)),
                Health::DiskFull => return Poll::Ready(Err(EngineError::DiskFull)),
                Health::Ready | Health::Recovering | Health::Degraded { .. } => {}
            }
            self.request_checkpoint();
            Poll::Pending
        })
        .await
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
            self.checkpointed.wake_all();
            self.sweep();
        }
        self.checkpointed.wake_all();
    }

    fn checkpoint(&self) {
        let Some(mut checkpoint) = self.machine.checkpoint() else {
            // Nothing is dirty, so anything can be evicted for a batch that waits for room.
            return self.flusher.set();
        };
        loop {
            match checkpoint.step() {
                Ok(Step::More) => {
                    if self.machine.waits_for_slice.swap(false, Ordering::AcqRel) {
                        self.flusher.set();
                    }
                }
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
                Err(error) => {
                    // Before the pause, so that no copies of what changes meanwhile are kept.
                    drop(checkpoint);
                    return self.checkpoint_failed(&error);
                }
            }
        }
        drop(checkpoint);
        // There may be room in memory now, and segments to trim.
        self.flusher.set();
        self.merger.set();
    }

    /// Removes expired counters. Must not wait for the batch that removes them: that batch may wait for a checkpoint,
    /// which is written by this thread.
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
                // The engine is busy or closing. The next sweep finds the rest.
                Ok(None) | Err(_) => return,
            }
        }
        if sweep.is_exhausted() {
            self.request_checkpoint();
        }
    }

    fn checkpoint_failed(&self, error: &StoreError) {
        if error.is_full() {
            tracing::warn!(%error, "no disk space for a checkpoint; the journal grows until some is freed");
        } else if error.is_out_of_files() {
            tracing::warn!(%error, "no file descriptors for a checkpoint, trying again; raise the limit, `ulimit -n`");
            // A merge closes files. It may have found no descriptors either, and waits.
            self.merger.set();
        } else {
            return self.store_failed(error);
        }
        // A batch that waits for room in memory may have to be refused now, or has some without the checkpoint's copies.
        self.flusher.set();
        self.pause_before_retry();
    }

    /// Pauses before the next checkpoint, even if more are requested meanwhile.
    fn pause_before_retry(&self) {
        let until = self.machine.clock.elapsed() + Duration::from_millis(CHECKPOINT_RETRY_MS);
        while !self.is_stopping() {
            let left = until.saturating_sub(self.machine.clock.elapsed());
            if left.is_zero() {
                return;
            }
            self.checkpointer.wait_up_to(left);
        }
    }

    /// Loads counters into memory after a restart, with pauses so that calls are not delayed.
    fn warm(&self) {
        let mut from = Vec::new();
        while !self.is_stopping() {
            match self.machine.warm(&mut from, WARM_SLICE) {
                Ok(WarmUp::InProgress) => self.merger.wait_up_to(Duration::from_micros(WARM_PAUSE_MICROS)),
                Ok(WarmUp::Done) => return,
                Err(error) => return self.store_failed(&error),
            }
        }
    }

    fn store_failed(&self, error: &StoreError) {
        self.machine.poison(format!("the store failed: {error}. Check the disk and run `tally check`"));
        self.wake_all();
    }

    fn merge_until_stopped(&self) {
        self.warm();
        while !self.is_stopping() {
            match self.machine.merge() {
                Ok(true) => {}
                Ok(false) => self.merger.wait(),
                Err(error) if error.is_full() || error.is_out_of_files() => {
                    tracing::warn!(%error, "runs were not merged; trying again after the next checkpoint");
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

    async fn sync_store(&self) -> Result<(), EngineError> {
        self.shared.sync_store().await
    }

    async fn all_keys(&self, after: Option<Key>, limit: usize) -> Result<KeyPage, EngineError> {
        self.shared.machine.all_keys(after.as_ref(), limit)
    }

    async fn snapshots(&self, keys: Vec<Key>) -> Result<Vec<CounterSnapshot>, EngineError> {
        self.shared.machine.snapshots(&keys).await
    }

    async fn requests(&self, after: RequestCursor, limit: usize) -> Result<RequestPage, EngineError> {
        self.shared.machine.requests(after, limit).await
    }

    fn routes(&self) -> Vec<Key> {
        Key::new("route").into_iter().collect()
    }

    fn health(&self) -> Health {
        self.shared.machine.health()
    }

    async fn poisoned(&self) -> String {
        self.shared.machine.poison.wait().await
    }

    fn metrics(&self) -> Vec<Metric> {
        self.shared.machine.metrics()
    }
}

#[cfg(test)]
mod tests;
