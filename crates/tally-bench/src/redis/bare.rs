//! The bare server: one that does nothing but receive, flush and answer.
//!
//! One thread takes whatever has arrived on all connections, writes a page to a file as Tally's journal does, syncs it and
//! answers every request with the same number. It neither reads requests nor counts. What it reaches beside Redis is what flushing
//! before every answer leaves, on this machine and under this load, to any server that talks to its clients this way.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token};
use tally_engine::disk::{DIRECT_ALIGN_BYTES, Disk, DiskFile, RealDisk};

use crate::Failure;

/// Bytes of journal for a flush: a small frame. Its page is written.
const FRAME_BYTES: u64 = 64;
/// Length of the file, written before the first flush and over and over.
const FILE_BYTES: u64 = 64 << 20;
const READ_BYTES: usize = 64 << 10;
const CONNECTIONS_MAX: usize = 1024;
const LISTENER: Token = Token(usize::MAX);
const ANSWER: &[u8] = b":1234567\r\n";

/// Where the bare server keeps its file.
#[derive(Debug, clap::Args)]
pub struct BareArgs {
    /// An empty directory.
    dir: PathBuf,
}

/// Serves until it is ended; prints where.
pub fn serve(args: &BareArgs) -> Result<(), Failure> {
    Bare::new(&args.dir).and_then(Bare::run).map_err(|error| Failure::new(&error))
}

struct Bare {
    poll: Poll,
    listener: TcpListener,
    connections: BTreeMap<usize, TcpStream>,
    accepted: usize,
    file: Arc<dyn DiskFile>,
    /// A page and what it takes to begin where one does.
    page: Vec<u8>,
    written: u64,
    buffer: Vec<u8>,
    /// Requests so far, as `INFO` tells them.
    requests: u64,
}

impl Bare {
    fn new(dir: &Path) -> io::Result<Bare> {
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
        let (page, buffer) = (vec![7; 2 * DIRECT_ALIGN_BYTES], vec![0; READ_BYTES]);
        let connections = BTreeMap::new();
        Ok(Bare { poll, listener, connections, accepted: 0, file, page, written: 0, buffer, requests: 0 })
    }

    fn run(mut self) -> io::Result<()> {
        let mut events = Events::with_capacity(CONNECTIONS_MAX);
        let mut asked: Vec<(usize, usize)> = Vec::new();
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
                // A client that is gone needs no answer.
                let _ = self.connections.get_mut(&at).map(|stream| stream.write(&ANSWER.repeat(requests)));
            }
        }
    }

    fn accept(&mut self) -> io::Result<()> {
        while let Ok((mut stream, _)) = self.listener.accept() {
            stream.set_nodelay(true)?;
            self.accepted += 1;
            self.poll.registry().register(&mut stream, Token(self.accepted), Interest::READABLE)?;
            self.connections.insert(self.accepted, stream);
        }
        Ok(())
    }

    /// How many requests have arrived that are to be answered after the flush.
    fn receive(&mut self, at: usize) -> Option<usize> {
        let stream = self.connections.get_mut(&at)?;
        let read = match stream.read(&mut self.buffer) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return None,
            Ok(0) | Err(_) => {
                self.connections.remove(&at);
                return None;
            }
            Ok(read) => read,
        };
        let bytes = self.buffer.get(..read)?;
        let requests = bytes.iter().filter(|byte| **byte == b'*').count();
        self.requests += requests as u64;
        let is = |name: &[u8]| bytes.windows(name.len()).take(32).any(|window| window == name);
        if is(b"INFO") {
            let text = format!("total_commands_processed:{}\r\n", self.requests);
            let _ = write!(stream, "${}\r\n{text}\r\n", text.len());
        } else if is(b"CONFIG") {
            let _ = stream.write(&b"*0\r\n".repeat(requests));
        } else {
            return Some(requests).filter(|requests| *requests > 0);
        }
        None
    }

    fn flush(&mut self) -> io::Result<()> {
        let start = self.page.as_ptr().align_offset(DIRECT_ALIGN_BYTES);
        let page = self.page.get(start..start + DIRECT_ALIGN_BYTES).unwrap_or_default();
        self.file.write_at(self.written - self.written % DIRECT_ALIGN_BYTES as u64, page)?;
        self.written = (self.written + FRAME_BYTES) % FILE_BYTES;
        self.file.sync()
    }
}
