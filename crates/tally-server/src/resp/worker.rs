//! A worker: one thread that serves its share of the connections.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::TcpStream as StdStream;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::task::{LocalSet, spawn_local};

use super::clients::{ClosingMode, RespClient};
use super::connection::RespConnection;
use super::gather::Gatherer;
use super::reader;
use super::server::RespServer;

/// An accepted connection for a worker.
pub struct Accepted {
    /// The socket, in non-blocking mode.
    pub stream: StdStream,
    /// The client.
    pub client: Arc<RespClient>,
}

/// The connections of one thread.
pub struct RespWorker {
    gatherer: Rc<Gatherer>,
    connections: RefCell<BTreeMap<u64, Weak<RespConnection>>>,
    closed: Notify,
}

impl RespWorker {
    /// Serves connections until it is told to stop, then gives commands in progress the given time to finish. Returns
    /// whether all did.
    pub async fn run(
        server: Arc<RespServer>,
        mut accepted: mpsc::UnboundedReceiver<Accepted>,
        mut closing: mpsc::UnboundedReceiver<(u64, ClosingMode)>,
        mut stop: oneshot::Receiver<Duration>,
    ) -> bool {
        let gatherer = Rc::new(Gatherer::new(server));
        let worker = Rc::new(RespWorker { gatherer, connections: RefCell::default(), closed: Notify::new() });
        LocalSet::new()
            .run_until(async {
                let drain_max = loop {
                    tokio::select! {
                        biased;
                        drain_max = &mut stop => break drain_max.unwrap_or_default(),
                        Some((id, mode)) = closing.recv() => worker.close(id, mode),
                        Some(Accepted { stream, client }) = accepted.recv() => worker.serve(stream, client),
                    }
                };
                for connection in worker.connections.borrow().values().filter_map(Weak::upgrade) {
                    connection.stop();
                }
                tokio::time::timeout(drain_max, worker.until_closed()).await.is_ok()
            })
            .await
    }

    async fn until_closed(&self) {
        while !self.connections.borrow().is_empty() {
            self.closed.notified().await;
        }
    }

    fn close(&self, id: u64, mode: ClosingMode) {
        if let Some(connection) = self.connections.borrow().get(&id).and_then(Weak::upgrade) {
            connection.close(mode);
        }
    }

    fn serve(self: &Rc<Self>, stream: StdStream, client: Arc<RespClient>) {
        let server = &self.gatherer.server;
        let stream = match TcpStream::from_std(stream) {
            Ok(stream) => stream,
            Err(error) => {
                tracing::debug!(%error, "a connection was gone before it was served");
                server.clients.remove(client.id);
                return;
            }
        };
        let id = client.id;
        let connection = Rc::new(RespConnection::new(stream, client, Arc::clone(&server.limits)));
        self.connections.borrow_mut().insert(id, Rc::downgrade(&connection));
        let worker = Rc::clone(self);
        let open = server.metrics.connection();
        spawn_local(async move {
            reader::serve(&worker.gatherer, connection).await;
            worker.connections.borrow_mut().remove(&id);
            worker.gatherer.server.clients.remove(id);
            worker.closed.notify_one();
            drop(open);
        });
    }
}
