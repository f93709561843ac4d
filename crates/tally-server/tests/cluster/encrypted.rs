//! A cluster with TLS to Redis, to PostgreSQL and between its nodes.

use serde_json::json;
use tally_services::{CertificateAuthority, Postgres, PostgresSettings, RedisCluster, RedisOptions};

use crate::harness::{self, Server, run, tally};
use crate::place::Services;

#[test]
fn a_cluster_counts_over_tls_and_refuses_servers_of_another_authority() {
    let (ours, foreign) = (CertificateAuthority::new(), CertificateAuthority::new());
    let node = ours.issue("node", "IP:127.0.0.1");
    let redis = RedisCluster::start_with(&RedisOptions { tls: Some(node.clone()), ..RedisOptions::default() });
    let postgres = Postgres::start_with(&PostgresSettings { tls: Some(node.clone()), ..PostgresSettings::default() });
    let ca = ours.file();
    let text = format!(
        "[cluster]\nkafka = \"{}\"\ntopic = \"encrypted\"\npartitions = 2\nreplication = 1\nredis = {}\nredis_tls = true\n\
         redis_ca = {ca:?}\npostgres = \"{}?sslmode=verify-full\"\npostgres_ca = {ca:?}\nworker = \"127.0.0.1:0\"\n\
         secret = \"a-shared-secret-of-this-test\"\nworker_tls_cert = {:?}\nworker_tls_key = {:?}\nworker_tls_ca = {ca:?}\n",
        Services::shared().kafka.bootstrap_servers(),
        json!(redis.addresses()),
        postgres.url(),
        node.certificate,
        node.key,
    );
    let dir = tempfile::tempdir().unwrap();
    let config = harness::write(dir.path().join("tally.toml"), &text);
    let cluster = |command: &str, more: &[(&str, &std::path::Path)]| {
        let mut command_line = tally();
        command_line.args(["cluster", command, "--config"]).arg(&config);
        command_line.envs(more.iter().copied());
        run(&mut command_line)
    };
    let init = cluster("init", &[]);
    assert_eq!(init.code, 0, "{}", init.err);
    let start = |role: &str| {
        let mut command = tally();
        command.args(["serve", "--http", "127.0.0.1:0", "--resp", "127.0.0.1:0", "--roles", role, "--config"]);
        command.arg(&config).current_dir(dir.path());
        Server::start_with(command)
    };
    let (_worker, api) = (start("worker"), start("api"));
    let counted = harness::wait_for("a worker", || {
        let set = api.send("PUT", "/api/v1/counters/n", r#"{"value": 5, "reason": "a test"}"#);
        if set.status == 200 { Ok(set.json) } else { Err(set.text) }
    });
    assert_eq!(counted["value"], json!(5));
    harness::wait_for("the total in Redis", || {
        let read = api.send("GET", "/api/v1/counters/n", "").json;
        if read["value"] == json!(5) { Ok(()) } else { Err(read.to_string()) }
    });
    let sessions = "SELECT count(*) FILTER (WHERE ssl) > 0, count(*) FILTER (WHERE NOT ssl) FROM pg_stat_ssl JOIN \
                    pg_stat_activity USING (pid) WHERE application_name = 'tally'";
    assert_eq!(postgres.psql(sessions).unwrap().trim(), "t|0");

    let status = cluster("status", &[]);
    assert!(status.code == 0 && status.err.is_empty(), "{}", status.err);
    let unknown = cluster("status", &[("TALLY_CLUSTER_WORKER_TLS_CA", &foreign.file())]);
    assert!(unknown.err.contains("not signed by a trusted CA") && unknown.err.contains("`worker_tls_ca`"));
    let unknown = cluster("status", &[("TALLY_CLUSTER_POSTGRES_CA", &foreign.file())]);
    assert!(unknown.code != 0 && unknown.err.contains("not signed by a trusted CA"), "{}", unknown.err);
    assert!(!unknown.err.contains("secret"), "{}", unknown.err);
}
