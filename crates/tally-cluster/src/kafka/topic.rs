//! Creating the topic, and checking that it is as Tally needs it.

use std::time::Duration;

use parking_lot::Mutex;
use rdkafka::ClientContext;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, ResourceSpecifier, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::{BaseProducer, DeliveryResult, Producer, ProducerContext};

use super::{KafkaSettings, REQUEST_TIMEOUT, TopicError};
use crate::limits::RECORD_BYTES_MAX;

/// Time between two questions whether a new topic is known.
const KNOWN_POLL: Duration = Duration::from_millis(50);
/// How often a client is asked why it cannot connect. Each time takes up to twice [`KNOWN_POLL`].
const CONNECTION_POLLS: usize = 50;

/// How to create the topic.
#[derive(Clone, Copy, Debug)]
pub struct NewJournal {
    /// Number of partitions. Cannot be changed later, because keys would move.
    pub partitions: u32,
    /// Copies of each partition.
    pub replication: u32,
    /// How long records are kept, in milliseconds. Longer than PostgreSQL may ever be away.
    pub retention_ms: u64,
}

/// What [`create`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Created {
    /// The topic is new.
    Created,
    /// It existed already, with as many partitions.
    Existed,
}

/// Creates the topic unless it exists. Refuses one with another number of partitions.
pub async fn create(settings: &KafkaSettings, new: NewJournal) -> Result<Created, TopicError> {
    let admin = admin(settings)?;
    let insync = new.replication.saturating_sub(1).max(1).to_string();
    let (retention, record_bytes) = (new.retention_ms.to_string(), RECORD_BYTES_MAX.to_string());
    let replication = TopicReplication::Fixed(new.replication as i32);
    let topic = NewTopic::new(&settings.topic, new.partitions as i32, replication)
        .set("min.insync.replicas", &insync)
        .set("unclean.leader.election.enable", "false")
        .set("message.timestamp.type", "LogAppendTime")
        .set("max.message.bytes", &record_bytes)
        .set("cleanup.policy", "delete")
        .set("compression.type", "producer")
        .set("retention.bytes", "-1")
        .set("retention.ms", &retention);
    let created = admin.create_topics([&topic], &options()).await;
    let created = created.map_err(|error| explain(settings, &error))?;
    match created.into_iter().next() {
        Some(Ok(_)) => wait_until_known(settings, &admin).await.map(|()| Created::Created),
        Some(Err((_, RDKafkaErrorCode::TopicAlreadyExists))) => {
            let partitions = check(settings).await?;
            if partitions == new.partitions {
                return Ok(Created::Existed);
            }
            let problem = format!(
                "has {partitions} partitions, not {}. The number cannot be changed, because counters would move to other \
                 partitions. Name a new topic with `topic` in [cluster]. If partitions were added to this one, see \"The \
                 topic got more partitions\" in docs/cluster-operations.md",
                new.partitions
            );
            Err(TopicError::WrongTopic { topic: settings.topic.clone(), problem })
        }
        Some(Err((_, RDKafkaErrorCode::InvalidReplicationFactor))) => {
            let problem = format!(
                "cannot have {} replicas: there are fewer brokers. Set `replication` in [cluster] or \
                 TALLY_CLUSTER_REPLICATION",
                new.replication
            );
            Err(TopicError::WrongTopic { topic: settings.topic.clone(), problem })
        }
        Some(Err((_, code))) => {
            Err(TopicError::Other(format!("the topic `{}` was not created: {code}", settings.topic)))
        }
        None => Err(TopicError::Other("Kafka did not say whether it created the topic".to_owned())),
    }
}

