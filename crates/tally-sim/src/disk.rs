//! An in-memory disk with every failure that the contract of [`tally_engine::disk`] allows.
//!
//! Each file has two contents: the visible one, and the durable one that a power cut reverts to. The difference is a
//! list of unsynced changes: writes, split at 512-byte sectors, allocations and truncations. The directory works the
//! same way. [`SimDisk::power_cut`] decides by seed which unsynced changes reached the disk.
//!
//! All clones of a `SimDisk` are the same disk. Its behaviour is a function of its seed and the calls made on it.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tally_engine::disk::{Disk, DiskFile};

use crate::rng::Rng;

/// The unit that a disk writes atomically, unless a write is torn.
pub const SECTOR_BYTES: usize = 512;

/// Which unsynced changes a power cut loses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// None.
    Nothing,
    /// All.
    Everything,
    /// A random subset.
    Some,
    /// All from a random point in time on.
    Later,
    /// Like [`Loss::Later`], but a part of the first lost write reached the disk.
    LaterAndTorn,
}

/// The simulated disk.
#[derive(Clone)]
pub struct SimDisk {
    state: Arc<Mutex<DiskState>>,
}

struct DiskState {
    rng: Rng,
    files: BTreeMap<FileId, Content>,
    next_file: FileId,
    names: BTreeMap<String, FileId>,
    durable_names: BTreeMap<String, FileId>,
    unsynced_names: Vec<Stamped<NameChange>>,
    /// Number of changes, which orders changes of different files.
    clock: u64,
    /// Number of reboots: handles from an earlier boot are invalid.
    boot: u64,
    operations: u64,
    crash_at: Option<u64>,
    crashed: bool,
    failing_syncs: u32,
    capacity_bytes: u64,
}

type FileId = u64;

#[derive(Default)]
struct Content {
    visible: Vec<u8>,
    durable: Vec<u8>,
    unsynced: Vec<Stamped<FileChange>>,
    /// Shared with every open handle.
    open: Arc<()>,
}

/// A change and when it was made.
struct Stamped<T> {
    at: u64,
    change: T,
}

enum FileChange {
    Write { offset: usize, data: Vec<u8> },
    Allocate(usize),
    Truncate(usize),
}

enum NameChange {
    Create { name: String, file: FileId },
    Rename { from: String, to: String, file: FileId },
    Remove { name: String, file: FileId },
}

/// How a mutating operation ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Operation {
    Done,
    /// The disk crashed during the operation: it took effect but reports a failure.
    CrashedMidway,
}

impl SimDisk {
    /// An empty disk without faults.
    #[must_use]
    pub fn new(seed: u64) -> SimDisk {
        let state = DiskState {
            rng: Rng::new(seed),
            files: BTreeMap::new(),
            next_file: 0,
            names: BTreeMap::new(),
            durable_names: BTreeMap::new(),
            unsynced_names: Vec::new(),
            clock: 0,
            boot: 0,
            operations: 0,
            crash_at: None,
            crashed: false,
            failing_syncs: 0,
            capacity_bytes: u64::MAX,
        };
        SimDisk { state: Arc::new(Mutex::new(state)) }
    }

    /// This disk as a trait object.
    #[must_use]
    pub fn disk(&self) -> Arc<dyn Disk> {
        Arc::new(self.clone())
    }

    /// Mutating and syncing operations so far, over all boots.
    #[must_use]
    pub fn operations(&self) -> u64 {
        self.lock().operations
    }

    /// Makes operation number `n`, as counted by [`SimDisk::operations`], fail before or after taking effect. All later
    /// operations, including reads, fail until the power cut.
    pub fn crash_at(&self, n: u64) {
        self.lock().crash_at = Some(n);
    }

    /// Whether the crash point was reached.
    #[must_use]
    pub fn crashed(&self) -> bool {
        self.lock().crashed
    }

    /// Cuts the power and reboots; `seed` chooses what is lost. Invalidates open handles, and clears the crash point
    /// and pending sync failures.
    pub fn power_cut(&self, seed: u64) {
        let mut rng = Rng::new(seed);
        let losses = [Loss::Nothing, Loss::Everything, Loss::Some, Loss::Some, Loss::Later, Loss::LaterAndTorn];
        let loss = losses[rng.below(losses.len() as u64) as usize];
        self.power_cut_losing(loss, rng.next_u64());
    }

    /// Like [`SimDisk::power_cut`], with this kind of loss.
    pub fn power_cut_losing(&self, loss: Loss, seed: u64) {
        self.lock().power_cut(loss, Rng::new(seed));
    }

