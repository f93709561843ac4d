//! Reading the journal: records of chosen partitions, from chosen positions.

use std::sync::Arc;
use std::sync::mpsc::{SyncSender, TryRecvError, sync_channel};
use std::time::Duration;

use parking_lot::Mutex;
use rdkafka::consumer::base_consumer::PartitionQueue;
use rdkafka::consumer::{BaseConsumer, Consumer, DefaultConsumerContext};
use rdkafka::error::KafkaError;
use rdkafka::message::{Message, Timestamp};
use rdkafka::types::RDKafkaErrorCode;
use rdkafka::{Offset, TopicPartitionList};
use tally_core::time::{Millis, Position};
use tokio::time::Instant;

use super::{KafkaSettings, REQUEST_TIMEOUT, TopicError};
use crate::limits::{RECORD_BYTES_MAX, TAIL_BUFFER_KIB};

/// How often the consumer's own events are served while no record arrives.
const SERVE_EVERY: Duration = Duration::from_millis(500);
/// A partition without records for this long is compared with the journal's end. If it is behind twice in a row, it is
/// opened again.
const STALL_AFTER: Duration = Duration::from_secs(1);

/// How long one poll waits for the record before the stored position.
const RECORD_POLL: Duration = Duration::from_millis(100);
/// Records that are read first to find one with a broker's time, then eight times as many.
const LOOK_BACK_RECORDS: u64 = 1_024;

/// Reads partitions of the journal. One per process: its partitions share connections.
#[derive(Clone)]
pub struct Tailer {
    shared: Arc<TailerShared>,
}

struct TailerShared {
    consumer: Arc<BaseConsumer>,
    settings: KafkaSettings,
    /// Adding and removing partitions must not interleave.
    assigning: Mutex<()>,
    /// Dropped last: the serving thread then has the only reference to the consumer, and closes it. Nobody waits for that,
    /// because it can take long while brokers do not answer.
    _serving: SyncSender<()>,
}

/// A record of the journal: one batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalRecord {
    /// The position before it, which is its offset.
    pub start: Position,
    /// The broker's time of appending; `None` if the topic was not set to LogAppendTime then.
    pub at: Option<Millis>,
    /// The encoded batch.
    pub batch: Vec<u8>,
}

impl JournalRecord {
    /// The position after it.
    #[must_use]
    pub fn end(&self) -> Position {
        Position(self.start.0 + 1)
    }
}

/// The records of one partition, in order.
pub struct PartitionTail {
    queue: Option<PartitionQueue<DefaultConsumerContext>>,
    shared: Arc<TailerShared>,
    partition: u32,
    next: Position,
    /// Since when no record has arrived.
    idle_since: Instant,
    /// Whether the last check found records that have not arrived.
    is_behind: bool,
}

impl Tailer {
    /// Connects in the background: brokers may be down.
    pub fn new(settings: &KafkaSettings) -> Result<Tailer, TopicError> {
        let mut config = settings.client();
        config
            // The client requires a group, although partitions are assigned manually and no offset is committed.
            .set("group.id", format!("{}-readers", settings.topic))
            .set("enable.auto.commit", "false")
            .set("enable.auto.offset.store", "false")
            .set("enable.partition.eof", "false")
            // A position that does not exist is an error, never skipped.
            .set("auto.offset.reset", "error")
            .set("isolation.level", "read_uncommitted")
            .set("check.crcs", "true")
            .set("fetch.wait.max.ms", "100")
            .set("fetch.message.max.bytes", (1 << 20).to_string())
            .set("fetch.max.bytes", RECORD_BYTES_MAX.max(8 << 20).to_string())
            .set("receive.message.max.bytes", (RECORD_BYTES_MAX.max(8 << 20) + (1 << 20)).to_string())
            .set("queued.max.messages.kbytes", TAIL_BUFFER_KIB.to_string())
            .set("fetch.error.backoff.ms", "50")
            .set("fetch.queue.backoff.ms", "20");
        let consumer: BaseConsumer = config.create().map_err(|error| TopicError::new(settings, &error))?;
        let consumer = Arc::new(consumer);
        let (serving, dropped) = sync_channel::<()>(0);
        let started = std::thread::Builder::new().name("tally-tail".to_owned()).spawn({
            let consumer = Arc::clone(&consumer);
            move || {
                while dropped.try_recv() == Err(TryRecvError::Empty) {
                    // Records go to the queues of their partitions; here only errors and logs arrive.
                    match consumer.poll(SERVE_EVERY) {
                        Some(Err(error)) => tracing::debug!(%error, "Kafka consumer"),
                        // Its tail notices the missing record, and the partition is opened again.
                        Some(Ok(record)) => tracing::warn!(partition = record.partition(), "a record missed its queue"),
                        None => {}
                    }
                }
            }
        });
        started.map_err(|error| TopicError::Other(error.to_string()))?;
        Ok(Tailer {
            shared: Arc::new(TailerShared {
                consumer,
                settings: settings.clone(),
                assigning: Mutex::new(()),
                _serving: serving,
            }),
        })
    }

