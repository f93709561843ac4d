//! The handle: publishes and reads totals and heartbeats.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::stream::{self, StreamExt, TryStreamExt};
use parking_lot::Mutex;
use redis::cluster::ClusterClientBuilder;
use redis::cluster_async::ClusterConnection;
use redis::cluster_routing::{Route, RoutingInfo, SingleNodeRoutingInfo, Slot, SlotAddr};
use redis::{Cmd, FromRedisValue, Pipeline, Value, from_redis_value};
use tally_core::key::Key;

use super::error::{RedisError, needs_single_commands};
use super::layout::{Heartbeat, Total, TotalUpdate, heartbeat_key, total_key};
use super::limits::{
    ADDRESS_BYTES_MAX, CONNECT_MAX, PIPELINE_COMMANDS_MAX, PIPELINES_MAX, REQUEST_MAX, RESPONSE_MAX, RETRIES_MAX,
    RETRY_MS_MAX, RETRY_MS_MIN, SINGLE_COMMANDS_MAX, TOTAL_TTL_DEFAULT,
};
use super::scripts::{
    KeyCommand, KeyVerb, ScriptForm, ScriptHashes, TOTAL_CREATED, TOTAL_GONE, TOTAL_KEPT, TOTAL_REPLACED,
};
use super::slots::SlotOwners;

/// Where Redis is.
#[derive(Clone)]
pub struct RedisSettings {
    /// Some nodes of the cluster, as `host:port`. The others are found through them.
    pub nodes: Vec<String>,
    /// The user, if not the default one.
    pub username: Option<String>,
    /// The password.
    pub password: Option<String>,
    /// Start of every key, so that several clusters of Tally can share a Redis Cluster: the name of the topic.
    pub prefix: String,
    /// How long a total is published after it was first read.
    pub total_ttl: Duration,
}

impl RedisSettings {
    /// Without credentials, with the default time to live.
    #[must_use]
    pub fn new(nodes: Vec<String>, prefix: &str) -> RedisSettings {
        RedisSettings { nodes, username: None, password: None, prefix: prefix.to_owned(), total_ttl: TOTAL_TTL_DEFAULT }
    }
}

impl std::fmt::Debug for RedisSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let RedisSettings { nodes, username, password, prefix, total_ttl } = self;
        f.debug_struct("RedisSettings")
            .field("nodes", nodes)
            .field("username", username)
            .field("password", &password.as_ref().map(|_| "…"))
            .field("prefix", prefix)
            .field("total_ttl", total_ttl)
            .finish()
    }
}

/// What became of the totals of one call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PublishReport {
    /// How many were not there.
    pub created: usize,
    /// How many replaced an older one.
    pub replaced: usize,
    /// How many were as new or newer in Redis.
    pub kept: usize,
    /// Those that are not in Redis any more, expired or flushed, and were not created.
    pub gone: Vec<Key>,
}

/// A connection to Redis Cluster that follows failovers and reconnects by itself.
pub struct Totals {
    connection: ClusterConnection,
    /// The nodes of the settings, for messages.
    nodes: String,
    prefix: String,
    total_ttl_ms: u64,
    hashes: ScriptHashes,
    /// `None` until it is needed, and after it turned out to be outdated.
    owners: Mutex<Option<Arc<SlotOwners>>>,
    malformed: AtomicU64,
    epoch: AtomicU64,
}

impl Totals {
    /// Connects. Fails if no node answers, or not as it should.
    pub async fn connect(settings: &RedisSettings) -> Result<Totals, RedisError> {
        let nodes = settings.nodes.join(", ");
        let urls = settings.nodes.iter().map(|node| format!("redis://{node}"));
        let mut builder = ClusterClientBuilder::new(urls)
            .connection_timeout(CONNECT_MAX)
            .response_timeout(RESPONSE_MAX)
            .overall_response_timeout(Some(REQUEST_MAX))
            .retries(RETRIES_MAX)
            .min_retry_wait(RETRY_MS_MIN)
            .max_retry_wait(RETRY_MS_MAX);
        if let Some(username) = &settings.username {
            builder = builder.username(username);
        }
        if let Some(password) = &settings.password {
            builder = builder.password(password);
        }
        let failed = |error: redis::RedisError| RedisError::new(&error, &nodes);
        let connection = builder.build().map_err(failed)?.get_async_connection().await.map_err(failed)?;
        let load = async |command: Cmd| {
            let anywhere = RoutingInfo::SingleNode(SingleNodeRoutingInfo::RandomPrimary);
            from_answer(connection.clone().route_command(command, anywhere).await).map_err(failed)
        };
        let hashes = ScriptHashes::load(load).await?;
        Ok(Totals {
            connection,
            prefix: settings.prefix.clone(),
            total_ttl_ms: u64::try_from(settings.total_ttl.as_millis()).unwrap_or(u64::MAX).max(1),
            hashes,
            owners: Mutex::new(None),
            malformed: AtomicU64::new(0),
            epoch: AtomicU64::new(0),
            nodes,
        })
    }

