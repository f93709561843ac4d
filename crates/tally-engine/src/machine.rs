//! The engine without threads: every step of the write path is one call.
//!
//! A write takes these steps in order: `submit` joins the open batch, `seal` makes room, fetches, journals and applies
//! it, `flush` makes it durable and wakes its callers. The embedded engine calls the steps from its threads. The
//! simulator calls them one by one, on a disk that loses power between any two. Nothing here starts a thread or waits
//! for one.
//!
//! What does not depend on journal files is in [`crate::host`].
//!
//! Lock order: flushing, sealing, state, open batch. The store is never read with the state locked.

mod count;
mod export;
mod flush;
mod in_flight;
mod read;
mod recover;
mod seal;

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};

pub use count::Sweep;
use flush::FlushState;
pub use in_flight::Durability;
pub(crate) use in_flight::{AppliedBatch, BatchTicket, BatchWait, InFlight};
pub use read::WarmUp;
pub use recover::OpenError;
pub use seal::Seal;
use tally_core::batch::{Batch, Events, encode, key_hash};
use tally_core::limits::{
    CHECKPOINT_JOURNAL_BYTES, CLOCK_AHEAD_REPORTED_MS, MEMORY_BYTES_DEFAULT, SEGMENT_BYTES, UNFLUSHED_BYTES_MAX,
};
use tally_core::outcome::{Outcomes, Receipt, Token};
use tally_core::surface::{EngineError, Health};
use tally_core::time::{Millis, Position};

use crate::clock::SlewedClock;
use crate::disk::Disk;
use crate::host::{Hosted, JoinedBatch, OpenBatch, ResidentPartition, Wait};
use crate::journal::{Salt, Tail};
use crate::metrics::Meters;
use crate::signal::Poison;
use crate::store::{Store, StoreError};

/// What is wrong while checkpoints find no file descriptors, and what to do.
const OUT_OF_FILES: &str = "file descriptors have run out: reads work, and writes may wait until a checkpoint finds some. \
    Raise the limit, `ulimit -n`";

/// The sizes an engine works with. Tests use small ones to reach every edge quickly.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Memory for counters, request ids, filters and buffers.
    pub memory_bytes: u64,
    /// Bytes of a journal segment.
    pub segment_bytes: u64,
    /// Journal bytes since the last checkpoint that trigger the next.
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
    /// The salt of the journal's checksums. Derived one-way, because it is on disk and the seed must stay secret.
    fn salt(&self) -> Salt {
        Salt::new(key_hash(self.seed, b"journal salt"))
    }

    /// Bytes of captured records that are sorted and written at once.
    pub(crate) fn capture_bytes(&self) -> usize {
        crate::limits::capture_bytes(self.memory_bytes)
    }

    /// Memory for the partition: the budget minus the store and buffers for capture and encoding.
    fn partition_bytes(&self, store_bytes: usize) -> usize {
        let memory_bytes = self.memory_bytes as usize;
        // A capture holds its buffer, the slice being copied, and the pre-images that batches save.
        let buffers = 4 * self.capture_bytes() + memory_bytes / 16;
        // However large the store's filters grow, the partition keeps a quarter of the budget. A merge builds new
        // filters while the old ones are still in use.
        memory_bytes.saturating_sub(buffers + 2 * store_bytes).max(memory_bytes / 4)
    }
}

/// An embedded engine has one partition with all keys.
pub(crate) const PARTITION: u32 = 0;

