//! Locks the data directory, so that only one process uses it, and checks its format.
//!
//! The lock is on the directory itself, because a lock file can be removed. The file `tally.lock` records the format
//! and the process that serves the directory. It is locked too, because version 0.1 locks only that file.

use std::fs::{self, File, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, OFlags, statat};

use crate::disk::{Disk, RealDisk, naming, open_at};
use crate::journal::end::END_FILE;
use crate::layout;
use crate::limits::files_needed;
use crate::machine::OpenError;
use crate::store::MANIFEST_FILE;

pub(crate) const LOCK_FILE: &str = "tally.lock";
/// The format of version 0.1.
const FORMAT_1: &str = "tally-data-format 1";
/// Requires a manifest and a `journal.end`.
const FORMAT: &str = "tally-data-format 2";
/// The content of `tally.lock` in a complete directory that no process uses.
pub(crate) const FORMAT_LINE: &str = "tally-data-format 2\n";
/// The format of a backup that is being written.
const UNFINISHED: &str = "tally-backup unfinished";
/// The content of `tally.lock` in a backup that is being written.
pub(crate) const UNFINISHED_LINE: &str = "tally-backup unfinished\n";
const IN_USE_BEFORE: &str = "tally.lock shows that the directory was in use";

/// Held while the directory is in use. The operating system releases it when the process ends.
#[derive(Debug)]
pub(crate) struct DirLock {
    /// The path of the directory when it was locked. It may be moved while in use, so files are opened relative to
    /// `dir_file`.
    dir: PathBuf,
    dir_file: File,
    /// `tally.lock`, if there is one.
    file: Option<File>,
}

/// Why the lock is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// To serve from the directory: exclusive.
    Serve,
    /// To read the directory: shared.
    Inspect,
}

impl DirLock {
    /// Locks the directory without changing anything in it. [`Purpose::Serve`] creates it if it does not exist.
    pub(crate) fn take(dir: &Path, purpose: Purpose) -> Result<DirLock, OpenError> {
        if purpose == Purpose::Serve {
            create_durably(dir)?;
        }
        let dir_file = named(dir, File::open(dir))?;
        let path = dir.join(LOCK_FILE);
        let mut file = open(&path, &dir_file, purpose)?;
        let is_ours =
            lock(dir, &dir_file, purpose)? && file.as_ref().map_or(Ok(true), |file| lock(dir, file, purpose))?;
        let mut text = String::new();
        if let Some(file) = &mut file {
            named(&path, file.read_to_string(&mut text))?;
        }
        if !is_ours {
            return Err(OpenError::InUse { dir: dir.display().to_string(), by: owner(&text) });
        }
        let lock = DirLock { dir: dir.to_owned(), dir_file, file };
        lock.check_format(&text, purpose)?;
        Ok(lock)
    }

    fn check_format(&self, text: &str, purpose: Purpose) -> Result<(), OpenError> {
        let unusable = |what| Err(OpenError::Format { what });
        if self.file.is_none() {
            if purpose == Purpose::Inspect {
                return unusable("not a data directory of Tally: there is no tally.lock; check the path".to_owned());
            }
            if let Some(name) = self.foreign_file()? {
                return unusable(format!(
                    "not a data directory of Tally: it has other files, such as {name:?}, and no tally.lock; choose an empty \
                     directory or a new one"
                ));
            }
        }
        match text.lines().next().unwrap_or_default() {
            "" | FORMAT_1 => Ok(()),
            FORMAT if !self.has(MANIFEST_FILE) => Err(layout::missing_manifest(IN_USE_BEFORE).into()),
            FORMAT if !self.has(END_FILE) => Err(layout::missing_end(IN_USE_BEFORE).into()),
            FORMAT => Ok(()),
            UNFINISHED => unusable(
                "an unfinished backup: it was interrupted, or is still being written. Remove the directory and make a new one"
                    .to_owned(),
            ),
            other => unusable(format!(
                "the format is {other:?}, but this version of Tally reads {FORMAT_1:?} and {FORMAT:?}; use a newer version"
            )),
        }
    }

    /// A file that is not Tally's in a directory that has none of Tally's. File systems and container volumes may add
    /// hidden files and `lost+found`.
    fn foreign_file(&self) -> Result<Option<String>, OpenError> {
        let names = self.disk(Purpose::Inspect).and_then(|disk| disk.names()).map_err(OpenError::Io)?;
        if names.iter().any(|name| layout::is_tally_file(name)) {
            return Ok(None);
        }
        Ok(names.into_iter().filter(|name| !name.starts_with('.') && name != "lost+found").min())
    }