    /// Kills the process but not the machine: invalidates open handles, while unsynced changes stay visible and can
    /// still be lost. Clears the crash point and pending sync failures.
    pub fn restart(&self) {
        self.lock().reboot();
    }

    /// Makes the next `sync` of a file fail like a broken disk: a random subset of the changes becomes durable, the
    /// others never do although they stay visible, and later syncs succeed.
    pub fn fail_next_sync(&self) {
        self.lock().failing_syncs += 1;
    }

    /// Limits the total size of all files; growth beyond it fails as on a full disk.
    pub fn set_capacity(&self, bytes: u64) {
        self.lock().capacity_bytes = bytes;
    }

    /// Total size of all files that have a name.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        self.lock().used_bytes()
    }

    /// Durably flips a bit of a file; bit 0 is the lowest of byte 0.
    pub fn flip(&self, name: &str, bit: u64) -> io::Result<()> {
        self.patch(name, (bit / 8) as usize, |byte| byte ^ (1 << (bit % 8)))
    }

    /// Durably changes a byte of a file.
    pub fn patch(&self, name: &str, offset: usize, change: impl Fn(u8) -> u8) -> io::Result<()> {
        let mut state = self.lock();
        let id = state.id_of(name)?;
        let content = state.content(id)?;
        for bytes in [&mut content.visible, &mut content.durable] {
            if let Some(byte) = bytes.get_mut(offset) {
                *byte = change(*byte);
            }
        }
        Ok(())
    }

    /// The visible names of all files, even after a crash.
    #[must_use]
    pub fn file_names(&self) -> Vec<String> {
        self.lock().names.keys().cloned().collect()
    }

    /// The visible content of every file.
    #[must_use]
    pub fn contents(&self) -> BTreeMap<String, Vec<u8>> {
        let state = self.lock();
        let visible = |id| state.files.get(id).map(|content| content.visible.clone()).unwrap_or_default();
        state.names.iter().map(|(name, id)| (name.clone(), visible(id))).collect()
    }

    /// A disk with exactly these files, all durable.
    #[must_use]
    pub fn with_contents(seed: u64, contents: &BTreeMap<String, Vec<u8>>) -> SimDisk {
        let sim = SimDisk::new(seed);
        {
            let mut state = sim.lock();
            for (name, bytes) in contents {
                let id = state.add_file();
                let content = Content { visible: bytes.clone(), durable: bytes.clone(), ..Content::default() };
                state.files.insert(id, content);
                state.names.insert(name.clone(), id);
                state.durable_names.insert(name.clone(), id);
            }
        }
        sim
    }

    fn lock(&self) -> MutexGuard<'_, DiskState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn handle(&self, state: &mut DiskState, id: FileId) -> io::Result<Arc<dyn DiskFile>> {
        let open = state.content(id)?.open.clone();
        Ok(Arc::new(SimFile { disk: self.clone(), id, boot: state.boot, _open: open }))
    }
}

impl DiskState {
    fn alive(&self) -> io::Result<()> {
        if self.crashed { Err(simulated_crash()) } else { Ok(()) }
    }

