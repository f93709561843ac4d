//! The worker's side.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::header::AUTHORIZATION;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper::{Response as HttpResponse, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};

use super::Secret;
use super::message::{Request, Response, RpcError, encode_answer};
use crate::limits::{RPC_BYTES_MAX, RPC_REQUESTS_MAX};

/// A peer that does not answer a ping for this long is gone.
const PING_EVERY: Duration = Duration::from_secs(5);

/// Answers requests.
pub trait Handler: Send + Sync + 'static {
    /// Answers one request.
    fn handle(&self, request: Request) -> impl Future<Output = Result<Response, RpcError>> + Send;
}

/// Serves API nodes until it is stopped or dropped.
pub struct Server {
    stop: watch::Sender<bool>,
}

struct Shared<H> {
    handler: H,
    secret: Option<Secret>,
    permits: Semaphore,
    stopping: watch::Receiver<bool>,
}

impl Server {
    /// Serves on the current runtime. Without a secret, only on a loopback address.
    pub fn start(listener: TcpListener, secret: Option<Secret>, handler: impl Handler) -> io::Result<Server> {
        if secret.is_none() && !listener.local_addr()?.ip().to_canonical().is_loopback() {
            return Err(io::Error::other("an address that other machines can reach needs `secret` in [cluster]"));
        }
        let (stop, stopping) = watch::channel(false);
        let permits = Semaphore::new(RPC_REQUESTS_MAX);
        let shared = Arc::new(Shared { handler, secret, permits, stopping });
        tokio::spawn(accept(listener, shared));
        Ok(Server { stop })
    }

    /// Takes no more connections. Requests in progress are answered.
    pub async fn stop(self) {
        self.stop.send_replace(true);
        // Resolves when every connection has let go of its receiver.
        let _ = tokio::time::timeout(Duration::from_secs(5), self.stop.closed()).await;
    }
}

async fn accept<H: Handler>(listener: TcpListener, shared: Arc<Shared<H>>) {
    let mut stopping = shared.stopping.clone();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stopping.wait_for(|stopping| *stopping) => return,
        };
        match accepted {
            Ok((stream, _)) => drop(tokio::spawn(serve(stream, Arc::clone(&shared)))),
            // Out of descriptors, most likely: one may be free soon.
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

async fn serve<H: Handler>(stream: TcpStream, shared: Arc<Shared<H>>) {
    // Small messages must not wait for more.
    let _ = stream.set_nodelay(true);
    let mut stopping = shared.stopping.clone();
    let service = service_fn(move |request| {
        let shared = Arc::clone(&shared);
        async move { Ok::<_, Infallible>(answer(&shared, request).await) }
    });
    let connection = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_EVERY)
        .max_concurrent_streams(RPC_REQUESTS_MAX as u32)
        .serve_connection(TokioIo::new(stream), service);
    tokio::pin!(connection);
    tokio::select! {
        _ = connection.as_mut() => {}
        // Only the event: its guard must not be held while waiting.
        () = async { drop(stopping.wait_for(|stopping| *stopping).await) } => {
            connection.as_mut().graceful_shutdown();
            let _ = connection.await;
        }
    }
}

async fn answer<H: Handler>(shared: &Shared<H>, request: hyper::Request<Incoming>) -> HttpResponse<Full<Bytes>> {
    let status = |status| {
        let mut response = HttpResponse::new(Full::default());
        *response.status_mut() = status;
        response
    };
    let given = request.headers().get(AUTHORIZATION).map(|value| value.as_bytes());
    if shared.secret.as_ref().is_some_and(|secret| !secret.admits(given)) {
        return status(StatusCode::UNAUTHORIZED);
    }
    let Ok(_permit) = shared.permits.try_acquire() else {
        return HttpResponse::new(encode_answer(&Err(RpcError::Overloaded)).into());
    };
    let Ok(body) = Limited::new(request.into_body(), RPC_BYTES_MAX).collect().await else {
        return status(StatusCode::PAYLOAD_TOO_LARGE);
    };
    let Some(request) = Request::decode(&body.to_bytes()) else {
        return status(StatusCode::BAD_REQUEST);
    };
    let answer = if *shared.stopping.borrow() { Err(RpcError::Closing) } else { shared.handler.handle(request).await };
    HttpResponse::new(encode_answer(&answer).into())
}
