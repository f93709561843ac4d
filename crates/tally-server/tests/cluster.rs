//! A cluster of real processes on real Kafka, Redis Cluster and PostgreSQL, some of which are killed.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::disallowed_methods)]

mod harness;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread;

use harness::wire::{Reply, Resp};
use harness::{Client, Server, run, tally, wait_for};
use serde_json::{Value, json};
use tally_services::{Kafka, Postgres, RedisCluster};
use tempfile::TempDir;

/// Services of this program. Each test has its own topic and database.
struct Services {
    kafka: Kafka,
    redis: RedisCluster,
    postgres: Postgres,
    names: AtomicU32,
}

impl Services {
    fn shared() -> &'static Services {
        static SHARED: OnceLock<Services> = OnceLock::new();
        SHARED.get_or_init(|| {
            eprintln!("starting Kafka, Redis Cluster and PostgreSQL on loopback");
            Services {
                kafka: Kafka::start(1),
                redis: RedisCluster::start(),
                postgres: Postgres::start(),
                names: AtomicU32::new(0),
            }
        })
    }
}

/// A topic, a database, and a configuration file that names them.
struct TestCluster {
    dir: TempDir,
    database: String,
    config: PathBuf,
}

impl TestCluster {
    fn new(namespaces: &str) -> TestCluster {
        let services = Services::shared();
        let name = format!("tally_{}", services.names.fetch_add(1, Ordering::Relaxed));
        services.postgres.psql(&format!("CREATE DATABASE {name}")).unwrap();
        let url = services.postgres.url();
        let database = format!("{}/{name}", url.rsplit_once('/').unwrap().0);
        let dir = tempfile::tempdir().unwrap();
        let text = format!(
            "[cluster]\nkafka = \"{}\"\ntopic = \"{name}\"\npartitions = 4\nreplication = 1\nredis = {}\npostgres = \
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

    fn node(&self, role: &str) -> Server {
        let mut command = tally();
        command.args(["serve", "--http", "127.0.0.1:0", "--resp", "127.0.0.1:0", "--roles", role, "--config"]);
        command.arg(&self.config).current_dir(self.dir.path());
        Server::start_with(command)
    }

    /// The status of every partition.
    fn status(&self) -> Vec<Value> {
        let status = run(tally().args(["cluster", "status", "-o", "json", "--config"]).arg(&self.config));
        assert_eq!(status.code, 0, "{}", status.err);
        let status: Value = serde_json::from_str(&status.out).unwrap();
        status["partitions"].as_array().unwrap().clone()
    }

    fn wait_until_hosted(&self) {
        wait_for("a worker for every partition", || {
            let status = self.status();
            let all_ok = status.iter().all(|partition| partition["health"] == "ok");
            if all_ok { Ok(()) } else { Err(format!("{status:?}")) }
        });
    }

    fn sql(&self, sql: &str) -> String {
        let name = self.database.rsplit_once('/').unwrap().1;
        let out = std::process::Command::new("psql").args(["-X", "-q", "-A", "-t", "-c", sql, &self.database]).output();
        let out = out.unwrap();
        assert!(out.status.success(), "{name}: {}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).unwrap().trim().to_owned()
    }
}

const EXACT: &str = "[namespaces.exact]\nconsistency = \"exact\"\n[namespaces.accurate]\nconsistency = \"accurate\"\n";

#[test]
fn counters_work_over_http_and_redis_through_any_node() {
    let cluster = TestCluster::new(EXACT);
    let (first, second) = (cluster.node("api"), cluster.node("api"));
    let _worker = cluster.node("worker");
    cluster.wait_until_hosted();
    // An eventual write is acknowledged before its outcome is known.
    let written = first.send("POST", "/api/v1/counters/views:1/increment", r#"{"amount": 5, "request_id": "a"}"#);
    assert_eq!(written.status, 200, "{}", written.text);
    assert_eq!((&written.json["exact"], &written.json["duplicate"]), (&json!(false), &Value::Null));
    // Through the other node, with the token or exactly, it is there at once.
    let token = written.json["token"].as_str().unwrap();
    let read = second.send("GET", &format!("/api/v1/counters/views:1?token={token}"), "");
    assert_eq!((read.status, &read.json["value"]), (200, &json!(5)), "{}", read.text);
    let read = second.send("GET", "/api/v1/counters/views:1/exact", "");
    assert_eq!((&read.json["value"], &read.json["exact"]), (&json!(5), &json!(true)));
    // A retry counts once, and says so where the outcome is waited for.
    second.send("POST", "/api/v1/counters/views:1/increment", r#"{"amount": 5, "request_id": "a"}"#);
    assert_eq!(first.send("GET", "/api/v1/counters/views:1/exact", "").json["value"], json!(5));
    let exact = |server: &Server| {
        server.send("POST", "/api/v1/counters/exact:1/increment", r#"{"amount": 2, "request_id": "b"}"#).json
    };
    assert_eq!((&exact(&first)["value"], &exact(&second)["duplicate"]), (&json!(2), &json!(true)));
    // Redis clients.
    let mut redis = Resp::to(&first);
    assert_eq!(redis.say("INCRBY exact:r 7"), Reply::Integer(7));
    assert_eq!(Resp::to(&second).say("GET exact:r").number(), 7);
    assert_eq!(redis.say("SET {t}a 1"), Reply::Simple("OK".into()));
    for (command, reply) in [("MULTI", "OK"), ("INCR {t}a", "QUEUED"), ("INCR {t}b", "QUEUED")] {
        assert_eq!(redis.say(command), Reply::Simple(reply.into()));
    }
    assert_eq!(redis.say("EXEC"), Reply::Many(b'*', vec![Reply::Integer(2), Reply::Integer(1)]));
    // Eventual totals converge, and PostgreSQL has them.
    wait_for("the total in Redis", || {
        let read = second.send("GET", "/api/v1/counters/views:1", "").json;
        if read["value"] == json!(5) { Ok(()) } else { Err(read.to_string()) }
    });
    wait_for("the row in PostgreSQL", || {
        let value = cluster.sql("SELECT value FROM counters WHERE name = 'views:1'");
        if value == "5" { Ok(()) } else { Err(value) }
    });
}

#[test]
fn transactions_over_several_partitions_are_refused_as_in_redis_cluster() {
    let cluster = TestCluster::new("");
    let api = cluster.node("api");
    let _worker = cluster.node("worker");
    cluster.wait_until_hosted();
    let mut redis = Resp::to(&api);
    redis.say("MULTI");
    for number in 0..20 {
        redis.say(&format!("INCR spread:{number}"));
    }
    assert!(matches!(redis.say("EXEC"), Reply::Error(text) if text.starts_with("CROSSSLOT")));
    assert_eq!(redis.say("EXISTS spread:1"), Reply::Integer(0));
}

/// Sends increments with distinct ids, each until it is acknowledged, and returns how many each counter got.
fn count_with_retries(
    servers: &[String],
    clients: usize,
    stop: &AtomicBool,
    sent: &AtomicU64,
) -> BTreeMap<String, u64> {
    thread::scope(|scope| {
        let clients: Vec<_> = (0..clients)
            .map(|client| {
                scope.spawn(move || {
                    let mut counted = BTreeMap::new();
                    let mut connections: Vec<Client> = servers.iter().map(|base| Client::new(base)).collect();
                    let mut number = 0u64;
                    while !stop.load(Ordering::Relaxed) {
                        let key = format!("load:{}", (client as u64 + number) % 7);
                        let body = json!({ "amount": 1, "request_id": format!("{client}-{number}") }).to_string();
                        let path = format!("/api/v1/counters/{key}/increment");
                        // Alternate between nodes, so that retries go through another one.
                        let mut attempt = 0usize;
                        loop {
                            let at = (number as usize + attempt) % connections.len();
                            match connections[at].try_send("POST", &path, &[], &body) {
                                Ok(answer) if answer.status == 200 => break,
                                Ok(answer) => assert_eq!(answer.status, 503, "{}", answer.text),
                                Err(_) => connections[at] = Client::new(&servers[at]),
                            }
                            attempt += 1;
                            assert!(attempt < 10_000, "no answer");
                        }
                        *counted.entry(key).or_insert(0) += 1;
                        sent.fetch_add(1, Ordering::Relaxed);
                        number += 1;
                    }
                    counted
                })
            })
            .collect();
        let mut all = BTreeMap::new();
        for client in clients {
            for (key, count) in client.join().unwrap() {
                *all.entry(key).or_insert(0) += count;
            }
        }
        all
    })
}

#[test]
fn workers_killed_under_load_lose_and_double_nothing() {
    let cluster = TestCluster::new(EXACT);
    let (first, second) = (cluster.node("api"), cluster.node("api"));
    let mut workers = vec![cluster.node("worker"), cluster.node("worker")];
    cluster.wait_until_hosted();
    let (stop, sent) = (AtomicBool::new(false), AtomicU64::new(0));
    let counted = thread::scope(|scope| {
        let bases = [first.base.clone(), second.base.clone()];
        let (stop, sent) = (&stop, &sent);
        let load = scope.spawn(move || count_with_retries(&bases, 6, stop, sent));
        for round in 1..=4u64 {
            wait_for("load", || {
                let sent = sent.load(Ordering::Relaxed);
                if sent >= round * 300 { Ok(()) } else { Err(format!("{sent} sent")) }
            });
            workers.remove(0).kill();
            workers.push(cluster.node("worker"));
        }
        stop.store(true, Ordering::Relaxed);
        load.join().unwrap()
    });
    for (key, count) in &counted {
        let exact = wait_for("an exact reading", || {
            let read = first.send("GET", &format!("/api/v1/counters/{key}/exact"), "");
            if read.status == 200 { Ok(read.json["value"].as_u64().unwrap()) } else { Err(read.text) }
        });
        assert_eq!(exact, *count, "{key}");
    }
    wait_for("PostgreSQL to have all", || {
        let mut stored = BTreeMap::new();
        for line in cluster.sql("SELECT name || ' ' || value FROM counters").lines() {
            let (name, value) = line.split_once(' ').unwrap();
            stored.insert(name.to_owned(), value.parse::<u64>().unwrap());
        }
        if stored == counted { Ok(()) } else { Err(format!("{stored:?} instead of {counted:?}")) }
    });
    wait_for("Redis to converge", || {
        for (key, count) in &counted {
            let read = second.send("GET", &format!("/api/v1/counters/{key}"), "").json;
            if read["value"] != json!(count) {
                return Err(read.to_string());
            }
        }
        Ok(())
    });
}

#[test]
fn a_floor_is_never_crossed_while_workers_die() {
    let cluster = TestCluster::new(EXACT);
    let (first, second) = (cluster.node("api"), cluster.node("api"));
    let mut workers = vec![cluster.node("worker"), cluster.node("worker")];
    cluster.wait_until_hosted();
    const STOCK: u64 = 400;
    let set =
        first.send("PUT", "/api/v1/counters/exact:stock", &json!({ "value": STOCK, "reason": "delivery" }).to_string());
    assert_eq!(set.status, 200, "{}", set.text);
    let sold = AtomicU64::new(0);
    thread::scope(|scope| {
        for client in 0..16usize {
            let (base, sold) = ([&first, &second][client % 2].base.clone(), &sold);
            scope.spawn(move || {
                let mut connection = Client::new(&base);
                for number in 0..60 {
                    let body =
                        json!({ "amount": 1, "floor": 0, "request_id": format!("{client}-{number}") }).to_string();
                    loop {
                        match connection.try_send("POST", "/api/v1/counters/exact:stock/decrement", &[], &body) {
                            Ok(answer) if answer.status == 200 => {
                                sold.fetch_add(1, Ordering::Relaxed);
                                break;
                            }
                            Ok(answer) if answer.status == 409 || answer.status == 422 => break,
                            Ok(answer) => assert_eq!(answer.status, 503, "{}", answer.text),
                            Err(_) => connection = Client::new(&base),
                        }
                    }
                }
            });
        }
        for round in 1..=2u64 {
            wait_for("sales", || {
                let sold = sold.load(Ordering::Relaxed);
                if sold >= round * 100 { Ok(()) } else { Err(format!("{sold} sold")) }
            });
            workers.remove(0).kill();
            workers.push(cluster.node("worker"));
        }
    });
    assert_eq!(sold.load(Ordering::Relaxed), STOCK, "all are sold, and no more");
    let left = wait_for("an exact reading", || {
        let read = first.send("GET", "/api/v1/counters/exact:stock/exact", "");
        if read.status == 200 { Ok(read.json["value"].clone()) } else { Err(read.text) }
    });
    assert_eq!(left, json!(0));
}
