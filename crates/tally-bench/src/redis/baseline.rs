//! The baseline server: only receives, flushes and answers; with `--counting` it counts too.
//!
//! One thread reads from all connections, writes pages to a file like Tally's journal, syncs the file and answers.
//! Without counting it does not parse requests and every answer is the same number, so its throughput is the upper
//! bound for any single-threaded server that flushes before it answers, on this machine and under this load. With
//! counting it parses `INCR`, applies it to Tally's state machine and writes what the journal would write: no other
//! command, no other thread, no lock, no store, no runtime, no metrics.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token};
use tally_engine::disk::{DIRECT_ALIGN_BYTES, Disk, DiskFile, RealDisk};

use super::counting::CountingState;
use crate::BenchError;

/// Size of the frame written per flush without counting. Its whole page is written.
const FRAME_BYTES: usize = 64;
/// Largest frame.
const FRAME_BYTES_MAX: usize = 1 << 20;
/// Size of the file, which is written before the first flush and then reused.
const FILE_BYTES: u64 = 64 << 20;
const READ_BYTES: usize = 64 << 10;
const CONNECTIONS_MAX: usize = 1024;
const LISTENER: Token = Token(usize::MAX);
const ANSWER: &[u8] = b":1234567\r\n";

/// Arguments of the baseline server.
#[derive(Debug, clap::Args)]
pub struct BaselineArgs {
    /// An empty directory.
    dir: PathBuf,
    /// Count, too.
    #[arg(long)]
    counting: bool,
}

/// Prints the address and serves until killed.
pub fn serve(args: &BaselineArgs) -> Result<(), BenchError> {
    let counting = args.counting.then(CountingState::new);
    Baseline::new(&args.dir, counting).and_then(Baseline::run).map_err(|error| BenchError::new(&error))
}

struct Baseline {
    poll: Poll,
    listener: TcpListener,
    connections: BTreeMap<usize, BaselineConnection>,
    accepted: usize,
    file: Arc<dyn DiskFile>,
    /// Pages to write, with room for alignment.
    pages: Vec<u8>,
    written: u64,
    buffer: Vec<u8>,
    counting: Option<CountingState>,
    /// Requests so far, for `INFO`.
    requests: u64,
}

struct BaselineConnection {
    stream: TcpStream,
    /// An incomplete request.
    rest: Vec<u8>,
}

impl Baseline {
    fn new(dir: &Path, counting: Option<CountingState>) -> io::Result<Baseline> {
        let poll = Poll::new()?;
        let mut listener = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
        poll.registry().register(&mut listener, LISTENER, Interest::READABLE)?;
        println!("redis://127.0.0.1:{}", listener.local_addr()?.port());
        let file = RealDisk::new(dir)?.create("baseline")?;
        for at in (0..FILE_BYTES).step_by(1 << 20) {
            file.write_at(at, &vec![0; 1 << 20])?;
        }
        file.sync()?;
        file.bypass_cache();
        let (pages, buffer) = (vec![7; FRAME_BYTES_MAX + 3 * DIRECT_ALIGN_BYTES], vec![0; READ_BYTES]);
        let connections = BTreeMap::new();
        Ok(Baseline {
            poll,
            listener,
            connections,
            accepted: 0,
            file,
            pages,
            written: 0,
            buffer,
            counting,
            requests: 0,
        })
    }

    fn run(mut self) -> io::Result<()> {
        let mut events = Events::with_capacity(CONNECTIONS_MAX);
        let mut pending: Vec<(usize, usize)> = Vec::new();
        let mut answer = Vec::new();
        loop {
            self.poll.poll(&mut events, None)?;
            for event in &events {
                match event.token() {
                    LISTENER => self.accept()?,
                    Token(at) => pending.extend(self.receive(at).map(|requests| (at, requests))),
                }
            }
            if pending.is_empty() {
                continue;
            }
            self.flush()?;
            for (at, requests) in pending.drain(..) {
                answer.clear();
                match &mut self.counting {
                    Some(counting) => counting.answer(requests, &mut answer),
                    None => (0..requests).for_each(|_| answer.extend_from_slice(ANSWER)),
                }
                // The client may have disconnected.
                let _ = self.connections.get_mut(&at).map(|connection| connection.stream.write(&answer));
            }
        }
    }

    fn accept(&mut self) -> io::Result<()> {
        while let Ok((mut stream, _)) = self.listener.accept() {
            stream.set_nodelay(true)?;
            self.accepted += 1;
            self.poll.registry().register(&mut stream, Token(self.accepted), Interest::READABLE)?;
            self.connections.insert(self.accepted, BaselineConnection { stream, rest: Vec::new() });
        }
        Ok(())
    }

    /// The number of requests received that are answered after the flush.
    fn receive(&mut self, at: usize) -> Option<usize> {
        let BaselineConnection { stream, rest } = self.connections.get_mut(&at)?;
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
