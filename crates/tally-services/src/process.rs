//! One process of a service: started, signalled, killed and restarted, with its output in a log file.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::path::PathBuf;
use std::process::Child;

use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process};

use crate::fail::{OrFail, fail, poll};
use crate::ports::PortTaken;
use crate::scratch::ScratchDir;
use crate::tool::{Tool, spawn};

/// Lines of the log shown when something fails.
const TAIL_LINES: usize = 60;

/// A process that can be started again. Dropping it kills it.
pub struct ServiceProcess {
    name: String,
    tool: Tool,
    log: PathBuf,
    state: Mutex<ProcessState>,
}

#[derive(Default)]
struct ProcessState {
    child: Option<Child>,
    is_paused: bool,
    /// Where the log of the current run begins.
    log_start: u64,
}

impl ServiceProcess {
    /// A process that is not started yet. Its log goes to the directory.
    pub fn new(name: impl Into<String>, tool: Tool, dir: &ScratchDir) -> ServiceProcess {
        let name = name.into();
        let log = dir.path().join(format!("{name}.log"));
        ServiceProcess { name, tool, log, state: Mutex::default() }
    }

    /// Starts it; it must not be running.
    pub fn start(&self) {
        let mut state = self.state.lock();
        if state.is_running() {
            fail(&format!("{} is already running", self.name));
        }
        let log = OpenOptions::new().create(true).append(true).open(&self.log);
        let log = log.or_fail(&format!("cannot open {}", self.log.display()));
        let errors = log.try_clone().or_fail("cannot duplicate a file");
        let log_start = log.metadata().map(|metadata| metadata.len()).or_fail("cannot read the length of a log");
        let mut command = self.tool.command();
        command.stdout(log).stderr(errors);
        let child = spawn(command).or_fail(&format!("cannot start {}", self.name));
        *state = ProcessState { child: Some(child), is_paused: false, log_start };
    }

    /// Its process id while it runs.
    pub fn pid(&self) -> Option<u32> {
        let mut state = self.state.lock();
        state.is_running().then(|| state.child.as_ref().map(Child::id)).flatten()
    }

    /// Whether it is running and not paused.
    pub fn is_available(&self) -> bool {
        let mut state = self.state.lock();
        state.is_running() && !state.is_paused
    }

    /// Sends SIGKILL and waits for the exit. Does nothing if it is not running.
    pub fn kill(&self) {
        let mut state = self.state.lock();
        if let Some(mut child) = state.child.take() {
            child.kill().or_fail(&format!("cannot kill {}", self.name));
            child.wait().or_fail(&format!("cannot wait for {}", self.name));
        }
    }

    /// Sends a signal that ends it, and waits for the exit. Does nothing if it is not running.
    pub fn end(&self, signal: Signal) {
        if self.pid().is_some() {
            self.send(signal);
            self.wait_until("to end", || if self.pid().is_none() { Ok(()) } else { Err("it is running".into()) });
        }
        self.state.lock().child = None;
    }

    /// Sends SIGSTOP: connections stay open and nobody answers.
    pub fn pause(&self) {
        self.send(Signal::STOP);
        self.state.lock().is_paused = true;
    }

    /// Sends SIGCONT.
    pub fn resume(&self) {
        self.send(Signal::CONT);
        self.state.lock().is_paused = false;
    }

    fn send(&self, signal: Signal) {
        let mut state = self.state.lock();
        let child = if state.is_running() { state.child.as_ref() } else { None };
        let Some(child) = child else { fail(&format!("{} is not running\n{}", self.name, self.log_tail())) };
        kill_process(Pid::from_child(child), signal).or_fail(&format!("cannot signal {}", self.name));
    }

    /// What it has logged since it was started last.
    pub fn log(&self) -> String {
        let start = self.state.lock().log_start;
        let mut bytes = Vec::new();
        // The file does not exist before the first start.
        if let Ok(mut file) = File::open(&self.log) {
            let read = file.seek(SeekFrom::Start(start)).and_then(|_| file.read_to_end(&mut bytes));
            read.or_fail(&format!("cannot read {}", self.log.display()));
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The last lines of its log, with its name.
    pub fn log_tail(&self) -> String {
        let log = std::fs::read(&self.log).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<&str> = log.lines().collect();
        let tail = &lines[lines.len().saturating_sub(TAIL_LINES)..];
        format!("--- end of the log of {} ---\n{}\n---", self.name, tail.join("\n"))
    }

    /// Waits until `attempt` succeeds. Ends the test with the log when the deadline has passed.
    pub fn wait_until<T>(&self, what: &str, attempt: impl FnMut() -> Result<T, String>) -> T {
        poll(attempt)
            .unwrap_or_else(|late| fail(&format!("waiting for {} {what}: {late}\n{}", self.name, self.log_tail())))
    }

    /// Waits for a line in the log of this run. If the process exits first, the test ends, unless a port was taken.
    ///
    /// A successful connection would prove less: if the port was taken, another process listens on it.
    pub fn wait_for_log(&self, text: &str) -> Result<(), PortTaken> {
        self.wait_until("to be ready", || {
            // In this order, because the log of a process that has exited is complete.
            let is_running = self.pid().is_some();
            let log = self.log();
            if is_running && log.contains(text) {
                Ok(Ok(()))
            } else if is_running {
                Err(format!("it has not logged `{text}`"))
            } else if log.contains("Address already in use") {
                Ok(Err(PortTaken))
            } else {
                fail(&format!("{} ended before it was ready\n{}", self.name, self.log_tail()))
            }
        })
    }

    /// Like `wait_for_log`, for a process that cannot change its ports.
    pub fn expect_log(&self, text: &str) {
        if self.wait_for_log(text) == Err(PortTaken) {
            fail(&format!("a port of {} was taken while it was down\n{}", self.name, self.log_tail()));
        }
    }
}

impl ProcessState {
    fn is_running(&mut self) -> bool {
        self.child.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None)))
    }
}

impl Drop for ServiceProcess {
    fn drop(&mut self) {
        if let Some(mut child) = self.state.lock().child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
