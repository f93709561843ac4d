//! Reads the requests of one connection and dispatches their commands.

use std::io;
use std::rc::Rc;

use super::commands::{CallContext, EngineReply, NextStep, Spec, dispatch, dispatch_monitored};
use super::connection::{Ready, RespConnection};
use super::errors::failure;
use super::gather::Gatherer;
use super::reply::{ProtocolVersion, Reply};
use super::session::{ReplyMode, Session, WatchedKeys};
use super::stats::{CommandCounts, ReplyCounts};
use super::turn::{CommandStatus, Silence, Turn};
use super::wire::{Limits, Parsed, Parser, ProtocolError, Sent};
use crate::admission::Caller;
use crate::limits::{
    RESP_INPUT_BYTES_MAX, RESP_REQUEST_BYTES_MAX, RESP_SHARE_BYTES_MAX, RESP_SHARE_COMMANDS_MAX,
    RESP_UNFINISHED_BYTES_FREE,
};
use crate::metrics::Stopwatch;

const TOO_MUCH_UNFINISHED: &str = "ERR too many unfinished requests; try again later";

/// How reading requests ended.
enum ReadOutcome {
    /// All complete requests were dispatched.
    Drained,
    /// The rest waits until the dispatched requests are answered.
    Paused,
    /// This command waits until the requests before it are answered.
    Deferred(&'static Spec, EngineReply, Silence),
    /// Nothing more is read; the dispatched requests are answered first.
    Closed,
}

/// Serves one connection until it ends.
pub async fn serve(gatherer: &Rc<Gatherer>, connection: Rc<RespConnection>) {
    let mut reader = RequestReader {
        gatherer: Rc::clone(gatherer),
        connection,
        session: Session::default(),
        watched: WatchedKeys::default(),
        parser: Parser::default(),
        rest: Vec::new(),
        queued: 0,
    };
    reader.run().await;
    reader.keep(&[]);
    gatherer.server.limits.unfinished.change(reader.queued, 0);
    reader.connection.farewell(&gatherer.buffer).await;
}

struct RequestReader {
    gatherer: Rc<Gatherer>,
    connection: Rc<RespConnection>,
    session: Session,
    watched: WatchedKeys,
    parser: Parser,
    /// An incomplete request, or requests that wait.
    rest: Vec<u8>,
    /// Bytes of the queued transaction and of watched keys that are counted in the shared limit.
    queued: usize,
}

impl RequestReader {
    async fn run(&mut self) {
        loop {
            match self.ready().await {
                Ready::Read => {}
                Ready::Close => return,
            }
            self.gatherer.room().await;
            let mut outcome = match self.read() {
                Ok(outcome) => outcome,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                Err(_) => return,
            };
            loop {
                match outcome {
                    ReadOutcome::Drained => break,
                    ReadOutcome::Closed => return self.connection.drained().await,
                    ReadOutcome::Paused => {
                        self.connection.drained().await;
                        self.gatherer.room().await;
                    }
                    ReadOutcome::Deferred(spec, command, silence) => {
                        self.run_deferred(spec, command, silence).await;
                        // It may have been `WATCH`.
                        if self.queues_too_much() {
                            let version = self.session.version;
                            self.connection.put(|out| Reply::new(out, version).error(TOO_MUCH_UNFINISHED));
                            return self.connection.drained().await;
                        }
                    }
                }
                if self.connection.is_over() {
                    return;
                }
                outcome = self.take_rest();
            }
        }
    }

    /// Resolves when there is something to read. Until then, a monitor is sent the commands of others.
    async fn ready(&self) -> Ready {
        let Some(monitor) = &self.session.monitor else { return self.connection.ready().await };
        loop {
            // Lines must not come between the replies of one request, and a monitor that does not read gets no more
            // lines.
            self.connection.drained().await;
            tokio::select! {
                biased;
                ready = self.connection.ready() => return ready,
                lines = monitor.next() => self.connection.put(|out| out.extend_from_slice(&lines)),
            }
            tokio::task::yield_now().await;
        }
    }

