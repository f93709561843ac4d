//! The store: the durable home of counters, request ids and ledger entries, always *at* a journal position.
//!
//! A log-structured merge tree without a write-ahead log and without a memtable: the journal already makes changes
//! durable, and the partition already holds what is hot. A checkpoint writes sorted entries to immutable files, *runs*.
//! A *manifest* lists the runs and the position, and is replaced atomically. Merges in the background keep the number
//! of runs small. Keys and values are opaque bytes.
//!
//! Concurrency: readers copy a pointer to the list of runs under a lock and wait for nothing else. A checkpoint and a
//! merge can write runs at the same time; only their commits exclude each other. A run is deleted once no durable
//! manifest lists it; readers that still use it keep the file open.
//!
//! Opening changes nothing. Leftovers of a crash are removed once the start is certain to succeed.

mod checkpoint;
mod cursor;
mod error;
mod filter;
mod index;
mod manifest;
mod merge;
mod read;
mod run;
#[cfg(test)]
mod tests;
mod verify;
mod writer;

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tally_core::missing_keys::MissingKeys;
use tally_core::time::Position;

use self::checkpoint::PendingRuns;
pub use self::checkpoint::{CheckpointWriter, Entry};
use self::cursor::ReadAhead;
pub use self::error::StoreError;
use self::manifest::Manifest;
use self::merge::MergeIterator;
pub(crate) use self::merge::RUNS_IDLE_MAX;
pub use self::read::{SampledEntry, Scan};
use self::run::Run;
pub use self::run::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
pub use self::verify::{Decodes, Summary};
use self::writer::RunWriter;
use crate::disk::{Disk, DiskFile};
use crate::host::{RecordSnapshot, RecordStore};
use crate::identity::DirId;
use crate::signal::lock;

/// A merge checks whether it should stop after this many entries.
const STOP_CHECK_ENTRIES: u64 = 1 << 12;

/// The store of one disk. There must be only one writing store per disk at a time.
pub struct Store {
    disk: Arc<dyn Disk>,
    mode: StoreMode,
    id: DirId,
    /// Whether the manifest on disk has the current format.
    has_manifest: AtomicBool,
    /// What readers see. Locked only to copy or replace the pointer.
    current: Mutex<Arc<StoreVersion>>,
    /// Files to delete once a durable manifest does not list them. Locked during a commit.
    obsolete: Mutex<Vec<String>>,
    /// Locked during a merge.
    merging: Mutex<()>,
    stopping: AtomicBool,
    next_file: AtomicU64,
}

/// Whether an open store may change the disk.
#[derive(Clone, Copy, PartialEq, Eq)]
enum StoreMode {
    ReadWrite,
    ReadOnly,
}

/// An immutable list of runs.
struct StoreVersion {
    position: Position,
    /// Newest first.
    runs: Vec<Arc<Run>>,
}

/// The files of one checkpoint.
pub(crate) struct StoreFiles {
    /// The identity of the directory.
    pub id: DirId,
    /// The position of the checkpoint.
    pub position: Position,
    /// Name, length and content of each run.
    pub runs: Vec<(String, u64, Arc<dyn DiskFile>)>,
    /// The content of a manifest that lists them.
    pub manifest: Vec<u8>,
}

/// The store at one moment. Later commits and merges do not change it.
pub struct Snapshot(Arc<StoreVersion>);

impl Snapshot {
    /// The position of the checkpoint it reflects.
    #[must_use]
    pub fn position(&self) -> Position {
        self.0.position
    }

    /// Looks up many keys; see [`Store::get_many`].
    pub fn get_many(&self, keys: &MissingKeys, found: &mut dyn FnMut(&[u8], &[u8])) -> Result<usize, StoreError> {
        if keys.is_empty() { Ok(0) } else { self.0.get_many(keys, found) }
    }

    /// Iterates over the live entries in key order, from `start` on.
    #[must_use]
    pub fn scan(&self, start: &[u8]) -> Scan {
        Scan::new(Arc::clone(&self.0), start)
    }

    /// Whether each of the keys may exist, according to the filters. `false` is certain.
    #[must_use]
    pub fn may_hold_each(&self, keys: &[impl AsRef<[u8]>]) -> Vec<bool> {
        self.0.holders(&keys.iter().map(AsRef::as_ref)).into_iter().map(|holders| holders != 0).collect()
    }
}

/// Deletes an unused file. Returns whether it is gone; if not, the next start tries again.
fn remove(disk: &dyn Disk, name: &str) -> bool {
    match disk.remove(name) {
        Ok(()) => true,
        Err(error) if error.kind() == io::ErrorKind::NotFound => true,
        Err(error) => {
            tracing::warn!(file = name, %error, "an unused file could not be deleted; retrying later");
            false
        }
    }
}