    /// Publishes totals, each only if it is newer than the one there, and only if one is there or it is the first. After
    /// an error some may be published; publishing all of them again is safe.
    pub async fn publish(&self, updates: &[TotalUpdate]) -> Result<PublishReport, RedisError> {
        let command = |update: &TotalUpdate| KeyCommand {
            key: total_key(&self.prefix, &update.key),
            verb: KeyVerb::PublishTotal { value: update.encode(), ttl_ms: update.first.then_some(self.total_ttl_ms) },
        };
        let answers = self.run(updates.iter().map(command).collect()).await?;
        let mut report = PublishReport::default();
        for (update, answer) in updates.iter().zip(answers) {
            match answer {
                Value::Int(TOTAL_KEPT) => report.kept += 1,
                Value::Int(TOTAL_REPLACED) => report.replaced += 1,
                Value::Int(TOTAL_CREATED) => report.created += 1,
                Value::Int(TOTAL_GONE) => report.gone.push(update.key.clone()),
                other => return Err(unexpected(&other)),
            }
        }
        Ok(report)
    }

    /// Reads totals, in the order of the keys; `None` for those that are not published.
    pub async fn get(&self, keys: &[Key]) -> Result<Vec<Option<Total>>, RedisError> {
        let values = self.read(keys.iter().map(|key| total_key(&self.prefix, key)).collect()).await?;
        Ok(values.iter().map(|value| self.decoded(value.as_deref(), Total::decode)).collect())
    }

    /// Publishes heartbeats, each unless the one there is newer by epoch, position and time, in this order. Answers for
    /// each whether it was published. Call it after the totals of these positions are published.
    pub async fn publish_heartbeats(&self, heartbeats: &[Heartbeat]) -> Result<Vec<bool>, RedisError> {
        if let Some(long) = heartbeats.iter().find(|heartbeat| heartbeat.owner.len() > ADDRESS_BYTES_MAX) {
            let owner = &long.owner;
            return Err(RedisError::Settings(format!(
                "the worker's address `{owner}` is longer than {ADDRESS_BYTES_MAX} bytes"
            )));
        }
        let command = |heartbeat: &Heartbeat| KeyCommand {
            key: heartbeat_key(&self.prefix, heartbeat.partition),
            verb: KeyVerb::PublishHeartbeat { value: heartbeat.encode() },
        };
        let answers = self.run(heartbeats.iter().map(command).collect()).await?;
        let is_published = |answer: Value| match answer {
            Value::Int(published @ 0..=1) => Ok(published == 1),
            other => Err(unexpected(&other)),
        };
        answers.into_iter().map(is_published).collect()
    }

    /// Reads the heartbeats of partitions, in their order; `None` for those that nobody has published.
    pub async fn heartbeats(&self, partitions: &[u32]) -> Result<Vec<Option<Heartbeat>>, RedisError> {
        let values = self.read(partitions.iter().map(|partition| heartbeat_key(&self.prefix, *partition)).collect()).await?;
        let decoded = |(partition, value): (&u32, &Option<Vec<u8>>)| {
            self.decoded(value.as_deref(), |value| Heartbeat::decode(*partition, value))
        };
        Ok(partitions.iter().zip(&values).map(decoded).collect())
    }

