//! The settings of a cluster: the table `[cluster]`, and `roles`.

mod tls;

use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Duration;

use tally_cluster::kafka::{KafkaLogin, KafkaSettings, KafkaTls};
use tally_cluster::limits::{PARTITIONS_MAX, RETENTION_MS_MIN, STANDBYS_MAX};
use tally_cluster::postgres::PgSettings;
use tally_cluster::redis::is_address;
use tally_cluster::redis::limits::ADDRESS_BYTES_MAX;
use tally_cluster::rpc::{LinkSecurity, Secret};
use tally_cluster::tls::{TlsClient, TlsServer};

use super::{ConfigError, Setting, invalid, place, validate_duration, validate_switch};

/// Supported SASL mechanisms of Kafka.
const KAFKA_MECHANISMS: [&str; 3] = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"];

/// Keys of `[cluster]`. Each can also be set by an environment variable, such as `TALLY_CLUSTER_KAFKA`.
pub const CLUSTER_KEYS: [&str; 31] = [
    "kafka",
    "topic",
    "partitions",
    "replication",
    "retention",
    "kafka_user",
    "kafka_password",
    "kafka_mechanism",
    "kafka_tls",
    "kafka_ca",
    "redis",
    "redis_user",
    "redis_password",
    "redis_tls",
    "redis_ca",
    "redis_cert",
    "redis_key",
    "postgres",
    "postgres_ca",
    "postgres_cert",
    "postgres_key",
    "worker",
    "worker_tls_cert",
    "worker_tls_key",
    "worker_tls_ca",
    "advertise",
    "secret",
    "rollup_every",
    "persist_every",
    "standbys",
    "drift_warn",
];

/// What a process does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Roles {
    /// Serves clients.
    pub api: bool,
    /// Hosts partitions.
    pub worker: bool,
}

impl std::fmt::Display for Roles {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match (self.api, self.worker) {
            (true, false) => "api",
            (false, true) => "worker",
            _ => "api and worker",
        })
    }
}

/// Validated settings of a cluster.
#[derive(Clone)]
pub struct ClusterConfig {
    /// What this process does.
    pub roles: Roles,
    /// The journal.
    pub kafka: KafkaSettings,
    /// Number of partitions, for `tally cluster init`.
    pub partitions: u32,
    /// Copies of each partition, for `tally cluster init`.
    pub replication: u32,
    /// How long the journal is kept, for `tally cluster init`.
    pub retention: Duration,
    /// Nodes of the Redis Cluster.
    pub redis: Vec<String>,
    /// User name of Redis.
    pub redis_user: Option<String>,
    /// Password of Redis.
    pub redis_password: Option<String>,
    /// TLS to Redis, if it is on.
    pub redis_tls: Option<TlsClient>,
    /// The store.
    pub postgres: PgSettings,
    /// Where this worker answers API nodes.
    pub worker: SocketAddr,
    /// The address at which API nodes reach this worker, if it differs.
    pub advertise: Option<String>,
    /// Secret and TLS of calls to workers.
    pub to_workers: LinkSecurity<TlsClient>,
    /// Secret and TLS of this worker.
    pub from_api_nodes: LinkSecurity<TlsServer>,
    /// How often totals are published.
    pub rollup_every: Duration,
    /// How often the state is persisted.
    pub persist_every: Duration,
    /// How many other workers apply each partition.
    pub standbys: u32,
    /// Differences between Redis and the state above this are logged as warnings.
    pub drift_warn: u64,
}

/// Leaves out passwords.
impl std::fmt::Debug for ClusterConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClusterConfig").field("roles", &self.roles).field("kafka", &self.kafka).finish_non_exhaustive()
    }
}

/// The given settings of `[cluster]`, by key. `redis` may be given several times.
#[derive(Clone, Copy)]
struct Given<'a>(&'a [(String, Setting)]);

