//! Ten million counters: memory, throughput, restart time and checkpoint time.
//!
//! Memory and crashes need a separate process, so this suite starts itself as a child.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tally_contract::block_on;
use tally_core::key::KeyRef;
use tally_core::limits::MEMORY_BYTES_DEFAULT;
use tally_core::surface::{Engine, SubmitOptions};
use tally_engine::clock::SystemClock;
use tally_engine::disk::{Disk, RealDisk};
use tally_engine::{Embedded, Machine, Nudge, Settings, Step};

use crate::engine::open;
use crate::in_process::{CALL_EVENTS, EventPattern, key_of, throughput};
use crate::progress::BenchProgress;
use crate::report::{Row, Target};
use crate::timer::Timer;
use crate::usage::resident_bytes;
use crate::{BenchError, Options};

const FEW: u64 = 100_000;
const LARGE_BUDGET_BYTES: u64 = 4 << 30;

/// Arguments of a child process.
#[derive(Clone, Debug, clap::Args)]
pub struct ChildArgs {
    /// Data directory.
    #[arg(long)]
    data: PathBuf,
    /// Memory budget in bytes.
    #[arg(long)]
    memory: u64,
    /// Counters to create.
    #[arg(long)]
    counters: u64,
    /// Seconds of random increments afterwards.
    #[arg(long)]
    seconds: f64,
    /// How it exits.
    #[arg(long)]
    end: End,
}

/// How a child process exits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum End {
    /// Closes the engine.
    Close,
    /// Aborts without closing, like a crash.
    Die,
}

/// Results of a child process.
#[derive(Debug, Serialize, Deserialize)]
struct ChildResult {
    empty_bytes: f64,
    filled_bytes: f64,
    peak_bytes: f64,
    per_second: f64,
}

/// Runs a child process.
pub fn child(args: &ChildArgs) -> Result<(), BenchError> {
    let engine = open(&args.data, args.memory)?;
    let (empty_bytes, _) = resident_bytes(std::process::id());
    fill(&engine, args.counters)?;
    let (filled_bytes, _) = resident_bytes(std::process::id());
    let per_second = if args.seconds > 0.0 {
        throughput(&engine, EventPattern::Random(args.counters), args.seconds, 1)?
    } else {
        0.0
    };
    let (_, peak_bytes) = resident_bytes(std::process::id());
    let found = ChildResult { empty_bytes, filled_bytes, peak_bytes, per_second };
    println!("{}", serde_json::to_string(&found).map_err(|error| BenchError::new(&error))?);
    match args.end {
        End::Close => engine.close().map_err(|error| BenchError::new(&error)),
        End::Die => std::process::abort(),
    }
}

fn fill(engine: &Embedded, counters: u64) -> Result<(), BenchError> {
    let mut key = [0; 20];
    let mut number = 0;
    while number < counters {
        let mut events = engine.events();
        for _ in 0..(CALL_EVENTS * 8) as u64 {
            if number == counters {
                break;
            }
            key_of(number, &mut key);
            if let Ok(key) = KeyRef::new(&key) {
                events.add(key, 1);
            }
            number += 1;
        }
        block_on(engine.submit(events, SubmitOptions::default())).map_err(|error| BenchError::new(&error))?;
    }
    Ok(())
}

fn run_child(data: &Path, memory: u64, counters: u64, seconds: f64, end: &str) -> Result<ChildResult, BenchError> {
    let this = std::env::current_exe().map_err(|error| BenchError::new(&error))?;
    let output = Command::new(this)
        .args(["child", "--end", end, "--memory", &memory.to_string(), "--counters", &counters.to_string()])
        .args(["--seconds", &seconds.to_string(), "--data"])
        .arg(data)
        .output()
        .map_err(|error| BenchError::new(&error))?;
    serde_json::from_slice(&output.stdout).map_err(|_| {
        let said = String::from_utf8_lossy(&output.stderr);
        BenchError::new(&format!("the child process failed: {said}"))
    })
}

