//! One hosted partition: applies the journal, and answers for the position it has reached.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tally_core::batch::{Batch, CodecError, decode};
use tally_core::key::Key;
use tally_core::ledger::LedgerEntry;
use tally_core::missing_keys::MissingKeys;
use tally_core::outcome::Outcomes;
use tally_core::partition::{Headroom, Partition};
use tally_core::time::{Millis, Position};
use tally_engine::clock::{Clock, SystemClock};
use tally_engine::host::{Hosted, ResidentPartition};
use tokio::sync::watch;

use super::fail_on_panic::FailOnPanic;
use super::group_size::GroupSize;
use super::lag::LagClock;
use super::outcomes::{AppliedRecord, RecentOutcomes};
use super::partition_time::PartitionTime;
use super::round::{Due, Moment, Round};
use super::store::{PartitionStore, SharedStore, StoreFailure};
use super::summed_times::SummedTimes;
use crate::kafka::{JournalRecord, PartitionTail, TopicError};
use crate::limits::{PUBLISHED_MEMORY_DIVISOR, REACH_WAIT_MS};
use crate::postgres::Claim;

/// How long the applying thread waits for a record before it checks whether to stop.
const TAIL_WAIT: Duration = Duration::from_millis(100);
/// Pause before PostgreSQL or Kafka is tried again.
const RETRY_AFTER: Duration = Duration::from_millis(250);

/// Why a hosted partition stopped.
#[derive(Clone, Debug, thiserror::Error)]
pub enum HostError {
    /// The store failed or was taken over.
    #[error(transparent)]
    Store(#[from] StoreFailure),
    /// The journal cannot be read.
    #[error(transparent)]
    Journal(#[from] TopicError),
    /// A record of the journal is not a batch. Stopping is better than guessing at counts.
    #[error(
        "record {position} of partition {partition} is not a batch: {error}. If a newer version of Tally wrote it, update \
         this worker; if something else wrote to the topic, see docs/cluster-operations.md"
    )]
    NotABatch {
        /// The partition.
        partition: u32,
        /// The record's position.
        position: u64,
        /// What is wrong with it.
        error: CodecError,
    },
    /// The applying thread panicked. Memory may have a part of a batch.
    #[error(
        "a bug has stopped the partition, see the log. It is tried again from what is stored; please report the bug"
    )]
    Panicked,
}

/// A partition in memory, as far as the journal was applied.
pub struct PartitionHost {
    /// Its number.
    pub partition: u32,
    seed: u64,
    /// Memory for the state.
    budget_bytes: usize,
    /// Memory for what is to be published.
    round_bytes: usize,
    state: ResidentPartition<()>,
    store: SharedStore,
    recent: Mutex<RecentOutcomes>,
    round: Mutex<Round>,
    /// The age of the oldest change that is not published.
    pub unpublished: LagClock,
    /// The age of the oldest change that is not persisted.
    pub unpersisted: LagClock,
    duplicates: Arc<AtomicU64>,
    time: PartitionTime,
    /// Up to which time sub-counters are summed.
    pub summed: SummedTimes,
    /// What is applied.
    applied: watch::Sender<Position>,
    /// Why the applying thread stopped.
    failure: watch::Sender<Option<HostError>>,
    /// Notified when a persist is needed now, for example because memory is full of changes.
    persist_wanted: tokio::sync::Notify,
    stopping: AtomicBool,
    /// Whether changes are published and counted, which standbys leave to the owner.
    is_publishing: AtomicBool,
}

/// What all hosts of a worker have in common.
pub struct HostSettings {
    /// Memory for the partition.
    pub budget_bytes: usize,
    /// Seed of key hashes.
    pub seed: u64,
    /// Counts events whose request id was known.
    pub duplicates: Arc<AtomicU64>,
}

/// What a round of publishing has to publish.
pub struct RoundStart {
    /// What is applied.
    pub position: Position,
    /// Everything that was acknowledged before this time is applied.
    pub at: Millis,
    /// The position after the last reset of the clock.
    pub clock_reset: Position,
    /// Everything that sub-counters with a rollup had counted before this time is applied. Zero if that is not known.
    pub rolled_up_at: Millis,
    /// The totals.
    pub due: Due,
}