impl<'a> Given<'a> {
    fn get(self, key: &str) -> Option<&'a Setting> {
        self.0.iter().find(|(name, _)| name == key).map(|(_, setting)| setting)
    }

    fn text(self, key: &str, default: &str) -> String {
        self.get(key).map_or_else(|| default.to_owned(), |setting| setting.text.trim().to_owned())
    }

    fn optional(self, key: &str) -> Option<String> {
        self.get(key).map(|setting| setting.text.clone())
    }

    fn required(self, key: &str, example: &str) -> Result<String, ConfigError> {
        match self.get(key) {
            Some(setting) if !setting.text.trim().is_empty() => Ok(setting.text.trim().to_owned()),
            Some(setting) => Err(invalid(&full(key), setting, &format!("is empty; use {example}"))),
            None => Err(self.missing(key, &format!("add {key} = \"{example}\""))),
        }
    }

    /// The error for a setting that a cluster cannot do without.
    fn missing(self, key: &str, what_to_do: &str) -> ConfigError {
        // A single variable left over in the environment configures a cluster, so the error names one that is set.
        let because = self.0.first().map(|(given, setting)| format!("{} is set", place(&full(given), setting)));
        ConfigError(format!(
            "{} is missing; {what_to_do}. A cluster is configured because {}",
            either(key),
            because.unwrap_or_default()
        ))
    }

    fn number(self, key: &str, default: u32, max: u32) -> Result<u32, ConfigError> {
        Ok(self.number_within(key, default.into(), 1, max.into())? as u32)
    }

    fn number_within(self, key: &str, default: u64, min: u64, max: u64) -> Result<u64, ConfigError> {
        let Some(setting) = self.get(key) else { return Ok(default) };
        let number = setting.text.trim().parse().ok().filter(|number| (min..=max).contains(number));
        number.ok_or_else(|| invalid(&full(key), setting, &format!("is not a number from {min} to {max}")))
    }

    fn duration(self, key: &str, default: Duration, min: Duration) -> Result<Duration, ConfigError> {
        let Some(setting) = self.get(key) else { return Ok(default) };
        validate_duration(&full(key), setting, min)
    }
}

fn full(key: &str) -> String {
    format!("cluster.{key}")
}

/// The error if only one of two paired settings is given.
fn unpaired(missing: &str, given: &str) -> ConfigError {
    ConfigError(format!("{} is missing; {given} needs it", either(missing)))
}

/// A setting that was not given, as it is named in the file and in the environment.
fn either(key: &str) -> String {
    format!("`{}` (`TALLY_CLUSTER_{}`)", full(key), key.to_uppercase())
}

const WORKER_DEFAULT: &str = "127.0.0.1:7400";
const ROLES: [&str; 2] = ["api", "worker"];

/// Validates the settings of a cluster. `None` if there are none: the embedded engine is used.
pub fn validate(given: &[(String, Setting)], roles: &[Setting]) -> Result<Option<ClusterConfig>, ConfigError> {
    if given.is_empty() {
        return match roles.first() {
            Some(role) => Err(ConfigError(format!(
                "{} is for clusters; add a table [cluster], or remove it to run a single server",
                place("roles", role)
            ))),
            None => Ok(None),
        };
    }
    let given = Given(given);
    let redis: Vec<String> =
        given.0.iter().filter(|(key, _)| key == "redis").map(|(_, node)| node.text.clone()).collect();
    if redis.is_empty() {
        return Err(given.missing("redis", "add redis = [\"10.0.0.1:7000\"]"));
    }
    let worker = address(given)?;
    let secret = match given.get("secret").filter(|setting| !setting.text.is_empty()) {
        // The text of a secret must not be shown.
        Some(setting) => Some(
            Secret::new(&setting.text)
                .map_err(|error| ConfigError(format!("{}: {error}", place(&full("secret"), setting))))?,
        ),
        None => None,
    };
    if secret.is_none() && !worker.ip().to_canonical().is_loopback() {
        return Err(ConfigError(format!(
            "{} is missing; it is required because the worker address {worker} can be reached from other machines. Give API \
             nodes and workers the same long random text",
            either("secret")
        )));
    }
    let roles = validate_roles(roles)?;
    let (client_tls, server_tls) = tls::workers(given, roles)?;
    Ok(Some(ClusterConfig {
        roles,
        kafka: kafka(given)?,
        partitions: given.number("partitions", 16, PARTITIONS_MAX)?,
        replication: given.number("replication", 3, 16)?,
        retention: given.duration(
            "retention",
            Duration::from_secs(7 * 24 * 3_600),
            Duration::from_millis(RETENTION_MS_MIN),
        )?,
        redis,
        redis_user: given.optional("redis_user"),
        redis_password: given.optional("redis_password"),
        redis_tls: tls::redis(given)?,
        postgres: tls::postgres(given)?,
        worker,
        advertise: advertised(given)?,
        to_workers: LinkSecurity { secret: secret.clone(), tls: client_tls },
        from_api_nodes: LinkSecurity { secret, tls: server_tls },
        rollup_every: given.duration("rollup_every", Duration::from_secs(1), Duration::from_millis(10))?,
        persist_every: given.duration("persist_every", Duration::from_secs(30), Duration::from_millis(100))?,
        standbys: given.number_within("standbys", 0, 0, STANDBYS_MAX.into())? as u32,
        drift_warn: given.number_within("drift_warn", 0, 0, i64::MAX as u64)?,
    }))
}

