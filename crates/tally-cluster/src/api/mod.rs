//! An API node: takes calls, combines them per partition, and answers from Kafka, workers and Redis.

mod ask;
mod best_effort;
mod clocks;
mod estimate;
mod export;
mod lane;
mod read_counter;
mod reads;
mod routes;
mod served;
mod shared_reads;
mod sources;
mod writes;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use best_effort::Registrations;
use clocks::PartitionClocks;
use estimate::Estimates;
use futures_util::FutureExt;
use lane::Lane;
use routes::PartitionRoutes;
use served::ServedPositions;
use shared_reads::SharedReads;
use sources::ReadSources;
use tally_core::batch::Events;
use tally_core::key::{Key, KeyRef};
use tally_core::ledger::LedgerEntry;
use tally_core::outcome::{Reads, Receipt, Token};
use tally_core::reading::{Reading, Stats};
use tally_core::surface::{
    CounterSnapshot, Engine, EngineError, Grouping, Health, KeyPage, Metric, MetricValue, Page, PageRequest,
    ReadOptions, RequestCursor, RequestPage, SubmitOptions,
};
use tokio::sync::watch;

use crate::kafka::{Appender, NO_BROKER_TIME, TopicError, topic};
use crate::limits::{CLOSE_WAIT_MS, SILENT_AFTER_MS};
use crate::partitioner::partition_of;
use crate::policy::ShardPolicies;
use crate::postgres::PgError;
use crate::rpc::{LinkSecurity, RpcClient};
use crate::tls::TlsClient;
use crate::worker::Services;

/// Why an API node did not start.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// Kafka.
    #[error(transparent)]
    Journal(#[from] TopicError),
    /// PostgreSQL.
    #[error(transparent)]
    Store(#[from] PgError),
    /// The topic is not the one that PostgreSQL has the state of.
    #[error(
        "the topic `{topic}` has {found} partitions, but PostgreSQL has the state of {expected}. Check `topic` and `postgres` \
         in [cluster]. If partitions were added to the topic, see \"The topic got more partitions\" in \
         docs/cluster-operations.md: the number cannot be changed, because counters would move to other partitions"
    )]
    Partitions {
        /// The topic.
        topic: String,
        /// Its number of partitions.
        found: u32,
        /// The number that `tally cluster init` was run with.
        expected: u32,
    },
}

/// The cluster engine of an API node.
pub struct Cluster {
    partitions: u32,
    seed: u64,
    services: Services,
    lanes: Vec<Arc<Lane>>,
    workers: Arc<RpcClient>,
    routes: Arc<PartitionRoutes>,
    estimates: Estimates,
    registrations: Registrations,
    policies: Arc<ShardPolicies>,
    /// Why this node must be restarted.
    broken: watch::Sender<Option<String>>,
    clocks: Arc<PartitionClocks>,
    sources: ReadSources,
    /// By partition.
    served: Vec<ServedPositions>,
    shared_reads: SharedReads,
    closing: AtomicBool,
    /// Calls that are not answered yet.
    calls: watch::Sender<usize>,
}

/// A call that is not answered yet.
struct OpenCall<'a>(&'a Cluster);

impl Drop for OpenCall<'_> {
    fn drop(&mut self) {
        self.0.calls.send_modify(|calls| *calls -= 1);
    }
}

impl Cluster {
    /// Connects to the services on the current runtime.
    pub async fn start(
        services: Services,
        security: impl Into<LinkSecurity<TlsClient>>,
        policies: ShardPolicies,
    ) -> Result<Cluster, ApiError> {
        let cluster = services.pg.identify(&services.kafka.topic).await?;
        let partitions = checked_partitions(&services).await?;
        let appender = Arc::new(Appender::new(&services.kafka)?);
        let clocks = Arc::new(PartitionClocks::new(partitions));
        tokio::spawn(clocks::learn_times(Arc::downgrade(&clocks), Arc::clone(&appender)));
        let broken = watch::Sender::new(None);
        let lanes = (0..partitions).map(|partition| Lane::start(partition, Arc::clone(&appender), broken.clone()));
        let lanes: Vec<Arc<Lane>> = lanes.collect();
        let routes = PartitionRoutes::start(
            partitions,
            Arc::clone(&services.totals),
            Arc::clone(&services.pg),
            Arc::clone(&clocks),
        );
        Ok(Cluster {
            partitions,
            seed: crate::seed(),
            lanes,
            broken,
            workers: Arc::new(RpcClient::new(security, cluster)),
            routes,
            estimates: Estimates::default(),
            registrations: Registrations::default(),
            policies: Arc::new(policies),
            clocks,
            sources: ReadSources::default(),
            served: ServedPositions::of_partitions(partitions),
            shared_reads: SharedReads::default(),
            services,
            closing: AtomicBool::new(false),
            calls: watch::Sender::new(0),
        })
    }

