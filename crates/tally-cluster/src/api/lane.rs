//! The write path of one partition: calls are combined into a batch, batches are appended to the journal.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tally_core::batch::{Batch, Combiner, Events, encode_with_reads};
use tally_core::outcome::{Outcome, Outcomes};
use tally_core::surface::EngineError;
use tally_core::time::Millis;
use tally_engine::host::{JoinedBatch, OpenBatch, Stage, Ticket, Wait};
use tokio::sync::{Notify, OnceCell, Semaphore, watch};

use crate::kafka::{AppendError, Appended, Appender, NO_BROKER_TIME};
use crate::limits::{JOIN_WAIT_MS, LANE_APPENDS_MAX, TIME_RETRY_MS};

/// A batch has one stage: it is acknowledged when it is appended. Callers that need outcomes get them from a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LaneStage {
    /// Kafka has acknowledged it.
    Appended,
}

impl Stage for LaneStage {
    const LAST: LaneStage = LaneStage::Appended;
}

/// A batch in the journal.
#[derive(Debug)]
pub struct AppendedBatch {
    /// Where it ends, and when it was appended.
    pub appended: Appended,
    combiner: Combiner,
    /// Requested by the first call that needs them, and shared by all.
    outcomes: OnceCell<Result<BatchOutcomes, EngineError>>,
}

/// The outcomes of a batch, from a worker.
#[derive(Debug)]
pub struct BatchOutcomes {
    /// The time it was applied at.
    pub at: Millis,
    /// One per event.
    pub outcomes: Outcomes,
}

/// A call that is in the journal.
pub struct AppendedCall {
    joined: JoinedBatch<LaneStage, AppendedBatch>,
    /// Its batch.
    pub batch: Arc<AppendedBatch>,
}

impl AppendedCall {
    /// The outcomes of the call. `ask` asks a worker for those of the whole batch.
    pub async fn outcomes(
        &self,
        events: &Events,
        ask: impl Future<Output = Result<BatchOutcomes, EngineError>>,
    ) -> Result<(Vec<Outcome>, Millis), EngineError> {
        let of_batch = self.batch.outcomes.get_or_init(|| ask).await.as_ref().map_err(Clone::clone)?;
        // Outcomes of another batch must not reach a caller.
        if of_batch.outcomes.slots().len() != self.batch.combiner.batch().len() {
            return Err(EngineError::OutcomeUnknown("the worker returned a wrong number of outcomes".to_owned()));
        }
        Ok((self.joined.outcomes(events, &self.batch.combiner, &of_batch.outcomes), of_batch.at))
    }
}

/// Combines and appends the writes of one partition.
pub struct Lane {
    partition: u32,
    open: OpenBatch<LaneStage, AppendedBatch>,
    filled: Notify,
    /// The last append failed and none has succeeded since.
    failing: AtomicBool,
    /// While failing: a batch is in flight that finds out whether Kafka is back.
    probing: AtomicBool,
    /// The last append came without a broker's time.
    untimed: AtomicBool,
    closing: AtomicBool,
    /// Events of batches that are in flight to Kafka.
    appending: AtomicUsize,
}

impl Lane {
    /// Starts the lane on the current runtime.
    pub fn start(partition: u32, appender: Arc<Appender>, broken: watch::Sender<Option<String>>) -> Arc<Lane> {
        let lane = Arc::new(Lane {
            partition,
            open: OpenBatch::default(),
            filled: Notify::new(),
            failing: AtomicBool::new(false),
            probing: AtomicBool::new(false),
            untimed: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            appending: AtomicUsize::new(0),
        });
        let running = tokio::spawn(Arc::clone(&lane).run(appender));
        tokio::spawn(async move {
            // Otherwise calls would wait for the lane forever.
            if running.await.is_err_and(|error| error.is_panic()) {
                broken
                    .send_replace(Some(format!("a bug has stopped the writes of partition {partition}; see the log")));
            }
        });
        lane
    }

    /// Appends the events and resolves once Kafka has them.
    pub async fn append(&self, events: &Events) -> Result<AppendedCall, EngineError> {
        let join = poll_fn(|context| self.open.join(events, context.waker(), || self.admit()));
        let joined = match tokio::time::timeout(Duration::from_millis(JOIN_WAIT_MS), join).await {
            Ok(joined) => joined?,
            Err(_) => return Err(EngineError::Unavailable("the queue to Kafka is full".to_owned())),
        };
        if joined.is_first || joined.is_full {
            self.filled.notify_one();
        }
        let batch = Wait::new(Arc::clone(&joined.ticket), LaneStage::Appended).await?;
        Ok(AppendedCall { joined, batch })
    }

    /// Refuses calls from now on. Calls that have joined a batch are still appended.
    pub fn close(&self) {
        self.open.close(|| self.closing.store(true, Ordering::Release));
        self.filled.notify_one();
    }

    /// Events that Kafka has not acknowledged yet, after combining.
    pub fn waiting_events(&self) -> usize {
        self.open.with(Batch::len) + self.appending.load(Ordering::Relaxed)
    }

    /// Whether the last append failed.
    pub fn is_failing(&self) -> bool {
        self.failing.load(Ordering::Acquire)
    }

    /// Whether the last append came without a broker's time. Writes are refused until one has it again.
    pub fn is_untimed(&self) -> bool {
        self.untimed.load(Ordering::Acquire)
    }

