//! The connection to one node, shared by all calls and opened again when it is lost.

use std::sync::Arc;

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ErrorKind, IntoConnectionInfo, Pipeline, RedisConnectionInfo,
    RedisResult, Value,
};
use tokio::net::TcpStream;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};

use super::error::TLS_FAILED;
use super::limits::{CONNECT_MAX, RECONNECT_PAUSE, RESPONSE_MAX};
use crate::tls::{TlsClient, TlsFailure};

/// How connections are encrypted and authenticated.
#[derive(Clone)]
pub struct NodeSecurity {
    /// User and password.
    pub login: RedisConnectionInfo,
    /// TLS, if it is on.
    pub tls: Option<TlsClient>,
}

/// The connection to one node.
pub struct NodeLink {
    client: Client,
    tls: Option<TlsClient>,
    /// When the last attempt failed, unless one has succeeded since.
    failed_at: parking_lot::Mutex<Option<Instant>>,
    state: Mutex<LinkState>,
}

#[derive(Default)]
struct LinkState {
    connection: Option<MultiplexedConnection>,
    /// Number of connections so far, so that a caller drops only the connection that it used.
    generation: u64,
    /// The last failed attempt.
    failed: Option<(Instant, redis::RedisError)>,
}

impl NodeLink {
    /// Does not connect yet.
    pub fn new(address: &str, security: &NodeSecurity) -> RedisResult<NodeLink> {
        let info = format!("redis://{address}").into_connection_info()?.set_redis_settings(security.login.clone());
        Ok(NodeLink {
            client: Client::open(info)?,
            tls: security.tls.clone(),
            failed_at: parking_lot::Mutex::default(),
            state: Mutex::default(),
        })
    }

    /// Opens the connection if there is none. After an error, nothing was sent.
    pub async fn ready(&self) -> RedisResult<()> {
        self.connection().await.map(drop)
    }

    /// Sends commands in one pipeline and returns their answers, which may be errors. `Err` means that the connection
    /// failed; the next call opens it again.
    pub async fn send(&self, pipeline: &Pipeline, count: usize) -> RedisResult<Vec<Value>> {
        let sent = self.try_send(pipeline, count).await;
        *self.failed_at.lock() = sent.is_err().then(Instant::now);
        sent
    }

    /// Records that the node is slow, or answers but does not serve its keys: it may be cut off, and other nodes may know
    /// more.
    pub fn note_down(&self) {
        *self.failed_at.lock() = Some(Instant::now());
    }

    /// When the last attempt failed, unless one has succeeded since.
    pub fn failed_at(&self) -> Option<Instant> {
        *self.failed_at.lock()
    }

    async fn try_send(&self, pipeline: &Pipeline, count: usize) -> RedisResult<Vec<Value>> {
        let (mut connection, generation) = self.connection().await?;
        let sent = connection.send_packed_commands(pipeline, 0, count).await.map_err(explained);
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
        // Boxed, here and where other connections are opened: it is rare, and large.
        match Box::pin(self.open()).await {
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

    async fn open(&self) -> RedisResult<MultiplexedConnection> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT_MAX))
            .set_response_timeout(Some(RESPONSE_MAX));
        match &self.tls {
            None => self.client.get_multiplexed_async_connection_with_config(&config).await,
            Some(tls) => {
                let opened = timeout(CONNECT_MAX, self.open_encrypted(tls, config)).await;
                opened.unwrap_or_else(|_| Err(tls_failed(&TlsFailure::silent(CONNECT_MAX))))
            }
        }
    }

    /// The handshake is ours and not the library's, so that its failures say what to do.
    async fn open_encrypted(
        &self,
        tls: &TlsClient,
        config: AsyncConnectionConfig,
    ) -> RedisResult<MultiplexedConnection> {
        let info = self.client.get_connection_info();
        let ConnectionAddr::Tcp(host, port) = info.addr() else {
            return Err((ErrorKind::InvalidClientConfig, "an address has the form `host:port`").into());
        };
        let stream = TcpStream::connect((host.trim_start_matches('[').trim_end_matches(']'), *port)).await?;
        stream.set_nodelay(true)?;
        let stream = tls.connect(host, stream).await.map_err(|failure| tls_failed(&failure))?;
        let opened = MultiplexedConnection::new_with_config(info.redis_settings(), stream, config).await;
        let (connection, driver) = opened.map_err(explained)?;
        tokio::spawn(driver);
        Ok(connection)
    }
}

/// Explains a TLS failure within an error: a server that requires a client certificate says so after the handshake.
fn explained(error: redis::RedisError) -> redis::RedisError {
    let source = std::error::Error::source(&error);
    let shared = source.and_then(|source| source.downcast_ref::<Arc<dyn std::error::Error + Send + Sync>>());
    let io = shared.and_then(|shared| shared.downcast_ref::<std::io::Error>());
    match io.and_then(TlsFailure::within) {
        Some(failure) => tls_failed(&failure),
        None => error,
    }
}

fn tls_failed(failure: &TlsFailure) -> redis::RedisError {
    (ErrorKind::Io, TLS_FAILED, failure.to_string()).into()
}
