//! The machine with the smallest possible settings and full memory: counters and request ids are constantly evicted and
//! fetched, segments roll, runs accumulate and merge.
//!
//! There are no threads: the submitting thread drives the machine.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tally_contract::{Failure, Host, Verdict, block_on};
use tally_core::batch::Events;
use tally_core::consistency::Consistency;
use tally_core::event::Change;
use tally_core::key::{Key, KeyRef};
use tally_core::ledger::LedgerEntry;
use tally_core::outcome::{Reads, Receipt, Token};
use tally_core::reading::{Reading, Stats};
use tally_core::surface::{
    CounterSnapshot, Engine, EngineError, Health, KeyPage, Metric, Page, PageRequest, ReadOptions, RequestCursor,
    RequestPage, SubmitOptions,
};
use tally_engine::clock::SystemClock;
use tally_engine::disk::RealDisk;
use tally_engine::{Machine, Nudge, Seal, Settings, Step, Sweep};
use tempfile::TempDir;

/// An engine whose memory is full.
pub struct Cramped;

/// Cells that the table grows by. This many counters fill the budget below.
const FILLING: usize = 5_140;
/// Prefix of the filler's keys. They sort last, and every listing ends before them.
const FILLER: &[u8] = b"\xff\xff\xff filler ";

const SETTINGS: Settings =
    Settings { memory_bytes: 950_000, segment_bytes: 1 << 20, checkpoint_journal_bytes: 1 << 16, seed: 7 };

/// The machine and its driver's state.
pub struct Driven {
    machine: Machine,
    /// Locked by the thread that drives the machine.
    turn: Mutex<()>,
    turns: AtomicU64,
}

impl Driven {
    fn open(dir: &Path) -> Result<Driven, Failure> {
        let disk = Arc::new(RealDisk::new(dir)?);
        let machine = Machine::open(disk, Arc::new(SystemClock), SETTINGS, &mut |_, _| {})?;
        Ok(Driven { machine, turn: Mutex::new(()), turns: AtomicU64::new(0) })
    }

    /// Does the work of the engine's threads until there is none.
    fn drive(&self) {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        self.flush_all();
        match self.turns.fetch_add(1, Ordering::Relaxed) % 24 {
            7 | 15 | 23 => self.checkpoint(),
            19 => while self.machine.merge().is_ok_and(|merged| merged) {},
            _ => {}
        }
        // Applies what the checkpoint has swept.
        self.flush_all();
    }

    fn flush_all(&self) {
        loop {
            if self.machine.needs_maintenance() {
                self.machine.maintain_journal();
            }
            let sealed = self.machine.seal();
            if sealed == Seal::NeedsCheckpoint {
                self.checkpoint();
            }
            let flushed = self.machine.flush();
            if sealed == Seal::Empty && flushed != Ok(true) {
                break;
            }
        }
    }

    fn checkpoint(&self) {
        let Some(mut checkpoint) = self.machine.checkpoint() else { return };
        loop {
            match checkpoint.step() {
                Ok(Step::More) => {}
                Ok(Step::AwaitFlush(_)) => drop(self.machine.flush()),
                Ok(Step::Done) | Err(_) => break,
            }
        }
        drop(checkpoint);
        let mut sweep = Sweep::default();
        while let Ok(expired) = self.machine.find_expired(&mut sweep)
            && !expired.is_empty()
        {
            let mut events = self.machine.events();
            for (expires_at, key) in expired {
                events.push(key.as_ref(), Change::Sweep { expires_at }, None, None);
            }
            let _ = self.machine.submit_detached(events);
        }
    }
}

/// A submission drives the machine before it waits.
impl Engine for Driven {
    fn events(&self) -> Events {
        self.machine.events()
    }

    async fn submit(&self, events: Events, options: SubmitOptions) -> Result<Receipt, EngineError> {
        let drive = |nudge| {
            if nudge != Nudge::None {
                self.drive();
            }
        };
        self.machine.submit(events, options.consistency.into(), drive).await
    }

    async fn read_events(&self, events: Events, options: ReadOptions) -> Result<Reads, EngineError> {
        self.machine.require(&options)?;
        self.machine.read_events(&events)
    }

    async fn durable(&self, token: Token) -> Result<(), EngineError> {
        self.machine.durable(&token).await
    }

