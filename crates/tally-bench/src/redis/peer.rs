//! The servers that are compared, each on a free port of this machine.

use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use super::client::Client;
use crate::Failure;
use crate::server::{Owned, Tally};
use crate::stopwatch::Stopwatch;
use crate::usage::{cpu_seconds, resident_bytes};

/// How long Redis may take to answer after its start.
const START_SECONDS_MAX: f64 = 20.0;

/// Which server, and when it acknowledges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Tally with its defaults: after the flush.
    Tally,
    /// Redis without a file: from memory.
    RedisMemory,
    /// Redis with an append-only file and `appendfsync always`: after the flush.
    RedisFsync,
    /// A server that only receives, flushes and answers.
    Bare,
    /// One that counts as well.
    BareCounting,
}

impl Kind {
    /// In the order of the table.
    pub const ALL: [Kind; 5] = [Kind::Tally, Kind::RedisMemory, Kind::RedisFsync, Kind::Bare, Kind::BareCounting];
    /// Those that do less than a server has to.
    pub const BARE: [Kind; 2] = [Kind::Bare, Kind::BareCounting];

    /// What the table calls it.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Tally => "Tally",
            Kind::RedisMemory => "Redis in memory",
            Kind::RedisFsync => "Redis with fsync",
            Kind::Bare => "a bare server",
            Kind::BareCounting => "a bare server that counts",
        }
    }
}

/// A running server, ended when dropped.
#[derive(Debug)]
pub struct Peer {
    /// Which it is.
    pub kind: Kind,
    /// Where it speaks the Redis protocol.
    pub port: u16,
    process: Owned,
}

impl Peer {
    /// Starts a server that keeps its data in `dir`, and waits until it answers.
    pub fn start(kind: Kind, dir: &Path) -> Result<Peer, Failure> {
        std::fs::create_dir_all(dir).map_err(|error| Failure::new(&format!("{}: {error}", dir.display())))?;
        let append: &[&str] = match kind {
            Kind::Tally => {
                let Tally { process, resp_port, .. } = Tally::start(&dir.join("data"))?;
                return Ok(Peer { kind, port: resp_port, process });
            }
            Kind::Bare => return Peer::start_bare(kind, dir, &[]),
            Kind::BareCounting => return Peer::start_bare(kind, dir, &["--counting"]),
            Kind::RedisMemory => &["--appendonly", "no"],
            Kind::RedisFsync => &["--appendonly", "yes", "--appendfsync", "always"],
        };
        let port = free_port()?;
        let process = Command::new("redis-server")
            .args(["--bind", "127.0.0.1", "--port", &port.to_string(), "--save", ""])
            .args(append)
            .arg("--dir")
            .arg(dir)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| {
                Failure::new(&format!(
                    "redis-server could not be started ({error}); `make bench-redis` installs it, or: apt-get install redis-server"
                ))
            })?;
        let mut peer = Peer { kind, port, process: Owned(process) };
        peer.wait_until_it_answers()?;
        Ok(peer)
    }

    /// Starts this very program as a bare server.
    fn start_bare(kind: Kind, dir: &Path, args: &[&str]) -> Result<Peer, Failure> {
        let started = std::env::current_exe().and_then(|program| {
            Command::new(program).arg("bare").arg(dir).args(args).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()
        });
        let mut process = Owned(started.map_err(|error| Failure::new(&error))?);
        let mut line = String::new();
        let said = process.0.stdout.take().map(|stdout| BufReader::new(stdout).read_line(&mut line));
        let port = line.trim_end().rsplit(':').next().and_then(|port| port.parse().ok());
        match (said, port) {
            (Some(Ok(_)), Some(port)) => Ok(Peer { kind, port, process }),
            _ => Err(Failure::new(&"the bare server did not say where it listens")),
        }
    }

    /// A connection to it.
    pub fn connect(&self) -> Result<Client, Failure> {
        Client::connect(self.port).map_err(|error| Failure::new(&format!("{}: {error}", self.kind.name())))
    }

    /// Processor seconds it has used.
    pub fn cpu_seconds(&self) -> f64 {
        cpu_seconds(self.process.0.id())
    }

    /// Its resident memory.
    pub fn resident_bytes(&self) -> f64 {
        resident_bytes(self.process.0.id()).0
    }

    fn wait_until_it_answers(&mut self) -> Result<(), Failure> {
        let watch = Stopwatch::start();
        while watch.seconds() < START_SECONDS_MAX {
            if let Ok(Some(status)) = self.process.0.try_wait() {
                return Err(Failure::new(&format!("redis-server ended at once: {status}")));
            }
            if let Ok(mut client) = Client::connect(self.port) {
                return client.call(&["PING"]).map(|_| ());
            }
            thread::park_timeout(Duration::from_millis(10));
        }
        Err(Failure::new(&format!("redis-server did not answer within {START_SECONDS_MAX} s")))
    }
}

/// A port nobody uses. Redis cannot choose one itself.
fn free_port() -> Result<u16, Failure> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|listener| listener.local_addr());
    listener.map(|address| address.port()).map_err(|error| Failure::new(&error))
}
