//! Starts a Tally server, as built by `make bench`.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::BenchError;

/// A child process; killed when dropped.
#[derive(Debug)]
pub struct ChildGuard(pub Child);

impl Drop for ChildGuard {
    fn drop(&mut self) {
        // Its data is temporary.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// `tally serve` with default settings, on free ports.
#[derive(Debug)]
pub struct Tally {
    /// The process.
    pub process: ChildGuard,
    /// The base URL, without a trailing slash.
    pub url: String,
    /// The RESP port.
    pub resp_port: u16,
}

impl Tally {
    /// Starts it on a data directory and waits until it is ready.
    pub fn start(data: &Path) -> Result<Tally, BenchError> {
        Tally::start_with(|command| {
            command.arg("--data").arg(data);
        })
    }

    /// Starts it with these arguments and waits until it is ready.
    pub fn start_with(arguments: impl FnOnce(&mut Command)) -> Result<Tally, BenchError> {
        let binary = server_binary()?;
        let mut command = Command::new(&binary);
        command.args(["serve", "--http", "127.0.0.1:0", "--resp", "127.0.0.1:0"]);
        arguments(&mut command);
        let process = command
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| BenchError::new(&format!("{}: {error}", binary.display())))?;
        let mut process = ChildGuard(process);
        let stdout = process.0.stdout.take().ok_or_else(|| BenchError::new(&"the server has no standard output"))?;
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
        Err(BenchError::new(&"the server did not print its addresses"))
    }
}

/// `make bench` builds the server into the same directory as this program.
pub fn server_binary() -> Result<PathBuf, BenchError> {
    let here = std::env::current_exe().map_err(|error| BenchError::new(&error))?;
    let binary = here.with_file_name("tally");
    if binary.exists() {
        Ok(binary)
    } else {
        Err(BenchError::new(&format!("{} is missing: build it with `cargo build --release`", binary.display())))
    }
}