/// The engine's state and its steps.
pub struct Machine {
    pub(crate) settings: Settings,
    pub(crate) clock: SlewedClock,
    disk: Arc<dyn Disk>,
    pub(crate) store: Store,
    pub(crate) meters: Meters,
    pub(crate) poison: Poison,
    open: OpenBatch<Durability, AppliedBatch>,
    /// Held while a batch is sealed, so that batches are applied in the order they were taken.
    sealing: Mutex<()>,
    pub(crate) state: ResidentPartition<JournalQueue>,
    flushing: Mutex<FlushState>,
    flushed: AtomicU64,
    /// Duration of the last flush.
    last_flush_micros: AtomicU64,
    /// Segments before this can be trimmed. Set by checkpoints, reset by the flusher; 0 if there is nothing to do.
    trim_to: AtomicU64,
    /// Time of the last checkpoint, or of a clock reset since then if that is earlier. Written with the state locked.
    pub(crate) stored_at: AtomicU64,
    disk_full: AtomicBool,
    /// The next segment could not be reserved when the flusher last tried.
    no_spare_space: AtomicBool,
    /// A checkpoint should begin soon, so that batches need not wait for one.
    pub(crate) checkpoint_wanted: AtomicBool,
    /// The last checkpoint found no disk space, so batches are refused instead of waiting for the next one.
    pub(crate) checkpoint_full: AtomicBool,
    /// The last checkpoint found no file descriptors. Batches wait for the next one: a merge will close files.
    pub(crate) out_of_files: AtomicBool,
    /// A batch waits until the next slice of the checkpoint has collected the pre-images. Set with the state locked.
    pub(crate) waits_for_slice: AtomicBool,
    closing: AtomicBool,
}

/// What changes under the same lock as the partition.
pub(crate) struct JournalQueue {
    tail: Tail,
    in_flight: InFlight,
}

pub(crate) type State = Hosted<JournalQueue>;

/// What the caller of a step should do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nudge {
    /// Nothing: the flusher has been woken already.
    None,
    /// Wake the flusher: a batch has begun to fill.
    Flusher,
    /// Seal the batch, which is full, unless another thread is sealing.
    Seal,
}

impl From<&JoinedBatch<Durability, AppliedBatch>> for Nudge {
    fn from(joined: &JoinedBatch<Durability, AppliedBatch>) -> Nudge {
        match (joined.is_full, joined.is_first) {
            (true, _) => Nudge::Seal,
            (false, true) => Nudge::Flusher,
            (false, false) => Nudge::None,
        }
    }
}

impl Machine {
    /// An empty list of events, to be filled and submitted.
    #[must_use]
    pub fn events(&self) -> Events {
        Events::new(self.settings.seed)
    }

