//! A disk in memory that does to its files what the contract of [`tally_engine::disk`] allows a real one to do.
//!
//! Every file has two contents: the one programs see, and the durable one that a power cut falls back to. Between
//! them lies a list of changes that no sync has covered yet: writes, cut at 512-byte sectors, reservations and
//! truncations. The directory is kept the same way. [`SimDisk::power_cut`] decides by seed which of those changes
//! reached the platter.
//!
//! All clones of a `SimDisk` are one disk. Everything it does follows from its seed and the calls made on it.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tally_engine::disk::{Disk, DiskFile};

use crate::rng::Rng;

/// What a disk writes whole or not at all, as far as it keeps its word.
pub const SECTOR_BYTES: usize = 512;

/// What a power cut does to changes that were not synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// All of them reached the disk.
    Nothing,
    /// None did.
    Everything,
    /// Each did or did not, on its own.
    Some,
    /// The earlier ones did, in the order they were made.
    Later,
    /// As [`Loss::Later`], and of the first write that did not, a part of a sector did.
    LaterAndTorn,
}

/// The simulated disk.
#[derive(Clone)]
pub struct SimDisk {
    state: Arc<Mutex<State>>,
}

struct State {
    rng: Rng,
    files: BTreeMap<FileId, Content>,
    next_file: FileId,
    names: BTreeMap<String, FileId>,
    durable_names: BTreeMap<String, FileId>,
    unsynced_names: Vec<Stamped<NameChange>>,
    /// Counts changes, so that those of different files have an order.
    clock: u64,
    /// Counts reboots: handles of an earlier life are dead.
    life: u64,
    operations: u64,
    crash_at: Option<u64>,
    crashed: bool,
    failing_syncs: u32,
    capacity_bytes: u64,
}

type FileId = u64;

#[derive(Default)]
struct Content {
    seen: Vec<u8>,
    durable: Vec<u8>,
    unsynced: Vec<Stamped<Change>>,
    /// Shared with every open handle.
    open: Arc<()>,
}

/// A change and when it was made.
struct Stamped<T> {
    at: u64,
    change: T,
}

enum Change {
    Write { offset: usize, data: Vec<u8> },
    Allocate(usize),
    Truncate(usize),
}

enum NameChange {
    Create { name: String, file: FileId },
    Rename { from: String, to: String, file: FileId },
    Remove { name: String, file: FileId },
}

/// What became of an operation that changes something.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Done,
    /// The crash came in the middle of it: it has begun, and its caller hears of a failure.
    BegunThenCrashed,
}

impl SimDisk {
    /// An empty disk without faults.
    #[must_use]
    pub fn new(seed: u64) -> SimDisk {
        let state = State {
            rng: Rng::new(seed),
            files: BTreeMap::new(),
            next_file: 0,
            names: BTreeMap::new(),
            durable_names: BTreeMap::new(),
            unsynced_names: Vec::new(),
            clock: 0,
            life: 0,
            operations: 0,
            crash_at: None,
            crashed: false,
            failing_syncs: 0,
            capacity_bytes: u64::MAX,
        };
        SimDisk { state: Arc::new(Mutex::new(state)) }
    }

    /// This disk, as the engine takes it.
    #[must_use]
    pub fn disk(&self) -> Arc<dyn Disk> {
        Arc::new(self.clone())
    }

    /// Operations so far that change something or make it durable, over all lives.
    #[must_use]
    pub fn operations(&self) -> u64 {
        self.lock().operations
    }

    /// Makes the operation that [`SimDisk::operations`] would count as number `n` fail, half done or not begun, and
    /// everything after it, reads included, until the power cut.
    pub fn crash_at(&self, n: u64) {
        self.lock().crash_at = Some(n);
    }

    /// Whether the crash point was reached.
    #[must_use]
    pub fn crashed(&self) -> bool {
        self.lock().crashed
    }

    /// Cuts the power and boots again; `seed` chooses what is lost and how. Handles opened before are dead, and the
    /// crash point and failing syncs are gone.
    pub fn power_cut(&self, seed: u64) {
        let mut rng = Rng::new(seed);
        let losses = [Loss::Nothing, Loss::Everything, Loss::Some, Loss::Some, Loss::Later, Loss::LaterAndTorn];
        let loss = losses[rng.below(losses.len() as u64) as usize];
        self.power_cut_losing(loss, rng.next_u64());
    }

    /// As [`SimDisk::power_cut`], with the kind of loss given.
    pub fn power_cut_losing(&self, loss: Loss, seed: u64) {
        self.lock().power_cut(loss, Rng::new(seed));
    }

    /// Ends the process and not the machine: handles are dead, while everything written stays readable and whatever
    /// was not synced can still be lost. The crash point and failing syncs are gone.
    pub fn restart(&self) {
        self.lock().begin_life();
    }

    /// Makes the next `sync` of a file fail as a broken disk does: of the changes it should have covered some are
    /// durable, the others never will be although they can still be read, and later syncs succeed.
    pub fn fail_next_sync(&self) {
        self.lock().failing_syncs += 1;
    }

