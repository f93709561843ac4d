//! Submits a turn and writes the replies of its shares.

use std::task::Poll;

use tally_core::outcome::{Outcome, Reads, Receipt, Refusal};
use tally_core::surface::EngineError;

use super::{CommandStatus, OutcomeSource, PhaseCounts, ReplySink, Share, Turn, TurnSubmission};
use crate::metrics::ProtocolMetrics;
use crate::resp::errors::failure;
use crate::resp::reply::Reply;
use crate::resp::reply_plan::ReplyPlan;
use crate::resp::stats::{CommandCounts, ReplyCounts, RespStats};
use crate::service::{Failure, Service};

/// The outcomes of a submission, or why it has none.
type SubmissionOutcomes<'a> = Result<&'a [Outcome], &'a Failure>;

/// Shares, grouped by when they can be answered.
pub(super) struct Phases<'a> {
    /// At once.
    pub(super) ready: Vec<&'a Share>,
    /// Once what they read is flushed.
    pub(super) waiting: Vec<&'a Share>,
    /// With the writes of the turn.
    pub(super) writing: Vec<&'a Share>,
}

impl<'a> Phases<'a> {
    pub(super) fn of(shares: &'a [Share], reads: &[Result<Reads, Failure>]) -> Self {
        let mut phases = Phases { ready: Vec::new(), waiting: Vec::new(), writing: Vec::new() };
        for share in shares {
            // If a share waits, later shares of the same connection wait too, so that replies stay in order.
            let follows = phases.waiting.last().is_some_and(|waiting| waiting.connection == share.connection);
            match share.source {
                OutcomeSource::Write(_) => phases.writing.push(share),
                _ if follows || share.is_unflushed(reads) => phases.waiting.push(share),
                _ => phases.ready.push(share),
            }
        }
        phases
    }
}

impl Turn {
    /// Submits everything and answers every share as soon as its outcomes may be shown. Afterwards the turn is empty and
    /// can be reused.
    pub async fn run(
        &mut self,
        service: &Service,
        (metrics, stats): (&ProtocolMetrics, &RespStats),
        sink: &impl ReplySink,
    ) {
        let mut counts = ReplyCounts { errors: std::mem::take(&mut self.errors), ..ReplyCounts::default() };
        let shares = std::mem::take(&mut self.shares);
        // Reads come first: they must not see later writes of the same connection.
        let mut reads = Vec::with_capacity(self.reads.len());
        for TurnSubmission { events, consistency, .. } in self.reads.drain(..) {
            reads.push(service.read_events(events, consistency).await);
        }
        let Phases { ready, waiting, writing } = Phases::of(&shares, &reads);
        self.record_calls(stats);
        let ready: Vec<_> = ready.into_iter().map(|share| (share, share.read_outcomes(&reads))).collect();
        counts = counts.plus(self.answer_all(&ready, metrics, sink));
        let mut receipts = Vec::with_capacity(self.writes.len());
        let mut submitted = Vec::with_capacity(self.writes.len());
        for TurnSubmission { events, consistency, continues } in self.writes.drain(..) {
            if continues {
                wait_for_all(&mut submitted, &mut receipts).await;
            }
            let mut call = Box::pin(service.submit(events, consistency));
            // The first poll submits, so one flush can cover many submissions.
            let first = std::future::poll_fn(|context| Poll::Ready(call.as_mut().poll(context))).await;
            submitted.push(Submitted { call, first });
        }
        // These wait for earlier flushes than the writes do.
        for share in waiting {
            let durable = match share.reads(&reads) {
                Some(Ok(reads)) => service.durable(reads.receipt.token.clone()).await,
                _ => Ok(()),
            };
            let outcomes = durable.as_ref().map_or_else(Err, |()| share.read_outcomes(&reads));
            counts = counts.plus(self.answer_all(&[(share, outcomes)], metrics, sink));
        }
        wait_for_all(&mut submitted, &mut receipts).await;
        let written: Vec<_> = writing.into_iter().map(|share| (share, share.write_outcomes(&receipts))).collect();
        counts = counts.plus(self.answer_all(&written, metrics, sink));
        stats.add_replies(counts);
        self.clear(shares);
    }