    fn admit(&self) -> Result<(), EngineError> {
        if self.closing.load(Ordering::Acquire) {
            return Err(EngineError::Closing);
        }
        if self.is_untimed() {
            return Err(EngineError::Unavailable(NO_BROKER_TIME.to_owned()));
        }
        // One batch is let through to find out whether Kafka is back. Its callers may wait long; other calls fail at
        // once.
        if self.is_failing() && self.probing.swap(true, Ordering::AcqRel) {
            return Err(EngineError::Unavailable("Kafka does not answer".to_owned()));
        }
        Ok(())
    }

    async fn run(self: Arc<Self>, appender: Arc<Appender>) {
        let permits = Arc::new(Semaphore::new(LANE_APPENDS_MAX));
        let mut bytes = Vec::new();
        loop {
            self.filled.notified().await;
            // What joins while appends are in flight is the next batch: group commit without a timer.
            let Ok(permit) = Arc::clone(&permits).acquire_owned().await else { return };
            let is_closing = self.closing.load(Ordering::Acquire);
            let (combiner, ticket) = self.open.take();
            if combiner.batch().is_empty() {
                if is_closing {
                    // The last lane drops the producer, which would abandon appends in flight.
                    let _all = permits.acquire_many(LANE_APPENDS_MAX as u32 - 1).await;
                    return;
                }
                continue;
            }
            self.appending.fetch_add(combiner.batch().len(), Ordering::Relaxed);
            bytes.clear();
            // The broker sets the time.
            encode_with_reads(combiner.batch(), Millis(0), &mut bytes);
            match appender.append(self.partition, &bytes) {
                Err(error) => self.finish(combiner, &ticket, Err(error)),
                Ok(appending) => {
                    let (lane, appender) = (Arc::clone(&self), Arc::clone(&appender));
                    tokio::spawn(async move {
                        let appended = appending.await;
                        // The batch will be applied, but those that follow would get the same time.
                        let is_untimed = matches!(appended, Ok(Appended { at: None, .. }));
                        let must_wait = is_untimed && !lane.untimed.swap(true, Ordering::AcqRel);
                        drop(permit);
                        lane.finish(combiner, &ticket, appended);
                        if must_wait {
                            lane.wait_for_broker_time(&appender).await;
                        }
                    });
                }
            }
        }
    }

    /// Appends empty batches until one has a broker's time.
    async fn wait_for_broker_time(&self, appender: &Appender) {
        let partition = self.partition;
        tracing::error!(partition, "writes are refused: {NO_BROKER_TIME}");
        loop {
            tokio::time::sleep(Duration::from_millis(TIME_RETRY_MS)).await;
            if self.closing.load(Ordering::Acquire) {
                return;
            }
            match appender.append_empty(partition).await {
                Ok(Appended { at: None, .. }) => {}
                Ok(_) => {
                    self.untimed.store(false, Ordering::Release);
                    tracing::info!(partition, "records have the time of a broker again; writes are accepted");
                    return;
                }
                Err(error) => tracing::debug!(partition, %error, "whether records have a time is not known"),
            }
        }
    }

    fn finish(
        &self,
        combiner: Combiner,
        ticket: &Ticket<LaneStage, AppendedBatch>,
        appended: Result<Appended, AppendError>,
    ) {
        self.appending.fetch_sub(combiner.batch().len(), Ordering::Relaxed);
        // A batch without a known position was appended, so Kafka accepts writes.
        let is_failing = matches!(appended, Err(AppendError::NotSent(_) | AppendError::Unknown(_)));
        let was_failing = self.failing.swap(is_failing, Ordering::AcqRel);
        match &appended {
            Err(error) if is_failing && !was_failing => {
                tracing::warn!(partition = self.partition, %error, "appends to Kafka fail; check the brokers");
            }
            _ if was_failing && !is_failing => tracing::info!(partition = self.partition, "Kafka takes writes again"),
            _ => {}
        }
        self.probing.store(false, Ordering::Release);
        match appended {
            Ok(appended) => {
                let batch = AppendedBatch { appended, combiner, outcomes: OnceCell::new() };
                ticket.reach(LaneStage::Appended, &Arc::new(batch));
            }
            Err(AppendError::NotSent(why)) => ticket.fail(EngineError::Unavailable(why)),
            Err(error @ (AppendError::Unknown(_) | AppendError::NoPosition)) => {
                ticket.fail(EngineError::OutcomeUnknown(error.to_string()));
            }
        }
    }
}

impl std::fmt::Debug for Lane {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lane").field("partition", &self.partition).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};
    use tally_core::event::Change;
    use tally_core::key::Key;

    use super::*;
    use crate::kafka::mock;

    /// As after a lost acknowledgement.
    #[tokio::test]
    async fn a_batch_that_kafka_has_without_saying_where_does_not_stop_other_writes() {
        let (brokers, appender) = mock();
        let lane = Lane::start(0, Arc::new(appender), watch::Sender::new(None));
        let mut events = Events::new(1);
        events.push(Key::new("k").unwrap().as_ref(), Change::Add(1), None, None);
        let had = RDKafkaRespErr::RD_KAFKA_RESP_ERR_DUPLICATE_SEQUENCE_NUMBER;
        brokers.request_errors(RDKafkaApiKey::Produce, &[had]);
        let unknown = lane.append(&events).await.err().unwrap();
        assert!(matches!(unknown, EngineError::OutcomeUnknown(_)), "{unknown}");
        assert!(!lane.is_failing());
        assert!(lane.append(&events).await.is_ok());
    }
}