impl PartitionHost {
    /// Hosts the partition from what is stored.
    pub fn new(store: Arc<PartitionStore>, partition: u32, stored: &Claim, settings: HostSettings) -> Self {
        let HostSettings { budget_bytes, seed, duplicates } = settings;
        let round_bytes = budget_bytes / PUBLISHED_MEMORY_DIVISOR;
        let budget_bytes = budget_bytes - round_bytes;
        let position = store.base();
        let state = match stored.meta {
            Some(meta) => Partition::with_store(seed, meta, budget_bytes),
            None => Partition::new(seed),
        };
        let (now, current_at) = (state.clock(), state.clock());
        let moment = Moment { elapsed_ms: elapsed_ms(), now, current_at };
        PartitionHost {
            partition,
            seed,
            budget_bytes,
            round_bytes,
            state: ResidentPartition::new(Hosted { partition: state, applied: position, journal: () }),
            store: SharedStore(store),
            recent: Mutex::new(RecentOutcomes::default()),
            round: Mutex::new(Round::new(moment, round_bytes)),
            unpublished: LagClock::default(),
            unpersisted: LagClock::default(),
            duplicates,
            time: PartitionTime::new(stored.clock_reset),
            summed: SummedTimes::default(),
            applied: watch::Sender::new(position),
            failure: watch::Sender::new(None),
            persist_wanted: tokio::sync::Notify::new(),
            stopping: AtomicBool::new(false),
            is_publishing: AtomicBool::new(false),
        }
    }

    /// Publishes changes from now on. Returns the position from which it does.
    pub fn begin_publishing(&self) -> Position {
        let hosted = self.state.lock();
        *self.round.lock() = Round::new(self.moment(&hosted.partition), self.round_bytes);
        self.is_publishing.store(true, Ordering::Release);
        hosted.applied
    }

    /// Continues as owner from a stored position that is not beyond what is applied.
    pub fn take_over(&self, stored: Position) {
        let mut hosted = self.state.lock();
        hosted.partition.capture_abandoned();
        if hosted.applied == stored {
            // Everything in memory is stored. While nothing is applied, nothing is persisted that would say so.
            hosted.partition.begin_capture();
            hosted.partition.capture_committed();
        }
        self.store.0.committed(stored);
        self.unpersisted.begin();
        self.unpersisted.saved();
        if hosted.applied > stored {
            self.unpersisted.applied(self.now_at(&hosted.partition));
        }
    }

    /// Applies the journal until [`PartitionHost::stop`] or an error. Blocks.
    pub fn run(&self, mut tail: PartitionTail) {
        let _guard = FailOnPanic(&self.failure);
        let mut batches = Vec::new();
        while !self.is_stopping() {
            // Records before one that cannot be read are still applied.
            let gathered = self.gather(&mut tail, &mut batches);
            if let Err(error) = self.apply(&mut batches).and(gathered) {
                self.failure.send_replace(Some(error));
                return;
            }
        }
    }