    /// Records the calls before any reply is written, so that a client that has its reply finds the call in `INFO`.
    fn record_calls(&mut self, stats: &RespStats) {
        let micros = self.counts.micros();
        let timed = |(name, counts): (&'static str, CommandCounts)| {
            (name, CommandCounts { micros: micros * counts.calls, ..counts })
        };
        stats.add_calls(self.calls.drain(..).map(timed));
    }

    /// Empties the turn and keeps its memory.
    fn clear(&mut self, mut shares: Vec<Share>) {
        shares.clear();
        self.shares = shares;
        self.plans.clear();
        self.bytes.clear();
        self.counts.clear();
    }

    /// Counts the commands of shares before it writes their replies, so that a client that has its reply finds the
    /// request in the metrics.
    pub(super) fn answer_all(
        &self,
        shares: &[(&Share, SubmissionOutcomes<'_>)],
        metrics: &ProtocolMetrics,
        sink: &impl ReplySink,
    ) -> ReplyCounts {
        let mut counts = PhaseCounts::default();
        for (share, outcomes) in shares {
            let status = if outcomes.is_ok() { CommandStatus::Accepted } else { CommandStatus::Failed };
            counts.add(&self.counts, share.counts.clone(), status);
        }
        counts.record(&self.counts, metrics);
        shares
            .iter()
            .fold(ReplyCounts::default(), |sum, (share, outcomes)| sum.plus(self.answer(share, *outcomes, sink)))
    }

    /// Writes the replies of one share, given all outcomes of its submission.
    pub(super) fn answer(&self, share: &Share, outcomes: SubmissionOutcomes<'_>, sink: &impl ReplySink) -> ReplyCounts {
        let plans = self.plans.get(share.plans.clone()).unwrap_or_default();
        let own = outcomes.map(|outcomes| outcomes.get(share.outcomes.clone()));
        // Even if the counts are wrong, no command may get the outcome of another.
        let planned: usize = plans.iter().map(|plan| plan.outcomes()).sum();
        let unknown =
            Failure::Engine(EngineError::OutcomeUnknown("the number of outcomes does not match the commands".into()));
        let own = match own {
            Ok(Some(own)) if own.len() == planned => Ok(own),
            Err(failure) => Err(failure),
            Ok(_) => {
                tracing::error!(planned, share = ?share.outcomes, "the number of outcomes of a connection does not match its commands");
                Err(&unknown)
            }
        };
        let mut counts = ReplyCounts::default();
        sink.answer(share.connection, |out| {
            let mut bytes = self.bytes.get(share.bytes..).unwrap_or_default();
            let mut taken = 0;
            // Plans of a transaction that was not applied.
            let mut dropped = 0;
            for plan in plans {
                let is_dropped = dropped > 0;
                dropped -= u32::from(is_dropped);
                if let ReplyPlan::Bytes(len) = plan {
                    let (known, rest) = bytes.split_at_checked(*len as usize).unwrap_or((bytes, &[]));
                    if !is_dropped {
                        out.extend_from_slice(known);
                    }
                    bytes = rest;
                    continue;
                }
                let before = out.len();
                let mut reply = Reply::new(out, share.version);
                match own {
                    Ok(own) => {
                        let outcomes = own.get(taken..taken + plan.outcomes()).unwrap_or_default();
                        taken += plan.outcomes();
                        if let ReplyPlan::Guards { plans, .. } = plan
                            && is_refused_by_guard(outcomes)
                        {
                            reply.null_array();
                            dropped = *plans;
                        } else if !is_dropped {
                            write_reply(*plan, outcomes, &mut reply);
                            let (hits, misses) = plan.hits_and_misses(outcomes);
                            counts = counts.plus(ReplyCounts { hits, misses, errors: 0 });
                        }
                    }
                    Err(failure) => write_failure(*plan, failure, &mut reply),
                }
                counts.errors += errors_in(*plan, out.get(before..).unwrap_or_default());
            }
        });
        counts
    }
}

/// Whether a counter that the transaction depends on has changed.
fn is_refused_by_guard(guards: &[Outcome]) -> bool {
    guards.iter().any(|guard| guard.refusal == Some(Refusal::NotExpected))
}

/// How many of the written replies are errors.
#[inline]
fn errors_in(plan: ReplyPlan, written: &[u8]) -> u64 {
    match plan {
        // Those that overflow come last. Numbers have no capital letter, and the error begins with the only `E` in it.
        ReplyPlan::Values { .. } if written.ends_with(b"overflow\r\n") => {
            written.iter().filter(|byte| **byte == b'E').count() as u64
        }
        ReplyPlan::Values { .. } => 0,
        _ => u64::from(written.first() == Some(&b'-')),
    }
}

impl Share {
    /// Its submission of reads.
    fn reads<'a>(&self, reads: &'a [Result<Reads, Failure>]) -> Option<&'a Result<Reads, Failure>> {
        let OutcomeSource::Read(number) = self.source else { return None };
        reads.get(number)
    }

