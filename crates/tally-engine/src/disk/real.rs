//! [`RealDisk`]: files in a directory of the real file system, synced with `fdatasync`.
//!
//! Files are opened relative to the directory's descriptor. The directory that was locked is therefore the one that is
//! written, even if it is moved and another takes its path.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, Dir, Mode, OFlags};

use super::{Disk, DiskFile};

/// Files in one directory of the real file system.
#[derive(Debug)]
pub struct RealDisk {
    /// The path it was opened at, for messages.
    dir: PathBuf,
    dir_file: File,
    mode: OpenMode,
}

/// How files are opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OpenMode {
    ReadWrite,
    /// So that `tally check` works on a read-only file system.
    ReadOnly,
}

impl RealDisk {
    /// Uses `dir`, which is created if it does not exist.
    pub fn new(dir: impl Into<PathBuf>) -> io::Result<Self> {
        let dir = dir.into();
        fs::create_dir_all(&dir)?;
        let dir_file = naming(&dir, File::open(&dir))?;
        Ok(RealDisk { dir, dir_file, mode: OpenMode::ReadWrite })
    }

    /// Uses the open directory `dir_file`, whose path is `dir`.
    pub(crate) fn opened(dir: &Path, dir_file: &File) -> io::Result<Self> {
        let dir_file = RealDisk::reopen(dir, dir_file)?;
        Ok(RealDisk { dir: dir.to_owned(), dir_file, mode: OpenMode::ReadWrite })
    }

    /// Like [`RealDisk::opened`], but for reading only.
    pub(crate) fn opened_read_only(dir: &Path, dir_file: &File) -> io::Result<Self> {
        Ok(RealDisk { mode: OpenMode::ReadOnly, ..RealDisk::opened(dir, dir_file)? })
    }

    /// Opens the directory again. A duplicate of the descriptor would share its lock and hold it until this disk is
    /// dropped.
    fn reopen(dir: &Path, dir_file: &File) -> io::Result<File> {
        naming(dir, open_at(dir_file, ".", OFlags::RDONLY | OFlags::DIRECTORY))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }
}

/// Opens a file relative to a directory.
pub(crate) fn open_at(dir: &File, name: &str, flags: OFlags) -> io::Result<File> {
    let mode = Mode::from_raw_mode(0o666);
    let opened = rustix::io::retry_on_intr(|| rustix::fs::openat(dir, name, flags | OFlags::CLOEXEC, mode));
    Ok(File::from(opened?))
}

/// Adds the path, and a hint where there is one, to an error of the operating system.
pub(crate) fn naming<T>(path: &Path, result: io::Result<T>) -> io::Result<T> {
    result.map_err(|error| match error.raw_os_error() {
        // Keeps the kind: callers distinguish a full disk from a fault.
        Some(_) => describe(path, &error, fs::read_link(path).ok().as_deref()),
        None => error,
    })
}

/// The error of an operation on `path`, which is a symbolic link if there is a `target`.
fn describe(path: &Path, error: &io::Error, target: Option<&Path>) -> io::Error {
    let path = path.display();
    match (error.kind(), target) {
        // Not `NotFound`: callers treat that as a file that does not exist yet.
        (io::ErrorKind::NotFound, Some(target)) => {
            io::Error::other(format!("{path} is a symbolic link to {}, which does not exist", target.display()))
        }
        (kind @ io::ErrorKind::ReadOnlyFilesystem, _) => {
            io::Error::new(kind, format!("{path} is on a read-only file system; remount it writable: {error}"))
        }
        (kind @ io::ErrorKind::PermissionDenied, _) => {
            let must = "the server must be able to read and write every file of its data directory";
            io::Error::new(kind, format!("{path}: {error}; {must}"))
        }
        (kind, _) => io::Error::new(kind, NamedError { text: format!("{path}: {error}"), code: error.raw_os_error() }),
    }
}

/// An error of the operating system with the path it is about. Keeps the code, because not every code has a kind.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
struct NamedError {
    text: String,
    code: Option<i32>,
}

/// The code of an error of the operating system, even if the path was added to it.
pub(super) fn os_code(error: &io::Error) -> Option<i32> {
    let named = || error.get_ref()?.downcast_ref::<NamedError>()?.code;
    error.raw_os_error().or_else(named)
}

impl Disk for RealDisk {
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let path = self.path(name);
        let flags = match self.mode {
            OpenMode::ReadWrite => OFlags::RDWR,
            OpenMode::ReadOnly => OFlags::RDONLY,
        };
        let file = open_at(&self.dir_file, name, flags);
        Ok(Arc::new(RealFile { file: naming(&path, file)?, path }))
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let path = self.path(name);
        let file = open_at(&self.dir_file, name, OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC);
        Ok(Arc::new(RealFile { file: naming(&path, file)?, path }))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let renamed = rustix::fs::renameat(&self.dir_file, from, &self.dir_file, to);
        naming(&self.path(from), renamed.map_err(io::Error::from))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let removed = rustix::fs::unlinkat(&self.dir_file, name, AtFlags::empty());
        naming(&self.path(name), removed.map_err(io::Error::from))
    }

    fn names(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in naming(&self.dir, Dir::read_from(&self.dir_file).map_err(io::Error::from))? {
            let entry = naming(&self.dir, entry.map_err(io::Error::from))?;
            if let Ok(name) = entry.file_name().to_str()
                && !matches!(name, "." | "..")
            {
                names.push(name.to_owned());
            }
        }
        Ok(names)
    }

    fn sync_names(&self) -> io::Result<()> {
        naming(&self.dir, self.dir_file.sync_all())
    }
}

