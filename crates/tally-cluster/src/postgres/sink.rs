//! The sink through which a capture writes into a persist.

use tally_core::record::Records;
use tally_engine::host::{CapturedRequests, RecordSink};
use tokio::runtime::Handle;

use super::error::PersistError;
use super::limits::WRITE_ROWS_MAX;
use super::persist::Persist;

/// A [`Persist`] as the [`RecordSink`] of a capture, for a thread that may block.
///
/// It blocks on the runtime instead of sending records through a channel to a task: a failed write then stops the
/// capture at once, and memory holds one buffer of records instead of a queue of them.
pub struct PersistSink {
    persist: Persist,
    runtime: Handle,
}

impl PersistSink {
    /// Writes into `persist`. Must be used outside of the runtime's own threads, as in `spawn_blocking`.
    #[must_use]
    pub fn new(persist: Persist, runtime: Handle) -> PersistSink {
        PersistSink { persist, runtime }
    }

    /// The persist, to commit it.
    #[must_use]
    pub fn into_persist(self) -> Persist {
        self.persist
    }

    fn write_requests(&mut self, requests: &mut Vec<(Vec<u8>, Vec<u8>)>) -> Result<(), PersistError> {
        let pairs = requests.iter().map(|(key, value)| (&key[..], &value[..]));
        self.runtime.block_on(self.persist.write_requests(pairs))?;
        requests.clear();
        Ok(())
    }
}

impl RecordSink for PersistSink {
    type Error = PersistError;

    fn write(&mut self, records: &Records) -> Result<(), PersistError> {
        self.runtime.block_on(self.persist.write(records))
    }

    fn write_last(&mut self, records: &Records, requests: CapturedRequests<'_>) -> Result<(), PersistError> {
        self.write(records)?;
        let mut gathered = Vec::with_capacity(requests.len_max().min(WRITE_ROWS_MAX));
        requests.for_each(|key, value| {
            gathered.push((key.to_vec(), value.to_vec()));
            if gathered.len() < WRITE_ROWS_MAX { Ok(()) } else { self.write_requests(&mut gathered) }
        })?;
        self.write_requests(&mut gathered)
    }
}
