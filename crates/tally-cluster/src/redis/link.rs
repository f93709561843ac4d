//! The connection to one node, shared by all calls and opened again when it is lost.

use std::sync::atomic::{AtomicBool, Ordering};

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, IntoConnectionInfo, Pipeline, RedisConnectionInfo, RedisResult, Value};
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::limits::{CONNECT_MAX, RECONNECT_PAUSE, RESPONSE_MAX};

/// The connection to one node.
pub struct NodeLink {
    client: Client,
    has_failed: AtomicBool,
    state: Mutex<LinkState>,
}

#[derive(Default)]
struct LinkState {
    connection: Option<MultiplexedConnection>,
    /// Number of connections so far, so that only its user drops a broken one.
    generation: u64,
    /// The last failed attempt.
    failed: Option<(Instant, redis::RedisError)>,
}

impl NodeLink {
    /// Does not connect yet.
    pub fn new(address: &str, credentials: &RedisConnectionInfo) -> RedisResult<NodeLink> {
        let info = format!("redis://{address}").into_connection_info()?.set_redis_settings(credentials.clone());
        Ok(NodeLink { client: Client::open(info)?, has_failed: AtomicBool::new(false), state: Mutex::default() })
    }

    /// Opens the connection if there is none. After an error, nothing was sent.
    pub async fn ready(&self) -> RedisResult<()> {
        self.connection().await.map(drop)
    }

    /// Sends commands in one piece and returns their answers, which may be errors. An error of the whole is one of the
    /// connection, which is then opened again by the next call.
    pub async fn send(&self, pipeline: &Pipeline, count: usize) -> RedisResult<Vec<Value>> {
        let sent = self.try_send(pipeline, count).await;
        self.has_failed.store(sent.is_err(), Ordering::Relaxed);
        sent
    }

    /// Whether the last attempt failed.
    pub fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Relaxed)
    }

    async fn try_send(&self, pipeline: &Pipeline, count: usize) -> RedisResult<Vec<Value>> {
        let (mut connection, generation) = self.connection().await?;
        let sent = connection.send_packed_commands(pipeline, 0, count).await;
        if sent.is_err() {
            let mut state = self.state.lock().await;
            if state.generation == generation {
                state.connection = None;
            }
        }
        sent
    }

    /// Opens the connection if there is none. Calls that wait for it share the attempt and its failure.
    async fn connection(&self) -> RedisResult<(MultiplexedConnection, u64)> {
        let mut state = self.state.lock().await;
        if let Some(connection) = &state.connection {
            return Ok((connection.clone(), state.generation));
        }
        if let Some((at, error)) = &state.failed
            && at.elapsed() < RECONNECT_PAUSE
        {
            return Err(error.clone());
        }
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT_MAX))
            .set_response_timeout(Some(RESPONSE_MAX));
        match self.client.get_multiplexed_async_connection_with_config(&config).await {
            Ok(connection) => {
                state.generation += 1;
                state.failed = None;
                state.connection = Some(connection.clone());
                Ok((connection, state.generation))
            }
            Err(error) => {
                state.failed = Some((Instant::now(), error.clone()));
                Err(error)
            }
        }
    }
}
