//! One connection: its socket, its unsent replies, and when it may be read.
//!
//! A connection is read only while none of its commands is in progress and all its replies have been sent. That keeps
//! its replies in order and bounds its memory: if a client does not read its replies, its requests are not read either.
//! Replies are written by the task that finishes the turn; the connection's own task only sends what the socket did not
//! accept.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{RecvFlags, Shutdown, recv, shutdown};
use socket2::SockRef;
use tokio::io::Interest;
use tokio::net::TcpStream;

use super::clients::{ClosingMode, RespClient};
use super::server::SharedLimits;
use crate::limits::{RESP_LINGER_MAX, RESP_OUTPUT_BYTES_KEPT, RESP_OUTPUT_BYTES_MAX, RESP_READ_BYTES, RESP_UNSENT_MAX};

/// A buffer that the sockets of one thread are read into, one after the other.
pub struct ReadBuffer(RefCell<Vec<u8>>);

impl Default for ReadBuffer {
    fn default() -> Self {
        ReadBuffer(RefCell::new(vec![0; RESP_READ_BYTES]))
    }
}

impl ReadBuffer {
    /// Lends the buffer. `read` must not wait for anything.
    pub fn with<T>(&self, read: impl FnOnce(&mut Vec<u8>) -> T) -> T {
        read(&mut self.0.borrow_mut())
    }
}

/// The socket of one client.
pub struct RespConnection {
    stream: TcpStream,
    /// The client's entry in `CLIENT LIST`.
    pub client: Arc<RespClient>,
    limits: Arc<SharedLimits>,
    out: RefCell<Out>,
    /// Its shares in turns that are not finished.
    in_flight: Cell<usize>,
    /// The client has disconnected, or was disconnected.
    over: Cell<bool>,
    /// The server is stopping.
    stopping: Cell<bool>,
    /// Wakes its task for reasons other than the socket.
    waker: RefCell<Option<Waker>>,
    /// Its task waits for pending replies, not only for the next request.
    awaits_replies: Cell<bool>,
}

/// Bytes to be written.
#[derive(Default)]
struct Out {
    bytes: Vec<u8>,
    written: usize,
    /// Bytes counted in the shared limit: those the socket did not accept.
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
    /// The socket is readable, or at its end.
    Read,
    /// The connection must be closed: the server is stopping, or the client has disconnected.
    Close,
}

impl RespConnection {
    /// A connection over an accepted socket.
    pub fn new(stream: TcpStream, client: Arc<RespClient>, limits: Arc<SharedLimits>) -> Self {
        RespConnection {
            stream,
            client,
            limits,
            out: RefCell::default(),
            in_flight: Cell::new(0),
            over: Cell::new(false),
            stopping: Cell::new(false),
            waker: RefCell::default(),
            awaits_replies: Cell::new(false),
        }
    }

    /// Reads what has arrived; 0 at the end of the stream.
    pub fn read(&self, into: &mut [u8]) -> io::Result<usize> {
        let mut short = None;
        let read = self.stream.try_io(Interest::READABLE, || {
            let (read, _) = recv(&self.stream, &mut *into, RecvFlags::empty())?;
            if 0 < read && read < into.len() {
                // The socket is drained. With `WouldBlock` the next call waits instead of making another system call.
                short = Some(read);
                return Err(io::ErrorKind::WouldBlock.into());
            }
            Ok(read)
        });
        short.map_or(read, Ok)
    }

    /// Adds this many pending shares.
    pub fn begin(&self, shares: usize) {
        self.in_flight.set(self.in_flight.get() + shares);
    }

    /// Writes the replies of one share, as far as the socket accepts them.
    pub fn answer(&self, write: impl FnOnce(&mut Vec<u8>)) {
        self.in_flight.set(self.in_flight.get().saturating_sub(1));
        self.put(write);
    }

    /// Writes the reply of a command that the connection's own task executed.
    pub fn put(&self, write: impl FnOnce(&mut Vec<u8>)) {
        let is_last = self.in_flight.get() == 0;
        let mut out = self.out.borrow_mut();
        // Even if the client has disconnected; `give_up` frees it again.
        write(&mut out.bytes);
        // If more shares follow, one write covers them all.
        if self.over.get() || (is_last && self.write(&mut out).is_err()) {
            self.give_up(&mut out);
        }
        // Even if the client has disconnected: the task still waits for its shares. A task that waits for the next
        // request is woken by the socket.
        if is_last && (self.awaits_replies.get() || self.over.get() || !out.rest().is_empty()) {
            self.wake();
        }
    }

    /// Frees unsent replies, because nothing more can be written.
    fn give_up(&self, out: &mut Out) {
        self.over.set(true);
        self.limits.unread.change(out.counted, 0);
        *out = Out::default();
    }

