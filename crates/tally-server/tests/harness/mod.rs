//! Starts the real binary on free ports and sends requests to it; used by every server test.

#![allow(dead_code, unused_imports, reason = "each test file uses its own part")]

pub mod address;
pub mod api_tools;
pub mod nginx;
pub mod redis;
pub mod resp;
pub mod transfer;
pub mod wait;
pub mod wire;

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Instant;

use serde_json::Value;
use tempfile::TempDir;

pub use wait::{PATIENCE, wait_for, wait_until_equal};

/// The binary, without `TALLY_` variables from the environment.
pub fn tally() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tally"));
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("TALLY_")) {
        command.env_remove(name);
    }
    command
}

/// `tally serve` on free ports.
pub fn serve(data: &Path) -> Command {
    let mut command = tally();
    command.arg("serve").arg("--data").arg(data).args(["--http", "127.0.0.1:0", "--resp", "127.0.0.1:0"]);
    command
}

/// The same command with a `ulimit`, such as `-n 160`.
pub fn limited(limit: &str, command: &Command) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("ulimit {limit} && exec \"$0\" \"$@\"")]);
    shell.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    shell
}

/// A running server. Dropping it kills it.
pub struct Server {
    child: Child,
    /// `http://127.0.0.1:PORT`.
    pub base: String,
    /// Where Redis clients connect, `127.0.0.1:PORT`; empty if they cannot.
    pub redis: String,
    stdout: Option<BufReader<ChildStdout>>,
    stderr: Receiver<String>,
    seen: String,
    _own_data: Option<TempDir>,
}

impl Server {
    /// A server with its own data directory, ready.
    pub fn start() -> Server {
        let dir = tempfile::tempdir().unwrap();
        let mut server = Server::start_in(&dir.path().join("data"));
        server._own_data = Some(dir);
        server
    }

    /// A server over this data directory, ready.
    pub fn start_in(data: &Path) -> Server {
        Server::start_with(serve(data))
    }

    /// A server started by this command, ready.
    pub fn start_with(command: Command) -> Server {
        let mut server = Server::spawn(command);
        server.wait_until_ready();
        server
    }

    /// A server that is recovering. Only its RESP address is known.
    pub fn start_recovering(command: Command) -> Server {
        let mut server = Server::spawn(command);
        let line = server.wait_for_log("recovering");
        let shown = line.split("resp=").nth(1).and_then(|rest| rest.split(' ').next()).unwrap();
        server.redis = shown.trim_matches('"').to_owned();
        server
    }

    fn spawn(mut command: Command) -> Server {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (line, stderr) = channel();
        let errors = BufReader::new(child.stderr.take().unwrap());
        std::thread::spawn(move || {
            // Stops when the receiver is dropped.
            errors.lines().map_while(Result::ok).all(|text| line.send(text).is_ok())
        });
        let stdout = child.stdout.take().map(BufReader::new);
        let (base, redis) = (String::new(), String::new());
        Server { child, base, redis, stdout, stderr, seen: String::new(), _own_data: None }
    }

    /// Waits until the server has printed its addresses, which it does once it is ready.
    pub fn wait_until_ready(&mut self) {
        let mut out = self.stdout.take().unwrap();
        let mut said = String::new();
        while !said.contains("  try") {
            if out.read_line(&mut said).unwrap() == 0 {
                let status = self.exit();
                panic!("the server exited with {status} before it was ready: {said}\n{}", self.log());
            }
        }
        let listening = said.lines().find_map(|line| line.trim().strip_prefix("listening on")).unwrap();
        self.base = listening.trim().to_owned();
        let redis = said.lines().find_map(|line| line.trim().strip_prefix("and redis on")).unwrap_or_default();
        self.redis = redis.trim().trim_start_matches("redis://").to_owned();
        self.wait_for_log("ready");
    }