    /// Refuses new calls, and resolves once those that were accepted are answered, or after a bounded time.
    pub async fn close(&self) {
        self.closing.store(true, Ordering::Release);
        self.lanes.iter().for_each(|lane| lane.close());
        let mut calls = self.calls.subscribe();
        let answered = calls.wait_for(|calls| *calls == 0);
        if tokio::time::timeout(Duration::from_millis(CLOSE_WAIT_MS), answered).await.is_err() {
            tracing::warn!("closing with calls that have no answer yet");
        }
    }

    /// Counts a call until it is answered.
    fn begin(&self) -> Result<OpenCall<'_>, EngineError> {
        self.calls.send_modify(|calls| *calls += 1);
        let call = OpenCall(self);
        if self.closing.load(Ordering::Acquire) { Err(EngineError::Closing) } else { Ok(call) }
    }

    /// Number of partitions.
    #[must_use]
    pub fn partitions(&self) -> u32 {
        self.partitions
    }

    fn partition_of(&self, key: KeyRef<'_>) -> u32 {
        partition_of(key, self.partitions)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.lanes.iter().for_each(|lane| lane.close());
    }
}

/// The number of partitions, which topic and store must agree on.
pub async fn checked_partitions(services: &Services) -> Result<u32, ApiError> {
    let found = topic::check(&services.kafka).await?;
    let expected = services.pg.partitions().await?.len() as u32;
    if expected != found {
        return Err(ApiError::Partitions { topic: services.kafka.topic.clone(), found, expected });
    }
    Ok(found)
}

impl Cluster {
    /// The time since the worker of a partition last published; `None` if that is not known.
    fn silence_ms(&self, partition: u32) -> Option<u64> {
        let published_at = self.routes.get(partition).published_at.filter(|_| self.clocks.is_known(partition))?;
        Some(self.clocks.now(partition).since(published_at))
    }

    /// The number of partitions whose worker has not published for a long time.
    fn silent_partitions(&self) -> usize {
        let is_silent = |silence: Option<u64>| silence.is_none_or(|silence| silence > SILENT_AFTER_MS);
        (0..self.partitions).filter(|partition| is_silent(self.silence_ms(*partition))).count()
    }
}

/// Calls are boxed, because their futures are large and would be part of the futures of all callers.
impl Engine for Cluster {
    fn events(&self) -> Events {
        Events::new(self.seed)
    }

    async fn submit(&self, events: Events, options: SubmitOptions) -> Result<Receipt, EngineError> {
        let _call = self.begin()?;
        self.write(events, options.consistency).boxed().await
    }

    async fn read_events(&self, events: Events, options: ReadOptions) -> Result<Reads, EngineError> {
        let _call = self.begin()?;
        self.read_batch(&events, &options).boxed().await
    }

    async fn durable(&self, _: Token) -> Result<(), EngineError> {
        // Only appended batches have tokens, and Kafka has those. Best-effort increments have none.
        Ok(())
    }

    async fn read(&self, keys: Vec<Key>, options: ReadOptions) -> Result<Vec<Reading>, EngineError> {
        let _call = self.begin()?;
        let counters = self.read_counters(&keys, &options).boxed().await?;
        Ok(counters.iter().map(read_counter::ReadCounter::reading).collect())
    }

    async fn stats(&self, key: Key, options: ReadOptions) -> Result<Stats, EngineError> {
        let _call = self.begin()?;
        let is_sharded = self.policies.of(key.as_ref()).is_some();
        let counters = self.read_counters(std::slice::from_ref(&key), &options).boxed().await?;
        let counter = counters.first().ok_or_else(|| EngineError::Unavailable("no answer".to_owned()))?;
        let stats = counter.stats();
        if is_sharded { self.with_shards(key.as_ref(), stats).await } else { Ok(stats) }
    }

