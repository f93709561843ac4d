//! The API node's side: one long-lived connection per worker, shared by all requests.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http2::{self, SendRequest};
use hyper::header::AUTHORIZATION;
use hyper::{Method, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tokio::sync::Mutex;

use super::Secret;
use super::message::{Request, Response, RpcError, decode_answer};
use crate::limits::RPC_BYTES_MAX;

/// A worker that does not answer a ping for this long is gone.
const PING_EVERY: Duration = Duration::from_secs(2);
/// Longest wait for a connection.
const CONNECT_MAX: Duration = Duration::from_secs(2);

/// Why a call has no answer.
#[derive(Clone, Debug, thiserror::Error)]
pub enum CallError {
    /// It was not sent.
    #[error("the worker at {address} cannot be reached: {why}")]
    NotSent {
        /// The worker.
        address: String,
        /// The cause.
        why: String,
    },
    /// It was sent, and no answer came.
    #[error("the worker at {address} did not answer: {why}")]
    NoAnswer {
        /// The worker.
        address: String,
        /// The cause.
        why: String,
    },
    /// The worker has another secret.
    #[error("the worker at {0} refused the secret; `secret` in [cluster] must be the same everywhere")]
    Refused(String),
    /// The worker said why.
    #[error(transparent)]
    Rpc(RpcError),
}

type Sender = SendRequest<Full<Bytes>>;

/// Connections to workers.
pub struct Client {
    secret: Option<Secret>,
    /// By address. Locked while connecting, so that there is one connection.
    peers: parking_lot::Mutex<HashMap<String, Arc<Mutex<Option<Sender>>>>>,
}

impl Client {
    /// Without any connection yet.
    #[must_use]
    pub fn new(secret: Option<Secret>) -> Client {
        Client { secret, peers: parking_lot::Mutex::default() }
    }

    /// Asks a worker.
    pub async fn call(&self, address: &str, request: Request, deadline: Duration) -> Result<Response, CallError> {
        let no_answer = |why: String| CallError::NoAnswer { address: address.to_owned(), why };
        match tokio::time::timeout(deadline, self.call_once(address, &request)).await {
            Ok(answer) => answer,
            Err(_) => Err(no_answer("it took too long".to_owned())),
        }
    }

    async fn call_once(&self, address: &str, request: &Request) -> Result<Response, CallError> {
        let no_answer = |why: String| CallError::NoAnswer { address: address.to_owned(), why };
        let mut sender = self.connected(address).await?;
        let mut http = hyper::Request::builder().method(Method::POST).uri(format!("http://{address}/"));
        if let Some(secret) = &self.secret {
            http = http.header(AUTHORIZATION, secret.header());
        }
        let http = http.body(Full::new(Bytes::from(request.encode()))).map_err(|error| no_answer(error.to_string()))?;
        let answer = sender.send_request(http).await.map_err(|error| no_answer(error.to_string()))?;
        match answer.status() {
            StatusCode::OK => {}
            StatusCode::UNAUTHORIZED => return Err(CallError::Refused(address.to_owned())),
            status => return Err(no_answer(format!("it answered {status}"))),
        }
        let body = Limited::new(answer.into_body(), RPC_BYTES_MAX).collect().await;
        let body = body.map_err(|error| no_answer(error.to_string()))?.to_bytes();
        match decode_answer(&body) {
            Some(answer) => answer.map_err(CallError::Rpc),
            None => Err(no_answer("its answer cannot be read; is it another version of Tally?".to_owned())),
        }
    }

    async fn connected(&self, address: &str) -> Result<Sender, CallError> {
        let peer = Arc::clone(self.peers.lock().entry(address.to_owned()).or_default());
        let mut peer = peer.lock().await;
        if let Some(sender) = peer.as_ref().filter(|sender| !sender.is_closed()) {
            return Ok(sender.clone());
        }
        let not_sent = |why: String| CallError::NotSent { address: address.to_owned(), why };
        let stream = tokio::time::timeout(CONNECT_MAX, TcpStream::connect(address)).await;
        let stream = stream.map_err(|_| not_sent("it took too long".to_owned()))?;
        let stream = stream.map_err(|error| not_sent(error.to_string()))?;
        // Small messages must not wait for more.
        let _ = stream.set_nodelay(true);
        let (sender, connection) = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .keep_alive_interval(PING_EVERY)
            .keep_alive_timeout(PING_EVERY)
            .keep_alive_while_idle(true)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(|error| not_sent(error.to_string()))?;
        tokio::spawn(connection);
        *peer = Some(sender.clone());
        Ok(sender)
    }
}
