//! Starts the servers to compare, each on a free local port.

use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use super::client::RespClient;
use crate::BenchError;
use crate::server::{ChildGuard, Tally};
use crate::timer::Timer;
use crate::usage::{cpu_seconds, resident_bytes};

/// Timeout for the first answer of Redis.
const START_SECONDS_MAX: f64 = 20.0;

/// A server to compare, and when it acknowledges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerKind {
    /// Tally with default settings: after the flush.
    Tally,
    /// Redis without persistence: from memory.
    RedisMemory,
    /// Redis with an append-only file and `appendfsync always`: after the flush.
    RedisFsync,
    /// The baseline server: only receives, flushes and answers.
    Baseline,
    /// The baseline server with counting.
    BaselineCounting,
}

impl ServerKind {
    /// In the order of the table.
    pub const ALL: [ServerKind; 5] = [
        ServerKind::Tally,
        ServerKind::RedisMemory,
        ServerKind::RedisFsync,
        ServerKind::Baseline,
        ServerKind::BaselineCounting,
    ];
    /// The baseline servers.
    pub const BASELINE: [ServerKind; 2] = [ServerKind::Baseline, ServerKind::BaselineCounting];

    /// Its name in the table.
    pub fn name(self) -> &'static str {
        match self {
            ServerKind::Tally => "Tally",
            ServerKind::RedisMemory => "Redis in memory",
            ServerKind::RedisFsync => "Redis with fsync",
            ServerKind::Baseline => "baseline server",
            ServerKind::BaselineCounting => "counting baseline server",
        }
    }
}

/// A running server; killed when dropped.
#[derive(Debug)]
pub struct ComparedServer {
    /// The kind of server.
    pub kind: ServerKind,
    /// The RESP port.
    pub port: u16,
    process: ChildGuard,
}

impl ComparedServer {
    /// Starts a server that keeps its data in `dir`, and waits until it answers.
    pub fn start(kind: ServerKind, dir: &Path) -> Result<ComparedServer, BenchError> {
        std::fs::create_dir_all(dir).map_err(|error| BenchError::new(&format!("{}: {error}", dir.display())))?;
        let append: &[&str] = match kind {
            ServerKind::Tally => {
                let Tally { process, resp_port, .. } = Tally::start(&dir.join("data"))?;
                return Ok(ComparedServer { kind, port: resp_port, process });
            }
            ServerKind::Baseline => return ComparedServer::start_baseline(kind, dir, &[]),
            ServerKind::BaselineCounting => return ComparedServer::start_baseline(kind, dir, &["--counting"]),
            ServerKind::RedisMemory => &["--appendonly", "no"],
            ServerKind::RedisFsync => &["--appendonly", "yes", "--appendfsync", "always"],
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
                BenchError::new(&format!(
                    "cannot start redis-server ({error}); install it with `make bench-redis` or `apt-get install redis-server`"
                ))
            })?;
        let mut server = ComparedServer { kind, port, process: ChildGuard(process) };
        server.wait_until_ready()?;
        Ok(server)
    }

    /// Starts this program as a baseline server.
    fn start_baseline(kind: ServerKind, dir: &Path, args: &[&str]) -> Result<ComparedServer, BenchError> {
        let started = std::env::current_exe().and_then(|program| {
            Command::new(program)
                .arg("baseline")
                .arg(dir)
                .args(args)
                .stdout(Stdio::piped())
                .stderr(Stdio::null())
                .spawn()
        });
        let mut process = ChildGuard(started.map_err(|error| BenchError::new(&error))?);
        let mut line = String::new();
        let said = process.0.stdout.take().map(|stdout| BufReader::new(stdout).read_line(&mut line));
        let port = line.trim_end().rsplit(':').next().and_then(|port| port.parse().ok());
        match (said, port) {
            (Some(Ok(_)), Some(port)) => Ok(ComparedServer { kind, port, process }),
            _ => Err(BenchError::new(&"the baseline server did not print its address")),
        }
    }

    /// Connects to it.
    pub fn connect(&self) -> Result<RespClient, BenchError> {
        RespClient::connect(self.port).map_err(|error| BenchError::new(&format!("{}: {error}", self.kind.name())))
    }

    /// CPU seconds it has used.
    pub fn cpu_seconds(&self) -> f64 {
        cpu_seconds(self.process.0.id())
    }

    /// Its resident memory.
    pub fn resident_bytes(&self) -> f64 {
        resident_bytes(self.process.0.id()).0
    }

    fn wait_until_ready(&mut self) -> Result<(), BenchError> {
        let timer = Timer::start();
        while timer.seconds() < START_SECONDS_MAX {
            if let Ok(Some(status)) = self.process.0.try_wait() {
                return Err(BenchError::new(&format!("redis-server exited: {status}")));
            }
            if let Ok(mut client) = RespClient::connect(self.port) {
                return client.call(&["PING"]).map(|_| ());
            }
            thread::park_timeout(Duration::from_millis(10));
        }
        Err(BenchError::new(&format!("redis-server did not answer within {START_SECONDS_MAX} s")))
    }
}

/// A free port; Redis cannot choose one itself.
fn free_port() -> Result<u16, BenchError> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|listener| listener.local_addr());
    listener.map(|address| address.port()).map_err(|error| BenchError::new(&error))
}
