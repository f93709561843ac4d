//! Workers killed between two of their steps: fetch, apply, publish, persist, commit to the group. A proxy holds back
//! the message that ends a step, so that each kill happens at the intended point.

use serde_json::json;

use crate::harness::{Server, wait_for};
use crate::load::Load;
use crate::place::{Services, TestCluster};
use crate::proxy::Proxy;
use crate::proxy::{Message, Sender};

/// Kafka's API keys.
const FETCH: i16 = 1;
const OFFSET_COMMIT: i16 = 8;

/// Proxies in front of all services of one worker.
pub struct Proxies {
    pub kafka: Proxy,
    pub redis: Proxy,
    pub postgres: Proxy,
}

impl Proxies {
    pub fn start(services: Services<'_>) -> Proxies {
        Proxies {
            kafka: Proxy::of_kafka(&services.kafka.bootstrap_servers()),
            redis: Proxy::of_redis(&services.redis.addresses()),
            postgres: Proxy::of_postgres(services.postgres.port()),
        }
    }
}

impl TestCluster {
    /// A worker that reaches its services through proxies.
    pub fn worker_behind(&self, proxies: &Proxies) -> Server {
        let (user, database) = (self.database.rsplit_once('@').unwrap().0, self.database.rsplit_once('/').unwrap().1);
        let mut command = self.command("worker");
        command
            .env("TALLY_CLUSTER_KAFKA", proxies.kafka.addresses().join(","))
            .env("TALLY_CLUSTER_REDIS", proxies.redis.addresses().join(","))
            .env("TALLY_CLUSTER_POSTGRES", format!("{user}@{}/{database}", proxies.postgres.addresses()[0]));
        Server::start_with(command)
    }
}

/// The setup in which the worker is killed.
struct Scene<'a> {
    cluster: &'a TestCluster,
    api: &'a Server,
    load: &'a Load,
    proxies: &'a Proxies,
}

impl Scene<'_> {
    /// Waits until a read includes everything that was acknowledged before.
    fn wait_until_read(&self, path: &str) {
        let key = "load:0";
        let before = self.api.send("GET", &format!("/api/v1/counters/{key}/exact"), "").json["value"].clone();
        wait_for("a read of what was applied", || {
            let read = self.api.send("GET", &format!("/api/v1/counters/{key}{path}"), "");
            if read.status == 200 && read.json["value"].as_u64() >= before.as_u64() { Ok(()) } else { Err(read.text) }
        });
    }

    /// Sum of the stored positions.
    fn stored(&self) -> u64 {
        self.cluster.sql("SELECT sum(position) FROM partitions").parse().unwrap()
    }
}

/// Connections of PostgreSQL in an open transaction.
fn open_transactions(cluster: &TestCluster) -> u64 {
    let open =
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle in transaction'";
    cluster.sql(open).parse().unwrap()
}

fn begins(message: &Message<'_>) -> bool {
    message.from == Sender::Client && message.contains("BEGIN")
}