    /// Whether there is a file of this name, even one that cannot be opened.
    fn has(&self, name: &str) -> bool {
        statat(&self.dir_file, name, AtFlags::SYMLINK_NOFOLLOW).is_ok()
    }

    /// The files of the directory, as far as the purpose of the lock allows.
    pub(crate) fn disk(&self, purpose: Purpose) -> io::Result<RealDisk> {
        match purpose {
            Purpose::Serve => RealDisk::opened(&self.dir, &self.dir_file),
            Purpose::Inspect => RealDisk::opened_read_only(&self.dir, &self.dir_file),
        }
    }

    /// Records the format and this process in `tally.lock`. Called once the engine is open.
    pub(crate) fn claim(&mut self) -> Result<(), OpenError> {
        let path = self.dir.join(LOCK_FILE);
        let mut file = match self.file.take() {
            Some(file) => file,
            None => {
                let file = named(&path, open_at(&self.dir_file, LOCK_FILE, OFlags::RDWR | OFlags::CREATE))?;
                // The result does not matter: the directory itself is locked.
                lock(&self.dir, &file, Purpose::Serve)?;
                file
            }
        };
        // On a full disk the files of format 1 may not have been replaced yet.
        let is_current = self.has(MANIFEST_FILE) && self.has(END_FILE);
        let format = if is_current { FORMAT } else { FORMAT_1 };
        named(&path, write_owner(&mut file, format))?;
        self.file = Some(file);
        Ok(())
    }
}

/// Refuses to start with too few file descriptors. Otherwise a checkpoint would fail much later.
pub(crate) fn check_files(memory_bytes: u64) -> Result<(), OpenError> {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    expect_files(files_needed(memory_bytes), limit.unwrap_or(u64::MAX))
}

fn expect_files(needed: usize, limit: u64) -> Result<(), OpenError> {
    if limit < needed as u64 { Err(OpenError::Files { needed, limit }) } else { Ok(()) }
}

/// Opens `tally.lock`, if it exists.
fn open(path: &Path, dir_file: &File, purpose: Purpose) -> Result<Option<File>, OpenError> {
    let flags = match purpose {
        Purpose::Serve => OFlags::RDWR,
        Purpose::Inspect => OFlags::RDONLY,
    };
    match open_at(dir_file, LOCK_FILE, flags) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == io::ErrorKind::NotFound && !path.is_symlink() => Ok(None),
        Err(error) => named(path, Err(error)),
    }
}

/// Tries to lock. Returns whether it succeeded.
fn lock(dir: &Path, file: &File, purpose: Purpose) -> Result<bool, OpenError> {
    let locked = match purpose {
        Purpose::Serve => file.try_lock(),
        Purpose::Inspect => file.try_lock_shared(),
    };
    match locked {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) => {
            let what = format!("{} cannot be locked: {error}", dir.display());
            Err(OpenError::Io(io::Error::new(error.kind(), what)))
        }
    }
}

/// The process that uses the directory, as ` (process 1)`; empty if it has not been recorded yet.
fn owner(text: &str) -> String {
    let Some(line) = text.lines().nth(1) else { return String::new() };
    let pid = line.strip_prefix("process ").and_then(|pid| pid.parse().ok()).and_then(rustix::process::Pid::from_raw);
    let is_alive = pid.is_some_and(|pid| rustix::process::test_kill_process(pid) != Err(rustix::io::Errno::SRCH));
    if is_alive { format!(" ({line})") } else { String::new() }
}

fn write_owner(file: &mut File, format: &str) -> io::Result<()> {
    file.rewind()?;
    let text = format!("{format}\nprocess {}\n", std::process::id());
    file.write_all(text.as_bytes())?;
    file.set_len(text.len() as u64)?;
    file.sync_all()
}

/// Makes the name of the directory durable.
pub(crate) fn sync_parent(dir: &Path) -> Result<(), OpenError> {
    let path = named(dir, fs::canonicalize(dir))?;
    let parent = path.parent().unwrap_or(&path);
    named(parent, File::open(parent).and_then(|parent| parent.sync_all()))
}

/// Creates the directory and its missing parents, and makes their names durable.
fn create_durably(dir: &Path) -> Result<(), OpenError> {
    let missing = missing_of(dir);
    if dir.exists() && !dir.is_dir() {
        return Err(OpenError::Format { what: "it is a file, not a directory; choose another path".to_owned() });
    }
    named(dir, fs::create_dir_all(dir))?;
    missing.into_iter().rev().try_for_each(sync_parent)
}

/// The directory and its parents that do not exist, the deepest first.
fn missing_of(dir: &Path) -> Vec<&Path> {
    dir.ancestors().take_while(|path| !path.as_os_str().is_empty() && !path.exists()).collect()
}

