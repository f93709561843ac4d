//! Counts the commands of a turn, so that each is in the metrics before its reply is written.

use std::ops::Range;

use crate::metrics::{ProtocolMetrics, Stopwatch, Verb};

/// The result of a command, for the metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandStatus {
    /// It was executed, or will be with the turn.
    Accepted,
    /// It was invalid.
    Refused,
    /// It was valid, but the server could not execute it.
    Failed,
}

impl CommandStatus {
    const ALL: [CommandStatus; 3] = [CommandStatus::Accepted, CommandStatus::Refused, CommandStatus::Failed];

    /// The corresponding HTTP status: the metrics of all protocols use the same labels.
    pub fn http(self) -> u16 {
        match self {
            CommandStatus::Accepted => 200,
            CommandStatus::Refused => 400,
            CommandStatus::Failed => 503,
        }
    }
}

/// Consecutive commands with the same verb and status.
struct CountRun {
    verb: Verb,
    status: CommandStatus,
    times: u32,
}

/// The commands of a turn in order, run-length encoded.
#[derive(Default)]
pub struct CountRuns {
    runs: Vec<CountRun>,
    /// When the first command was read.
    since: Option<Stopwatch>,
}

impl CountRuns {
    /// Adds commands. Those before `from` belong to earlier shares.
    #[inline]
    pub fn add(&mut self, verb: Verb, status: CommandStatus, times: u32, from: usize) {
        let is_open = self.runs.len() > from;
        match self.runs.last_mut() {
            Some(run) if is_open && run.verb == verb && run.status == status => run.times += times,
            _ => self.runs.push(CountRun { verb, status, times }),
        }
        self.since.get_or_insert_with(Stopwatch::start);
    }

    /// Number of runs.
    pub fn len(&self) -> usize {
        self.runs.len()
    }

    /// Microseconds since the first command was read.
    pub fn micros(&self) -> u64 {
        self.since.as_ref().map_or(0, |since| u64::try_from(since.elapsed().as_micros()).unwrap_or(u64::MAX))
    }

    /// Forgets all commands.
    pub fn clear(&mut self) {
        self.runs.clear();
        self.since = None;
    }
}

/// Commands whose replies are written together.
#[derive(Default)]
pub struct PhaseCounts([[u64; Verb::ALL.len()]; CommandStatus::ALL.len()]);

impl PhaseCounts {
    /// Adds the commands of one share. If its submission failed, its accepted commands failed too.
    pub fn add(&mut self, counts: &CountRuns, share: Range<usize>, submission: CommandStatus) {
        for run in counts.runs.get(share).unwrap_or_default() {
            let status = if run.status == CommandStatus::Accepted { submission } else { run.status };
            if let Some(count) = self.0.get_mut(status as usize).and_then(|verbs| verbs.get_mut(run.verb as usize)) {
                *count += u64::from(run.times);
            }
        }
    }

    /// Records the commands in the metrics.
    pub fn record(self, counts: &CountRuns, metrics: &ProtocolMetrics) {
        let Some(since) = &counts.since else { return };
        for (status, verbs) in CommandStatus::ALL.into_iter().zip(self.0) {
            for (verb, count) in Verb::ALL.into_iter().zip(verbs).filter(|(_, count)| *count > 0) {
                metrics.requests(verb, status.http(), count, since);
            }
        }
    }
}
