//! The worker's side: accepts connections, checks the secret, and hands requests to a handler.

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, HeaderValue};
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::{JoinHandle, JoinSet};

use super::codec::{decode_request, encode_response};
use super::limits::{
    ACCEPT_PAUSE, BODY_READ_MAX, CLOSE_MAX, CONNECTION_REQUESTS_MAX, CONNECTION_WINDOW_BYTES, CONNECTIONS_MAX,
    FIRST_REQUEST_MAX, HANDSHAKE_MAX, HEAD_BYTES_MAX, IDLE_MAX, MESSAGE_WINDOW_BYTES, PING_ANSWER_MAX, PING_EVERY,
    REQUEST_BYTES_MAX, RESPONSE_BYTES_MAX, SERVER_REQUESTS_MAX,
};
use super::message::{RpcError, RpcRequest, RpcResponse};
use super::secret::{LinkSecurity, Secret};
use super::{CLUSTER_HEADER, ClusterId, PATH};
use crate::tls::{AcceptedStream, TlsServer};

/// Answers requests.
pub trait RpcHandler: Send + Sync + 'static {
    /// Answers one request. May wait as long as the answer takes; other requests are handled meanwhile. The future is
    /// dropped when the caller does not wait any more.
    fn handle(&self, request: RpcRequest) -> impl Future<Output = Result<RpcResponse, RpcError>> + Send;
}

/// Why a server does not start.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Other hosts that can reach the address could read all counters.
    #[error("workers listen on {0}, which other hosts can reach: set a secret that API nodes and workers share")]
    SecretMissing(SocketAddr),
    /// The address cannot be used.
    #[error("workers cannot listen on {0}: {1}")]
    Bind(SocketAddr, std::io::Error),
}

/// How far the server is with stopping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ServerPhase {
    Serving,
    /// New requests are answered with [`RpcError::Closing`].
    Draining,
    /// So are those that wait.
    CutOff,
    /// Connections are closed.
    Closing,
}

/// A running server. Dropping it cuts all connections.
pub struct RpcServer {
    address: SocketAddr,
    phase: watch::Sender<ServerPhase>,
    requests: Arc<Semaphore>,
    accepting: JoinHandle<()>,
}

/// What connections share.
struct ServerContext<H> {
    handler: H,
    secret: Option<Secret>,
    tls: Option<TlsServer>,
    cluster: ClusterId,
    requests: Arc<Semaphore>,
    phase: watch::Receiver<ServerPhase>,
}