/// Checks an existing topic and returns its number of partitions.
pub async fn check(settings: &KafkaSettings) -> Result<u32, TopicError> {
    let admin = admin(settings)?;
    let partitions = partition_count(settings, &admin).await?;
    let described = admin.describe_configs([&ResourceSpecifier::Topic(&settings.topic)], &options()).await;
    let described = described.map_err(|error| explain(settings, &error))?;
    let config = match described.into_iter().next() {
        Some(Ok(config)) => config,
        Some(Err(code)) => return Err(TopicError::Other(format!("the topic cannot be described: {code}"))),
        None => return Err(TopicError::Other("the topic cannot be described".to_owned())),
    };
    let value = |name: &str| config.get(name).and_then(|entry| entry.value.clone()).unwrap_or_default();
    let wrong = |name: &str, wanted: &str, why: &str| {
        let problem = format!(
            "has {name}={}; Tally needs {wanted}, {why}. Change it with kafka-configs.sh --alter --topic {} --add-config \
             {name}={wanted}",
            value(name),
            settings.topic
        );
        Err(TopicError::WrongTopic { topic: settings.topic.clone(), problem })
    };
    if value("message.timestamp.type") != "LogAppendTime" {
        return wrong("message.timestamp.type", "LogAppendTime", "so that no node's clock matters");
    }
    if value("unclean.leader.election.enable") != "false" {
        return wrong("unclean.leader.election.enable", "false", "so that no acknowledged record is lost");
    }
    if value("cleanup.policy") != "delete" {
        return wrong("cleanup.policy", "delete", "because compaction removes records");
    }
    if value("max.message.bytes").parse::<usize>().unwrap_or(0) < RECORD_BYTES_MAX {
        return wrong("max.message.bytes", &RECORD_BYTES_MAX.to_string(), "the size of the largest batch");
    }
    Ok(partitions)
}

/// Waits until a broker knows a new topic, which is a moment after its creation. Nodes may be started then.
async fn wait_until_known(
    settings: &KafkaSettings,
    admin: &AdminClient<DefaultClientContext>,
) -> Result<(), TopicError> {
    let deadline = tokio::time::Instant::now() + REQUEST_TIMEOUT;
    while let Err(error) = partition_count(settings, admin).await {
        if tokio::time::Instant::now() >= deadline {
            return Err(error);
        }
        tokio::time::sleep(KNOWN_POLL).await;
    }
    Ok(())
}

async fn partition_count(
    settings: &KafkaSettings,
    admin: &AdminClient<DefaultClientContext>,
) -> Result<u32, TopicError> {
    // The request blocks its thread. There is one per start.
    let metadata = tokio::task::block_in_place(|| admin.inner().fetch_metadata(Some(&settings.topic), REQUEST_TIMEOUT));
    let metadata = metadata.map_err(|error| explain(settings, &error))?;
    let topic = metadata.topics().iter().find(|topic| topic.name() == settings.topic);
    match topic {
        Some(topic) if topic.error().is_none() && !topic.partitions().is_empty() => Ok(topic.partitions().len() as u32),
        _ => Err(TopicError::NoTopic(settings.topic.clone())),
    }
}

fn admin(settings: &KafkaSettings) -> Result<AdminClient<DefaultClientContext>, TopicError> {
    settings.client().create().map_err(|error| TopicError::new(settings, &error))
}

/// Why a request failed. If its time was up, that is all the client says, so another one finds out why it cannot connect.
fn explain(settings: &KafkaSettings, error: &KafkaError) -> TopicError {
    let failed = TopicError::new(settings, error);
    match failed {
        TopicError::Unreachable { .. } => tokio::task::block_in_place(|| connection_error(settings)).unwrap_or(failed),
        other => other,
    }
}

/// Connects, and answers why that failed. Of all clients, producers are the simplest that report it.
fn connection_error(settings: &KafkaSettings) -> Option<TopicError> {
    let producer: BaseProducer<ConnectionErrors> =
        settings.client().create_with_context(ConnectionErrors::default()).ok()?;
    let context = producer.client().context();
    for _ in 0..CONNECTION_POLLS {
        // It connects when it is asked something.
        if producer.client().fetch_metadata(Some(&settings.topic), KNOWN_POLL).is_ok() {
            return None;
        }
        producer.poll(KNOWN_POLL);
        if let Some((error, reason)) = &*context.last.lock() {
            return Some(TopicError::of_connection(settings, error, reason));
        }
    }
    None
}

/// Remembers why a connection failed.
#[derive(Default)]
struct ConnectionErrors {
    last: Mutex<Option<(KafkaError, String)>>,
}

impl ClientContext for ConnectionErrors {
    fn error(&self, error: KafkaError, reason: &str) {
        // That all brokers are down follows from another error, and says less.
        if error.rdkafka_error_code() != Some(RDKafkaErrorCode::AllBrokersDown) {
            *self.last.lock() = Some((error, reason.to_owned()));
        }
    }
}

impl ProducerContext for ConnectionErrors {
    type DeliveryOpaque = ();

    fn delivery(&self, _: &DeliveryResult<'_>, (): ()) {}
}

fn options() -> AdminOptions {
    AdminOptions::new().request_timeout(Some(REQUEST_TIMEOUT)).operation_timeout(Some(REQUEST_TIMEOUT))
}