    pub(super) fn consumer(&self) -> &BaseConsumer {
        &self.shared.consumer
    }

    pub(super) fn settings(&self) -> &KafkaSettings {
        &self.shared.settings
    }

    /// Reads a partition from a position on. Each partition can be opened once at a time. Blocks while it asks the
    /// broker which positions exist.
    pub fn open(&self, partition: u32, from: Position) -> Result<PartitionTail, TopicError> {
        let (first, end) = self.bounds(partition)?;
        if from < first || from > end {
            return Err(TopicError::NoPosition { partition, wanted: from.0, first: first.0, end: end.0 });
        }
        let mut tail = PartitionTail {
            queue: None,
            shared: Arc::clone(&self.shared),
            partition,
            next: from,
            idle_since: Instant::now(),
            is_behind: false,
        };
        tail.assign()?;
        Ok(tail)
    }

    /// Like [`Tailer::open`], for state that was persisted at `from` with the partition's time `clock`. Also checks that
    /// the record before `from` is the one that was applied: a topic that was recreated, or has lost records, gets new
    /// records at the same positions.
    ///
    /// The partition's time is never before that of the last record that was applied and had a broker's time. Another
    /// record at that position was appended later than the time that was persisted, unless the broker's clock went back.
    pub fn open_after(&self, partition: u32, from: Position, clock: Millis) -> Result<PartitionTail, TopicError> {
        let (first, end) = self.bounds(partition)?;
        // Retention may have removed the record.
        if from <= first || from > end {
            return self.open(partition, from);
        }
        let mut tail = self.open(partition, Position(from.0 - 1))?;
        let mut at = tail.expect_next()?.at;
        if at.is_none() {
            // It was appended while the topic was set to CreateTime. An earlier one decides.
            drop(tail);
            at = self.last_time_before(partition, first, from)?;
            tail = self.open(partition, from)?;
        }
        match at {
            Some(at) if at <= clock => Ok(tail),
            Some(Millis(appended)) => {
                Err(TopicError::OtherRecords { partition, position: from.0, appended, stored: clock.0 })
            }
            None => Err(TopicError::UntimedRecords { partition, position: from.0 }),
        }
    }

    /// The time of the last record from `first` to `end` that has a broker's time. Reads backwards, a window at a time.
    fn last_time_before(&self, partition: u32, first: Position, end: Position) -> Result<Option<Millis>, TopicError> {
        let (mut end, mut width) = (end, LOOK_BACK_RECORDS);
        while end > first {
            let start = Position(end.0.saturating_sub(width)).max(first);
            let mut window = self.open(partition, start)?;
            let mut last = None;
            while window.next < end {
                last = window.expect_next()?.at.or(last);
            }
            if last.is_some() {
                return Ok(last);
            }
            (end, width) = (start, width * 8);
        }
        Ok(None)
    }

    /// The first position that the journal still has, and its end. Blocks for a round trip.
    pub fn bounds(&self, partition: u32) -> Result<(Position, Position), TopicError> {
        let TailerShared { consumer, settings, .. } = &*self.shared;
        let (first, end) = consumer
            .fetch_watermarks(&settings.topic, partition as i32, REQUEST_TIMEOUT)
            .map_err(|error| TopicError::new(settings, &error))?;
        Ok((Position(first.max(0) as u64), Position(end.max(0) as u64)))
    }

    /// The journal's end: everything acknowledged so far is before it. Blocks for a round trip.
    pub fn end(&self, partition: u32) -> Result<Position, TopicError> {
        Ok(self.bounds(partition)?.1)
    }
}

