//! Adds a problem document to the error responses that hyper writes itself, and lets clients read the answer to a
//! request that was refused before it was read to its end.
//!
//! hyper refuses a head that it cannot parse before any service is called, with a 400 or 431 and no body, and has no
//! hook for that. Raising its limits and checking them in the service would cover sizes only, not parse errors. A
//! parser in front of hyper would have to find the end of every body exactly as hyper does. So [`HttpConnection`]
//! watches what is written instead: the service and its answers hold an [`Answering`] until hyper has taken the whole
//! body. If none is held and everything before was flushed, a write can only be hyper's own answer, which is the last
//! one of the connection. If hyper still buffers an earlier answer, because the client does not read, its own goes out
//! without a body.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering::Relaxed};
use std::task::{Context, Poll, ready};

use axum::body::{Body, Bytes, HttpBody};
use hyper::body::{Frame, Incoming, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Sleep, sleep};

use super::answer_room::AnswerPermit;
use super::problem::{Kind, Problem};
use crate::limits::{BODY_READ_MAX, HEAD_BYTES_MAX, HEADERS_MAX, LINGER_BYTES_MAX, LINGER_MAX, WRITE_STALL_MAX};

/// Nothing is being answered, and every answer was flushed.
const IDLE: u8 = 0;
/// A request is being answered.
const ANSWERING: u8 = 1;
/// The whole answer was handed to hyper, but may not have been flushed.
const HANDED_OVER: u8 = 2;

/// How far a connection is with its current request. Only the connection's own task uses it.
#[derive(Clone, Default)]
pub struct ConnectionPhase(Arc<PhaseState>);

#[derive(Default)]
struct PhaseState {
    phase: AtomicU8,
    /// Whether the last request was answered before its body was read to the end.
    has_unread_body: AtomicBool,
}

impl ConnectionPhase {
    /// A request has been parsed.
    pub fn begin(&self) -> Answering {
        self.0.phase.store(ANSWERING, Relaxed);
        Answering(self.clone())
    }

    /// Whether the last request was answered before its body was read to the end.
    pub fn has_unread_body(&self) -> bool {
        self.0.has_unread_body.load(Relaxed)
    }
}

/// The body of a request. Records whether it was read to the end.
pub struct RequestBody {
    body: Incoming,
    has_ended: bool,
    phase: ConnectionPhase,
}

impl RequestBody {
    /// Reports to `phase` when it is dropped.
    pub fn new(body: Incoming, phase: ConnectionPhase) -> Self {
        RequestBody { body, has_ended: false, phase }
    }
}

impl Drop for RequestBody {
    fn drop(&mut self) {
        let is_unread = !self.has_ended && !self.body.is_end_stream();
        self.phase.0.has_unread_body.store(is_unread, Relaxed);
    }
}

impl HttpBody for RequestBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        self.has_ended |= frame.is_none();
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Lives from the moment a request is parsed until its answer has been handed to hyper.
pub struct Answering(ConnectionPhase);

impl Drop for Answering {
    fn drop(&mut self) {
        self.0.0.phase.store(HANDED_OVER, Relaxed);
    }
}

/// The body of an answer.
pub struct AnswerBody {
    body: Body,
    permit: AnswerPermit,
    _answering: Answering,
}

impl AnswerBody {
    /// Ends `answering` when hyper drops the body. Its bytes hold `permit` until they are written.
    pub fn new(body: Body, permit: AnswerPermit, answering: Answering) -> Self {
        AnswerBody { body, permit, _answering: answering }
    }
}

