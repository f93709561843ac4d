//! The API node's side: one connection per worker, shared by all calls.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http2::{self, SendRequest};
use hyper::header::AUTHORIZATION;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout, timeout_at};

use super::codec::{cut, decode_response, encode_request};
use super::limits::{
    CONNECT_MAX, CONNECTION_REQUESTS_MAX, CONNECTION_WINDOW_BYTES, ERROR_BYTES_MAX, HANDSHAKE_MAX,
    MESSAGE_WINDOW_BYTES, PEERS_MAX, PING_ANSWER_MAX, PING_EVERY, RECONNECT_PAUSE_MAX, RECONNECT_PAUSE_MIN,
    RESPONSE_BYTES_MAX,
};
use super::message::{RpcError, RpcRequest, RpcResponse};
use super::secret::LinkSecurity;
use super::{CLUSTER_HEADER, ClusterId, PATH};
use crate::tls::{TlsClient, TlsFailure};

/// Why a call has no response.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RpcCallError {
    /// The worker cannot have seen the request.
    #[error("no connection to the worker at {address}: {reason}")]
    NotSent {
        /// Where the call went.
        address: String,
        /// What happened.
        reason: String,
    },
    /// The worker may have seen the request, and may still be working on it.
    #[error("no answer from the worker at {address}: {reason}")]
    NoAnswer {
        /// Where the call went.
        address: String,
        /// What happened.
        reason: String,
    },
    /// The worker has another secret.
    #[error("the worker at {address} does not accept the secret: API nodes and workers need the same one")]
    Unauthorized {
        /// Where the call went.
        address: String,
    },
    /// The worker does not understand the request.
    #[error("the worker at {address} refuses the request with status {status}: {reason}")]
    Rejected {
        /// Where the call went.
        address: String,
        /// The HTTP status.
        status: u16,
        /// What the worker says.
        reason: String,
    },
    /// The worker's own answer.
    #[error(transparent)]
    Worker(#[from] RpcError),
}

/// Calls workers.
pub struct RpcClient {
    security: LinkSecurity<TlsClient>,
    cluster: ClusterId,
    peers: Mutex<HashMap<String, Arc<PeerLink>>>,
}

/// The connection to one worker.
#[derive(Default)]
struct PeerLink {
    sender: Mutex<Option<SendRequest<Full<Bytes>>>>,
    /// Held while a connection is opened.
    attempts: tokio::sync::Mutex<FailedAttempts>,
}

#[derive(Default)]
struct FailedAttempts {
    last: Option<(Instant, String)>,
    pause: Duration,
}

/// Why one attempt of a call failed.
enum AttemptError {
    /// The connection was closed before the request was written.
    Unsent(String),
    Final(RpcCallError),
}

impl RpcClient {
    /// Calls workers of this cluster. Connects on the first call.
    #[must_use]
    pub fn new(security: impl Into<LinkSecurity<TlsClient>>, cluster: ClusterId) -> RpcClient {
        RpcClient { security: security.into(), cluster, peers: Mutex::default() }
    }

    /// Calls the worker at `host:port`. Dropping the future cancels the request at the worker.
    pub async fn call(
        &self,
        address: &str,
        request: &RpcRequest,
        deadline: Instant,
    ) -> Result<RpcResponse, RpcCallError> {
        let body = Bytes::from(encode_request(request));
        let peer = self.peer(address);
        // A connection that the worker has just closed may look usable once.
        match self.attempt(&peer, address, body.clone(), deadline).await {
            Err(AttemptError::Unsent(_)) => {}
            Err(AttemptError::Final(error)) => return Err(error),
            Ok(response) => return response,
        }
        match self.attempt(&peer, address, body, deadline).await {
            Err(AttemptError::Unsent(reason)) => Err(not_sent(address, reason)),
            Err(AttemptError::Final(error)) => Err(error),
            Ok(response) => response,
        }
    }

    async fn attempt(
        &self,
        peer: &PeerLink,
        address: &str,
        body: Bytes,
        deadline: Instant,
    ) -> Result<Result<RpcResponse, RpcCallError>, AttemptError> {
        let request =
            self.http_request(address, body).map_err(|reason| AttemptError::Final(not_sent(address, reason)))?;
        let mut sender = match timeout_at(deadline, peer.sender(address, self.security.tls.as_ref())).await {
            Ok(Ok(sender)) => sender,
            Ok(Err(reason)) => return Err(AttemptError::Final(not_sent(address, reason))),
            Err(_) => return Err(AttemptError::Final(not_sent(address, "the deadline has passed".to_owned()))),
        };
        let answered = async {
            match sender.try_send_request(request).await {
                Ok(response) => Ok(read_response(address, response).await),
                Err(mut failed) => Err(match failed.take_message() {
                    Some(_) => AttemptError::Unsent(causes(failed.error())),
                    None => AttemptError::Final(no_answer(address, causes(failed.error()))),
                }),
            }
        };
        match timeout_at(deadline, answered).await {
            Ok(answered) => answered,
            Err(_) => Err(AttemptError::Final(no_answer(address, "the deadline has passed".to_owned()))),
        }
    }