fn kafka(given: Given<'_>) -> Result<KafkaSettings, ConfigError> {
    let login = match (given.optional("kafka_user"), given.optional("kafka_password")) {
        (Some(user), Some(password)) => {
            let mechanism = given.text("kafka_mechanism", "PLAIN");
            if !KAFKA_MECHANISMS.contains(&mechanism.as_str()) {
                let known = KAFKA_MECHANISMS.join(", ");
                return Err(ConfigError(format!(
                    "`cluster.kafka_mechanism`: `{mechanism}` is not supported; use one of {known}"
                )));
            }
            if mechanism != "PLAIN" && !tally_cluster::kafka::HAS_TLS {
                return Err(ConfigError(format!(
                    "`cluster.kafka_mechanism`: this binary was built without `{mechanism}`; build it with --features \
                     kafka-tls"
                )));
            }
            Some(KafkaLogin { user, password, mechanism })
        }
        (None, None) => None,
        (Some(_), None) => return Err(unpaired("kafka_password", "kafka_user")),
        (None, Some(_)) => return Err(unpaired("kafka_user", "kafka_password")),
    };
    let tls = validate_switch(&full("kafka_tls"), given.get("kafka_tls"))?;
    if !tls {
        tls::refuse_without(given, &["kafka_ca"], "kafka_tls = true")?;
    }
    if tls && !tally_cluster::kafka::HAS_TLS {
        return Err(ConfigError(
            "`cluster.kafka_tls`: this binary was built without TLS for Kafka; build it with --features kafka-tls"
                .to_owned(),
        ));
    }
    Ok(KafkaSettings {
        brokers: given.required("kafka", "10.0.0.1:9092,10.0.0.2:9092")?,
        topic: given.text("topic", "tally"),
        login,
        tls: tls.then(|| KafkaTls { ca_file: given.optional("kafka_ca") }),
    })
}

fn address(given: Given<'_>) -> Result<SocketAddr, ConfigError> {
    let text = given.text("worker", WORKER_DEFAULT);
    let found = text.to_socket_addrs().ok().and_then(|mut addresses| addresses.next());
    found.ok_or_else(|| {
        ConfigError(format!(
            "`cluster.worker`: `{text}` is not an address; use a host and a port such as {WORKER_DEFAULT}"
        ))
    })
}

/// The address announced to API nodes. Heartbeats limit its length and separate fields with spaces, so it has none.
fn advertised(given: Given<'_>) -> Result<Option<String>, ConfigError> {
    let Some(text) = given.optional("advertise") else { return Ok(None) };
    let has_port = text.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok());
    if !has_port || text.contains(char::is_whitespace) || !is_address(&text) {
        return Err(ConfigError(format!(
            "`cluster.advertise`: `{text}` is not an address of at most {ADDRESS_BYTES_MAX} bytes; use a host and a port such as \
             worker-1.example:7400"
        )));
    }
    Ok(Some(text))
}