    async fn list(&self, page: PageRequest) -> Result<Page, EngineError> {
        let _call = self.begin()?;
        self.list_stored(&page).await
    }

    async fn ledger(&self, key: Key, after: u64, limit: usize) -> Result<Vec<LedgerEntry>, EngineError> {
        let _call = self.begin()?;
        self.read_ledger(key, after, limit).await
    }

    async fn count(&self, options: ReadOptions) -> Result<u64, EngineError> {
        let _call = self.begin()?;
        self.count_counters(&options).await
    }

    async fn sample(&self, number: u64) -> Result<Option<Key>, EngineError> {
        let _call = self.begin()?;
        self.services.pg.sample(number).await.map_err(|error| EngineError::Unavailable(error.to_string()))
    }

    async fn sync_store(&self) -> Result<(), EngineError> {
        let _call = self.begin()?;
        self.persist_all().await
    }

    async fn all_keys(&self, after: Option<Key>, limit: usize) -> Result<KeyPage, EngineError> {
        let _call = self.begin()?;
        self.stored_keys(after.as_ref(), limit).await
    }

    async fn snapshots(&self, keys: Vec<Key>) -> Result<Vec<CounterSnapshot>, EngineError> {
        let _call = self.begin()?;
        self.read_snapshots(&keys).await
    }

    async fn requests(&self, after: RequestCursor, limit: usize) -> Result<RequestPage, EngineError> {
        let _call = self.begin()?;
        self.stored_requests(after, limit).await
    }

    fn routes(&self) -> Vec<Key> {
        self.route_keys()
    }

    fn keeps_all_together(&self) -> bool {
        self.partitions == 1 && self.policies.is_empty()
    }

    fn grouping(&self, keys: &[&[u8]]) -> Grouping {
        let is_sharded = |key: &&[u8]| KeyRef::new(key).is_ok_and(|key| self.policies.of(key).is_some());
        if keys.iter().any(is_sharded) {
            return Grouping::BestEffort;
        }
        let mut partitions = keys.iter().filter_map(|key| Some(self.partition_of(KeyRef::new(key).ok()?)));
        let first = partitions.next();
        match partitions.all(|partition| Some(partition) == first) {
            true => Grouping::Possible,
            false => Grouping::AcrossPartitions,
        }
    }

    fn health(&self) -> Health {
        if self.closing.load(Ordering::Acquire) {
            return Health::Closing;
        }
        if let Some(why) = self.broken.borrow().clone() {
            return Health::Poisoned(why);
        }
        if self.lanes.iter().any(|lane| lane.is_untimed()) {
            return Health::Degraded { writes: false, why: NO_BROKER_TIME.to_owned() };
        }
        let failing = self.lanes.iter().filter(|lane| lane.is_failing()).count();
        let silent = self.silent_partitions();
        match (failing, silent) {
            (0, 0) => Health::Ready,
            (0, silent) => Health::Degraded {
                writes: true,
                why: format!(
                    "no worker answers for {silent} of {} partitions: eventual and best-effort calls work, others wait",
                    self.partitions
                ),
            },
            (failing, _) => Health::Degraded {
                writes: false,
                why: format!(
                    "appends to Kafka fail for {failing} of {} partitions; check the brokers",
                    self.partitions
                ),
            },
        }
    }

    async fn poisoned(&self) -> String {
        // No failure of a service requires a restart, only a bug does.
        let mut broken = self.broken.subscribe();
        match broken.wait_for(Option::is_some).await.map(|why| why.clone()) {
            Ok(Some(why)) => why,
            Ok(None) | Err(_) => std::future::pending().await,
        }
    }

    fn metrics(&self) -> Vec<Metric> {
        let failing = self.lanes.iter().filter(|lane| lane.is_failing()).count();
        let waiting: usize = self.lanes.iter().map(|lane| lane.waiting_events()).sum();
        vec![
            Metric {
                name: "tally_partitions",
                help: "Partitions of the cluster",
                value: MetricValue::Gauge(f64::from(self.partitions)),
            },
            Metric {
                name: "tally_cluster_partitions_failing",
                help: "Partitions whose last append to Kafka failed",
                value: MetricValue::Gauge(failing as f64),
            },
            Metric {
                name: "tally_append_queue_events",
                help: "Events waiting in this node for the acknowledgement of Kafka",
                value: MetricValue::Gauge(waiting as f64),
            },
            self.sources.metric(),
        ]
    }
}