    fn http_request(&self, address: &str, body: Bytes) -> Result<Request<Full<Bytes>>, String> {
        let request = Request::builder().method(Method::POST).uri(format!("http://{address}{PATH}"));
        let request = request.header(CLUSTER_HEADER, &self.cluster.0);
        let mut request = request.body(Full::new(body)).map_err(|error| error.to_string())?;
        if let Some(secret) = &self.security.secret {
            request.headers_mut().insert(AUTHORIZATION, secret.header());
        }
        Ok(request)
    }

    fn peer(&self, address: &str) -> Arc<PeerLink> {
        let mut peers = self.peers.lock();
        if let Some(peer) = peers.get(address) {
            return Arc::clone(peer);
        }
        if peers.len() >= PEERS_MAX {
            peers.retain(|_, peer| peer.open_sender().is_some());
        }
        if peers.len() >= PEERS_MAX {
            // Calls in flight keep their connections.
            peers.clear();
        }
        let peer = Arc::<PeerLink>::default();
        peers.insert(address.to_owned(), Arc::clone(&peer));
        peer
    }
}

impl PeerLink {
    fn open_sender(&self) -> Option<SendRequest<Full<Bytes>>> {
        self.sender.lock().as_ref().filter(|sender| !sender.is_closed()).cloned()
    }

    /// The open connection, or a new one. Calls that wait for it share the attempt and its failure.
    async fn sender(&self, address: &str, tls: Option<&TlsClient>) -> Result<SendRequest<Full<Bytes>>, String> {
        if let Some(sender) = self.open_sender() {
            return Ok(sender);
        }
        let mut attempts = self.attempts.lock().await;
        if let Some(sender) = self.open_sender() {
            return Ok(sender);
        }
        if let Some((at, reason)) = &attempts.last
            && at.elapsed() < attempts.pause
        {
            return Err(reason.clone());
        }
        match Box::pin(connect(address, tls)).await {
            Ok(sender) => {
                *attempts = FailedAttempts::default();
                *self.sender.lock() = Some(sender.clone());
                Ok(sender)
            }
            Err(reason) => {
                attempts.pause = (attempts.pause * 2).clamp(RECONNECT_PAUSE_MIN, RECONNECT_PAUSE_MAX);
                attempts.last = Some((Instant::now(), reason.clone()));
                Err(reason)
            }
        }
    }
}

async fn connect(address: &str, tls: Option<&TlsClient>) -> Result<SendRequest<Full<Bytes>>, String> {
    let connecting = timeout(CONNECT_MAX, TcpStream::connect(address)).await;
    let stream = connecting.map_err(|_| format!("no connection within {CONNECT_MAX:?}"))?;
    let stream = stream.and_then(|stream| stream.set_nodelay(true).map(|()| stream));
    let stream = stream.map_err(|error| error.to_string())?;
    let Some(tls) = tls else { return open_http2(address, stream).await };
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    let encrypting = timeout(HANDSHAKE_MAX, tls.connect(host, stream)).await;
    let encrypted = encrypting.unwrap_or_else(|_| Err(TlsFailure::silent(HANDSHAKE_MAX)));
    let stream = encrypted.map_err(|failure| {
        format!("TLS failed: {failure}. See `worker_tls_ca`, and `worker_tls_cert` of the worker")
    })?;
    open_http2(address, stream).await
}

async fn open_http2<S>(address: &str, stream: S) -> Result<SendRequest<Full<Bytes>>, String>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let handshake = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .initial_stream_window_size(MESSAGE_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        // The answers to all calls that are cancelled at once may still arrive.
        .max_concurrent_reset_streams(CONNECTION_REQUESTS_MAX as usize)
        .keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_ANSWER_MAX)
        .keep_alive_while_idle(true)
        .handshake(TokioIo::new(stream));
    let (sender, connection) = handshake.await.map_err(|error| causes(&error))?;
    let address = address.to_owned();
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, address, "a connection to a worker ended early");
        }
    });
    Ok(sender)
}

async fn read_response(address: &str, response: Response<hyper::body::Incoming>) -> Result<RpcResponse, RpcCallError> {
    let code = response.status();
    if code == StatusCode::UNAUTHORIZED {
        return Err(RpcCallError::Unauthorized { address: address.to_owned() });
    }
    let body = Limited::new(response.into_body(), RESPONSE_BYTES_MAX).collect().await;
    let body = body.map_err(|error| no_answer(address, error.to_string()))?.to_bytes();
    if code != StatusCode::OK {
        let reason = cut(&String::from_utf8_lossy(&body), ERROR_BYTES_MAX).to_owned();
        return Err(RpcCallError::Rejected { address: address.to_owned(), status: code.as_u16(), reason });
    }
    let response = decode_response(&body).ok_or_else(|| no_answer(address, "the answer is malformed".to_owned()))?;
    response.map_err(RpcCallError::Worker)
}

fn not_sent(address: &str, reason: String) -> RpcCallError {
    RpcCallError::NotSent { address: address.to_owned(), reason }
}

fn no_answer(address: &str, reason: String) -> RpcCallError {
    RpcCallError::NoAnswer { address: address.to_owned(), reason }
}

/// An error with all of its causes.
fn causes(error: &dyn std::error::Error) -> String {
    let all = std::iter::successors(Some(error), |error| error.source());
    all.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
