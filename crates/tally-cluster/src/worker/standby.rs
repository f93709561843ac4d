//! Standing by for a partition: applying its journal without persisting.
//!
//! What a standby changed in memory counts as stored once the owner has stored that position or a later one (decision
//! 0021). So a standby can free memory like the owner, and a takeover continues from memory.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tally_core::record::Records;
use tally_core::time::Position;
use tally_engine::host::{CaptureDriver, CaptureProgress, CapturedRequests, RecordSink};
use tokio::sync::mpsc;

use super::hosting::Hosting;
use super::plan::plan;
use super::{HostingChange, WorkerShared};
use crate::limits::{CAPTURE_BYTES, STANDBY_FOLLOW_MS, STANDBY_PLAN_MS};
use crate::postgres::{PartitionRow, PgError};

/// A sink for captured records, which the owner stores.
struct Discard;

impl RecordSink for Discard {
    type Error = Infallible;

    fn write(&mut self, _: &Records) -> Result<(), Infallible> {
        Ok(())
    }

    fn write_last(&mut self, _: &Records, _: CapturedRequests<'_>) -> Result<(), Infallible> {
        Ok(())
    }
}

impl WorkerShared {
    /// A partition as it is stored.
    pub(super) async fn stored(&self, partition: u32) -> Result<PartitionRow, PgError> {
        let rows = self.services.pg.partitions().await?;
        let row = rows.into_iter().find(|row| row.partition == partition);
        row.ok_or_else(|| PgError::Unexpected(format!("partition {partition} has no row")))
    }

    /// Frees memory of what the owner has stored, until the partition is released or taken over.
    pub(super) async fn follow_store(&self, hosting: &Arc<Hosting>) -> Infallible {
        let period = Duration::from_millis(STANDBY_FOLLOW_MS).min(self.settings.persist_every);
        let mut every = tokio::time::interval(period);
        every.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut captured = None;
        loop {
            tokio::select! {
                _ = every.tick() => {}
                () = hosting.host.persist_wanted() => {}
            }
            let host = &hosting.host;
            if captured.is_none() && host.applied() > host.persisted() {
                captured = capture(hosting).await;
            }
            let Some(position) = captured else { continue };
            match self.stored(host.partition).await {
                Ok(row) if row.position >= position => {
                    captured = None;
                    if host.applied() >= row.position {
                        hosting.host.note_summed(row.summed_at, row.summed_at);
                    }
                    let mut hosted = host.state().lock();
                    hosted.partition.capture_committed();
                    host.store().committed(position);
                }
                Ok(_) => {}
                Err(error) => tracing::debug!(partition = host.partition, %error, "the stored position is not known"),
            }
        }
    }
}

/// Captures what has changed so far, and returns the position that has to be stored before it may be evicted.
async fn capture(hosting: &Arc<Hosting>) -> Option<Position> {
    // Moved into the task: a takeover waits for it.
    let turn = Arc::clone(&hosting.persisting).lock_owned().await;
    let hosting = Arc::clone(hosting);
    let captured = tokio::task::spawn_blocking(move || {
        let _turn = turn;
        let state = hosting.host.state();
        let (mut driver, position) = {
            let mut hosted = state.lock();
            (CaptureDriver::begin(&mut hosted.partition, CAPTURE_BYTES), hosted.applied)
        };
        while driver.step(state, &mut Discard) != Ok(CaptureProgress::Done) {}
        position
    });
    captured.await.ok()
}

/// Plans regularly which partitions this worker stands by for, until it is gone.
pub async fn plan_regularly(worker: Weak<WorkerShared>, group: String, changes: mpsc::UnboundedSender<HostingChange>) {
    let mut every = tokio::time::interval(Duration::from_millis(STANDBY_PLAN_MS));
    every.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        every.tick().await;
        let Some(shared) = worker.upgrade() else { return };
        let (tailer, group) = (shared.tailer.clone(), group.clone());
        let workers = tokio::task::spawn_blocking(move || tailer.group_workers(&group)).await;
        let workers = match workers {
            Ok(Ok(Some(workers))) => workers,
            // The group is rebalancing.
            Ok(Ok(None)) => continue,
            Ok(Err(error)) => {
                tracing::debug!(%error, "the group cannot be described");
                continue;
            }
            Err(_) => return,
        };
        let Some(planned) = plan(&workers, shared.settings.partitions, shared.settings.standbys) else { continue };
        let is_ours = |standbys: &Vec<String>| standbys.iter().any(|standby| standby == shared.address());
        let ours: BTreeSet<u32> =
            planned.iter().filter(|(_, all)| is_ours(all)).map(|(partition, _)| *partition).collect();
        *shared.standbys.lock() = planned;
        if changes.send(HostingChange::Standbys(ours)).is_err() {
            return;
        }
    }
}
