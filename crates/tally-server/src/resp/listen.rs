//! The listener: accepts connections and hands them to the workers until the server stops.

use std::future::Future;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::net::sockopt::{set_socket_keepalive, set_tcp_keepidle};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};

use super::clients::Closer;
use super::server::RespServer;
use super::worker::{Accepted, RespWorker};
use crate::accept::{Listening, pause_after, prepare};
use crate::limits::{RESP_KEEPALIVE, RESP_THREADS_DEFAULT_MAX};

/// The workers' threads.
pub struct Threads(Vec<Thread>);

/// One worker's thread, as the listener sees it.
struct Thread {
    connections: mpsc::UnboundedSender<Accepted>,
    closer: Closer,
    stop: oneshot::Sender<Duration>,
    drained: oneshot::Receiver<bool>,
    handle: JoinHandle<()>,
}

impl Threads {
    /// Starts this many threads, by default one for every two cores: HTTP, checkpoints and the kernel's network stack
    /// need the rest, and with fewer threads each flush covers more.
    pub fn start(server: &Arc<RespServer>, threads: Option<usize>) -> io::Result<Self> {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let workers = threads.unwrap_or_else(|| (cores / 2).clamp(1, RESP_THREADS_DEFAULT_MAX));
        (0..workers).map(|number| start(number, server)).collect::<io::Result<Vec<_>>>().map(Threads)
    }
}

/// Accepts connections until `stopping` yields the time that requests in progress have to finish.
pub async fn listen(
    listener: TcpListener,
    server: Arc<RespServer>,
    Threads(threads): Threads,
    stopping: impl Future<Output = Duration>,
) -> Listening {
    let mut turns = threads.iter().cycle();
    let mut stopping = std::pin::pin!(stopping);
    let drain_max = loop {
        tokio::select! {
            biased;
            drain_max = &mut stopping => break drain_max,
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) if server.clients.count() >= server.settings.connections_max => refuse(&server, stream),
                Ok((stream, peer)) => match admit(&server, stream, peer) {
                    Ok(accepted) => hand_over(&server, turns.next(), accepted),
                    Err(error) => tracing::debug!(%error, "a connection was gone before it was served"),
                },
                Err(error) => pause_after(&error).await,
            },
        }
    };
    drop(listener);
    let mut ended = Listening::Drained;
    let mut ends = Vec::new();
    for Thread { connections, closer: _, stop, drained, handle } in threads {
        drop(connections);
        let _ = stop.send(drain_max);
        ends.push((drained, handle));
    }
    for (end, handle) in ends {
        if !end.await.unwrap_or(false) {
            ended = Listening::CutOff;
        }
        // It has reported, so the thread is about to end.
        let _ = handle.join();
    }
    ended
}

fn start(number: usize, server: &Arc<RespServer>) -> io::Result<Thread> {
    let (connections, accepted) = mpsc::unbounded_channel();
    let (closer, closing) = mpsc::unbounded_channel();
    let (stop, stopping) = oneshot::channel();
    let (report_drained, drained) = oneshot::channel();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let server = Arc::clone(server);
    let handle = thread::Builder::new().name(format!("tally-resp-{number}")).spawn(move || {
        let all = runtime.block_on(RespWorker::run(server, accepted, closing, stopping));
        let _ = report_drained.send(all);
    })?;
    Ok(Thread { connections, closer, stop, drained, handle })
}

fn admit(server: &RespServer, stream: TcpStream, peer: SocketAddr) -> io::Result<Accepted> {
    prepare(&stream)?;
    let local = stream.local_addr()?;
    // Keepalive closes connections whose client has vanished. Idle ones stay open.
    set_socket_keepalive(&stream, true)?;
    set_tcp_keepidle(&stream, RESP_KEEPALIVE)?;
    let stream = stream.into_std()?;
    Ok(Accepted { stream, client: server.clients.add(peer, local, server.now()) })
}

fn hand_over(server: &RespServer, thread: Option<&Thread>, accepted: Accepted) {
    let id = accepted.client.id;
    if let Some(thread) = thread {
        accepted.client.set_closer(thread.closer.clone());
    }
    if thread.is_none_or(|thread| thread.connections.send(accepted).is_err()) {
        server.clients.remove(id);
    }
}

/// Refuses a connection over the limit, without blocking.
fn refuse(server: &RespServer, stream: TcpStream) {
    server.metrics.connection_refused();
    let sent = stream.into_std().and_then(|mut stream| stream.write_all(b"-ERR max number of clients reached\r\n"));
    tracing::debug!(?sent, "a connection was refused: too many are open");
}
