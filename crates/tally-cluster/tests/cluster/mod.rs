//! A cluster for tests: real Kafka, Redis Cluster and PostgreSQL, shared by the tests of one program. Each test has its
//! own topic and database.
#![allow(dead_code, reason = "each test program uses a part")]

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tally_cluster::api::Cluster;
use tally_cluster::kafka::{KafkaSettings, topic};
use tally_cluster::policy::ShardPolicies;
use tally_cluster::postgres::{Pg, PgSettings};
use tally_cluster::redis::{RedisSettings, Totals};
use tally_cluster::worker::{Services, Worker, WorkerSettings};
use tally_services::{Kafka, KafkaOptions, Postgres, PostgresSettings, RedisCluster};
use tokio::runtime::Runtime;

/// Partitions of each topic: enough that calls span several.
pub const PARTITIONS: u32 = 3;

/// The services of this test program.
pub struct TestServices {
    pub kafka: Kafka,
    pub redis: RedisCluster,
    pub postgres: Postgres,
    pub runtime: Runtime,
    names: AtomicU32,
}

impl TestServices {
    /// Starts services that nobody else uses, for tests that break them.
    pub fn start(brokers: usize) -> TestServices {
        TestServices::start_with(&KafkaOptions { brokers, ..KafkaOptions::default() })
    }

    /// Like [`TestServices::start`], with these options for Kafka.
    pub fn start_with(brokers: &KafkaOptions) -> TestServices {
        eprintln!("starting Kafka ({}), Redis Cluster and PostgreSQL on loopback", brokers.brokers);
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build().unwrap();
        TestServices {
            kafka: Kafka::start_with(brokers),
            redis: RedisCluster::start(),
            postgres: Postgres::start_with(&PostgresSettings {
                parameters: vec![("max_connections".to_owned(), "400".to_owned())],
                ..PostgresSettings::default()
            }),
            runtime,
            names: AtomicU32::new(0),
        }
    }

    /// The services that the tests of this program share.
    pub fn shared() -> &'static TestServices {
        static SHARED: OnceLock<TestServices> = OnceLock::new();
        SHARED.get_or_init(|| TestServices::start(1))
    }

    /// A new topic and database.
    pub fn place(&self, replication: u32) -> TestPlace {
        let name = format!("tally_{}", self.names.fetch_add(1, Ordering::Relaxed));
        self.postgres.psql(&format!("CREATE DATABASE {name}")).unwrap();
        let url = self.postgres.url();
        let (base, _) = url.rsplit_once('/').unwrap();
        let place = TestPlace {
            kafka: KafkaSettings {
                brokers: self.kafka.bootstrap_servers(),
                topic: name.clone(),
                ..KafkaSettings::default()
            },
            postgres: format!("{base}/{name}"),
            redis: RedisSettings { prefix: name.clone(), ..RedisSettings::new(self.redis.addresses()) },
            policies: ShardPolicies::default(),
            shards_idle_s: 60,
            rollup_every: Duration::from_millis(100),
        };
        self.runtime.block_on(async {
            let new = topic::NewJournal { partitions: PARTITIONS, replication, retention_ms: 3_600_000 };
            topic::create(&place.kafka, new).await.unwrap();
            let pg = Pg::new(&PgSettings::new(&place.postgres)).unwrap();
            pg.migrate().await.unwrap();
            pg.create_partitions(PARTITIONS).await.unwrap();
        });
        place
    }
}

/// Waits, on a thread of the runtime, until the attempt succeeds.
pub fn wait_until<T, F: Future<Output = Result<T, String>>>(what: &str, mut attempt: impl FnMut() -> F) -> T {
    let wait = || tally_services::wait_for(what, || tokio::runtime::Handle::current().block_on(attempt()));
    tokio::task::block_in_place(wait)
}

/// A topic and a database.
#[derive(Clone)]
pub struct TestPlace {
    pub kafka: KafkaSettings,
    pub postgres: String,
    pub redis: RedisSettings,
    pub policies: ShardPolicies,
    pub shards_idle_s: u64,
    pub rollup_every: Duration,
}

impl TestPlace {
    pub async fn services(&self) -> Services {
        Services {
            kafka: self.kafka.clone(),
            pg: Arc::new(Pg::new(&PgSettings::new(&self.postgres)).unwrap()),
            totals: Arc::new(Totals::connect(&self.redis).await.unwrap()),
        }
    }

    pub async fn worker(&self) -> Worker {
        let settings = WorkerSettings {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            advertised: None,
            security: None.into(),
            memory_bytes: 64 << 20,
            partitions: PARTITIONS,
            rollup_every: self.rollup_every,
            persist_every: Duration::from_millis(500),
            policies: self.policies.clone(),
            shards_idle: Duration::from_secs(self.shards_idle_s),
            standbys: 0,
            drift_warn: 0,
        };
        Worker::start(settings, self.services().await).await.unwrap()
    }

    pub async fn api(&self) -> Cluster {
        Cluster::start(self.services().await, None, self.policies.clone()).await.unwrap()
    }
}