impl Store {
    /// Opens the runs that the manifest lists, and changes nothing. An empty disk is an empty store at position 0. A
    /// directory without an identity gets `fresh` with the next manifest.
    ///
    /// Once the start is certain to succeed, call [`Store::remove_leftovers`] and [`Store::ensure_manifest`].
    pub fn open(disk: Arc<dyn Disk>, fresh: DirId) -> Result<Store, StoreError> {
        Store::load(disk, StoreMode::ReadWrite, fresh)
    }

    /// Opens for reading only; checkpoints and merges are refused.
    pub fn open_read_only(disk: Arc<dyn Disk>) -> Result<Store, StoreError> {
        Store::load(disk, StoreMode::ReadOnly, DirId::default())
    }

    fn load(disk: Arc<dyn Disk>, mode: StoreMode, fresh: DirId) -> Result<Store, StoreError> {
        let manifest = Manifest::read(disk.as_ref())?.unwrap_or_default();
        let id = manifest.id.unwrap_or(fresh);
        let runs = manifest.runs.iter().map(|&named| Run::open(disk.as_ref(), id, named).map(Arc::new));
        let version = StoreVersion { position: manifest.position, runs: runs.collect::<Result<_, _>>()? };
        // Including leftovers: their removal may not be durable, and a number must not be used twice.
        let found = run_files(disk.as_ref())?.into_iter().map(|number| number.saturating_add(1)).max();
        Ok(Store {
            disk,
            mode,
            id,
            has_manifest: AtomicBool::new(manifest.id.is_some()),
            current: Mutex::new(Arc::new(version)),
            obsolete: Mutex::default(),
            merging: Mutex::default(),
            stopping: AtomicBool::new(false),
            next_file: AtomicU64::new(manifest.next_file.max(found.unwrap_or(0)).max(1)),
        })
    }

    /// Deletes leftovers of a crash: runs that the manifest does not list, and an unpublished manifest. Call it before
    /// the first checkpoint or merge.
    pub fn remove_leftovers(&self) -> Result<(), StoreError> {
        let version = self.version();
        let names = self.disk.names().map_err(|error| StoreError::io(manifest::FILE, error))?;
        for name in names {
            let is_leftover = match run::file_number(&name) {
                Some(number) => !version.runs.iter().any(|run| run.number == number),
                None => name == manifest::FILE_NEW,
            };
            if is_leftover {
                remove(self.disk.as_ref(), &name);
            }
        }
        Ok(())
    }

    /// Writes a manifest of the current format unless there is one. Call it before the first run or segment is written:
    /// those must never exist without a manifest.
    pub fn ensure_manifest(&self) -> Result<(), StoreError> {
        let _turn = lock(&self.obsolete);
        if !self.has_manifest.load(Ordering::Acquire) {
            self.prepare(&self.version())?;
            self.publish()?;
        }
        Ok(())
    }

    /// The identity of the directory.
    #[must_use]
    pub fn id(&self) -> DirId {
        self.id
    }

    /// Writes the new manifest next to the current one.
    fn prepare(&self, version: &StoreVersion) -> Result<(), StoreError> {
        version.manifest(self.id, self.next_file.load(Ordering::Relaxed)).prepare(self.disk.as_ref())
    }

    /// Makes the prepared manifest the current one.
    fn publish(&self) -> Result<(), StoreError> {
        Manifest::publish(self.disk.as_ref())?;
        self.has_manifest.store(true, Ordering::Release);
        Ok(())
    }

    fn version(&self) -> Arc<StoreVersion> {
        Arc::clone(&lock(&self.current))
    }

    /// The position of the last committed checkpoint.
    #[must_use]
    pub fn position(&self) -> Position {
        self.version().position
    }