/// Runs the suite.
pub fn run(options: &Options, progress: &BenchProgress) -> Result<Vec<Row>, BenchError> {
    let many = options.counters;
    let dir = options.scratch()?;
    let data = |name: &str| dir.path().join(name);
    let show = |what: &str| progress.show(&format!("scale: {what}"));

    show("100 k counters");
    let few = run_child(&data("few"), MEMORY_BYTES_DEFAULT, FEW, options.seconds * 2.0, "close")?;
    progress.step();
    show("all counters, default budget");
    let tight = run_child(&data("tight"), MEMORY_BYTES_DEFAULT, many, options.seconds * 2.0, "die")?;
    progress.step();
    show("all counters, large budget");
    let roomy = run_child(&data("roomy"), LARGE_BUDGET_BYTES, many, options.seconds * 2.0, "close")?;
    progress.step();
    show("restarts");
    let after_crash = restart(&data("tight"))?;
    let after_close = restart(&data("roomy"))?;
    progress.step();
    let mut rows = vec![
        Row::new("scale", "resident memory at the default budget of 1 GiB", "bytes", vec![tight.peak_bytes])
            .target(Target::AtMost(MEMORY_BYTES_DEFAULT as f64)),
        Row::new(
            "scale",
            "memory per counter, all in memory",
            "bytes",
            vec![(roomy.filled_bytes - roomy.empty_bytes) / many as f64],
        )
        .target(Target::AtMost(120.0)),
        Row::new("scale", "random keys, 100 k counters", "increments/s", vec![few.per_second]),
        Row::new("scale", "random keys, all counters, all in memory", "increments/s", vec![roomy.per_second]),
        Row::new("scale", "random keys, all counters, default budget", "increments/s", vec![tight.per_second]),
        Row::new("scale", "all counters ÷ 100 k, all in memory", "", vec![roomy.per_second / few.per_second])
            .target(Target::AtLeast(1.0 / 3.0)),
        Row::new("scale", "all counters ÷ 100 k, default budget", "", vec![tight.per_second / few.per_second]),
        Row::new("scale", "restart after a crash", "s", vec![after_crash]).target(Target::AtMost(10.0)),
        Row::new("scale", "restart after a clean stop", "s", vec![after_close]).target(Target::AtMost(10.0)),
    ];
    show("checkpoints");
    rows.extend(checkpoints(&data("roomy"), many)?);
    progress.step();
    Ok(rows)
}

fn restart(data: &Path) -> Result<f64, BenchError> {
    let timer = Timer::start();
    let engine = open(data, MEMORY_BYTES_DEFAULT)?;
    let seconds = timer.seconds();
    engine.close().map_err(|error| BenchError::new(&error))?;
    Ok(seconds)
}

/// Duration of a checkpoint, by number of changed counters.
fn checkpoints(data: &Path, counters: u64) -> Result<Vec<Row>, BenchError> {
    let disk: Arc<dyn Disk> = Arc::new(RealDisk::new(data).map_err(|error| BenchError::new(&error))?);
    let settings = Settings { memory_bytes: LARGE_BUDGET_BYTES, ..Settings::default() };
    let machine = Machine::open(disk, Arc::new(SystemClock), settings, &mut |_, _| {})
        .map_err(|error| BenchError::new(&error))?;
    let mut rows = Vec::new();
    for changed in [1_000, 10_000, 100_000, 1_000_000] {
        touch(&machine, counters, changed)?;
        let timer = Timer::start();
        if let Some(mut checkpoint) = machine.checkpoint() {
            while checkpoint.step().map_err(|error| BenchError::new(&error))? != Step::Done {}
        }
        let milliseconds = timer.seconds() * 1e3;
        rows.push(Row::new("scale", format!("checkpoint of {changed} changed counters"), "ms", vec![milliseconds]));
    }
    Ok(rows)
}

/// Changes `changed` counters, spread evenly.
fn touch(machine: &Machine, counters: u64, changed: u64) -> Result<(), BenchError> {
    let mut key = [0; 20];
    for first in (0..changed).step_by(CALL_EVENTS) {
        let mut events = machine.events();
        for at in first..changed.min(first + CALL_EVENTS as u64) {
            key_of(at * (counters / changed).max(1), &mut key);
            if let Ok(key) = KeyRef::new(&key) {
                events.add(key, 1);
            }
        }
        let drive = |nudge: Nudge| {
            if nudge != Nudge::None {
                machine.seal();
                let _ = machine.flush();
                machine.maintain_journal();
            }
        };
        block_on(machine.submit(events, tally_engine::Durability::Flushed, drive))
            .map_err(|error| BenchError::new(&error))?;
    }
    Ok(())
}
