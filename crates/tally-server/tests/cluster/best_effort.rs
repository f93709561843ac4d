//! `best-effort` counters over the protocols, while workers die.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use serde_json::json;

use crate::harness::wire::{Reply, Resp};
use crate::harness::{Client, wait_for};
use crate::place::TestCluster;

const BEST_EFFORT: &str = "[namespaces.views]\nconsistency = \"best-effort\"\naggregation = \"hybrid\"\nshards = 8\n";

#[test]
fn workers_killed_while_they_sum_sub_counters_lose_and_double_nothing() {
    let cluster = TestCluster::new(BEST_EFFORT);
    let (first, second) = (cluster.node("api"), cluster.node("api"));
    let mut workers = vec![cluster.node("worker"), cluster.node("worker")];
    cluster.wait_until_hosted();
    let (counted, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        for client in 0..6usize {
            let server = [&first, &second][client % 2];
            let (counted, stop) = (&counted, &stop);
            let mut redis = Resp::to(server);
            let connection = Client::new(&server.base);
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    // Neither waits for a worker, so neither fails.
                    assert!(matches!(redis.say("INCRBY views:hot 2"), Reply::Integer(_)));
                    let answer =
                        connection.send("POST", "/api/v1/counters/views:hot/increment", &[], r#"{"amount":1}"#);
                    assert_eq!((answer.status, &answer.json["exact"]), (200, &json!(false)), "{}", answer.text);
                    counted.fetch_add(3, Ordering::Relaxed);
                }
            });
        }
        for round in 1..=4u64 {
            wait_for("increments", || {
                let counted = counted.load(Ordering::Relaxed);
                if counted >= round * 600 { Ok(()) } else { Err(format!("{counted} counted")) }
            });
            workers.remove(0).kill();
            workers.push(cluster.node("worker"));
        }
        stop.store(true, Ordering::Relaxed);
    });
    let counted = std::collections::BTreeMap::from([("views:hot".to_owned(), counted.into_inner())]);
    cluster.assert_counted(&counted, &first);
    let stats = first.send("GET", "/api/v1/counters/views:hot/stats", "").json;
    assert_eq!(stats["shards"], json!(8), "{stats}");
    assert_eq!(stats["shard_loads"].as_array().map(Vec::len), Some(8), "{stats}");
    let spread = cluster.sql("SELECT count(*), sum(value) FROM counter_shards WHERE key = 'views:hot'");
    assert_eq!(spread, format!("8|{}", counted["views:hot"]));
}

#[test]
fn a_best_effort_namespace_says_what_it_cannot_do() {
    let cluster = TestCluster::new(BEST_EFFORT);
    let api = cluster.node("api");
    let _worker = cluster.node("worker");
    cluster.wait_until_hosted();
    let mut redis = Resp::to(&api);
    assert!(matches!(redis.say("INCRBY views:a 5"), Reply::Integer(_)));
    assert_eq!(redis.say("GET views:a").number(), 5);
    for command in ["SET views:a 1 NX", "GETSET views:a 1", "INCREX views:a BYINT 1 UBOUND 9", "GETDEL views:a"] {
        let reply = redis.say(command);
        assert!(matches!(&reply, Reply::Error(text) if text.contains("`eventual` or a stronger one")), "{reply:?}");
    }
    redis.say("MULTI");
    redis.say("INCR views:a");
    redis.say("INCR views:a");
    let refused = redis.say("EXEC");
    assert!(format!("{refused:?}").contains("stronger one"), "{refused:?}");
    let bounded = api.send("POST", "/api/v1/counters/views:a/decrement", r#"{"amount": 1, "floor": 0}"#);
    assert_eq!((bounded.status, bounded.problem()), (409, "consistency-too-weak"), "{}", bounded.text);
    assert_eq!(redis.say("GET views:a").number(), 5);
    // Commands that replace or remove the value work, including the sub-counters.
    assert_eq!(redis.say("EXPIRE views:a 1000"), Reply::Integer(1));
    assert_eq!(redis.say("SET views:a 3"), Reply::Simple("OK".into()));
    assert!(matches!(redis.say("INCR views:a"), Reply::Integer(_)));
    assert_eq!(api.send("GET", "/api/v1/counters/views:a/exact", "").json["value"], json!(4));
    // The last rollup, and what was counted since.
    wait_for("the next rollup", || match redis.say("GET views:a").number() {
        4 => Ok(()),
        other => Err(other),
    });
    assert_eq!(redis.say("DEL views:a"), Reply::Integer(1));
    wait_for("the deletion to be read", || match redis.say("EXISTS views:a") {
        Reply::Integer(0) => Ok(()),
        other => Err(other),
    });
}
