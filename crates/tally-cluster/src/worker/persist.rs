//! Persisting a hosted partition.

use std::sync::Arc;

use tally_engine::host::{CaptureDriver, CaptureProgress};
use tokio::runtime::Handle;

use super::WorkerShared;
use super::host::HostError;
use super::hosting::Hosting;
use crate::limits::CAPTURE_BYTES;
use crate::postgres::{PersistError, PersistSink};

/// Why a partition was not persisted.
#[derive(Debug, thiserror::Error)]
pub enum PersistFailure {
    /// Another worker owns the partition, or has persisted it.
    #[error("another worker has persisted the partition")]
    Superseded,
    /// Trying again may help.
    #[error("{0}")]
    Failed(String),
}

impl From<PersistError> for PersistFailure {
    fn from(error: PersistError) -> Self {
        match error {
            PersistError::Superseded { .. } => PersistFailure::Superseded,
            other => PersistFailure::Failed(other.to_string()),
        }
    }
}

impl WorkerShared {
    /// Notices that PostgreSQL went back or that another worker took over, even while there is nothing to persist. By
    /// the time there is, Kafka may have removed what PostgreSQL lost.
    pub async fn check_stored(&self, hosting: &Hosting) -> Result<(), PersistFailure> {
        let _turn = hosting.persisting.lock().await;
        let host = &hosting.host;
        let persist = self.services.pg.persist(host.partition, hosting.epoch(), host.persisted()).await?;
        persist.rollback().await;
        Ok(())
    }

    /// Writes everything that changed, and the position, in one transaction.
    pub async fn persist(&self, hosting: &Arc<Hosting>) -> Result<(), PersistFailure> {
        let turn = Arc::clone(&hosting.persisting).lock_owned().await;
        let hosting = Arc::clone(hosting);
        let partition = hosting.host.partition;
        let from = hosting.host.store().base();
        if from == hosting.host.applied() {
            return Ok(());
        }
        // The transaction first: a capture that waits for its turn would keep copies of what changes meanwhile, and occupy
        // a thread.
        let persist = self.services.pg.persist(partition, hosting.epoch(), from).await?;
        let runtime = Handle::current();
        // Continues even if nobody waits for it any more.
        let persisted = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            let host = &hosting.host;
            let (mut driver, to, clock_reset, summed_at) = {
                let mut hosted = host.state().lock();
                if host.is_torn() {
                    return Err(PersistFailure::Failed(HostError::Panicked.to_string()));
                }
                host.unpersisted.begin();
                let driver = CaptureDriver::begin(&mut hosted.partition, CAPTURE_BYTES);
                // With the state locked: a reset of the clock is in all of them or in none.
                (driver, hosted.applied, host.clock_reset(), host.summed.all())
            };
            let written = (|| {
                let mut sink = PersistSink::new(persist, runtime.clone());
                while driver.step(host.state(), &mut sink)? != CaptureProgress::Done {}
                let mut persist = sink.into_persist();
                persist.note_summed(summed_at);
                persist.note_clock_reset(clock_reset);
                runtime.block_on(persist.commit(to))
            })();
            let mut hosted = host.state().lock();
            match written {
                Ok(()) => {
                    hosted.partition.capture_committed();
                    host.unpersisted.saved();
                    host.store().committed(to);
                    Ok(to)
                }
                Err(error) => {
                    hosted.partition.capture_abandoned();
                    host.unpersisted.failed();
                    Err(PersistFailure::from(error))
                }
            }
        });
        let to = persisted.await.unwrap_or_else(|error| Err(PersistFailure::Failed(error.to_string())))?;
        if let Some(group) = self.group.lock().as_ref() {
            group.commit(partition, to);
        }
        Ok(())
    }
}
