//! A turn: everything that arrived on one thread's connections while the last turn was being read.
//!
//! Connections put their commands into the turn as they read them. When all that are ready have been read, the turn
//! goes to the engine as a whole, and the next one fills while this one is flushed. Replies are written straight to the
//! sockets, in the order of the commands.
//!
//! What needs no flush does not wait for one. As long as a connection has only read in this turn, its reads are answered
//! from the state as it is; from its first write on, everything it sends goes behind that write, in the same submission.
//! So the commands of a connection fall into *shares*: commands in a row whose outcomes come from one submission.

use std::ops::Range;
use std::rc::Rc;
use std::task::Poll;

use tally_core::batch::Events;
use tally_core::outcome::{Outcome, Reads, Receipt, Refusal};
use tally_core::surface::EngineError;

use super::connection::Connection;
use super::plan::Plan;
use super::reply::{Reply, Version};
use crate::limits::{
    RESP_SEGMENT_BYTES, RESP_SEGMENT_BYTES_MAX, RESP_SEGMENT_EVENTS, RESP_SEGMENT_EVENTS_MAX, RESP_SEGMENT_PARTS,
    RESP_SEGMENT_PARTS_MAX,
};
use crate::metrics::{ProtocolMetrics, Stopwatch, Verb};
use crate::policy::Consistency;
use crate::service::{Failure, Service};

/// Commands of many connections on their way to the engine.
#[derive(Default)]
pub struct Turn {
    /// Events that only read, answered before anything is submitted.
    reads: Vec<Segment>,
    /// Everything else. Each is one submission.
    writes: Vec<Segment>,
    plans: Vec<Plan>,
    /// Replies that were known at once, in order.
    bytes: Vec<u8>,
    shares: Vec<Share>,
    /// The share that is being filled.
    open: OpenShare,
    counts: Counts,
}

/// How a command went, as far as its answer's wording says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Went {
    /// It was carried out, or will be with the turn.
    Through,
    /// It was not understood.
    Refused,
    /// It was understood, and the server cannot do it now.
    Unserved,
}

/// Commands by what they ask for, and since when the oldest waits.
#[derive(Default)]
struct Counts {
    through: [u32; Verb::ALL.len()],
    refused: [u32; Verb::ALL.len()],
    unserved: [u32; Verb::ALL.len()],
    since: Option<Stopwatch>,
}

impl Counts {
    fn add(&mut self, verb: Verb, went: Went, times: u32) {
        let counts = match went {
            Went::Through => &mut self.through,
            Went::Refused => &mut self.refused,
            Went::Unserved => &mut self.unserved,
        };
        if let Some(count) = counts.get_mut(verb as usize) {
            *count += times;
        }
        self.since.get_or_insert_with(Stopwatch::start);
    }

    fn tell(&mut self, metrics: &ProtocolMetrics, failed: bool) {
        let Some(since) = self.since.take() else { return };
        let through = (&mut self.through, if failed { FAILED } else { OK });
        for (counts, status) in [through, (&mut self.refused, REFUSED), (&mut self.unserved, FAILED)] {
            for (verb, count) in Verb::ALL.into_iter().zip(counts).filter(|(_, count)| **count > 0) {
                metrics.requests(verb, status, u64::from(std::mem::take(count)), &since);
            }
        }
    }
}

/// In metrics, what HTTP says of a request that was carried out.
pub const OK: u16 = 200;
/// Of one that was not understood.
const REFUSED: u16 = 400;
/// Of one that the server could not carry out.
pub const FAILED: u16 = 503;

/// Events that are submitted together.
struct Segment {
    events: Events,
    /// The strongest that any of them asks for: they are answered together.
    consistency: Consistency,
    /// It begins within the commands of one connection, so it is submitted once what is before it has been applied.
    continues: bool,
}

impl Segment {
    /// Whether it takes more events: of the connection that has some in it already, or of another one.
    fn has_room(&self, continues: bool) -> bool {
        let (events_max, parts_max, bytes_max) = match continues {
            true => (RESP_SEGMENT_EVENTS_MAX, RESP_SEGMENT_PARTS_MAX, RESP_SEGMENT_BYTES_MAX),
            false => (RESP_SEGMENT_EVENTS, RESP_SEGMENT_PARTS, RESP_SEGMENT_BYTES),
        };
        let batch = self.events.batch();
        batch.len() < events_max && self.events.outcomes_len() < parts_max && batch.bytes() < bytes_max
    }
}