impl RpcServer {
    /// Listens. A secret is required unless only this host can connect.
    pub async fn start(
        listen: SocketAddr,
        security: impl Into<LinkSecurity<TlsServer>>,
        cluster: ClusterId,
        handler: impl RpcHandler,
    ) -> Result<RpcServer, ListenError> {
        let LinkSecurity { secret, tls } = security.into();
        if secret.is_none() && !listen.ip().is_loopback() {
            return Err(ListenError::SecretMissing(listen));
        }
        let failed = |error| ListenError::Bind(listen, error);
        let listener = TcpListener::bind(listen).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let (phase, receiver) = watch::channel(ServerPhase::Serving);
        let requests = Arc::new(Semaphore::new(SERVER_REQUESTS_MAX));
        let context = ServerContext { handler, secret, tls, cluster, requests: Arc::clone(&requests), phase: receiver };
        let accepting = tokio::spawn(accept(listener, Arc::new(context)));
        Ok(RpcServer { address, phase, requests, accepting })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Requests that are not answered yet.
    #[must_use]
    pub fn requests(&self) -> usize {
        SERVER_REQUESTS_MAX - self.requests.available_permits()
    }

    /// Stops. Accepts no more connections, and answers new requests with [`RpcError::Closing`] at once; those that are
    /// not answered after `drain_max` as well. Then closes all connections.
    pub async fn stop(mut self, drain_max: Duration) {
        self.phase.send_replace(ServerPhase::Draining);
        self.answered(drain_max).await;
        self.phase.send_replace(ServerPhase::CutOff);
        self.answered(CLOSE_MAX).await;
        self.phase.send_replace(ServerPhase::Closing);
        // Connections that do not end are cut when this is dropped.
        let _ = tokio::time::timeout(CLOSE_MAX, &mut self.accepting).await;
    }

    /// Waits until all requests are answered, or for this long.
    async fn answered(&self, wait_max: Duration) {
        let all = self.requests.acquire_many(SERVER_REQUESTS_MAX as u32);
        let _ = tokio::time::timeout(wait_max, all).await;
    }
}

impl Drop for RpcServer {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// Waits for a phase. A server that was dropped has reached all of them.
async fn reached(current: &mut watch::Receiver<ServerPhase>, phase: ServerPhase) {
    let _ = current.wait_for(|current| *current >= phase).await;
}

/// Accepts connections until the stop, then waits for those that are open.
async fn accept<H: RpcHandler>(listener: TcpListener, context: Arc<ServerContext<H>>) {
    let slots = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut connections = JoinSet::new();
    let mut phase = context.phase.clone();
    loop {
        tokio::select! {
            biased;
            () = reached(&mut phase, ServerPhase::Draining) => break,
            Some(_) = connections.join_next() => {}
            accepted = listener.accept() => match (accepted, Arc::clone(&slots).try_acquire_owned()) {
                (Ok((stream, _)), Ok(slot)) => drop(connections.spawn(serve(stream, Arc::clone(&context), slot))),
                (Ok((_, peer)), Err(_)) => tracing::warn!(%peer, CONNECTIONS_MAX, "too many connections: one is refused"),
                (Err(error), _) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

/// Serves one connection until it ends, is idle for too long, or the server closes.
async fn serve<H: RpcHandler>(stream: TcpStream, context: Arc<ServerContext<H>>, _slot: OwnedSemaphorePermit) {
    if stream.set_nodelay(true).is_err() {
        return;
    }
    let Some(tls) = &context.tls else { return serve_http2(stream, context, Transport::AsConfigured).await };
    match tokio::time::timeout(HANDSHAKE_MAX, tls.accept(stream)).await {
        Ok(Ok(AcceptedStream::Tls(stream))) => serve_http2(stream, context, Transport::AsConfigured).await,
        Ok(Ok(AcceptedStream::Unencrypted(stream))) => serve_http2(stream, context, Transport::Unencrypted).await,
        Ok(Err(error)) => tracing::warn!(%error, "a TLS handshake with an API node failed"),
        Err(_) => tracing::debug!("a TLS handshake with an API node took too long"),
    }
}

/// How requests arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Transport {
    AsConfigured,
    /// Without TLS, although it is on. The client is told so instead of being cut off without a reason.
    Unencrypted,
}

async fn serve_http2<H: RpcHandler, S>(stream: S, context: Arc<ServerContext<H>>, transport: Transport)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut phase = context.phase.clone();
    let activity = Arc::new(Activity::default());
    let served = Arc::clone(&activity);
    let service = service_fn(move |request| {
        let (context, activity) = (Arc::clone(&context), Arc::clone(&served));
        async move { Ok::<_, Infallible>(context.answer(request, transport, &activity).await) }
    });
    let connection = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .max_concurrent_streams(CONNECTION_REQUESTS_MAX)
        // Requests may all be cancelled at once, when a caller's deadline passes. That is not an attack.
        .max_pending_accept_reset_streams(CONNECTION_REQUESTS_MAX as usize)
        .max_header_list_size(HEAD_BYTES_MAX)
        .initial_stream_window_size(MESSAGE_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_ANSWER_MAX)
        .auto_date_header(false)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    let idle = async {
        tokio::select! {
            () = reached(&mut phase, ServerPhase::Closing) => {}
            () = activity.ended() => {}
        }
    };
    tokio::select! {
        ended = connection.as_mut() => return log_end(ended),
        () = idle => connection.as_mut().graceful_shutdown(),
    }
    if let Ok(ended) = tokio::time::timeout(CLOSE_MAX, connection).await {
        log_end(ended);
    }
}

fn log_end(ended: hyper::Result<()>) {
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection of an API node ended early");
    }
}

/// How busy a connection is.
#[derive(Default)]
struct Activity {
    begun: AtomicU64,
    answered: AtomicU64,
}

impl Activity {
    /// Counts a request until it is dropped.
    fn begin(&self) -> impl Drop + '_ {
        self.begun.fetch_add(1, Ordering::Relaxed);
        OpenRequest(self)
    }

    /// Waits until the connection has been idle for too long.
    async fn ended(&self) {
        let mut wait = FIRST_REQUEST_MAX;
        let mut seen = 0;
        loop {
            tokio::time::sleep(wait).await;
            let begun = self.begun.load(Ordering::Relaxed);
            if begun == seen && self.answered.load(Ordering::Relaxed) == begun {
                return;
            }
            seen = begun;
            wait = IDLE_MAX;
        }
    }
}

struct OpenRequest<'a>(&'a Activity);

impl Drop for OpenRequest<'_> {
    fn drop(&mut self) {
        self.0.answered.fetch_add(1, Ordering::Relaxed);
    }
}

