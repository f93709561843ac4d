//! A turn: all commands that arrived on one thread's connections during one pass over them.
//!
//! Connections put their commands into the turn as they read them. When all that are ready have been read, the turn
//! goes to the engine as a whole, and the next one fills while this one is flushed. Replies are written straight to the
//! sockets, in the order of the commands.
//!
//! Commands that need no flush do not wait for one. As long as a connection has only read in this turn, its reads are
//! answered from the current state; from its first write on, all its commands are submitted after that write, in order.
//! So the commands of a connection are split into *shares*: consecutive commands whose outcomes come from one
//! submission.
//!
//! A turn knows connections only by number. [`ReplySink`] writes the replies.

mod counts;
mod submit;
#[cfg(test)]
mod tests;

use std::ops::Range;

use tally_core::batch::Events;

pub use self::counts::CommandStatus;
use self::counts::{CountRuns, PhaseCounts};
use super::reply::{ProtocolVersion, Reply};
use super::reply_plan::ReplyPlan;
use super::stats::CommandCounts;
use crate::limits::{
    RESP_SUBMISSION_BYTES, RESP_SUBMISSION_BYTES_MAX, RESP_SUBMISSION_EVENTS, RESP_SUBMISSION_EVENTS_MAX,
    RESP_SUBMISSION_PARTS, RESP_SUBMISSION_PARTS_MAX,
};
use crate::metrics::Verb;
use crate::policy::Consistency;
use crate::service::{Failure, Service};

/// Writes replies to connections.
pub trait ReplySink {
    /// Writes the replies of one share of a connection.
    fn answer(&self, connection: usize, write: impl FnOnce(&mut Vec<u8>));
}

/// Commands of many connections, to be submitted together.
#[derive(Default)]
pub struct Turn {
    /// Events that only read, answered before anything is submitted.
    reads: Vec<TurnSubmission>,
    /// Everything else.
    writes: Vec<TurnSubmission>,
    plans: Vec<ReplyPlan>,
    /// Replies that need no outcome, in order.
    bytes: Vec<u8>,
    shares: Vec<Share>,
    /// The share that is being filled.
    open: OpenShare,
    counts: CountRuns,
    /// Calls of each command, in the order of their first one.
    calls: Vec<(&'static str, CommandCounts)>,
    /// Errors among the replies that need no outcome.
    errors: u64,
}

/// Whether a connection gets replies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Silence {
    /// It does.
    #[default]
    Off,
    /// It does not.
    On,
}

/// Events that go to the engine together.
struct TurnSubmission {
    events: Events,
    /// The strongest consistency of any of them: they are answered together.
    consistency: Consistency,
    /// It continues the commands of a connection, so it is submitted only after the previous one has been applied.
    continues: bool,
}

impl TurnSubmission {
    /// Whether it accepts more events. `continues` is whether they belong to a connection that already has some in it.
    fn has_room(&self, continues: bool) -> bool {
        let (events_max, parts_max, bytes_max) = match continues {
            true => (RESP_SUBMISSION_EVENTS_MAX, RESP_SUBMISSION_PARTS_MAX, RESP_SUBMISSION_BYTES_MAX),
            false => (RESP_SUBMISSION_EVENTS, RESP_SUBMISSION_PARTS, RESP_SUBMISSION_BYTES),
        };
        let batch = self.events.batch();
        batch.len() < events_max && self.events.outcomes_len() < parts_max && batch.bytes() < bytes_max
    }
}

/// Where the outcomes of a share come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum OutcomeSource {
    /// It has none: none of its replies needs an outcome.
    #[default]
    Nowhere,
    /// This submission of reads.
    Read(usize),
    /// This submission of writes.
    Write(usize),
}

/// Consecutive commands of one connection, whose outcomes come from one submission.
struct Share {
    connection: usize,
    version: ProtocolVersion,
    plans: Range<usize>,
    /// Where its replies without outcomes begin.
    bytes: usize,
    source: OutcomeSource,
    /// Its own outcomes among those of the submission.
    outcomes: Range<usize>,
    counts: Range<usize>,
}

/// A share that is being filled.
#[derive(Default)]
struct OpenShare {
    connection: Option<usize>,
    version: ProtocolVersion,
    plans: usize,
    bytes: usize,
    source: OutcomeSource,
    outcomes: usize,
    counts: usize,
    /// The connection has events in a submission of writes, so all its commands follow them.
    has_written: bool,
    silence: Silence,
}

