//! A session: reads a client's requests, has them planned, and keeps what the client said about itself.

use std::io;
use std::rc::Rc;

use super::connection::{Connection, Ready};
use super::execute::{self, Next};
use super::reply::Version;
use super::slow::{self, Slow};
use super::turn::Turn;
use super::wire::{Limits, Parsed, Parser, ProtocolError, Sent};
use super::worker::Worker;
use crate::limits::{
    RESP_INPUT_BYTES_MAX, RESP_REQUEST_BYTES_MAX, RESP_SHARE_BYTES_MAX, RESP_SHARE_COMMANDS_MAX,
    RESP_UNFINISHED_BYTES_FREE,
};
use crate::metrics::Verb;

const TOO_MUCH_UNFINISHED: &str = "ERR too many unfinished requests; try again later";

/// What a connection remembers between requests.
#[derive(Default)]
pub struct Session {
    /// The protocol it speaks.
    pub version: Version,
    /// Commands queued since `MULTI`.
    pub transaction: Option<Transaction>,
}

/// A transaction that is being queued.
#[derive(Default)]
pub struct Transaction {
    /// The queued requests, one after the other, written as arrays.
    pub requests: Vec<u8>,
    /// How many they are.
    pub commands: usize,
    /// Arguments of all of them, which bound their events.
    pub args: usize,
    /// One of them was wrong, so that `EXEC` will refuse all.
    pub aborted: bool,
}

/// What reading came to.
enum Took {
    /// Everything that was whole was taken.
    All,
    /// The rest has to wait until what was taken is answered.
    Pause,
    /// This command comes after what was taken.
    Slow(Verb, Slow),
    /// Nothing more is read; what was taken is answered first.
    Close,
}

/// Serves one connection until it ends.
pub async fn serve(worker: &Rc<Worker>, connection: Rc<Connection>) {
    let mut reader = Reader {
        worker: Rc::clone(worker),
        connection,
        session: Session::default(),
        parser: Parser::default(),
        rest: Vec::new(),
        queued: 0,
    };
    reader.run().await;
    reader.keep(&[]);
    worker.door.unfinished.change(reader.queued, 0);
    reader.connection.farewell().await;
}

struct Reader {
    worker: Rc<Worker>,
    connection: Rc<Connection>,
    session: Session,
    parser: Parser,
    /// The beginning of a request whose end has not arrived, or requests that have to wait.
    rest: Vec<u8>,
    /// Bytes of the transaction that is being queued, as the worker was told.
    queued: usize,
}

impl Reader {
    async fn run(&mut self) {
        loop {
            match self.connection.ready().await {
                Ready::Read => {}
                Ready::Close => return,
            }
            self.worker.room().await;
            let mut took = match self.read() {
                Ok(took) => took,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                Err(_) => return,
            };
            // What was read and could not be taken at once.
            loop {
                match took {
                    Took::All => break,
                    Took::Close => return self.connection.settled().await,
                    Took::Pause => {
                        self.connection.settled().await;
                        self.worker.room().await;
                    }
                    Took::Slow(verb, command) => {
                        self.connection.settled().await;
                        let answer = slow::run(
                            &self.worker.door,
                            &self.connection.client,
                            (verb, command),
                            self.session.version,
                        );
                        let answer = answer.await;
                        self.connection.put(|out| out.extend_from_slice(&answer));
                        self.connection.settled().await;
                    }
                }
                if self.connection.is_over() {
                    return;
                }
                took = self.take_rest();
            }
        }
    }

    /// Reads what has arrived and takes every whole request of it.
    fn read(&mut self) -> io::Result<Took> {
        let worker = Rc::clone(&self.worker);
        worker.with_buffer(|buffer| {
            // An incomplete request is continued in the buffer while it is small, otherwise where it lies.
            let kept = self.rest.len();
            if kept <= buffer.len() / 2 {
                let (front, room) = buffer.split_at_mut(kept);
                let read = self.connection.read(room)?;
                front.copy_from_slice(&self.rest);
                if read == 0 {
                    return Ok(Took::Close);
                }
                let input = buffer.get(..kept + read).unwrap_or_default();
                let (took, taken) = self.take(input);
                self.keep(input.get(taken..).unwrap_or_default());
                return Ok(took);
            }
            let read = self.connection.read(buffer)?;
            if read == 0 {
                return Ok(Took::Close);
            }
            self.rest.extend_from_slice(buffer.get(..read).unwrap_or_default());
            self.worker.door.unfinished.change(kept, kept + read);
            Ok(self.take_rest())
        })
    }

