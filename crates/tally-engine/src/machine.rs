//! The engine without threads: every step of the write path as one call.
//!
//! A write goes through here in causal order: `join` the open batch, `seal` it (make room, fetch, encode, apply), `flush`
//! it, wake its callers. The embedded engine calls these steps from its threads; the simulator calls them one by one,
//! on a disk that loses power between any two of them. Nothing here starts a thread or waits for one.
//!
//! Locks are taken in this order: writer, sealing, state, open batch. The store is never read while the state is locked.

mod count;
mod fetch;
mod mark;
mod read;
mod recover;
mod seal;

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};

pub use count::Sweep;
pub use read::Warmth;
pub use recover::OpenError;
pub use seal::Seal;
use tally_core::batch::{Batch, Combiner, Events, Placed, encode, key_hash};
use tally_core::limits::{
    BATCH_BYTES_SEAL, BATCH_EVENTS_SEAL, BATCH_PARTS_SEAL, CHECKPOINT_JOURNAL_BYTES, CLOCK_AHEAD_REPORTED_MS,
    FLUSH_HERE_EVENTS_MAX, FLUSH_HERE_MICROS_MAX, MEMORY_BYTES_DEFAULT, SEGMENT_BYTES, UNFLUSHED_BYTES_MAX,
};
use tally_core::outcome::{Outcomes, Receipt, Token};
use tally_core::partition::Partition;
use tally_core::surface::{EngineError, Health};
use tally_core::time::{Millis, Position};

use crate::clock::SlewedClock;
use crate::disk::Disk;
use crate::durability::Durability;
use crate::journal::{Group, Salt, Tail, Writer};
use crate::measure::Meters;
use crate::signal::{Poison, lock};
use crate::store::{Store, StoreError};
use crate::ticket::{Sealed, Ticket, Wait};

/// The sizes an engine works with. The defaults are right; tests use small ones to reach every edge quickly.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Memory for counters, request ids, filters and buffers.
    pub memory_bytes: u64,
    /// Bytes of a journal segment.
    pub segment_bytes: u64,
    /// Journal behind the last checkpoint that starts the next.
    pub checkpoint_journal_bytes: u64,
    /// Seed of key hashes: random in a server, fixed in a simulation.
    pub seed: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            memory_bytes: MEMORY_BYTES_DEFAULT,
            segment_bytes: SEGMENT_BYTES,
            checkpoint_journal_bytes: CHECKPOINT_JOURNAL_BYTES,
            seed: 0,
        }
    }
}

impl Settings {
    /// Checksums of the journal start from this; derived one-way from the seed, which nobody may learn from it.
    fn salt(&self) -> Salt {
        Salt::new(key_hash(self.seed, b"journal salt"))
    }

    /// Captured bytes gathered before they are sorted and written.
    pub(crate) fn capture_bytes(&self) -> usize {
        crate::limits::capture_bytes(self.memory_bytes)
    }

    /// What the partition may hold: the budget less buffers for capture, encoding and the rest of the process.
    fn partition_bytes(&self, store_bytes: usize) -> usize {
        let memory_bytes = self.memory_bytes as usize;
        // What a checkpoint has gathered grows by the slice it takes over, while batches copy for the next one.
        let buffers = 4 * self.capture_bytes() + memory_bytes / 16;
        // However large the store's filters grow, counting goes on in a quarter of the budget.
        memory_bytes.saturating_sub(buffers + store_bytes).max(memory_bytes / 4)
    }
}

/// One embedded engine is one partition with all keys.
pub(crate) const PARTITION: u32 = 0;

/// The engine's state and its steps.
pub struct Machine {
    pub(crate) settings: Settings,
    pub(crate) clock: SlewedClock,
    disk: Arc<dyn Disk>,
    pub(crate) store: Store,
    pub(crate) meters: Meters,
    pub(crate) poison: Poison,
    open: Mutex<Open>,
    /// Held while a batch is sealed, so that batches are applied in the order they were taken.
    sealing: Mutex<()>,
    /// A parking_lot mutex, so that the checkpointer can unlock fairly between slices.
    pub(crate) state: parking_lot::Mutex<State>,
    writer: Mutex<Flushing>,
    flushed: AtomicU64,
    /// How long the last flush took.
    last_flush_micros: AtomicU64,
    /// Where the oldest segment still needed begins; set by checkpoints, done by the flusher.
    trim_to: AtomicU64,
    /// Time of the last batch that the store reflects, as far as this process knows.
    pub(crate) stored_at: AtomicU64,
    disk_full: AtomicBool,
    /// A full disk has been logged.
    no_room_reported: AtomicBool,
    /// A checkpoint should begin before batches have to wait for one.
    pub(crate) checkpoint_wanted: AtomicBool,
    /// The last checkpoint found no room on the disk: waiting for the next to make room in memory may take for ever.
    pub(crate) checkpoint_full: AtomicBool,
    closing: AtomicBool,
}

