//! A worker: hosts partitions, publishes their totals, persists their state, and answers API nodes.

mod aggregate;
mod answer;
mod broker_clock;
mod drift;
mod ends;
mod fail_on_panic;
mod group_size;
mod host;
mod hosting;
mod lag;
mod meters;
mod outcomes;
mod partition_time;
mod persist;
mod plan;
mod publish;
mod round;
mod standby;
mod store;
mod summed_times;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use tally_core::surface::Metric;
use tokio::sync::{Semaphore, mpsc, oneshot, watch};

use answer::StoreReads;
pub use broker_clock::{BrokerClock, elapsed_ms};
pub use host::HostError;
use hosting::{Hosting, Release};
use meters::WorkerMeters;

use crate::kafka::{Appender, KafkaSettings, Membership, MembershipEvent, Tailer, TopicError};
use crate::limits::{LEAVE_WAIT_MS, STORE_READS_MAX};
use crate::policy::ShardPolicies;
use crate::postgres::{Pg, PgError};
use crate::redis::Totals;
use crate::rpc::{LinkSecurity, ListenError, Role, RpcServer};
use crate::tls::TlsServer;

/// How long a stopping worker keeps answering earlier requests.
const STOP_WAIT: Duration = Duration::from_secs(2);

/// The settings of a worker.
#[derive(Clone, Debug)]
pub struct WorkerSettings {
    /// Where it listens for API nodes.
    pub listen: SocketAddr,
    /// The address that it gives to API nodes; where it listens, if unset.
    pub advertised: Option<String>,
    /// How connections of API nodes are protected.
    pub security: LinkSecurity<TlsServer>,
    /// Memory for the partitions, together.
    pub memory_bytes: usize,
    /// Number of partitions of the journal.
    pub partitions: u32,
    /// How often changed totals are published.
    pub rollup_every: Duration,
    /// How often changed records are persisted.
    pub persist_every: Duration,
    /// How sub-counters work.
    pub policies: ShardPolicies,
    /// Sub-counters that nobody has written to for this long are removed.
    pub shards_idle: Duration,
    /// How many other workers apply each partition, ready to take over.
    pub standbys: u32,
    /// Differences between Redis and the state above this are logged as warnings.
    pub drift_warn: u64,
}

/// The services that a worker uses.
#[derive(Clone)]
pub struct Services {
    /// The journal.
    pub kafka: KafkaSettings,
    /// The store.
    pub pg: Arc<Pg>,
    /// The totals.
    pub totals: Arc<Totals>,
}