    /// Limits the bytes of all files together; growing beyond is refused as a full disk does.
    pub fn set_capacity(&self, bytes: u64) {
        self.lock().capacity_bytes = bytes;
    }

    /// Bytes of all files that have a name.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        self.lock().used_bytes()
    }

    /// Flips a bit of a file, durably; bit 0 is the lowest of byte 0.
    pub fn flip(&self, name: &str, bit: u64) -> io::Result<()> {
        self.patch(name, (bit / 8) as usize, |byte| byte ^ (1 << (bit % 8)))
    }

    /// Changes a byte of a file, durably.
    pub fn patch(&self, name: &str, offset: usize, change: impl Fn(u8) -> u8) -> io::Result<()> {
        let mut state = self.lock();
        let id = state.id_of(name)?;
        let content = state.content(id)?;
        for bytes in [&mut content.seen, &mut content.durable] {
            if let Some(byte) = bytes.get_mut(offset) {
                *byte = change(*byte);
            }
        }
        Ok(())
    }

    /// The names of all files, as programs see them, crashed or not.
    #[must_use]
    pub fn file_names(&self) -> Vec<String> {
        self.lock().names.keys().cloned().collect()
    }

    /// Every file and its bytes, as programs see them.
    #[must_use]
    pub fn contents(&self) -> BTreeMap<String, Vec<u8>> {
        let state = self.lock();
        let seen = |id| state.files.get(id).map(|content| content.seen.clone()).unwrap_or_default();
        state.names.iter().map(|(name, id)| (name.clone(), seen(id))).collect()
    }

    /// A disk that holds exactly these files, all durable.
    #[must_use]
    pub fn with_contents(seed: u64, contents: &BTreeMap<String, Vec<u8>>) -> SimDisk {
        let sim = SimDisk::new(seed);
        {
            let mut state = sim.lock();
            for (name, bytes) in contents {
                let id = state.add_file();
                let content = Content { seen: bytes.clone(), durable: bytes.clone(), ..Content::default() };
                state.files.insert(id, content);
                state.names.insert(name.clone(), id);
                state.durable_names.insert(name.clone(), id);
            }
        }
        sim
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn handle(&self, state: &mut State, id: FileId) -> io::Result<Arc<dyn DiskFile>> {
        let open = state.content(id)?.open.clone();
        Ok(Arc::new(SimFile { disk: self.clone(), id, life: state.life, _open: open }))
    }
}

impl State {
    fn alive(&self) -> io::Result<()> {
        if self.crashed { Err(simulated_crash()) } else { Ok(()) }
    }

    /// Counts an operation and decides what becomes of it.
    fn operate(&mut self) -> io::Result<Fate> {
        self.alive()?;
        self.operations += 1;
        if self.crash_at.is_none_or(|n| self.operations < n) {
            return Ok(Fate::Done);
        }
        self.crashed = true;
        if self.rng.one_in(2) { Ok(Fate::BegunThenCrashed) } else { Err(simulated_crash()) }
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
        self.names.values().filter_map(|id| self.files.get(id)).map(|content| content.seen.len() as u64).sum()
    }

    fn reserve(&mut self, id: FileId, len: usize) -> io::Result<()> {
        let grows = (len as u64).saturating_sub(self.content(id)?.seen.len() as u64);
        if grows > 0 && grows > self.capacity_bytes.saturating_sub(self.used_bytes()) {
            return Err(io::Error::new(io::ErrorKind::StorageFull, "the simulated disk is full"));
        }
        Ok(())
    }

    fn change(&mut self, id: FileId, change: Change) -> io::Result<()> {
        let at = self.tick();
        let content = self.content(id)?;
        change.apply(&mut content.seen);
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
        // A file without a name lives as long as someone holds it open.
        let (names, durable) = (&self.names, &self.durable_names);
        let named = |id: &FileId| names.values().chain(durable.values()).any(|named| named == id);
        self.files.retain(|id, content| Arc::strong_count(&content.open) > 1 || named(id));
    }

    fn power_cut(&mut self, loss: Loss, rng: Rng) {
        let mut cut = Cut { loss, rng, at: 0 };
        cut.at = self.moment_of_cut(&mut cut.rng);
        for content in self.files.values_mut() {
            for stamped in content.unsynced.drain(..) {
                if cut.keeps(stamped.at) {
                    stamped.change.apply(&mut content.durable);
                } else if cut.tears(stamped.at) {
                    stamped.change.torn(&mut cut.rng).apply(&mut content.durable);
                }
            }
            content.seen.clone_from(&content.durable);
        }
        for stamped in self.unsynced_names.drain(..) {
            if cut.keeps(stamped.at) {
                stamped.change.apply(&mut self.durable_names);
            }
        }
        self.names.clone_from(&self.durable_names);
        let names = &self.names;
        self.files.retain(|id, _| names.values().any(|named| named == id));
        self.begin_life();
    }

    fn begin_life(&mut self) {
        self.life += 1;
        self.crashed = false;
        self.crash_at = None;
        self.failing_syncs = 0;
    }

