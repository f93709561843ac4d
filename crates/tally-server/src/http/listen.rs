//! Accepts HTTP connections, up to a limit, and drains them on shutdown.

use std::convert::Infallible;
use std::future::Future;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{Extensions, HeaderValue, header};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use tokio::net::{TcpListener, TcpStream};

use super::Server;
use super::answer_room::AnswerPermit;
use super::parse_errors::{AnswerBody, ConnectionPhase, HttpConnection, RequestBody};
use super::problem::{Kind, Problem};
use crate::accept::{Listening, pause_after, prepare};
use crate::admission::Caller;
use crate::limits::{HEAD_BYTES_MAX, HEAD_READ_MAX};

/// Where a request came from.
#[derive(Clone, Copy)]
pub struct Peer(IpAddr);

impl Peer {
    /// For requests that did not come from a socket.
    pub fn unknown() -> Self {
        Peer(IpAddr::V4(Ipv4Addr::UNSPECIFIED))
    }

    /// Who sent a request.
    pub fn caller_of(extensions: &Extensions) -> Caller {
        extensions.get::<Peer>().copied().unwrap_or_else(Peer::unknown).caller()
    }

    /// The caller at this address.
    pub fn caller(self) -> Caller {
        Caller::new(self.0)
    }
}

/// Accepts connections until `stopping` resolves. Its value is how long open connections have to finish.
pub async fn listen(
    listener: TcpListener,
    server: Arc<Server>,
    connections_max: usize,
    stopping: impl Future<Output = Duration>,
) -> Listening {
    let graceful = GracefulShutdown::new();
    let mut stopping = std::pin::pin!(stopping);
    let drain_max = loop {
        tokio::select! {
            biased;
            drain_max = &mut stopping => break drain_max,
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) if server.metrics.connections() >= connections_max as u64 => refuse(&server, stream),
                Ok((stream, peer)) => serve(&server, stream, peer, &graceful),
                Err(error) => pause_after(&error).await,
            },
        }
    };
    drop(listener);
    match tokio::time::timeout(drain_max, graceful.shutdown()).await {
        Ok(()) => Listening::Drained,
        Err(_) => Listening::CutOff,
    }
}

/// Serves one connection on its own task.
fn serve(server: &Arc<Server>, stream: TcpStream, peer: SocketAddr, graceful: &GracefulShutdown) {
    if let Err(error) = prepare(&stream) {
        tracing::debug!(%error, "a connection was gone before it was served");
        return;
    }
    let server = Arc::clone(server);
    let open = server.metrics.connection();
    let phase = ConnectionPhase::default();
    let io = TokioIo::new(HttpConnection::new(stream, phase.clone()));
    let answer = service_fn(move |request: hyper::Request<Incoming>| {
        let server = Arc::clone(&server);
        let answering = phase.begin();
        let request = request.map(|body| Body::new(RequestBody::new(body, phase.clone())));
        let phase = phase.clone();
        async move {
            let mut response = server.answer(request, Peer(peer.ip())).await;
            // hyper closes the connection unless the rest has arrived already. A client that is not told so may send its
            // next request on it.
            if phase.has_unread_body() {
                response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            let permit = AnswerPermit::take(&mut response);
            Ok::<_, Infallible>(response.map(|body| AnswerBody::new(body, permit, answering)))
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_READ_MAX)
        .max_header_size(HEAD_BYTES_MAX)
        .max_buf_size(HEAD_BYTES_MAX)
        // A client may shut down its sending side and still wait for its answers. The price is that hyper does not read
        // while a request is answered, so a client that is gone is noticed only when the answer is written; and a write
        // that has begun is never cancelled halfway.
        .half_close(true)
        .serve_connection(io, answer);
    let watched = graceful.watch(connection);
    tokio::spawn(async move {
        if let Err(error) = watched.await {
            tracing::debug!(%error, "a connection ended early");
        }
        drop(open);
    });
}

/// Answers a connection over the limit with 503 and closes it, without waiting for its request.
fn refuse(server: &Server, stream: TcpStream) {
    server.metrics.connection_refused();
    let written = stream.into_std().and_then(|mut stream| stream.write_all(refusal().as_bytes()));
    tracing::debug!(?written, "a connection was refused: too many are open");
}

fn refusal() -> String {
    let body = Problem::new(Kind::TooManyConnections, "close some, or reuse them").to_line();
    format!(
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/problem+json\r\nretry-after: 1\r\n\
         connection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}