    /// Submits events and calls `nudge` once they have joined a batch. Events that only read do not join one: they are
    /// answered from the current state.
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
        nudge(Nudge::from(&joined));
        let applied = Wait::new(Arc::clone(&joined.ticket), durability).await?;
        Ok(Receipt {
            outcomes: joined.outcomes(&events, &applied.combiner, &applied.outcomes),
            as_of: applied.at,
            token: Token::new(PARTITION, applied.end),
        })
    }

    /// Submits events without waiting for their outcomes. Returns `None`, and does nothing, if the open batch is full.
    pub fn submit_detached(&self, mut events: Events) -> Result<Option<Nudge>, EngineError> {
        self.check_requests(&mut events);
        match self.join(&events, Waker::noop()) {
            Poll::Ready(joined) => Ok(Some(Nudge::from(&joined?))),
            Poll::Pending => Ok(None),
        }
    }

    /// Checks request ids against the store's filters, on the caller's thread rather than while sealing.
    fn check_requests(&self, events: &mut Events) {
        if events.has_requests() {
            let store = self.store.snapshot();
            events.check_requests(store.position(), |keys| store.may_hold_each(keys));
        }
    }

    fn join(&self, events: &Events, waker: &Waker) -> Poll<Result<JoinedBatch<Durability, AppliedBatch>, EngineError>> {
        self.open.join(events, waker, || self.refusal().map_or(Ok(()), Err))
    }

    /// The engine's clock.
    #[must_use]
    pub fn now(&self) -> Millis {
        self.clock.now()
    }

    /// How far the clock of the last batch is ahead of the system clock, if that is more than drift explains.
    #[must_use]
    pub fn clock_ahead_ms(&self) -> Option<u64> {
        let last = self.state.lock().partition.clock();
        Some(last.since(self.clock.wall())).filter(|&ahead| ahead > CLOCK_AHEAD_REPORTED_MS)
    }

    /// Journals a reset of the partition's clock to the system clock, even if that is earlier. Deadlines do not move.
    pub fn reset_clock(&self) -> Result<(), EngineError> {
        {
            let mut state = self.state.lock();
            let at = self.clock.reset();
            let batch = Batch::clock_reset();
            let placed = state.journal.tail.append(|out| encode(&batch, at, out)).map_err(|_| EngineError::DiskFull)?;
            state.partition.apply(at, &batch, &mut Outcomes::default());
            state.applied = placed.end;
            self.stored_at.fetch_min(at.0, Ordering::AcqRel);
        }
        self.flush().map(|_| ())
    }

    /// Everything before this is durable.
    #[must_use]
    pub fn flushed(&self) -> Position {
        Position(self.flushed.load(Ordering::Acquire))
    }

    /// Journal bytes since the last checkpoint.
    #[must_use]
    pub fn journal_lag(&self) -> u64 {
        self.flushed().0.saturating_sub(self.store.position().0)
    }

    pub(crate) fn allow_trim(&self, before: Position) {
        self.trim_to.fetch_max(before.0, Ordering::AcqRel);
    }

    /// Refuses new calls from now on.
    pub fn begin_close(&self) {
        self.open.close(|| self.closing.store(true, Ordering::Release));
    }

    /// Whether the engine accepts writes, and if not, why.
    #[must_use]
    pub fn health(&self) -> Health {
        if let Some(reason) = self.poison.reason() {
            Health::Poisoned(reason.to_owned())
        } else if self.closing.load(Ordering::Acquire) {
            Health::Closing
        } else if self.disk_full.load(Ordering::Acquire) || self.checkpoint_full.load(Ordering::Acquire) {
            Health::DiskFull
        } else if self.out_of_files.load(Ordering::Acquire) {
            Health::Degraded { writes: true, why: OUT_OF_FILES.to_owned() }
        } else {
            Health::Ready
        }
    }

    /// Stops the engine for good. Calls that were applied get `OutcomeUnknown`; the others get `Poisoned`, because
    /// nothing happened.
    pub(crate) fn poison(&self, reason: String) -> EngineError {
        self.poison_holding(&mut self.state.lock(), reason)
    }

    fn poison_holding(&self, state: &mut State, reason: String) -> EngineError {
        tracing::error!(%reason, "the engine has stopped: it acknowledges nothing any more");
        self.poison.set(reason.clone());
        state.journal.in_flight.fail(&reason);
        let (_, ticket) = self.open.take();
        ticket.fail(EngineError::Poisoned(reason.clone()));
        EngineError::OutcomeUnknown(reason)
    }

    /// The error for a call that could not read the store. Damage poisons the engine: otherwise it would refuse some
    /// counters at random, and a restart cannot help.
    fn store_failed(&self, state: &mut State, error: &StoreError) -> EngineError {
        if !error.is_damage() {
            tracing::error!(%error, "the store could not be read");
            return EngineError::Unreadable(error.to_string());
        }
        let reason =
            format!("the store is damaged: {error}. Run `tally check` and restore the data directory from a backup");
        self.poison_holding(state, reason.clone());
        EngineError::Poisoned(reason)
    }

    /// Whether a batch of this length has to wait for the flusher: it is so far behind that sealing more would only grow
    /// memory, or it has yet to reserve the segment that the batch needs.
    fn is_backed_up(&self, tail: &Tail, batch_bytes: usize) -> bool {
        let is_disk_full = || self.no_spare_space.load(Ordering::Acquire);
        tail.queued_bytes() >= UNFLUSHED_BYTES_MAX || !(tail.has_room(batch_bytes) || is_disk_full())
    }

    fn refusal(&self) -> Option<EngineError> {
        if let Some(reason) = self.poison.reason() {
            return Some(EngineError::Poisoned(reason.to_owned()));
        }
        self.closing.load(Ordering::Acquire).then_some(EngineError::Closing)
    }
}