impl<H: RpcHandler> ServerContext<H> {
    async fn answer(
        &self,
        request: Request<Incoming>,
        transport: Transport,
        activity: &Activity,
    ) -> Response<Full<Bytes>> {
        if transport == Transport::Unencrypted {
            return status(StatusCode::UPGRADE_REQUIRED, "this worker needs TLS; set `worker_tls_ca` on API nodes");
        }
        if !self.is_authorized(&request) {
            return status(StatusCode::UNAUTHORIZED, "");
        }
        // Only now, so that unauthorized clients cannot keep a connection open.
        let _open = activity.begin();
        if request.method() != Method::POST || request.uri().path() != PATH {
            return status(StatusCode::NOT_FOUND, "");
        }
        let cluster = request.headers().get(CLUSTER_HEADER).map(HeaderValue::as_bytes);
        if cluster != Some(self.cluster.0.as_bytes()) {
            return status(StatusCode::MISDIRECTED_REQUEST, "this worker belongs to another cluster");
        }
        if *self.phase.borrow() > ServerPhase::Serving {
            return message(&Err(RpcError::Closing));
        }
        let Ok(_permit) = Arc::clone(&self.requests).try_acquire_owned() else {
            return message(&Err(RpcError::Overloaded));
        };
        match read_request(request.into_body()).await {
            Ok(request) => message(&self.handle(request).await),
            Err((code, reason)) => status(code, reason),
        }
    }

    fn is_authorized(&self, request: &Request<Incoming>) -> bool {
        let Some(secret) = &self.secret else { return true };
        request.headers().get(AUTHORIZATION).is_some_and(|header| secret.matches(header))
    }

    async fn handle(&self, request: RpcRequest) -> Result<RpcResponse, RpcError> {
        let mut phase = self.phase.clone();
        tokio::select! {
            biased;
            response = self.handler.handle(request) => response,
            () = cut_off(&mut phase) => Err(RpcError::Closing),
        }
    }
}

/// Resolves when a stopping server no longer waits for answers. A server that was dropped cuts the connection instead.
async fn cut_off(phase: &mut watch::Receiver<ServerPhase>) {
    if phase.wait_for(|phase| *phase >= ServerPhase::CutOff).await.is_err() {
        std::future::pending::<()>().await;
    }
}

async fn read_request(body: Incoming) -> Result<RpcRequest, (StatusCode, &'static str)> {
    let body = Limited::new(body, REQUEST_BYTES_MAX).collect();
    let body = match tokio::time::timeout(BODY_READ_MAX, body).await {
        Ok(Ok(body)) => body.to_bytes(),
        Ok(Err(error)) if error.is::<LengthLimitError>() => {
            return Err((StatusCode::PAYLOAD_TOO_LARGE, "the request is too large"));
        }
        Ok(Err(_)) => return Err((StatusCode::BAD_REQUEST, "the request is not complete")),
        Err(_) => return Err((StatusCode::REQUEST_TIMEOUT, "the request is too slow")),
    };
    let malformed = "the request is malformed, exceeds a limit, or is of another version of Tally";
    decode_request(&body).ok_or((StatusCode::BAD_REQUEST, malformed))
}

fn message(response: &Result<RpcResponse, RpcError>) -> Response<Full<Bytes>> {
    let mut encoded = encode_response(response);
    if encoded.len() > RESPONSE_BYTES_MAX {
        encoded = encode_response(&Err(RpcError::Failed("the response is too large".to_owned())));
    }
    Response::new(Full::new(Bytes::from(encoded)))
}

fn status(code: StatusCode, reason: &'static str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from_static(reason.as_bytes())));
    *response.status_mut() = code;
    response
}
