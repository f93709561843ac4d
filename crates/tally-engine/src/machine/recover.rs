//! Opening a data directory: the store plus a replay of the journal is the state as of the last flush.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex};

use tally_core::batch::{Batch, decode, key_hash};
use tally_core::missing_keys::MissingKeys;
use tally_core::outcome::{Outcomes, Refusal};
use tally_core::partition::{Malformed, Partition};
use tally_core::record::{self, Meta};
use tally_core::time::{Millis, Position};

use super::{FlushState, InFlight, JournalQueue, Machine, Settings};
use crate::clock::{Clock, SlewedClock};
use crate::disk::{Disk, is_full};
use crate::host::{Hosted, MalformedRecord, OpenBatch, ResidentPartition};
use crate::identity::DirId;
use crate::journal::{self, Group, JournalError, Tail, Writer};
use crate::layout;
use crate::metrics::Meters;
use crate::signal::Poison;
use crate::store::{Store, StoreError};

/// Why a data directory could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process has locked it.
    #[error("{dir} is in use by another process{by}; stop it, or choose another directory with --data")]
    InUse {
        /// The data directory.
        dir: String,
        /// That process, as ` (process 1)`; empty if unknown.
        by: String,
    },
    /// Written by a later version, or not by Tally.
    #[error("{what}")]
    Format {
        /// What was found instead.
        what: String,
    },
    /// The journal cannot be replayed.
    #[error("the journal: {0}")]
    Journal(#[from] JournalError),
    /// The store cannot be used.
    #[error("the store: {0}")]
    Store(#[from] StoreError),
    /// The directory could not be read or written.
    #[error("the data directory: {0}")]
    Io(#[from] io::Error),
    /// The process may not open as many files as the engine needs.
    #[error(
        "the engine needs {needed} file descriptors and the limit of this process is {limit}; raise it with `ulimit -n`, \
         or with `LimitNOFILE=` in a systemd unit"
    )]
    Files {
        /// How many it needs.
        needed: usize,
        /// How many it may have.
        limit: u64,
    },
}

impl OpenError {
    /// Whether the disk is full, as opposed to faulty.
    fn is_full(&self) -> bool {
        match self {
            OpenError::Io(error) => is_full(error),
            OpenError::Store(error) => error.is_full(),
            _ => false,
        }
    }
}

/// Most events replayed at a time. The records they need are fetched from the store in one sorted pass.
const REPLAY_EVENTS: usize = 1 << 18;
/// Memory assumed for each replayed event, which bounds how many are replayed at a time. Most take less.
const REPLAY_EVENT_BYTES: usize = 512;
/// Bytes of events replayed at a time.
const REPLAY_BYTES: usize = 32 << 20;

/// Applies batches of the journal, many at a time.
struct BatchReplay<'a> {
    store: &'a Store,
    partition: &'a mut Partition,
    /// Memory for the partition.
    budget_bytes: usize,
    /// Read but not applied yet.
    batches: Vec<(Millis, Batch)>,
    events: usize,
    bytes: usize,
    /// Empty batches to reuse.
    spare: Vec<Batch>,
    missing: MissingKeys,
    /// The earliest time from which batches since the checkpoint continue: its own, unless the clock was reset since.
    continues_at: Millis,
}

impl BatchReplay<'_> {
    fn push(&mut self, payload: &[u8]) -> Result<(), journal::FrameError> {
        let mut batch = self.spare.pop().unwrap_or_default();
        let at = decode(payload, self.partition.seed(), &mut batch)?;
        if batch.resets_clock() {
            self.continues_at = self.continues_at.min(at);
        }
        self.events += batch.len();
        self.bytes += batch.bytes();
        self.batches.push((at, batch));
        if self.events >= REPLAY_EVENTS.min(self.budget_bytes / REPLAY_EVENT_BYTES) || self.bytes >= REPLAY_BYTES {
            self.apply()?;
        }
        Ok(())
    }

    fn apply(&mut self) -> Result<(), StoreError> {
        // Evicts clean state that earlier batches touched. Their changes fitted the budget when they were first applied.
        self.partition.evict_for_all(self.batches.iter().map(|(_, batch)| batch), self.budget_bytes);
        self.missing.clear();
        for (_, batch) in &self.batches {
            self.partition.missing(batch, self.store.position(), &mut self.missing);
        }
        restore_all(self.store, self.partition, &self.missing)?;
        let mut outcomes = Outcomes::default();
        for (at, mut batch) in self.batches.drain(..) {
            outcomes.clear();
            self.partition.apply(at, &batch, &mut outcomes);
            if has_overflowed_sum(&batch, &outcomes) {
                return Err(StoreError::Refused { what: OVERFLOWED_SUM });
            }
            batch.clear();
            self.spare.push(batch);
        }
        // A reused batch keeps the capacity of the largest it ever held.
        let mut spare_bytes = 0;
        self.spare.retain(|batch| {
            spare_bytes += batch.memory_bytes();
            spare_bytes <= 2 * REPLAY_BYTES
        });
        (self.events, self.bytes) = (0, 0);
        Ok(())
    }
}

/// Version 0.1 retried overflowing combined increments one by one in later batches, so replaying the sum is not enough.
const OVERFLOWED_SUM: &str = "the journal was written by version 0.1 of Tally and holds increments that overflowed; \
    start version 0.1 once more, stop it with SIGTERM, then start this version";

/// Whether combined increments overflowed.
fn has_overflowed_sum(batch: &Batch, outcomes: &Outcomes) -> bool {
    let mut events = batch.iter().zip(outcomes.slots());
    events.any(|(event, outcome)| event.bare_sum && outcome.refusal == Some(Refusal::Overflow))
}