/// The size of a turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TurnLoad {
    /// Commands; equal ones planned together count once.
    pub commands: usize,
    /// Events of these commands.
    pub events: usize,
    /// Bytes of replies that need no outcome.
    pub reply_bytes: usize,
}

impl TurnLoad {
    /// The sum of both.
    pub fn plus(self, other: TurnLoad) -> TurnLoad {
        TurnLoad {
            commands: self.commands + other.commands,
            events: self.events + other.events,
            reply_bytes: self.reply_bytes + other.reply_bytes,
        }
    }

    /// The difference.
    pub fn minus(self, other: TurnLoad) -> TurnLoad {
        TurnLoad {
            commands: self.commands.saturating_sub(other.commands),
            events: self.events.saturating_sub(other.events),
            reply_bytes: self.reply_bytes.saturating_sub(other.reply_bytes),
        }
    }
}

impl Turn {
    /// Number of shares. If zero, there is nothing to submit or to answer.
    pub fn shares(&self) -> usize {
        self.shares.len()
    }

    /// Its size.
    pub fn load(&self) -> TurnLoad {
        let submissions = self.reads.iter().chain(&self.writes);
        let events = submissions.map(|submission| submission.events.len()).sum();
        TurnLoad { commands: self.plans.len(), events, reply_bytes: self.bytes.len() }
    }