/// Where the outcomes of a share come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Source {
    /// It has none: all of its replies are known.
    #[default]
    Nowhere,
    /// This segment of reads.
    Read(usize),
    /// This segment of writes.
    Write(usize),
}

/// Commands of one connection in a row, whose outcomes come from one segment.
struct Share {
    connection: Rc<Connection>,
    version: Version,
    plans: Range<usize>,
    /// Where its known replies begin.
    bytes: usize,
    source: Source,
    /// Which outcomes of the segment are its own.
    outcomes: Range<usize>,
}

/// A share that is being filled.
#[derive(Default)]
struct OpenShare {
    connection: Option<Rc<Connection>>,
    version: Version,
    plans: usize,
    bytes: usize,
    source: Source,
    outcomes: usize,
    /// The connection has events in a segment of writes, so everything it sends goes behind them.
    has_written: bool,
}

/// How much a turn holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Commands; those planned together count once.
    pub commands: usize,
    /// Events of these commands.
    pub events: usize,
    /// Bytes of replies that are already known.
    pub reply_bytes: usize,
}

impl Load {
    /// Both together.
    pub fn plus(self, other: Load) -> Load {
        Load {
            commands: self.commands + other.commands,
            events: self.events + other.events,
            reply_bytes: self.reply_bytes + other.reply_bytes,
        }
    }

    /// What is left without `other`.
    pub fn minus(self, other: Load) -> Load {
        Load {
            commands: self.commands.saturating_sub(other.commands),
            events: self.events.saturating_sub(other.events),
            reply_bytes: self.reply_bytes.saturating_sub(other.reply_bytes),
        }
    }
}

