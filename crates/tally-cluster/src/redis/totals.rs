//! The handle: publishes and reads totals and heartbeats.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use redis::cluster_routing::Slot;
use redis::{Cmd, FromRedisValue, RedisConnectionInfo, Value, from_redis_value};
use tally_core::key::Key;

use super::cluster::ClusterRouter;
use super::error::RedisError;
use super::layout::{Heartbeat, Total, TotalUpdate, heartbeat_key, total_key};
use super::limits::{ADDRESS_BYTES_MAX, TOTAL_TTL_DEFAULT};
use super::link::NodeSecurity;
use super::scripts::{KeyCommand, KeyVerb, ScriptHashes, TOTAL_GONE, TOTAL_OUTDATED, TOTAL_PUBLISHED};
use super::topology::Topology;
use crate::tls::TlsClient;

/// How to reach Redis.
#[derive(Clone)]
pub struct RedisSettings {
    /// Some nodes of the cluster, as `host:port`. The others are found through them.
    pub nodes: Vec<String>,
    /// The user, if not the default one.
    pub username: Option<String>,
    /// The password.
    pub password: Option<String>,
    /// TLS, if it is on.
    pub tls: Option<TlsClient>,
    /// Prefix of every key. Tally clusters that share a Redis Cluster need different ones.
    pub prefix: String,
    /// How long a total is published after it was first read.
    pub total_ttl: Duration,
}

impl RedisSettings {
    /// Without credentials and TLS, with the default time to live.
    #[must_use]
    pub fn new(nodes: Vec<String>) -> RedisSettings {
        RedisSettings {
            nodes,
            username: None,
            password: None,
            tls: None,
            prefix: "tally".to_owned(),
            total_ttl: TOTAL_TTL_DEFAULT,
        }
    }
}

impl std::fmt::Debug for RedisSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let RedisSettings { nodes, username, password, tls, prefix, total_ttl } = self;
        f.debug_struct("RedisSettings")
            .field("nodes", nodes)
            .field("username", username)
            .field("password", &password.as_ref().map(|_| "…"))
            .field("tls", &tls.is_some())
            .field("prefix", prefix)
            .field("total_ttl", total_ttl)
            .finish()
    }
}

/// The result of publishing totals.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PublishReport {
    /// How many are in Redis now with the position they were published with.
    pub published: usize,
    /// How many have a newer position in Redis: another worker owns the partition.
    pub outdated: usize,
    /// Those that are no longer in Redis, because they expired or were flushed, and were not created.
    pub gone: Vec<Key>,
}

/// What is in Redis for a counter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredTotal {
    /// The total, if it is one.
    pub total: Option<Total>,
    value: Vec<u8>,
}

/// A connection to Redis Cluster that follows failovers and reconnects by itself.
pub struct Totals {
    pub(super) cluster: ClusterRouter,
    /// The configured nodes, for messages.
    nodes: String,
    pub(super) prefix: String,
    total_ttl_ms: u64,
    pub(super) hashes: ScriptHashes,
    malformed: AtomicU64,
}

impl Totals {
    /// Connects. Fails if no node answers, or if an answer is unexpected.
    pub async fn connect(settings: &RedisSettings) -> Result<Totals, RedisError> {
        let mut login = RedisConnectionInfo::default();
        if let Some(username) = &settings.username {
            login = login.set_username(username);
        }
        if let Some(password) = &settings.password {
            login = login.set_password(password);
        }
        let nodes = settings.nodes.join(", ");
        let cluster = ClusterRouter::new(settings.nodes.clone(), NodeSecurity { login, tls: settings.tls.clone() });
        let failed = |error: redis::RedisError| RedisError::new(&error, &nodes);
        let load = async |command: Cmd| ask_any(&cluster, &command).await.map_err(failed);
        let hashes = ScriptHashes::load(load).await?;
        let totals = Totals {
            cluster,
            prefix: settings.prefix.clone(),
            total_ttl_ms: u64::try_from(settings.total_ttl.as_millis()).unwrap_or(u64::MAX).max(1),
            hashes,
            malformed: AtomicU64::new(0),
            nodes,
        };
        // Fails if it is not a cluster.
        totals.generation().await?;
        Ok(totals)
    }

