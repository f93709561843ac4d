//! Listening: connections in, within bounds, until it is time to stop.

use std::convert::Infallible;
use std::future::Future;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::Extensions;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use tokio::net::{TcpListener, TcpStream};

use super::Door;
use super::problem::{Kind, Problem};
use crate::accept::{Listening, pause_after, prepare};
use crate::limits::{HEAD_BYTES_MAX, HEAD_READ_MAX};

/// Where a request came from.
#[derive(Clone, Copy)]
pub struct Peer(IpAddr);

impl Peer {
    /// Nobody in particular.
    pub fn unknown() -> Self {
        Peer(IpAddr::V4(Ipv4Addr::UNSPECIFIED))
    }

    /// The address a request came from.
    pub fn of(extensions: &Extensions) -> IpAddr {
        extensions.get::<Peer>().copied().unwrap_or_else(Peer::unknown).0
    }
}

/// Accepts connections until `stopping` says how long those open may take to finish.
pub async fn listen(
    listener: TcpListener,
    door: Arc<Door>,
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
                Ok((stream, _)) if door.metrics.connections() >= connections_max as u64 => refuse(&door, stream),
                Ok((stream, peer)) => serve(&door, stream, peer, &graceful),
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

/// Serves one connection on a task of its own.
fn serve(door: &Arc<Door>, stream: TcpStream, peer: SocketAddr, graceful: &GracefulShutdown) {
    if let Err(error) = prepare(&stream) {
        tracing::debug!(%error, "a connection was gone before it was served");
        return;
    }
    let door = Arc::clone(door);
    let open = door.metrics.connection();
    let answer = service_fn(move |request: hyper::Request<Incoming>| {
        let door = Arc::clone(&door);
        async move { Ok::<_, Infallible>(door.answer(request.map(Body::new), Peer(peer.ip())).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_READ_MAX)
        .max_header_size(HEAD_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), answer);
    let watched = graceful.watch(connection);
    tokio::spawn(async move {
        if let Err(error) = watched.await {
            tracing::debug!(%error, "a connection ended early");
        }
        drop(open);
    });
}

/// Tells one connection too many that it is, without waiting for it.
fn refuse(door: &Door, stream: TcpStream) {
    door.metrics.connection_refused();
    let told = stream.into_std().and_then(|mut stream| stream.write_all(refusal().as_bytes()));
    tracing::debug!(?told, "a connection was turned away: too many are open");
}

fn refusal() -> String {
    let problem = Problem::new(Kind::TooManyConnections, "close some, or reuse them");
    let body = serde_json::to_string(&problem.json(None)).unwrap_or_default() + "\n";
    format!(
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/problem+json\r\nretry-after: 1\r\n\
         connection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}