fn validate_roles(given: &[Setting]) -> Result<Roles, ConfigError> {
    if given.is_empty() {
        return Ok(Roles { api: true, worker: true });
    }
    let mut roles = Roles { api: false, worker: false };
    for role in given {
        match role.text.trim() {
            "api" => roles.api = true,
            "worker" => roles.worker = true,
            other => {
                let hint = crate::hint::did_you_mean(other, ROLES.into_iter());
                return Err(invalid("roles", role, &format!("is not a role; {hint}")));
            }
        }
    }
    Ok(roles)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::super::SettingSource;
    use super::*;

    fn setting(text: &str) -> Setting {
        Setting { text: text.into(), source: SettingSource::Environment }
    }

    fn given(settings: &[(&str, &str)]) -> Vec<(String, Setting)> {
        settings.iter().map(|(key, text)| ((*key).to_owned(), setting(text))).collect()
    }

    const MINIMAL: [(&str, &str); 3] =
        [("kafka", "k:9092"), ("redis", "r:7000"), ("postgres", "postgres://tally@p/tally")];

    /// The minimal settings with some more, or others of the same name.
    fn with(more: &[(&str, &str)]) -> Vec<(String, Setting)> {
        given(&[more, &MINIMAL[..]].concat())
    }

    pub fn accepted(more: &[(&str, &str)]) -> ClusterConfig {
        validate(&with(more), &[]).unwrap().unwrap()
    }

    pub fn refused(more: &[(&str, &str)]) -> String {
        validate(&with(more), &[]).unwrap_err().0
    }

    #[test]
    fn without_cluster_settings_there_is_no_cluster() {
        assert!(validate(&[], &[]).unwrap().is_none());
        assert!(validate(&[], &[setting("api")]).unwrap_err().0.contains("add a table [cluster]"));
    }

    #[test]
    fn three_services_are_enough_and_the_rest_has_defaults() {
        let config = validate(&given(&MINIMAL), &[]).unwrap().unwrap();
        assert_eq!(config.roles, Roles { api: true, worker: true });
        assert_eq!((config.partitions, config.kafka.topic.as_str()), (16, "tally"));
        assert_eq!(config.rollup_every, Duration::from_secs(1));
    }

    #[test]
    fn what_is_missing_or_wrong_is_named_with_what_would_be_right() {
        assert!(
            validate(&given(&MINIMAL[1..]), &[])
                .unwrap_err()
                .0
                .contains("`cluster.kafka` (`TALLY_CLUSTER_KAFKA`) is missing")
        );
        let alone = validate(&given(&[("replication", "1")]), &[]).unwrap_err().0;
        assert_eq!(
            alone,
            "`cluster.redis` (`TALLY_CLUSTER_REDIS`) is missing; add redis = [\"10.0.0.1:7000\"]. A cluster is configured \
             because `TALLY_CLUSTER_REPLICATION` is set"
        );
        assert!(
            refused(&[("worker", "0.0.0.0:7400")]).contains("`cluster.secret` (`TALLY_CLUSTER_SECRET`) is missing")
        );
        let long = format!("{}:7400", "a".repeat(ADDRESS_BYTES_MAX));
        for wrong in ["worker-1", " worker-1:7400", "worker 1:7400", ":7400", "worker-1:port", &long] {
            assert!(refused(&[("advertise", wrong)]).contains("`cluster.advertise`"), "{wrong}");
        }
        assert_eq!(accepted(&[("advertise", "worker-1:7400")]).advertise.as_deref(), Some("worker-1:7400"));
        assert!(refused(&[("partitions", "0")]).contains("is not a number from 1 to"));
        assert!(refused(&[("standbys", "9")]).contains("is not a number from 0 to 8"));
        assert!(refused(&[("rollup_every", "soon")]).contains("is not a duration"));
        assert!(refused(&[("kafka_user", "u")]).contains("kafka_password"));
        let login = |mechanism| [("kafka_user", "u"), ("kafka_password", "p"), ("kafka_mechanism", mechanism)];
        assert!(refused(&login("GSSAPI")).contains("use one of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512"));
        assert!(refused(&login("SCRAM-SHA-256")).contains("--features kafka-tls"));
        let wrong = validate(&given(&MINIMAL), &[setting("apo")]).unwrap_err().0;
        assert!(wrong.contains("did you mean `api`?"), "{wrong}");
    }
}