/// Kills a worker once `reach` has returned, lets another one take over, and checks what was counted.
fn kill_when(reach: impl FnOnce(&Scene<'_>)) {
    let cluster = TestCluster::new("");
    let proxies = Proxies::start(Services::shared());
    let api = cluster.node("api");
    let other_api = cluster.node("api");
    let worker = cluster.worker_behind(&proxies);
    cluster.wait_until_hosted();
    let load = Load::start(&[&api, &other_api], 4);
    load.wait_for_more(100);
    reach(&Scene { cluster: &cluster, api: &api, load: &load, proxies: &proxies });
    worker.kill();
    // The connections of a worker end with its process, but the proxies would keep them open.
    drop(proxies);
    let _successor = cluster.node("worker");
    load.wait_for_more(100);
    cluster.assert_counted(&load.stop(), &api);
}

#[test]
fn a_worker_killed_before_it_applies_loses_and_doubles_nothing() {
    kill_when(|scene| {
        scene.proxies.kafka.hold(|message| message.from == Sender::Server && message.api_key == Some(FETCH));
        // Acknowledged, but not applied.
        scene.load.wait_for_more(100);
    });
}

#[test]
fn a_worker_killed_between_apply_and_publish_loses_and_doubles_nothing() {
    kill_when(|scene| {
        scene.proxies.postgres.hold(begins);
        scene.proxies.redis.hold(|message| message.from == Sender::Client && message.contains("EVAL"));
        let stored = scene.stored();
        scene.load.wait_for_more(50);
        scene.wait_until_read("/exact");
        assert_eq!(scene.stored(), stored, "it is not persisted");
    });
}

#[test]
fn a_worker_killed_between_publish_and_persist_loses_and_doubles_nothing() {
    kill_when(|scene| {
        scene.proxies.postgres.hold(begins);
        let stored = scene.stored();
        scene.load.wait_for_more(50);
        // From Redis.
        scene.wait_until_read("");
        assert_eq!(scene.stored(), stored, "it is not persisted");
    });
}

#[test]
fn a_worker_killed_between_its_rows_and_their_commit_loses_and_doubles_nothing() {
    kill_when(|scene| {
        scene.proxies.postgres.hold(|message| message.from == Sender::Client && message.contains("COMMIT"));
        assert_eq!(open_transactions(scene.cluster), 1);
    });
}

#[test]
fn a_worker_killed_before_it_hears_of_its_commit_loses_and_doubles_nothing() {
    kill_when(|scene| {
        let stored = scene.stored();
        scene.proxies.postgres.hold(|message| message.from == Sender::Server && message.contains("COMMIT"));
        assert_eq!(open_transactions(scene.cluster), 0);
        assert!(scene.stored() > stored);
    });
}

#[test]
fn a_worker_killed_between_persist_and_the_commit_to_the_group_loses_and_doubles_nothing() {
    kill_when(|scene| {
        let stored = scene.stored();
        scene.proxies.kafka.hold(|message| message.from == Sender::Client && message.api_key == Some(OFFSET_COMMIT));
        assert!(scene.stored() > stored);
        scene.load.wait_for_more(50);
    });
}

/// The successor does not see the change again, because it is persisted, and nothing else changes the counter.
#[test]
fn a_total_that_was_persisted_but_not_published_is_not_read_as_current() {
    let cluster = TestCluster::new("");
    let proxies = Proxies::start(Services::shared());
    let api = cluster.node("api");
    let worker = cluster.worker_behind(&proxies);
    cluster.wait_until_hosted();
    let path = "/api/v1/counters/views:1";
    let increment = || assert_eq!(api.send("POST", &format!("{path}/increment"), "").status, 200);
    let wait_for_total = |value: u64| {
        wait_for("the total", || {
            let read = api.send("GET", path, "");
            if read.json["value"] == json!(value) { Ok(()) } else { Err(read.text) }
        });
    };
    increment();
    wait_for_total(1);
    proxies.redis.hold(|message| message.from == Sender::Client && message.contains("EVAL"));
    increment();
    wait_for("the row", || {
        let stored = cluster.sql("SELECT value FROM counters WHERE name = 'views:1'");
        if stored == "2" { Ok(()) } else { Err(stored) }
    });
    worker.kill();
    drop(proxies);
    let _successor = cluster.node("worker");
    wait_for_total(2);
}

/// A machine that loses power closes no connection: PostgreSQL keeps the transaction, and the lock, for a while.
#[test]
fn a_successor_gets_the_partition_of_a_worker_that_vanished_within_a_transaction() {
    let cluster = TestCluster::new("");
    let proxies = Proxies::start(Services::shared());
    let api = cluster.node("api");
    let worker = cluster.worker_behind(&proxies);
    cluster.wait_until_hosted();
    let load = Load::start(&[&api], 4);
    proxies.postgres.hold(|message| message.from == Sender::Client && message.contains("COMMIT"));
    worker.kill();
    assert_eq!(open_transactions(&cluster), 1, "the connection outlives the worker");
    let _successor = cluster.node("worker");
    cluster.assert_counted(&load.stop(), &api);
}
