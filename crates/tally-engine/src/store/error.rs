//! Errors of the store.

use std::borrow::Cow;
use std::io;

use crate::disk;
use crate::host::MalformedRecord;

/// Why an operation of the store failed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The disk failed or is full; see [`StoreError::is_full`].
    #[error("{file}: {source}")]
    Io {
        /// The file concerned.
        file: String,
        /// The error of the disk.
        source: io::Error,
    },
    /// Bytes are not what was written.
    #[error("{file} is damaged at byte {offset}: {what}")]
    Damaged {
        /// The file concerned.
        file: String,
        /// Offset of the damaged section.
        offset: u64,
        /// What is wrong.
        what: Cow<'static, str>,
    },
    /// The file is intact and was written by another version.
    #[error("{file} has format version {found}, but this version of Tally reads up to {known}; use a newer version")]
    Version {
        /// The file concerned.
        file: String,
        /// Its version.
        found: u32,
        /// The newest version that can be read.
        known: u32,
    },
    /// A record is intact but cannot be decoded.
    #[error("the record {key} cannot be decoded; it may have been written by a newer version of Tally")]
    Malformed {
        /// Its key, printable.
        key: String,
    },
    /// The request is invalid. Nothing was changed.
    #[error("{what}")]
    Refused {
        /// Why.
        what: &'static str,
    },
}

impl From<MalformedRecord> for StoreError {
    fn from(record: MalformedRecord) -> Self {
        StoreError::Malformed { key: record.key }
    }
}

impl StoreError {
    /// Whether the disk is full, as opposed to faulty. The store is unchanged and stays usable.
    #[must_use]
    pub fn is_full(&self) -> bool {
        matches!(self, StoreError::Io { source, .. } if disk::is_full(source))
    }

    /// Whether no file could be opened because all file descriptors are in use. The store is unchanged and stays usable.
    #[must_use]
    pub fn is_out_of_files(&self) -> bool {
        matches!(self, StoreError::Io { source, .. } if disk::is_out_of_files(source))
    }

    /// Whether stored data is unusable, so that no retry can help.
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

    /// The error of a read at `offset`. A file that ends too early is damage, not a disk fault.
    pub(super) fn reading(file: &str, offset: u64, source: io::Error) -> StoreError {
        match source.kind() {
            io::ErrorKind::UnexpectedEof => StoreError::damaged(file, offset, "the file ends early"),
            _ => StoreError::io(file, source),
        }
    }
}
