//! Checkpoints: what changed moves to the store, together with the journal position it reflects.
//!
//! The changed counters are captured at one moment in slices, sorted in bounded memory and written as runs; one
//! manifest makes them and the position visible. The cost grows with what changed, not with what exists. If anything
//! fails before that, the store is as it was and what was captured counts as changed again.

use std::sync::atomic::Ordering;

use parking_lot::MutexGuard;
use tally_core::limits::CAPTURE_SLICE;
use tally_core::partition::Capture;
use tally_core::record::{REQUEST_PREFIX, Records, is_expired};
use tally_core::time::{Millis, Position};

use crate::machine::{Machine, State};
use crate::store::{CheckpointWriter, Entry, StoreError};

/// A checkpoint under way. Dropped before it is done, it leaves everything as it was.
pub struct Checkpoint<'m> {
    machine: &'m Machine,
    capture: Capture,
    position: Position,
    records: Records,
    /// What is copied while the state is locked; the records, which may have to grow, take it over afterwards.
    slice: Records,
    phase: Phase<'m>,
}

enum Phase<'m> {
    /// Copies changed counters, a slice a step.
    Counters(CheckpointWriter<'m>),
    /// Writes request ids, removals and ledger entries.
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
        let mut state = self.state.lock();
        if !state.partition.is_dirty() && state.applied == self.store.position() {
            return None;
        }
        let capture = state.partition.begin_capture();
        let position = state.applied;
        let phase = Phase::Counters(self.store.checkpoint());
        Some(Checkpoint {
            machine: self,
            capture,
            position,
            records: Records::default(),
            slice: Records::default(),
            phase,
        })
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
        let more = self.copy_slice(self.machine.state.lock());
        if self.records.memory_bytes() >= self.machine.settings.capture_bytes() {
            self.write_run(&mut writer)?;
        }
        Ok(if more { Phase::Counters(writer) } else { Phase::Rest(writer) })
    }

    /// Copies a slice and hands the state to whoever waits for it: it would be taken again before they wake.
    fn copy_slice(&mut self, mut state: MutexGuard<'_, State>) -> bool {
        let more = state.partition.capture_slice(CAPTURE_SLICE, &mut self.slice);
        MutexGuard::unlock_fair(state);
        self.records.append(&mut self.slice);
        more
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
        match self.capture.requests_max() {
            0 => self.write_run(&mut writer)?,
            requests_max => self.write_requests(requests_max, &mut writer)?,
        }
        Ok(Phase::Written(writer))
    }

    /// Writes the last records and all request ids. However many ids there are, they make one run with what sorts behind
    /// them; what sorts before them makes another. So neither run is searched for what only the other can hold.
    fn write_requests(&mut self, requests_max: usize, writer: &mut CheckpointWriter<'_>) -> Result<(), StoreError> {
        self.records.sort();
        let is_before = |key: &[u8]| key < REQUEST_PREFIX;
        writer.write_run(entries(&self.records).filter(|(key, _)| is_before(key)))?;
        let mut run = writer.begin_run(requests_max + self.records.len())?;
        let mut written = self.records.len();
        self.capture.requests(self.machine.settings.capture_bytes(), |key, value| {
            written += 1;
            run.push(key, Entry::Put(value))
        })?;
        for (key, entry) in entries(&self.records).filter(|(key, _)| !is_before(key)) {
            run.push(key, entry)?;
        }
        writer.end_run(run)?;
        self.machine.meters.checkpoint_records.fetch_add(written as u64, Ordering::Relaxed);
        self.records.clear();
        Ok(())
    }

    fn write_run(&mut self, writer: &mut CheckpointWriter<'_>) -> Result<(), StoreError> {
        self.machine.meters.checkpoint_records.fetch_add(self.records.len() as u64, Ordering::Relaxed);
        write_run(&mut self.records, writer)
    }

    fn commit(&mut self, writer: CheckpointWriter<'_>) -> Result<(), StoreError> {
        writer.commit(self.position)?;
        self.machine.state.lock().partition.capture_committed();
        self.machine.stored_at.fetch_max(self.capture.at().0, Ordering::AcqRel);
        self.machine.allow_trim(self.position);
        self.machine.meters.checkpoints.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

fn write_run(records: &mut Records, writer: &mut CheckpointWriter<'_>) -> Result<(), StoreError> {
    records.sort();
    writer.write_run(entries(records))?;
    records.clear();
    Ok(())
}

fn entries(records: &Records) -> impl Iterator<Item = (&[u8], Entry<'_>)> {
    records.iter().map(|(key, value)| (key, value.map_or(Entry::Remove, Entry::Put)))
}

impl Drop for Checkpoint<'_> {
    fn drop(&mut self) {
        // After a commit there is no capture left to abandon.
        self.machine.state.lock().partition.capture_abandoned();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::future::poll_fn;
    use std::ops::Range;
    use std::path::{Path, PathBuf};
    use std::sync::{Arc, mpsc};
    use std::task::Poll;
    use std::{fs, thread};

    use tally_contract::block_on;
    use tally_core::batch::Events;
    use tally_core::event::{Change, RequestId};
    use tally_core::key::KeyRef;

    use super::*;
    use crate::clock::SystemClock;
    use crate::disk::RealDisk;
    use crate::durability::Durability;
    use crate::machine::{Nudge, Settings};

    /// Ids are sorted in a 32nd of this, so those below take several shares.
    const SETTINGS: Settings =
        Settings { memory_bytes: 4 << 20, segment_bytes: 1 << 20, checkpoint_journal_bytes: 1 << 30, seed: 7 };
    const REQUESTS: usize = 10_000;

    fn open(dir: &tempfile::TempDir) -> Machine {
        let disk = Arc::new(RealDisk::new(dir.path()).unwrap());
        Machine::open(disk, Arc::new(SystemClock), SETTINGS, &mut |_, _| {}).unwrap()
    }

    /// An increment for each of these requests.
    fn increments(machine: &Machine, requests: Range<usize>) -> Events {
        let key = KeyRef::new(b"likes:1").unwrap();
        let mut events = machine.events();
        for number in requests {
            let id = RequestId::new(key, format!("request {number}").as_bytes()).unwrap();
            events.push(key, Change::Add(1), Some(id), None);
        }
        events
    }

    /// Carries out these requests and says how many had been seen before.
    fn count(machine: &Machine, requests: Range<usize>) -> usize {
        let drive = |nudge| {
            if nudge != Nudge::None {
                machine.maintain_journal();
                machine.seal();
                machine.flush().unwrap();
            }
        };
        let receipt = block_on(machine.submit(increments(machine, requests), Durability::Flushed, drive)).unwrap();
        receipt.outcomes.iter().filter(|outcome| outcome.is_duplicate()).count()
    }

    fn checkpoint(machine: &Machine) {
        let mut checkpoint = machine.checkpoint().unwrap();
        while checkpoint.step().unwrap() != Step::Done {}
    }

    #[test]
    fn request_ids_of_a_checkpoint_make_one_run_however_many_they_are() {
        assert!(REQUESTS * 32 > 2 * SETTINGS.capture_bytes(), "they are sorted in several shares");
        let dir = tempfile::tempdir().unwrap();
        let machine = open(&dir);
        assert_eq!(count(&machine, 0..REQUESTS), 0);
        checkpoint(&machine);
        assert_eq!(machine.store.runs(), 2, "one for counters and one for ids");
        drop(machine);
        let machine = open(&dir);
        assert_eq!(count(&machine, 1..REQUESTS + 1), REQUESTS - 1, "all are found again, in the store");
    }

    #[test]
    fn a_request_that_reaches_the_store_after_it_was_looked_for_there_is_found_all_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let machine = open(&dir);
        assert_eq!(count(&machine, 0..1), 0);
        let mut again = Box::pin(machine.submit(increments(&machine, 0..1), Durability::Flushed, |_| {}));
        let looked = block_on(poll_fn(|context| Poll::Ready(again.as_mut().poll(context))));
        assert!(looked.is_pending(), "it waits in the open batch");
        checkpoint(&machine);
        machine.seal();
        machine.flush().unwrap();
        assert!(block_on(again).unwrap().outcomes[0].is_duplicate());
    }

    /// Where the system tells of the calling thread.
    fn this_thread() -> PathBuf {
        Path::new("/proc").join(fs::read_link("/proc/thread-self").unwrap())
    }

    fn is_asleep(thread: &Path) -> bool {
        fs::read_to_string(thread.join("status")).unwrap().lines().any(|line| line.starts_with("State:\tS"))
    }

    #[test]
    fn who_waits_for_the_state_gets_it_between_two_slices() {
        let dir = tempfile::tempdir().unwrap();
        let machine = open(&dir);
        count(&machine, 0..1);
        let mut checkpoint = machine.checkpoint().unwrap();
        // An ordinary unlocking hands it over now and then as well.
        for _ in 0..50 {
            let state = machine.state.lock();
            thread::scope(|scope| {
                let (tell, waits) = mpsc::channel();
                let (go_on, may_go) = mpsc::channel::<()>();
                let machine = &machine;
                scope.spawn(move || {
                    tell.send(this_thread()).unwrap();
                    let state = machine.state.lock();
                    // An error is an assertion that failed.
                    let _ = may_go.recv();
                    drop(state);
                });
                let waits = waits.recv().unwrap();
                while !is_asleep(&waits) {
                    thread::yield_now();
                }
                checkpoint.copy_slice(state);
                assert!(machine.state.try_lock().is_none(), "it is handed over, whether or not they are awake");
                go_on.send(()).unwrap();
            });
        }
    }
}