    /// The value of a key, if it has one.
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        self.version().get(key)
    }

    /// Looks up many keys, in any order and with repetitions. Calls `found` once for each that exists, in key order.
    /// Each block is read at most once. Returns how many keys were looked up in runs, that is, not ruled out by
    /// filters.
    pub fn get_many(&self, keys: &MissingKeys, found: &mut dyn FnMut(&[u8], &[u8])) -> Result<usize, StoreError> {
        if keys.is_empty() { Ok(0) } else { self.version().get_many(keys, found) }
    }

    /// The store as it is now, to be read without locks.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        Snapshot(self.version())
    }

    /// Whether there was no commit or merge since the snapshot.
    #[must_use]
    pub fn is_current(&self, snapshot: &Snapshot) -> bool {
        Arc::ptr_eq(&lock(&self.current), &snapshot.0)
    }

    /// Iterates over the live entries in key order, from `start` on, as of now. Later commits and merges are not
    /// visible to it, and do not wait for it. Files in use keep their disk space until the scan is dropped.
    #[must_use]
    pub fn scan(&self, start: &[u8]) -> Scan {
        Scan::new(self.version(), start)
    }

    /// An entry whose key starts with `prefix`, chosen about uniformly by `number`. `None` if the chosen one is
    /// outdated or deleted, or if there are none.
    pub fn sample(&self, prefix: &[u8], number: u64) -> Result<Option<SampledEntry>, StoreError> {
        self.version().sample(prefix, number)
    }

    /// The files of the last checkpoint. They stay readable when later commits and merges remove them.
    pub(crate) fn files(&self) -> StoreFiles {
        let version = self.version();
        let manifest = version.manifest(self.id, self.next_file.load(Ordering::Relaxed)).encode();
        let file = |run: &Arc<Run>| (run.name.clone(), run.bytes, Arc::clone(&run.file));
        StoreFiles { id: self.id, position: version.position, runs: version.runs.iter().map(file).collect(), manifest }
    }

    /// Begins a checkpoint.
    #[must_use]
    pub fn checkpoint(&self) -> CheckpointWriter<'_> {
        CheckpointWriter::new(self)
    }

    /// Does one merge if one is due, and returns whether it did. Call it until it returns `false`; then there are at
    /// most 16 runs. Checkpoints and reads continue during a merge; another merge waits.
    ///
    /// `forget` selects entries that may be dropped. Once true for an entry, it must stay true, also for older versions
    /// of that key. Such an entry may or may not be found afterwards.
    ///
    /// After an error, such as a full disk, the store is unchanged.
    pub fn merge_once(&self, forget: &dyn Fn(&[u8], &[u8]) -> bool) -> Result<bool, StoreError> {
        let _turn = lock(&self.merging);
        let version = self.version();
        let sizes: Vec<u64> = version.runs.iter().map(|run| run.bytes).collect();
        let Some(window) = merge::choose(&sizes).filter(|_| !self.stopping.load(Ordering::Relaxed)) else {
            return Ok(false);
        };
        let inputs = version.runs.get(window.clone()).unwrap_or_default();
        // A tombstone is needed as long as an older run may contain the key. Checkpoints only add newer runs.
        let keep_tombstones = window.end < version.runs.len();
        let keep = |key: &[u8], value: Option<&[u8]>| value.map_or(keep_tombstones, |value| !forget(key, value));
        // Installing the output opens a file. Without a file descriptor for that, all the work would be wasted.
        let reserved = self.disk.open(MANIFEST_FILE).map_err(|error| StoreError::io(MANIFEST_FILE, error))?;
        let Some(output) = self.write_merged(inputs, keep)? else { return Ok(false) };
        drop(reserved);
        self.install_merge(output, inputs)?;
        Ok(true)
    }

    /// Cancels a running merge and all later ones, so that the store can be closed quickly.
    pub fn stop_merging(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }

    /// Writes the entries of `inputs` that are to be kept as one run; `None` if cancelled.
    fn write_merged(
        &self,
        inputs: &[Arc<Run>],
        keep: impl Fn(&[u8], Option<&[u8]>) -> bool,
    ) -> Result<Option<PendingRuns<'_>>, StoreError> {
        let mut writer = self.run_writer(inputs.iter().map(|run| run.entries).sum())?;
        let mut merged = MergeIterator::new(inputs, &[], ReadAhead::Full)?;
        let mut seen = 0u64;
        while merged.advance()? {
            if keep(merged.key(), merged.value()) {
                writer.push(merged.key(), merged.value())?;
            }
            seen += 1;
            if seen.is_multiple_of(STOP_CHECK_ENTRIES) && self.stopping.load(Ordering::Relaxed) {
                return Ok(None);
            }
        }
        let mut pending = PendingRuns { store: self, runs: Vec::new() };
        pending.finish(writer)?;
        Ok(Some(pending))
    }

    fn run_writer(&self, entries_max: u64) -> Result<RunWriter<'_>, StoreError> {
        match self.mode {
            StoreMode::ReadOnly => Err(StoreError::Refused { what: "the store is open for reading only" }),
            StoreMode::ReadWrite => {
                let number = self.next_file.fetch_add(1, Ordering::Relaxed);
                RunWriter::create(self.disk.as_ref(), self.id, number, entries_max)
            }
        }
    }

    fn install_checkpoint(&self, pending: PendingRuns<'_>, position: Position) -> Result<(), StoreError> {
        self.install(pending, &[], |current, added| {
            let runs = added.iter().rev().chain(&current.runs).cloned().collect();
            StoreVersion { position, runs }
        })
    }

    /// Replaces the inputs of a merge by its output. Newer runs may have been added meanwhile.
    fn install_merge(&self, output: PendingRuns<'_>, inputs: &[Arc<Run>]) -> Result<(), StoreError> {
        self.install(output, inputs, |current, added| {
            let is_input = |run: &&Arc<Run>| inputs.iter().any(|input| Arc::ptr_eq(input, run));
            let newer = current.runs.iter().take_while(|run| !is_input(run));
            let older = current.runs.iter().skip_while(|run| !is_input(run)).skip_while(is_input);
            StoreVersion { position: current.position, runs: newer.chain(added).chain(older).cloned().collect() }
        })
    }

    /// Makes the next version durable, then visible, then deletes the runs that it does not need.
    fn install(
        &self,
        pending: PendingRuns<'_>,
        retired: &[Arc<Run>],
        next: impl FnOnce(&StoreVersion, &[Arc<Run>]) -> StoreVersion,
    ) -> Result<(), StoreError> {
        if self.mode == StoreMode::ReadOnly {
            return Err(StoreError::Refused { what: "the store is open for reading only" });
        }
        let mut obsolete = lock(&self.obsolete);
        let version = next(&self.version(), &pending.runs);
        self.prepare(&version)?;
        let added = pending.keep();
        if let Err(error) = self.publish() {
            // Either manifest may be on disk: keep the runs of both until a later one is durable.
            obsolete.extend(added.iter().map(|run| run.name.clone()));
            return Err(error);
        }
        *lock(&self.current) = Arc::new(version);
        obsolete.extend(retired.iter().map(|run| run.name.clone()));
        obsolete.retain(|name| !remove(self.disk.as_ref(), name));
        Ok(())
    }

    /// Reads and verifies every block of every run. `decodes` is called with every record, `progress` with the bytes
    /// done and their total.
    pub fn verify(
        disk: &dyn Disk,
        decodes: Decodes<'_>,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Summary, StoreError> {
        verify::verify(disk, decodes, progress)
    }

    /// Memory used by filters and indexes.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.version().runs.iter().map(|run| run.memory_bytes()).sum()
    }

    /// Bytes of all runs on disk.
    #[must_use]
    pub fn disk_bytes(&self) -> u64 {
        self.version().runs.iter().map(|run| run.bytes).sum()
    }

    /// Number of runs.
    #[must_use]
    pub fn runs(&self) -> usize {
        self.version().runs.len()
    }
}

