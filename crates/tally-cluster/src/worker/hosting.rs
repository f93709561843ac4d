//! The life of a hosted partition: claim, replay, serve, hand over.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use tally_core::batch::{Batch, Events, encode};
use tally_core::event::Change;
use tally_core::limits::SWEEP_SLICE;
use tally_core::time::Millis;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::WorkerShared;
use super::aggregate::AggregatorGauges;
use super::ends::Ends;
use super::host::{HostError, HostSettings, PartitionHost};
use super::persist::PersistFailure;
use super::store::{PartitionStore, StoreFailure};
use crate::limits::{IDLE_TICK_MS, SWEEP_EVERY_MS};

/// Pause before a partition that failed is hosted again.
const RETRY_AFTER: Duration = Duration::from_millis(500);

/// The same for one that needs an operator.
const RETRY_STOPPED_AFTER: Duration = Duration::from_secs(10);

/// How a worker lets go of a partition.
pub enum Letting {
    /// Persist first. The next owner waits until this is dropped.
    HandOver(Arc<SyncSender<()>>),
    /// Somebody else has it already.
    Drop,
}

/// A partition that can answer.
pub struct Hosting {
    /// Its state.
    pub host: PartitionHost,
    /// The epoch of its claim.
    pub epoch: u64,
    /// Where the journal ends.
    pub ends: Ends,
    /// Held while it is persisted, because each persist begins where the last one ended.
    pub persisting: Arc<tokio::sync::Mutex<()>>,
    /// How the aggregator is doing.
    pub aggregator: AggregatorGauges,
    /// The journal's end when it was last asked for, for metrics.
    pub end: AtomicU64,
}

/// Hosts a partition until `ended`, over all failures.
pub async fn host(shared: Arc<WorkerShared>, partition: u32, mut ended: oneshot::Receiver<Letting>) {
    loop {
        let failure = tokio::select! {
            failure = host_once(&shared, partition) => failure,
            letting = &mut ended => {
                shared.stopped.lock().remove(&partition);
                let hosting = shared.hosted.lock().remove(&partition);
                if let (Some(hosting), Ok(Letting::HandOver(done))) = (hosting, letting) {
                    hosting.host.stop();
                    if let Err(error) = shared.persist(&hosting).await {
                        tracing::warn!(partition, %error, "not persisted before handing over; the next owner replays");
                    }
                    drop(done);
                }
                return;
            }
        };
        shared.hosted.lock().remove(&partition);
        let mut retry_after = RETRY_AFTER;
        match &failure {
            HostFailure::Host(HostError::Store(StoreFailure::Overtaken { .. })) | HostFailure::Superseded => {
                tracing::warn!(partition, "another worker has persisted more; continuing from there");
            }
            HostFailure::Transient(error) => tracing::warn!(partition, %error, "cannot host the partition yet"),
            HostFailure::Host(error) => {
                tracing::error!(partition, %error, "the partition has stopped");
                shared.stopped.lock().insert(partition, error.to_string());
                retry_after = RETRY_STOPPED_AFTER;
            }
        }
        tokio::select! {
            () = tokio::time::sleep(retry_after) => {}
            // Nothing is hosted, so there is nothing to hand over.
            _ = &mut ended => {
                shared.stopped.lock().remove(&partition);
                return;
            }
        }
    }
}

enum HostFailure {
    /// Trying again helps once a service is back.
    Transient(String),
    /// The partition stopped.
    Host(HostError),
    /// Another worker persisted.
    Superseded,
}