    /// Bytes of replies that need no outcome.
    pub fn reply_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Counts a command that was sent this many times in a row, after its events were added.
    #[inline]
    pub fn count(&mut self, (name, verb): (&'static str, Verb), status: CommandStatus, times: u32) {
        self.counts.add(verb, status, times, self.open.counts);
        let times = u64::from(times);
        let counts = match status {
            CommandStatus::Accepted => CommandCounts { calls: times, ..CommandCounts::default() },
            CommandStatus::Refused => CommandCounts { rejected: times, ..CommandCounts::default() },
            CommandStatus::Failed => CommandCounts { failed: times, ..CommandCounts::default() },
        };
        // Usually the last entry, or one of a few.
        match self.calls.iter_mut().rev().find(|(known, _)| std::ptr::eq(*known, name)) {
            Some((_, known)) => known.add(counts),
            None if name.is_empty() => {}
            None => self.calls.push((name, counts)),
        }
    }

    /// Sets whether the commands that follow are answered.
    pub fn set_silence(&mut self, silence: Silence) {
        self.open.silence = silence;
    }

    /// The replies that follow are those of a transaction with this many guards. Returns where they begin.
    pub fn begin_guarded(&mut self, guards: usize) -> usize {
        if guards > 0 {
            self.plan(ReplyPlan::Guards { count: u32::try_from(guards).unwrap_or(u32::MAX), plans: 0 });
        }
        self.plans.len()
    }

    /// The replies of the transaction are complete.
    pub fn end_guarded(&mut self, begin: usize) {
        let following = self.plans.len() - begin;
        if let Some(ReplyPlan::Guards { plans, .. }) = begin.checked_sub(1).and_then(|at| self.plans.get_mut(at)) {
            *plans = u32::try_from(following).unwrap_or(u32::MAX);
        }
    }

    /// The commands that follow come from this connection.
    pub fn begin(&mut self, connection: usize, version: ProtocolVersion) {
        self.open = OpenShare { connection: Some(connection), version, ..OpenShare::default() };
        self.reopen();
    }

    /// The commands that follow are answered in this version of the protocol.
    pub fn set_version(&mut self, version: ProtocolVersion) {
        if version != self.open.version {
            self.cut();
            self.open.version = version;
        }
    }

    /// The connection has nothing more for this turn.
    pub fn end(&mut self) {
        self.cut();
        self.open.connection = None;
    }

    /// Closes the open share, if it has commands, and begins another of the same connection. A command without a reply is
    /// a command too: it is counted with the turn.
    fn cut(&mut self) {
        let open = &self.open;
        let has_commands = self.plans.len() > open.plans || self.counts.len() > open.counts;
        if let Some(connection) = open.connection.filter(|_| has_commands) {
            self.shares.push(Share {
                connection,
                version: open.version,
                plans: open.plans..self.plans.len(),
                bytes: open.bytes,
                source: open.source,
                outcomes: open.outcomes..self.outcomes_of(open.source),
                counts: open.counts..self.counts.len(),
            });
        }
        self.reopen();
    }

    fn reopen(&mut self) {
        (self.open.plans, self.open.bytes) = (self.plans.len(), self.bytes.len());
        self.open.outcomes = self.outcomes_of(self.open.source);
        self.open.counts = self.counts.len();
    }

    /// Number of outcomes that a submission will have, so far.
    fn outcomes_of(&self, source: OutcomeSource) -> usize {
        let submission = match source {
            OutcomeSource::Nowhere => None,
            OutcomeSource::Read(number) => self.reads.get(number),
            OutcomeSource::Write(number) => self.writes.get(number),
        };
        submission.map_or(0, |submission| submission.events.outcomes_len())
    }

    /// Where the events of a command that only reads go. They stay together.
    pub fn read_events(&mut self, service: &Service, consistency: Consistency) -> Result<&mut Events, Failure> {
        if self.open.has_written {
            return self.events(service, consistency);
        }
        let continues = matches!(self.open.source, OutcomeSource::Read(_));
        let number = fill(&mut self.reads, continues, service, consistency)?;
        self.take_from(OutcomeSource::Read(number));
        Ok(&mut self.reads[number].events)
    }

    /// Where the events of any other command go. They stay together.
    #[inline]
    pub fn events(&mut self, service: &Service, consistency: Consistency) -> Result<&mut Events, Failure> {
        let continues = std::mem::replace(&mut self.open.has_written, true);
        let number = fill(&mut self.writes, continues, service, consistency)?;
        self.take_from(OutcomeSource::Write(number));
        Ok(&mut self.writes[number].events)
    }

    /// The outcomes of the commands that follow come from this submission.
    #[inline]
    fn take_from(&mut self, source: OutcomeSource) {
        if self.open.source == source {
            return;
        }
        // Replies that need no outcome can be in any share.
        if self.open.source != OutcomeSource::Nowhere {
            self.cut();
        }
        self.open.source = source;
        self.open.outcomes = self.outcomes_of(source);
    }

    /// Adds the reply of a command whose events were added.
    #[inline]
    pub fn plan(&mut self, plan: ReplyPlan) {
        self.plans.push(match self.open.silence {
            Silence::Off => plan,
            Silence::On => ReplyPlan::Silent { count: u32::try_from(plan.outcomes()).unwrap_or(u32::MAX) },
        });
    }

    /// Adds a reply that needs no outcome.
    pub fn reply(&mut self, version: ProtocolVersion, write: impl FnOnce(&mut Reply<'_>)) {
        let before = self.bytes.len();
        write(&mut Reply::new(&mut self.bytes, version));
        self.errors += u64::from(self.bytes.get(before) == Some(&b'-'));
        if self.open.silence == Silence::On {
            self.bytes.truncate(before);
        }
        self.plan_bytes(self.bytes.len() - before);
    }

    /// Adds a reply that was written elsewhere.
    pub fn known_reply(&mut self, bytes: &[u8]) {
        self.errors += u64::from(bytes.first() == Some(&b'-'));
        if self.open.silence == Silence::On {
            return;
        }
        self.bytes.extend_from_slice(bytes);
        self.plan_bytes(bytes.len());
    }

    /// A plan counts bytes in 32 bits, so a longer reply has several plans.
    fn plan_bytes(&mut self, mut len: usize) {
        while len > 0 {
            let part = u32::try_from(len).unwrap_or(u32::MAX);
            self.plans.push(ReplyPlan::Bytes(part));
            len -= part as usize;
        }
    }
}

/// The index of a submission that accepts more events; adds one if needed.
#[inline]
fn fill(
    submissions: &mut Vec<TurnSubmission>,
    continues: bool,
    service: &Service,
    consistency: Consistency,
) -> Result<usize, Failure> {
    if !submissions.last().is_some_and(|submission| submission.has_room(continues)) {
        submissions.push(TurnSubmission { events: service.events()?, consistency, continues });
    }
    let last = submissions.len() - 1;
    submissions[last].consistency = submissions[last].consistency.max(consistency);
    Ok(last)
}
