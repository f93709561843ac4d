//! One connection: its socket, what waits to be written, and when it may be read.
//!
//! A connection is read only while none of its commands is under way and all its answers have left. That keeps its
//! replies in order and bounds what it can make the server hold: a client that does not read its answers is not read
//! either. Answers are written by whoever settles the turn; the connection's own task only takes over what
//! the socket did not take at once.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use rustix::net::{RecvFlags, Shutdown, recv, shutdown};
use tokio::io::Interest;
use tokio::net::TcpStream;

use super::clients::Client;
use super::worker::Worker;
use crate::limits::{RESP_FAREWELL_MAX, RESP_OUTPUT_BYTES_KEPT, RESP_OUTPUT_BYTES_MAX};

/// The socket of one client.
pub struct Connection {
    stream: TcpStream,
    worker: Rc<Worker>,
    /// What others may know about it.
    pub client: Arc<Client>,
    out: RefCell<Out>,
    /// Shares of it in turns that are not settled.
    under_way: Cell<usize>,
    /// It is not to be read any more.
    over: Cell<bool>,
    /// How to wake its task for more than the socket.
    waker: RefCell<Option<Waker>>,
    /// Its task waits for the answers under way, and not only for the next request.
    awaits_answers: Cell<bool>,
}

/// What waits to be written.
#[derive(Default)]
struct Out {
    bytes: Vec<u8>,
    written: usize,
    /// Bytes the worker was told of: what the socket did not take.
    counted: usize,
}

impl Out {
    fn rest(&self) -> &[u8] {
        self.bytes.get(self.written..).unwrap_or_default()
    }
}

/// Why a connection woke.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ready {
    /// The socket has bytes, or its end.
    Read,
    /// It is to be closed: the server stops, or the client is gone.
    Close,
}

impl Connection {
    /// A connection over an accepted socket.
    pub fn new(stream: TcpStream, worker: Rc<Worker>, client: Arc<Client>) -> Self {
        Connection {
            stream,
            worker,
            client,
            out: RefCell::default(),
            under_way: Cell::new(0),
            over: Cell::new(false),
            waker: RefCell::default(),
            awaits_answers: Cell::new(false),
        }
    }

    /// Reads what has arrived; 0 at the end of the stream.
    pub fn read(&self, into: &mut [u8]) -> io::Result<usize> {
        let mut short = None;
        let read = self.stream.try_io(Interest::READABLE, || {
            let (read, _) = recv(&self.stream, &mut *into, RecvFlags::empty())?;
            if 0 < read && read < into.len() {
                // It was all there is. Said this way, the next call waits for more instead of asking the system.
                short = Some(read);
                return Err(io::ErrorKind::WouldBlock.into());
            }
            Ok(read)
        });
        short.map_or(read, Ok)
    }

    /// One more share of it is under way.
    pub fn begin(&self) {
        self.under_way.set(self.under_way.get() + 1);
    }

    /// Writes the answer of one share, as far as the socket takes it.
    pub fn answer(&self, write: impl FnOnce(&mut Vec<u8>)) {
        self.under_way.set(self.under_way.get().saturating_sub(1));
        self.put(write);
    }

    /// Writes without a share: the answer of a command that the connection's own task carried out.
    pub fn put(&self, write: impl FnOnce(&mut Vec<u8>)) {
        let is_last = self.under_way.get() == 0;
        let mut out = self.out.borrow_mut();
        // Written even when the client is gone: the next client's answer begins behind this one.
        write(&mut out.bytes);
        // More shares follow: one write for all.
        if self.over.get() || (is_last && self.write(&mut out).is_err()) {
            self.give_up(&mut out);
        }
        // Also when the client is gone: the task waits for its shares all the same. One that waits for the next request
        // is woken by that.
        if is_last && (self.awaits_answers.get() || self.over.get() || !out.rest().is_empty()) {
            self.wake();
        }
    }

    /// Nothing more can be written: what waits is given back at once, for others to have.
    fn give_up(&self, out: &mut Out) {
        self.over.set(true);
        self.worker.door.unread.change(out.counted, 0);
        *out = Out::default();
    }