    /// One of the changes not synced: the first that a loss of the later ones takes.
    fn moment_of_cut(&self, rng: &mut Rng) -> u64 {
        let of_files = self.files.values().flat_map(|content| content.unsynced.iter().map(|stamped| stamped.at));
        let mut moments: Vec<u64> = of_files.chain(self.unsynced_names.iter().map(|stamped| stamped.at)).collect();
        moments.sort_unstable();
        moments.get(rng.below(moments.len() as u64 + 1) as usize).copied().unwrap_or(u64::MAX)
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

impl Change {
    fn apply(&self, bytes: &mut Vec<u8>) {
        match self {
            Change::Write { offset, data } => {
                let end = offset + data.len();
                if bytes.len() < end {
                    bytes.resize(end, 0);
                }
                bytes[*offset..end].copy_from_slice(data);
            }
            Change::Allocate(len) if bytes.len() < *len => bytes.resize(*len, 0),
            Change::Allocate(_) => {}
            Change::Truncate(len) => bytes.resize(*len, 0),
        }
    }

    /// What is left of it when the power goes in the middle of a sector.
    fn torn(self, rng: &mut Rng) -> Change {
        match self {
            Change::Write { offset, mut data } => {
                data.truncate(rng.below(data.len() as u64) as usize);
                Change::Write { offset, data }
            }
            // Nothing: an allocation of no length.
            Change::Allocate(_) | Change::Truncate(_) => Change::Allocate(0),
        }
    }
}

impl NameChange {
    /// A change whose file does not bear the name, because an earlier change was lost, has no effect.
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

impl Fate {
    fn told<T>(self, value: T) -> io::Result<T> {
        match self {
            Fate::Done => Ok(value),
            Fate::BegunThenCrashed => Err(simulated_crash()),
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
        let fate = state.operate()?;
        let id = state.add_file();
        state.change_names(NameChange::Create { name: name.to_owned(), file: id });
        let handle = self.handle(&mut state, id)?;
        fate.told(handle)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut state = self.lock();
        let fate = state.operate()?;
        let file = state.id_of(from)?;
        state.change_names(NameChange::Rename { from: from.to_owned(), to: to.to_owned(), file });
        fate.told(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut state = self.lock();
        let fate = state.operate()?;
        let file = state.id_of(name)?;
        state.change_names(NameChange::Remove { name: name.to_owned(), file });
        fate.told(())
    }

    fn names(&self) -> io::Result<Vec<String>> {
        let state = self.lock();
        state.alive()?;
        Ok(state.names.keys().cloned().collect())
    }

    fn sync_names(&self) -> io::Result<()> {
        let mut state = self.lock();
        if state.operate()? == Fate::Done {
            state.sync_names();
            return Ok(());
        }
        // In the middle of it: the power cut decides what it has reached.
        Err(simulated_crash())
    }
}

struct SimFile {
    disk: SimDisk,
    id: FileId,
    life: u64,
    _open: Arc<()>,
}

impl SimFile {
    fn lock(&self) -> io::Result<MutexGuard<'_, State>> {
        let state = self.disk.lock();
        if state.life != self.life {
            return Err(io::Error::other("the file was opened before the power cut"));
        }
        Ok(state)
    }
}

impl DiskFile for SimFile {
    fn len(&self) -> io::Result<u64> {
        let mut state = self.lock()?;
        state.alive()?;
        Ok(state.content(self.id)?.seen.len() as u64)
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let mut state = self.lock()?;
        state.alive()?;
        let seen = &state.content(self.id)?.seen;
        let bytes = seen.get(offset as usize..).and_then(|rest| rest.get(..buf.len()));
        buf.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut state = self.lock()?;
        let fate = state.operate()?;
        let (mut offset, mut data) = (offset as usize, data);
        state.reserve(self.id, offset + data.len())?;
        while !data.is_empty() {
            let to_boundary = SECTOR_BYTES - offset % SECTOR_BYTES;
            let (piece, rest) = data.split_at(to_boundary.min(data.len()));
            state.change(self.id, Change::Write { offset, data: piece.to_vec() })?;
            offset += piece.len();
            data = rest;
        }
        fate.told(())
    }

    fn allocate(&self, len: u64) -> io::Result<()> {
        let mut state = self.lock()?;
        let fate = state.operate()?;
        state.reserve(self.id, len as usize)?;
        state.change(self.id, Change::Allocate(len as usize))?;
        fate.told(())
    }

    fn truncate(&self, len: u64) -> io::Result<()> {
        let mut state = self.lock()?;
        let fate = state.operate()?;
        state.change(self.id, Change::Truncate(len as usize))?;
        fate.told(())
    }

    fn sync(&self) -> io::Result<()> {
        let mut state = self.lock()?;
        if state.operate()? == Fate::Done {
            return state.sync(self.id);
        }
        Err(simulated_crash())
    }
}

#[cfg(test)]
#[path = "disk/tests.rs"]
mod tests;
