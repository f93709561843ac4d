//! A turn: everything that arrived on one thread's connections while the last turn was being read, as one submission.
//!
//! Connections put their commands into the turn as they read them. When all that are ready have been read, the turn
//! goes to the engine as a whole, and the next one fills while this one is flushed. Answers are written straight to the
//! sockets, in the order of the commands.

use std::rc::Rc;
use std::task::Poll;

use tally_core::batch::Events;
use tally_core::outcome::{Outcome, Receipt};
use tally_core::surface::Durability;

use super::connection::Connection;
use super::plan::Plan;
use super::reply::{Reply, Version};
use crate::limits::{
    RESP_SEGMENT_BYTES, RESP_SEGMENT_BYTES_MAX, RESP_SEGMENT_EVENTS, RESP_SEGMENT_EVENTS_MAX, RESP_SEGMENT_PARTS,
    RESP_SEGMENT_PARTS_MAX,
};
use crate::metrics::{ProtocolMetrics, Stopwatch, Verb};
use crate::service::{Failure, Service};

/// Commands of many connections on their way to the engine.
#[derive(Default)]
pub struct Turn {
    /// What is submitted, in order. Each is one submission.
    segments: Vec<Segment>,
    /// Whether the connection at hand has events in the last of them.
    has_begun: bool,
    plans: Vec<Plan>,
    /// Replies that were known at once, in order.
    bytes: Vec<u8>,
    shares: Vec<Share>,
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
    /// The most that any of them asks for: they are answered together.
    durability: Durability,
    /// It begins within the commands of one connection, so it has to wait for what is before it. An event may be put off
    /// and tried again, and what the connection sent behind it must come behind it.
    continues: bool,
}

impl Segment {
    /// Whether it takes more events: of the connection that has some in it already, or of another one.
    fn has_room(&self, has_begun: bool) -> bool {
        let (events_max, parts_max, bytes_max) = match has_begun {
            true => (RESP_SEGMENT_EVENTS_MAX, RESP_SEGMENT_PARTS_MAX, RESP_SEGMENT_BYTES_MAX),
            false => (RESP_SEGMENT_EVENTS, RESP_SEGMENT_PARTS, RESP_SEGMENT_BYTES),
        };
        let batch = self.events.batch();
        batch.len() < events_max && self.events.len() < parts_max && batch.bytes() < bytes_max
    }
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

/// The commands of one connection.
struct Share {
    connection: Rc<Connection>,
    version: Version,
    plans: usize,
}

/// What became of a segment.
struct Settled {
    outcomes: usize,
    receipt: Result<Receipt, Failure>,
}

impl Turn {
    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.shares.is_empty()
    }

    /// How many plans wait.
    pub fn plans(&self) -> usize {
        self.plans.len()
    }

    /// How much it holds.
    pub fn load(&self) -> Load {
        let events = self.segments.iter().map(|segment| segment.events.len()).sum();
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

    /// Counts a command that was sent so many times.
    #[inline]
    pub fn count_times(&mut self, verb: Verb, times: u32) {
        self.counts.add(verb, Went::Through, times);
    }

    /// What comes from here on is another connection's.
    pub fn begin_share(&mut self) {
        self.has_begun = false;
    }

    /// Where the next command's events go; they stay together.
    #[inline]
    pub fn events(&mut self, service: &Service, durability: Durability) -> Result<&mut Events, Failure> {
        let continues = std::mem::replace(&mut self.has_begun, true);
        if !self.segments.last().is_some_and(|segment| segment.has_room(continues)) {
            self.segments.push(Segment { events: service.events()?, durability, continues });
        }
        let segment = self.segments.last_mut().ok_or(Failure::Recovering)?;
        segment.durability = segment.durability.max(durability);
        Ok(&mut segment.events)
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

    /// Hands all plans since `from` to a connection.
    pub fn share(&mut self, connection: &Rc<Connection>, version: Version, from: usize) {
        let plans = self.plans.len() - from;
        if plans > 0 {
            self.shares.push(Share { connection: Rc::clone(connection), version, plans });
        }
    }

    /// Submits everything and answers every connection once it is settled. What is left is empty and can be used again.
    pub async fn run(&mut self, service: &Service, metrics: &ProtocolMetrics) {
        let mut settled = Vec::with_capacity(self.segments.len());
        let mut submitted = Vec::with_capacity(self.segments.len());
        for Segment { events, durability, continues } in self.segments.drain(..) {
            if continues {
                settle(&mut submitted, &mut settled).await;
            }
            let outcomes = events.outcomes_len();
            let mut call = Box::pin(service.submit(events, durability));
            // The first look submits, so that one flush may do for many.
            let first = std::future::poll_fn(|context| Poll::Ready(call.as_mut().poll(context))).await;
            submitted.push(Submitted { outcomes, call, first });
        }
        settle(&mut submitted, &mut settled).await;
        self.answer(&settled);
        self.counts.tell(metrics, settled.iter().any(|settled| settled.receipt.is_err()));
        self.plans.clear();
        self.bytes.clear();
    }

    fn answer(&mut self, settled: &[Settled]) {
        let mut outcomes = Outcomes::new(settled);
        let mut plans = self.plans.iter();
        let mut bytes = &self.bytes[..];
        for share in self.shares.drain(..) {
            share.connection.answer(|out| {
                for plan in plans.by_ref().take(share.plans) {
                    if let Plan::Bytes(len) = plan {
                        let (known, rest) = bytes.split_at_checked(*len as usize).unwrap_or((bytes, &[]));
                        out.extend_from_slice(known);
                        bytes = rest;
                        continue;
                    }
                    let mut reply = Reply::new(out, share.version);
                    match outcomes.take(plan.outcomes()) {
                        Ok(outcomes) => plan.write(outcomes, &mut reply),
                        Err(failure) => {
                            let text = super::errors::failure(failure);
                            (0..plan.replies()).for_each(|_| reply.error(&text));
                        }
                    }
                }
            });
        }
    }
}

/// A segment on its way.
struct Submitted<C> {
    outcomes: usize,
    call: C,
    /// What the first look came to.
    first: Poll<Result<Receipt, Failure>>,
}

/// Waits for what was submitted.
async fn settle<C>(submitted: &mut Vec<Submitted<C>>, settled: &mut Vec<Settled>)
where
    C: Future<Output = Result<Receipt, Failure>>,
{
    for Submitted { outcomes, call, first } in submitted.drain(..) {
        let receipt = match first {
            Poll::Ready(receipt) => receipt,
            Poll::Pending => call.await,
        };
        settled.push(Settled { outcomes, receipt });
    }
}

/// The outcomes of all segments, in order.
struct Outcomes<'a> {
    settled: std::slice::Iter<'a, Settled>,
    current: Option<&'a Settled>,
    taken: usize,
}

impl<'a> Outcomes<'a> {
    fn new(settled: &'a [Settled]) -> Self {
        let mut settled = settled.iter();
        let current = settled.next();
        Outcomes { settled, current, taken: 0 }
    }

    /// The next `count` outcomes: those of one command, which never spans segments.
    #[inline]
    fn take(&mut self, count: usize) -> Result<&'a [Outcome], &'a Failure> {
        while let Some(current) = self.current
            && self.taken + count > current.outcomes
        {
            self.current = self.settled.next();
            self.taken = 0;
        }
        let from = self.taken;
        self.taken += count;
        match self.current.map(|current| &current.receipt) {
            Some(Ok(receipt)) => Ok(receipt.outcomes.get(from..from + count).unwrap_or_default()),
            Some(Err(failure)) => Err(failure),
            None => Ok(&[]),
        }
    }
}
