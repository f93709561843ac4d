//! Results, as a table and as JSON.

use std::fmt::Write as _;
use std::path::Path;

use serde::Serialize;

use crate::BenchError;

/// One measurement.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The suite.
    pub suite: &'static str,
    /// What was measured.
    pub name: String,
    /// The unit.
    pub unit: &'static str,
    /// Every round, in order.
    pub rounds: Vec<f64>,
    /// The median of the rounds.
    pub median: f64,
    /// The target, if there is one.
    pub target: Option<Target>,
}

/// A bound on the median.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    /// At least this.
    AtLeast(f64),
    /// At most this.
    AtMost(f64),
}

impl Row {
    /// A row from its rounds.
    pub fn new(suite: &'static str, name: impl Into<String>, unit: &'static str, rounds: Vec<f64>) -> Row {
        let mut sorted = rounds.clone();
        sorted.sort_by(f64::total_cmp);
        let median = sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN);
        Row { suite, name: name.into(), unit, rounds, median, target: None }
    }

    /// The same with a target.
    pub fn target(self, target: Target) -> Row {
        Row { target: Some(target), ..self }
    }

    fn verdict(&self) -> String {
        match self.target {
            None => String::new(),
            Some(Target::AtLeast(bound)) if self.median >= bound => format!("≥ {}  met", number(bound)),
            Some(Target::AtLeast(bound)) => format!("≥ {}  MISSED", number(bound)),
            Some(Target::AtMost(bound)) if self.median <= bound => format!("≤ {}  met", number(bound)),
            Some(Target::AtMost(bound)) => format!("≤ {}  MISSED", number(bound)),
        }
    }

    fn spread(&self) -> String {
        let least = self.rounds.iter().copied().fold(f64::INFINITY, f64::min);
        let most = self.rounds.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        if self.rounds.len() < 2 { String::new() } else { format!("{} – {}", number(least), number(most)) }
    }
}

/// The rows as a table.
pub fn table(rows: &[Row]) -> String {
    let cells: Vec<[String; 5]> =
        std::iter::once(["benchmark", "median", "unit", "spread", "target"].map(str::to_owned))
            .chain(rows.iter().map(|row| {
                let name = format!("{}: {}", row.suite, row.name);
                [name, number(row.median), row.unit.to_owned(), row.spread(), row.verdict()]
            }))
            .collect();
    let widths: [usize; 5] =
        std::array::from_fn(|i| cells.iter().map(|row| row[i].chars().count()).max().unwrap_or_default());
    let mut out = String::new();
    for row in &cells {
        for (i, (cell, width)) in row.iter().zip(widths).enumerate() {
            let gap = width - cell.chars().count();
            // Numbers line up on the right.
            let (left, right) = if i == 1 { (gap, 0) } else { (0, gap) };
            let _ = write!(out, "{}{cell}{}  ", " ".repeat(left), " ".repeat(right));
        }
        out.truncate(out.trim_end().len());
        out.push('\n');
    }
    out
}

/// Writes the rows and a description of the machine.
pub fn write_json(path: &Path, rows: &[Row]) -> Result<(), BenchError> {
    #[derive(Serialize)]
    struct BenchReport<'a> {
        machine: HostInfo,
        rows: &'a [Row],
    }
    let document = BenchReport { machine: HostInfo::this(), rows };
    let text = serde_json::to_string_pretty(&document).map_err(|error| BenchError::new(&error))?;
    std::fs::write(path, text + "\n").map_err(|error| BenchError::new(&format!("{}: {error}", path.display())))
}

/// The machine the results are from.
#[derive(Serialize)]
struct HostInfo {
    processor: String,
    cores: usize,
    memory_bytes: u64,
    kernel: String,
}

impl HostInfo {
    fn this() -> HostInfo {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let after_colon = |text: &str, field: &str| {
            let line = text.lines().find(|line| line.starts_with(field)).unwrap_or_default();
            line.split_once(':').map(|(_, value)| value.trim().to_owned()).unwrap_or_default()
        };
        let memory = after_colon(&read("/proc/meminfo"), "MemTotal");
        let kib: u64 = memory.split(' ').next().and_then(|kib| kib.parse().ok()).unwrap_or_default();
        HostInfo {
            processor: after_colon(&read("/proc/cpuinfo"), "model name"),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_bytes: kib * 1024,
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
        }
    }
}

/// Three or four significant digits.
pub fn number(value: f64) -> String {
    match value.abs() {
        size if size >= 1e6 => format!("{:.2} M", value / 1e6),
        size if size >= 1e4 => format!("{:.1} k", value / 1e3),
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}