    /// Publishes totals, each only if it is newer than the one there, and only if one is there or it is the first.
    /// After an error some may be published; publishing all of them again is safe.
    pub async fn publish(&self, updates: &[TotalUpdate]) -> Result<PublishReport, RedisError> {
        // Commands that are sent again with a newer topology keep these generations, and their totals are not used.
        let topology = self.cluster.topology().await.map_err(|error| self.failed(&error))?;
        let command = |update: &TotalUpdate| {
            let key = total_key(&self.prefix, &update.key);
            let generation = topology.generations.of(Slot::for_key(&key)).unwrap_or_default();
            let ttl_ms = update.first.then_some(self.total_ttl_ms);
            KeyCommand { key, verb: KeyVerb::PublishTotal { value: update.encode(generation), ttl_ms } }
        };
        let answers = self.run(&updates.iter().map(command).collect::<Vec<_>>()).await?;
        let mut report = PublishReport::default();
        for (update, answer) in updates.iter().zip(answers) {
            match answer {
                Value::Int(TOTAL_PUBLISHED) => report.published += 1,
                Value::Int(TOTAL_OUTDATED) => report.outdated += 1,
                Value::Int(TOTAL_GONE) => report.gone.push(update.key.clone()),
                other => return Err(unexpected(&other)),
            }
        }
        Ok(report)
    }

    /// Reads totals, in the order of the keys. `None` for those that are not published, and for those that a failover
    /// may have reverted: they were published under another master than the one that answered.
    pub async fn get(&self, keys: &[Key]) -> Result<Vec<Option<Total>>, RedisError> {
        let keys: Vec<_> = keys.iter().map(|key| total_key(&self.prefix, key)).collect();
        let slots: Vec<_> = keys.iter().map(Slot::for_key).collect();
        let (values, topology) = self.read(keys).await?;
        let total = |(slot, value): (Slot, Option<Vec<u8>>)| {
            let total = self.decoded(value.as_deref(), Total::decode)?;
            let generation = topology.as_ref()?.generations.of(slot)?;
            (total.generation == generation).then_some(total)
        };
        Ok(slots.into_iter().zip(values).map(total).collect())
    }

    /// Reads totals as they are in Redis, including those that must not be served.
    pub async fn stored(&self, keys: &[Key]) -> Result<Vec<Option<StoredTotal>>, RedisError> {
        let (values, _) = self.read(keys.iter().map(|key| total_key(&self.prefix, key)).collect()).await?;
        let stored = |value: Option<Vec<u8>>| value.map(|value| StoredTotal { total: Total::decode(&value), value });
        Ok(values.into_iter().map(stored).collect())
    }

    /// Replaces totals, each only if it is still the one that was seen. Returns for each whether it was replaced.
    pub async fn replace(&self, totals: &[(StoredTotal, TotalUpdate)]) -> Result<Vec<bool>, RedisError> {
        let topology = self.cluster.topology().await.map_err(|error| self.failed(&error))?;
        let command = |(seen, update): &(StoredTotal, TotalUpdate)| {
            let key = total_key(&self.prefix, &update.key);
            let generation = topology.generations.of(Slot::for_key(&key)).unwrap_or_default();
            KeyCommand { key, verb: KeyVerb::Replace { seen: seen.value.clone(), value: update.encode(generation) } }
        };
        let answers = self.run(&totals.iter().map(command).collect::<Vec<_>>()).await?;
        answers.iter().map(is_done).collect()
    }

