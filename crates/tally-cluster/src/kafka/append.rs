//! Appending batches to the journal.

use std::sync::Arc;

use parking_lot::Mutex;
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::message::Timestamp;
use rdkafka::producer::{FutureProducer, FutureRecord, Producer};
use rdkafka::types::RDKafkaErrorCode;
use tally_core::batch::{Batch, encode};
use tally_core::time::{Millis, Position};

use super::{KafkaSettings, TopicError};
use crate::limits::{APPEND_TIMEOUT_MS, APPENDS_QUEUED_MAX, RECORD_BYTES_MAX};

/// Appends batches: idempotent, acknowledged by all replicas in sync.
pub struct Appender {
    /// Replaced after an error that it does not recover from. `None` once this is dropped.
    producer: Mutex<Option<FutureProducer>>,
    settings: Arc<KafkaSettings>,
}

/// Where a batch was appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Appended {
    /// The position after it.
    pub end: Position,
    /// The broker's time; `None` if the topic is not set to LogAppendTime.
    pub at: Option<Millis>,
}

/// Why a batch was not acknowledged.
#[derive(Clone, Debug, thiserror::Error)]
pub enum AppendError {
    /// It did not leave this process.
    #[error("{0}")]
    NotSent(String),
    /// It may have been appended.
    #[error("{0}")]
    Unknown(String),
    /// It was appended, but Kafka did not say where. This happens when the client library resends a batch and the
    /// broker reports that it already has it, or a later one.
    #[error(
        "Kafka has the batch, but did not say at which position. With a request id, a retry settles what came of it"
    )]
    NoPosition,
}

impl Appender {
    /// Connects in the background: brokers may be down.
    pub fn new(settings: &KafkaSettings) -> Result<Appender, TopicError> {
        let producer = connect(settings).map_err(|error| TopicError::new(settings, &error))?;
        Ok(Appender { producer: Mutex::new(Some(producer)), settings: Arc::new(settings.clone()) })
    }

    /// The producer in use. The client library stops a producer for good when it can no longer tell what the broker
    /// has. It has then failed the batches in flight, and is replaced here.
    fn producer(&self) -> Result<FutureProducer, AppendError> {
        let mut producer = self.producer.lock();
        if let Some(current) = &*producer {
            let Some((_, why)) = current.client().fatal_error() else { return Ok(current.clone()) };
            tracing::error!(%why, "the Kafka producer has stopped; replacing it");
        }
        let next = connect(&self.settings).map_err(|error| AppendError::NotSent(say(&self.settings, &error)))?;
        if let Some(stopped) = producer.replace(next.clone()) {
            close(stopped);
        }
        Ok(next)
    }

    /// Queues a batch. Batches of one partition are appended in the order of these calls; the future resolves when this
    /// one is acknowledged.
    pub fn append(
        &self,
        partition: u32,
        batch: &[u8],
    ) -> Result<impl Future<Output = Result<Appended, AppendError>> + Send + use<>, AppendError> {
        let record = FutureRecord::<(), [u8]>::to(&self.settings.topic).partition(partition as i32).payload(batch);
        let sent = self.producer()?.send_result(record);
        let delivery = sent.map_err(|(error, _)| AppendError::NotSent(say(&self.settings, &error)))?;
        let settings = Arc::clone(&self.settings);
        Ok(async move {
            match delivery.await {
                Ok(Ok(delivery)) => appended(delivery.offset, delivery.timestamp),
                Ok(Err((error, _))) if is_refused(&error) => Err(AppendError::NotSent(say(&settings, &error))),
                Ok(Err((error, _))) => Err(AppendError::Unknown(say(&settings, &error))),
                Err(_) => Err(AppendError::Unknown("the producer was closed".to_owned())),
            }
        })
    }

    /// Sets the clock of a partition to the time of its broker, even if that is earlier. Decision 0019 describes the
    /// consequences.
    pub async fn reset_clock(&self, partition: u32) -> Result<Appended, AppendError> {
        self.append_batch(partition, &Batch::clock_reset()).await
    }

    /// Appends a batch without events, to learn position and time.
    pub async fn append_empty(&self, partition: u32) -> Result<Appended, AppendError> {
        self.append_batch(partition, &Batch::default()).await
    }

    /// Appends a batch and waits for its acknowledgement. The broker sets its time.
    pub async fn append_batch(&self, partition: u32, batch: &Batch) -> Result<Appended, AppendError> {
        let mut bytes = Vec::new();
        encode(batch, Millis(0), &mut bytes);
        self.append(partition, &bytes)?.await
    }
}

impl Drop for Appender {
    fn drop(&mut self) {
        if let Some(producer) = self.producer.get_mut().take() {
            close(producer);
        }
    }
}

/// Closes a producer on a thread of its own, because that waits for the threads of the producer. If no thread can be
/// started, this one waits.
fn close(producer: FutureProducer) {
    let _ = std::thread::Builder::new().name("tally-drop".to_owned()).spawn(move || drop(producer));
}

