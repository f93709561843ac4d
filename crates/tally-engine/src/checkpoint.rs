//! Checkpoints: changed records move to the store, together with the journal position that they reflect.
//!
//! A [`CaptureDriver`] copies what changed as of one position; the records become sorted runs, and one manifest makes
//! them and the position visible. The cost grows with what changed, not with what exists. If anything fails before the
//! commit, the store is as before and the captured records count as changed again.

use std::sync::atomic::Ordering;

use tally_core::record::{REQUEST_PREFIX, Records, is_expired};
use tally_core::time::{Millis, Position};

use crate::host::{CaptureDriver, CaptureProgress, CapturedRequests, RecordSink};
use crate::machine::Machine;
use crate::store::{CheckpointWriter, Entry, StoreError};

/// A checkpoint in progress. If it is dropped before it is done, everything stays as it was.
pub struct Checkpoint<'m> {
    machine: &'m Machine,
    position: Position,
    driver: CaptureDriver,
    phase: Phase<'m>,
}

enum Phase<'m> {
    /// Records are copied to runs.
    Capture(RunSink<'m>),
    /// All runs are written. The journal must be durable up to the position before the store may claim it.
    Commit(RunSink<'m>),
    Done,
}

/// The result of one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// There is more to do.
    More,
    /// Nothing can be done until the journal is flushed up to here.
    AwaitFlush(Position),
    /// The checkpoint is committed.
    Done,
}

impl Machine {
    /// Begins a checkpoint of everything applied so far, or returns `None` if nothing changed since the last one. There
    /// must be only one at a time.
    pub fn checkpoint(&self) -> Option<Checkpoint<'_>> {
        let mut state = self.state.lock();
        if !state.partition.is_dirty() && state.applied == self.store.position() {
            return None;
        }
        let driver = CaptureDriver::begin(&mut state.partition, self.settings.capture_bytes());
        let phase = Phase::Capture(RunSink { writer: self.store.checkpoint(), records: 0 });
        Some(Checkpoint { machine: self, position: state.applied, driver, phase })
    }

    /// Merges runs of the store if a merge is due. Returns whether it did.
    pub fn merge(&self) -> Result<bool, StoreError> {
        // Judges expiry by the time of the last checkpoint, not of the last batch: replay applies the batches since the
        // checkpoint again, at their own times, and must find the request ids that had not expired then.
        let stored_at = Millis(self.stored_at.load(Ordering::Acquire));
        self.store.merge_once(&|key, value| is_expired(key, value, stored_at))
    }
}

impl Checkpoint<'_> {
    /// Does one step. After an error the checkpoint must be dropped.
    pub fn step(&mut self) -> Result<Step, StoreError> {
        let done = self.do_step();
        let (is_full, is_out_of_files) = match &done {
            Ok(Step::Done) => (false, false),
            Ok(Step::More | Step::AwaitFlush(_)) => return done,
            Err(error) => (error.is_full(), error.is_out_of_files()),
        };
        self.machine.checkpoint_full.store(is_full, Ordering::Release);
        self.machine.out_of_files.store(is_out_of_files, Ordering::Release);
        done
    }

    fn do_step(&mut self) -> Result<Step, StoreError> {
        let (next, step) = match std::mem::replace(&mut self.phase, Phase::Done) {
            Phase::Capture(mut sink) => match self.capture(&mut sink)? {
                CaptureProgress::Done => (Phase::Commit(sink), Step::More),
                CaptureProgress::Counters | CaptureProgress::Rest => (Phase::Capture(sink), Step::More),
            },
            Phase::Commit(sink) if self.machine.flushed() < self.position => {
                (Phase::Commit(sink), Step::AwaitFlush(self.position))
            }
            Phase::Commit(sink) => {
                self.commit(sink.writer)?;
                (Phase::Done, Step::Done)
            }
            Phase::Done => (Phase::Done, Step::Done),
        };
        self.phase = next;
        Ok(step)
    }

    fn capture(&mut self, sink: &mut RunSink<'_>) -> Result<CaptureProgress, StoreError> {
        let progress = self.driver.step(&self.machine.state, sink)?;
        let written = std::mem::take(&mut sink.records);
        self.machine.meters.checkpoint_records.fetch_add(written, Ordering::Relaxed);
        Ok(progress)
    }

    fn commit(&mut self, writer: CheckpointWriter<'_>) -> Result<(), StoreError> {
        writer.commit(self.position)?;
        let mut state = self.machine.state.lock();
        state.partition.capture_committed();
        // The clock is earlier than the capture if it was reset meanwhile.
        self.machine.stored_at.store(self.driver.at().min(state.partition.clock()).0, Ordering::Release);
        drop(state);
        self.machine.allow_trim(self.position);
        self.machine.meters.checkpoints.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

impl Drop for Checkpoint<'_> {
    fn drop(&mut self) {
        // After a commit there is no capture left to abandon.
        self.machine.state.lock().partition.capture_abandoned();
    }
}