/// Why a worker did not start.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// Kafka.
    #[error(transparent)]
    Journal(#[from] TopicError),
    /// PostgreSQL.
    #[error(transparent)]
    Store(#[from] PgError),
    /// The address for API nodes.
    #[error("{0}. Choose another address with `worker` in [cluster] or TALLY_CLUSTER_WORKER")]
    Listen(#[from] ListenError),
}

/// A running worker.
pub struct Worker {
    shared: Arc<WorkerShared>,
    /// Taken when the worker stops.
    membership: Mutex<Option<Arc<Membership>>>,
    server: Mutex<Option<RpcServer>>,
    address: String,
}

/// What the tasks of a worker share.
pub(crate) struct WorkerShared {
    settings: WorkerSettings,
    services: Services,
    tailer: Tailer,
    appender: Arc<Appender>,
    /// Where API nodes reach this worker.
    address: OnceLock<String>,
    /// Partitions that can answer, including those it stands by for.
    hosted: Mutex<BTreeMap<u32, Arc<Hosting>>>,
    /// Partitions that need an operator, and why.
    stopped: Mutex<BTreeMap<u32, String>>,
    /// Seed of key hashes.
    seed: u64,
    /// For commits to the group, which nothing depends on.
    group: Mutex<Option<Arc<Membership>>>,
    meters: WorkerMeters,
    /// Reads of counters that are not in memory.
    store_reads: StoreReads,
    /// Readings of publishers and drift checks that may fetch from PostgreSQL at once.
    background_reads: Arc<Semaphore>,
    /// The standbys of all partitions, by the last plan.
    standbys: Mutex<BTreeMap<u32, Vec<String>>>,
    /// Held while a partition is read, because the Kafka client can read each only once at a time.
    tails: Mutex<BTreeMap<u32, Arc<tokio::sync::Mutex<()>>>>,
}

impl WorkerShared {
    /// Where API nodes reach this worker.
    fn address(&self) -> &str {
        self.address.get().map_or("", String::as_str)
    }

    /// Those of the assigned partitions that the cluster has. Others were added to the topic later: no key belongs
    /// there, and hosting them would make it look as if they were part of the cluster.
    fn known(&self, assigned: Vec<u32>) -> Vec<u32> {
        let known = self.settings.partitions;
        let (known, unknown): (Vec<u32>, Vec<u32>) = assigned.into_iter().partition(|partition| *partition < known);
        for partition in unknown {
            let why = format!(
                "the topic `{}` got partition {partition}, but the cluster was created with {}. It is left alone. Do not \
                 restart nodes, which would refuse the topic; see \"The topic got more partitions\" in \
                 docs/cluster-operations.md",
                self.services.kafka.topic, self.settings.partitions
            );
            if self.stopped.lock().insert(partition, why.clone()).is_none() {
                tracing::error!(partition, "{why}");
            }
        }
        known
    }

    /// Forgets partitions that the cluster does not have: they went to another worker, which reports them.
    fn forget_unknown(&self, partitions: &[u32]) {
        let unknown = partitions.iter().filter(|partition| **partition >= self.settings.partitions);
        let mut stopped = self.stopped.lock();
        unknown.for_each(|partition| drop(stopped.remove(partition)));
    }
}

impl Worker {
    /// Starts a worker on the current runtime. Returns once it has joined the group; partitions come later.
    pub async fn start(settings: WorkerSettings, services: Services) -> Result<Worker, WorkerError> {
        let cluster = services.pg.identify(&services.kafka.topic).await?;
        let group = format!("{}-workers", services.kafka.topic);
        let shared = Arc::new(WorkerShared {
            tailer: Tailer::new(&services.kafka)?,
            appender: Arc::new(Appender::new(&services.kafka)?),
            address: OnceLock::new(),
            hosted: Mutex::default(),
            stopped: Mutex::default(),
            seed: crate::seed(),
            group: Mutex::new(None),
            meters: WorkerMeters::default(),
            store_reads: StoreReads::default(),
            background_reads: Arc::new(Semaphore::new(STORE_READS_MAX)),
            standbys: Mutex::default(),
            tails: Mutex::default(),
            settings,
            services,
        });
        let WorkerSettings { listen, advertised, security, .. } = shared.settings.clone();
        let server = RpcServer::start(listen, security, cluster, Arc::clone(&shared)).await?;
        let address = advertised.unwrap_or_else(|| server.address().to_string());
        // Set before there is a partition whose owner is asked for.
        let _ = shared.address.set(address.clone());
        let (events, changes) = mpsc::unbounded_channel();
        let planned = events.clone();
        let membership = Membership::join(&shared.services.kafka, &group, &address, move |event| {
            // Fails only when the worker is gone.
            let _ = events.send(HostingChange::Group(event));
        })?;
        let membership = Arc::new(membership);
        *shared.group.lock() = Some(Arc::clone(&membership));
        tokio::spawn(follow(Arc::clone(&shared), changes));
        if shared.settings.standbys > 0 {
            tokio::spawn(standby::plan_regularly(Arc::downgrade(&shared), group, planned));
        }
        tokio::spawn(meters::observe(Arc::downgrade(&shared)));
        Ok(Worker { shared, membership: Mutex::new(Some(membership)), server: Mutex::new(Some(server)), address })
    }

    /// Where API nodes reach it.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The partitions that it owns now.
    #[must_use]
    pub fn hosted(&self) -> Vec<u32> {
        self.partitions(Role::Owner)
    }

    /// The partitions that it stands by for.
    #[must_use]
    pub fn standing_by(&self) -> Vec<u32> {
        self.partitions(Role::Standby)
    }

    fn partitions(&self, role: Role) -> Vec<u32> {
        let hosted = self.shared.hosted.lock();
        hosted.iter().filter(|(_, hosting)| hosting.role() == role).map(|(partition, _)| *partition).collect()
    }

    /// The partitions that need an operator, and why.
    #[must_use]
    pub fn stopped(&self) -> BTreeMap<u32, String> {
        self.shared.stopped.lock().clone()
    }

    /// The most writes per second to one sub-counter, and how far the slowest aggregator is behind.
    #[must_use]
    pub fn shard_load(&self) -> (f64, Duration) {
        self.shared.shard_load()
    }

    /// Its metrics.
    #[must_use]
    pub fn metrics(&self) -> Vec<Metric> {
        self.shared.metrics()
    }

    /// Persists everything that is in the journal now.
    pub async fn persist_all(&self, wait: Duration) -> Result<(), String> {
        for hosting in self.shared.all_hosted().into_iter().filter(|hosting| hosting.role() == Role::Owner) {
            let persisted = tokio::time::timeout(wait, async {
                let end = hosting.ends.barrier().await.map_err(|error| error.to_string())?;
                hosting.host.reach(end).await.map_err(|error| error.to_string())?;
                self.shared.persist(&hosting).await.map_err(|error| error.to_string())
            });
            persisted.await.map_err(|_| "it took too long".to_owned())??;
        }
        Ok(())
    }

    /// Persists, hands the partitions to other workers and stops.
    pub async fn stop(&self) {
        *self.shared.group.lock() = None;
        let membership = self.membership.lock().take();
        if let Some(mut left) = membership.as_ref().map(|membership| membership.left()) {
            // Leaving revokes all partitions and waits for them, on another thread.
            drop(membership);
            let left = tokio::time::timeout(Duration::from_millis(LEAVE_WAIT_MS), left.changed());
            if left.await.is_err() {
                tracing::warn!("Kafka does not answer; stopping without having left the group of workers");
            }
        }
        let server = self.server.lock().take();
        if let Some(server) = server {
            server.stop(STOP_WAIT).await;
        }
    }
}

impl Drop for Worker {
    /// Leaves the group, which ends everything else. After [`Worker::stop`] there is nothing left to do.
    fn drop(&mut self) {
        *self.shared.group.lock() = None;
        self.membership.lock().take();
    }
}

/// A change of what this worker hosts.
enum HostingChange {
    /// Of what it owns.
    Group(MembershipEvent),
    /// The partitions that it stands by for.
    Standbys(BTreeSet<u32>),
}

/// A partition that this worker hosts, or tries to.
struct HostingTask {
    role: watch::Sender<Role>,
    end: oneshot::Sender<Release>,
}

impl HostingTask {
    fn start(shared: &Arc<WorkerShared>, partition: u32, role: Role) -> HostingTask {
        let (end, ended) = oneshot::channel();
        let (role, roles) = watch::channel(role);
        tokio::spawn(hosting::host(Arc::clone(shared), partition, roles, ended));
        HostingTask { role, end }
    }
}

/// Hosts partitions as the group assigns them and as standbys are planned.
async fn follow(shared: Arc<WorkerShared>, mut changes: mpsc::UnboundedReceiver<HostingChange>) {
    let mut lives: BTreeMap<u32, HostingTask> = BTreeMap::new();
    while let Some(change) = changes.recv().await {
        match change {
            HostingChange::Group(MembershipEvent::Assigned(partitions)) => {
                tracing::info!(?partitions, "partitions assigned");
                for partition in shared.known(partitions) {
                    let start = || HostingTask::start(&shared, partition, Role::Owner);
                    lives.entry(partition).or_insert_with(start).role.send_replace(Role::Owner);
                }
            }
            HostingChange::Group(MembershipEvent::Revoked { partitions, done }) => {
                tracing::info!(?partitions, "partitions revoked");
                shared.forget_unknown(&partitions);
                let done = Arc::new(done);
                for life in partitions.iter().filter_map(|partition| lives.remove(partition)) {
                    // The rebalance continues when the last clone of `done` is dropped.
                    let _ = life.end.send(Release::HandOver(Arc::clone(&done)));
                }
            }
            HostingChange::Group(MembershipEvent::Lost(partitions)) => {
                tracing::warn!(?partitions, "partitions lost: the group did not hear from this worker in time");
                shared.forget_unknown(&partitions);
                for life in partitions.iter().filter_map(|partition| lives.remove(partition)) {
                    let _ = life.end.send(Release::Drop);
                }
            }
            HostingChange::Standbys(planned) => {
                let is_over = |(partition, life): &(&u32, &HostingTask)| {
                    *life.role.borrow() == Role::Standby && !planned.contains(partition)
                };
                let over: Vec<u32> = lives.iter().filter(is_over).map(|(partition, _)| *partition).collect();
                for life in over.iter().filter_map(|partition| lives.remove(partition)) {
                    let _ = life.end.send(Release::Drop);
                }
                for partition in planned {
                    lives.entry(partition).or_insert_with(|| HostingTask::start(&shared, partition, Role::Standby));
                }
            }
        }
    }
}
