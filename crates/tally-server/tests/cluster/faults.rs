//! Services that fail and come back.

use tally_services::{Kafka, Postgres, RedisCluster};

use crate::harness::Server;
use crate::load::Load;
use crate::place::{Services, TestCluster};

/// Runs `fault` under load and checks what was counted.
fn under_load(services: Services<'_>, fault: impl FnOnce(&Load)) {
    let cluster = TestCluster::on(services, "");
    let (first, second) = (cluster.node("api"), cluster.node("api"));
    let _worker = cluster.node("worker");
    cluster.wait_until_hosted();
    let load = Load::start(&[&first, &second], 6);
    load.wait_for_more(200);
    fault(&load);
    load.wait_for_more(200);
    cluster.assert_counted(&load.stop(), &first);
}

#[test]
fn a_redis_that_fails_over_or_is_flushed_loses_nothing() {
    let redis = RedisCluster::start();
    under_load(Services { redis: &redis, ..Services::shared() }, |load| {
        redis.flush_all();
        load.wait_for_more(200);
        let master = redis.masters()[0];
        redis.kill(master);
        redis.wait_until_failed_over(master);
        load.wait_for_more(200);
        redis.restart(master);
        redis.wait_until_ready();
    });
}

/// Nodes that refuse connections fail at once. These are silent.
#[test]
fn calls_are_answered_while_no_node_of_redis_answers() {
    let redis = RedisCluster::start();
    let cluster = TestCluster::on(Services { redis: &redis, ..Services::shared() }, "");
    let (api, _worker) = (cluster.node("api"), cluster.node("worker"));
    cluster.wait_until_hosted();
    (0..redis.addresses().len()).for_each(|node| redis.pause(node));
    let client = api.client();
    let path = |number: u32| format!("/api/v1/counters/silent:{number}");
    let all_at_once = |call: &(dyn Fn(u32) + Sync)| {
        std::thread::scope(|scope| (0..30).for_each(|number| drop(scope.spawn(move || call(number)))));
    };
    all_at_once(&|number| {
        let written = client.send("POST", &format!("{}/increment", path(number)), &[], "");
        assert_eq!(written.status, 200, "{}", written.text);
    });
    all_at_once(&|number| {
        let read = client.send("GET", &path(number), &[], "");
        assert_eq!(read.status, 200, "{}", read.text);
    });
    all_at_once(&|number| {
        let exact = client.send("GET", &format!("{}/exact", path(number)), &[], "");
        assert_eq!(exact.json["value"], 1, "{}", exact.text);
    });
}

#[test]
fn a_kafka_broker_that_is_killed_and_a_restart_of_all_lose_nothing() {
    let kafka = Kafka::start(3);
    under_load(Services { kafka: &kafka, ..Services::shared() }, |load| {
        kafka.kill(0);
        load.wait_for_more(200);
        kafka.restart(0);
        kafka.wait_until_ready();
        kafka.stop_all();
        kafka.start_all();
        kafka.wait_until_ready();
    });
}

/// The Kafka client sets no limit to the time that closing it takes while no broker answers.
#[test]
fn nodes_that_are_stopped_while_their_services_are_killed_end() {
    let (kafka, redis, postgres) = (Kafka::start(1), RedisCluster::start(), Postgres::start());
    let cluster = TestCluster::on(Services { kafka: &kafka, redis: &redis, postgres: &postgres }, "");
    let mut nodes = [cluster.node("api"), cluster.node("worker"), cluster.node("worker")];
    cluster.wait_until_hosted();
    let load = Load::start(&[&nodes[0]], 2);
    load.wait_for_more(200);
    load.stop();
    nodes.iter().for_each(Server::signal);
    kafka.stop_all();
    drop(redis);
    postgres.kill();
    for node in &mut nodes {
        let status = node.exit();
        assert!(status.success(), "{status}: {}", node.log());
    }
}