    /// Lets a client that is still sending receive its last replies. Closing a socket with unread requests resets it
    /// and loses replies that were not received yet, so requests are read and dropped until the client has closed its
    /// side.
    pub async fn farewell(&self, buffer: &ReadBuffer) {
        if self.over.get() {
            return;
        }
        let still_sends = Cell::new(matches!(self.stream.try_read(&mut [0; 1]), Ok(1)));
        let mut until_end = std::pin::pin!(self.drop_requests(buffer, &still_sends));
        tokio::select! {
            () = &mut until_end => return,
            _ = tokio::time::timeout(RESP_UNSENT_MAX, self.all_sent()) => {}
        }
        if still_sends.get() && shutdown(&self.stream, Shutdown::Write).is_ok() {
            // After the timeout the connection is closed anyway.
            let _ = tokio::time::timeout(RESP_LINGER_MAX, until_end).await;
        }
    }

    /// Reads and drops requests until the client has closed its side. Sets `still_sends` if there are any.
    async fn drop_requests(&self, buffer: &ReadBuffer, still_sends: &Cell<bool>) {
        while self.stream.readable().await.is_ok() {
            match buffer.with(|bytes| self.stream.try_read(bytes)) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Ok(0) | Err(_) => return,
                Ok(_) => still_sends.set(true),
            }
        }
    }

    /// Resolves when the kernel has sent everything: a client that reads slowly has no room for it at first.
    async fn all_sent(&self) {
        // From now on, the socket is writable only if nothing is unsent.
        if SockRef::from(&self.stream).set_tcp_notsent_lowat(1).is_err() {
            return;
        }
        let is_writable = || {
            let mut polled = [PollFd::new(&self.stream, PollFlags::OUT)];
            let ready = poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))?;
            if ready == 0 { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(()) }
        };
        while self.stream.writable().await.is_ok() {
            match self.stream.try_io(Interest::WRITABLE, is_writable) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                _ => return,
            }
        }
    }

    /// Whether the client has disconnected.
    pub fn is_over(&self) -> bool {
        self.over.get()
    }

    fn wake(&self) {
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
    }

    /// Closes the connection as soon as its replies have been sent.
    pub fn stop(&self) {
        self.stopping.set(true);
        self.wake();
    }

    /// Closes the connection on request, such as by `CLIENT KILL`.
    pub fn close(&self, mode: ClosingMode) {
        if mode == ClosingMode::AtOnce {
            // Wakes its task, and makes writes fail.
            let _ = shutdown(&self.stream, Shutdown::Both);
        }
        self.stop();
    }

    /// Writes unsent bytes, as far as the socket accepts them.
    fn write(&self, out: &mut Out) -> io::Result<()> {
        while !out.rest().is_empty() {
            match self.stream.try_write(out.rest()) {
                Ok(taken) => {
                    out.written += taken;
                    self.client.sent(taken);
                }
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
        self.limits.unread.change(out.counted, left);
        out.counted = left;
        if left > 0 && self.limits.unread.bytes() > RESP_OUTPUT_BYTES_MAX {
            tracing::debug!(client = self.client.id, "closing a connection: too many replies are waiting to be read");
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        Ok(())
    }

    /// Resolves when there is something to read, nothing in progress and nothing left to write.
    pub async fn ready(&self) -> Ready {
        poll_fn(|context| self.poll_ready(context)).await
    }

    fn poll_ready(&self, context: &mut Context<'_>) -> Poll<Ready> {
        if self.in_flight.get() > 0 && !self.stopping.get() && self.stream.poll_read_ready(context).is_pending() {
            self.awaits_replies.set(false);
            self.remember(context);
            return Poll::Pending;
        }
        if self.poll_drained(context).is_pending() {
            return Poll::Pending;
        }
        if self.over.get() || self.stopping.get() {
            return Poll::Ready(Ready::Close);
        }
        match self.stream.poll_read_ready(context) {
            Poll::Ready(Ok(())) => Poll::Ready(Ready::Read),
            Poll::Ready(Err(_)) => Poll::Ready(Ready::Close),
            Poll::Pending => {
                // Woken when the server stops.
                self.remember(context);
                Poll::Pending
            }
        }
    }

    /// Resolves when nothing is in progress and all replies have been sent, or cannot be sent any more.
    pub async fn drained(&self) {
        poll_fn(|context| self.poll_drained(context)).await;
    }

    fn poll_drained(&self, context: &mut Context<'_>) -> Poll<()> {
        loop {
            if self.in_flight.get() > 0 {
                self.awaits_replies.set(true);
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

impl Drop for RespConnection {
    fn drop(&mut self) {
        let counted = self.out.borrow().counted;
        self.limits.unread.change(counted, 0);
    }
}
