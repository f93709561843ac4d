//! The journal: a Kafka topic whose partitions are Tally's partitions.
//!
//! [`topic`] creates and checks it, [`Appender`] appends batches, [`Tailer`] reads them, and [`Membership`] divides the
//! partitions among workers.

mod append;
mod group;
mod membership;
mod tail;
pub mod topic;

use std::time::Duration;

#[cfg(test)]
pub(crate) use append::tests::mock;
pub use append::{AppendError, Appended, Appender};
pub use group::GroupWorker;
pub use membership::{Membership, MembershipEvent};
use rdkafka::ClientConfig;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
pub use tail::{JournalRecord, PartitionTail, Tailer};

/// How long a request for metadata or offsets may take.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Why records have no broker's time, and what to do.
pub const NO_BROKER_TIME: &str = "the topic is no longer set to message.timestamp.type=LogAppendTime, so that records come \
    without the time of a broker. Correct that setting with kafka-configs.sh";

/// Whether this build can use TLS with Kafka.
pub const HAS_TLS: bool = cfg!(feature = "kafka-tls");

/// How to reach Kafka.
#[derive(Clone, Debug, Default)]
pub struct KafkaSettings {
    /// Bootstrap brokers, separated by commas.
    pub brokers: String,
    /// The topic that is the journal.
    pub topic: String,
    /// User name and password for SASL.
    pub login: Option<KafkaLogin>,
    /// TLS, if the brokers require it.
    pub tls: Option<KafkaTls>,
}

/// A user name and password.
#[derive(Clone)]
pub struct KafkaLogin {
    /// User name.
    pub user: String,
    /// Password.
    pub password: String,
    /// `PLAIN`, `SCRAM-SHA-256` or `SCRAM-SHA-512`.
    pub mechanism: String,
}

impl std::fmt::Debug for KafkaLogin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KafkaLogin")
            .field("user", &self.user)
            .field("mechanism", &self.mechanism)
            .finish_non_exhaustive()
    }
}

/// How brokers are verified.
#[derive(Clone, Debug, Default)]
pub struct KafkaTls {
    /// File with the certificates to trust; those of the system if unset.
    pub ca_file: Option<String>,
}

impl KafkaSettings {
    /// Settings that every client needs.
    fn client(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        config
            .set("bootstrap.servers", &self.brokers)
            .set("client.id", "tally")
            .set("socket.nagle.disable", "true")
            .set("socket.keepalive.enable", "true")
            // Brokers that were down are tried again within a second.
            .set("reconnect.backoff.ms", "100")
            .set("reconnect.backoff.max.ms", "1000")
            .set("topic.metadata.refresh.interval.ms", "30000")
            .set("allow.auto.create.topics", "false")
            .set_log_level(RDKafkaLogLevel::Warning);
        let protocol = match (&self.login, &self.tls) {
            (None, None) => "plaintext",
            (Some(_), None) => "sasl_plaintext",
            (None, Some(_)) => "ssl",
            (Some(_), Some(_)) => "sasl_ssl",
        };
        config.set("security.protocol", protocol);
        if let Some(login) = &self.login {
            config
                .set("sasl.mechanism", &login.mechanism)
                .set("sasl.username", &login.user)
                .set("sasl.password", &login.password);
        }
        if let Some(ca_file) = self.tls.as_ref().and_then(|tls| tls.ca_file.as_ref()) {
            config.set("ssl.ca.location", ca_file);
        }
        config
    }
}

