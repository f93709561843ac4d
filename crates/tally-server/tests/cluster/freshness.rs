//! What readings include, and what they say about it, while parts of the cluster fail.

use std::thread;
use std::time::{Duration, Instant};

use tally_services::{Kafka, Postgres};

use crate::load::Load;
use crate::place::{Services, TestCluster};
use crate::watched::{ReadKind, WatchedCounter};

/// Stops the clients even if the test fails, because it could not end otherwise.
struct StopOnDrop<'a>(&'a WatchedCounter);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.stop();
    }
}

#[test]
fn an_accurate_read_includes_what_any_node_acknowledged_before_while_workers_change() {
    let cluster = TestCluster::new("");
    let nodes = [cluster.node("api"), cluster.node("api")];
    let mut workers = vec![cluster.node("worker"), cluster.node("worker")];
    cluster.wait_until_hosted();
    let counter = WatchedCounter::new("watched:1");
    thread::scope(|scope| {
        let _stop = StopOnDrop(&counter);
        for _ in 0..3 {
            counter.write(scope, &nodes);
            counter.read(scope, &nodes, ReadKind::Accurate);
        }
        counter.read(scope, &nodes, ReadKind::Eventual);
        counter.wait_for_accurate_reads(100);
        // One is killed, one starts, one shuts down cleanly: the counter changes its worker at least once.
        workers.remove(0).kill();
        counter.wait_for_accurate_reads(100);
        workers.push(cluster.node("worker"));
        counter.wait_for_accurate_reads(100);
        assert!(workers.remove(0).terminate().success());
        counter.wait_for_accurate_reads(100);
    });
    cluster.assert_counted(&[("watched:1".to_owned(), counter.count())].into(), &nodes[0]);
}

/// A leader that was replaced while it was paused believes for a moment that it still leads.
#[test]
fn an_accurate_read_includes_what_was_acknowledged_before_when_replaced_kafka_leaders_wake_up() {
    let kafka = Kafka::start(3);
    let cluster = TestCluster::on(Services { kafka: &kafka, ..Services::shared() }, "");
    let nodes = [cluster.node("api"), cluster.node("api")];
    let _worker = cluster.node("worker");
    cluster.wait_until_hosted();
    let counter = WatchedCounter::new("watched:1");
    thread::scope(|scope| {
        let _stop = StopOnDrop(&counter);
        for _ in 0..2 {
            counter.write(scope, &nodes);
            counter.read(scope, &nodes, ReadKind::Accurate);
        }
        for broker in 0..3 {
            counter.wait_for_accurate_reads(20);
            kafka.pause(broker);
            // Reads continue once the broker is replaced.
            counter.wait_for_accurate_reads(20);
            kafka.resume(broker);
        }
        counter.wait_for_accurate_reads(100);
    });
    cluster.assert_counted(&[("watched:1".to_owned(), counter.count())].into(), &nodes[0]);
}

#[test]
fn a_postgresql_that_crashes_or_is_gone_for_a_minute_loses_nothing_and_readings_stay_honest() {
    let postgres = Postgres::start();
    let cluster = TestCluster::on(Services { postgres: &postgres, ..Services::shared() }, "");
    let nodes = [cluster.node("api"), cluster.node("api")];
    let _worker = cluster.node("worker");
    cluster.wait_until_hosted();
    let load = Load::start(&[&nodes[0], &nodes[1]], 4);
    let counter = WatchedCounter::new("watched:1");
    thread::scope(|scope| {
        let _stop = StopOnDrop(&counter);
        counter.write(scope, &nodes);
        for kind in [ReadKind::Accurate, ReadKind::Eventual] {
            counter.read(scope, &nodes, kind);
        }
        counter.wait_for_accurate_reads(100);
        postgres.kill();
        counter.wait_for_writes(100);
        postgres.restart();
        counter.wait_for_accurate_reads(100);
        postgres.stop();
        let stopped = Instant::now();
        // Writes continue all the time, because the journal has them.
        while stopped.elapsed() < Duration::from_secs(60) {
            counter.wait_for_writes(20);
            load.wait_for_more(20);
        }
        postgres.restart();
        counter.wait_for_accurate_reads(100);
    });
    let mut counted = load.stop();
    counted.insert("watched:1".to_owned(), counter.count());
    cluster.assert_counted(&counted, &nodes[1]);
}
