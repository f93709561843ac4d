//! Services that fail and come back.

use crate::place::{Load, Services, TestCluster};

#[test]
fn a_redis_that_fails_over_or_is_flushed_loses_nothing() {
    let (services, _turn) = Services::breakable();
    let cluster = TestCluster::on(services, 3, "");
    let (first, second) = (cluster.node("api"), cluster.node("api"));
    let _worker = cluster.node("worker");
    cluster.wait_until_hosted();
    let load = Load::start(&[&first, &second], 6);
    load.wait_for_more(200);
    services.redis.flush_all();
    load.wait_for_more(200);
    let master = services.redis.masters()[0];
    services.redis.kill(master);
    services.redis.wait_until_failed_over(master);
    load.wait_for_more(200);
    services.redis.restart(master);
    services.redis.wait_until_ready();
    cluster.assert_counted(&load.stop(), &first);
}

#[test]
fn a_postgresql_that_is_restarted_loses_nothing() {
    let (services, _turn) = Services::breakable();
    let cluster = TestCluster::on(services, 3, "");
    let (first, second) = (cluster.node("api"), cluster.node("api"));
    let _worker = cluster.node("worker");
    cluster.wait_until_hosted();
    let load = Load::start(&[&first, &second], 6);
    load.wait_for_more(300);
    services.postgres.kill();
    // Writes go on: the journal has them.
    load.wait_for_more(1_000);
    services.postgres.restart();
    services.postgres.wait_until_available();
    load.wait_for_more(300);
    cluster.assert_counted(&load.stop(), &second);
}

#[test]
fn a_kafka_broker_that_is_killed_and_a_restart_of_all_lose_nothing() {
    let (services, _turn) = Services::breakable();
    let cluster = TestCluster::on(services, 3, "");
    let (first, second) = (cluster.node("api"), cluster.node("api"));
    let _worker = cluster.node("worker");
    cluster.wait_until_hosted();
    let load = Load::start(&[&first, &second], 6);
    load.wait_for_more(200);
    services.kafka.kill(0);
    load.wait_for_more(200);
    services.kafka.restart(0);
    services.kafka.wait_until_ready();
    services.kafka.stop_all();
    services.kafka.start_all();
    services.kafka.wait_until_ready();
    load.wait_for_more(200);
    cluster.assert_counted(&load.stop(), &first);
}
