//! Nodes that are killed, paused and restarted under load.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use serde_json::json;

use crate::harness::{Client, wait_for};
use crate::load::Load;
use crate::place::{EXACT, TestCluster};

#[test]
fn workers_killed_under_load_lose_and_double_nothing() {
    let cluster = TestCluster::new("");
    let (first, second) = (cluster.node("api"), cluster.node("api"));
    let mut workers = vec![cluster.node("worker"), cluster.node("worker")];
    cluster.wait_until_hosted();
    let load = Load::start(&[&first, &second], 6);
    for _ in 0..4 {
        load.wait_for_more(300);
        workers.remove(0).kill();
        workers.push(cluster.node("worker"));
    }
    cluster.assert_counted(&load.stop(), &first);
}

#[test]
fn api_nodes_killed_under_load_lose_and_double_nothing() {
    let cluster = TestCluster::new("");
    let stable = cluster.node("api");
    let _worker = cluster.node("worker");
    cluster.wait_until_hosted();
    let mut counted = std::collections::BTreeMap::new();
    for _ in 0..3 {
        let doomed = cluster.node("api");
        let load = Load::start(&[&stable, &doomed], 6);
        load.wait_for_more(200);
        doomed.kill();
        load.wait_for_more(50);
        for (key, count) in load.stop() {
            *counted.entry(key).or_insert(0) += count;
        }
    }
    cluster.assert_counted(&counted, &stable);
}

/// A worker that is paused for longer than its session loses its partitions without noticing, and tries to persist when
/// it wakes up.
#[test]
fn a_worker_that_wakes_up_after_it_was_replaced_changes_nothing() {
    let cluster = TestCluster::new("");
    let (first, second) = (cluster.node("api"), cluster.node("api"));
    let sleeper = cluster.node("worker");
    cluster.wait_until_hosted();
    let _other = cluster.node("worker");
    let load = Load::start(&[&first, &second], 6);
    load.wait_for_more(300);
    sleeper.hold(|| {
        wait_for("the other worker to take over", || {
            let status = cluster.status();
            let owners: std::collections::BTreeSet<_> =
                status.iter().map(|partition| partition["owner"].to_string()).collect();
            if owners.len() == 1 && status.iter().all(|partition| partition["applied"].is_u64()) {
                Ok(())
            } else {
                Err(format!("{status:?}"))
            }
        });
        load.wait_for_more(300);
    });
    load.wait_for_more(600);
    cluster.assert_counted(&load.stop(), &first);
}

#[test]
fn every_node_can_be_restarted_under_load() {
    let cluster = TestCluster::new("");
    let stable = cluster.node("api");
    let mut nodes =
        vec![("worker", cluster.node("worker")), ("worker", cluster.node("worker")), ("api", cluster.node("api"))];
    cluster.wait_until_hosted();
    let load = Load::start(&[&stable], 6);
    for _ in 0..3 {
        load.wait_for_more(200);
        let (role, mut node) = nodes.remove(0);
        assert!(node.terminate().success(), "{}", node.log());
        nodes.push((role, cluster.node(role)));
    }
    cluster.assert_counted(&load.stop(), &stable);
}

#[test]
fn a_floor_is_never_crossed_by_64_clients_while_workers_die() {
    let cluster = TestCluster::new(EXACT);
    let (first, second) = (cluster.node("api"), cluster.node("api"));
    let mut workers = vec![cluster.node("worker"), cluster.node("worker")];
    cluster.wait_until_hosted();
    const STOCK: u64 = 400;
    let delivery = json!({ "value": STOCK, "reason": "delivery" }).to_string();
    // The second worker may be joining, and the outcome is unknown if the partition moves to it meanwhile.
    wait_for("a delivery", || {
        let set = first.send("PUT", "/api/v1/counters/exact:stock", &delivery);
        if set.status == 200 { Ok(()) } else { Err(set.text) }
    });
    let sold = AtomicU64::new(0);
    thread::scope(|scope| {
        for client in 0..64usize {
            let (base, sold) = ([&first, &second][client % 2].base.clone(), &sold);
            scope.spawn(move || {
                let mut connection = Client::new(&base);
                for number in 0..15 {
                    let body =
                        json!({ "amount": 1, "floor": 0, "request_id": format!("{client}-{number}") }).to_string();
                    loop {
                        match connection.try_send("POST", "/api/v1/counters/exact:stock/decrement", &[], &body) {
                            Ok(answer) if answer.status == 200 => {
                                sold.fetch_add(1, Ordering::Relaxed);
                                break;
                            }
                            Ok(answer) if answer.status == 409 => break,
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
