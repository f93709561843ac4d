//! The life of a hosted partition: claim, replay, serve, hand over.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use futures_util::FutureExt;
use tally_core::batch::{Batch, Events};
use tally_core::event::Change;
use tally_core::limits::SWEEP_SLICE;
use tally_core::time::{Millis, Position};
use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};
use tokio::time::MissedTickBehavior;

use super::WorkerShared;
use super::aggregate::AggregatorGauges;
use super::answer::reach_end;
use super::ends::Ends;
use super::host::{HostError, HostSettings, PartitionHost};
use super::persist::PersistFailure;
use super::store::{PartitionStore, StoreFailure};
use crate::limits::{END_WAIT_MS, IDLE_TICK_MS, SWEEP_EVERY_MS};
use crate::postgres::{Claim, PgError};
use crate::rpc::Role;

/// Pause before a partition that failed is hosted again.
const RETRY_AFTER: Duration = Duration::from_millis(500);

/// The same for one that needs an operator.
const RETRY_STOPPED_AFTER: Duration = Duration::from_secs(10);

/// Longest wait for Redis when a partition is handed over.
const PUBLISH_LAST_MAX: Duration = Duration::from_secs(1);
/// Longest wait for the heartbeat of the previous owner.
const HEARTBEAT_WAIT: Duration = Duration::from_secs(1);

/// How a worker releases a partition.
pub enum Release {
    /// Persist first. The next owner waits until this is dropped.
    HandOver(Arc<SyncSender<()>>),
    /// Only stop: another worker has it already.
    Drop,
}

/// A partition that can answer.
pub struct Hosting {
    /// Its state.
    pub host: PartitionHost,
    /// The epoch of its claim; 0 while it stands by.
    epoch: AtomicU64,
    /// Totals of earlier positions may be outdated, see [`Heartbeat::since`](crate::redis::Heartbeat::since).
    since: AtomicU64,
    /// Where the journal ends.
    pub ends: Ends,
    /// Redis has the totals of this position.
    published: AtomicU64,
    /// Held while it is persisted, because each persist begins where the last one ended.
    pub persisting: Arc<tokio::sync::Mutex<()>>,
    /// The journal's end when it was last asked for, for metrics.
    pub end: AtomicU64,
    /// The largest difference between Redis and the state that the last pass found.
    pub drift_max: AtomicU64,
    /// How the aggregator is doing.
    pub aggregator: AggregatorGauges,
}

impl Hosting {
    /// Asks where the journal ends. If everything before it is applied, the state is current as of now.
    pub async fn note_end(&self) {
        let asked_at = self.host.now();
        let asked = tokio::time::timeout(Duration::from_millis(END_WAIT_MS), self.ends.reported());
        if let Ok(Ok(end)) = asked.await {
            self.host.note_end(end, asked_at);
        }
    }

    /// The epoch of its claim; 0 while it stands by.
    pub fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// The role of this worker for the partition.
    pub fn role(&self) -> Role {
        if self.epoch() == 0 { Role::Standby } else { Role::Owner }
    }

    /// Redis has the totals of this position.
    pub fn published(&self) -> Position {
        Position(self.published.load(Ordering::Acquire))
    }

    /// Records that Redis has the totals of this position.
    pub fn note_published(&self, position: Position) {
        self.published.fetch_max(position.0, Ordering::AcqRel);
    }

    /// Totals of positions before this one may be outdated: changes since then are not published.
    pub fn distrust_before(&self, position: Position) {
        self.since.fetch_max(position.0, Ordering::AcqRel);
    }

    /// Totals of earlier positions may be outdated.
    pub fn since(&self) -> Position {
        Position(self.since.load(Ordering::Acquire))
    }

    /// Everything that sub-counters had counted before this time is applied. Zero if that is not known.
    pub fn summed_at(&self) -> Millis {
        self.host.summed.all()
    }
}

