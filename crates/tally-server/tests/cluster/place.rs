//! Clusters for tests, and a load whose sum is known.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};

use serde_json::{Value, json};
use tally_services::{Kafka, Postgres, RedisCluster};
use tempfile::TempDir;

use crate::harness::{self, Client, Server, run, tally, wait_for};

/// Namespaces with stronger consistency than the default.
pub const EXACT: &str =
    "[namespaces.exact]\nconsistency = \"exact\"\n[namespaces.accurate]\nconsistency = \"accurate\"\n";

/// Services of this program. Each test has its own topic and database.
pub struct Services {
    pub kafka: Kafka,
    pub redis: RedisCluster,
    pub postgres: Postgres,
    names: AtomicU32,
}

impl Services {
    /// Services that the tests of this program share, and must leave as they were.
    pub fn shared() -> &'static Services {
        static SHARED: OnceLock<Services> = OnceLock::new();
        SHARED.get_or_init(|| Services::start(1))
    }

    /// Services that tests break, one at a time: the guard keeps the others waiting.
    pub fn breakable() -> (&'static Services, MutexGuard<'static, ()>) {
        static BREAKABLE: OnceLock<Services> = OnceLock::new();
        static TURN: Mutex<()> = Mutex::new(());
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        (BREAKABLE.get_or_init(|| Services::start(3)), turn)
    }

    fn start(brokers: usize) -> Services {
        eprintln!("starting Kafka ({brokers}), Redis Cluster and PostgreSQL on loopback");
        Services {
            kafka: Kafka::start(brokers),
            redis: RedisCluster::start(),
            postgres: Postgres::start(),
            names: AtomicU32::new(0),
        }
    }
}

/// A topic, a database, and a configuration file that names them.
pub struct TestCluster {
    dir: TempDir,
    database: String,
    config: PathBuf,
}

impl TestCluster {
    /// A new topic and database on the shared services.
    pub fn new(namespaces: &str) -> TestCluster {
        TestCluster::on(Services::shared(), 1, namespaces)
    }

    /// A new topic and database.
    pub fn on(services: &Services, replication: u32, namespaces: &str) -> TestCluster {
        let name = format!("tally_{}", services.names.fetch_add(1, Ordering::Relaxed));
        services.postgres.psql(&format!("CREATE DATABASE {name}")).unwrap();
        let url = services.postgres.url();
        let database = format!("{}/{name}", url.rsplit_once('/').unwrap().0);
        let dir = tempfile::tempdir().unwrap();
        let text = format!(
            "[cluster]\nkafka = \"{}\"\ntopic = \"{name}\"\npartitions = 4\nreplication = {replication}\nredis = {}\npostgres = \
             \"{database}\"\nworker = \"127.0.0.1:0\"\nrollup_every = \"100ms\"\npersist_every = \"300ms\"\n{namespaces}",
            services.kafka.bootstrap_servers(),
            json!(services.redis.addresses()),
        );
        let config = harness::write(dir.path().join("tally.toml"), &text);
        let cluster = TestCluster { dir, database, config };
        let init = run(tally().args(["cluster", "init", "--config"]).arg(&cluster.config));
        assert_eq!(init.code, 0, "{}", init.err);
        cluster
    }

    /// A node with one role.
    pub fn node(&self, role: &str) -> Server {
        Server::start_with(self.node_command(role))
    }

    /// The command that starts a node with one role.
    pub fn node_command(&self, role: &str) -> Command {
        let mut command = tally();
        command.args(["serve", "--http", "127.0.0.1:0", "--resp", "127.0.0.1:0", "--roles", role, "--config"]);
        command.arg(&self.config).current_dir(self.dir.path());
        command
    }

    /// The status of every partition.
    pub fn status(&self) -> Vec<Value> {
        let status = run(tally().args(["cluster", "status", "-o", "json", "--config"]).arg(&self.config));
        assert_eq!(status.code, 0, "{}", status.err);
        let status: Value = serde_json::from_str(&status.out).unwrap();
        status["partitions"].as_array().unwrap().clone()
    }

    /// Waits until workers have applied all partitions.
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

/// A load of increments with distinct ids, each sent until it is acknowledged.
pub struct Load {
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    clients: Vec<JoinHandle<BTreeMap<String, u64>>>,
}

impl Load {
    /// Starts clients that alternate between these nodes, so that retries go through another one.
    pub fn start(servers: &[&Server], clients: usize) -> Load {
        let bases: Vec<String> = servers.iter().map(|server| server.base.clone()).collect();
        let (stop, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        static LOADS: AtomicU32 = AtomicU32::new(0);
        let load = LOADS.fetch_add(1, Ordering::Relaxed);
        let start = |client| {
            let (bases, stop, sent) = (bases.clone(), Arc::clone(&stop), Arc::clone(&sent));
            thread::spawn(move || count_until(&bases, (load, client), &stop, &sent))
        };
        let clients = (0..clients as u64).map(start).collect();
        Load { stop, sent, clients }
    }

    /// Waits until this many more are acknowledged.
    pub fn wait_for_more(&self, more: u64) {
        let wanted = self.sent.load(Ordering::Relaxed) + more;
        wait_for("load", || {
            let sent = self.sent.load(Ordering::Relaxed);
            if sent >= wanted { Ok(()) } else { Err(format!("{sent} sent")) }
        });
    }

    /// Stops, and returns what each counter got.
    pub fn stop(self) -> BTreeMap<String, u64> {
        self.stop.store(true, Ordering::Relaxed);
        let mut all = BTreeMap::new();
        for client in self.clients {
            for (key, count) in client.join().unwrap() {
                *all.entry(key).or_insert(0) += count;
            }
        }
        all
    }
}

fn count_until(
    bases: &[String],
    (load, client): (u32, u64),
    stop: &AtomicBool,
    sent: &AtomicU64,
) -> BTreeMap<String, u64> {
    let mut counted = BTreeMap::new();
    let mut connections: Vec<Client> = bases.iter().map(|base| Client::new(base)).collect();
    let mut number = 0u64;
    while !stop.load(Ordering::Relaxed) {
        let key = format!("load:{}", (client + number) % 7);
        let body = json!({ "amount": 1, "request_id": format!("{load}-{client}-{number}") }).to_string();
        let path = format!("/api/v1/counters/{key}/increment");
        let mut at = number as usize % connections.len();
        wait_for("an acknowledgement", || {
            at = (at + 1) % connections.len();
            match connections[at].try_send("POST", &path, &[], &body) {
                Ok(answer) if answer.status == 200 => Ok(()),
                Ok(answer) => {
                    assert_eq!(answer.status, 503, "{}", answer.text);
                    Err(answer.text)
                }
                Err(error) => {
                    connections[at] = Client::new(&bases[at]);
                    Err(error.to_string())
                }
            }
        });
        *counted.entry(key).or_insert(0) += 1;
        sent.fetch_add(1, Ordering::Relaxed);
        number += 1;
    }
    counted
}