fn named<T>(path: &Path, result: io::Result<T>) -> Result<T, OpenError> {
    naming(path, result).map_err(OpenError::Io)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use tally_core::limits::MEMORY_BYTES_DEFAULT;

    use super::*;

    fn in_use(taken: Result<DirLock, OpenError>) -> String {
        match taken {
            Err(OpenError::InUse { by, .. }) => by,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn every_directory_that_is_created_is_made_durable() {
        let dir = tempfile::tempdir().unwrap();
        let deep = dir.path().join("a/b/c");
        let above = |count: usize| deep.ancestors().take(count).collect::<Vec<_>>();
        assert_eq!(missing_of(&deep), above(3));
        create_durably(deep.parent().unwrap()).unwrap();
        assert_eq!(missing_of(&deep), above(1));
        create_durably(&deep).unwrap();
        assert!(missing_of(&deep).is_empty());
        assert!(missing_of(Path::new(".")).is_empty());
    }

    #[test]
    fn removing_the_lock_file_does_not_unlock_the_directory() {
        let dir = tempfile::tempdir().unwrap();
        let mut held = DirLock::take(dir.path(), Purpose::Serve).unwrap();
        held.claim().unwrap();
        assert_eq!(in_use(DirLock::take(dir.path(), Purpose::Serve)), format!(" (process {})", std::process::id()));
        fs::remove_file(dir.path().join(LOCK_FILE)).unwrap();
        assert_eq!(in_use(DirLock::take(dir.path(), Purpose::Serve)), "");
        assert_eq!(in_use(DirLock::take(dir.path(), Purpose::Inspect)), "");
        drop(held);
        DirLock::take(dir.path(), Purpose::Serve).unwrap();
    }

    #[test]
    fn a_server_of_version_0_1_excludes_this_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(LOCK_FILE);
        fs::write(&path, format!("{FORMAT_1}\nprocess 1\n")).unwrap();
        let old = File::open(&path).unwrap();
        old.try_lock().unwrap();
        assert_eq!(in_use(DirLock::take(dir.path(), Purpose::Serve)), " (process 1)");
        drop(old);
        DirLock::take(dir.path(), Purpose::Serve).unwrap();
    }

    #[test]
    fn locking_a_directory_changes_nothing_in_it() {
        let dir = tempfile::tempdir().unwrap();
        drop(DirLock::take(dir.path(), Purpose::Serve).unwrap());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        fs::write(dir.path().join(LOCK_FILE), "tally-data-format 1\nprocess 4194304999\n").unwrap();
        drop(DirLock::take(dir.path(), Purpose::Serve).unwrap());
        let text = fs::read_to_string(dir.path().join(LOCK_FILE)).unwrap();
        assert_eq!(text, "tally-data-format 1\nprocess 4194304999\n");
    }

    #[test]
    fn lost_files_are_reported_as_damage_and_a_newer_format_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
        let refused = || DirLock::take(dir.path(), Purpose::Inspect).unwrap_err().to_string();
        file(LOCK_FILE, "tally-data-format 2\nprocess 1\n");
        assert!(refused().contains("manifest is damaged at byte 0: the file is missing"), "{}", refused());
        file(MANIFEST_FILE, "");
        assert!(refused().contains("journal.end is damaged at byte 0: the file is missing"), "{}", refused());
        file(END_FILE, "");
        DirLock::take(dir.path(), Purpose::Inspect).unwrap();
        file(LOCK_FILE, "tally-data-format 3\nprocess 1\n");
        assert!(refused().contains("tally-data-format 3"), "{}", refused());
    }

    #[test]
    fn a_lock_file_that_is_a_dangling_link_is_not_treated_as_missing() {
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/nowhere/at/all", dir.path().join(LOCK_FILE)).unwrap();
        for purpose in [Purpose::Serve, Purpose::Inspect] {
            let error = DirLock::take(dir.path(), purpose).unwrap_err().to_string();
            assert!(error.contains("symbolic link to /nowhere/at/all, which does not exist"), "{error}");
        }
    }

    #[test]
    fn too_few_file_descriptors_are_refused_and_the_error_has_both_numbers() {
        let needed = files_needed(MEMORY_BYTES_DEFAULT);
        expect_files(needed, needed as u64).unwrap();
        let error = expect_files(needed, 32).unwrap_err().to_string();
        assert!(error.contains("needs 176 file descriptors") && error.contains("is 32"), "{error}");
        assert_eq!(files_needed(64 << 30), needed + 2 * (2048 - 32), "a larger budget needs more runs");
    }
}