    /// Counts an operation and decides how it ends.
    fn operate(&mut self) -> io::Result<Operation> {
        self.alive()?;
        self.operations += 1;
        if self.crash_at.is_none_or(|n| self.operations < n) {
            return Ok(Operation::Done);
        }
        self.crashed = true;
        if self.rng.one_in(2) { Ok(Operation::CrashedMidway) } else { Err(simulated_crash()) }
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    fn add_file(&mut self) -> FileId {
        self.next_file += 1;
        self.files.insert(self.next_file, Content::default());
        self.next_file
    }

    fn id_of(&self, name: &str) -> io::Result<FileId> {
        let missing = || io::Error::new(io::ErrorKind::NotFound, format!("{name}: no such file"));
        self.names.get(name).copied().ok_or_else(missing)
    }

    fn content(&mut self, id: FileId) -> io::Result<&mut Content> {
        self.files.get_mut(&id).ok_or_else(|| io::Error::other("no such file on the simulated disk"))
    }

    fn used_bytes(&self) -> u64 {
        self.names.values().filter_map(|id| self.files.get(id)).map(|content| content.visible.len() as u64).sum()
    }

    fn reserve(&mut self, id: FileId, len: usize) -> io::Result<()> {
        let grows = (len as u64).saturating_sub(self.content(id)?.visible.len() as u64);
        if grows > 0 && grows > self.capacity_bytes.saturating_sub(self.used_bytes()) {
            return Err(io::Error::new(io::ErrorKind::StorageFull, "the simulated disk is full"));
        }
        Ok(())
    }

    fn change(&mut self, id: FileId, change: FileChange) -> io::Result<()> {
        let at = self.tick();
        let content = self.content(id)?;
        change.apply(&mut content.visible);
        content.unsynced.push(Stamped { at, change });
        Ok(())
    }

    fn change_names(&mut self, change: NameChange) {
        let at = self.tick();
        change.apply(&mut self.names);
        self.unsynced_names.push(Stamped { at, change });
    }

    fn sync(&mut self, id: FileId) -> io::Result<()> {
        let failing = self.failing_syncs > 0;
        self.failing_syncs -= u32::from(failing);
        let mut rng = self.rng.clone();
        let content = self.content(id)?;
        for stamped in content.unsynced.drain(..) {
            if !failing || rng.one_in(2) {
                stamped.change.apply(&mut content.durable);
            }
        }
        self.rng = rng;
        if failing { Err(io::Error::from_raw_os_error(5)) } else { Ok(()) }
    }

    fn sync_names(&mut self) {
        for stamped in self.unsynced_names.drain(..) {
            stamped.change.apply(&mut self.durable_names);
        }
        // A file without a name is freed when its last handle is closed.
        let (names, durable) = (&self.names, &self.durable_names);
        let named = |id: &FileId| names.values().chain(durable.values()).any(|named| named == id);
        self.files.retain(|id, content| Arc::strong_count(&content.open) > 1 || named(id));
    }

    fn power_cut(&mut self, loss: Loss, rng: Rng) {
        let mut cut = Cut { loss, rng, at: 0 };
        cut.at = self.time_of_cut(&mut cut.rng);
        for content in self.files.values_mut() {
            for stamped in content.unsynced.drain(..) {
                if cut.keeps(stamped.at) {
                    stamped.change.apply(&mut content.durable);
                } else if cut.tears(stamped.at) {
                    stamped.change.torn(&mut cut.rng).apply(&mut content.durable);
                }
            }
            content.visible.clone_from(&content.durable);
        }
        for stamped in self.unsynced_names.drain(..) {
            if cut.keeps(stamped.at) {
                stamped.change.apply(&mut self.durable_names);
            }
        }
        self.names.clone_from(&self.durable_names);
        let names = &self.names;
        self.files.retain(|id, _| names.values().any(|named| named == id));
        self.reboot();
    }

    fn reboot(&mut self) {
        self.boot += 1;
        self.crashed = false;
        self.crash_at = None;
        self.failing_syncs = 0;
    }

    /// The time of a random unsynced change, which is the first one lost with [`Loss::Later`].
    fn time_of_cut(&self, rng: &mut Rng) -> u64 {
        let of_files = self.files.values().flat_map(|content| content.unsynced.iter().map(|stamped| stamped.at));
        let mut times: Vec<u64> = of_files.chain(self.unsynced_names.iter().map(|stamped| stamped.at)).collect();
        times.sort_unstable();
        times.get(rng.below(times.len() as u64 + 1) as usize).copied().unwrap_or(u64::MAX)
    }
}

/// The decisions of one power cut.
struct Cut {
    loss: Loss,
    rng: Rng,
    at: u64,
}

impl Cut {
    fn keeps(&mut self, at: u64) -> bool {
        match self.loss {
            Loss::Nothing => true,
            Loss::Everything => false,
            Loss::Some => self.rng.one_in(2),
            Loss::Later | Loss::LaterAndTorn => at < self.at,
        }
    }

    fn tears(&self, at: u64) -> bool {
        self.loss == Loss::LaterAndTorn && at == self.at
    }
}

impl FileChange {
    fn apply(&self, bytes: &mut Vec<u8>) {
        match self {
            FileChange::Write { offset, data } => {
                let end = offset + data.len();
                if bytes.len() < end {
                    bytes.resize(end, 0);
                }
                bytes[*offset..end].copy_from_slice(data);
            }
            FileChange::Allocate(len) if bytes.len() < *len => bytes.resize(*len, 0),
            FileChange::Allocate(_) => {}
            FileChange::Truncate(len) => bytes.resize(*len, 0),
        }
    }

