//! Writing a checkpoint: runs that become visible together, with the position they bring the store to.

use std::sync::Arc;

use tally_core::limits::CAPTURE_BYTES_MAX;
use tally_core::time::Position;

use super::run::Run;
use super::writer::RunWriter;
use super::{Store, StoreError};

/// Entries a run's filter is sized for when the iterator does not say how many there are at most.
const ENTRIES_GUESS: usize = CAPTURE_BYTES_MAX / 32;
/// Entries a run's filter is sized for at most, however many the iterator thinks there may be: more than are captured.
const ENTRIES_MAX: usize = CAPTURE_BYTES_MAX / 2;

/// What a checkpoint says of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry<'a> {
    /// It has this value, of at most [`VALUE_BYTES_MAX`](super::VALUE_BYTES_MAX) bytes.
    Put(&'a [u8]),
    /// It is gone.
    Remove,
}

/// A checkpoint being written. Dropped without [`commit`](CheckpointWriter::commit) it tombstones what it wrote.
///
/// One checkpoint is under way at a time: of two, the one that commits last would win.
pub struct CheckpointWriter<'a> {
    store: &'a Store,
    pending: PendingRuns<'a>,
}

impl<'a> CheckpointWriter<'a> {
    pub(super) fn new(store: &'a Store) -> CheckpointWriter<'a> {
        CheckpointWriter { store, pending: PendingRuns { store, runs: Vec::new() } }
    }

    /// Begins a run that is filled entry by entry, as [`CheckpointWriter::write_run`] does. Dropped, it leaves nothing.
    pub fn begin_run(&self, entries_max: usize) -> Result<OpenRun<'a>, StoreError> {
        Ok(OpenRun(self.store.run_writer(entries_max.min(ENTRIES_MAX) as u64)?))
    }

    /// Makes a run durable and a part of the checkpoint. One without entries is none.
    pub fn end_run(&mut self, run: OpenRun<'a>) -> Result<(), StoreError> {
        self.pending.finish(run.0)
    }

    /// Writes one run, and makes it durable, from entries whose keys ascend strictly and have at most
    /// [`KEY_BYTES_MAX`](super::KEY_BYTES_MAX) bytes; other keys are refused. No entries make no run.
    ///
    /// No key may occur in two runs of one checkpoint: which of them wins is not defined, and nothing checks it.
    ///
    /// The filter is sized by the upper bound of the iterator's `size_hint`; without one, for a million entries.
    ///
    /// After an error this run is gone and those before it remain: the caller may try again.
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

    /// Makes all runs and the position visible, atomically and durably. Takes the same time however large the
    /// store is.
    ///
    /// A position before the present one is refused. After another error the store reads as before; after a crash
    /// it may also open as if the commit had succeeded.
    pub fn commit(self, position: Position) -> Result<(), StoreError> {
        if position < self.store.position() {
            return Err(StoreError::Refused { what: "a checkpoint cannot go back to an earlier position" });
        }
        self.store.install_checkpoint(self.pending, position)
    }
}

/// A run of a checkpoint while it is being written.
pub struct OpenRun<'a>(RunWriter<'a>);

impl OpenRun<'_> {
    /// Adds an entry. Its key must be greater than all before.
    pub fn push(&mut self, key: &[u8], entry: Entry<'_>) -> Result<(), StoreError> {
        match entry {
            Entry::Put(value) => self.0.push(key, Some(value)),
            Entry::Remove => self.0.push(key, None),
        }
    }
}

/// Runs that no manifest names yet. Dropped, it tombstones their files.
pub(super) struct PendingRuns<'a> {
    pub(super) store: &'a Store,
    pub(super) runs: Vec<Arc<Run>>,
}

impl PendingRuns<'_> {
    /// Completes a run, if it has entries, and adds it.
    pub(super) fn finish(&mut self, writer: RunWriter<'_>) -> Result<(), StoreError> {
        self.runs.extend(writer.finish()?.map(Arc::new));
        Ok(())
    }

    /// From here on a manifest may name them: they are not removed.
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