    /// Says goodbye to a client that still sends. Closing over requests that nobody read would take back answers that
    /// are on their way, so they are read and dropped until the client has seen the end.
    pub async fn farewell(&self) {
        let still_sends = || matches!(self.stream.try_read(&mut [0; 1]), Ok(1));
        if self.over.get() || !still_sends() || shutdown(&self.stream, Shutdown::Write).is_err() {
            return;
        }
        let until_end = async {
            while self.stream.readable().await.is_ok() {
                match self.worker.with_buffer(|buffer| self.stream.try_read(buffer)) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Ok(0) | Err(_) => return,
                    Ok(_) => {}
                }
            }
        };
        // A client that goes on is closed all the same.
        let _ = tokio::time::timeout(RESP_FAREWELL_MAX, until_end).await;
    }

    /// Whether the client is gone.
    pub fn is_over(&self) -> bool {
        self.over.get()
    }

    fn wake(&self) {
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
    }

    /// The connection is to be closed as soon as its answers have left.
    pub fn stop(&self) {
        self.wake();
    }

    /// Writes what waits, as far as the socket takes it.
    fn write(&self, out: &mut Out) -> io::Result<()> {
        while !out.rest().is_empty() {
            match self.stream.try_write(out.rest()) {
                Ok(taken) => out.written += taken,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        if out.rest().is_empty() {
            out.bytes.clear();
            out.bytes.shrink_to(RESP_OUTPUT_BYTES_KEPT);
            out.written = 0;
        }
        let left = out.rest().len();
        self.worker.door.unread.change(out.counted, left);
        out.counted = left;
        if left > 0 && self.worker.door.unread.bytes() > RESP_OUTPUT_BYTES_MAX {
            tracing::debug!(client = self.client.id, "closing a connection: too many answers wait to be read");
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        Ok(())
    }

    /// Resolves when there is something to read and nothing of it under way or left to write.
    pub async fn ready(&self) -> Ready {
        poll_fn(|context| self.poll_ready(context)).await
    }

    fn poll_ready(&self, context: &mut Context<'_>) -> Poll<Ready> {
        if self.under_way.get() > 0 && !self.worker.is_stopping() && self.stream.poll_read_ready(context).is_pending() {
            self.awaits_answers.set(false);
            self.remember(context);
            return Poll::Pending;
        }
        if self.poll_settled(context).is_pending() {
            return Poll::Pending;
        }
        if self.over.get() || self.worker.is_stopping() {
            return Poll::Ready(Ready::Close);
        }
        match self.stream.poll_read_ready(context) {
            Poll::Ready(Ok(())) => Poll::Ready(Ready::Read),
            Poll::Ready(Err(_)) => Poll::Ready(Ready::Close),
            Poll::Pending => {
                // To be told when the server stops.
                self.remember(context);
                Poll::Pending
            }
        }
    }

    /// Resolves when nothing of it is under way and all answers have left, or never will.
    pub async fn settled(&self) {
        poll_fn(|context| self.poll_settled(context)).await;
    }

    fn poll_settled(&self, context: &mut Context<'_>) -> Poll<()> {
        loop {
            if self.under_way.get() > 0 {
                self.awaits_answers.set(true);
                self.remember(context);
                return Poll::Pending;
            }
            let mut out = self.out.borrow_mut();
            if self.over.get() || out.rest().is_empty() {
                return Poll::Ready(());
            }
            match self.stream.poll_write_ready(context) {
                Poll::Ready(Ok(())) if self.write(&mut out).is_ok() => {}
                Poll::Ready(_) => self.give_up(&mut out),
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    fn remember(&self, context: &Context<'_>) {
        let mut waker = self.waker.borrow_mut();
        if !waker.as_ref().is_some_and(|known| known.will_wake(context.waker())) {
            *waker = Some(context.waker().clone());
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let counted = self.out.borrow().counted;
        self.worker.door.unread.change(counted, 0);
    }
}