/// Why a request to Kafka failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum TopicError {
    /// No broker answered.
    #[error("Kafka cannot be reached at {brokers}: {why}. Check that the brokers are up and the address is right")]
    Unreachable {
        /// The bootstrap brokers.
        brokers: String,
        /// The cause.
        why: String,
    },
    /// The brokers do not accept the user name and password.
    #[error("Kafka refused the credentials of user `{0}`. Check user and password in [cluster]")]
    Credentials(String),
    /// TLS with the brokers failed.
    #[error(
        "TLS with Kafka at {brokers} failed: {why}. Check `kafka_ca` in [cluster] and the certificates of the brokers"
    )]
    Tls {
        /// The bootstrap brokers.
        brokers: String,
        /// The cause.
        why: String,
    },
    /// The topic does not exist.
    #[error("the topic `{0}` does not exist. Create it with `tally cluster init`")]
    NoTopic(String),
    /// The topic exists with other properties than Tally needs.
    #[error("the topic `{topic}` {problem}")]
    WrongTopic {
        /// Its name.
        topic: String,
        /// What is wrong, and what to do.
        problem: String,
    },
    /// The position is not in the topic: retention removed it, or it was never written.
    #[error(
        "partition {partition} of the topic holds positions {first} to {end}, but {wanted} is needed. {}",
        position_advice(*wanted, *end)
    )]
    NoPosition {
        /// The partition.
        partition: u32,
        /// The position that is needed.
        wanted: u64,
        /// The first position that the topic has.
        first: u64,
        /// Its end.
        end: u64,
    },
    /// The topic has other records than those that were applied.
    #[error(
        "partition {partition} of the topic has other records before position {position} than those in PostgreSQL: one \
         of them was appended at {appended}, after the stored time {stored} (in milliseconds since 1970). {LOST_RECORDS}"
    )]
    OtherRecords {
        /// The partition.
        partition: u32,
        /// The stored position.
        position: u64,
        /// When the last record before that position was appended, of those that have a broker's time.
        appended: u64,
        /// The partition's time at that position, as it was stored.
        stored: u64,
    },
    /// Nothing tells whether the records before this position are those that were applied.
    #[error(
        "partition {partition} of the topic has no record before position {position} with the time of a broker, so that it \
         cannot be told from one that was recreated. If it was, restore PostgreSQL to a state that matches the topic; if it \
         was not, move to a new topic as docs/cluster-operations.md describes"
    )]
    UntimedRecords {
        /// The partition.
        partition: u32,
        /// The stored position.
        position: u64,
    },
    /// Anything else.
    #[error("Kafka: {0}")]
    Other(String),
}

const LOST_RECORDS: &str =
    "The topic was recreated or has lost records. Restore PostgreSQL to a state that matches the topic";

fn position_advice(wanted: u64, end: u64) -> &'static str {
    if wanted > end {
        LOST_RECORDS
    } else {
        "Records were removed before PostgreSQL had them. Restore a newer backup of PostgreSQL"
    }
}

impl TopicError {
    fn new(settings: &KafkaSettings, error: &KafkaError) -> TopicError {
        TopicError::of_connection(settings, error, &error.to_string())
    }

    /// An error of the client, with the reason it gave.
    fn of_connection(settings: &KafkaSettings, error: &KafkaError, why: &str) -> TopicError {
        use RDKafkaErrorCode as Code;
        let code = match error {
            KafkaError::AdminOp(code) => Some(*code),
            error => error.rdkafka_error_code(),
        };
        match code {
            Some(Code::SSL) => TopicError::Tls { brokers: settings.brokers.clone(), why: why.to_owned() },
            Some(Code::Authentication | Code::SaslAuthenticationFailed) => {
                TopicError::Credentials(settings.login.as_ref().map_or_else(String::new, |login| login.user.clone()))
            }
            Some(Code::UnknownTopicOrPartition | Code::UnknownTopic) => TopicError::NoTopic(settings.topic.clone()),
            Some(
                Code::AllBrokersDown
                | Code::BrokerTransportFailure
                | Code::OperationTimedOut
                | Code::Resolve
                | Code::RequestTimedOut
                | Code::NetworkException,
            ) => TopicError::Unreachable { brokers: settings.brokers.clone(), why: why.to_owned() },
            _ => TopicError::Other(why.to_owned()),
        }
    }

    /// Whether trying again later may help.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        matches!(self, TopicError::Unreachable { .. } | TopicError::Tls { .. } | TopicError::Other(_))
    }
}
