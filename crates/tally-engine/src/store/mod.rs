//! The store: the durable home of counters, request ids and ledger entries, always *at* a journal position.
//!
//! The journal already makes changes durable and memory already holds what is hot, so this is a log-structured
//! merge tree without a write-ahead log and without a memtable. A checkpoint hands over sorted entries, which
//! become immutable files, *runs*; a *manifest* names the runs and the position and is replaced atomically;
//! merging in the background keeps the runs few. Keys and values are bytes to it.
//!
//! Who may wait for whom: readers take a snapshot of the list of runs under a lock held for an instant, and wait for
//! nothing else. Checkpoints and merges write their runs side by side; only their commits, a few small
//! writes each, take turns. A run file is removed once no durable manifest names it; who still reads it has it open.
//!
//! Opening changes nothing. What a crash left behind is removed once the start is sure to succeed.

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
pub use self::read::Scan;
use self::run::Run;
pub use self::run::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
pub use self::verify::Summary;
use self::writer::RunWriter;
use crate::disk::Disk;
use crate::host::{RecordSnapshot, RecordStore};
use crate::identity::DirId;
use crate::signal::lock;

/// A merge looks this often, in entries, whether it should stop.
const STOP_CHECK_ENTRIES: u64 = 1 << 12;

/// The store of one disk. There must be only one writing store per disk at a time.
pub struct Store {
    disk: Arc<dyn Disk>,
    mode: StoreMode,
    id: DirId,
    /// Whether the manifest in force has the present format.
    has_manifest: AtomicBool,
    /// What readers see. Held only to copy or replace the pointer.
    current: Mutex<Arc<StoreVersion>>,
    /// Held while a commit is under way. Names files to remove once a durable manifest does not name them.
    obsolete: Mutex<Vec<String>>,
    /// Held while a merge is under way.
    merging: Mutex<()>,
    stopping: AtomicBool,
    next_file: AtomicU64,
}

/// What an open store may do to the disk.
#[derive(Clone, Copy, PartialEq, Eq)]
enum StoreMode {
    ReadWrite,
    ReadOnly,
}

/// The store at one moment. Immutable.
struct StoreVersion {
    position: Position,
    /// Newest first.
    runs: Vec<Arc<Run>>,
}

/// The store at one moment. What is committed or merged later does not show in it.
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

    /// Walks the live entries in key order, from `start` on.
    #[must_use]
    pub fn scan(&self, start: &[u8]) -> Scan {
        Scan::new(Arc::clone(&self.0), start)
    }

    /// Whether the store may hold each of the keys: false means that it does not.
    #[must_use]
    pub fn may_hold_each(&self, keys: &[impl AsRef<[u8]>]) -> Vec<bool> {
        self.0.holders(&keys.iter().map(AsRef::as_ref)).into_iter().map(|holders| holders != 0).collect()
    }
}

/// Removes a file that nothing names, and says whether it is gone. If not, the next open will try again.
fn remove(disk: &dyn Disk, name: &str) -> bool {
    match disk.remove(name) {
        Ok(()) => true,
        Err(error) if error.kind() == io::ErrorKind::NotFound => true,
        Err(error) => {
            tracing::warn!(file = name, %error, "cannot remove a file that is no longer needed");
            false
        }
    }
}

impl Store {
    /// Opens what the manifest names and changes nothing. An empty disk is an empty store at position 0. Where no
    /// manifest says which directory this is, it becomes `fresh` with the next one written.
    ///
    /// Once the start is sure to succeed, [`Store::remove_leftovers`] and [`Store::ensure_manifest`] put it in order.
    pub fn open(disk: Arc<dyn Disk>, fresh: DirId) -> Result<Store, StoreError> {
        Store::load(disk, StoreMode::ReadWrite, fresh)
    }

    /// Opens what the manifest names and never writes or tombstones anything; checkpoints and merges are refused.
    pub fn open_read_only(disk: Arc<dyn Disk>) -> Result<Store, StoreError> {
        Store::load(disk, StoreMode::ReadOnly, DirId::default())
    }

    fn load(disk: Arc<dyn Disk>, mode: StoreMode, fresh: DirId) -> Result<Store, StoreError> {
        let manifest = Manifest::read(disk.as_ref())?.unwrap_or_default();
        let id = manifest.id.unwrap_or(fresh);
        let runs = manifest.runs.iter().map(|&named| Run::open(disk.as_ref(), id, named).map(Arc::new));
        let version = StoreVersion { position: manifest.position, runs: runs.collect::<Result<_, _>>()? };
        // Leftovers count: their removal is not durable at once, and a number is never used twice.
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

    /// Removes what a crash left behind: runs that the manifest does not name, and a manifest that was not published.
    /// Files with names that are not the store's stay. To be called before the first checkpoint or merge.
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

    /// Writes a manifest of the present format if the one in force is older or there is none. Before the first run or
    /// segment of this format, so that such a file is never without it.
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

    /// Writes the manifest of a version, beside the one in force.
    fn prepare(&self, version: &StoreVersion) -> Result<(), StoreError> {
        version.manifest(self.id, self.next_file.load(Ordering::Relaxed)).prepare(self.disk.as_ref())
    }

    /// Puts the manifest that was prepared in force.
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

    /// Looks up many keys, in any order and some perhaps more than once. Calls `found` once for each that has a value,
    /// in the order of keys. Blocks are read and decoded at most once, so the closer the keys the cheaper each. Says how many
    /// keys it had to look for in runs: those that no run can hold cost little.
    pub fn get_many(&self, keys: &MissingKeys, found: &mut dyn FnMut(&[u8], &[u8])) -> Result<usize, StoreError> {
        if keys.is_empty() { Ok(0) } else { self.version().get_many(keys, found) }
    }

    /// The store as it is now, to read it without locking anything.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        Snapshot(self.version())
    }

