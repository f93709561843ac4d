//! The server over HTTP, loaded by wrk.

use std::path::Path;
use std::process::Command;

use crate::progress::BenchProgress;
use crate::report::{Row, Target};
use crate::server::Tally;
use crate::{BenchError, Options};

const CONNECTIONS: usize = 64;
const BATCH: usize = 1_000;

/// A wrk load; everything but a plain GET needs a Lua script.
struct HttpLoad {
    name: &'static str,
    path: &'static str,
    script: Option<String>,
}

fn loads() -> [HttpLoad; 4] {
    let items: Vec<String> = (0..BATCH).map(|i| format!(r#"{{"key":"bench:{}","amount":1}}"#, i * 7919)).collect();
    let batch = format!(r#"{{"increments":[{}]}}"#, items.join(","));
    [
        HttpLoad { name: "GET /livez", path: "/livez", script: None },
        HttpLoad {
            name: "single increments, one key",
            path: "/",
            script: Some(post("/api/v1/counters/hot/increment", "")),
        },
        HttpLoad { name: "reads, one key", path: "/api/v1/counters/hot", script: None },
        HttpLoad {
            name: "batches of 1,000",
            path: "/",
            script: Some(post("/api/v1/counters/batch-increment", &batch)),
        },
    ]
}

fn post(path: &str, body: &str) -> String {
    format!(
        "wrk.method = \"POST\"\nwrk.path = \"{path}\"\nwrk.body = '{body}'\nwrk.headers[\"Content-Type\"] = \"application/json\"\n"
    )
}

/// Runs the suite with interleaved rounds.
pub fn run(options: &Options, progress: &BenchProgress) -> Result<Vec<Row>, BenchError> {
    let dir = options.scratch()?;
    let loads = loads();
    let mut rounds: Vec<Vec<WrkResult>> = loads.iter().map(|_| Vec::new()).collect();
    let server = Tally::start(&dir.path().join("data"))?;
    for round in 0..options.rounds {
        for (load, results) in loads.iter().zip(&mut rounds) {
            progress.show(&format!("http: {} (round {} of {})", load.name, round + 1, options.rounds));
            results.push(wrk(options, dir.path(), &server.url, load)?);
            progress.step();
        }
    }
    Ok(rows(&loads, &rounds))
}

fn rows(loads: &[HttpLoad; 4], rounds: &[Vec<WrkResult>]) -> Vec<Row> {
    let rates = |at: usize| rounds[at].iter().map(|result| result.per_second).collect::<Vec<f64>>();
    let [livez, single, reads, batches] = [0, 1, 2, 3].map(rates);
    let ratios = single.iter().zip(&livez).map(|(single, livez)| single / livez).collect();
    let batched = batches.iter().map(|rate| rate * BATCH as f64).collect();
    let p99 = |at: usize| rounds[at].iter().map(|result| result.p99_ms).collect::<Vec<f64>>();
    vec![
        Row::new("http", loads[0].name, "requests/s", livez),
        Row::new("http", loads[1].name, "increments/s", single),
        Row::new("http", "single increments ÷ GET /livez", "", ratios).target(Target::AtLeast(0.7)),
        Row::new("http", "single increments, p99", "ms", p99(1)),
        Row::new("http", loads[2].name, "requests/s", reads),
        Row::new("http", "reads, p99", "ms", p99(2)),
        Row::new("http", loads[3].name, "increments/s", batched).target(Target::AtLeast(1.5e6)),
    ]
}

#[derive(Clone, Copy, Debug)]
struct WrkResult {
    per_second: f64,
    p99_ms: f64,
}

fn wrk(options: &Options, dir: &Path, url: &str, load: &HttpLoad) -> Result<WrkResult, BenchError> {
    let mut command = Command::new("wrk");
    command.args(["--latency", "-t2", &format!("-c{CONNECTIONS}"), &format!("-d{}s", options.seconds.ceil())]);
    if let Some(script) = &load.script {
        let path = dir.join("load.lua");
        std::fs::write(&path, script).map_err(|error| BenchError::new(&error))?;
        command.arg("-s").arg(path);
    }
    let output = command.arg(format!("{url}{}", load.path)).output().map_err(|error| {
        BenchError::new(&format!("cannot start wrk ({error}); install it with `make bench` or `apt-get install wrk`"))
    })?;
    let text = String::from_utf8_lossy(&output.stdout);
    if text.contains("Non-2xx") || text.contains("Socket errors") {
        return Err(BenchError::new(&format!("{}: some requests failed:\n{text}", load.name)));
    }
    let field = |name: &str| {
        let line = text.lines().map(str::trim).find(|line| line.starts_with(name))?;
        line.split_whitespace().nth(1).map(str::to_owned)
    };
    let per_second = field("Requests/sec:").and_then(|rate| rate.parse().ok());
    let p99_ms = field("99%").and_then(|latency| milliseconds(&latency));
    match (per_second, p99_ms) {
        (Some(per_second), Some(p99_ms)) => Ok(WrkResult { per_second, p99_ms }),
        _ => Err(BenchError::new(&format!("cannot parse the output of wrk:\n{text}"))),
    }
}

fn milliseconds(latency: &str) -> Option<f64> {
    let unit_at = latency.find(|c: char| c.is_ascii_alphabetic())?;
    let (value, unit) = latency.split_at(unit_at);
    let factor = match unit {
        "us" => 1e-3,
        "ms" => 1.0,
        "s" => 1e3,
        _ => return None,
    };
    Some(value.parse::<f64>().ok()? * factor)
}