    /// Waits for a line of the log that contains `text`, and returns it.
    pub fn wait_for_log(&mut self, text: &str) -> String {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.next_log_line(deadline) {
                Ok(line) if line.contains(text) => return line,
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) => panic!("`{text}` was not logged in time:\n{}", self.seen),
                Err(RecvTimeoutError::Disconnected) => {
                    panic!("the server exited without logging `{text}`:\n{}", self.seen)
                }
            }
        }
    }

    fn next_log_line(&mut self, deadline: Instant) -> Result<String, RecvTimeoutError> {
        let line = self.stderr.recv_timeout(deadline.saturating_duration_since(Instant::now()))?;
        self.seen.push_str(&line);
        self.seen.push('\n');
        Ok(line)
    }

    /// The log so far; complete if the process has exited.
    pub fn log(&mut self) -> &str {
        let has_ended = self.child.try_wait().unwrap().is_some();
        let deadline = Instant::now() + if has_ended { PATIENCE } else { std::time::Duration::ZERO };
        while self.next_log_line(deadline).is_ok() {}
        &self.seen
    }

    /// Sends SIGKILL.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// The id of the process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends SIGTERM.
    pub fn signal(&self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    }

    /// Stops the process while `action` runs, so that it then finds all input at once.
    pub fn hold(&self, action: impl FnOnce()) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
        action();
        rustix::process::kill_process(pid, rustix::process::Signal::CONT).unwrap();
    }

    /// Sends SIGTERM and waits for the exit.
    pub fn terminate(&mut self) -> ExitStatus {
        self.signal();
        self.exit()
    }

    /// Waits for the process to exit.
    pub fn exit(&mut self) -> ExitStatus {
        wait_for("the exit of the server", || self.child.try_wait().unwrap().ok_or("it is running"))
    }

    /// Peak resident memory.
    pub fn memory_peak_bytes(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        peak.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() << 10
    }

    /// Resident memory.
    pub fn memory_bytes(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let now = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        now.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() << 10
    }

    /// A new connection with a read timeout.
    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.base.strip_prefix("http://").unwrap()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// A client of this server.
    pub fn client(&self) -> Client {
        Client::new(&self.base)
    }

    /// A request with a JSON body, or with none.
    pub fn send(&self, method: &str, path: &str, body: &str) -> Answer {
        self.client().send(method, path, &[], body)
    }

    /// The value of a counter.
    pub fn value(&self, key: &str) -> i64 {
        self.send("GET", &format!("/api/v1/counters/{key}/exact"), "").json["value"].as_i64().unwrap()
    }

    /// Sends raw bytes and reads the answer to the end.
    pub fn raw(&self, bytes: &[u8]) -> String {
        let mut stream = self.connect();
        // The server may answer and close before everything is written.
        let _ = stream.write_all(bytes);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            let base = std::mem::take(&mut self.base);
            eprintln!("log of {base}:\n{}", self.log());
        }
    }
}

/// An answer, read to the end.
#[derive(Debug)]
pub struct Answer {
    /// The status.
    pub status: u16,
    /// The headers.
    pub headers: ureq::http::HeaderMap,
    /// The body.
    pub text: String,
    /// The body as JSON; null if it is not JSON.
    pub json: Value,
}

impl Answer {
    /// A header as text; empty if there is none.
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    /// The slug of the problem; empty if it is not a problem.
    pub fn problem(&self) -> &str {
        self.json["type"].as_str().and_then(|kind| kind.strip_prefix("/problems/")).unwrap_or("")
    }
}

/// An HTTP client that keeps its connection.
pub struct Client {
    agent: ureq::Agent,
    base: String,
}

impl Client {
    /// A client of the server at `base`.
    pub fn new(base: &str) -> Client {
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .allow_non_standard_methods(true)
            .max_redirects(0)
            .timeout_global(Some(PATIENCE))
            .proxy(None)
            .build();
        Client { agent: config.into(), base: base.to_owned() }
    }

    /// A request that must be answered.
    pub fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Answer {
        self.try_send(method, path, headers, body).unwrap_or_else(|error| panic!("{method} {path}: {error}"))
    }

    /// A request that may go unanswered.
    pub fn try_send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Result<Answer, ureq::Error> {
        let mut request = ureq::http::Request::builder().method(method).uri(format!("{}{path}", self.base));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let mut response = if body.is_empty() && matches!(method, "GET" | "DELETE" | "HEAD") {
            self.agent.run(request.body(())?)?
        } else {
            self.agent.run(request.body(body.to_owned())?)?
        };
        // A backup is not text.
        let body = response.body_mut().with_config().limit(64 << 20).read_to_vec()?;
        let text = String::from_utf8_lossy(&body).into_owned();
        let json = serde_json::from_str(&text).unwrap_or(Value::Null);
        Ok(Answer { status: response.status().as_u16(), headers: response.headers().clone(), text, json })
    }
}

/// Output and exit code of a command.
pub struct Ran {
    /// The exit code.
    pub code: i32,
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
}

/// Runs a command to completion.
pub fn run(command: &mut Command) -> Ran {
    let output = command.stdin(Stdio::null()).output().unwrap();
    Ran {
        code: output.status.code().unwrap_or(-1),
        out: String::from_utf8_lossy(&output.stdout).into_owned(),
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// Writes a file with this text and returns its path.
pub fn write(path: PathBuf, text: &str) -> PathBuf {
    File::create(&path).unwrap().write_all(text.as_bytes()).unwrap();
    path
}
