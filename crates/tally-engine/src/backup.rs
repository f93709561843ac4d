//! Backups: a consistent copy of a data directory, taken while a server uses it.
//!
//! A checkpoint is a complete state. Its runs never change, and a run that a merge replaces remains readable while it
//! is open. So a backup consists of the runs of one checkpoint, a manifest that lists them, and an empty journal that
//! begins at the checkpoint's position.
//!
//! The files come in the order in which they have to be written:
//! 1. `tally.lock`, which says that the backup is unfinished, so that neither a server nor a check accepts it;
//! 2. the runs, the manifest, `journal.end` and a segment;
//! 3. `tally.lock` again, which says that the directory is complete.
//!
//! A copy that ends early is therefore recognized, whatever wrote it and wherever it stopped.

use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;

use crate::check::{CheckError, Report, check_disk};
use crate::disk::{Disk, DiskFile};
use crate::journal;
use crate::layout;
use crate::limits::BACKUP_CHUNK_BYTES;
use crate::lock::{self, DirLock, FORMAT_LINE, LOCK_FILE, Purpose, UNFINISHED_LINE};
use crate::machine::{Machine, OpenError};
use crate::store::MANIFEST_FILE;

/// A backup, ready to be read. Until it is dropped, its files keep their disk space, even if they have been replaced.
pub struct Backup {
    files: Vec<BackupFile>,
    _permit: BackupPermit,
}

/// Held by a backup while it is read. A store has at most one such backup at a time.
#[derive(Clone, Default)]
pub struct BackupPermit(Arc<()>);

impl BackupPermit {
    /// Takes the permit, unless another backup holds it.
    pub(crate) fn take(&self) -> Option<BackupPermit> {
        (Arc::strong_count(&self.0) == 1).then(|| self.clone())
    }
}

/// One file of a backup.
pub struct BackupFile {
    /// Its name. `tally.lock` comes twice.
    pub name: String,
    /// Its length.
    pub bytes: u64,
    content: FileContent,
}

enum FileContent {
    Memory(Vec<u8>),
    Disk(Arc<dyn DiskFile>),
}

impl Machine {
    /// A backup of the last checkpoint.
    #[must_use]
    pub fn backup(&self, permit: BackupPermit) -> Backup {
        let stored = self.store.files();
        let mut files = vec![BackupFile::in_memory(LOCK_FILE, UNFINISHED_LINE.into())];
        files.extend(stored.runs.into_iter().map(|(name, bytes, file)| {
            let content = FileContent::Disk(file);
            BackupFile { name, bytes, content }
        }));
        files.push(BackupFile::in_memory(MANIFEST_FILE, stored.manifest));
        for (name, content) in journal::empty_at(stored.id, stored.position) {
            files.push(BackupFile::in_memory(&name, content));
        }
        files.push(BackupFile::in_memory(LOCK_FILE, FORMAT_LINE.into()));
        Backup { files, _permit: permit }
    }
}

impl Backup {
    /// The files, in the order in which they have to be written.
    #[must_use]
    pub fn files(&self) -> &[BackupFile] {
        &self.files
    }
}

impl BackupFile {
    fn in_memory(name: &str, content: Vec<u8>) -> BackupFile {
        BackupFile { name: name.to_owned(), bytes: content.len() as u64, content: FileContent::Memory(content) }
    }

    /// Reads the file from its beginning.
    #[must_use]
    pub fn reader(&self) -> impl Read + '_ {
        BackupReader { file: self, offset: 0 }
    }
}

struct BackupReader<'a> {
    file: &'a BackupFile,
    offset: u64,
}

impl Read for BackupReader<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let len = buf.len().min(usize::try_from(self.file.bytes - self.offset).unwrap_or(usize::MAX));
        match &self.file.content {
            FileContent::Memory(content) => buf[..len].copy_from_slice(&content[self.offset as usize..][..len]),
            FileContent::Disk(file) => file.read_at(self.offset, &mut buf[..len])?,
        }
        self.offset += len as u64;
        Ok(len)
    }
}

