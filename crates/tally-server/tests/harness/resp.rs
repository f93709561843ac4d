//! A minimal RESP client, for requests that real clients do not send.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use super::{PATIENCE, wait_for};

/// A reply in version 2 of the protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// `+…` and `$…`.
    Text(String),
    /// `-…`.
    Error(String),
    /// `:…`.
    Integer(i64),
    /// `$-1` and `*-1`.
    Null,
    /// `*…`.
    Array(Vec<Reply>),
}

impl Reply {
    /// The elements of an array.
    pub fn items(&self) -> &[Reply] {
        match self {
            Reply::Array(items) => items,
            other => panic!("no array: {other:?}"),
        }
    }

    /// The text of a string or an error.
    pub fn text(&self) -> &str {
        match self {
            Reply::Text(text) | Reply::Error(text) => text,
            other => panic!("no text: {other:?}"),
        }
    }
}

/// A request as clients encode it.
pub fn request<T: AsRef<[u8]>>(args: &[T]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", args.len()).into_bytes();
    for arg in args.iter().map(AsRef::as_ref) {
        bytes.extend(format!("${}\r\n", arg.len()).bytes());
        bytes.extend(arg);
        bytes.extend(b"\r\n");
    }
    bytes
}

/// A connection with a read timeout.
pub fn connect(address: &str) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

/// One connection.
pub struct Redis {
    stream: BufReader<TcpStream>,
}

impl Redis {
    /// A new connection.
    pub fn connect(address: &str) -> Redis {
        Redis { stream: BufReader::new(connect(address)) }
    }

    /// Sends raw bytes; returns whether that succeeded.
    pub fn send(&mut self, bytes: &[u8]) -> bool {
        self.stream.get_mut().write_all(bytes).is_ok()
    }

    /// The same connection, for sending from another thread.
    pub fn sender(&self) -> TcpStream {
        self.stream.get_ref().try_clone().unwrap()
    }

    /// The next reply; `None` if the connection was closed.
    pub fn read(&mut self) -> Option<Reply> {
        let mut line = String::new();
        match self.stream.read_line(&mut line) {
            Ok(0) => return None,
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return None,
            Err(error) => panic!("no reply: {error}"),
        }
        let (kind, rest) = line.trim_end().split_at(1);
        Some(match kind {
            "+" => Reply::Text(rest.to_owned()),
            "-" => Reply::Error(rest.to_owned()),
            ":" => Reply::Integer(rest.parse().unwrap()),
            "$" | "*" if rest == "-1" => Reply::Null,
            "$" => {
                let mut bytes = vec![0; rest.parse::<usize>().unwrap() + 2];
                self.stream.read_exact(&mut bytes).unwrap();
                bytes.truncate(bytes.len() - 2);
                Reply::Text(String::from_utf8_lossy(&bytes).into_owned())
            }
            "*" => Reply::Array((0..rest.parse().unwrap()).map(|_| self.read().unwrap()).collect()),
            _ => panic!("not a reply: {line:?}"),
        })
    }

    /// Sends a command and returns its reply.
    pub fn call(&mut self, args: &[&str]) -> Reply {
        assert!(self.send(&request(args)), "could not send {args:?}");
        self.read().unwrap_or_else(|| panic!("closed without a reply to {args:?}"))
    }

    /// A field of `INFO`.
    pub fn info(&mut self, field: &str) -> String {
        let info = self.call(&["INFO"]);
        let value = info.text().lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        value.unwrap_or_else(|| panic!("INFO has no {field}")).to_owned()
    }

    /// Waits for this number of connected clients, including this one.
    pub fn wait_for_clients(&mut self, count: usize) {
        self.wait_for("connected_clients", |connected| connected == count);
    }

    /// Waits until a field of `INFO` meets the condition.
    pub fn wait_for(&mut self, name: &str, is_right: impl Fn(usize) -> bool) {
        wait_for(name, || {
            let figure = self.info(name).parse::<usize>().unwrap();
            if is_right(figure) { Ok(()) } else { Err(figure) }
        });
    }

    /// Counts like a well-behaved client until `attack` has ended, for at least `rounds_min` rounds. Checks every reply and
    /// returns the median latency.
    pub fn counts_during(&mut self, rounds_min: usize, attack: impl FnOnce() + Send) -> Duration {
        let mut times = Vec::new();
        std::thread::scope(|scope| {
            let attack = scope.spawn(attack);
            let Reply::Integer(mut value) = self.call(&["INCRBY", "good", "0"]) else { panic!("no number") };
            while times.len() < rounds_min || !attack.is_finished() {
                let begun = Instant::now();
                assert_eq!(self.call(&["PING"]), Reply::Text("PONG".to_owned()));
                value += 1;
                assert_eq!(self.call(&["INCR", "good"]), Reply::Integer(value));
                times.push(begun.elapsed() / 2);
            }
        });
        times.sort_unstable();
        times[times.len() / 2]
    }
}
