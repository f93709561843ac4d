//! Detects lost files by the other files that a data directory has.
//!
//! The first start writes an empty manifest, then `journal.end`, then the first segment, each durable before the next.
//! So a directory of format 2 that has one of them must also have those before it.

use tally_core::time::Position;

use crate::disk::Disk;
use crate::journal::end::END_FILE;
use crate::journal::{self, JournalError};
use crate::store::{self, MANIFEST_FILE, StoreError};

/// Whether a file of this name holds data: it is part of the state or of the journal.
pub(crate) fn holds_data(name: &str) -> bool {
    name == MANIFEST_FILE || store::is_run(name) || journal::is_journal(name)
}

/// Whether a file of this name shows that a server has used the directory, even if its first start was interrupted.
pub(crate) fn is_tally_file(name: &str) -> bool {
    holds_data(name.strip_suffix(".new").unwrap_or(name)) || journal::is_spare(name)
}

/// Refuses a directory whose manifest is missing although other files show that it had one.
///
/// Format 1 had no manifest before its first checkpoint. There, a journal that begins at position 0 is complete:
/// nothing was ever trimmed, and any runs are leftovers of an interrupted checkpoint.
pub(crate) fn expect_manifest(disk: &dyn Disk) -> Result<(), StoreError> {
    let Some(store) = store::runs_without_manifest(disk)? else { return Ok(()) };
    let failed = |source| StoreError::Io { file: MANIFEST_FILE.to_owned(), source };
    let journal = journal::read_headers(disk).map_err(failed)?;
    let has_end = disk.names().map_err(failed)?.iter().any(|name| name == END_FILE);
    let shown_by = if has_end || journal.newest_format >= 2 {
        "the journal was written after it"
    } else if store.newest_format >= 2 {
        "there are runs that it must list"
    } else {
        match journal.first {
            Some(Position(0)) => return Ok(()),
            None if store.runs == 0 => return Ok(()),
            None => "there are runs that it must list",
            Some(_) => "the journal does not begin at position 0",
        }
    };
    Err(missing_manifest(shown_by))
}

/// The error for a missing manifest.
pub(crate) fn missing_manifest(shown_by: &str) -> StoreError {
    StoreError::Damaged { file: MANIFEST_FILE.to_owned(), offset: 0, what: missing(shown_by).into() }
}

/// The error for a missing `journal.end`.
pub(crate) fn missing_end(shown_by: &str) -> JournalError {
    JournalError::Damaged { file: END_FILE.to_owned(), offset: 0, what: missing(shown_by) }
}

fn missing(shown_by: &str) -> String {
    format!("the file is missing, but {shown_by}; restore it, or the whole directory, from a backup")
}
