//! `tally check`: verifies a data directory without changing it.

use std::path::Path;
use std::sync::Arc;

use tally_core::batch::{Batch, decode};
use tally_core::record;

use crate::disk::Disk;
use crate::journal::{self, JournalError};
use crate::layout;
use crate::lock::{DirLock, Purpose};
use crate::machine::OpenError;
use crate::store::{Store, StoreError};

/// What a valid data directory contains.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Journal segments read.
    pub segments: usize,
    /// Batches that a start would replay.
    pub batches: u64,
    /// Bytes of an unfinished write that a start would truncate.
    pub torn_bytes: u64,
    /// Runs in the store.
    pub runs: usize,
    /// Entries in them.
    pub entries: u64,
    /// Total bytes verified.
    pub bytes: u64,
}

/// Why a check failed.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    /// Bytes are not what was written.
    #[error("{file} is damaged at byte {offset}: {what}")]
    Damaged {
        /// File within the data directory.
        file: String,
        /// Offset in the file.
        offset: u64,
        /// What is wrong.
        what: String,
    },
    /// A running server uses it, so its files would change while they are read.
    #[error("the data directory is in use{by}")]
    InUse {
        /// The process that uses it, as ` (process 1)`; empty if unknown.
        by: String,
    },
    /// It could not be read.
    #[error("{0}")]
    Unreadable(String),
}

impl From<StoreError> for CheckError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Damaged { file, offset, what } => CheckError::Damaged { file, offset, what: what.to_string() },
            other => CheckError::Unreadable(other.to_string()),
        }
    }
}

impl From<JournalError> for CheckError {
    fn from(error: JournalError) -> Self {
        match error {
            JournalError::Damaged { file, offset, what } => CheckError::Damaged { file, offset, what },
            JournalError::Refused { file, offset, source } => {
                CheckError::Damaged { file, offset, what: source.to_string() }
            }
            other => CheckError::Unreadable(other.to_string()),
        }
    }
}

impl From<OpenError> for CheckError {
    fn from(error: OpenError) -> Self {
        match error {
            OpenError::InUse { by, .. } => CheckError::InUse { by },
            OpenError::Store(error) => error.into(),
            OpenError::Journal(error) => error.into(),
            other => CheckError::Unreadable(other.to_string()),
        }
    }
}

/// Reads and verifies every byte, and decodes every record and batch. `progress` is called with the bytes done and
/// their total.
pub fn check(data: &Path, progress: &mut dyn FnMut(u64, u64)) -> Result<Report, CheckError> {
    let lock = DirLock::take(data, Purpose::Inspect)?;
    let disk: Arc<dyn Disk> = Arc::new(lock.disk(Purpose::Inspect).map_err(OpenError::Io)?);
    check_disk(&disk, progress)
}

/// [`check`] for any disk.
pub fn check_disk(disk: &Arc<dyn Disk>, progress: &mut dyn FnMut(u64, u64)) -> Result<Report, CheckError> {
    layout::expect_manifest(disk.as_ref())?;
    let store = Store::verify(disk.as_ref(), &record::decodes, progress)?;
    let mut batch = Batch::default();
    let mut decodes = |frame: journal::Frame<'_>| decode(frame.payload, 0, &mut batch).map(|_| ()).map_err(Into::into);
    let journal = journal::inspect(disk, store.id, store.position, &mut decodes, progress)?;
    Ok(Report {
        segments: journal.segments,
        batches: journal.frames,
        torn_bytes: journal.truncated_bytes,
        runs: store.runs,
        entries: store.entries,
        bytes: store.bytes + journal.bytes,
    })
}
