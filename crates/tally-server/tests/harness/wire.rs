//! A RESP client that keeps the exact type of every reply, for comparisons.

#![allow(dead_code, reason = "each test uses its own part")]

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use super::{PATIENCE, Server};

pub use super::resp::request;

/// A reply with its exact type on the wire.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reply {
    /// `+text`.
    Simple(String),
    /// `-text`.
    Error(String),
    /// `:number`.
    Integer(i64),
    /// A string.
    Bulk(Vec<u8>),
    /// Anything of version 3 that fits on a line: null, booleans, doubles. Also the nulls of version 2.
    Line(String),
    /// `*`, `%`, `~` or `>`, and its elements; those of a map alternate between keys and values.
    Many(u8, Vec<Reply>),
}

impl Reply {
    /// Reads the next reply.
    pub fn read(from: &mut impl BufRead) -> io::Result<Reply> {
        let mut line = Vec::new();
        from.read_until(b'\n', &mut line)?;
        let text =
            String::from_utf8_lossy(line.strip_suffix(b"\r\n").ok_or(io::ErrorKind::UnexpectedEof)?).into_owned();
        let wrong = |_| io::Error::other(format!("not a reply: {text}"));
        let rest = text.get(1..).unwrap_or_default();
        Ok(match (line[0], rest) {
            (b'$' | b'*', "-1") => Reply::Line(text),
            (b'+', _) => Reply::Simple(rest.to_owned()),
            (b'-', _) => Reply::Error(rest.to_owned()),
            (b':', _) => Reply::Integer(rest.parse().map_err(wrong)?),
            (b'$' | b'=', _) => {
                let mut bytes = vec![0; rest.parse::<usize>().map_err(wrong)? + 2];
                from.read_exact(&mut bytes)?;
                bytes.truncate(bytes.len() - 2);
                Reply::Bulk(bytes)
            }
            (kind @ (b'*' | b'~' | b'>' | b'%'), _) => {
                let len = rest.parse::<usize>().map_err(wrong)? * if kind == b'%' { 2 } else { 1 };
                Reply::Many(kind, (0..len).map(|_| Reply::read(from)).collect::<io::Result<_>>()?)
            }
            (b'_' | b'#' | b',' | b'(', _) => Reply::Line(text),
            _ => return Err(io::Error::other(format!("not a reply: {text}"))),
        })
    }

    /// The number; panics if it is something else.
    pub fn number(&self) -> i64 {
        match self {
            Reply::Integer(number) => *number,
            Reply::Bulk(text) => std::str::from_utf8(text).unwrap().parse().unwrap(),
            other => panic!("not a number: {other:?}"),
        }
    }

    /// The elements of an array; panics if it is something else.
    pub fn items(&self) -> &[Reply] {
        match self {
            Reply::Many(_, items) => items,
            other => panic!("not an array: {other:?}"),
        }
    }

    /// The text of an error; empty if it is not an error.
    pub fn error(&self) -> &str {
        match self {
            Reply::Error(text) => text,
            _ => "",
        }
    }
}

/// A socket of either kind.
trait Socket: Read + Write + Send {
    /// Sets the read timeout.
    fn wait_at_most(&self, time: Duration) -> io::Result<()>;
}

impl Socket for TcpStream {
    fn wait_at_most(&self, time: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(time))
    }
}

impl Socket for UnixStream {
    fn wait_at_most(&self, time: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(time))
    }
}

/// A connection that speaks the protocol.
pub struct Resp(BufReader<Box<dyn Socket>>);

impl Resp {
    /// A connection to a Tally server.
    pub fn to(server: &Server) -> Resp {
        Resp::try_to(&server.redis).unwrap()
    }

    /// A connection to this address, if something listens there.
    pub fn try_to(address: &str) -> io::Result<Resp> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.wait_at_most(PATIENCE)?;
        Ok(Resp(BufReader::new(Box::new(stream))))
    }

    /// A connection over this socket.
    pub fn over(stream: UnixStream) -> Resp {
        stream.wait_at_most(PATIENCE).unwrap();
        Resp(BufReader::new(Box::new(stream)))
    }

    /// Sends raw bytes.
    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.get_mut().write_all(bytes)
    }

    /// The next reply.
    pub fn reply(&mut self) -> io::Result<Reply> {
        Reply::read(&mut self.0)
    }

    /// Sends one request and returns its reply.
    pub fn call(&mut self, args: &[impl AsRef<[u8]>]) -> Reply {
        self.send(&request(args)).unwrap();
        self.reply().unwrap()
    }

    /// Sends one request, split at spaces, and returns its reply.
    pub fn say(&mut self, line: &str) -> Reply {
        self.call(&line.split(' ').collect::<Vec<_>>())
    }

    /// Whether the other side has closed the connection and nothing is left to read.
    pub fn is_closed(&mut self) -> bool {
        match self.0.fill_buf() {
            Ok(bytes) => bytes.is_empty(),
            Err(error) => error.kind() == io::ErrorKind::ConnectionReset,
        }
    }

    /// Whether something arrives within this time.
    pub fn answers_within(&mut self, time: Duration) -> bool {
        self.0.get_ref().wait_at_most(time).unwrap();
        let arrived = self.0.fill_buf().is_ok();
        self.0.get_ref().wait_at_most(PATIENCE).unwrap();
        arrived
    }
}