/// Why a backup could not be written.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// The directory cannot be used.
    #[error("{0}")]
    Open(#[from] OpenError),
    /// The directory is not empty.
    #[error("{dir} is not empty: it has the file {name}; choose a directory that is empty or does not exist")]
    NotEmpty {
        /// The directory.
        dir: String,
        /// One of its files.
        name: String,
    },
    /// The source sent something that is not a backup.
    #[error("this is not a backup: {0}")]
    Malformed(String),
    /// The source ended early, or the directory could not be written.
    #[error("{file}: {source}")]
    Io {
        /// The file.
        file: String,
        /// The error.
        source: io::Error,
    },
    /// The written copy fails the check.
    #[error("the copy is damaged: {0}")]
    Damaged(#[from] CheckError),
}

/// A backup being written. If it is not [finished](BackupTarget::finish), the directory is an unfinished backup.
pub struct BackupTarget {
    disk: Arc<dyn Disk>,
    /// Whether the last file, the second `tally.lock`, has arrived.
    is_whole: bool,
    has_begun: bool,
    _lock: Option<DirLock>,
}

impl BackupTarget {
    /// Writes to a directory, which must be empty. Created if it does not exist.
    pub fn create(dir: &Path) -> Result<BackupTarget, BackupError> {
        let lock = DirLock::take(dir, Purpose::Serve)?;
        let disk = lock.disk(Purpose::Serve).map_err(OpenError::Io)?;
        let mut names = disk.names().map_err(OpenError::Io)?;
        if let Some(name) = names.pop() {
            return Err(BackupError::NotEmpty { dir: dir.display().to_string(), name });
        }
        lock::sync_parent(dir)?;
        Ok(BackupTarget { _lock: Some(lock), ..BackupTarget::on(Arc::new(disk)) })
    }

    /// Writes to an empty disk.
    #[must_use]
    pub fn on(disk: Arc<dyn Disk>) -> BackupTarget {
        BackupTarget { disk, is_whole: false, has_begun: false, _lock: None }
    }

    /// Writes the next file, of this length. `progress` is called with the bytes written since the last call.
    pub fn write(
        &mut self,
        name: &str,
        bytes: u64,
        content: &mut impl Read,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), BackupError> {
        if self.is_whole {
            return Err(BackupError::Malformed(format!("unexpected file {name} after the last one")));
        }
        match (name, self.has_begun) {
            (LOCK_FILE, false) => {
                self.has_begun = true;
                self.write_line(name, UNFINISHED_LINE)?;
                self.sync_names()
            }
            (LOCK_FILE, true) => {
                self.is_whole = true;
                Ok(())
            }
            (_, false) => Err(BackupError::Malformed(format!("the first file is {name} instead of tally.lock"))),
            (_, true) if layout::holds_data(name) => self.copy(name, bytes, content, progress),
            (_, true) => Err(BackupError::Malformed(format!("unexpected file {name}"))),
        }
    }

    /// Verifies what was written, and declares it complete. `progress` is called with the bytes verified and their
    /// total.
    pub fn finish(self, progress: &mut dyn FnMut(u64, u64)) -> Result<Report, BackupError> {
        if !self.is_whole {
            return Err(BackupError::Malformed("it ends early".to_owned()));
        }
        self.sync_names()?;
        let report = check_disk(&self.disk, progress)?;
        let new = format!("{LOCK_FILE}.new");
        self.write_line(&new, FORMAT_LINE)?;
        self.disk.rename(&new, LOCK_FILE).map_err(|source| BackupError::Io { file: new, source })?;
        self.sync_names()?;
        Ok(report)
    }

    fn write_line(&self, name: &str, line: &str) -> Result<(), BackupError> {
        self.copy(name, line.len() as u64, &mut line.as_bytes(), &mut |_| {})
    }

    fn copy(
        &self,
        name: &str,
        bytes: u64,
        content: &mut impl Read,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), BackupError> {
        let mut write = || {
            let file = self.disk.create(name)?;
            let mut chunk = vec![0; BACKUP_CHUNK_BYTES];
            let mut offset = 0;
            loop {
                let len = match content.read(&mut chunk) {
                    Ok(0) => break,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                    read => read?,
                };
                file.write_at(offset, &chunk[..len])?;
                offset += len as u64;
                progress(len as u64);
            }
            // Not every source reports that it ended early.
            if offset != bytes {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            file.sync()
        };
        write().map_err(|source| BackupError::Io { file: name.to_owned(), source })
    }

    fn sync_names(&self) -> Result<(), BackupError> {
        self.disk.sync_names().map_err(|source| BackupError::Io { file: ".".to_owned(), source })
    }
}
