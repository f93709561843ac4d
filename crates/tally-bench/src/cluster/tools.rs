//! Runs of redis-benchmark and pgbench.

use std::process::Command;

use super::nodes::BenchCluster;
use crate::BenchError;
use crate::redis::load::column;

/// What a tool reports.
#[derive(Clone, Copy, Debug)]
pub struct ToolResult {
    /// Operations per second.
    pub per_second: f64,
    /// Operations, including those of the calibration run.
    pub requests: f64,
    /// 50th percentile of the latency; the mean for pgbench.
    pub p50_ms: f64,
    /// 99th percentile; NaN for pgbench.
    pub p99_ms: f64,
}

/// Requests of the calibration run, which finds out how many to send.
const FEW: u64 = 5_000;

/// Sends a command for about `seconds`.
pub fn redis_benchmark(
    port: u16,
    connections: u64,
    pipeline: u64,
    seconds: f64,
    options: &[&str],
    command: &[&str],
) -> Result<ToolResult, BenchError> {
    let run = |requests: u64| {
        let output = Command::new("redis-benchmark")
            .args(["-h", "127.0.0.1", "-p", &port.to_string(), "--csv", "--threads", "2"])
            .args(["-c", &connections.to_string(), "-n", &requests.to_string(), "-P", &pipeline.to_string()])
            .args(options)
            .args(command)
            .output()
            .map_err(|error| BenchError::new(&format!("cannot start redis-benchmark: {error}")))?;
        let (out, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        let field = |name| column(&out, name).filter(|_| output.status.success());
        let result = (|| {
            Some(ToolResult {
                per_second: field("rps")?,
                requests: requests as f64,
                p50_ms: field("p50_latency_ms")?,
                p99_ms: field("p99_latency_ms")?,
            })
        })();
        result.ok_or_else(|| BenchError::new(&format!("redis-benchmark failed: {out}{errors}")))
    };
    let few = run(FEW * pipeline.min(16))?;
    let result = run((few.per_second * seconds) as u64)?;
    Ok(ToolResult { requests: few.requests + result.requests, ..result })
}

/// The pattern that people build: a row that does not fall below zero.
pub fn pgbench(cluster: &BenchCluster, connections: u64, seconds: f64) -> Result<ToolResult, BenchError> {
    let sql = |sql: &str| cluster.postgres.psql(sql).map_err(|error| BenchError::new(&error));
    sql("CREATE TABLE IF NOT EXISTS stock (id int PRIMARY KEY, v bigint NOT NULL)")?;
    sql("INSERT INTO stock VALUES (1, 1000000000) ON CONFLICT (id) DO UPDATE SET v = excluded.v")?;
    let script = cluster.postgres.dir().join("decrement.sql");
    std::fs::write(&script, "UPDATE stock SET v = v - 1 WHERE id = 1 AND v >= 1;\n")
        .map_err(|error| BenchError::new(&error))?;
    let output = cluster
        .postgres
        .pgbench(&["-n", "-M", "prepared", "-c", &connections.to_string(), "-j", "2"], seconds.ceil() as u64, &script)
        .map_err(|error| BenchError::new(&error))?;
    let number = |prefix: &str| {
        let line = output.lines().find_map(|line| line.trim().strip_prefix(prefix))?;
        line.split_whitespace().next()?.parse().ok()
    };
    match (number("tps = "), number("latency average = ")) {
        (Some(per_second), Some(mean)) => {
            Ok(ToolResult { per_second, requests: per_second * seconds, p50_ms: mean, p99_ms: f64::NAN })
        }
        _ => Err(BenchError::new(&format!("pgbench: {output}"))),
    }
}
