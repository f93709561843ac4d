//! Checkpoints: what changed moves to the store, together with the journal position it reflects.
//!
//! The changed counters are captured at one moment in slices, sorted in bounded memory and written as runs; one
//! manifest makes them and the position visible. The cost grows with what changed, not with what exists. If anything
//! fails before that, the store is as it was and what was captured counts as changed again.

use std::sync::atomic::Ordering;

use tally_core::limits::CAPTURE_SLICE;
use tally_core::partition::Capture;
use tally_core::record::{Records, is_expired};
use tally_core::time::{Millis, Position};

use crate::machine::Machine;
use crate::signal::lock;
use crate::store::{CheckpointWriter, Entry, StoreError};

/// A checkpoint under way. Dropped before it is done, it leaves everything as it was.
pub struct Checkpoint<'m> {
    machine: &'m Machine,
    capture: Capture,
    position: Position,
    records: Records,
    phase: Phase<'m>,
}

enum Phase<'m> {
    /// Copies changed counters, a slice a step.
    Counters(CheckpointWriter<'m>),
    /// Copies request ids, removals and ledger entries.
    Rest(CheckpointWriter<'m>),
    /// Everything is written; the journal must be durable up to the position before the store may claim it.
    Written(CheckpointWriter<'m>),
    Done,
}

/// What one step came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// There is more to do.
    More,
    /// Nothing can be done until the journal is flushed up to here.
    AwaitFlush(Position),
    /// The checkpoint is in force.
    Done,
}

impl Machine {
    /// Begins a checkpoint of everything applied so far, or says that nothing changed since the last. One at a time.
    pub fn checkpoint(&self) -> Option<Checkpoint<'_>> {
        let mut state = lock(&self.state);
        if !state.partition.is_dirty() && state.applied == self.store.position() {
            return None;
        }
        let capture = state.partition.begin_capture();
        let position = state.applied;
        let phase = Phase::Counters(self.store.checkpoint());
        Some(Checkpoint { machine: self, capture, position, records: Records::default(), phase })
    }

    /// Merges runs of the store if that is due; says whether it did.
    pub fn merge(&self) -> Result<bool, StoreError> {
        // Not by the time of the last batch: after a crash, batches since the checkpoint are applied once more, at their
        // own times, and must find the requests that had not expired then.
        let stored_at = Millis(self.stored_at.load(Ordering::Acquire));
        self.store.merge_once(&|key, value| is_expired(key, value, stored_at))
    }
}

impl Checkpoint<'_> {
    /// Does one step. After an error the checkpoint is void.
    pub fn step(&mut self) -> Result<Step, StoreError> {
        let done = self.do_step();
        match &done {
            Ok(Step::Done) => self.machine.checkpoint_full.store(false, Ordering::Release),
            Err(error) if error.is_full() => self.machine.checkpoint_full.store(true, Ordering::Release),
            _ => {}
        }
        done
    }

    fn do_step(&mut self) -> Result<Step, StoreError> {
        let (next, step) = match std::mem::replace(&mut self.phase, Phase::Done) {
            Phase::Counters(writer) => (self.copy_counters(writer)?, Step::More),
            Phase::Rest(writer) => (self.copy_rest(writer)?, Step::More),
            Phase::Written(writer) if self.machine.flushed() < self.position => {
                (Phase::Written(writer), Step::AwaitFlush(self.position))
            }
            Phase::Written(writer) => {
                self.commit(writer)?;
                (Phase::Done, Step::Done)
            }
            Phase::Done => (Phase::Done, Step::Done),
        };
        self.phase = next;
        Ok(step)
    }

    fn copy_counters<'m>(&mut self, mut writer: CheckpointWriter<'m>) -> Result<Phase<'m>, StoreError> {
        let more = lock(&self.machine.state).partition.capture_slice(CAPTURE_SLICE, &mut self.records);
        if self.records.memory_bytes() >= self.machine.settings.capture_bytes() {
            self.write_run(&mut writer)?;
        }
        Ok(if more { Phase::Counters(writer) } else { Phase::Rest(writer) })
    }

    fn copy_rest<'m>(&mut self, mut writer: CheckpointWriter<'m>) -> Result<Phase<'m>, StoreError> {
        let limit = self.machine.settings.capture_bytes();
        let records = &mut self.records;
        let mut written = 0;
        self.capture.records(|put| {
            put(records);
            if records.memory_bytes() >= limit {
                written += records.len();
                return write_run(records, &mut writer);
            }
            Ok(())
        })?;
        self.machine.meters.checkpoint_records.fetch_add(written as u64, Ordering::Relaxed);
        self.write_run(&mut writer)?;
        Ok(Phase::Written(writer))
    }

    fn write_run(&mut self, writer: &mut CheckpointWriter<'_>) -> Result<(), StoreError> {
        self.machine.meters.checkpoint_records.fetch_add(self.records.len() as u64, Ordering::Relaxed);
        write_run(&mut self.records, writer)
    }

    fn commit(&mut self, writer: CheckpointWriter<'_>) -> Result<(), StoreError> {
        writer.commit(self.position)?;
        lock(&self.machine.state).partition.capture_committed();
        self.machine.stored_at.fetch_max(self.capture.at().0, Ordering::AcqRel);
        self.machine.allow_trim(self.position);
        self.machine.meters.checkpoints.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

fn write_run(records: &mut Records, writer: &mut CheckpointWriter<'_>) -> Result<(), StoreError> {
    records.sort();
    writer.write_run(records.iter().map(|(key, value)| (key, value.map_or(Entry::Remove, Entry::Put))))?;
    records.clear();
    Ok(())
}

impl Drop for Checkpoint<'_> {
    fn drop(&mut self) {
        // After a commit there is no capture left to abandon.
        lock(&self.machine.state).partition.capture_abandoned();
    }
}