/// Hosts a partition until `ended`, and tries again after failures.
pub async fn host(
    shared: Arc<WorkerShared>,
    partition: u32,
    mut role: watch::Receiver<Role>,
    mut ended: oneshot::Receiver<Release>,
) {
    loop {
        let mut hosting = None;
        let failure = tokio::select! {
            failure = unless_panicked(host_once(&shared, partition, &mut role, &mut hosting)) => failure,
            release = &mut ended => {
                shared.stopped.lock().remove(&partition);
                if let Some(hosting) = hosting {
                    shared.release(&hosting, release.unwrap_or(Release::Drop)).await;
                }
                return;
            }
        };
        if let Some(hosting) = hosting {
            shared.unlist(&hosting);
        }
        let mut retry_after = RETRY_AFTER;
        match &failure {
            HostFailure::Host(HostError::Store(StoreFailure::Overtaken { .. })) | HostFailure::Superseded => {
                tracing::warn!(partition, "PostgreSQL has another position than expected; continuing from there");
            }
            HostFailure::Host(HostError::Store(error @ StoreFailure::WentBack { .. })) => {
                tracing::warn!(partition, %error, "starting over from what PostgreSQL has; the journal has the rest");
            }
            HostFailure::Transient(error) => tracing::warn!(partition, %error, "cannot host the partition yet"),
            HostFailure::Host(error) if *role.borrow() == Role::Standby => {
                tracing::warn!(partition, %error, "cannot stand by for the partition");
                retry_after = RETRY_STOPPED_AFTER;
            }
            HostFailure::Host(error) => {
                tracing::error!(partition, %error, "the partition has stopped");
                shared.stopped.lock().insert(partition, error.to_string());
                retry_after = RETRY_STOPPED_AFTER;
            }
        }
        tokio::select! {
            () = tokio::time::sleep(retry_after) => {}
            // From standby to owner.
            Ok(()) = role.changed() => {}
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

impl HostFailure {
    fn transient(error: &dyn std::fmt::Display) -> HostFailure {
        HostFailure::Transient(error.to_string())
    }
}

/// A panic stops the partition, like one of the thread that applies its journal. Otherwise it would stay listed, and
/// nobody would try again.
async fn unless_panicked(hosted: impl Future<Output = HostFailure>) -> HostFailure {
    let hosted = AssertUnwindSafe(hosted).catch_unwind().await;
    hosted.unwrap_or(HostFailure::Host(HostError::Panicked))
}

/// Hosts a partition until something fails. `listed` is set to the hosting that can be asked meanwhile.
async fn host_once(
    shared: &Arc<WorkerShared>,
    partition: u32,
    role: &mut watch::Receiver<Role>,
    listed: &mut Option<Arc<Hosting>>,
) -> HostFailure {
    let wanted = *role.borrow_and_update();
    match wanted {
        Role::Owner => own(shared, partition, None, listed).await,
        Role::Standby => match stand_by(shared, partition, role, listed).await {
            Ok(standby) => own(shared, partition, Some(standby), listed).await,
            Err(failure) => failure,
        },
    }
}

/// Applies the journal until this worker becomes the owner.
async fn stand_by(
    shared: &Arc<WorkerShared>,
    partition: u32,
    role: &mut watch::Receiver<Role>,
    listed: &mut Option<Arc<Hosting>>,
) -> Result<StopOnDrop, HostFailure> {
    let row = shared.stored(partition).await.map_err(|error| HostFailure::transient(&error))?;
    let standby = open(shared, partition, row.claimed()).await?;
    shared.list(&standby.0, listed);
    tracing::info!(partition, position = row.position.0, "standing by");
    let hosting = &standby.0;
    tokio::select! {
        failure = hosting.host.failed() => return Err(HostFailure::Host(failure)),
        never = shared.follow_store(hosting) => match never {},
        owner = role.wait_for(|role| *role == Role::Owner) => owner.map_err(|error| HostFailure::transient(&error))?,
    };
    Ok(standby)
}

/// Claims the partition and serves it, from memory if this worker has stood by for it.
async fn own(
    shared: &Arc<WorkerShared>,
    partition: u32,
    standby: Option<StopOnDrop>,
    listed: &mut Option<Arc<Hosting>>,
) -> HostFailure {
    let claim = loop {
        match shared.services.pg.claim(partition, shared.address()).await {
            Ok(claim) => break claim,
            Err(error @ PgError::NoPartition(_)) => return HostFailure::Host(StoreFailure::from(error).into()),
            // Meanwhile it answers as a standby.
            Err(error) if standby.is_some() => {
                tracing::warn!(partition, %error, "cannot claim the partition yet");
                tokio::time::sleep(RETRY_AFTER).await;
            }
            Err(error) => return HostFailure::transient(&error),
        }
    };
    // Nobody else can persist from now on. The memory of a standby can be used unless more is stored than it has
    // applied, or less than it is based on.
    let ready = standby.filter(|standby| standby.0.host.store().can_continue_from(claim.position));
    let is_ready = ready.is_some();
    let owned = match ready {
        Some(standby) => {
            {
                // A capture in progress ends first.
                let _turn = standby.0.persisting.lock().await;
                standby.0.host.take_over(claim.position);
            }
            standby
        }
        None => match open(shared, partition, claim).await {
            Ok(opened) => opened,
            Err(failure) => return failure,
        },
    };
    let hosting = &owned.0;
    let from = hosting.host.begin_publishing();
    let since = shared.published_since(partition, from).await;
    hosting.since.store(since.0, Ordering::Release);
    hosting.epoch.store(claim.epoch, Ordering::Release);
    shared.list(hosting, listed);
    shared.stopped.lock().remove(&partition);
    let (epoch, stored) = (claim.epoch, claim.position.0);
    if is_ready {
        tracing::info!(partition, epoch, stored, applied = from.0, "took over from memory");
    } else {
        tracing::info!(partition, epoch, position = stored, "hosting");
    }
    tokio::select! {
        failure = hosting.host.failed() => HostFailure::Host(failure),
        () = shared.persist_regularly(hosting) => HostFailure::Superseded,
        () = shared.publish_regularly(hosting) => HostFailure::Superseded,
        () = shared.sweep_regularly(hosting) => HostFailure::Superseded,
        () = shared.aggregate_regularly(hosting) => HostFailure::Superseded,
    }
}

/// Begins to apply the journal from what is stored.
async fn open(shared: &Arc<WorkerShared>, partition: u32, stored: Claim) -> Result<StopOnDrop, HostFailure> {
    let Claim { position, summed_at, meta, .. } = stored;
    let turn = Arc::clone(shared.tails.lock().entry(partition).or_default());
    let turn = turn.lock_owned().await;
    let tailer = shared.tailer.clone();
    let opened = tokio::task::spawn_blocking(move || {
        let tail = match meta {
            Some(meta) => tailer.open_after(partition, position, meta.clock),
            None => tailer.open(partition, position),
        };
        tail.map(|tail| (tail, turn))
    })
    .await;
    let (tail, turn) = match opened {
        Ok(Ok(opened)) => opened,
        Ok(Err(error)) if error.is_transient() => return Err(HostFailure::transient(&error)),
        Ok(Err(error)) => return Err(HostFailure::Host(error.into())),
        Err(error) => return Err(HostFailure::transient(&error)),
    };
    let store = PartitionStore::new(Arc::clone(&shared.services.pg), partition, position, Handle::current());
    let settings = HostSettings {
        // A worker may end up hosting all partitions.
        budget_bytes: shared.settings.memory_bytes / shared.settings.partitions.max(1) as usize,
        seed: shared.seed,
        duplicates: Arc::clone(&shared.meters.duplicates),
    };
    let hosting = Arc::new(Hosting {
        host: PartitionHost::new(store, partition, &stored, settings),
        epoch: AtomicU64::new(0),
        since: AtomicU64::new(0),
        published: AtomicU64::new(0),
        ends: Ends::new(shared.tailer.clone(), Arc::clone(&shared.appender), partition),
        persisting: Arc::default(),
        end: AtomicU64::new(0),
        drift_max: AtomicU64::new(0),
        aggregator: AggregatorGauges::default(),
    });
    hosting.host.summed.note(summed_at, summed_at, None);
    let applying = std::thread::Builder::new().name(format!("tally-part-{partition}")).spawn({
        let hosting = Arc::clone(&hosting);
        move || {
            hosting.host.run(tail);
            // The partition is opened again only after it was closed here.
            drop(turn);
        }
    });
    applying.map_err(|error| HostFailure::transient(&error))?;
    Ok(StopOnDrop(hosting))
}

/// Ends the applying thread when its partition is released.
struct StopOnDrop(Arc<Hosting>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.host.stop();
    }
}

impl WorkerShared {
    /// Makes the partition available to API nodes.
    fn list(&self, hosting: &Arc<Hosting>, listed: &mut Option<Arc<Hosting>>) {
        *listed = Some(Arc::clone(hosting));
        self.hosted.lock().insert(hosting.host.partition, Arc::clone(hosting));
    }

    fn unlist(&self, hosting: &Arc<Hosting>) {
        let mut hosted = self.hosted.lock();
        let partition = hosting.host.partition;
        if hosted.get(&partition).is_some_and(|listed| Arc::ptr_eq(listed, hosting)) {
            hosted.remove(&partition);
        }
    }

    /// Releases a partition. Its next owner continues where this one ends.
    async fn release(&self, hosting: &Arc<Hosting>, release: Release) {
        self.unlist(hosting);
        hosting.host.stop();
        let Release::HandOver(done) = release else { return };
        if hosting.role() == Role::Standby {
            return;
        }
        let partition = hosting.host.partition;
        match self.persist(hosting).await {
            Err(error) => {
                tracing::warn!(partition, %error, "not persisted before handing over; the next owner replays");
            }
            // So that the next owner can use the totals.
            Ok(()) => match tokio::time::timeout(PUBLISH_LAST_MAX, self.publish(hosting)).await {
                Ok(Ok(_)) => {}
                Ok(Err(error)) => tracing::debug!(partition, %error, "the last totals were not published"),
                Err(_) => tracing::debug!(partition, "the last totals were not published in time"),
            },
        }
        drop(done);
    }

    /// The position from which totals can be used, for an owner that publishes every change from `from` on. Earlier
    /// totals can be used if the previous owner published everything up to `from`.
    async fn published_since(&self, partition: u32, from: Position) -> Position {
        let partitions = [partition];
        let heartbeats = self.services.totals.heartbeats(&partitions);
        // Calls to the partition wait meanwhile. Without the heartbeat, totals are merely published again.
        match tokio::time::timeout(HEARTBEAT_WAIT, heartbeats).await {
            Ok(Ok(found)) => match &found[..] {
                [Some(previous)] if previous.position >= from => previous.since,
                _ => from,
            },
            Ok(Err(_)) | Err(_) => from,
        }
    }

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
            let is_idle = hosting.host.applied() == hosting.host.persisted();
            let persisted = if is_idle { self.check_stored(hosting).await } else { self.persist(hosting).await };
            match persisted {
                Ok(()) => {}
                Err(PersistFailure::Superseded) => return,
                Err(error) => {
                    tracing::warn!(partition = hosting.host.partition, %error, "not persisted; trying again");
                    tokio::time::sleep(RETRY_AFTER).await;
                }
            }
        }
    }

    /// Removes expired counters, by batches like every change. Also advances the time while nothing is written, so that
    /// counters expire, and so that the last record soon has a broker's time again.
    async fn sweep_regularly(&self, hosting: &Arc<Hosting>) {
        let mut sweep = tokio::time::interval(Duration::from_millis(SWEEP_EVERY_MS));
        sweep.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut tick = tokio::time::interval(Duration::from_millis(IDLE_TICK_MS));
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut last = None;
        let mut swept = Position(0);
        // Replayed records are from the past. One that is appended now tells the owner the time.
        let mut knows_time = false;
        loop {
            tokio::select! {
                // PostgreSQL still lists swept counters until the sweep is persisted.
                _ = sweep.tick(), if hosting.host.persisted() >= swept && !hosting.host.is_untimed() => {
                    swept = self.sweep(hosting).await;
                }
                _ = tick.tick() => {
                    let applied = hosting.host.applied();
                    let is_idle = last.replace(applied) == Some(applied);
                    if !knows_time {
                        knows_time = reach_end(hosting).await.is_ok();
                    } else if is_idle && (hosting.host.has_expiring() || hosting.host.is_untimed()) {
                        self.append(hosting.host.partition, &Batch::default()).await;
                    }
                }
            }
        }
    }

    /// Removes all counters that have expired and are stored. Returns the position after their removal.
    async fn sweep(&self, hosting: &Hosting) -> Position {
        let (_, now) = hosting.host.count();
        let partition = hosting.host.partition;
        if let Err(error) = self.services.pg.forget_requests(partition).await {
            tracing::debug!(partition, %error, "expired request ids were not removed");
        }
        let mut swept = Position(0);
        let mut last = None;
        loop {
            let expired = match self.services.pg.expired(partition, now, last.as_ref(), SWEEP_SLICE).await {
                Ok(expired) => expired,
                Err(error) => {
                    tracing::debug!(partition, %error, "expired counters cannot be listed");
                    break;
                }
            };
            if expired.is_empty() {
                break;
            }
            let mut events = Events::new(self.seed);
            for (expires_at, key) in &expired {
                events.push(key.as_ref(), Change::Sweep { expires_at: *expires_at }, None, None);
            }
            let Some(end) = self.append(partition, events.batch()).await else { break };
            swept = end;
            last = expired.into_iter().next_back();
        }
        if swept > Position(0) {
            hosting.host.want_persist();
        }
        swept
    }

    /// Appends a batch of the worker's own, and returns its end. If that fails, the next round tries again.
    async fn append(&self, partition: u32, batch: &Batch) -> Option<Position> {
        match self.appender.append_batch(partition, batch).await {
            Ok(appended) => Some(appended.end),
            Err(error) => {
                tracing::debug!(partition, %error, "a batch of the worker was not appended");
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::panic)]

    use super::*;

    #[tokio::test]
    async fn a_panic_while_a_partition_is_hosted_stops_it_so_that_it_is_tried_again() {
        let failure = unless_panicked(async { panic!("a bug") }).await;
        assert!(matches!(failure, HostFailure::Host(HostError::Panicked)));
    }
}
