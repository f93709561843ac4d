//! Creating the topic, and checking that it is as Tally needs it.

use std::time::Duration;

use parking_lot::Mutex;
use rdkafka::ClientContext;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, ResourceSpecifier, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::{BaseProducer, DeliveryResult, Producer, ProducerContext};

use super::{KafkaSettings, REQUEST_TIMEOUT, TopicError};
use crate::limits::{RECORD_BYTES_MAX, RETENTION_MS_MIN};

/// Pause between two checks whether a new topic is known.
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
    /// How long records are kept, in milliseconds. Must be longer than PostgreSQL may ever be down.
    pub retention_ms: u64,
}

/// What [`create`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Created {
    /// The topic is new.
    Created,
    /// It existed already, with the same number of partitions.
    Existed,
}

/// Creates the topic unless it exists. Refuses one with another number of partitions.
pub async fn create(settings: &KafkaSettings, new: NewJournal) -> Result<Created, TopicError> {
    let admin = admin(settings)?;
    let insync = new.replication.saturating_sub(1).max(insync_min(new.replication)).to_string();
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
            let partitions = check_keeping(settings, new.retention_ms).await?;
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
    check_keeping(settings, RETENTION_MS_MIN).await
}

/// Like [`check`], for a topic that must keep records for at least this long.
async fn check_keeping(settings: &KafkaSettings, retention_ms: u64) -> Result<u32, TopicError> {
    let admin = admin(settings)?;
    let size = topic_size(settings, &admin).await?;
    let described = admin.describe_configs([&ResourceSpecifier::Topic(&settings.topic)], &options()).await;
    let described = described.map_err(|error| explain(settings, &error))?;
    let config = match described.into_iter().next() {
        Some(Ok(config)) => config,
        Some(Err(code)) => return Err(TopicError::Other(format!("the topic cannot be described: {code}"))),
        None => return Err(TopicError::Other("the topic cannot be described".to_owned())),
    };
    let value = |name: &str| config.get(name).and_then(|entry| entry.value.clone()).unwrap_or_default();
    match unsafe_setting(value, size.replication, retention_ms) {
        None => Ok(size.partitions),
        Some(setting) => {
            Err(TopicError::WrongTopic { topic: settings.topic.clone(), problem: setting.problem(settings) })
        }
    }
}

/// A setting of a topic with which Tally would lose records or not work.
#[derive(Clone, Debug, PartialEq, Eq)]
struct UnsafeSetting {
    name: &'static str,
    found: String,
    wanted: String,
    why: &'static str,
}

impl UnsafeSetting {
    fn problem(&self, settings: &KafkaSettings) -> String {
        let UnsafeSetting { name, found, wanted, why } = self;
        format!(
            "has {name}={found}; Tally needs {wanted}, {why}. Change it with kafka-configs.sh --bootstrap-server {} --alter \
             --topic {} --add-config {name}={wanted}",
            settings.brokers, settings.topic
        )
    }
}

/// The first setting of a topic that is not as it must be, if there is one.
fn unsafe_setting(value: impl Fn(&str) -> String, replication: u32, retention_ms: u64) -> Option<UnsafeSetting> {
    let number = |name: &str| value(name).parse::<i64>().ok();
    let at_least = |name: &str, least: u64| number(name).is_some_and(|found| found >= 0 && found as u64 >= least);
    let unlimited = |name: &str| number(name) == Some(-1);
    let insync = insync_min(replication);
    let rules = [
        (
            "message.timestamp.type",
            value("message.timestamp.type") == "LogAppendTime",
            "LogAppendTime".to_owned(),
            "so that no node's clock matters",
        ),
        (
            "unclean.leader.election.enable",
            value("unclean.leader.election.enable") == "false",
            "false".to_owned(),
            "so that no acknowledged record is lost",
        ),
        (
            "min.insync.replicas",
            at_least("min.insync.replicas", u64::from(insync)),
            insync.to_string(),
            "so that an acknowledged record survives the loss of a broker",
        ),
        (
            "cleanup.policy",
            value("cleanup.policy") == "delete",
            "delete".to_owned(),
            "because compaction removes records",
        ),
        (
            "retention.bytes",
            unlimited("retention.bytes"),
            "-1".to_owned(),
            "because records must not be deleted before they are in PostgreSQL, however many there are",
        ),
        (
            "retention.ms",
            unlimited("retention.ms") || at_least("retention.ms", retention_ms),
            retention_ms.to_string(),
            "because PostgreSQL may be down for a while, and a restored backup replays from the journal",
        ),
        (
            "max.message.bytes",
            at_least("max.message.bytes", RECORD_BYTES_MAX as u64),
            RECORD_BYTES_MAX.to_string(),
            "the size of the largest batch",
        ),
    ];
    let (name, _, wanted, why) = rules.into_iter().find(|(_, is_right, ..)| !is_right)?;
    Some(UnsafeSetting { name, found: value(name), wanted, why })
}

