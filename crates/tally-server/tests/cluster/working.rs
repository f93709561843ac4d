//! What works in a cluster.

use serde_json::{Value, json};

use crate::harness::wire::{Reply, Resp};
use crate::harness::{Server, wait_for};
use crate::place::{EXACT, Services, TestCluster};

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
    // A retry counts once, and says so if it waits for the outcome.
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
    let backup = first.send("GET", "/api/v1/backup", "");
    assert_eq!((backup.status, backup.problem()), (501, "no-data-directory"), "{}", backup.text);
}

/// A new topic would get other records at the stored positions.
#[test]
fn init_creates_no_topic_in_place_of_one_that_postgresql_has_state_of() {
    let cluster = TestCluster::new(EXACT);
    let mut node = cluster.node("api,worker");
    cluster.wait_until_hosted();
    assert_eq!(node.send("POST", "/api/v1/counters/exact:1/increment", "").status, 200);
    assert!(node.terminate().success());
    let init = cluster.init();
    assert_eq!(init.code, 0, "as long as the topic is there, nothing changes: {}", init.err);
    let topic = cluster.database.rsplit_once('/').unwrap().1;
    Services::shared().kafka.tool("TopicCommand", &["--delete", "--topic", topic], "").unwrap();
    for _ in 0..2 {
        let init = wait_for("the topic to be gone", || match cluster.init() {
            init if init.code == 0 => Err(init.out),
            init => Ok(init),
        });
        assert!(init.code == 1 && init.err.contains("does not exist, but PostgreSQL has state"), "{}", init.err);
    }
}

#[test]
fn a_node_says_when_no_worker_answers_and_the_status_exits_with_a_code() {
    let cluster = TestCluster::new("");
    let api = cluster.node("api");
    let ready = api.send("GET", "/readyz", "");
    assert_eq!((ready.status, &ready.json["state"], &ready.json["writes"]), (200, &json!("degraded"), &json!(true)));
    assert!(ready.text.contains("no worker answers for 4 of 4 partitions"), "{}", ready.text);
    let status = |output: &str| {
        crate::harness::run(
            crate::harness::tally().args(["cluster", "status", "-o", output, "--config"]).arg(&cluster.config),
        )
    };
    assert_eq!(status("table").code, 69);
    let _worker = cluster.node("worker");
    cluster.wait_until_hosted();
    assert_eq!(status("json").code, 0);
    wait_for("the worker's heartbeats", || match api.send("GET", "/readyz", "") {
        ready if ready.json["state"] == "ready" => Ok(()),
        ready => Err(ready.text),
    });
}

#[test]
fn a_command_that_waits_for_a_worker_does_not_fail_the_commands_of_other_connections() {
    let cluster = TestCluster::new("");
    let api = cluster.node("api");
    let mut waiting: Vec<Resp> = (0..8).map(|_| Resp::to(&api)).collect();
    let mut counting: Vec<Resp> = (0..8).map(|_| Resp::to(&api)).collect();
    // There is no worker. All arrive at once, so that the node reads them in one turn.
    api.hold(|| {
        for (number, (waiting, counting)) in waiting.iter_mut().zip(&mut counting).enumerate() {
            waiting.send(format!("EXPIRE waiting:{number} 60\r\n").as_bytes()).unwrap();
            counting.send(format!("INCR counting:{number}\r\n").as_bytes()).unwrap();
        }
    });
    for counting in &mut counting {
        assert_eq!(counting.reply().unwrap(), Reply::Integer(1));
    }
    let _worker = cluster.node("worker");
    for waiting in &mut waiting {
        let reply = waiting.reply().unwrap();
        assert!(matches!(&reply, Reply::Integer(0) | Reply::Error(_)), "{reply:?}");
    }
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
