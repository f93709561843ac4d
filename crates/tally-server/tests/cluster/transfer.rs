//! Moving counters from an embedded server into a cluster and back, while both serve.

use std::io::Write;

use serde_json::json;

use crate::harness::transfer::{counter_lines, export, fill, import_all, start_import};
use crate::harness::{Server, wait_for};
use crate::load::Load;
use crate::place::{EXACT, TestCluster};

#[test]
fn an_embedded_server_moves_into_a_cluster_and_back_under_load() {
    let dir = tempfile::tempdir().unwrap();
    let embedded = Server::start();
    fill(&embedded);
    let cluster = TestCluster::new(&format!("{EXACT}[namespaces.loose]\nconsistency = \"best-effort\"\n"));
    let (first, second) = (cluster.node("api"), cluster.node("api"));
    let _worker = cluster.node("worker");
    cluster.wait_until_hosted();

    // Into the cluster: once while writers go on, then the rest.
    let load = Load::start(&[&embedded], 4);
    load.wait_for_more(200);
    let file = export(&embedded, dir.path(), "embedded-1");
    load.wait_for_more(200);
    import_all(&first, &file, &[]);
    let mut counted = load.stop();
    let once = r#"{"amount":3,"request_id":"order-1"}"#;
    assert_eq!(embedded.send("POST", "/api/v1/counters/exact:orders/increment", once).status, 200);
    let last = export(&embedded, dir.path(), "embedded-2");
    import_all(&second, &last, &["--replace"]);
    let again = import_all(&first, &last, &["--replace"]);
    assert_eq!(again["imported"], 0, "{again}");
    let inside = export(&first, dir.path(), "cluster-1");
    assert_eq!(counter_lines(&inside), counter_lines(&last));
    for (key, count) in &counted {
        assert_eq!(second.value(key), *count as i64, "{key}");
    }
    // A retry of a request that the embedded server answered, through either node.
    for node in [&first, &second] {
        let retry = node.send("POST", "/api/v1/counters/exact:orders/increment", once);
        assert_eq!((&retry.json["value"], &retry.json["duplicate"]), (&json!(3), &json!(true)), "{}", retry.text);
    }

    // And back out, into an empty server.
    let load = Load::start(&[&first, &second], 4);
    load.wait_for_more(100);
    let file = export(&second, dir.path(), "cluster-2");
    let destination = Server::start();
    import_all(&destination, &file, &[]);
    load.wait_for_more(100);
    for (key, count) in load.stop() {
        *counted.entry(key).or_insert(0) += count;
    }
    // A correction right before the export: it is in the journal, but not persisted yet.
    let set = json!({ "value": 7, "reason": "last" }).to_string();
    assert_eq!(first.send("PUT", "/api/v1/counters/exact:late", &set).status, 200);
    // And counts that are only in sub-counters.
    for _ in 0..20 {
        assert_eq!(first.send("POST", "/api/v1/counters/loose:views/increment", "").status, 200);
    }
    let last = export(&second, dir.path(), "cluster-3");
    import_all(&destination, &last, &["--replace"]);
    assert_eq!(counter_lines(&export(&destination, dir.path(), "destination")), counter_lines(&last));
    for (key, count) in &counted {
        assert_eq!(destination.value(key), *count as i64, "{key}");
    }
    assert_eq!((destination.value("exact:late"), destination.value("loose:views")), (7, 20));
    let retry = destination.send("POST", "/api/v1/counters/exact:orders/increment", once);
    assert_eq!(retry.json["duplicate"], json!(true), "{}", retry.text);
}

#[test]
fn an_import_into_a_cluster_whose_nodes_are_killed_can_be_run_again() {
    let dir = tempfile::tempdir().unwrap();
    let embedded = Server::start();
    fill(&embedded);
    let file = export(&embedded, dir.path(), "embedded");
    let cluster = TestCluster::new("");
    let (doomed, stable) = (cluster.node("api"), cluster.node("api"));
    let worker = cluster.node("worker");
    cluster.wait_until_hosted();
    let mut importing = start_import(&doomed);
    let mut input = importing.stdin.take().unwrap();
    let text = std::fs::read(&file).unwrap();
    let (first, rest) = text.split_at(text.len() * 9 / 10);
    input.write_all(first).unwrap();
    wait_for("the first entries of a ledger", || match cluster.sql("SELECT count(*) FROM counter_ledger").as_str() {
        "0" => Err(()),
        _ => Ok(()),
    });
    worker.kill();
    doomed.kill();
    let _ = input.write_all(rest);
    drop(input);
    assert!(!importing.wait_with_output().unwrap().status.success());
    let _worker = cluster.node("worker");
    import_all(&stable, &file, &[]);
    assert_eq!(counter_lines(&export(&stable, dir.path(), "cluster")), counter_lines(&file));
}