impl Turn {
    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.shares.is_empty()
    }

    /// How much it holds.
    pub fn load(&self) -> Load {
        let segments = self.reads.iter().chain(&self.writes);
        let events = segments.map(|segment| segment.events.len()).sum();
        Load { commands: self.plans.len(), events, reply_bytes: self.bytes.len() }
    }

    /// Bytes of replies that are already known.
    pub fn reply_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Counts a command.
    #[inline]
    pub fn count(&mut self, verb: Verb, went: Went) {
        self.counts.add(verb, went, 1);
    }

    /// Counts a command that was sent this many times.
    #[inline]
    pub fn count_times(&mut self, verb: Verb, times: u32) {
        self.counts.add(verb, Went::Through, times);
    }

    /// What comes from here on is this connection's.
    pub fn begin(&mut self, connection: &Rc<Connection>, version: Version) {
        self.open = OpenShare { connection: Some(Rc::clone(connection)), version, ..OpenShare::default() };
        self.reopen();
    }

    /// From here on the connection speaks this version.
    pub fn set_version(&mut self, version: Version) {
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

    /// Closes the open share, if it has commands, and begins another of the same connection.
    fn cut(&mut self) {
        let open = &self.open;
        if let Some(connection) = open.connection.as_ref().filter(|_| self.plans.len() > open.plans) {
            connection.begin();
            self.shares.push(Share {
                connection: Rc::clone(connection),
                version: open.version,
                plans: open.plans..self.plans.len(),
                bytes: open.bytes,
                source: open.source,
                outcomes: open.outcomes..self.outcomes_of(open.source),
            });
        }
        self.reopen();
    }

    fn reopen(&mut self) {
        (self.open.plans, self.open.bytes) = (self.plans.len(), self.bytes.len());
        self.open.outcomes = self.outcomes_of(self.open.source);
    }

    /// How many outcomes a segment will have, as far as it is filled.
    fn outcomes_of(&self, source: Source) -> usize {
        let segment = match source {
            Source::Nowhere => None,
            Source::Read(number) => self.reads.get(number),
            Source::Write(number) => self.writes.get(number),
        };
        segment.map_or(0, |segment| segment.events.outcomes_len())
    }

    /// Where the events of a command go that only reads; they stay together.
    pub fn read_events(&mut self, service: &Service, consistency: Consistency) -> Result<&mut Events, Failure> {
        if self.open.has_written {
            return self.events(service, consistency);
        }
        let continues = matches!(self.open.source, Source::Read(_));
        let number = fill(&mut self.reads, continues, service, consistency)?;
        self.take_from(Source::Read(number));
        Ok(&mut self.reads[number].events)
    }

    /// Where the events of any other command go; they stay together.
    #[inline]
    pub fn events(&mut self, service: &Service, consistency: Consistency) -> Result<&mut Events, Failure> {
        let continues = std::mem::replace(&mut self.open.has_written, true);
        let number = fill(&mut self.writes, continues, service, consistency)?;
        self.take_from(Source::Write(number));
        Ok(&mut self.writes[number].events)
    }

    /// The outcomes of what follows come from this segment.
    #[inline]
    fn take_from(&mut self, source: Source) {
        if self.open.source == source {
            return;
        }
        // Replies that are known do not mind which share they are in.
        if self.open.source != Source::Nowhere {
            self.cut();
        }
        self.open.source = source;
        self.open.outcomes = self.outcomes_of(source);
    }

    /// Adds the reply of a command whose events were added.
    #[inline]
    pub fn plan(&mut self, plan: Plan) {
        self.plans.push(plan);
    }

    /// Adds a reply that is known already.
    pub fn reply(&mut self, version: Version, write: impl FnOnce(&mut Reply<'_>)) {
        let before = self.bytes.len();
        write(&mut Reply::new(&mut self.bytes, version));
        let mut len = self.bytes.len() - before;
        // Plans count in 32 bits; a longer reply is several.
        while len > 0 {
            let part = u32::try_from(len).unwrap_or(u32::MAX);
            self.plans.push(Plan::Bytes(part));
            len -= part as usize;
        }
    }

    /// Adds a reply that was written elsewhere.
    pub fn known_reply(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        self.plans.push(Plan::Bytes(u32::try_from(bytes.len()).unwrap_or(u32::MAX)));
    }

    /// The replies that are known already, one after the other.
    pub fn known(&self) -> &[u8] {
        &self.bytes
    }

    /// Submits everything and answers every share as soon as its outcomes may be shown. What is left is empty and can be
    /// used again.
    pub async fn run(&mut self, service: &Service, metrics: &ProtocolMetrics) {
        let mut failed = false;
        let shares = std::mem::take(&mut self.shares);
        // Reads come first: what the same connection writes behind them must not show in them.
        let mut reads = Vec::with_capacity(self.reads.len());
        for Segment { events, consistency, .. } in self.reads.drain(..) {
            reads.push(service.read_events(events, consistency).await);
        }
        let (mut writing, mut waiting) = (Vec::new(), Vec::new());
        for share in shares {
            match share.source {
                Source::Write(_) => writing.push(share),
                Source::Read(number) if share.is_unflushed(reads.get(number)) => waiting.push((number, share)),
                Source::Read(number) => self.answer(&share, read_outcomes(reads.get(number))),
                Source::Nowhere => self.answer(&share, Ok(&[])),
            }
        }
        let mut settled = Vec::with_capacity(self.writes.len());
        let mut submitted = Vec::with_capacity(self.writes.len());
        for Segment { events, consistency, continues } in self.writes.drain(..) {
            if continues {
                settle(&mut submitted, &mut settled).await;
            }
            let mut call = Box::pin(service.submit(events, consistency));
            // The first poll submits, so that one flush may do for many.
            let first = std::future::poll_fn(|context| Poll::Ready(call.as_mut().poll(context))).await;
            submitted.push(Submitted { call, first });
        }
        // These rest on earlier flushes than the writes do.
        for (number, share) in waiting {
            let durable = match reads.get(number) {
                Some(Ok(reads)) => service.durable(reads.receipt.token.clone()).await,
                _ => Ok(()),
            };
            failed |= durable.is_err();
            match &durable {
                Ok(()) => self.answer(&share, read_outcomes(reads.get(number))),
                Err(failure) => self.answer(&share, Err(failure)),
            }
        }
        settle(&mut submitted, &mut settled).await;
        for share in &writing {
            let Source::Write(number) = share.source else { continue };
            let outcomes = match settled.get(number) {
                Some(Ok(receipt)) => Ok(receipt.outcomes.as_slice()),
                Some(Err(failure)) => Err(failure),
                None => Ok(&[][..]),
            };
            self.answer(share, outcomes);
        }
        failed |= settled.iter().any(Result::is_err) || reads.iter().any(Result::is_err);
        self.counts.tell(metrics, failed);
        self.plans.clear();
        self.bytes.clear();
    }

    /// Writes the replies of one share, given all outcomes of its segment.
    fn answer(&self, share: &Share, outcomes: Result<&[Outcome], &Failure>) {
        let plans = self.plans.get(share.plans.clone()).unwrap_or_default();
        let own = outcomes.map(|outcomes| outcomes.get(share.outcomes.clone()));
        // Whatever the commands were promised, they are never given another one's outcomes.
        let planned: usize = plans.iter().map(|plan| plan.outcomes()).sum();
        let unknown = Failure::Engine(EngineError::OutcomeUnknown("the outcomes do not fit the commands".into()));
        let own = match own {
            Ok(Some(own)) if own.len() == planned => Ok(own),
            Err(failure) => Err(failure),
            Ok(_) => {
                tracing::error!(planned, share = ?share.outcomes, "a connection's outcomes do not fit its commands");
                Err(&unknown)
            }
        };
        share.connection.answer(|out| {
            let mut bytes = self.bytes.get(share.bytes..).unwrap_or_default();
            let mut taken = 0;
            for plan in plans {
                if let Plan::Bytes(len) = plan {
                    let (known, rest) = bytes.split_at_checked(*len as usize).unwrap_or((bytes, &[]));
                    out.extend_from_slice(known);
                    bytes = rest;
                    continue;
                }
                let mut reply = Reply::new(out, share.version);
                match own {
                    Ok(own) => {
                        let outcomes = own.get(taken..taken + plan.outcomes()).unwrap_or_default();
                        taken += plan.outcomes();
                        write_reply(*plan, outcomes, &mut reply);
                    }
                    Err(failure) => write_failure(*plan, failure, &mut reply),
                }
            }
        });
    }
}

impl Share {
    /// Whether any of its outcomes rests on what is not flushed.
    fn is_unflushed(&self, reads: Option<&Result<Reads, Failure>>) -> bool {
        let Some(Ok(reads)) = reads else { return false };
        let from = reads.unflushed.partition_point(|place| (*place as usize) < self.outcomes.start);
        reads.unflushed.get(from).is_some_and(|place| self.outcomes.contains(&(*place as usize)))
    }
}

fn read_outcomes(reads: Option<&Result<Reads, Failure>>) -> Result<&[Outcome], &Failure> {
    match reads {
        Some(Ok(reads)) => Ok(&reads.receipt.outcomes),
        Some(Err(failure)) => Err(failure),
        None => Ok(&[]),
    }
}

#[inline]
fn write_reply(plan: Plan, outcomes: &[Outcome], reply: &mut Reply<'_>) {
    if outcomes.iter().any(|outcome| outcome.refusal == Some(Refusal::NoRoom)) {
        return write_failure(plan, &Failure::Engine(EngineError::DiskFull), reply);
    }
    plan.write(outcomes, reply);
}

/// Each request of the plan gets the error.
fn write_failure(plan: Plan, failure: &Failure, reply: &mut Reply<'_>) {
    let text = super::errors::failure(failure);
    (0..plan.replies()).for_each(|_| reply.error(&text));
}

/// The number of the segment that takes more events, a new one if need be.
#[inline]
fn fill(
    segments: &mut Vec<Segment>,
    continues: bool,
    service: &Service,
    consistency: Consistency,
) -> Result<usize, Failure> {
    if !segments.last().is_some_and(|segment| segment.has_room(continues)) {
        segments.push(Segment { events: service.events()?, consistency, continues });
    }
    let last = segments.len() - 1;
    segments[last].consistency = segments[last].consistency.max(consistency);
    Ok(last)
}

/// A segment on its way.
struct Submitted<C> {
    call: C,
    /// What the first poll came to.
    first: Poll<Result<Receipt, Failure>>,
}

/// Waits for what was submitted.
async fn settle<C>(submitted: &mut Vec<Submitted<C>>, settled: &mut Vec<Result<Receipt, Failure>>)
where
    C: Future<Output = Result<Receipt, Failure>>,
{
    for Submitted { call, first } in submitted.drain(..) {
        settled.push(match first {
            Poll::Ready(receipt) => receipt,
            Poll::Pending => call.await,
        });
    }
}
