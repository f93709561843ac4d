//! A disk in memory that can fail at any call and simulates power cuts.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};

use crate::disk::{Disk, DiskFile};

/// How a call fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Once, without effect.
    Before(io::ErrorKind),
    /// Once, after taking effect.
    After(io::ErrorKind),
    /// Without effect, like every call after it.
    Dead,
}

/// Which call fails, and how.
pub struct Faults {
    left: AtomicI64,
    fault: Mutex<Fault>,
}

impl Faults {
    fn call<T>(&self, effect: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        let left = self.left.fetch_sub(1, Ordering::Relaxed);
        let fault = *self.fault.lock().unwrap();
        match fault {
            Fault::Before(kind) if left == 0 => Err(kind.into()),
            Fault::After(kind) if left == 0 => effect().and(Err(kind.into())),
            Fault::Dead if left <= 0 => Err(io::Error::other("dead")),
            _ => effect(),
        }
    }
}

pub struct MemFile {
    data: Mutex<Vec<u8>>,
    synced: Mutex<Vec<u8>>,
    faults: Arc<Faults>,
}

type Names = BTreeMap<String, Arc<MemFile>>;

pub struct MemDisk {
    names: Mutex<Names>,
    durable: Mutex<Names>,
    pub faults: Arc<Faults>,
}

impl MemDisk {
    pub fn new() -> Arc<MemDisk> {
        let faults = Arc::new(Faults { left: AtomicI64::new(i64::MAX), fault: Mutex::new(Fault::Dead) });
        Arc::new(MemDisk { names: Mutex::default(), durable: Mutex::default(), faults })
    }

    /// Makes the call after the next `calls` fail.
    pub fn arm(&self, calls: usize, fault: Fault) {
        *self.faults.fault.lock().unwrap() = fault;
        self.faults.left.store(calls as i64, Ordering::Relaxed);
    }

    /// Lets every call succeed again. Returns whether the fault occurred.
    pub fn disarm(&self) -> bool {
        self.faults.left.swap(i64::MAX, Ordering::Relaxed) < 0
    }

    /// A copy of this disk as it is now.
    pub fn copy(&self) -> Arc<MemDisk> {
        MemDisk::with(&self.names.lock().unwrap(), |file| file.data.lock().unwrap().clone())
    }

    /// A copy of what a power cut leaves: only synced content and, of the creations, renames and removals that are not
    /// durable, those of names for which `kept` is true.
    pub fn copy_synced(&self, kept: impl Fn(&str) -> bool) -> Arc<MemDisk> {
        let mut names = self.durable.lock().unwrap().clone();
        let current = self.names.lock().unwrap();
        names.retain(|name, _| !kept(name));
        names
            .extend(current.iter().filter(|(name, _)| kept(name)).map(|(name, file)| (name.clone(), Arc::clone(file))));
        MemDisk::with(&names, |file| file.synced.lock().unwrap().clone())
    }

    fn with(names: &Names, content: impl Fn(&MemFile) -> Vec<u8>) -> Arc<MemDisk> {
        let disk = MemDisk::new();
        for (name, file) in names {
            disk.put(name, content(file));
        }
        disk
    }

    /// Writes a file durably.
    pub fn put(&self, name: &str, content: Vec<u8>) {
        let file = MemFile {
            data: Mutex::new(content.clone()),
            synced: Mutex::new(content),
            faults: Arc::clone(&self.faults),
        };
        let file = Arc::new(file);
        self.names.lock().unwrap().insert(name.into(), Arc::clone(&file));
        self.durable.lock().unwrap().insert(name.into(), file);
    }

    pub fn content(&self, name: &str) -> Vec<u8> {
        self.names.lock().unwrap()[name].data.lock().unwrap().clone()
    }

    pub fn flip(&self, name: &str, bit: usize) {
        self.names.lock().unwrap()[name].data.lock().unwrap()[bit / 8] ^= 1 << (bit % 8);
    }

    pub fn file_names(&self) -> Vec<String> {
        self.names.lock().unwrap().keys().cloned().collect()
    }
}

impl Disk for MemDisk {
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        self.faults.call(|| match self.names.lock().unwrap().get(name) {
            Some(file) => Ok(Arc::clone(file) as Arc<dyn DiskFile>),
            None => Err(io::ErrorKind::NotFound.into()),
        })
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        self.faults.call(|| {
            let faults = Arc::clone(&self.faults);
            let file = Arc::new(MemFile { data: Mutex::default(), synced: Mutex::default(), faults });
            self.names.lock().unwrap().insert(name.into(), Arc::clone(&file));
            Ok(file as Arc<dyn DiskFile>)
        })
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.faults.call(|| {
            let mut names = self.names.lock().unwrap();
            let file = names.remove(from).ok_or(io::ErrorKind::NotFound)?;
            names.insert(to.into(), file);
            Ok(())
        })
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.faults.call(|| match self.names.lock().unwrap().remove(name) {
            Some(_) => Ok(()),
            None => Err(io::ErrorKind::NotFound.into()),
        })
    }

    fn names(&self) -> io::Result<Vec<String>> {
        self.faults.call(|| Ok(self.file_names()))
    }

    fn sync_names(&self) -> io::Result<()> {
        self.faults.call(|| {
            *self.durable.lock().unwrap() = self.names.lock().unwrap().clone();
            Ok(())
        })
    }
}

impl DiskFile for MemFile {
    fn len(&self) -> io::Result<u64> {
        self.faults.call(|| Ok(self.data.lock().unwrap().len() as u64))
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.faults.call(|| {
            let data = self.data.lock().unwrap();
            let from = data.get(offset as usize..offset as usize + buf.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
            buf.copy_from_slice(from);
            Ok(())
        })
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.faults.call(|| {
            let mut file = self.data.lock().unwrap();
            let end = offset as usize + data.len();
            if file.len() < end {
                file.resize(end, 0);
            }
            file[offset as usize..end].copy_from_slice(data);
            Ok(())
        })
    }

    fn allocate(&self, len: u64) -> io::Result<()> {
        self.truncate(len)
    }

    fn truncate(&self, len: u64) -> io::Result<()> {
        self.faults.call(|| {
            self.data.lock().unwrap().resize(len as usize, 0);
            Ok(())
        })
    }

    fn sync(&self) -> io::Result<()> {
        self.faults.call(|| {
            *self.synced.lock().unwrap() = self.data.lock().unwrap().clone();
            Ok(())
        })
    }
}
