//! The disk interface: a flat directory of files with positioned reads and writes.
//!
//! All durable data goes through these two traits, so the simulated disk, which loses unsynced writes, tears them or
//! runs full, tests the same code that runs on a real one.
//!
//! The contract, which real file systems keep and the simulated disk enforces:
//! * A write is durable once `sync` of that file returns. Before that a power cut may keep any subset of
//!   its 512-byte sectors, in any combination with other unsynced writes.
//! * `create`, `rename` and `remove` are durable once `sync_names` returns. Before that a power cut may keep
//!   or lose each of them independently. A file whose name is not durable yet may be lost completely.
//! * `rename` replaces the target atomically.
//! * After `sync` fails, the writes since the last successful one are in an unknown state.

use std::io;
use std::sync::Arc;

use rustix::io::Errno;

/// A flat directory of files. Names contain no separator.
pub trait Disk: Send + Sync + 'static {
    /// Opens an existing file.
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>>;
    /// Creates an empty file, replacing any of the same name.
    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>>;
    /// Renames a file, replacing any of the new name.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Removes a file.
    fn remove(&self, name: &str) -> io::Result<()>;
    /// The names of all files, in any order.
    fn names(&self) -> io::Result<Vec<String>>;
    /// Makes creations, renames and removals durable.
    fn sync_names(&self) -> io::Result<()>;
}

/// One file.
pub trait DiskFile: Send + Sync {
    /// Length in bytes.
    fn len(&self) -> io::Result<u64>;
    /// Fills `buf` from `offset`; fails with `UnexpectedEof` if the file is too short.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()>;
    /// Writes all of `data` at `offset`, growing the file as needed.
    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()>;
    /// Grows the file to `len` and reserves space, so that writes below `len` cannot fail on a full disk.
    fn allocate(&self, len: u64) -> io::Result<()>;
    /// Cuts the file to `len`.
    fn truncate(&self, len: u64) -> io::Result<()>;
    /// Makes every write, allocation and truncation so far durable.
    fn sync(&self) -> io::Result<()>;
    /// Switches this handle to direct I/O, if the system supports it. From then on it must only be used for writes,
    /// with offsets, lengths and memory aligned to [`DIRECT_ALIGN_BYTES`].
    fn bypass_cache(&self) {}
    /// Whether the file is empty.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }
}

/// Alignment of direct I/O: a multiple of what any common disk and file system requires.
pub const DIRECT_ALIGN_BYTES: usize = 4096;

/// Whether an error means that the disk is full, as opposed to faulty.
#[must_use]
pub fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge)
}

/// Whether an error means that the process or the system has no file descriptors left.
#[must_use]
pub fn is_out_of_files(error: &io::Error) -> bool {
    let exhausted = [Errno::MFILE, Errno::NFILE].map(Errno::raw_os_error);
    real::os_code(error).is_some_and(|code| exhausted.contains(&code))
}

#[cfg(test)]
pub(crate) mod breaking;
mod real;
pub use real::RealDisk;
pub(crate) use real::{naming, open_at};
