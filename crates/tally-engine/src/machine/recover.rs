//! Opening: store + journal tail = the state as of the last flush.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex};

use tally_core::batch::{Batch, Combiner, decode, key_hash};
use tally_core::missing_keys::MissingKeys;
use tally_core::outcome::{Outcomes, Refusal};
use tally_core::partition::{Malformed, Partition};
use tally_core::record::{self, Meta};
use tally_core::time::{Millis, Position};

use super::{Flushing, Machine, Open, Settings, State};
use crate::clock::{Clock, SlewedClock};
use crate::disk::{Disk, is_full};
use crate::identity::DirId;
use crate::journal::{self, Group, JournalError, Tail, Writer};
use crate::layout;
use crate::measure::Meters;
use crate::signal::Poison;
use crate::store::{Store, StoreError};
use crate::ticket::Ticket;

/// Why a data directory could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process has it.
    #[error("{dir} is in use by another process{by}; stop that one, or give this one another --data")]
    InUse {
        /// The data directory.
        dir: String,
        /// Who, if known.
        by: String,
    },
    /// Written by a later version, or not by Tally.
    #[error("{dir}: {what}")]
    Format {
        /// The data directory.
        dir: String,
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
         or `LimitNOFILE=` of a systemd unit"
    )]
    Files {
        /// How many it needs.
        needed: usize,
        /// How many it may have.
        limit: u64,
    },
}

impl OpenError {
    /// Whether the disk has no room, as opposed to a fault.
    fn is_full(&self) -> bool {
        match self {
            OpenError::Io(error) => is_full(error),
            OpenError::Store(error) => error.is_full(),
            _ => false,
        }
    }
}

/// Events replayed at a time: what they need is fetched from the store in one sorted sweep.
const REPLAY_EVENTS: usize = 1 << 18;
/// Bytes of such events.
const REPLAY_BYTES: usize = 32 << 20;

/// Batches read from the journal and not applied yet.
struct BatchReplay<'a> {
    store: &'a Store,
    partition: &'a mut Partition,
    batches: Vec<(Millis, Batch)>,
    events: usize,
    bytes: usize,
    /// Memory that can be used again, up to what one sweep takes.
    spare: Vec<Batch>,
    wanted: MissingKeys,
}

impl BatchReplay<'_> {
    fn take(&mut self, payload: &[u8]) -> Result<(), journal::FrameError> {
        let mut batch = self.spare.pop().unwrap_or_default();
        let at = decode(payload, self.partition.seed(), &mut batch)?;
        self.events += batch.len();
        self.bytes += batch.bytes();
        self.batches.push((at, batch));
        if self.events >= REPLAY_EVENTS || self.bytes >= REPLAY_BYTES {
            self.apply()?;
        }
        Ok(())
    }

    fn apply(&mut self) -> Result<(), StoreError> {
        self.wanted.clear();
        for (_, batch) in &self.batches {
            self.partition.missing(batch, self.store.position(), &mut self.wanted);
        }
        restore_all(self.store, self.partition, &self.wanted)?;
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
        // Each is as large as the largest it ever held.
        let mut spare_bytes = 0;
        self.spare.retain(|batch| {
            spare_bytes += batch.memory_bytes();
            spare_bytes <= 2 * REPLAY_BYTES
        });
        (self.events, self.bytes) = (0, 0);
        Ok(())
    }
}

/// What to do about a journal of format 1 in which combined increments overflowed. That version tried them again one by
/// one in later batches, so the sum alone does not say what happened.
const OVERFLOWED_SUM: &str = "the journal was written by version 0.1 of Tally and holds increments that overflowed; \
    start that version once more, stop it with SIGTERM, and start this one again";

/// Whether increments that were summed up overflowed together.
fn has_overflowed_sum(batch: &Batch, outcomes: &Outcomes) -> bool {
    let mut events = batch.iter().zip(outcomes.slots());
    events.any(|(event, outcome)| event.bare_sum && outcome.refusal == Some(Refusal::Overflow))
}

/// Brings records from the store to memory; says how many it looked for.
fn restore_all(store: &Store, partition: &mut Partition, wanted: &MissingKeys) -> Result<usize, StoreError> {
    let mut malformed = None;
    let looked_for = store.get_many(wanted, &mut |key, value| {
        if partition.restore(key, value) == Err(Malformed) {
            malformed = Some(StoreError::malformed(key));
        }
    })?;
    malformed.map_or(Ok(looked_for), Err)
}