/// Writes captured records as runs.
struct RunSink<'m> {
    writer: CheckpointWriter<'m>,
    /// Records written since this was last reset.
    records: u64,
}

impl RecordSink for RunSink<'_> {
    type Error = StoreError;

    fn write(&mut self, records: &Records) -> Result<(), StoreError> {
        self.records += records.len() as u64;
        self.writer.write_run(entries(records))
    }

    /// However many request ids there are, they form one run, with the records that sort after them. The records that
    /// sort before them form another. So neither run is searched for keys that only the other can hold.
    fn write_last(&mut self, records: &Records, requests: CapturedRequests<'_>) -> Result<(), StoreError> {
        if requests.len_max() == 0 {
            return self.write(records);
        }
        let is_before = |key: &[u8]| key < REQUEST_PREFIX;
        self.writer.write_run(entries(records).filter(|(key, _)| is_before(key)))?;
        let mut run = self.writer.begin_run(requests.len_max() + records.len())?;
        self.records += records.len() as u64;
        requests.for_each(|key, value| {
            self.records += 1;
            run.push(key, Entry::Put(value))
        })?;
        for (key, entry) in entries(records).filter(|(key, _)| !is_before(key)) {
            run.push(key, entry)?;
        }
        self.writer.end_run(run)
    }
}