    /// The highest epoch of the cluster seen so far. When it grows, a replica may have taken over that lacks the latest
    /// writes: what was published has to be published again.
    pub async fn topology_epoch(&self) -> Result<u64, RedisError> {
        let mut command = redis::cmd("CLUSTER");
        command.arg("INFO");
        let info: String = self.ask_any_node(command).await?;
        let epoch = info.lines().find_map(|line| line.strip_prefix("cluster_current_epoch:"));
        let epoch: u64 = epoch.and_then(|epoch| epoch.trim().parse().ok()).ok_or(RedisError::Unexpected(info))?;
        Ok(self.epoch.fetch_max(epoch, Ordering::Relaxed).max(epoch))
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

    async fn read(&self, keys: Vec<Vec<u8>>) -> Result<Vec<Option<Vec<u8>>>, RedisError> {
        let answers = self.run(keys.into_iter().map(|key| KeyCommand { key, verb: KeyVerb::Get }).collect()).await?;
        let value = |answer| match answer {
            Value::BulkString(value) => Ok(Some(value)),
            Value::Nil => Ok(None),
            other => Err(unexpected(&other)),
        };
        answers.into_iter().map(value).collect()
    }

    /// Runs commands and returns their answers in the same order. Those of one node are sent in pipelines.
    async fn run(&self, commands: Vec<KeyCommand>) -> Result<Vec<Value>, RedisError> {
        if commands.is_empty() {
            return Ok(Vec::new());
        }
        let slots: Vec<Slot> = commands.iter().map(|command| Slot::for_key(&command.key)).collect();
        let groups = self.owners().await?.group(slots.iter().copied());
        // In loops: with closures over references, the compiler cannot prove that the future may change threads.
        let mut pipelines = Vec::new();
        for group in &groups {
            for chunk in group.chunks(PIPELINE_COMMANDS_MAX) {
                pipelines.push(self.run_chunk(&commands, &slots, chunk));
            }
        }
        let done: Vec<(&[usize], Vec<Value>)> =
            stream::iter(pipelines).buffer_unordered(PIPELINES_MAX).try_collect().await?;
        let mut answers = vec![Value::Nil; commands.len()];
        for (at, answer) in done.into_iter().flat_map(|(chunk, answers)| chunk.iter().zip(answers)) {
            answers[*at] = answer;
        }
        Ok(answers)
    }

    /// Runs the commands with these numbers, whose slots have one owner.
    async fn run_chunk<'a>(
        &self,
        commands: &[KeyCommand],
        slots: &[Slot],
        chunk: &'a [usize],
    ) -> Result<(&'a [usize], Vec<Value>), RedisError> {
        let commands: Vec<&KeyCommand> = chunk.iter().map(|at| &commands[*at]).collect();
        let answers = self.run_on_one_node(&commands, slots[chunk[0]]).await?;
        Ok((chunk, answers))
    }

    /// Runs commands in a pipeline on the owner of a slot, or one by one if that node does not own all of their slots.
    async fn run_on_one_node(&self, commands: &[&KeyCommand], slot: Slot) -> Result<Vec<Value>, RedisError> {
        let mut pipeline = Pipeline::with_capacity(commands.len());
        // The first one makes the node remember the script for the others.
        let forms = std::iter::once(ScriptForm::Text).chain(std::iter::repeat(ScriptForm::Hash(&self.hashes)));
        for (command, form) in commands.iter().zip(forms) {
            pipeline.add_command(command.command(form));
        }
        let sent = self.connection.clone().route_pipeline(pipeline, 0, commands.len(), master_of(slot)).await;
        let error = match sent.and_then(|answers| answers.into_iter().map(Value::extract_error).collect()) {
            Ok(answers) => return Ok(answers),
            Err(error) => error,
        };
        *self.owners.lock() = None;
        if !needs_single_commands(error.kind()) {
            return Err(self.failed(&error));
        }
        tracing::debug!(%error, commands = commands.len(), "a Redis pipeline is sent as single commands");
        let mut singles = Vec::with_capacity(commands.len());
        for command in commands {
            singles.push(self.run_one(command));
        }
        stream::iter(singles).buffered(SINGLE_COMMANDS_MAX).try_collect().await
    }

    async fn run_one(&self, command: &KeyCommand) -> Result<Value, RedisError> {
        let routing = RoutingInfo::SingleNode(master_of(Slot::for_key(&command.key)));
        let answer = self.connection.clone().route_command(command.command(ScriptForm::Text), routing).await;
        answer.and_then(Value::extract_error).map_err(|error| self.failed(&error))
    }

    async fn owners(&self) -> Result<Arc<SlotOwners>, RedisError> {
        let known = self.owners.lock().clone();
        if let Some(known) = known {
            return Ok(known);
        }
        let mut command = redis::cmd("CLUSTER");
        command.arg("SLOTS");
        let answer: Value = self.ask_any_node(command).await?;
        let owners = Arc::new(SlotOwners::parse(&answer));
        *self.owners.lock() = Some(Arc::clone(&owners));
        Ok(owners)
    }

    async fn ask_any_node<T: FromRedisValue>(&self, command: Cmd) -> Result<T, RedisError> {
        let anywhere = RoutingInfo::SingleNode(SingleNodeRoutingInfo::Random);
        let answer = self.connection.clone().route_command(command, anywhere).await;
        from_answer(answer).map_err(|error| self.failed(&error))
    }

    fn failed(&self, error: &redis::RedisError) -> RedisError {
        RedisError::new(error, &self.nodes)
    }
}

fn from_answer<T: FromRedisValue>(answer: Result<Value, redis::RedisError>) -> Result<T, redis::RedisError> {
    from_redis_value(answer?.extract_error()?).map_err(redis::RedisError::from)
}

fn master_of(slot: Slot) -> SingleNodeRoutingInfo {
    SingleNodeRoutingInfo::SpecificNode(Route::with_slot(slot, SlotAddr::Master))
}

fn unexpected(answer: &Value) -> RedisError {
    RedisError::Unexpected(format!("{answer:?}"))
}
