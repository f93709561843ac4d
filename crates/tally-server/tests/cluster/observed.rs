//! What the metrics of a cluster show.

use std::collections::BTreeMap;

use tally_services::Postgres;

use crate::harness::{Server, wait_for};
use crate::place::{EXACT, Services, TestCluster};

/// The metrics of a node, by name and labels.
pub fn metrics(server: &Server) -> BTreeMap<String, f64> {
    let text = server.send("GET", "/metrics", "").text;
    let samples = text.lines().filter(|line| !line.starts_with('#'));
    samples
        .filter_map(|line| line.rsplit_once(' '))
        .map(|(name, value)| (name.to_owned(), value.parse().unwrap()))
        .collect()
}

#[test]
fn nodes_show_lag_partitions_and_where_readings_come_from() {
    let cluster = TestCluster::new(EXACT);
    let (api, worker) = (cluster.node("api"), cluster.node("worker"));
    cluster.wait_until_hosted();
    for id in ["a", "b", "a"] {
        let body = format!(r#"{{"request_id": "{id}"}}"#);
        assert_eq!(api.send("POST", "/api/v1/counters/exact:observed/increment", &body).status, 200);
        assert_eq!(api.send("POST", "/api/v1/counters/observed/increment", &body).status, 200);
    }
    // The first reading is not in Redis, later ones are.
    wait_for("readings of both sources", || {
        api.send("GET", "/api/v1/counters/observed", "");
        let seen = metrics(&api);
        let count = |source: &str| seen[&format!("tally_total_reads_total{{source=\"{source}\"}}")];
        if count("worker") >= 1.0 && count("redis") >= 1.0 { Ok(()) } else { Err(format!("{seen:?}")) }
    });
    let text = api.send("GET", "/metrics", "").text + &worker.send("GET", "/metrics", "").text;
    assert!(!text.contains("observed"), "no counter key is a label");
    assert_eq!(metrics(&api)["tally_append_queue_events"], 0.0);
    wait_for("everything to be published and persisted", || {
        let seen = metrics(&worker);
        let is_idle = ["rollup_lag_seconds", "persist_lag_seconds", "persist_lag_records", "apply_lag_records"]
            .iter()
            .all(|name| seen[&format!("tally_{name}")] == 0.0);
        if is_idle && seen["tally_request_ids"] >= 2.0 { Ok(()) } else { Err(format!("{seen:?}")) }
    });
    let seen = metrics(&worker);
    assert_eq!(seen["tally_partitions_hosted"], 4.0);
    assert_eq!((seen["tally_partitions_stopped"], seen["tally_poisoned"]), (0.0, 0.0));
    assert_eq!(seen["tally_duplicates_total"], 2.0);
}

#[test]
fn a_postgresql_that_is_away_shows_as_lag() {
    let postgres = Postgres::start();
    let cluster = TestCluster::on(Services { postgres: &postgres, ..Services::shared() }, "");
    let (api, worker) = (cluster.node("api"), cluster.node("worker"));
    cluster.wait_until_hosted();
    postgres.kill();
    assert_eq!(api.send("POST", "/api/v1/counters/late/increment", "").status, 200);
    wait_for("persist lag", || {
        let seen = metrics(&worker);
        let lag = (seen["tally_persist_lag_seconds"], seen["tally_persist_lag_records"]);
        if lag.0 > 1.0 && lag.1 >= 1.0 { Ok(()) } else { Err(format!("{lag:?}")) }
    });
    postgres.restart();
    postgres.wait_until_available();
    wait_for("no persist lag", || {
        let lag = metrics(&worker)["tally_persist_lag_records"];
        if lag == 0.0 { Ok(()) } else { Err(format!("{lag}")) }
    });
}