    /// Executes a command that calls the engine itself.
    async fn run_deferred(&mut self, spec: &'static Spec, command: EngineReply, silence: Silence) {
        self.connection.drained().await;
        let since = Stopwatch::start();
        let reply = command.await;
        let status = if reply.is_ok() { CommandStatus::Accepted } else { CommandStatus::Failed };
        let server = &self.gatherer.server;
        server.metrics.request(spec.verb, status.http(), &since);
        let micros = u64::try_from(since.elapsed().as_micros()).unwrap_or(u64::MAX);
        let (calls, failed) = (u64::from(reply.is_ok()), u64::from(reply.is_err()));
        server.stats.add_calls(std::iter::once((spec.name, CommandCounts { calls, micros, failed, rejected: 0 })));
        let reply = reply.unwrap_or_else(|error| {
            let mut out = Vec::new();
            Reply::new(&mut out, self.session.version).error(failure(&error));
            out
        });
        let errors = u64::from(reply.first() == Some(&b'-'));
        server.stats.add_replies(ReplyCounts { errors, ..ReplyCounts::default() });
        if silence == Silence::Off {
            self.connection.put(|out| out.extend_from_slice(&reply));
        }
        self.connection.drained().await;
    }

    /// Reads what has arrived and dispatches every complete request.
    fn read(&mut self) -> io::Result<ReadOutcome> {
        let gatherer = Rc::clone(&self.gatherer);
        gatherer.buffer.with(|buffer| {
            // A small incomplete request is copied to the front of the shared buffer; a large one is extended in place.
            let kept = self.rest.len();
            if kept <= buffer.len() / 2 {
                let (front, room) = buffer.split_at_mut(kept);
                let read = self.connection.read(room)?;
                self.connection.client.received(read);
                front.copy_from_slice(&self.rest);
                if read == 0 {
                    return Ok(ReadOutcome::Closed);
                }
                let input = buffer.get(..kept + read).unwrap_or_default();
                let (outcome, taken) = self.take(input);
                self.keep(input.get(taken..).unwrap_or_default());
                return Ok(outcome);
            }
            let read = self.connection.read(buffer)?;
            self.connection.client.received(read);
            if read == 0 {
                return Ok(ReadOutcome::Closed);
            }
            self.rest.extend_from_slice(buffer.get(..read).unwrap_or_default());
            self.gatherer.server.limits.unfinished.change(kept, kept + read);
            Ok(self.take_rest())
        })
    }

    /// Dispatches the complete requests among the kept bytes.
    fn take_rest(&mut self) -> ReadOutcome {
        let input = std::mem::take(&mut self.rest);
        self.gatherer.server.limits.unfinished.change(input.len(), 0);
        let (outcome, taken) = self.take(&input);
        let left = input.get(taken..).unwrap_or_default();
        if left.len() == input.len() {
            self.gatherer.server.limits.unfinished.change(0, input.len());
            self.rest = input;
        } else {
            self.keep(left);
        }
        outcome
    }

    /// Keeps bytes for later.
    fn keep(&mut self, bytes: &[u8]) {
        self.gatherer.server.limits.unfinished.change(self.rest.len(), bytes.len());
        if bytes.is_empty() {
            self.rest = Vec::new();
            self.parser.trim();
        } else {
            self.rest.clear();
            self.rest.extend_from_slice(bytes);
        }
    }