    /// Stops applying soon.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
    }

    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Waits for a record and takes those that are already there.
    fn gather(&self, tail: &mut PartitionTail, batches: &mut Vec<(JournalRecord, Batch)>) -> Result<(), HostError> {
        let mut group = GroupSize::default();
        let mut wait = TAIL_WAIT;
        while !group.is_full()
            && let Some(record) = tail.next(wait)?
        {
            let mut batch = Batch::default();
            decode(&record.batch, self.seed, &mut batch).map_err(|error| HostError::NotABatch {
                partition: self.partition,
                position: record.start.0,
                error,
            })?;
            group.add(&record, &batch);
            batches.push((record, batch));
            wait = Duration::ZERO;
        }
        Ok(())
    }

    /// Applies the batches in order, with everything they need fetched at once.
    fn apply(&self, batches: &mut Vec<(JournalRecord, Batch)>) -> Result<(), HostError> {
        if batches.is_empty() {
            return Ok(());
        }
        while !self.make_room(batches) {
            if self.is_stopping() {
                return Ok(());
            }
            // Only persisting frees memory. The journal keeps what is not applied yet.
            self.want_persist();
            std::thread::park_timeout(RETRY_AFTER);
        }
        let list = |partition: &Partition, at, missing: &mut MissingKeys| {
            batches.iter().for_each(|(_, batch)| partition.missing(batch, at, missing));
        };
        let (mut hosted, fetched) = loop {
            match self.state.lock_with(&self.store, list) {
                Ok(locked) => break locked,
                Err(StoreFailure::Postgres(error)) if error.is_transient() => {
                    if self.is_stopping() {
                        return Ok(());
                    }
                    tracing::warn!(partition = self.partition, %error, "records cannot be fetched; trying again");
                    std::thread::park_timeout(RETRY_AFTER);
                }
                Err(error) => return Err(error.into()),
            }
        };
        // Dropped before the lock, so that nobody sees a part of a batch without the failure.
        let _guard = FailOnPanic(&self.failure);
        fetched.restore(&mut hosted.partition).map_err(StoreFailure::from)?;
        let is_publishing = self.is_publishing.load(Ordering::Acquire);
        if let Some((first, _)) = batches.first().filter(|_| is_publishing) {
            let at = first.at.unwrap_or_else(|| self.now_at(&hosted.partition));
            self.unpublished.applied(at);
            self.unpersisted.applied(at);
        }
        let mut duplicates = 0;
        for (record, batch) in batches.drain(..) {
            let mut outcomes = Outcomes::default();
            self.note_time(&record, &batch);
            // Without a broker's time, at that of the record before it. Then not even a reset changes the clock.
            let at = record.at.unwrap_or_else(|| hosted.partition.clock());
            let at = hosted.partition.apply(at, &batch, &mut outcomes);
            hosted.applied = record.end();
            if is_publishing {
                self.note_changes(&batch);
            }
            duplicates += outcomes.slots().iter().filter(|outcome| outcome.is_duplicate()).count() as u64;
            self.recent.lock().push(AppliedRecord { end: record.end(), at, outcomes });
        }
        if is_publishing {
            self.duplicates.fetch_add(duplicates, Ordering::Relaxed);
        }
        let applied = hosted.applied;
        self.store.0.set_applied(applied);
        drop(hosted);
        self.applied.send_replace(applied);
        Ok(())
    }

    /// Follows the brokers' time. Only a batch that resets the clock sets it back; everything derived from the wrong
    /// time is then discarded.
    fn note_time(&self, record: &JournalRecord, batch: &Batch) {
        match record.at {
            None => self.time.observe_untimed(self.partition, record),
            Some(at) if batch.resets_clock() => {
                self.time.reset(self.partition, record, at);
                self.summed.reset();
                self.round.lock().clock_reset(Moment { elapsed_ms: elapsed_ms(), now: at, current_at: at });
            }
            Some(at) => self.time.observe(self.partition, record, at),
        }
    }

    fn make_room(&self, batches: &[(JournalRecord, Batch)]) -> bool {
        let batches = batches.iter().map(|(_, batch)| batch);
        self.state.lock().partition.make_room_for_all(batches, self.budget_bytes) == Headroom::Enough
    }

    fn note_changes(&self, batch: &Batch) {
        let mut round = self.round.lock();
        for event in batch.iter().filter(|event| event.is_change()) {
            round.changed(event.key.as_bytes());
        }
    }

    fn now_at(&self, partition: &Partition) -> Millis {
        self.time.now(partition.clock())
    }

    fn current_at(&self, partition: &Partition) -> Millis {
        self.time.current_at(partition.clock())
    }

    /// Records that at `asked_at` nothing beyond `end` was acknowledged.
    pub fn note_end(&self, end: Position, asked_at: Millis) {
        // Locked, so that the clock is not reset in between.
        let hosted = self.state.lock();
        if hosted.applied >= end {
            self.time.note_current(asked_at, hosted.partition.clock());
        }
    }

    /// The position after the last reset of the clock; zero if there was none.
    pub fn clock_reset(&self) -> Position {
        self.time.last_reset()
    }

    /// What is applied.
    pub fn applied(&self) -> Position {
        *self.applied.borrow()
    }

    /// The stored position that memory is based on.
    pub fn persisted(&self) -> Position {
        self.store.0.base()
    }

    /// The store.
    pub fn store(&self) -> &Arc<PartitionStore> {
        &self.store.0
    }

    /// The state, for captures.
    pub fn state(&self) -> &ResidentPartition<()> {
        &self.state
    }

    /// Requests a persist ahead of schedule.
    pub fn want_persist(&self) {
        self.persist_wanted.notify_one();
    }

    /// Resolves when a persist is requested.
    pub async fn persist_wanted(&self) {
        self.persist_wanted.notified().await;
    }

    /// Resolves once everything before `position` is applied, or fails if that will not happen.
    pub async fn reach(&self, position: Position) -> Result<(), HostError> {
        let mut applied = self.applied.subscribe();
        let mut failure = self.failure.subscribe();
        tokio::select! {
            // The sender lives as long as `self`.
            _ = applied.wait_for(|applied| *applied >= position) => Ok(()),
            error = failed(&mut failure) => Err(error),
        }
    }

    /// Like [`PartitionHost::reach`], within a bounded time. The error says what was waited for.
    pub async fn reach_soon(&self, position: Position) -> Result<(), String> {
        match tokio::time::timeout(Duration::from_millis(REACH_WAIT_MS), self.reach(position)).await {
            Ok(reached) => reached.map_err(|error| error.to_string()),
            Err(_) => {
                let (applied, position) = (self.applied().0, position.0);
                Err(format!("its worker has read the journal up to {applied}, not yet up to {position}"))
            }
        }
    }

    /// Whether memory may have a part of a batch, which must not be persisted.
    pub fn is_torn(&self) -> bool {
        matches!(*self.failure.borrow(), Some(HostError::Panicked))
    }

    /// Resolves when the partition has stopped by itself.
    pub async fn failed(&self) -> HostError {
        failed(&mut self.failure.subscribe()).await
    }

    /// The outcomes of the batch that ends at `end`, if they are still kept.
    pub fn outcomes(&self, end: Position) -> Option<Arc<AppliedRecord>> {
        self.recent.lock().get(end)
    }

    /// Ledger entries that are not persisted yet.
    pub fn unsaved_ledger(&self, key: &Key) -> Vec<LedgerEntry> {
        self.state.lock().partition.unsaved_ledger(key).cloned().collect()
    }

    /// Number of counters, and the time.
    pub fn count(&self) -> (u64, Millis) {
        let hosted = self.state.lock();
        (hosted.partition.counters(), self.now_at(&hosted.partition))
    }

    /// The time by the brokers' clocks.
    pub fn now(&self) -> Millis {
        self.now_at(&self.state.lock().partition)
    }

    fn moment(&self, partition: &Partition) -> Moment {
        Moment { elapsed_ms: elapsed_ms(), now: self.now_at(partition), current_at: self.current_at(partition) }
    }

    /// Begins a round of publishing.
    pub fn begin_round(&self) -> RoundStart {
        let hosted = self.state.lock();
        self.unpublished.begin();
        let moment = self.moment(&hosted.partition);
        let due = self.round.lock().take(moment);
        RoundStart {
            position: hosted.applied,
            at: moment.current_at,
            clock_reset: self.clock_reset(),
            rolled_up_at: self.summed.rolled_up(),
            due,
        }
    }

    /// Whether the last record had no broker's time, so that the partition's time stands still.
    pub fn is_untimed(&self) -> bool {
        self.time.is_untimed()
    }

    /// Records that everything that sub-counters with a rollup had counted before the first time is applied, and everything
    /// that all had counted before the second.
    pub fn note_summed(&self, rolled_up: Millis, all: Millis) {
        // Locked, so that the clock is not reset in between.
        let hosted = self.state.lock();
        let now = self.broker_time().map(|_| self.now_at(&hosted.partition));
        self.summed.note(rolled_up, all, now);
    }

    /// The brokers' time, if it is known.
    pub fn broker_time(&self) -> Option<Millis> {
        self.time.brokers()
    }

    /// Whether any counter expires.
    pub fn has_expiring(&self) -> bool {
        self.state.lock().partition.expiring() > 0
    }

    /// Records a read of counters that Redis does not have.
    pub fn note_read(&self, keys: &[Key]) {
        let mut round = self.round.lock();
        keys.iter().for_each(|key| round.read(key));
    }

    /// What is to be published. Lock order: the state first, then this, as in `apply`.
    pub fn round(&self) -> parking_lot::MutexGuard<'_, Round> {
        self.round.lock()
    }
}

fn elapsed_ms() -> u64 {
    SystemClock.elapsed().as_millis() as u64
}

async fn failed(failure: &mut watch::Receiver<Option<HostError>>) -> HostError {
    match failure.wait_for(Option::is_some).await.map(|failure| failure.clone()) {
        Ok(Some(error)) => error,
        // The host was dropped, and nobody waits for it.
        Ok(None) | Err(_) => std::future::pending().await,
    }
}

mod reading;
pub use reading::{ExpiryBy, HostReading};

#[cfg(test)]
mod tests;