/// Position and time of an acknowledgement.
fn appended(offset: i64, timestamp: Timestamp) -> Result<Appended, AppendError> {
    let offset = u64::try_from(offset).map_err(|_| AppendError::NoPosition)?;
    let at = match timestamp {
        Timestamp::LogAppendTime(at) => u64::try_from(at).ok().map(Millis),
        // From the clock of this host, not the broker's.
        Timestamp::CreateTime(_) | Timestamp::NotAvailable => None,
    };
    Ok(Appended { end: Position(offset + 1), at })
}

fn connect(settings: &KafkaSettings) -> KafkaResult<FutureProducer> {
    let mut config = settings.client();
    config
        .set("enable.idempotence", "true")
        .set("acks", "all")
        // Batches are combined before they get here. Waiting for more would only add latency.
        .set("linger.ms", "0")
        .set("compression.type", "lz4")
        .set("message.max.bytes", RECORD_BYTES_MAX.to_string())
        .set("delivery.timeout.ms", APPEND_TIMEOUT_MS.to_string())
        .set("request.timeout.ms", (APPEND_TIMEOUT_MS / 2).to_string())
        .set("queue.buffering.max.messages", APPENDS_QUEUED_MAX.to_string())
        .set("retry.backoff.ms", "50")
        .set("retry.backoff.max.ms", "500");
    config.create()
}

fn say(settings: &KafkaSettings, error: &KafkaError) -> String {
    TopicError::new(settings, error).to_string()
}

/// Whether the broker or the client decided not to append, so that the batch is certainly not in the journal. An
/// unknown topic or a missing permission does not count: the batch may have been appended before, and its
/// acknowledgement lost.
fn is_refused(error: &KafkaError) -> bool {
    use RDKafkaErrorCode as Code;
    matches!(
        error.rdkafka_error_code(),
        Some(Code::MessageSizeTooLarge | Code::InvalidMessageSize | Code::QueueFull | Code::InvalidTimestamp)
    )
}

#[cfg(test)]
pub(crate) mod tests {
    #![allow(clippy::unwrap_used)]

    use rdkafka::mocking::MockCluster;
    use rdkafka::producer::DefaultProducerContext;
    use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};

    use super::*;

    #[test]
    fn an_acknowledgement_without_an_offset_is_no_position() {
        let at = Timestamp::LogAppendTime(1_700_000_000_000);
        assert_eq!(appended(7, at).unwrap(), Appended { end: Position(8), at: Some(Millis(1_700_000_000_000)) });
        for offset in [-1, -1001] {
            assert!(matches!(appended(offset, at), Err(AppendError::NoPosition)), "{offset}");
        }
    }

    #[test]
    fn only_the_brokers_time_counts() {
        for own in [Timestamp::CreateTime(1_700_000_000_000), Timestamp::LogAppendTime(-1), Timestamp::NotAvailable] {
            assert_eq!(appended(0, own).unwrap(), Appended { end: Position(1), at: None }, "{own:?}");
        }
    }

    /// The client library's own mock of a broker, for errors that a working broker never gives.
    pub(crate) fn mock() -> (MockCluster<'static, DefaultProducerContext>, Appender) {
        let brokers = MockCluster::new(1).unwrap();
        brokers.create_topic("journal", 1, 1).unwrap();
        let settings = KafkaSettings {
            brokers: brokers.bootstrap_servers(),
            topic: "journal".to_owned(),
            ..KafkaSettings::default()
        };
        let appender = Appender::new(&settings).unwrap();
        (brokers, appender)
    }

    /// As after a lost acknowledgement: the batch is sent again, and the broker already has it.
    #[tokio::test]
    async fn the_position_of_a_batch_that_the_broker_had_already_is_unknown() {
        let (brokers, appender) = mock();
        let had = RDKafkaRespErr::RD_KAFKA_RESP_ERR_DUPLICATE_SEQUENCE_NUMBER;
        brokers.request_errors(RDKafkaApiKey::Produce, &[had]);
        let unknown = appender.append(0, b"batch").unwrap().await.unwrap_err();
        assert!(matches!(unknown, AppendError::NoPosition) && unknown.to_string().contains("request id"), "{unknown}");
    }

    #[tokio::test]
    async fn a_batch_that_may_have_been_appended_before_its_retry_was_denied_is_not_called_refused() {
        let (brokers, appender) = mock();
        let lost = RDKafkaRespErr::RD_KAFKA_RESP_ERR_REQUEST_TIMED_OUT;
        let denied = RDKafkaRespErr::RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED;
        brokers.request_errors(RDKafkaApiKey::Produce, &[lost, denied]);
        let unknown = appender.append(0, b"batch").unwrap().await.unwrap_err();
        assert!(matches!(unknown, AppendError::Unknown(_)), "{unknown}");
    }

    #[tokio::test]
    async fn a_producer_that_stopped_for_good_is_replaced() {
        let (brokers, appender) = mock();
        let append = async || appender.append(0, b"batch").unwrap().await;
        assert_eq!(append().await.unwrap().end, Position(1));
        let lost = RDKafkaRespErr::RD_KAFKA_RESP_ERR_OUT_OF_ORDER_SEQUENCE_NUMBER;
        brokers.request_errors(RDKafkaApiKey::Produce, &[lost]);
        assert!(matches!(append().await.unwrap_err(), AppendError::Unknown(_)));
        assert_eq!(append().await.unwrap().end, Position(2));
    }
}