    async fn read(&self, keys: Vec<Key>, options: ReadOptions) -> Result<Vec<Reading>, EngineError> {
        self.machine.require(&options)?;
        self.machine.read(&keys, options.consistency.into()).await
    }

    async fn stats(&self, key: Key, options: ReadOptions) -> Result<Stats, EngineError> {
        self.machine.stats(&key, options.consistency.into()).await
    }

    async fn list(&self, page: PageRequest) -> Result<Page, EngineError> {
        let is_filler = |(key, _): &(Key, Reading)| key.as_bytes().starts_with(FILLER);
        let mut found = self.machine.list(&page).await?;
        if let Some(end) = found.items.iter().position(is_filler) {
            found.items.truncate(end);
            found.next = None;
        } else if let Some((last, _)) = found.items.last() {
            let next = PageRequest { after: Some(last.clone()), limit: 1, ..page };
            let more = self.machine.list(&next).await?.items.iter().any(|item| !is_filler(item));
            found.next = found.next.filter(|_| more);
        }
        Ok(found)
    }

    async fn ledger(&self, key: Key, after: u64, limit: usize) -> Result<Vec<LedgerEntry>, EngineError> {
        self.machine.ledger(&key, after, limit).await
    }

    async fn count(&self, options: ReadOptions) -> Result<u64, EngineError> {
        Ok(self.machine.count(options.consistency.into()).await? - FILLING as u64)
    }

    async fn sample(&self, number: u64) -> Result<Option<Key>, EngineError> {
        let mut found = None;
        // Each number gives another random sample, and most are filler.
        for number in (number..).take(2 * FILLING) {
            found = self.machine.sample(number).await?;
            if !found.as_ref().is_some_and(|key| key.as_bytes().starts_with(FILLER)) {
                return Ok(found);
            }
        }
        // Only filler was sampled: take the first of the other counters, if there are any.
        let first = PageRequest { prefix: Vec::new(), after: None, limit: 1 };
        Ok(found.and(self.list(first).await?.items.pop().map(|(key, _)| key)))
    }

    async fn sync_store(&self) -> Result<(), EngineError> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        self.flush_all();
        self.checkpoint();
        Ok(())
    }

    async fn all_keys(&self, after: Option<Key>, limit: usize) -> Result<KeyPage, EngineError> {
        let mut page = self.machine.all_keys(after.as_ref(), limit)?;
        if let Some(end) = page.keys.iter().position(|key| key.as_bytes().starts_with(FILLER)) {
            page.keys.truncate(end);
            page.next = None;
        }
        Ok(page)
    }

    async fn snapshots(&self, keys: Vec<Key>) -> Result<Vec<CounterSnapshot>, EngineError> {
        self.machine.snapshots(&keys).await
    }

    async fn requests(&self, after: RequestCursor, limit: usize) -> Result<RequestPage, EngineError> {
        self.machine.requests(after, limit).await
    }

    fn routes(&self) -> Vec<Key> {
        Key::new("route").into_iter().collect()
    }

    fn health(&self) -> Health {
        self.machine.health()
    }

    async fn poisoned(&self) -> String {
        std::future::pending().await
    }

    fn metrics(&self) -> Vec<Metric> {
        Vec::new()
    }
}

impl Host for Cramped {
    type Engine = Driven;
    type Data = TempDir;

    fn prepare(&self) -> Result<TempDir, Failure> {
        let dir = tempfile::tempdir()?;
        let engine = Driven::open(dir.path())?;
        let mut events = engine.events();
        for number in 0..FILLING {
            events.add(KeyRef::new(&[FILLER, &(number as u16).to_be_bytes()].concat())?, 1);
        }
        block_on(engine.submit(events, self.submit_options()))?;
        engine.checkpoint();
        Ok(dir)
    }

    fn start(&self, dir: &TempDir) -> Result<Driven, Failure> {
        let engine = Driven::open(dir.path())?;
        // Loads the filler, so that every other counter evicts something.
        let keys = (0..FILLING).map(|number| Key::new([FILLER, &(number as u16).to_be_bytes()].concat()));
        for some in keys.collect::<Result<Vec<_>, _>>()?.chunks(1000) {
            block_on(engine.read(some.to_vec(), ReadOptions::new(Consistency::BestEffort)))?;
        }
        Ok(engine)
    }

    fn stop(&self, engine: &Driven) -> Verdict {
        engine.machine.begin_close();
        engine.drive();
        engine.checkpoint();
        Ok(())
    }
}