impl PartitionTail {
    /// The next record, or `None` if there is none within `wait`. Blocks.
    pub fn next(&mut self, wait: Duration) -> Result<Option<JournalRecord>, TopicError> {
        let Some(queue) = &self.queue else { return Ok(None) };
        let message = match queue.poll(wait) {
            None => {
                self.check_for_stall()?;
                return Ok(None);
            }
            Some(Err(error)) => return self.failed(&error).map(|()| None),
            Some(Ok(message)) => message,
        };
        self.idle_since = Instant::now();
        self.is_behind = false;
        let start = Position(message.offset().max(0) as u64);
        if start != self.next {
            // Offsets have no gaps without transactions and compaction, and `topic::check` excludes the latter.
            return Err(TopicError::Other(format!(
                "partition {} of the topic goes from position {} to {}; is something else writing to it with transactions?",
                self.partition, self.next.0, start.0
            )));
        }
        let at = match message.timestamp() {
            Timestamp::LogAppendTime(at) => Some(Millis(at.max(0) as u64)),
            // By the clock of the node that sent it.
            Timestamp::CreateTime(_) | Timestamp::NotAvailable => None,
        };
        let batch = message.payload().unwrap_or_default().to_vec();
        self.next = Position(start.0 + 1);
        Ok(Some(JournalRecord { start, at, batch }))
    }

    /// The next record, which the journal has.
    fn expect_next(&mut self) -> Result<JournalRecord, TopicError> {
        let deadline = Instant::now() + REQUEST_TIMEOUT;
        loop {
            match self.next(RECORD_POLL)? {
                Some(record) => return Ok(record),
                None if Instant::now() < deadline => {}
                None => {
                    return Err(TopicError::Other(format!("partition {} could not be read in time", self.partition)));
                }
            }
        }
    }

    /// Begins to read at the next position.
    fn assign(&mut self) -> Result<(), TopicError> {
        let shared = Arc::clone(&self.shared);
        let _assigning = shared.assigning.lock();
        let mut list = TopicPartitionList::new();
        let offset = Offset::Offset(self.next.0 as i64);
        let assigned = list.add_partition_offset(&shared.settings.topic, self.partition as i32, offset);
        let queue = assigned.and_then(|()| {
            // Split off the queue first, so that no record goes to the main queue.
            let queue = shared.consumer.split_partition_queue(&shared.settings.topic, self.partition as i32);
            shared.consumer.incremental_assign(&list)?;
            Ok(queue)
        });
        let queue = queue.map_err(|error| TopicError::new(&shared.settings, &error))?;
        self.queue = Some(queue.ok_or_else(|| TopicError::Other("the partition has no queue".to_owned()))?);
        Ok(())
    }

    fn unassign(&mut self) {
        let _assigning = self.shared.assigning.lock();
        let mut list = TopicPartitionList::new();
        list.add_partition(&self.shared.settings.topic, self.partition as i32);
        if let Err(error) = self.shared.consumer.incremental_unassign(&list) {
            tracing::debug!(partition = self.partition, %error, "a partition could not be closed");
        }
        self.queue = None;
    }

    /// If records have not arrived for a while although there are some, opens the partition again. The client library
    /// sometimes does not deliver them to a partition that was closed and opened shortly before.
    fn check_for_stall(&mut self) -> Result<(), TopicError> {
        if self.idle_since.elapsed() < STALL_AFTER {
            return Ok(());
        }
        self.idle_since = Instant::now();
        let tailer = Tailer { shared: Arc::clone(&self.shared) };
        // A broker that does not answer now is asked again.
        let Ok(end) = tailer.end(self.partition) else { return Ok(()) };
        let has_more = end > self.next;
        if has_more && std::mem::replace(&mut self.is_behind, true) {
            tracing::warn!(partition = self.partition, next = self.next.0, end = end.0, "reading the journal again");
            self.unassign();
            self.is_behind = false;
            return self.assign();
        }
        self.is_behind = has_more;
        Ok(())
    }

    /// Errors that the client recovers from by itself are only logged.
    fn failed(&self, error: &KafkaError) -> Result<(), TopicError> {
        use RDKafkaErrorCode as Code;
        match error.rdkafka_error_code() {
            Some(Code::OffsetOutOfRange | Code::AutoOffsetReset) => {
                let tailer = Tailer { shared: Arc::clone(&self.shared) };
                let (first, end) = tailer.bounds(self.partition)?;
                Err(TopicError::NoPosition {
                    partition: self.partition,
                    wanted: self.next.0,
                    first: first.0,
                    end: end.0,
                })
            }
            Some(Code::UnknownTopicOrPartition | Code::TopicAuthorizationFailed | Code::Fatal) => {
                Err(TopicError::new(&self.shared.settings, error))
            }
            _ => {
                tracing::debug!(partition = self.partition, %error, "Kafka consumer");
                Ok(())
            }
        }
    }
}

impl Drop for PartitionTail {
    fn drop(&mut self) {
        self.unassign();
    }
}
