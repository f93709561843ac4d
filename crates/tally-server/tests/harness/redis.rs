//! Starts a real Redis and exchanges raw bytes with it. Used by integration tests and by unit tests of the server.

#![allow(dead_code, reason = "each test uses its own part")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

/// A running Redis. Dropping it kills it.
pub struct Redis {
    child: Child,
    dir: TempDir,
}

/// Authenticates a connection. Redis answers `+OK`.
pub const AUTH: &[u8] = b"AUTH secret\r\n";

impl Redis {
    /// An empty Redis that requires a password, ready.
    pub fn start() -> Redis {
        Redis::start_with(&["--requirepass", "secret"])
    }

    /// An empty Redis with these settings, ready.
    pub fn start_with(settings: &[&str]) -> Redis {
        let dir = tempfile::tempdir().unwrap();
        let mut child = Command::new("redis-server")
            .args(["--port", "0", "--save", "", "--appendonly", "no"])
            .args(settings)
            .arg("--unixsocket")
            .arg(dir.path().join("socket"))
            .arg("--dir")
            .arg(dir.path())
            .stdout(Stdio::piped())
            .spawn()
            .expect("redis-server is needed: `make test` installs it");
        let mut said = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        while !line.contains("ready to accept connections") {
            line.clear();
            assert!(said.read_line(&mut line).unwrap() > 0, "redis-server exited before it was ready");
        }
        // Its later output is discarded, but must be read so that it does not block.
        let drain = move || std::io::copy(&mut said, &mut std::io::sink());
        std::thread::Builder::new().name("redis-log".into()).spawn(drain).unwrap();
        Redis { child, dir }
    }

    /// A new connection.
    pub fn connect(&self) -> UnixStream {
        UnixStream::connect(self.dir.path().join("socket")).unwrap()
    }

    /// Sends these bytes on a new connection and returns everything received until it is closed.
    pub fn answer(&self, bytes: &[u8]) -> Vec<u8> {
        let mut stream = self.connect();
        let mut writer = stream.try_clone().unwrap();
        let bytes = bytes.to_vec();
        // Redis may close before it has read everything, so errors are ignored.
        let write = move || writer.write_all(&bytes).and_then(|()| writer.shutdown(Shutdown::Write));
        let writing = std::thread::Builder::new().name("redis-writer".into()).spawn(write).unwrap();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        drop(stream);
        let _ = writing.join();
        answer
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
