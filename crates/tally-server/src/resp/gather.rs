//! Gathers the commands of one thread's connections into a turn, and submits it once all connections have been read.
//!
//! In a cluster each connection has turns of its own: a partition that does not answer must not delay or fail the
//! commands of others, and calls are combined later anyway, per partition.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use tokio::sync::Notify;
use tokio::task::spawn_local;

use super::connection::{ReadBuffer, RespConnection};
use super::reply::ProtocolVersion;
use super::server::RespServer;
use super::turn::{ReplySink, Turn, TurnLoad};
use crate::limits::{RESP_COMMANDS_IN_FLIGHT_MAX, RESP_EVENTS_IN_FLIGHT_MAX, RESP_REPLY_BYTES_IN_FLIGHT_MAX};

/// The turns of one thread.
pub struct Gatherer {
    /// State shared by all threads.
    pub server: Arc<RespServer>,
    /// The buffer that sockets are read into.
    pub buffer: ReadBuffer,
    /// Commands for the next turn.
    open: RefCell<OpenTurn>,
    /// A turn whose memory can be reused.
    spare: RefCell<OpenTurn>,
    /// The load of turns that are submitted but not finished.
    in_flight: Cell<TurnLoad>,
    finished: Notify,
}

/// A turn, and the connections it knows by number.
#[derive(Default)]
struct OpenTurn {
    turn: Turn,
    connections: TurnConnections,
}

#[derive(Default)]
struct TurnConnections(Vec<Rc<RespConnection>>);

impl ReplySink for TurnConnections {
    fn answer(&self, connection: usize, write: impl FnOnce(&mut Vec<u8>)) {
        if let Some(connection) = self.0.get(connection) {
            connection.answer(write);
        }
    }
}

impl Gatherer {
    /// A thread without commands.
    pub fn new(server: Arc<RespServer>) -> Self {
        Gatherer {
            server,
            buffer: ReadBuffer::default(),
            open: RefCell::default(),
            spare: RefCell::default(),
            in_flight: Cell::default(),
            finished: Notify::new(),
        }
    }

    /// Adds commands of a connection to the turn. The first commands schedule its submission, once all other connections
    /// have been read.
    pub fn gather<T>(
        self: &Rc<Self>,
        connection: &Rc<RespConnection>,
        version: ProtocolVersion,
        commands: impl FnOnce(&mut Turn) -> T,
    ) -> T {
        let mut open = self.open.borrow_mut();
        let OpenTurn { turn, connections } = &mut *open;
        let before = turn.shares();
        turn.begin(connections.0.len(), version);
        let result = commands(turn);
        turn.end();
        let added = turn.shares() - before;
        drop(open);
        if added > 0 {
            connection.begin(added);
            self.open.borrow_mut().connections.0.push(Rc::clone(connection));
            let gatherer = Rc::clone(self);
            if !self.server.service.joins_connections() {
                let own = self.take_open();
                spawn_local(async move { gatherer.run(own).await });
            } else if before == 0 {
                spawn_local(async move { gatherer.submit().await });
            }
        }
        result
    }

    async fn submit(&self) {
        // Yields once more, to include what arrived while other connections were read.
        tokio::task::yield_now().await;
        self.run(self.take_open()).await;
    }

    /// Takes the turn to run it. From now on its commands are in progress.
    fn take_open(&self) -> OpenTurn {
        let open = self.open.replace(self.spare.take());
        self.in_flight.set(self.in_flight.get().plus(open.turn.load()));
        open
    }

    async fn run(&self, mut open: OpenTurn) {
        let load = open.turn.load();
        let server = &self.server;
        open.turn.run(&server.service, (&server.metrics, &server.stats), &open.connections).await;
        open.connections.0.clear();
        self.in_flight.set(self.in_flight.get().minus(load));
        self.finished.notify_waiters();
        self.spare.replace(open);
    }

    /// Resolves when few enough commands are gathered or in progress to read more.
    pub async fn room(&self) {
        while self.is_full() {
            self.finished.notified().await;
        }
    }

    fn is_full(&self) -> bool {
        let load = self.in_flight.get().plus(self.open.borrow().turn.load());
        load.commands > RESP_COMMANDS_IN_FLIGHT_MAX
            || load.events > RESP_EVENTS_IN_FLIGHT_MAX
            || load.reply_bytes > RESP_REPLY_BYTES_IN_FLIGHT_MAX
    }
}
