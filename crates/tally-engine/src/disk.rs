//! The disk as the engine sees it: a directory of files, read and written at offsets, synced by name.
//!
//! Everything durable goes through these two traits, so a simulated disk that loses unsynced writes, tears the
//! last one or runs full exercises the very code that runs on a real one.
//!
//! The contract, which real file systems keep and the simulated disk enforces:
//! * A write is durable once `sync` of that file returns. Before that a power cut may keep any subset of
//!   its 512-byte sectors, in any combination with other unsynced writes.
//! * `create`, `rename` and `remove` are durable once `sync_names` returns. Before that a power cut may keep
//!   or lose each of them on its own. A file whose name is not yet durable may vanish whole.
//! * `rename` replaces the target atomically.
//! * When `sync` fails, nothing is known of what was written since the last one that succeeded.

use std::io;
use std::sync::Arc;

/// A flat directory of files. Names contain no separator.
pub trait Disk: Send + Sync + 'static {
    /// Opens an existing file.
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>>;
    /// Creates an empty file, replacing what bore the name.
    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>>;
    /// Gives a file another name, replacing what bore it.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Removes a file.
    fn remove(&self, name: &str) -> io::Result<()>;
    /// The names of all files, in no order.
    fn names(&self) -> io::Result<Vec<String>>;
    /// Makes creations, renames and removals durable.
    fn sync_names(&self) -> io::Result<()>;
}

/// One file.
pub trait DiskFile: Send + Sync {
    /// Length in bytes.
    fn len(&self) -> io::Result<u64>;
    /// Fills `buf` from `offset`; an end before that is `UnexpectedEof`.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()>;
    /// Writes all of `data` at `offset`, growing the file as needed.
    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()>;
    /// Reserves room so that writes below `len` cannot run out of space; grows the file to `len`.
    fn allocate(&self, len: u64) -> io::Result<()>;
    /// Cuts the file to `len`.
    fn truncate(&self, len: u64) -> io::Result<()>;
    /// Makes every write, allocation and truncation so far durable.
    fn sync(&self) -> io::Result<()>;
    /// From now on this handle is for writing only, at offsets, with lengths and from memory that are all multiples of
    /// [`DIRECT_ALIGN_BYTES`], and may go to the disk without a copy in the system's cache. Where that is not
    /// possible, nothing changes.
    fn bypass_cache(&self) {}
    /// Whether the file is empty.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }
}

/// What writes past the cache are aligned to: a multiple of what any common disk and file system asks for.
pub const DIRECT_ALIGN_BYTES: usize = 4096;

/// Whether an error says that there is no room, as opposed to a fault.
#[must_use]
pub fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge)
}

mod real;
pub use real::RealDisk;
pub(crate) use real::naming;
