//! Clusters for tests.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::{Value, json};
use tally_services::{Kafka, Postgres, RedisCluster};
use tempfile::TempDir;

use crate::harness::{self, Ran, Server, run, tally, wait_for};

/// Namespaces with stronger consistency than the default.
pub const EXACT: &str =
    "[namespaces.exact]\nconsistency = \"exact\"\n[namespaces.accurate]\nconsistency = \"accurate\"\n";

/// The services of a test. Those that it breaks are its own, the others are shared by all tests of this program.
#[derive(Clone, Copy)]
pub struct Services<'a> {
    pub kafka: &'a Kafka,
    pub redis: &'a RedisCluster,
    pub postgres: &'a Postgres,
}

impl Services<'static> {
    /// Services that tests must leave as they were.
    pub fn shared() -> Services<'static> {
        static SHARED: OnceLock<(Kafka, RedisCluster, Postgres)> = OnceLock::new();
        let (kafka, redis, postgres) = SHARED.get_or_init(|| {
            eprintln!("starting Kafka, Redis Cluster and PostgreSQL on loopback");
            (Kafka::start(1), RedisCluster::start(), Postgres::start())
        });
        Services { kafka, redis, postgres }
    }
}

/// A topic, a database, and a configuration file that names them.
pub struct TestCluster {
    dir: TempDir,
    pub database: String,
    /// The configuration of its nodes.
    pub config: PathBuf,
}

impl TestCluster {
    /// A new topic and database on the shared services.
    pub fn new(namespaces: &str) -> TestCluster {
        TestCluster::on(Services::shared(), namespaces)
    }

    /// A new topic and database.
    pub fn on(services: Services<'_>, namespaces: &str) -> TestCluster {
        static NAMES: AtomicU32 = AtomicU32::new(0);
        let name = format!("tally_{}", NAMES.fetch_add(1, Ordering::Relaxed));
        services.postgres.psql(&format!("CREATE DATABASE {name}")).unwrap();
        let url = services.postgres.url();
        let database = format!("{}/{name}", url.rsplit_once('/').unwrap().0);
        let dir = tempfile::tempdir().unwrap();
        let text = format!(
            "[cluster]\nkafka = \"{}\"\ntopic = \"{name}\"\npartitions = 4\nreplication = {}\nredis = {}\npostgres = \
             \"{database}\"\nworker = \"127.0.0.1:0\"\nrollup_every = \"100ms\"\npersist_every = \"300ms\"\n{namespaces}",
            services.kafka.bootstrap_servers(),
            services.kafka.pids().len(),
            json!(services.redis.addresses()),
        );
        let config = harness::write(dir.path().join("tally.toml"), &text);
        let cluster = TestCluster { dir, database, config };
        let init = cluster.init();
        assert_eq!(init.code, 0, "{}", init.err);
        cluster
    }

    /// Creates the topic and the tables, unless they exist.
    pub fn init(&self) -> Ran {
        run(tally().args(["cluster", "init", "--config"]).arg(&self.config))
    }

    /// A node with one role.
    pub fn node(&self, role: &str) -> Server {
        Server::start_with(self.command(role))
    }

    /// The command that starts a node.
    pub fn command(&self, role: &str) -> Command {
        let mut command = tally();
        command.args(["serve", "--http", "127.0.0.1:0", "--resp", "127.0.0.1:0", "--roles", role, "--config"]);
        command.arg(&self.config).current_dir(self.dir.path());
        command
    }

    /// The status of every partition.
    pub fn status(&self) -> Vec<Value> {
        let status = run(tally().args(["cluster", "status", "-o", "json", "--config"]).arg(&self.config));
        // 69 if a partition has no worker.
        assert!(matches!(status.code, 0 | 69), "{}", status.err);
        let status: Value = serde_json::from_str(&status.out).unwrap();
        status["partitions"].as_array().unwrap().clone()
    }

    /// Waits until every partition has a worker that has caught up.
    pub fn wait_until_hosted(&self) {
        wait_for("a worker for every partition", || {
            let status = self.status();
            let all_ok = status.iter().all(|partition| partition["health"] == "ok");
            if all_ok { Ok(()) } else { Err(format!("{status:?}")) }
        });
    }

    /// The answer of PostgreSQL.
    pub fn sql(&self, sql: &str) -> String {
        let name = self.database.rsplit_once('/').unwrap().1;
        let out = std::process::Command::new("psql").args(["-X", "-q", "-A", "-t", "-c", sql, &self.database]).output();
        let out = out.unwrap();
        assert!(out.status.success(), "{name}: {}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).unwrap().trim().to_owned()
    }

    /// Asserts that every counter has exactly what was counted: read exactly, in PostgreSQL, and in Redis after a while.
    pub fn assert_counted(&self, counted: &BTreeMap<String, u64>, server: &Server) {
        for (key, count) in counted {
            let exact = wait_for("an exact reading", || {
                let read = server.send("GET", &format!("/api/v1/counters/{key}/exact"), "");
                if read.status == 200 { Ok(read.json["value"].as_u64().unwrap()) } else { Err(read.text) }
            });
            assert_eq!(exact, *count, "{key}");
        }
        wait_for("PostgreSQL to have all", || {
            let mut stored = BTreeMap::new();
            for line in self.sql("SELECT name || ' ' || value FROM counters").lines() {
                let (name, value) = line.split_once(' ').unwrap();
                stored.insert(name.to_owned(), value.parse::<u64>().unwrap());
            }
            if stored == *counted { Ok(()) } else { Err(format!("{stored:?} instead of {counted:?}")) }
        });
        wait_for("Redis to converge", || {
            for (key, count) in counted {
                let read = server.send("GET", &format!("/api/v1/counters/{key}"), "").json;
                if read["value"] != json!(count) {
                    return Err(read.to_string());
                }
            }
            Ok(())
        });
    }
}
