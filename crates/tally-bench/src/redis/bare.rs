//! The bare server: one that does nothing but receive, flush and answer, or these and count.
//!
//! One thread takes whatever has arrived on all connections, writes pages to a file as Tally's journal does, syncs it and
//! answers. Without counting it does not even read the requests, and every answer is the same number: what it reaches beside
//! Redis is what flushing before every answer leaves, on this machine and under this load, to any server that talks to its
//! clients this way. Counting, it reads `INCR`, applies it to Tally's own state machine and writes what the journal would: no
//! other command, no other thread, no lock, no store, no runtime, no metrics.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token};
use tally_engine::disk::{DIRECT_ALIGN_BYTES, Disk, DiskFile, RealDisk};

use super::counting::Counting;
use crate::Failure;

/// Bytes of journal for a flush without counting: a small frame. Its page is written.
const FRAME_BYTES: usize = 64;
/// The longest frame.
const FRAME_BYTES_MAX: usize = 1 << 20;
/// Length of the file, written before the first flush and over and over.
const FILE_BYTES: u64 = 64 << 20;
const READ_BYTES: usize = 64 << 10;
const CONNECTIONS_MAX: usize = 1024;
const LISTENER: Token = Token(usize::MAX);
const ANSWER: &[u8] = b":1234567\r\n";

/// Where the bare server keeps its file, and what it does.
#[derive(Debug, clap::Args)]
pub struct BareArgs {
    /// An empty directory.
    dir: PathBuf,
    /// Count.
    #[arg(long)]
    counting: bool,
}

/// Serves until it is ended; prints where.
pub fn serve(args: &BareArgs) -> Result<(), Failure> {
    let counting = args.counting.then(Counting::new);
    Bare::new(&args.dir, counting).and_then(Bare::run).map_err(|error| Failure::new(&error))
}

struct Bare {
    poll: Poll,
    listener: TcpListener,
    connections: BTreeMap<usize, Connection>,
    accepted: usize,
    file: Arc<dyn DiskFile>,
    /// Pages, and what it takes to begin where one does.
    pages: Vec<u8>,
    written: u64,
    buffer: Vec<u8>,
    counting: Option<Counting>,
    /// Requests so far, as `INFO` tells them.
    requests: u64,
}

struct Connection {
    stream: TcpStream,
    /// The beginning of a request whose end has not arrived.
    rest: Vec<u8>,
}

impl Bare {
    fn new(dir: &Path, counting: Option<Counting>) -> io::Result<Bare> {
        let poll = Poll::new()?;
        let mut listener = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
        poll.registry().register(&mut listener, LISTENER, Interest::READABLE)?;
        println!("redis://127.0.0.1:{}", listener.local_addr()?.port());
        let file = RealDisk::new(dir)?.create("bare")?;
        for at in (0..FILE_BYTES).step_by(1 << 20) {
            file.write_at(at, &vec![0; 1 << 20])?;
        }
        file.sync()?;
        file.bypass_cache();
        let (pages, buffer) = (vec![7; FRAME_BYTES_MAX + 3 * DIRECT_ALIGN_BYTES], vec![0; READ_BYTES]);
        let connections = BTreeMap::new();
        Ok(Bare { poll, listener, connections, accepted: 0, file, pages, written: 0, buffer, counting, requests: 0 })
    }

    fn run(mut self) -> io::Result<()> {
        let mut events = Events::with_capacity(CONNECTIONS_MAX);
        let mut asked: Vec<(usize, usize)> = Vec::new();
        let mut answer = Vec::new();
        loop {
            self.poll.poll(&mut events, None)?;
            for event in &events {
                match event.token() {
                    LISTENER => self.accept()?,
                    Token(at) => asked.extend(self.receive(at).map(|requests| (at, requests))),
                }
            }
            if asked.is_empty() {
                continue;
            }
            self.flush()?;
            for (at, requests) in asked.drain(..) {
                answer.clear();
                match &mut self.counting {
                    Some(counting) => counting.answer(requests, &mut answer),
                    None => (0..requests).for_each(|_| answer.extend_from_slice(ANSWER)),
                }
                // A client that is gone needs no answer.
                let _ = self.connections.get_mut(&at).map(|connection| connection.stream.write(&answer));
            }
        }
    }

    fn accept(&mut self) -> io::Result<()> {
        while let Ok((mut stream, _)) = self.listener.accept() {
            stream.set_nodelay(true)?;
            self.accepted += 1;
            self.poll.registry().register(&mut stream, Token(self.accepted), Interest::READABLE)?;
            self.connections.insert(self.accepted, Connection { stream, rest: Vec::new() });
        }
        Ok(())
    }

    /// How many requests have arrived that are to be answered after the flush.
    fn receive(&mut self, at: usize) -> Option<usize> {
        let Connection { stream, rest } = self.connections.get_mut(&at)?;
        let read = match stream.read(&mut self.buffer) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return None,
            Ok(0) | Err(_) => {
                self.connections.remove(&at);
                return None;
            }
            Ok(read) => read,
        };
        let bytes = self.buffer.get(..read)?;
        let is = |name: &[u8]| bytes.windows(name.len()).take(32).any(|window| window == name);
        let begun = || bytes.iter().filter(|byte| **byte == b'*').count();
        if is(b"INFO") {
            self.requests += 1;
            let text = format!("total_commands_processed:{}\r\n", self.requests);
            let _ = write!(stream, "${}\r\n{text}\r\n", text.len());
            return None;
        }
        if is(b"CONFIG") {
            self.requests += begun() as u64;
            let _ = stream.write(&b"*0\r\n".repeat(begun()));
            return None;
        }
        let requests = match &mut self.counting {
            Some(counting) => counting.take(rest, bytes),
            None => begun(),
        };
        self.requests += requests as u64;
        Some(requests).filter(|requests| *requests > 0)
    }

    fn flush(&mut self) -> io::Result<()> {
        let start = self.pages.as_ptr().align_offset(DIRECT_ALIGN_BYTES);
        let pages = self.pages.get_mut(start..).unwrap_or_default();
        let within = (self.written % DIRECT_ALIGN_BYTES as u64) as usize;
        let mut len = FRAME_BYTES;
        if let Some(counting) = &mut self.counting {
            let frame = counting.apply();
            len = frame.len();
            let room = pages.get_mut(within..within + len).ok_or(io::ErrorKind::FileTooLarge)?;
            room.copy_from_slice(frame);
        }
        let whole = (within + len).next_multiple_of(DIRECT_ALIGN_BYTES);
        let pages = pages.get(..whole).ok_or(io::ErrorKind::FileTooLarge)?;
        self.file.write_at(self.written - within as u64, pages)?;
        self.written = (self.written + len as u64) % (FILE_BYTES - 2 * FRAME_BYTES_MAX as u64);
        self.file.sync()
    }
}