fn entries(records: &Records) -> impl Iterator<Item = (&[u8], Entry<'_>)> {
    records.iter().map(|(key, value)| (key, value.map_or(Entry::Remove, Entry::Put)))
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
    use tally_core::event::{Bounds, Change, Details, OnBound, RequestId};
    use tally_core::key::{Key, KeyRef};

    use super::*;
    use crate::clock::SystemClock;
    use crate::disk::RealDisk;
    use crate::machine::{Durability, Nudge, Seal, Settings};

    /// Request ids are sorted in a 32nd of this, so `REQUESTS` of them are sorted in several parts.
    const SETTINGS: Settings =
        Settings { memory_bytes: 4 << 20, segment_bytes: 1 << 20, checkpoint_journal_bytes: 1 << 30, seed: 7 };
    const REQUESTS: usize = 10_000;

    fn open(dir: &tempfile::TempDir) -> Machine {
        let disk = Arc::new(RealDisk::new(dir.path()).unwrap());
        Machine::open(disk, Arc::new(SystemClock), SETTINGS, &mut |_, _| {}).unwrap()
    }

    /// One increment per request id.
    fn increments(machine: &Machine, requests: Range<usize>) -> Events {
        let key = KeyRef::new(b"likes:1").unwrap();
        let mut events = machine.events();
        for number in requests {
            let id = RequestId::new(key, format!("request {number}").as_bytes()).unwrap();
            events.push(key, Change::Add(1), Some(id), None);
        }
        events
    }

    /// Submits these requests and returns how many were duplicates.
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
    fn request_ids_of_a_checkpoint_form_one_run_however_many_there_are() {
        assert!(REQUESTS * 32 > 2 * SETTINGS.capture_bytes(), "they are sorted in several parts");
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
    fn a_request_id_that_reaches_the_store_after_the_lookup_is_still_a_duplicate() {
        let dir = tempfile::tempdir().unwrap();
        let machine = open(&dir);
        assert_eq!(count(&machine, 0..1), 0);
        let mut again = Box::pin(machine.submit(increments(&machine, 0..1), Durability::Flushed, |_| {}));
        let polled = block_on(poll_fn(|context| Poll::Ready(again.as_mut().poll(context))));
        assert!(polled.is_pending(), "it waits in the open batch");
        checkpoint(&machine);
        machine.seal();
        machine.flush().unwrap();
        assert!(block_on(again).unwrap().outcomes[0].is_duplicate());
    }

    #[test]
    fn a_replay_of_duplicates_stays_within_the_memory_budget() {
        const REQUESTS: usize = 100_000;
        let calls = || (0..REQUESTS).step_by(5_000).map(|first| first..first + 5_000);
        let dir = tempfile::tempdir().unwrap();
        let machine = open(&dir);
        for call in calls() {
            assert_eq!(count(&machine, call), 0);
            checkpoint(&machine);
            while machine.merge().unwrap() {}
        }
        for call in calls() {
            assert_eq!(count(&machine, call), 5_000);
        }
        drop(machine);
        let machine = open(&dir);
        let taken = machine.state.lock().partition.memory_bytes();
        let budget = SETTINGS.memory_bytes as usize;
        assert!(taken < budget, "the ids in the store are not kept: {taken} bytes of {budget}");
        assert_eq!(count(&machine, 0..1), 1);
    }

    /// What batches touch without changing it adds up over many small batches.
    #[test]
    fn a_replay_of_refusals_stays_within_the_memory_budget() {
        const COUNTERS: usize = 60_000;
        let dir = tempfile::tempdir().unwrap();
        let machine = open(&dir);
        let submit = |events: Events| {
            machine.submit_detached(events).unwrap().unwrap();
            loop {
                match machine.seal() {
                    Seal::Applied => break,
                    Seal::NeedsCheckpoint => {
                        machine.flush().unwrap();
                        checkpoint(&machine);
                    }
                    Seal::BackedUp => {
                        machine.flush().unwrap();
                        machine.maintain_journal();
                    }
                    sealed => panic!("{sealed:?}"),
                }
            }
        };
        let key = |number: usize| Key::new(format!("counter {number}")).unwrap();
        for first in (0..COUNTERS).step_by(500) {
            let mut events = machine.events();
            (first..first + 500).for_each(|number| events.add(key(number).as_ref(), 1));
            submit(events);
        }
        machine.flush().unwrap();
        checkpoint(&machine);
        let bounds = Bounds { floor: None, ceiling: Some(0), on_bound: OnBound::Refuse };
        for number in 0..COUNTERS {
            let mut events = machine.events();
            let details = Details { bounds: Some(bounds), ..Details::default() };
            events.push(key(number).as_ref(), Change::Add(1), None, Some(details));
            submit(events);
        }
        machine.flush().unwrap();
        assert!(machine.journal_lag() > 1 << 20, "there is something to replay");
        drop(machine);
        let machine = open(&dir);
        let taken = machine.state.lock().partition.memory_bytes();
        let budget = SETTINGS.memory_bytes as usize;
        assert!(taken < budget, "counters in the store are evicted: {taken} bytes of {budget}");
    }

    /// The calling thread's directory in `/proc`.
    fn this_thread() -> PathBuf {
        Path::new("/proc").join(fs::read_link("/proc/thread-self").unwrap())
    }

    fn is_asleep(thread: &Path) -> bool {
        fs::read_to_string(thread.join("status")).unwrap().lines().any(|line| line.starts_with("State:\tS"))
    }

    #[test]
    fn a_thread_that_waits_for_the_state_gets_it_between_two_slices() {
        let dir = tempfile::tempdir().unwrap();
        let machine = open(&dir);
        count(&machine, 0..1);
        let mut checkpoint = machine.checkpoint().unwrap();
        // An ordinary unlock sometimes hands it over too, so once proves nothing.
        for _ in 0..50 {
            let state = machine.state.lock();
            thread::scope(|scope| {
                let (announce, waiter) = mpsc::channel();
                let (go_on, may_go) = mpsc::channel::<()>();
                let machine = &machine;
                scope.spawn(move || {
                    announce.send(this_thread()).unwrap();
                    let state = machine.state.lock();
                    // An error means that an assertion of the other thread failed.
                    let _ = may_go.recv();
                    drop(state);
                });
                let waiter = waiter.recv().unwrap();
                while !is_asleep(&waiter) {
                    thread::yield_now();
                }
                checkpoint.driver.copy_slice(state);
                assert!(machine.state.try_lock().is_none(), "it is handed over before the other thread is awake");
                go_on.send(()).unwrap();
            });
        }
    }
}
