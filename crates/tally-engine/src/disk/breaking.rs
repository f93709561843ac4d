//! A disk with injected failures and hooks, for tests.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use rustix::io::Errno;

use super::{Disk, DiskFile, RealDisk};
use crate::signal::lock;

/// Which calls fail.
#[derive(Default)]
pub(crate) struct Breaks {
    /// `sync` of files. The error is the name that the file was opened under.
    pub syncs: AtomicBool,
    /// `open` and `create`, for lack of file descriptors.
    pub opens: AtomicBool,
    /// Hooks: each run that is created calls the next one.
    pub on_run_created: Mutex<VecDeque<Box<dyn FnOnce() + Send>>>,
}

/// A real disk, with failures.
pub(crate) struct BreakingDisk {
    disk: RealDisk,
    pub breaks: Arc<Breaks>,
}

struct BreakingFile {
    file: Arc<dyn DiskFile>,
    name: String,
    breaks: Arc<Breaks>,
}

impl BreakingDisk {
    pub(crate) fn new(disk: RealDisk) -> Arc<BreakingDisk> {
        Arc::new(BreakingDisk { disk, breaks: Arc::default() })
    }

    fn opened(
        &self,
        name: &str,
        open: impl FnOnce(&RealDisk, &str) -> io::Result<Arc<dyn DiskFile>>,
    ) -> io::Result<Arc<dyn DiskFile>> {
        if self.breaks.opens.load(Ordering::Relaxed) {
            return Err(Errno::MFILE.into());
        }
        let (file, name) = (open(&self.disk, name)?, name.to_owned());
        Ok(Arc::new(BreakingFile { file, name, breaks: Arc::clone(&self.breaks) }))
    }
}

impl Disk for BreakingDisk {
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        self.opened(name, RealDisk::open)
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        if name.starts_with("run-") {
            let hook = lock(&self.breaks.on_run_created).pop_front();
            if let Some(hook) = hook {
                hook();
            }
        }
        self.opened(name, RealDisk::create)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.disk.rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.disk.remove(name)
    }

    fn names(&self) -> io::Result<Vec<String>> {
        self.disk.names()
    }

    fn sync_names(&self) -> io::Result<()> {
        self.disk.sync_names()
    }
}

impl DiskFile for BreakingFile {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.file.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.file.write_at(offset, data)
    }

    fn allocate(&self, len: u64) -> io::Result<()> {
        self.file.allocate(len)
    }

    fn truncate(&self, len: u64) -> io::Result<()> {
        self.file.truncate(len)
    }

    fn sync(&self) -> io::Result<()> {
        match self.breaks.syncs.load(Ordering::Relaxed) {
            true => Err(io::Error::other(self.name.clone())),
            false => self.file.sync(),
        }
    }
}