/// The batch that is filling.
struct Open {
    combiner: Combiner,
    ticket: Arc<Ticket>,
    /// Calls that wait for the next batch because this one is full.
    blocked: Vec<Waker>,
}

pub(crate) struct State {
    pub(crate) partition: Partition,
    tail: Tail,
    /// End of the last batch that was applied.
    pub(crate) applied: Position,
    /// Applied, not flushed; oldest first.
    in_flight: VecDeque<(Arc<Sealed>, Arc<Ticket>)>,
}

struct Flushing {
    /// None while the disk has no room for a first segment.
    writer: Option<Writer>,
    group: Group,
}

impl Flushing {
    /// Whether no next segment is reserved.
    fn needs_spare(&self) -> bool {
        self.writer.as_ref().is_none_or(Writer::needs_spare)
    }
}

/// What came of joining the open batch.
struct JoinedBatch {
    ticket: Arc<Ticket>,
    placed: Vec<Placed>,
    first: bool,
    full: bool,
}

impl JoinedBatch {
    fn nudge(&self) -> Nudge {
        match (self.full, self.first) {
            (true, _) => Nudge::Seal,
            (false, true) => Nudge::Flusher,
            (false, false) => Nudge::None,
        }
    }
}

/// What the caller of a step should do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nudge {
    /// Nothing: the flusher knows.
    None,
    /// Wake the flusher: a batch has begun to fill.
    Flusher,
    /// The batch is full: seal it if nobody else is at it.
    Seal,
}

impl Machine {
    /// An empty call to fill.
    #[must_use]
    pub fn events(&self) -> Events {
        Events::new(self.settings.seed)
    }

    /// Submits events; `nudge` is told what to do once they have joined a batch. Events that only read do not join one:
    /// they are answered from the state as it is.
    pub async fn submit(
        &self,
        mut events: Events,
        durability: Durability,
        nudge: impl Fn(Nudge) + Send,
    ) -> Result<Receipt, EngineError> {
        if !events.batch().fits_call() {
            return Err(EngineError::TooLarge);
        }
        if events.batch().is_read_only() {
            return self.submit_reads(&events, durability).await;
        }
        self.check_requests(&mut events);
        let joined = poll_fn(|context| self.join(&events, context.waker())).await?;
        nudge(joined.nudge());
        let sealed = Wait::new(joined.ticket, durability).await?;
        let of_slot = |slot: usize| sealed.combiner.outcome_of(joined.placed[slot], &sealed.outcomes);
        Ok(Receipt {
            outcomes: events.outcomes(of_slot).collect(),
            as_of: sealed.at,
            token: Token::new(PARTITION, sealed.end),
        })
    }

    /// Submits events whose outcomes nobody waits for, unless the open batch is full. Says what to do next.
    pub fn submit_detached(&self, mut events: Events) -> Result<Option<Nudge>, EngineError> {
        self.check_requests(&mut events);
        match self.join(&events, Waker::noop()) {
            Poll::Ready(joined) => Ok(Some(joined?.nudge())),
            Poll::Pending => Ok(None),
        }
    }

    /// Checks request ids against the store's filters, on the caller's thread.
    fn check_requests(&self, events: &mut Events) {
        if events.has_requests() {
            let store = self.store.snapshot();
            events.check_requests(store.position(), |keys| store.may_hold_each(keys));
        }
    }

    /// Puts the events into the open batch, unless it is full: then waits for the next.
    fn join(&self, events: &Events, waker: &Waker) -> Poll<Result<JoinedBatch, EngineError>> {
        let mut open = lock(&self.open);
        // Under the lock: whoever closes or poisons takes the batch after setting the flag, so none is left behind.
        if let Some(refusal) = self.refusal() {
            return Poll::Ready(Err(refusal));
        }
        if is_full(open.combiner.batch()) {
            open.blocked.push(waker.clone());
            return Poll::Pending;
        }
        let first = open.combiner.batch().is_empty();
        let mut placed = Vec::new();
        open.combiner.gather(events, &mut placed);
        let full = is_full(open.combiner.batch());
        Poll::Ready(Ok(JoinedBatch { ticket: Arc::clone(&open.ticket), placed, first, full }))
    }

    /// Writes and syncs everything sealed; wakes the callers whose batches it covers. Says whether anything was
    /// flushed. A failure poisons the engine: a flush is never tried again.
    pub fn flush(&self) -> Result<bool, EngineError> {
        self.flush_with(&mut lock(&self.writer))
    }

