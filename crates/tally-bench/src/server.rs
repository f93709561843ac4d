//! A Tally server of our own, as `make bench` builds it.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::Failure;

/// A process that ends when dropped.
#[derive(Debug)]
pub struct Owned(pub Child);

impl Drop for Owned {
    fn drop(&mut self) {
        // It is ours and holds nothing that outlives the benchmark.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// `tally serve` with its defaults, on free ports.
#[derive(Debug)]
pub struct Tally {
    /// The process.
    pub process: Owned,
    /// Where HTTP is, without a slash at the end.
    pub url: String,
    /// The port of the Redis protocol.
    pub resp_port: u16,
}

impl Tally {
    /// Starts it on a data directory and waits until it is ready.
    pub fn start(data: &Path) -> Result<Tally, Failure> {
        let binary = server_binary()?;
        let process = Command::new(&binary)
            .args(["serve", "--http", "127.0.0.1:0", "--resp", "127.0.0.1:0", "--data"])
            .arg(data)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| Failure::new(&format!("{}: {error}", binary.display())))?;
        let mut process = Owned(process);
        let stdout = process.0.stdout.take().ok_or_else(|| Failure::new(&"the server has no output"))?;
        let mut url = None;
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            let word = line.split_whitespace().last().unwrap_or_default();
            if word.starts_with("http://") {
                url = url.or_else(|| Some(word.to_owned()));
            }
            let port = word.strip_prefix("redis://127.0.0.1:").and_then(|port| port.parse().ok());
            if let (Some(url), Some(resp_port)) = (&url, port) {
                return Ok(Tally { process, url: url.clone(), resp_port });
            }
        }
        Err(Failure::new(&"the server did not say where it listens"))
    }
}

/// `make bench` builds the server beside this program.
fn server_binary() -> Result<PathBuf, Failure> {
    let here = std::env::current_exe().map_err(|error| Failure::new(&error))?;
    let binary = here.with_file_name("tally");
    if binary.exists() {
        Ok(binary)
    } else {
        Err(Failure::new(&format!("{} is missing: build it with `cargo build --release`", binary.display())))
    }
}
