//! Workers that stand by for each other.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::harness::{Server, wait_for};
use crate::observed::metrics;
use crate::place::{EXACT, TestCluster};

/// Enough that every partition has some.
const KEYS: u64 = 16;

/// How many partitions a worker owns, and for how many it stands by.
fn standing(server: &Server) -> (f64, f64) {
    let seen = metrics(server);
    (seen["tally_partitions_hosted"], seen["tally_partitions_standby"])
}

#[test]
fn a_standby_answers_for_a_killed_owner_at_once_and_takes_over_without_replay() {
    let cluster = TestCluster::new(&format!("standbys = 1\n{EXACT}"));
    let api = cluster.node("api");
    let (doomed, mut survivor) = (cluster.node("worker"), cluster.node("worker"));
    cluster.wait_until_hosted();
    let owned = wait_for("each worker to stand by for the other", || {
        let (first, second) = (standing(&doomed), standing(&survivor));
        let is_complete = first.0 > 0.0 && first.0 + second.0 == 4.0 && (first.1, second.1) == (second.0, first.0);
        if is_complete { Ok(first.0 as usize) } else { Err(format!("{first:?} {second:?}")) }
    });
    let increment = |key: u64| {
        let answer = api.send("POST", &format!("/api/v1/counters/exact:{key}/increment"), "");
        assert_eq!(answer.status, 200, "{}", answer.text);
        answer.json["value"].as_u64().unwrap()
    };
    // More than one round of heartbeats, so that the API node knows of the standbys.
    wait_for("heartbeats with standbys", || {
        let values: Vec<u64> = (0..KEYS).map(increment).collect();
        if values[0] >= 20 { Ok(()) } else { Err(format!("{values:?}")) }
    });
    let before = increment(0);
    doomed.kill();
    let killed = Instant::now();
    let values: Vec<u64> = (0..KEYS).map(increment).collect();
    let took = killed.elapsed();
    println!("{KEYS} exact writes were answered {took:?} after the owner was killed");
    assert_eq!(values[0], before + 1);
    assert!(values.iter().skip(1).all(|value| *value == before));
    assert!(took < Duration::from_secs(5), "{took:?}");
    wait_for("the takeover", || match standing(&survivor) {
        (4.0, _) => Ok(()),
        other => Err(format!("{other:?}")),
    });
    println!("taken over after {:?}", killed.elapsed());
    wait_for("takeovers from memory in the log", || {
        let log = survivor.log();
        if log.matches("took over from memory").count() == owned { Ok(()) } else { Err(log.to_owned()) }
    });
    assert!((0..KEYS).map(increment).skip(1).all(|value| value == before + 1));
    let first = before + 2;
    wait_for("PostgreSQL to have all", || {
        let stored = cluster.sql("SELECT min(value) || ' ' || max(value) || ' ' || count(*) FROM counters");
        let expected = format!("{} {first} {KEYS}", first - 1);
        if stored == expected { Ok(()) } else { Err(format!("{stored} instead of {expected}")) }
    });
    for key in 0..KEYS {
        let read = api.send("GET", &format!("/api/v1/counters/exact:{key}/exact"), "").json;
        assert_eq!(read["value"], json!(if key == 0 { first } else { first - 1 }));
    }
}