    /// Seals and flushes, unless somebody else is flushing or it would keep the caller for long: the disk is slow, or
    /// there is much to apply. Nor while no next segment is reserved, which is the flusher's business: a batch without room
    /// must mean that there is none.
    pub fn try_flush(&self) -> Option<(Seal, Result<bool, EngineError>)> {
        if self.last_flush_micros.load(Ordering::Relaxed) > FLUSH_HERE_MICROS_MAX
            || lock(&self.open).combiner.batch().len() > FLUSH_HERE_EVENTS_MAX
        {
            return None;
        }
        let mut flushing = self.writer.try_lock().ok()?;
        if flushing.needs_spare() {
            return None;
        }
        let sealed = self.seal();
        Some((sealed, self.flush_with(&mut flushing)))
    }

    fn flush_with(&self, flushing: &mut Flushing) -> Result<bool, EngineError> {
        let reuse = std::mem::take(&mut flushing.group);
        flushing.group = self.state.lock().tail.take(reuse);
        let Some(writer) = flushing.writer.as_mut().filter(|_| !flushing.group.is_empty()) else {
            return Ok(false);
        };
        let began = self.clock.elapsed();
        let flushed = match writer.flush(&mut flushing.group) {
            Ok(flushed) => flushed,
            Err(error) => return Err(self.poison(format!("the journal could not be flushed: {error}"))),
        };
        let micros = u64::try_from(self.clock.elapsed().saturating_sub(began).as_micros()).unwrap_or(u64::MAX);
        self.last_flush_micros.store(micros, Ordering::Relaxed);
        self.meters.flushed(micros, flushing.group.len());
        self.flushed.store(flushed.0, Ordering::Release);
        self.release(flushed);
        Ok(true)
    }

    /// Wakes the callers of every batch before `flushed`.
    fn release(&self, flushed: Position) {
        let mut state = self.state.lock();
        let covered = state.in_flight.iter().take_while(|(sealed, _)| sealed.end <= flushed).count();
        let durable: Vec<_> = state.in_flight.drain(..covered).collect();
        drop(state);
        for (sealed, ticket) in durable {
            ticket.reach(Durability::Flushed, &sealed);
        }
    }

    /// Keeps the journal's house: reserves the next segment and gives up those before the last checkpoint. Called by
    /// the flusher when no batch waits for it, or when one was refused for want of room.
    pub fn maintain_journal(&self) {
        let mut flushing = lock(&self.writer);
        let Some(writer) = &mut flushing.writer else {
            return self.begin_writing(&mut flushing);
        };
        let trim_to = self.trim_to.swap(0, Ordering::AcqRel);
        if trim_to > 0
            && let Err(error) = writer.trim(Position(trim_to))
        {
            tracing::warn!(%error, "old journal segments could not be removed; trying again after the next checkpoint");
        }
        if writer.needs_spare() {
            match writer.prepare_next() {
                Ok(fresh) => {
                    self.state.lock().tail.add_spares(fresh);
                    self.has_room();
                }
                Err(error) => self.report_no_room(&error),
            }
        }
    }

    /// Logs that the journal has no room, once until there is room again.
    fn report_no_room(&self, error: &std::io::Error) {
        if !self.no_room_reported.swap(true, Ordering::AcqRel) {
            tracing::warn!(%error, "no room could be reserved for the journal; writes are refused until there is");
        }
    }

    /// There is room for the journal.
    fn has_room(&self) {
        self.disk_full.store(false, Ordering::Release);
        if self.no_room_reported.swap(false, Ordering::AcqRel) {
            tracing::info!("there is room for the journal again; writes are accepted");
        }
    }

    /// Tries again to begin a segment on a disk that had no room when the engine was opened. Nothing has been appended
    /// since, so the journal still ends where it did.
    fn begin_writing(&self, flushing: &mut Flushing) {
        let end = self.state.lock().applied;
        match recover::begin_writing(&self.disk, end, &self.store, &self.settings) {
            Ok(Some(writer)) => {
                self.state.lock().tail = Tail::new(writer.reservation());
                flushing.writer = Some(writer);
                self.has_room();
            }
            Ok(None) => {}
            Err(error) => tracing::warn!(%error, "the journal cannot be continued yet"),
        }
    }

    /// Whether `maintain_journal` has something to do. Whoever is flushing now will ask again.
    #[must_use]
    pub fn needs_maintenance(&self) -> bool {
        self.trim_to.load(Ordering::Acquire) > 0 || self.writer.try_lock().is_ok_and(|flushing| flushing.needs_spare())
    }

    /// The engine's clock.
    #[must_use]
    pub fn now(&self) -> Millis {
        self.clock.now()
    }

