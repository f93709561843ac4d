//! A worker: one thread that reads, combines and answers its share of the connections.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::TcpStream as StdStream;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::task::{LocalSet, spawn_local};

use super::clients::Client;
use super::connection::Connection;
use super::door::Door;
use super::session;
use super::turn::{Load, Turn};
use crate::limits::{
    RESP_COMMANDS_UNDER_WAY_MAX, RESP_EVENTS_UNDER_WAY_MAX, RESP_READ_BYTES, RESP_REPLY_BYTES_UNDER_WAY_MAX,
};

/// An accepted connection on its way to a worker.
pub struct Accepted {
    /// The socket, which does not block.
    pub stream: StdStream,
    /// Who it is.
    pub client: Arc<Client>,
}

/// One thread's share of the front door.
pub struct Worker {
    /// What all workers share.
    pub door: Arc<Door>,
    /// Commands that gather for the next submission.
    turn: RefCell<Turn>,
    /// A turn whose memory can be used again.
    spare: RefCell<Turn>,
    /// What sockets are read into, one after the other.
    buffer: RefCell<Vec<u8>>,
    /// What was submitted and is not settled.
    under_way: Cell<Load>,
    settled: Notify,
    stopping: Cell<bool>,
    connections: RefCell<BTreeMap<u64, Weak<Connection>>>,
    closed: Notify,
}

impl Worker {
    fn new(door: Arc<Door>) -> Self {
        Worker {
            door,
            turn: RefCell::default(),
            spare: RefCell::default(),
            buffer: RefCell::new(vec![0; RESP_READ_BYTES]),
            under_way: Cell::default(),
            settled: Notify::new(),
            stopping: Cell::new(false),
            connections: RefCell::default(),
            closed: Notify::new(),
        }
    }

    /// Serves what arrives until told to stop, then lets what is under way finish, at most for the time it is told.
    pub async fn run(
        door: Arc<Door>,
        mut accepted: mpsc::UnboundedReceiver<Accepted>,
        mut stop: oneshot::Receiver<Duration>,
    ) -> bool {
        let worker = Rc::new(Worker::new(door));
        LocalSet::new()
            .run_until(async {
                let drain_max = loop {
                    tokio::select! {
                        biased;
                        drain_max = &mut stop => break drain_max.unwrap_or_default(),
                        Some(Accepted { stream, client }) = accepted.recv() => worker.serve(stream, client),
                    }
                };
                worker.stopping.set(true);
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

    fn serve(self: &Rc<Self>, stream: StdStream, client: Arc<Client>) {
        let stream = match TcpStream::from_std(stream) {
            Ok(stream) => stream,
            Err(error) => {
                tracing::debug!(%error, "a connection was gone before it was served");
                self.door.clients.remove(client.id);
                return;
            }
        };
        let id = client.id;
        let connection = Rc::new(Connection::new(stream, Rc::clone(self), client));
        self.connections.borrow_mut().insert(id, Rc::downgrade(&connection));
        let worker = Rc::clone(self);
        let open = self.door.metrics.connection();
        spawn_local(async move {
            session::serve(&worker, connection).await;
            worker.connections.borrow_mut().remove(&id);
            worker.door.clients.remove(id);
            worker.closed.notify_one();
            drop(open);
        });
    }

    /// Whether the server stops.
    pub fn is_stopping(&self) -> bool {
        self.stopping.get()
    }

    /// Lends the buffer that sockets are read into. Nobody waits for anything while they have it.
    pub fn with_buffer<T>(&self, read: impl FnOnce(&mut Vec<u8>) -> T) -> T {
        read(&mut self.buffer.borrow_mut())
    }

    /// Lends the turn that gathers. Whoever adds the first commands has it submitted once all others had their chance.
    pub fn with_turn<T>(self: &Rc<Self>, gather: impl FnOnce(&mut Turn) -> T) -> T {
        let mut turn = self.turn.borrow_mut();
        let was_empty = turn.is_empty();
        let result = gather(&mut turn);
        if was_empty && !turn.is_empty() {
            let worker = Rc::clone(self);
            spawn_local(async move { worker.submit().await });
        }
        result
    }

    async fn submit(&self) {
        // Once more round: what arrived while the others were read comes along.
        tokio::task::yield_now().await;
        let mut turn = self.turn.replace(self.spare.take());
        let load = turn.load();
        self.under_way.set(self.under_way.get().plus(load));
        turn.run(&self.door.service, &self.door.metrics).await;
        self.under_way.set(self.under_way.get().minus(load));
        self.settled.notify_waiters();
        self.spare.replace(turn);
    }

    /// Resolves when few enough commands gather and are under way for more to be read.
    pub async fn room(&self) {
        while self.is_full() {
            self.settled.notified().await;
        }
    }

    fn is_full(&self) -> bool {
        let load = self.under_way.get().plus(self.turn.borrow().load());
        load.commands > RESP_COMMANDS_UNDER_WAY_MAX
            || load.events > RESP_EVENTS_UNDER_WAY_MAX
            || load.reply_bytes > RESP_REPLY_BYTES_UNDER_WAY_MAX
    }
}
