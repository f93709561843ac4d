//! Starts and stops the cluster roles of this process.

use std::sync::Arc;
use std::time::Duration;

use tally_cluster::api::{ApiError, Cluster};
use tally_cluster::limits::SHARDS_IDLE_S;
use tally_cluster::postgres::{Pg, PgError};
use tally_cluster::redis::{RedisError, RedisSettings, Totals};
use tally_cluster::worker::{Services, Worker, WorkerError, WorkerSettings};
use tally_core::surface::{Engine, Metric};

use crate::config::ClusterConfig;
use crate::policy::Policies;

/// Why a node of a cluster did not start.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// The API node did not start.
    #[error(transparent)]
    Api(#[from] ApiError),
    /// The worker did not start.
    #[error(transparent)]
    Worker(#[from] WorkerError),
    /// PostgreSQL.
    #[error(transparent)]
    Store(#[from] PgError),
    /// Redis.
    #[error(transparent)]
    Totals(#[from] RedisError),
}

/// The running parts of a node.
pub struct ClusterNode {
    /// The API node. A worker has one too, so that health and metrics are served everywhere.
    pub cluster: Arc<Cluster>,
    worker: Option<Worker>,
}

impl ClusterNode {
    /// Connects to the services and starts the roles of this process.
    pub async fn start(
        config: &ClusterConfig,
        policies: &Policies,
        memory_bytes: u64,
    ) -> Result<ClusterNode, ClusterError> {
        let services = services(config).await?;
        let cluster =
            Arc::new(Cluster::start(services.clone(), config.to_workers.clone(), policies.shards().clone()).await?);
        let worker = if config.roles.worker {
            let settings = WorkerSettings {
                listen: config.worker,
                advertised: config.advertise.clone(),
                security: config.from_api_nodes.clone(),
                // The rest is for connections, buffers and what the allocator keeps.
                memory_bytes: (memory_bytes / 2) as usize,
                partitions: cluster.partitions(),
                rollup_every: policies.rollup_every(config.rollup_every),
                persist_every: policies.persist_every(config.persist_every),
                policies: policies.shards().clone(),
                shards_idle: Duration::from_secs(SHARDS_IDLE_S),
                standbys: config.standbys,
                drift_warn: config.drift_warn,
            };
            Some(Worker::start(settings, services).await?)
        } else {
            None
        };
        Ok(ClusterNode { cluster, worker })
    }

    /// The metrics of its roles.
    pub fn metrics(&self) -> Vec<Metric> {
        let mut metrics = self.cluster.metrics();
        metrics.extend(self.worker.iter().flat_map(Worker::metrics));
        metrics
    }

    /// Appends what was accepted, persists, and hands partitions over.
    pub async fn stop(&self) {
        self.cluster.close().await;
        if let Some(worker) = &self.worker {
            worker.stop().await;
        }
    }
}

/// Handles to the services of a cluster.
pub async fn services(config: &ClusterConfig) -> Result<Services, ClusterError> {
    let redis = RedisSettings {
        username: config.redis_user.clone(),
        password: config.redis_password.clone(),
        tls: config.redis_tls.clone(),
        prefix: config.kafka.topic.clone(),
        ..RedisSettings::new(config.redis.clone())
    };
    Ok(Services {
        kafka: config.kafka.clone(),
        pg: Arc::new(Pg::new(&config.postgres)?),
        totals: Arc::new(Totals::connect(&redis).await?),
    })
}