    /// Takes the whole requests of what was kept.
    fn take_rest(&mut self) -> Took {
        let input = std::mem::take(&mut self.rest);
        self.worker.door.unfinished.change(input.len(), 0);
        let (took, taken) = self.take(&input);
        let left = input.get(taken..).unwrap_or_default();
        if left.len() == input.len() {
            self.worker.door.unfinished.change(0, input.len());
            self.rest = input;
        } else {
            self.keep(left);
        }
        took
    }

    /// Keeps bytes for later.
    fn keep(&mut self, bytes: &[u8]) {
        self.worker.door.unfinished.change(self.rest.len(), bytes.len());
        if bytes.is_empty() {
            self.rest = Vec::new();
            self.parser.trim();
        } else {
            self.rest.clear();
            self.rest.extend_from_slice(bytes);
        }
    }

    /// Plans every whole request; returns how many bytes they took.
    fn take(&mut self, input: &[u8]) -> (Took, usize) {
        let worker = Rc::clone(&self.worker);
        worker.with_turn(|turn| {
            turn.begin(&self.connection, self.session.version);
            let bytes_before = turn.reply_bytes();
            // What arrived together came at one time.
            let now = worker.door.now();
            self.connection.client.heard(now);
            let (mut taken, mut commands) = (0, 0);
            let took = loop {
                let left = input.get(taken..).unwrap_or_default();
                if left.is_empty() {
                    break Took::All;
                }
                if commands >= RESP_SHARE_COMMANDS_MAX || turn.reply_bytes() - bytes_before > RESP_SHARE_BYTES_MAX {
                    break Took::Pause;
                }
                match self.parser.next(left, &Limits::KNOWN) {
                    Parsed::Empty(bytes) => taken += bytes,
                    Parsed::Request(args, bytes) => {
                        taken += bytes;
                        commands += 1;
                        let (request, behind) = left.split_at_checked(bytes).unwrap_or((left, &[]));
                        let request = (args, Sent { request, behind });
                        let next =
                            execute::plan(&worker.door, &self.connection.client, &mut self.session, request, now, turn);
                        turn.set_version(self.session.version);
                        match next {
                            Next::Go => {}
                            Next::GoBehind(times) => {
                                taken += bytes * (times - 1);
                                commands += times - 1;
                            }
                            Next::Slow(verb, command) => break Took::Slow(verb, command),
                            Next::Close => break Took::Close,
                        }
                    }
                    Parsed::Incomplete { needed } => break self.incomplete(turn, left.len() + needed),
                    Parsed::Broken(error) => {
                        refuse(turn, self.session.version, error);
                        break Took::Close;
                    }
                }
            };
            let took = if self.queues_too_much() {
                turn.reply(self.session.version, |reply| reply.error(TOO_MUCH_UNFINISHED));
                Took::Close
            } else {
                took
            };
            turn.end();
            self.parser.trim();
            self.connection.client.used(commands as u64);
            (took, taken)
        })
    }

    /// Waits for the rest of a request, unless it would be too much.
    fn incomplete(&self, turn: &mut Turn, bytes: usize) -> Took {
        let others = self.worker.door.unfinished.bytes().saturating_sub(self.rest.len());
        if bytes > RESP_REQUEST_BYTES_MAX {
            turn.reply(self.session.version, |reply| reply.error("ERR Protocol error: too big request"));
            return Took::Close;
        }
        if bytes > RESP_UNFINISHED_BYTES_FREE && others + bytes > RESP_INPUT_BYTES_MAX {
            turn.reply(self.session.version, |reply| reply.error(TOO_MUCH_UNFINISHED));
            return Took::Close;
        }
        Took::All
    }

    /// Counts the transaction as an unfinished request. Whether there is no room for it.
    fn queues_too_much(&mut self) -> bool {
        let queued = self.session.transaction.as_ref().map_or(0, |transaction| transaction.requests.len());
        self.worker.door.unfinished.change(self.queued, queued);
        let grew = queued > self.queued;
        self.queued = queued;
        grew && queued > RESP_UNFINISHED_BYTES_FREE && self.worker.door.unfinished.bytes() > RESP_INPUT_BYTES_MAX
    }
}

fn refuse(turn: &mut Turn, version: Version, error: ProtocolError) {
    if let Some(text) = error.text() {
        turn.reply(version, |reply| reply.error(&text));
    }
}