    /// Dispatches every complete request and returns their length in bytes.
    fn take(&mut self, input: &[u8]) -> (ReadOutcome, usize) {
        let (gatherer, connection) = (Rc::clone(&self.gatherer), Rc::clone(&self.connection));
        gatherer.gather(&connection, self.session.version, |turn| {
            let bytes_before = turn.reply_bytes();
            let watched = self.watched.clone();
            let client = &connection.client;
            // Requests that arrived together have the same time.
            let now = gatherer.server.now();
            let caller = Caller::new(client.peer.ip());
            let (server, reads_min) = (&gatherer.server, watched.reads_min());
            let context = CallContext { server, client, caller, now, watched: &watched, reads_min };
            client.seen_at(now);
            let mut monitored = gatherer.server.monitors.recorder();
            let (mut taken, mut commands) = (0, 0);
            let outcome = loop {
                let left = input.get(taken..).unwrap_or_default();
                if left.is_empty() {
                    break ReadOutcome::Drained;
                }
                if commands >= RESP_SHARE_COMMANDS_MAX || turn.reply_bytes() - bytes_before > RESP_SHARE_BYTES_MAX {
                    break ReadOutcome::Paused;
                }
                match self.parser.next(left, &Limits::AUTHENTICATED) {
                    Parsed::Empty(bytes) => taken += bytes,
                    Parsed::Request(args, bytes) => {
                        taken += bytes;
                        commands += 1;
                        let (request, behind) = left.split_at_checked(bytes).unwrap_or((left, &[]));
                        let (silence, behind) = match std::mem::take(&mut self.session.replies) {
                            ReplyMode::On => (Silence::Off, behind),
                            ReplyMode::Off => {
                                self.session.replies = ReplyMode::Off;
                                (Silence::On, behind)
                            }
                            // Only this request: equal ones behind it are executed separately.
                            ReplyMode::SkipNext => (Silence::On, &[][..]),
                        };
                        turn.set_silence(silence);
                        let session = &mut self.session;
                        let next = match &mut monitored {
                            None => dispatch(&context, session, (args, Sent { request, behind }), turn),
                            Some(lines) => dispatch_monitored(&context, session, (args, request), turn, lines),
                        };
                        turn.set_version(self.session.version);
                        match next {
                            NextStep::Continue => {}
                            NextStep::SkipRepeats(repeats) => {
                                taken += bytes * repeats;
                                commands += repeats;
                            }
                            NextStep::Defer(spec, command) => break ReadOutcome::Deferred(spec, command, silence),
                            NextStep::Close => break ReadOutcome::Closed,
                        }
                    }
                    Parsed::Incomplete { needed } => break self.incomplete(turn, left.len() + needed),
                    Parsed::Broken(error) => {
                        refuse(turn, self.session.version, error);
                        break ReadOutcome::Closed;
                    }
                }
            };
            let outcome = if self.queues_too_much() {
                turn.reply(self.session.version, |reply| reply.error(TOO_MUCH_UNFINISHED));
                ReadOutcome::Closed
            } else {
                outcome
            };
            if let Some(lines) = &mut monitored {
                lines.publish();
            }
            self.parser.trim();
            client.used(commands as u64);
            (outcome, taken)
        })
    }

    /// Waits for the rest of a request, unless it is over a limit.
    fn incomplete(&self, turn: &mut Turn, bytes: usize) -> ReadOutcome {
        let others = self.gatherer.server.limits.unfinished.bytes().saturating_sub(self.rest.len());
        if bytes > RESP_REQUEST_BYTES_MAX {
            turn.reply(self.session.version, |reply| reply.error("ERR Protocol error: too big request"));
            return ReadOutcome::Closed;
        }
        if bytes > RESP_UNFINISHED_BYTES_FREE && others + bytes > RESP_INPUT_BYTES_MAX {
            turn.reply(self.session.version, |reply| reply.error(TOO_MUCH_UNFINISHED));
            return ReadOutcome::Closed;
        }
        ReadOutcome::Drained
    }

    /// Counts the queued transaction and watched keys as an unfinished request. Returns whether that exceeds the shared
    /// limit.
    fn queues_too_much(&mut self) -> bool {
        let queued = self.session.transaction.as_ref().map_or(0, |transaction| transaction.requests.len());
        let queued = queued + self.watched.bytes();
        self.gatherer.server.limits.unfinished.change(self.queued, queued);
        let grew = queued > self.queued;
        self.queued = queued;
        grew && queued > RESP_UNFINISHED_BYTES_FREE
            && self.gatherer.server.limits.unfinished.bytes() > RESP_INPUT_BYTES_MAX
    }
}

fn refuse(turn: &mut Turn, version: ProtocolVersion, error: ProtocolError) {
    if let Some(text) = error.text() {
        turn.reply(version, |reply| reply.error(&text));
    }
}