async fn host_once(shared: &Arc<WorkerShared>, partition: u32) -> HostFailure {
    let transient = |error: &dyn std::fmt::Display| HostFailure::Transient(error.to_string());
    let claim = match shared.services.pg.claim(partition, shared.address()).await {
        Ok(claim) => claim,
        Err(error) => return transient(&error),
    };
    let tailer = shared.tailer.clone();
    let opened = tokio::task::spawn_blocking(move || tailer.open(partition, claim.position)).await;
    let tail = match opened {
        Ok(Ok(tail)) => tail,
        Ok(Err(error)) if error.is_transient() => return transient(&error),
        Ok(Err(error)) => return HostFailure::Host(error.into()),
        Err(error) => return transient(&error),
    };
    let pg = Arc::clone(&shared.services.pg);
    let store = PartitionStore::new(pg, partition, claim.position, Handle::current());
    let budget = shared.settings.memory_bytes / shared.settings.partitions.max(1) as usize;
    let settings =
        HostSettings { budget_bytes: budget, seed: shared.seed, duplicates: Arc::clone(&shared.meters.duplicates) };
    let host = PartitionHost::new(store, partition, claim.meta, settings);
    let ends = Ends::new(shared.tailer.clone(), partition);
    let hosting = Arc::new(Hosting {
        host,
        epoch: claim.epoch,
        ends,
        persisting: Arc::default(),
        end: AtomicU64::new(0),
        aggregator: AggregatorGauges::default(),
    });
    let applying = std::thread::Builder::new().name(format!("tally-part-{partition}")).spawn({
        let hosting = Arc::clone(&hosting);
        move || hosting.host.run(tail)
    });
    if let Err(error) = applying {
        return transient(&error);
    }
    let _stopped = StopOnDrop(Arc::clone(&hosting));
    shared.hosted.lock().insert(partition, Arc::clone(&hosting));
    shared.stopped.lock().remove(&partition);
    tracing::info!(partition, epoch = claim.epoch, position = claim.position.0, "hosting");
    tokio::select! {
        failure = hosting.host.failed() => HostFailure::Host(failure),
        () = shared.persist_regularly(&hosting) => HostFailure::Superseded,
        () = shared.publish_regularly(&hosting) => HostFailure::Superseded,
        () = shared.sweep_regularly(&hosting) => HostFailure::Superseded,
        () = shared.aggregate_regularly(&hosting) => HostFailure::Superseded,
    }
}

/// Ends the applying thread when its partition is let go.
struct StopOnDrop(Arc<Hosting>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.host.stop();
    }
}

impl WorkerShared {
    /// Persists until another worker has taken over.
    async fn persist_regularly(&self, hosting: &Arc<Hosting>) {
        let mut every = tokio::time::interval(self.settings.persist_every);
        every.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        every.tick().await;
        loop {
            tokio::select! {
                _ = every.tick() => {}
                () = hosting.host.persist_wanted() => {}
            }
            match self.persist(hosting).await {
                Ok(()) => {}
                Err(PersistFailure::Superseded) => return,
                Err(error) => {
                    tracing::warn!(partition = hosting.host.partition, %error, "not persisted; trying again");
                    tokio::time::sleep(RETRY_AFTER).await;
                }
            }
        }
    }

    /// Removes expired counters, by batches like every change. Also moves time on where nothing is written, so that
    /// counters expire.
    async fn sweep_regularly(&self, hosting: &Arc<Hosting>) {
        let mut sweep = tokio::time::interval(Duration::from_millis(SWEEP_EVERY_MS));
        let mut tick = tokio::time::interval(Duration::from_millis(IDLE_TICK_MS));
        let mut last = None;
        loop {
            let batch = tokio::select! {
                _ = sweep.tick() => self.expired(hosting).await,
                _ = tick.tick() => {
                    let applied = hosting.host.applied();
                    let is_idle = last.replace(applied) == Some(applied);
                    (is_idle && hosting.host.has_expiring() || !hosting.host.has_time()).then(Batch::default)
                }
            };
            if let Some(batch) = batch {
                self.append(hosting.host.partition, &batch).await;
            }
        }
    }

    async fn expired(&self, hosting: &Hosting) -> Option<Batch> {
        let (_, now) = hosting.host.count();
        let partition = hosting.host.partition;
        if let Err(error) = self.services.pg.forget_requests(partition, now).await {
            tracing::debug!(partition, %error, "expired request ids were not removed");
        }
        let expired = self.services.pg.expired(partition, now, SWEEP_SLICE).await.unwrap_or_default();
        if expired.is_empty() {
            return None;
        }
        let mut events = Events::new(self.seed);
        for (expires_at, key) in expired {
            events.push(key.as_ref(), Change::Sweep { expires_at }, None, None);
        }
        Some(events.batch().clone())
    }

    /// Appends a batch of the worker's own. If that fails, the next round does it.
    async fn append(&self, partition: u32, batch: &Batch) {
        let mut bytes = Vec::new();
        encode(batch, Millis(0), &mut bytes);
        let appended = match self.appender.append(partition, &bytes) {
            Ok(appending) => appending.await,
            Err(error) => Err(error),
        };
        if let Err(error) = appended {
            tracing::debug!(partition, %error, "a batch of the worker was not appended");
        }
    }
}