impl HttpBody for AnswerBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        Poll::Ready(frame.map(|frame| Ok(frame?.map_data(|data| self.permit.attach(data)))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A connection that adds a body to the answers hyper writes by itself.
pub struct HttpConnection {
    stream: TcpStream,
    phase: ConnectionPhase,
    /// What is left to write of the answer to a head that could not be parsed.
    refusal: Option<Bytes>,
    /// Runs from the first write of an answer that blocks until the answer is flushed.
    stalled: Option<Pin<Box<Sleep>>>,
    /// Set once the answer was sent and the sending side closed.
    lingering: Option<Lingering>,
}

/// Discards what a client still sends, within limits.
struct Lingering {
    idle: Pin<Box<Sleep>>,
    deadline: Pin<Box<Sleep>>,
    bytes_left: usize,
}

impl Lingering {
    fn new() -> Self {
        Lingering {
            idle: Box::pin(sleep(LINGER_MAX)),
            deadline: Box::pin(sleep(BODY_READ_MAX)),
            bytes_left: LINGER_BYTES_MAX,
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>, mut stream: Pin<&mut TcpStream>) -> Poll<()> {
        let mut discarded = [0; 16 << 10];
        loop {
            if self.bytes_left == 0 || self.deadline.as_mut().poll(cx).is_ready() {
                return Poll::Ready(());
            }
            let mut buffer = ReadBuf::new(&mut discarded);
            match stream.as_mut().poll_read(cx, &mut buffer) {
                Poll::Ready(Ok(())) if !buffer.filled().is_empty() => {
                    self.bytes_left = self.bytes_left.saturating_sub(buffer.filled().len());
                    self.idle = Box::pin(sleep(LINGER_MAX));
                }
                Poll::Ready(_) => return Poll::Ready(()),
                Poll::Pending => return self.idle.as_mut().poll(cx),
            }
        }
    }
}

impl HttpConnection {
    /// Wraps a stream; the service has to report to `phase`.
    pub fn new(stream: TcpStream, phase: ConnectionPhase) -> Self {
        HttpConnection { stream, phase, refusal: None, stalled: None, lingering: None }
    }

    /// Takes over the answer that begins with `head` if it is hyper's own.
    fn take_over(&mut self, head: &[u8]) -> bool {
        if self.refusal.is_some() {
            return true;
        }
        if self.phase.0.phase.load(Relaxed) != IDLE {
            return false;
        }
        self.refusal = with_body(head);
        self.refusal.is_some()
    }

    /// Fails a blocked write if the answer has taken too long, because other answers may be waiting for its memory.
    fn in_time(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if written.is_pending() {
            let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep(WRITE_STALL_MAX)));
            ready!(stalled.as_mut().poll(cx));
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        written
    }

    fn poll_refusal(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Some(left) = self.refusal.as_mut().filter(|left| !left.is_empty()) {
            let written = ready!(Pin::new(&mut self.stream).poll_write(cx, left))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            let _ = left.split_to(written);
        }
        Poll::Ready(Ok(()))
    }

    /// Keeps reading for a while. Closing a socket with unread input resets it, and a client that is still sending an
    /// oversized head or body would lose the answer.
    fn poll_linger(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.lingering.get_or_insert_with(Lingering::new).poll(cx, Pin::new(&mut self.stream))
    }
}

impl AsyncRead for HttpConnection {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for HttpConnection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        if self.take_over(buf) {
            return Poll::Ready(Ok(buf.len()));
        }
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.in_time(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        // A head is never split: hyper builds it in one piece.
        if self.take_over(bufs.iter().find(|buf| !buf.is_empty()).map_or(&[], |buf| buf)) {
            return Poll::Ready(Ok(bufs.iter().map(|buf| buf.len()).sum()));
        }
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.in_time(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_refusal(cx))?;
        // hyper flushes the stream once it has written all that it had buffered.
        self.stalled = None;
        let _ = self.phase.0.phase.compare_exchange(HANDED_OVER, IDLE, Relaxed, Relaxed);
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.lingering.is_none() {
            ready!(self.poll_refusal(cx))?;
            ready!(Pin::new(&mut self.stream).poll_shutdown(cx))?;
        }
        if self.refusal.is_some() || self.phase.0.has_unread_body.load(Relaxed) {
            ready!(self.poll_linger(cx));
        }
        Poll::Ready(Ok(()))
    }
}

/// The answer that begins with `head`, with a problem document as its body; `None` if `head` is not that of an error
/// without a body.
fn with_body(head: &[u8]) -> Option<Bytes> {
    const NO_BODY: &str = "content-length: 0\r\n";
    let head = std::str::from_utf8(head).ok()?;
    let problem = match head.strip_prefix("HTTP/1.1 ")?.get(..3)? {
        "431" => Problem::new(
            Kind::HeadTooLarge,
            format!("request line and headers have more than {HEAD_BYTES_MAX} bytes or {HEADERS_MAX} headers"),
        ),
        "400" => Problem::new(
            Kind::MalformedRequest,
            "the request line or a header cannot be parsed; percent-encode spaces and control characters",
        ),
        _ => return None,
    };
    let (before, after) = head.split_once(NO_BODY)?;
    let body = problem.to_line();
    let length = body.len();
    let whole = format!("{before}content-type: application/problem+json\r\ncontent-length: {length}\r\n{after}{body}");
    Some(whole.into())
}