    /// Publishes heartbeats, each unless the one in Redis is newer by epoch, position and time, in this order. Returns
    /// for each whether it was published. Call it after the totals of these positions are published.
    pub async fn publish_heartbeats(&self, heartbeats: &[Heartbeat]) -> Result<Vec<bool>, RedisError> {
        if let Some(wrong) = heartbeats.iter().find(|heartbeat| !heartbeat.is_readable()) {
            return Err(RedisError::Settings(format!(
                "the addresses of the workers `{}` and {:?} do not fit a heartbeat: each can have {ADDRESS_BYTES_MAX} bytes, and \
                 no spaces",
                wrong.owner, wrong.standbys
            )));
        }
        let command = |heartbeat: &Heartbeat| KeyCommand {
            key: heartbeat_key(&self.prefix, heartbeat.partition),
            verb: KeyVerb::PublishHeartbeat { value: heartbeat.encode() },
        };
        let answers = self.run(&heartbeats.iter().map(command).collect::<Vec<_>>()).await?;
        answers.iter().map(is_done).collect()
    }

    /// Reads the heartbeats of partitions, in their order; `None` for those that nobody has published.
    pub async fn heartbeats(&self, partitions: &[u32]) -> Result<Vec<Option<Heartbeat>>, RedisError> {
        let (values, _) = self
            .read(partitions.iter().map(|partition| heartbeat_key(&self.prefix, *partition)).collect::<Vec<_>>())
            .await?;
        let decoded = |(partition, value): (&u32, &Option<Vec<u8>>)| {
            self.decoded(value.as_deref(), |value| Heartbeat::decode(*partition, value))
        };
        Ok(partitions.iter().zip(&values).map(decoded).collect())
    }

    /// Changes when a master is replaced. What was published has to be published again then: a replica that takes over
    /// may lack the latest writes.
    pub async fn generation(&self) -> Result<u64, RedisError> {
        let topology = self.cluster.recent_topology().await.map_err(|error| self.failed(&error))?;
        Ok(topology.generations.all())
    }

    /// How many values were read that Tally cannot have written. They count as absent.
    pub fn malformed(&self) -> u64 {
        self.malformed.load(Ordering::Relaxed)
    }

    fn decoded<T>(&self, value: Option<&[u8]>, decode: impl FnOnce(&[u8]) -> Option<T>) -> Option<T> {
        let decoded = decode(value?);
        if decoded.is_none() {
            self.malformed.fetch_add(1, Ordering::Relaxed);
        }
        decoded
    }

    async fn read(&self, keys: Vec<Vec<u8>>) -> Result<(Vec<Option<Vec<u8>>>, Option<Arc<Topology>>), RedisError> {
        let commands: Vec<_> = keys.into_iter().map(|key| KeyCommand { key, verb: KeyVerb::Get }).collect();
        let sent = self.cluster.run(&commands, &self.hashes).await;
        let (answers, topology) = sent.map_err(|error| self.failed(&error))?;
        let value = |answer| match answer {
            Value::BulkString(value) => Ok(Some(value)),
            Value::Nil => Ok(None),
            other => Err(unexpected(&other)),
        };
        Ok((answers.into_iter().map(value).collect::<Result<_, _>>()?, topology))
    }

    pub(super) async fn run(&self, commands: &[KeyCommand]) -> Result<Vec<Value>, RedisError> {
        let sent = self.cluster.run(commands, &self.hashes).await;
        sent.map(|(answers, _)| answers).map_err(|error| self.failed(&error))
    }

    pub(super) fn failed(&self, error: &redis::RedisError) -> RedisError {
        RedisError::new(error, &self.nodes)
    }
}

async fn ask_any<T: FromRedisValue>(cluster: &ClusterRouter, command: &Cmd) -> Result<T, redis::RedisError> {
    Ok(from_redis_value(cluster.ask_any(command).await?)?)
}

fn is_done(answer: &Value) -> Result<bool, RedisError> {
    match answer {
        Value::Int(done @ 0..=1) => Ok(*done == 1),
        other => Err(unexpected(other)),
    }
}

pub(super) fn unexpected(answer: &Value) -> RedisError {
    RedisError::Unexpected(format!("{answer:?}"))
}