/// Loads records from the store into memory.
fn restore_all(store: &Store, partition: &mut Partition, missing: &MissingKeys) -> Result<(), StoreError> {
    let mut malformed = None;
    store.get_many(missing, &mut |key, value| {
        if partition.restore(key, value) == Err(Malformed) {
            malformed = Some(MalformedRecord::new(key).into());
        }
    })?;
    malformed.map_or(Ok(()), Err)
}

/// The stored totals of the partition. Older stores lack some of them, which are then counted.
fn stored_meta(store: &Store) -> Result<Meta, StoreError> {
    if let Some(value) = store.get(record::META_KEY)? {
        let meta = record::read_meta(&value, || count(store).map(|(_, expiring)| expiring))?;
        return meta.ok_or_else(|| MalformedRecord::new(record::META_KEY).into());
    }
    let (counters, expiring) = count(store)?;
    Ok(Meta { clock: Millis(0), counters, expiring })
}

/// The number of counters in the store, and of those that have an expiry.
fn count(store: &Store) -> Result<(u64, u64), StoreError> {
    let mut scan = store.scan(&record::counter_key(&[]));
    let (mut counters, mut expiring) = (0, 0);
    while let Some((store_key, value)) = scan.next_entry()?
        && record::counter_of(store_key).is_some()
    {
        let held = record::read_counter(value).ok_or_else(|| MalformedRecord::new(store_key))?;
        counters += 1;
        expiring += u64::from(held.expires_at.is_some());
    }
    Ok((counters, expiring))
}

/// Begins a segment at `end`. On a full disk, first removes segments that the store covers; `None` if that is not
/// enough.
pub(super) fn begin_writing(
    disk: &Arc<dyn Disk>,
    end: Position,
    store: &Store,
    settings: &Settings,
) -> Result<Option<Writer>, OpenError> {
    let begun = match create_writer(disk, end, store, settings) {
        Err(error) if error.is_full() => {
            journal::remove_before(disk.as_ref(), store.position())?;
            create_writer(disk, end, store, settings)
        }
        other => other,
    };
    match begun {
        Ok(writer) => Ok(Some(writer)),
        Err(error) if error.is_full() => {
            tracing::warn!(%error, "no disk space for the journal: writes are refused until some is freed");
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Writes the manifest if there is none, then begins a segment: a segment never exists without a manifest.
fn create_writer(disk: &Arc<dyn Disk>, end: Position, store: &Store, settings: &Settings) -> Result<Writer, OpenError> {
    store.ensure_manifest()?;
    Ok(Writer::create(Arc::clone(disk), end, settings.segment_bytes, settings.salt(), store.id())?)
}

impl Machine {
    /// Opens what the disk holds. `progress` is called with the journal bytes replayed so far and their total.
    ///
    /// Nothing is changed before everything has been read and replayed, so a refused start leaves the disk as it was.
    pub fn open(
        disk: Arc<dyn Disk>,
        clock: Arc<dyn Clock>,
        settings: Settings,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Machine, OpenError> {
        layout::expect_manifest(disk.as_ref())?;
        // The seed is random in a server. Later starts have another seed and keep the identity.
        let fresh = DirId::new(key_hash(settings.seed, b"directory id"));
        let store = Store::open(Arc::clone(&disk), fresh)?;
        let from = store.position();
        let meta = stored_meta(&store)?;
        let budget_bytes = settings.partition_bytes(store.memory_bytes());
        let mut partition = match from {
            Position(0) => Partition::new(settings.seed),
            _ => Partition::with_store(settings.seed, meta, budget_bytes),
        };
        let mut replay = BatchReplay {
            store: &store,
            partition: &mut partition,
            budget_bytes,
            batches: Vec::new(),
            events: 0,
            bytes: 0,
            spare: Vec::new(),
            missing: MissingKeys::default(),
            continues_at: meta.clock,
        };
        let (recovered, repair) =
            journal::replay(&disk, store.id(), from, &mut |frame| replay.push(frame.payload), progress)?;
        replay.apply()?;
        let continues_at = replay.continues_at;
        repair.apply()?;
        store.remove_leftovers()?;
        // Expiries seen during replay were counted when they happened.
        partition.take_expired();
        if recovered.truncated_bytes > 0 {
            tracing::info!(
                bytes = recovered.truncated_bytes,
                "dropped an unfinished write at the end of the journal; it was never acknowledged"
            );
        }
        let writer = begin_writing(&disk, recovered.end, &store, &settings)?;
        let full = writer.is_none();
        let tail = match &writer {
            Some(writer) => Tail::new(writer.reservation()),
            None => Tail::without_room(recovered.end, settings.segment_bytes),
        };
        let last = partition.clock();
        let journal = JournalQueue { tail, in_flight: InFlight::default() };
        Ok(Machine {
            settings,
            clock: SlewedClock::new(clock, last),
            disk,
            store,
            meters: Meters::new(),
            poison: Poison::default(),
            open: OpenBatch::default(),
            sealing: Mutex::new(()),
            state: ResidentPartition::new(Hosted { partition, applied: recovered.end, journal }),
            flushing: Mutex::new(FlushState { writer, group: Group::default() }),
            flushed: AtomicU64::new(recovered.end.0),
            last_flush_micros: AtomicU64::new(0),
            trim_to: AtomicU64::new(0),
            stored_at: AtomicU64::new(continues_at.0),
            disk_full: AtomicBool::new(full),
            no_spare_space: AtomicBool::new(full),
            checkpoint_wanted: AtomicBool::new(false),
            checkpoint_full: AtomicBool::new(false),
            out_of_files: AtomicBool::new(false),
            waits_for_slice: AtomicBool::new(false),
            closing: AtomicBool::new(false),
        })
    }
}