    /// What remains of a change that is torn by a power cut.
    fn torn(self, rng: &mut Rng) -> FileChange {
        match self {
            FileChange::Write { offset, mut data } => {
                data.truncate(rng.below(data.len() as u64) as usize);
                FileChange::Write { offset, data }
            }
            // A no-op.
            FileChange::Allocate(_) | FileChange::Truncate(_) => FileChange::Allocate(0),
        }
    }
}

impl NameChange {
    /// Has no effect if the name belongs to another file because an earlier change was lost.
    fn apply(&self, names: &mut BTreeMap<String, FileId>) {
        match self {
            NameChange::Create { name, file } => {
                names.insert(name.clone(), *file);
            }
            NameChange::Rename { from, to, file } if names.get(from) == Some(file) => {
                names.remove(from);
                names.insert(to.clone(), *file);
            }
            NameChange::Remove { name, file } if names.get(name) == Some(file) => {
                names.remove(name);
            }
            NameChange::Rename { .. } | NameChange::Remove { .. } => {}
        }
    }
}

impl Operation {
    fn result<T>(self, value: T) -> io::Result<T> {
        match self {
            Operation::Done => Ok(value),
            Operation::CrashedMidway => Err(simulated_crash()),
        }
    }
}

fn simulated_crash() -> io::Error {
    io::Error::other("simulated crash")
}

impl Disk for SimDisk {
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let mut state = self.lock();
        state.alive()?;
        let id = state.id_of(name)?;
        self.handle(&mut state, id)
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let mut state = self.lock();
        let operation = state.operate()?;
        let id = state.add_file();
        state.change_names(NameChange::Create { name: name.to_owned(), file: id });
        let handle = self.handle(&mut state, id)?;
        operation.result(handle)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut state = self.lock();
        let operation = state.operate()?;
        let file = state.id_of(from)?;
        state.change_names(NameChange::Rename { from: from.to_owned(), to: to.to_owned(), file });
        operation.result(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut state = self.lock();
        let operation = state.operate()?;
        let file = state.id_of(name)?;
        state.change_names(NameChange::Remove { name: name.to_owned(), file });
        operation.result(())
    }

    fn names(&self) -> io::Result<Vec<String>> {
        let state = self.lock();
        state.alive()?;
        Ok(state.names.keys().cloned().collect())
    }

    fn sync_names(&self) -> io::Result<()> {
        let mut state = self.lock();
        if state.operate()? == Operation::Done {
            state.sync_names();
            return Ok(());
        }
        // Crashed during the sync: the power cut decides what became durable.
        Err(simulated_crash())
    }
}

struct SimFile {
    disk: SimDisk,
    id: FileId,
    boot: u64,
    _open: Arc<()>,
}

impl SimFile {
    fn lock(&self) -> io::Result<MutexGuard<'_, DiskState>> {
        let state = self.disk.lock();
        if state.boot != self.boot {
            return Err(io::Error::other("the file was opened before the power cut"));
        }
        Ok(state)
    }
}

impl DiskFile for SimFile {
    fn len(&self) -> io::Result<u64> {
        let mut state = self.lock()?;
        state.alive()?;
        Ok(state.content(self.id)?.visible.len() as u64)
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let mut state = self.lock()?;
        state.alive()?;
        let visible = &state.content(self.id)?.visible;
        let bytes = visible.get(offset as usize..).and_then(|rest| rest.get(..buf.len()));
        buf.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut state = self.lock()?;
        let operation = state.operate()?;
        let (mut offset, mut data) = (offset as usize, data);
        state.reserve(self.id, offset + data.len())?;
        while !data.is_empty() {
            let to_boundary = SECTOR_BYTES - offset % SECTOR_BYTES;
            let (piece, rest) = data.split_at(to_boundary.min(data.len()));
            state.change(self.id, FileChange::Write { offset, data: piece.to_vec() })?;
            offset += piece.len();
            data = rest;
        }
        operation.result(())
    }

    fn allocate(&self, len: u64) -> io::Result<()> {
        let mut state = self.lock()?;
        let operation = state.operate()?;
        state.reserve(self.id, len as usize)?;
        state.change(self.id, FileChange::Allocate(len as usize))?;
        operation.result(())
    }

    fn truncate(&self, len: u64) -> io::Result<()> {
        let mut state = self.lock()?;
        let operation = state.operate()?;
        state.change(self.id, FileChange::Truncate(len as usize))?;
        operation.result(())
    }

    fn sync(&self) -> io::Result<()> {
        let mut state = self.lock()?;
        if state.operate()? == Operation::Done {
            return state.sync(self.id);
        }
        Err(simulated_crash())
    }
}

#[cfg(test)]
#[path = "disk/tests.rs"]
mod tests;