/// How many replicas must acknowledge a record: two if there are two, because one alone may be lost.
fn insync_min(replication: u32) -> u32 {
    replication.clamp(1, 2)
}

/// Waits until a broker knows a new topic, which takes a moment after its creation. Nodes can be started only then.
async fn wait_until_known(
    settings: &KafkaSettings,
    admin: &AdminClient<DefaultClientContext>,
) -> Result<(), TopicError> {
    let deadline = tokio::time::Instant::now() + REQUEST_TIMEOUT;
    while let Err(error) = topic_size(settings, admin).await {
        if tokio::time::Instant::now() >= deadline {
            return Err(error);
        }
        tokio::time::sleep(KNOWN_POLL).await;
    }
    Ok(())
}

/// The number of partitions of a topic, and the lowest number of replicas of any of them.
struct TopicSize {
    partitions: u32,
    replication: u32,
}

async fn topic_size(
    settings: &KafkaSettings,
    admin: &AdminClient<DefaultClientContext>,
) -> Result<TopicSize, TopicError> {
    // The request blocks its thread. There is one per start.
    let metadata = tokio::task::block_in_place(|| admin.inner().fetch_metadata(Some(&settings.topic), REQUEST_TIMEOUT));
    let metadata = metadata.map_err(|error| explain(settings, &error))?;
    let topic = metadata.topics().iter().find(|topic| topic.name() == settings.topic);
    match topic {
        Some(topic) if topic.error().is_none() && !topic.partitions().is_empty() => {
            let replication = topic.partitions().iter().map(|partition| partition.replicas().len()).min();
            let replication = replication.unwrap_or(1) as u32;
            Ok(TopicSize { partitions: topic.partitions().len() as u32, replication })
        }
        _ => Err(TopicError::NoTopic(settings.topic.clone())),
    }
}

fn admin(settings: &KafkaSettings) -> Result<AdminClient<DefaultClientContext>, TopicError> {
    settings.client().create().map_err(|error| TopicError::new(settings, &error))
}

/// Why a request failed. After a timeout the client does not say why, so another client finds out why it cannot
/// connect.
fn explain(settings: &KafkaSettings, error: &KafkaError) -> TopicError {
    let failed = TopicError::new(settings, error);
    match failed {
        TopicError::Unreachable { .. } => tokio::task::block_in_place(|| connection_error(settings)).unwrap_or(failed),
        other => other,
    }
}

/// Connects, and returns why that failed. A producer is the simplest client that reports it.
fn connection_error(settings: &KafkaSettings) -> Option<TopicError> {
    let producer: BaseProducer<ConnectionErrors> =
        settings.client().create_with_context(ConnectionErrors::default()).ok()?;
    let context = producer.client().context();
    for _ in 0..CONNECTION_POLLS {
        // The client connects on its first request.
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
        // `AllBrokersDown` follows another error, and says less.
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    /// The unsafe setting of a topic that is as `create` makes it, except for one setting.
    fn unsafe_with(name: &str, value: &str, replication: u32) -> Option<(&'static str, String)> {
        let record_bytes = RECORD_BYTES_MAX.to_string();
        let setting = |asked: &str| {
            let created = match asked {
                "message.timestamp.type" => "LogAppendTime",
                "unclean.leader.election.enable" => "false",
                "min.insync.replicas" => "2",
                "cleanup.policy" => "delete",
                "retention.bytes" => "-1",
                "retention.ms" => "604800000",
                "max.message.bytes" => &record_bytes,
                _ => "",
            };
            if asked == name { value } else { created }.to_owned()
        };
        unsafe_setting(setting, replication, 604_800_000).map(|setting| (setting.name, setting.wanted))
    }

    #[test]
    fn each_setting_that_could_lose_records_is_found_with_the_value_that_would_not() {
        assert_eq!(unsafe_with("", "", 3), None);
        for (name, value, wanted) in [
            ("message.timestamp.type", "CreateTime", "LogAppendTime"),
            ("unclean.leader.election.enable", "true", "false"),
            ("min.insync.replicas", "1", "2"),
            ("cleanup.policy", "compact,delete", "delete"),
            ("retention.bytes", "1073741824", "-1"),
            ("retention.ms", "604799999", "604800000"),
            ("retention.ms", "", "604800000"),
        ] {
            assert_eq!(unsafe_with(name, value, 3), Some((name, wanted.to_owned())), "{value}");
        }
        assert_eq!(unsafe_with("max.message.bytes", "1048588", 3).unwrap().0, "max.message.bytes");
        assert_eq!(unsafe_with("retention.ms", "-1", 3), None, "they are kept for ever");
    }

    #[test]
    fn two_replicas_acknowledge_if_there_are_two() {
        assert_eq!(unsafe_with("min.insync.replicas", "1", 1), None, "there is only one");
        assert_eq!(unsafe_with("min.insync.replicas", "1", 2), Some(("min.insync.replicas", "2".to_owned())));
        assert_eq!(unsafe_with("min.insync.replicas", "3", 4), None);
    }
}
