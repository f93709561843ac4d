//! Writing a checkpoint: runs that become visible atomically, together with the new position.

use std::sync::Arc;

use tally_core::limits::CAPTURE_BYTES_MAX;
use tally_core::time::Position;

use super::run::Run;
use super::writer::RunWriter;
use super::{Store, StoreError};

/// Number of entries that a filter is sized for if the iterator has no upper bound.
const ENTRIES_GUESS: usize = CAPTURE_BYTES_MAX / 32;
/// Most entries that a filter is sized for. With more, its false positive rate rises.
const ENTRIES_MAX: usize = CAPTURE_BYTES_MAX / 2;

/// What a checkpoint does to a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry<'a> {
    /// Sets its value, of at most [`VALUE_BYTES_MAX`](super::VALUE_BYTES_MAX) bytes.
    Put(&'a [u8]),
    /// Removes it.
    Remove,
}

/// A checkpoint being written. Dropped without [`commit`](CheckpointWriter::commit), it deletes its runs.
///
/// There must be only one at a time: of two, the last to commit would win.
pub struct CheckpointWriter<'a> {
    store: &'a Store,
    pending: PendingRuns<'a>,
}

impl<'a> CheckpointWriter<'a> {
    pub(super) fn new(store: &'a Store) -> CheckpointWriter<'a> {
        CheckpointWriter { store, pending: PendingRuns { store, runs: Vec::new() } }
    }

    /// Begins a run that is filled entry by entry. If it is dropped, its file is deleted.
    pub fn begin_run(&self, entries_max: usize) -> Result<OpenRun<'a>, StoreError> {
        Ok(OpenRun(self.store.run_writer(entries_max.min(ENTRIES_MAX) as u64)?))
    }

    /// Makes a run durable and adds it to the checkpoint, unless it is empty.
    pub fn end_run(&mut self, run: OpenRun<'a>) -> Result<(), StoreError> {
        self.pending.finish(run.0)
    }

    /// Writes one durable run. Keys must be strictly ascending, and at most
    /// [`KEY_BYTES_MAX`](super::KEY_BYTES_MAX) bytes long.
    ///
    /// A key must not occur in two runs of one checkpoint. This is not checked, and which one wins is undefined.
    ///
    /// The filter is sized by the upper bound of the iterator's `size_hint`; without one, for a million entries.
    ///
    /// After an error this run is deleted and earlier ones remain: the caller may retry.
    pub fn write_run<'e>(
        &mut self,
        entries: impl IntoIterator<Item = (&'e [u8], Entry<'e>)>,
    ) -> Result<(), StoreError> {
        let mut entries = entries.into_iter().peekable();
        if entries.peek().is_none() {
            return Ok(());
        }
        let mut run = self.begin_run(entries.size_hint().1.unwrap_or(ENTRIES_GUESS))?;
        for (key, entry) in entries {
            run.push(key, entry)?;
        }
        self.end_run(run)
    }

    /// Makes all runs and the position visible, atomically and durably. The cost does not depend on the size of the
    /// store.
    ///
    /// An earlier position is refused. After an error the store reads as before; after a restart, the commit may turn
    /// out to have succeeded.
    pub fn commit(self, position: Position) -> Result<(), StoreError> {
        if position < self.store.position() {
            return Err(StoreError::Refused { what: "a checkpoint cannot have an earlier position than the store" });
        }
        self.store.install_checkpoint(self.pending, position)
    }
}

/// A run being written.
pub struct OpenRun<'a>(RunWriter<'a>);

impl OpenRun<'_> {
    /// Adds an entry. Keys must be strictly ascending.
    pub fn push(&mut self, key: &[u8], entry: Entry<'_>) -> Result<(), StoreError> {
        match entry {
            Entry::Put(value) => self.0.push(key, Some(value)),
            Entry::Remove => self.0.push(key, None),
        }
    }
}

/// Runs that no manifest lists yet. Their files are deleted when it is dropped.
pub(super) struct PendingRuns<'a> {
    pub(super) store: &'a Store,
    pub(super) runs: Vec<Arc<Run>>,
}

impl PendingRuns<'_> {
    /// Completes a run and adds it, unless it is empty.
    pub(super) fn finish(&mut self, writer: RunWriter<'_>) -> Result<(), StoreError> {
        self.runs.extend(writer.finish()?.map(Arc::new));
        Ok(())
    }

    /// Keeps the files: from here on a manifest may list them.
    pub(super) fn keep(mut self) -> Vec<Arc<Run>> {
        std::mem::take(&mut self.runs)
    }
}

impl Drop for PendingRuns<'_> {
    fn drop(&mut self) {
        for run in &self.runs {
            super::remove(self.store.disk.as_ref(), &run.name);
        }
    }
}
