//! Capturing a partition: every record that changed goes to a sink, as of one position, while batches go on.
//!
//! Counters are copied in slices with the partition locked; a batch that changes one before its turn copies it first.
//! Everything else is immutable by then and is read without the lock. Memory is bounded: records are handed to the sink
//! whenever a buffer is full.

use parking_lot::MutexGuard;
use tally_core::limits::CAPTURE_SLICE;
use tally_core::partition::{Capture, Partition};
use tally_core::record::Records;
use tally_core::time::Millis;

use super::resident::{Hosted, ResidentPartition};

/// Where captured records go. They must become visible together, with the position of the capture.
pub trait RecordSink {
    /// Why records could not be written.
    type Error;

    /// Writes records, which are sorted by key. No key occurs twice in one capture.
    fn write(&mut self, records: &Records) -> Result<(), Self::Error>;
    /// Writes the last records, which are sorted by key, and all request ids. Called once, after every `write`.
    fn write_last(&mut self, records: &Records, requests: CapturedRequests<'_>) -> Result<(), Self::Error>;
}

/// The request ids of a capture.
#[derive(Clone, Copy)]
pub struct CapturedRequests<'a> {
    capture: &'a Capture,
    buffer_bytes: usize,
}

impl CapturedRequests<'_> {
    /// An upper bound on their number.
    #[must_use]
    pub fn len_max(&self) -> usize {
        self.capture.requests_max()
    }

    /// Calls `sink` with store key and value of each, in key order.
    pub fn for_each<E>(&self, sink: impl FnMut(&[u8], &[u8]) -> Result<(), E>) -> Result<(), E> {
        self.capture.requests(self.buffer_bytes, sink)
    }
}

/// A capture in progress.
///
/// After the sink has committed, call [`Partition::capture_committed`]; if anything failed,
/// [`Partition::capture_abandoned`].
pub struct CaptureDriver {
    capture: Capture,
    buffer_bytes: usize,
    records: Records,
    /// Filled while the partition is locked. Appending to `records` may allocate, so that happens after unlocking.
    slice: Records,
    progress: CaptureProgress,
}

/// What a capture does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaptureProgress {
    /// Copies counters, one slice per step.
    Counters,
    /// Writes the rest: removals, ledger entries, request ids.
    Rest,
    /// Nothing: the sink has everything.
    Done,
}

impl CaptureDriver {
    /// Begins a capture of the partition as it is now. `buffer_bytes` of records are gathered before they are written.
    pub fn begin(partition: &mut Partition, buffer_bytes: usize) -> CaptureDriver {
        CaptureDriver {
            capture: partition.begin_capture(),
            buffer_bytes,
            records: Records::default(),
            slice: Records::default(),
            progress: CaptureProgress::Counters,
        }
    }

    /// The time of the last batch that the capture contains.
    #[must_use]
    pub fn at(&self) -> Millis {
        self.capture.at()
    }

    /// Does one step and returns what comes next.
    pub fn step<J, S: RecordSink>(
        &mut self,
        partition: &ResidentPartition<J>,
        sink: &mut S,
    ) -> Result<CaptureProgress, S::Error> {
        self.progress = match self.progress {
            CaptureProgress::Counters => self.copy_counters(partition, sink)?,
            CaptureProgress::Rest => self.write_rest(sink)?,
            CaptureProgress::Done => CaptureProgress::Done,
        };
        Ok(self.progress)
    }

    fn copy_counters<J, S: RecordSink>(
        &mut self,
        partition: &ResidentPartition<J>,
        sink: &mut S,
    ) -> Result<CaptureProgress, S::Error> {
        let has_more = self.copy_slice(partition.lock());
        if self.records.memory_bytes() >= self.buffer_bytes {
            write(&mut self.records, sink)?;
        }
        Ok(if has_more { CaptureProgress::Counters } else { CaptureProgress::Rest })
    }

    /// Copies a slice and returns whether there are more. Unlocks fairly: this thread would otherwise take the lock
    /// again before a waiting one wakes.
    pub(crate) fn copy_slice<J>(&mut self, mut hosted: MutexGuard<'_, Hosted<J>>) -> bool {
        let has_more = hosted.partition.capture_slice(CAPTURE_SLICE, &mut self.slice);
        MutexGuard::unlock_fair(hosted);
        self.records.append(&mut self.slice);
        has_more
    }

    fn write_rest<S: RecordSink>(&mut self, sink: &mut S) -> Result<CaptureProgress, S::Error> {
        let CaptureDriver { capture, records, buffer_bytes, .. } = self;
        capture.records(|put| {
            put(records);
            if records.memory_bytes() >= *buffer_bytes { write(records, sink) } else { Ok(()) }
        })?;
        records.sort();
        sink.write_last(records, CapturedRequests { capture, buffer_bytes: *buffer_bytes })?;
        records.clear();
        Ok(CaptureProgress::Done)
    }
}

fn write<S: RecordSink>(records: &mut Records, sink: &mut S) -> Result<(), S::Error> {
    records.sort();
    sink.write(records)?;
    records.clear();
    Ok(())
}