#[derive(Debug)]
struct RealFile {
    file: File,
    path: PathBuf,
}

impl RealFile {
    /// Undoes [`DiskFile::bypass_cache`]. Returns whether direct I/O was on.
    #[cfg(target_os = "linux")]
    fn use_cache(&self) -> bool {
        rustix::fs::fcntl_getfl(&self.file).is_ok_and(|flags| {
            flags.contains(OFlags::DIRECT) && rustix::fs::fcntl_setfl(&self.file, flags - OFlags::DIRECT).is_ok()
        })
    }

    #[cfg(not(target_os = "linux"))]
    fn use_cache(&self) -> bool {
        false
    }
}

impl DiskFile for RealFile {
    fn len(&self) -> io::Result<u64> {
        naming(&self.path, self.file.metadata().map(|metadata| metadata.len()))
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        naming(&self.path, self.file.read_exact_at(buf, offset))
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let written = match self.file.write_all_at(data, offset) {
            // Some file systems accept `O_DIRECT` and then refuse the write.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput && self.use_cache() => {
                self.file.write_all_at(data, offset)
            }
            other => other,
        };
        naming(&self.path, written)
    }

    fn allocate(&self, len: u64) -> io::Result<()> {
        let result = rustix::fs::fallocate(&self.file, rustix::fs::FallocateFlags::empty(), 0, len);
        match result {
            // Without fallocate nothing is reserved; a write on a full disk then poisons the engine.
            Err(rustix::io::Errno::OPNOTSUPP) => naming(&self.path, self.file.set_len(len)),
            other => naming(&self.path, other.map_err(io::Error::from)),
        }
    }

    fn truncate(&self, len: u64) -> io::Result<()> {
        naming(&self.path, self.file.set_len(len))
    }

    fn sync(&self) -> io::Result<()> {
        naming(&self.path, self.file.sync_data())
    }

    #[cfg(target_os = "linux")]
    fn bypass_cache(&self) {
        if let Ok(flags) = rustix::fs::fcntl_getfl(&self.file) {
            let _ = rustix::fs::fcntl_setfl(&self.file, flags | OFlags::DIRECT);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn read_only(dir: &Path) -> RealDisk {
        RealDisk::opened_read_only(dir, &File::open(dir).unwrap()).unwrap()
    }

    #[test]
    fn every_operation_follows_a_directory_that_is_moved() {
        let parent = tempfile::tempdir().unwrap();
        let (data, moved) = (parent.path().join("data"), parent.path().join("moved"));
        let disk = RealDisk::new(&data).unwrap();
        disk.create("a").unwrap().write_at(0, b"mine").unwrap();
        fs::rename(&data, &moved).unwrap();
        fs::create_dir(&data).unwrap();
        for name in ["a", "b", "c"] {
            fs::write(data.join(name), b"another's").unwrap();
        }
        let mut bytes = [0; 4];
        disk.open("a").unwrap().read_at(0, &mut bytes).unwrap();
        assert_eq!(&bytes, b"mine");
        disk.create("b").unwrap();
        disk.rename("a", "c").unwrap();
        disk.remove("b").unwrap();
        disk.sync_names().unwrap();
        assert_eq!(disk.names().unwrap(), ["c"]);
        for name in ["a", "b", "c"] {
            assert_eq!(fs::read(data.join(name)).unwrap(), b"another's");
        }
    }

    #[test]
    fn the_error_for_a_dangling_link_names_its_target_and_is_not_not_found() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("elsewhere");
        std::os::unix::fs::symlink(&target, dir.path().join("a")).unwrap();
        for disk in [RealDisk::new(dir.path()).unwrap(), read_only(dir.path())] {
            let error = disk.open("a").err().unwrap();
            assert_ne!(error.kind(), io::ErrorKind::NotFound);
            let what = format!("symbolic link to {}, which does not exist", target.display());
            assert!(error.to_string().contains(&what), "{error}");
            assert_eq!(disk.open("b").err().unwrap().kind(), io::ErrorKind::NotFound);
        }
    }

    /// Root ignores permissions, so this does not use the file system.
    #[test]
    fn the_error_for_a_file_that_cannot_be_written_has_its_path_and_a_hint() {
        let path = Path::new("/data/manifest");
        for (code, words) in [(13, "must be able to read and write"), (30, "read-only file system")] {
            let error = describe(path, &io::Error::from_raw_os_error(code), None).to_string();
            assert!(error.starts_with("/data/manifest") && error.contains(words), "{error}");
        }
    }

    #[test]
    fn a_read_only_disk_opens_files_for_reading_only() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("a"), b"bytes").unwrap();
        let file = read_only(dir.path()).open("a").unwrap();
        assert!(file.write_at(0, b"other").is_err());
        assert_eq!(fs::read(dir.path().join("a")).unwrap(), b"bytes");
    }
}