    /// The outcomes of its submission of reads.
    fn read_outcomes<'a>(&self, reads: &'a [Result<Reads, Failure>]) -> SubmissionOutcomes<'a> {
        match self.reads(reads) {
            Some(Ok(reads)) => Ok(&reads.receipt.outcomes),
            Some(Err(failure)) => Err(failure),
            None => Ok(&[]),
        }
    }

    /// Whether any of its outcomes depends on unflushed state.
    fn is_unflushed(&self, reads: &[Result<Reads, Failure>]) -> bool {
        let Some(Ok(reads)) = self.reads(reads) else { return false };
        let from = reads.unflushed.partition_point(|place| (*place as usize) < self.outcomes.start);
        reads.unflushed.get(from).is_some_and(|place| self.outcomes.contains(&(*place as usize)))
    }

    /// The outcomes of its submission of writes.
    fn write_outcomes<'a>(&self, receipts: &'a [Result<Receipt, Failure>]) -> SubmissionOutcomes<'a> {
        let OutcomeSource::Write(number) = self.source else { return Ok(&[]) };
        match receipts.get(number) {
            Some(Ok(receipt)) => Ok(receipt.outcomes.as_slice()),
            Some(Err(failure)) => Err(failure),
            None => Ok(&[]),
        }
    }
}

#[inline]
fn write_reply(plan: ReplyPlan, outcomes: &[Outcome], reply: &mut Reply<'_>) {
    let is_general = |refusal: &Refusal| matches!(refusal, Refusal::NoRoom | Refusal::BestEffort);
    match outcomes.iter().find_map(|outcome| outcome.refusal.filter(is_general)) {
        Some(Refusal::BestEffort) => return write_error(plan, &format!("ERR {}", Refusal::BEST_EFFORT_TEXT), reply),
        Some(_) => return write_failure(plan, &Failure::Engine(EngineError::DiskFull), reply),
        None => {}
    }
    plan.write(outcomes, reply);
}

/// Each request of the plan gets the error.
fn write_failure(plan: ReplyPlan, error: &Failure, reply: &mut Reply<'_>) {
    write_error(plan, &failure(error), reply);
}

fn write_error(plan: ReplyPlan, text: &str, reply: &mut Reply<'_>) {
    (0..plan.replies()).for_each(|_| reply.error(text));
}

/// A submission in progress.
struct Submitted<C> {
    call: C,
    /// The result of the first poll.
    first: Poll<Result<Receipt, Failure>>,
}

/// Waits for all submissions.
async fn wait_for_all<C>(submitted: &mut Vec<Submitted<C>>, receipts: &mut Vec<Result<Receipt, Failure>>)
where
    C: Future<Output = Result<Receipt, Failure>>,
{
    for Submitted { call, first } in submitted.drain(..) {
        receipts.push(match first {
            Poll::Ready(receipt) => receipt,
            Poll::Pending => call.await,
        });
    }
}
