//! Alert rules and the dashboard: valid, tested, and about metrics that exist.

use std::collections::BTreeSet;
use std::process::Command;

use serde_json::{Value, json};

use crate::harness::{Server, run, write};
use crate::{deployed, read, succeed, yaml};

/// Every word of a text that begins like a metric of Tally, without the suffixes of histograms.
fn metrics_in(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != ':');
    let metrics = words.filter(|word| word.starts_with("tally_") && word.len() > "tally_".len());
    let base = |metric: &str| {
        let suffixes = ["_bucket", "_sum", "_count"];
        suffixes.iter().find_map(|suffix| metric.strip_suffix(suffix)).unwrap_or(metric).to_owned()
    };
    metrics.map(base).collect()
}

fn documented() -> BTreeSet<String> {
    metrics_in(&read(&deployed("../docs/metrics.md")))
}

/// Metrics that a new server exports.
fn exported() -> BTreeSet<String> {
    let server = Server::start();
    // A series appears when it is first used.
    server.send("POST", "/api/v1/counters/a/increment", "");
    let text = server.send("GET", "/metrics", "").text;
    metrics_in(&text.lines().filter(|line| !line.starts_with('#')).collect::<Vec<_>>().join("\n"))
}

/// The rules of `alerts.yml`.
fn rules() -> Vec<Value> {
    let groups = yaml(&deployed("prometheus/alerts.yml")).remove(0);
    let groups = groups["groups"].as_array().unwrap().clone();
    groups.iter().flat_map(|group| group["rules"].as_array().unwrap().clone()).collect()
}

/// The names of all alerts.
fn alerts() -> BTreeSet<String> {
    rules().iter().filter_map(|rule| rule["alert"].as_str()).map(str::to_owned).collect()
}

/// The queries of the dashboard.
fn queries() -> Vec<String> {
    let dashboard: Value = serde_json::from_str(&read(&deployed("grafana/tally.json"))).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let targets = panels.iter().flat_map(|panel| panel["targets"].as_array().into_iter().flatten());
    targets.map(|target| target["expr"].as_str().unwrap().to_owned()).collect()
}

fn promtool(args: &[&str]) -> Command {
    let mut command = Command::new("promtool");
    command.args(args).current_dir(deployed("prometheus"));
    command
}

#[test]
fn rules_and_scrape_settings_are_valid() {
    succeed(promtool(&["check", "rules", "--lint-fatal", "alerts.yml"]).arg("--lint=all"));
    succeed(&mut promtool(&["check", "config", "prometheus.yml"]));
}

#[test]
fn every_alert_fires_on_a_sick_cluster_and_none_on_a_healthy_one() {
    succeed(&mut promtool(&["test", "rules", "alerts_test.yml"]));
    let tests = &yaml(&deployed("prometheus/alerts_test.yml"))[0]["tests"];
    let cases: Vec<&Value> =
        tests.as_array().unwrap().iter().flat_map(|test| test["alert_rule_test"].as_array().unwrap()).collect();
    let tested = |fires: bool| -> BTreeSet<String> {
        let cases = cases.iter().filter(|case| case["exp_alerts"].as_array().unwrap().is_empty() != fires);
        cases.map(|case| case["alertname"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(tested(true), alerts());
    assert_eq!(tested(false), alerts());
    // The check can fail.
    let dir = tempfile::tempdir().unwrap();
    write(dir.path().join("alerts.yml"), &read(&deployed("prometheus/alerts.yml")).replace("> 5000", "> 50000"));
    let test = write(dir.path().join("alerts_test.yml"), &read(&deployed("prometheus/alerts_test.yml")));
    assert_ne!(run(promtool(&["test", "rules"]).arg(test)).code, 0);
}

#[test]
fn the_operating_page_says_what_to_do_about_every_alert() {
    let page = read(&deployed("../docs/cluster-operations.md"));
    let explained: BTreeSet<String> = page
        .lines()
        .filter_map(|line| line.strip_prefix("| `Tally"))
        .map(|line| format!("Tally{}", line.split('`').next().unwrap()))
        .collect();
    assert_eq!(explained, alerts());
}

#[test]
fn queries_of_the_dashboard_are_valid() {
    let queries = queries();
    assert!(queries.len() > 20, "{}", queries.len());
    let rules: Vec<Value> = (0..)
        .zip(&queries)
        .map(|(number, query)| {
            let query = query.replace("$__rate_interval", "5m").replace("$job", "tally");
            json!({ "record": format!("query:{number}"), "expr": query })
        })
        .collect();
    let dir = tempfile::tempdir().unwrap();
    // JSON is YAML.
    let rules = json!({ "groups": [{ "name": "dashboard", "rules": rules }] }).to_string();
    let file = write(dir.path().join("rules.yml"), &rules);
    succeed(promtool(&["check", "rules"]).arg(file));
    let broken = write(dir.path().join("broken.yml"), &rules.replace("sum by (le", "sum by le"));
    assert_ne!(run(promtool(&["check", "rules"]).arg(broken)).code, 0, "the check can fail");
}

#[test]
fn alerts_and_dashboard_use_only_metrics_that_exist() {
    let mut known = exported();
    known.extend(documented());
    let expressions: Vec<String> = rules().iter().map(|rule| rule["expr"].as_str().unwrap().to_owned()).collect();
    for used in [metrics_in(&expressions.join("\n")), metrics_in(&queries().join("\n"))] {
        assert!(used.len() > 10, "{used:?}");
        let unknown: Vec<&String> = used.difference(&known).collect();
        assert!(unknown.is_empty(), "{unknown:?} are neither exported nor in docs/metrics.md");
    }
}