/// What the store says of the partition as a whole. A store from before some of it was written down is counted once.
fn stored_meta(store: &Store) -> Result<Meta, StoreError> {
    if let Some(value) = store.get(record::META_KEY)? {
        let meta = record::read_meta(&value, || count(store).map(|(_, expiring)| expiring))?;
        return meta.ok_or_else(|| StoreError::malformed(record::META_KEY));
    }
    let (counters, expiring) = count(store)?;
    Ok(Meta { clock: Millis(0), counters, expiring })
}

/// The counters of the store, and those of them that have an expiry.
fn count(store: &Store) -> Result<(u64, u64), StoreError> {
    let mut scan = store.scan(&record::counter_key(&[]));
    let (mut counters, mut expiring) = (0, 0);
    while let Some((store_key, value)) = scan.next_entry()?
        && record::counter_of(store_key).is_some()
    {
        let held = record::read_counter(value).ok_or_else(|| StoreError::malformed(store_key))?;
        counters += 1;
        expiring += u64::from(held.expires_at.is_some());
    }
    Ok((counters, expiring))
}

/// Begins a segment at `end`, or says that the disk has no room for one, even without what the store made superfluous.
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
            tracing::warn!(%error, "the disk has no room for the journal; writes are refused until it does");
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Writes the manifest if there is none yet, and then begins a segment: no segment is ever without a manifest.
fn create_writer(disk: &Arc<dyn Disk>, end: Position, store: &Store, settings: &Settings) -> Result<Writer, OpenError> {
    store.ensure_manifest()?;
    Ok(Writer::create(Arc::clone(disk), end, settings.segment_bytes, settings.salt(), store.id())?)
}

impl Machine {
    /// Opens what the disk holds. `progress` hears how many of how many journal bytes have been replayed.
    ///
    /// Until everything has been read and replayed nothing is changed, so a start that is refused leaves the disk as it
    /// was.
    pub fn open(
        disk: Arc<dyn Disk>,
        clock: Arc<dyn Clock>,
        settings: Settings,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Machine, OpenError> {
        layout::expect_manifest(disk.as_ref())?;
        // Random in a server, as the seed is, and told to nobody; later starts have other seeds and keep the identity.
        let fresh = DirId::new(key_hash(settings.seed, b"directory id"));
        let store = Store::open(Arc::clone(&disk), fresh)?;
        let from = store.position();
        let meta = stored_meta(&store)?;
        let mut partition = match from {
            Position(0) => Partition::new(settings.seed),
            _ => Partition::beside_store(settings.seed, meta, settings.partition_bytes(store.memory_bytes())),
        };
        let mut replay = BatchReplay {
            store: &store,
            partition: &mut partition,
            batches: Vec::new(),
            events: 0,
            bytes: 0,
            spare: Vec::new(),
            wanted: MissingKeys::default(),
        };
        let (recovered, repair) =
            journal::replay(&disk, store.id(), from, &mut |frame| replay.take(frame.payload), progress)?;
        replay.apply()?;
        repair.apply()?;
        store.remove_leftovers()?;
        // What a replay starts afresh was counted when it happened.
        partition.take_expired();
        if recovered.truncated_bytes > 0 {
            tracing::info!(bytes = recovered.truncated_bytes, "dropped an unfinished write at the end of the journal");
        }
        let writer = begin_writing(&disk, recovered.end, &store, &settings)?;
        let full = writer.is_none();
        let tail = match &writer {
            Some(writer) => Tail::new(writer.reservation()),
            None => Tail::without_room(recovered.end, settings.segment_bytes),
        };
        let last = partition.clock();
        let state = State { partition, tail, applied: recovered.end, in_flight: VecDeque::new() };
        Ok(Machine {
            settings,
            clock: SlewedClock::new(clock, last),
            disk,
            store,
            meters: Meters::new(),
            poison: Poison::default(),
            open: Mutex::new(Open {
                combiner: Combiner::default(),
                ticket: Arc::new(Ticket::default()),
                blocked: Vec::new(),
            }),
            sealing: Mutex::new(()),
            state: parking_lot::Mutex::new(state),
            writer: Mutex::new(Flushing { writer, group: Group::default() }),
            flushed: AtomicU64::new(recovered.end.0),
            last_flush_micros: AtomicU64::new(0),
            trim_to: AtomicU64::new(0),
            stored_at: AtomicU64::new(meta.clock.0),
            disk_full: AtomicBool::new(full),
            no_room_reported: AtomicBool::new(full),
            checkpoint_wanted: AtomicBool::new(false),
            checkpoint_full: AtomicBool::new(false),
            closing: AtomicBool::new(false),
        })
    }
}
