//! The services and nodes of the cluster.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use tally_services::{Kafka, KafkaOptions, Postgres, PostgresSettings, RedisCluster};

use crate::BenchError;
use crate::server::{Tally, server_binary};
use crate::timer::Timer;

/// How long workers may take to divide the partitions among themselves.
const HOSTED_SECONDS_MAX: f64 = 60.0;

/// The exit code of `tally cluster status` if a partition has no worker.
const NO_WORKER: i32 = 69;

/// Running services, and the settings of nodes.
pub struct BenchCluster {
    kafka: Kafka,
    redis: RedisCluster,
    /// The database.
    pub postgres: Postgres,
    dir: PathBuf,
    settings: String,
}

impl BenchCluster {
    /// Starts the services, and creates topic and tables.
    pub fn start(dir: &Path) -> Result<BenchCluster, BenchError> {
        let kafka = Kafka::start_with(&KafkaOptions { optimized: true, heap_mb: 1_024, ..KafkaOptions::default() });
        let redis = RedisCluster::start();
        let postgres = Postgres::start_with(&PostgresSettings {
            parameters: [("max_connections", "200"), ("fsync", "on"), ("synchronous_commit", "on")]
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .into(),
            ..PostgresSettings::default()
        });
        let nodes: Vec<String> = redis.addresses().iter().map(|address| format!("\"{address}\"")).collect();
        let settings = format!(
            "[namespaces.exact]\nconsistency = \"exact\"\n[namespaces.accurate]\nconsistency = \"accurate\"\n\
             [cluster]\nkafka = \"{}\"\npartitions = 8\nreplication = 1\nredis = [{}]\npostgres = \"{}\"\n\
             worker = \"127.0.0.1:0\"\npersist_every = \"5s\"\n",
            kafka.bootstrap_servers(),
            nodes.join(", "),
            postgres.url(),
        );
        let cluster = BenchCluster { kafka, redis, postgres, dir: dir.to_owned(), settings };
        cluster.tally(&["cluster", "init"], 0)?;
        Ok(cluster)
    }

    /// A port of Redis Cluster.
    pub fn redis_port(&self) -> u16 {
        let first = self.redis.addresses().into_iter().next().unwrap_or_default();
        first.rsplit(':').next().and_then(|port| port.parse().ok()).unwrap_or_default()
    }

    fn config(&self, standbys: u32) -> Result<PathBuf, BenchError> {
        let path = self.dir.join(format!("standbys-{standbys}.toml"));
        let text = format!("{}standbys = {standbys}\n", self.settings);
        std::fs::write(&path, text).map_err(|error| BenchError::new(&format!("{}: {error}", path.display())))?;
        Ok(path)
    }

    /// Starts a node with one role.
    pub fn node(&self, role: &str, standbys: u32) -> Result<Tally, BenchError> {
        let config = self.config(standbys)?;
        Tally::start_with(|command| {
            command.args(["--roles", role, "--config"]).arg(&config).current_dir(&self.dir);
        })
    }

    /// Runs a command of `tally` and returns what it prints.
    fn tally(&self, args: &[&str], standbys: u32) -> Result<String, BenchError> {
        let config = self.config(standbys)?;
        let output = Command::new(server_binary()?).args(args).arg("--config").arg(config).output();
        let output = output.map_err(|error| BenchError::new(&error))?;
        if !matches!(output.status.code(), Some(0 | NO_WORKER)) {
            return Err(BenchError::new(&format!("{args:?}: {}", String::from_utf8_lossy(&output.stderr))));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// The status of every partition.
    fn partitions(&self) -> Result<Vec<serde_json::Value>, BenchError> {
        let status = self.tally(&["cluster", "status", "-o", "json"], 0)?;
        let status: serde_json::Value = serde_json::from_str(&status).map_err(|error| BenchError::new(&error))?;
        Ok(status["partitions"].as_array().cloned().unwrap_or_default())
    }

    /// Waits until everything in the journal is in PostgreSQL.
    pub fn wait_until_persisted(&self) -> Result<(), BenchError> {
        let timer = Timer::start();
        loop {
            let partitions = self.partitions()?;
            let is_persisted = |partition: &serde_json::Value| partition["persisted"] == partition["end"];
            if !partitions.is_empty() && partitions.iter().all(is_persisted) {
                return Ok(());
            }
            if timer.seconds() > 3.0 * HOSTED_SECONDS_MAX {
                return Err(BenchError::new(&format!("not persisted: {partitions:?}")));
            }
            thread::park_timeout(Duration::from_millis(500));
        }
    }

    /// Bytes of the journal on the broker's disk.
    pub fn journal_bytes(&self) -> Result<f64, BenchError> {
        let mut bytes = 0;
        let mut dirs = vec![self.kafka.dir().to_owned()];
        while let Some(dir) = dirs.pop() {
            for entry in std::fs::read_dir(dir).map_err(|error| BenchError::new(&error))? {
                let entry = entry.map_err(|error| BenchError::new(&error))?;
                let path = entry.path();
                let is_journal =
                    path.to_string_lossy().contains("/tally-") && path.extension().is_some_and(|end| end == "log");
                match entry.metadata() {
                    Ok(found) if found.is_dir() => dirs.push(path),
                    Ok(found) if is_journal => bytes += found.len(),
                    // Kafka may have removed it.
                    Ok(_) | Err(_) => {}
                }
            }
        }
        Ok(bytes as f64)
    }

    /// Bytes of a counter in PostgreSQL.
    pub fn row_bytes(&self) -> Result<f64, BenchError> {
        let sql = "SELECT pg_total_relation_size('counters')::float / greatest(count(*), 1) FROM counters";
        let bytes = self.postgres.psql(sql).map_err(|error| BenchError::new(&error))?;
        bytes.trim().parse().map_err(|error| BenchError::new(&error))
    }

    /// Waits until every partition has a worker, and returns the addresses of the workers.
    pub fn wait_until_hosted(&self) -> Result<Vec<String>, BenchError> {
        let timer = Timer::start();
        loop {
            let partitions = self.partitions()?;
            if !partitions.is_empty() && partitions.iter().all(|partition| partition["health"] == "ok") {
                let owner = |partition: &serde_json::Value| Some(partition["owner"].as_str()?.to_owned());
                return Ok(partitions.iter().filter_map(owner).collect());
            }
            if timer.seconds() > HOSTED_SECONDS_MAX {
                return Err(BenchError::new(&format!("partitions without a worker: {partitions:?}")));
            }
            thread::park_timeout(Duration::from_millis(200));
        }
    }
}