    /// How far the clock of the last batch is ahead of the system's, if that is more than can be explained by the two
    /// drifting apart.
    #[must_use]
    pub fn clock_ahead_ms(&self) -> Option<u64> {
        let last = self.state.lock().partition.clock();
        Some(last.since(self.clock.wall())).filter(|&ahead| ahead > CLOCK_AHEAD_REPORTED_MS)
    }

    /// Sets the partition's clock to the system's, even back, by way of the journal. Deadlines stay where they are.
    pub fn reset_clock(&self) -> Result<(), EngineError> {
        let at = {
            let mut state = self.state.lock();
            let at = self.clock.reset();
            let batch = Batch::clock_reset();
            let placed = state.tail.append(|out| encode(&batch, at, out)).map_err(|_| EngineError::DiskFull)?;
            state.partition.apply(at, &batch, &mut Outcomes::default());
            state.applied = placed.end;
            at
        };
        self.stored_at.fetch_min(at.0, Ordering::AcqRel);
        self.flush().map(|_| ())
    }

    /// Everything before this is durable.
    #[must_use]
    pub fn flushed(&self) -> Position {
        Position(self.flushed.load(Ordering::Acquire))
    }

    /// Journal bytes behind the last checkpoint.
    #[must_use]
    pub fn journal_lag(&self) -> u64 {
        self.flushed().0.saturating_sub(self.store.position().0)
    }

    pub(crate) fn allow_trim(&self, before: Position) {
        self.trim_to.fetch_max(before.0, Ordering::AcqRel);
    }

    /// Refuses new calls from now on.
    pub fn begin_close(&self) {
        {
            let _open = lock(&self.open);
            self.closing.store(true, Ordering::Release);
        }
        self.wake_blocked();
    }

    /// How the engine fares.
    #[must_use]
    pub fn health(&self) -> Health {
        if let Some(reason) = self.poison.reason() {
            Health::Poisoned(reason.to_owned())
        } else if self.closing.load(Ordering::Acquire) {
            Health::Closing
        } else if self.disk_full.load(Ordering::Acquire) || self.checkpoint_full.load(Ordering::Acquire) {
            Health::DiskFull
        } else {
            Health::Ready
        }
    }

    /// Stops acknowledging for good. Calls that were applied hear that their outcome is unknown, others that nothing
    /// happened.
    pub(crate) fn poison(&self, reason: String) -> EngineError {
        self.poison_holding(&mut self.state.lock(), reason)
    }

    fn poison_holding(&self, state: &mut State, reason: String) -> EngineError {
        tracing::error!(%reason, "the engine is poisoned: nothing is acknowledged any more");
        self.poison.set(reason.clone());
        for (_, ticket) in state.in_flight.drain(..) {
            ticket.fail(EngineError::OutcomeUnknown(reason.clone()));
        }
        let (_, ticket) = self.take_open();
        ticket.fail(EngineError::Poisoned(reason.clone()));
        self.wake_blocked();
        EngineError::OutcomeUnknown(reason)
    }

    /// What a store that cannot be read means to the call that needed it. Damage is for good: going on would mean to
    /// refuse some counters at random, and a restart cannot help either.
    fn store_failed(&self, state: &mut State, error: &StoreError) -> EngineError {
        if !error.is_damage() {
            tracing::error!(%error, "the store could not be read");
            return EngineError::Unreadable(error.to_string());
        }
        let reason = format!(
            "the store is damaged: {error}. Restore the data directory from a copy; `tally check` reads it all"
        );
        self.poison_holding(state, reason.clone());
        EngineError::Poisoned(reason)
    }

    fn refusal(&self) -> Option<EngineError> {
        if let Some(reason) = self.poison.reason() {
            return Some(EngineError::Poisoned(reason.to_owned()));
        }
        self.closing.load(Ordering::Acquire).then_some(EngineError::Closing)
    }

    fn take_open(&self) -> (Combiner, Arc<Ticket>) {
        let mut open = lock(&self.open);
        let combiner = std::mem::take(&mut open.combiner);
        let ticket = std::mem::take(&mut open.ticket);
        (combiner, ticket)
    }

    fn wake_blocked(&self) {
        let blocked = std::mem::take(&mut lock(&self.open).blocked);
        for waker in blocked {
            waker.wake();
        }
    }
}

/// Whether a batch should be sealed by whoever filled it, rather than wait for the flusher.
fn is_full(batch: &Batch) -> bool {
    batch.len() >= BATCH_EVENTS_SEAL || batch.parts() >= BATCH_PARTS_SEAL || batch.bytes() >= BATCH_BYTES_SEAL
}

/// Whether so much waits for the disk that sealing more would only grow memory.
fn is_backed_up(tail: &Tail) -> bool {
    tail.queued_bytes() >= UNFLUSHED_BYTES_MAX
}
