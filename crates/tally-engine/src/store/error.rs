//! What can go wrong in the store.

use std::borrow::Cow;
use std::io;

use crate::disk;
use crate::host::MalformedRecord;

/// Why the store could not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The disk refused. [`StoreError::is_full`] tells a full disk from a broken one.
    #[error("{file}: {source}")]
    Io {
        /// The file concerned.
        file: String,
        /// What the disk said.
        source: io::Error,
    },
    /// Bytes are not what was written.
    #[error("{file} is damaged at byte {offset}: {what}")]
    Damaged {
        /// The file concerned.
        file: String,
        /// Where the damaged part begins.
        offset: u64,
        /// What does not fit.
        what: Cow<'static, str>,
    },
    /// The file is sound and was written by another version of this program.
    #[error("{file} has format version {found}; this program reads version {known}")]
    Version {
        /// The file concerned.
        file: String,
        /// The version it says it has.
        found: u32,
        /// The version that can be read.
        known: u32,
    },
    /// A record is sound and means nothing to this version.
    #[error("the record {key} does not decode; it may have been written by a later version")]
    Malformed {
        /// Its key, printable.
        key: String,
    },
    /// The caller broke the contract; nothing was changed.
    #[error("the store refuses: {what}")]
    Refused {
        /// Which part of the contract.
        what: &'static str,
    },
}

impl From<MalformedRecord> for StoreError {
    fn from(record: MalformedRecord) -> Self {
        StoreError::Malformed { key: record.key }
    }
}

impl StoreError {
    /// Whether there is no room on the disk, as opposed to a fault. The store is unchanged and stays usable.
    #[must_use]
    pub fn is_full(&self) -> bool {
        matches!(self, StoreError::Io { source, .. } if disk::is_full(source))
    }

    /// Whether stored bytes are not what was written, so that no retry can help.
    #[must_use]
    pub fn is_damage(&self) -> bool {
        matches!(self, StoreError::Damaged { .. } | StoreError::Version { .. } | StoreError::Malformed { .. })
    }

    pub(super) fn io(file: &str, source: io::Error) -> StoreError {
        StoreError::Io { file: file.into(), source }
    }

    pub(super) fn damaged(file: &str, offset: u64, what: &'static str) -> StoreError {
        StoreError::Damaged { file: file.into(), offset, what: what.into() }
    }

    /// An error of reading at `offset`: an end before its time is damage, not a fault of the disk.
    pub(super) fn reading(file: &str, offset: u64, source: io::Error) -> StoreError {
        match source.kind() {
            io::ErrorKind::UnexpectedEof => StoreError::damaged(file, offset, "the file ends early"),
            _ => StoreError::io(file, source),
        }
    }
}