    /// Whether nothing was committed or merged since the snapshot was taken.
    #[must_use]
    pub fn is_current(&self, snapshot: &Snapshot) -> bool {
        Arc::ptr_eq(&lock(&self.current), &snapshot.0)
    }

    /// Walks the live entries in key order, from `start` on, as they are now. What is committed or merged
    /// meanwhile does not show, and does not wait; the files walked keep their disk space until the walk is dropped.
    #[must_use]
    pub fn scan(&self, start: &[u8]) -> Scan {
        Scan::new(self.version(), start)
    }

    /// Starts a checkpoint.
    #[must_use]
    pub fn checkpoint(&self) -> CheckpointWriter<'_> {
        CheckpointWriter::new(self)
    }

    /// Does one merge if one is due, and says whether it did. To be called again until it says no; then at most
    /// 16 runs are left. Meant for a thread of its own: checkpoints and reads go on meanwhile, another merge waits.
    ///
    /// `forget` says which entries need not be kept. It must be one-way: once true of an entry it stays true, and
    /// it is true of every older version of that key. Whether such an entry is still found is not defined.
    ///
    /// After an error, a full disk for instance, the store is as before.
    pub fn merge_once(&self, forget: &dyn Fn(&[u8], &[u8]) -> bool) -> Result<bool, StoreError> {
        let _turn = lock(&self.merging);
        let version = self.version();
        let sizes: Vec<u64> = version.runs.iter().map(|run| run.bytes).collect();
        let Some(window) = merge::choose(&sizes).filter(|_| !self.stopping.load(Ordering::Relaxed)) else {
            return Ok(false);
        };
        let inputs = version.runs.get(window.clone()).unwrap_or_default();
        // A removal must stay as long as there is an older run that may hold the key. Checkpoints only add newer ones.
        let keep_tombstones = window.end < version.runs.len();
        let keep = |key: &[u8], value: Option<&[u8]>| value.map_or(keep_tombstones, |value| !forget(key, value));
        let Some(output) = self.write_merged(inputs, keep)? else { return Ok(false) };
        self.install_merge(output, inputs)?;
        Ok(true)
    }

    /// Makes a merge under way give up soon and later ones do nothing, so that the store can be closed quickly.
    pub fn stop_merging(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }

    /// Writes the entries of `inputs` to `keep` as one run; `None` when told to stop.
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
            StoreMode::ReadOnly => Err(StoreError::Refused { what: "it was opened for reading only" }),
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

    /// Puts the output of a merge where its inputs are now: newer runs may have come in front of them.
    fn install_merge(&self, output: PendingRuns<'_>, inputs: &[Arc<Run>]) -> Result<(), StoreError> {
        self.install(output, inputs, |current, added| {
            let is_input = |run: &&Arc<Run>| inputs.iter().any(|input| Arc::ptr_eq(input, run));
            let newer = current.runs.iter().take_while(|run| !is_input(run));
            let older = current.runs.iter().skip_while(|run| !is_input(run)).skip_while(is_input);
            StoreVersion { position: current.position, runs: newer.chain(added).chain(older).cloned().collect() }
        })
    }

    /// Makes the next version durable, then visible, then tombstones the runs it no longer needs.
    fn install(
        &self,
        pending: PendingRuns<'_>,
        retired: &[Arc<Run>],
        next: impl FnOnce(&StoreVersion, &[Arc<Run>]) -> StoreVersion,
    ) -> Result<(), StoreError> {
        if self.mode == StoreMode::ReadOnly {
            return Err(StoreError::Refused { what: "it was opened for reading only" });
        }
        let mut obsolete = lock(&self.obsolete);
        let version = next(&self.version(), &pending.runs);
        self.prepare(&version)?;
        let added = pending.keep();
        if let Err(error) = self.publish() {
            // Either manifest may be in force: the runs of both must stay until a later one is.
            obsolete.extend(added.iter().map(|run| run.name.clone()));
            return Err(error);
        }
        *lock(&self.current) = Arc::new(version);
        obsolete.extend(retired.iter().map(|run| run.name.clone()));
        obsolete.retain(|name| !remove(self.disk.as_ref(), name));
        Ok(())
    }

    /// Reads everything, every block of every run, without changing anything, and reports what there is or the first
    /// damage. `progress` hears how many of how many bytes are done.
    pub fn verify(disk: &dyn Disk, progress: &mut dyn FnMut(u64, u64)) -> Result<Summary, StoreError> {
        verify::verify(disk, progress)
    }

    /// Bytes of filters and indexes held in memory.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.version().runs.iter().map(|run| run.memory_bytes()).sum()
    }

    /// Bytes of all runs on disk.
    #[must_use]
    pub fn disk_bytes(&self) -> u64 {
        self.version().runs.iter().map(|run| run.bytes).sum()
    }

    /// Number of runs: what a read may have to look into.
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

/// The numbers of all run files, named by a manifest or not.
fn run_files(disk: &dyn Disk) -> Result<Vec<u64>, StoreError> {
    let names = disk.names().map_err(|error| StoreError::io(manifest::FILE, error))?;
    Ok(names.iter().filter_map(|name| run::file_number(name)).collect())
}

/// What can be told of a store whose manifest is missing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RunHeaders {
    /// Number of run files.
    pub(crate) runs: usize,
    /// The newest format that the header of a run names; headers that cannot be read do not count.
    pub(crate) newest_format: u32,
}

/// Looks for a manifest and, where there is none, at the headers of the runs.
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