impl RecordStore for Store {
    type Error = StoreError;
    type Snapshot = Snapshot;

    fn snapshot(&self) -> Snapshot {
        Store::snapshot(self)
    }

    fn is_current(&self, snapshot: &Snapshot) -> bool {
        Store::is_current(self, snapshot)
    }
}

impl RecordSnapshot for Snapshot {
    type Error = StoreError;

    fn position(&self) -> Position {
        Snapshot::position(self)
    }

    fn get_many(&self, keys: &MissingKeys, found: &mut dyn FnMut(&[u8], &[u8])) -> Result<usize, StoreError> {
        Snapshot::get_many(self, keys, found)
    }
}

impl StoreVersion {
    fn manifest(&self, id: DirId, next_file: u64) -> Manifest {
        let runs = self.runs.iter().map(|run| run.named()).collect();
        Manifest { id: Some(id), position: self.position, next_file, runs }
    }
}

/// Whether this is the name of a run.
pub(crate) fn is_run(name: &str) -> bool {
    run::file_number(name).is_some()
}

/// The numbers of all run files, whether the manifest lists them or not.
fn run_files(disk: &dyn Disk) -> Result<Vec<u64>, StoreError> {
    let names = disk.names().map_err(|error| StoreError::io(manifest::FILE, error))?;
    Ok(names.iter().filter_map(|name| run::file_number(name)).collect())
}

/// What the run files say if the manifest is missing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RunHeaders {
    /// Number of run files.
    pub(crate) runs: usize,
    /// The newest format of a valid run header.
    pub(crate) newest_format: u32,
}

/// Reads the headers of the runs if there is no manifest; `None` if there is one.
pub(crate) fn runs_without_manifest(disk: &dyn Disk) -> Result<Option<RunHeaders>, StoreError> {
    if Manifest::read(disk)?.is_some() {
        return Ok(None);
    }
    let mut found = RunHeaders::default();
    for number in run_files(disk)? {
        let name = run::file_name(number);
        let format = run::version_of(disk, &name).map_err(|error| StoreError::io(&name, error))?;
        found.runs += 1;
        found.newest_format = found.newest_format.max(format.unwrap_or(0));
    }
    Ok(Some(found))
}

/// The name of the manifest.
pub(crate) const MANIFEST_FILE: &str = manifest::FILE;
