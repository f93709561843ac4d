//! The commands that this crate runs: finding programs, running them as another user, and killing them with this
//! process.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;
use std::sync::mpsc::{Sender, channel};

use crate::fail::{OrFail, fail, poll};

/// The `make` target that installs everything this crate starts.
pub const MAKE_TARGET: &str = "make cluster-tools";

/// Runs the program only if its parent is still alive. Without this check, a parent that dies before `setpriv` has
/// requested the signal would leave the program running.
const EXEC_BELOW_PARENT: &str = r#"[ "$PPID" -eq "$0" ] && exec "$@""#;

/// Prefixes of environment variables that change what the services and their tools do. They are removed.
const VARIABLES: [&str; 6] = ["CLASSPATH", "JAVA_", "JDK_JAVA_", "KAFKA_", "PG", "REDISCLI_"];

/// A program of this name, from `PATH`.
pub fn program(name: &str) -> PathBuf {
    find(name).unwrap_or_else(|| fail(&format!("`{name}` is not installed: run `{MAKE_TARGET}`")))
}

#[expect(clippy::disallowed_methods, reason = "where programs are is no setting of Tally's")]
fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).map(|dir| dir.join(name)).find(|path| path.is_file())
}

/// Whether this process may become other users and mount file systems.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// The user and group ids that a process is run with.
#[derive(Clone, Copy, Debug)]
pub struct UserIds {
    /// The user.
    pub user: u32,
    /// Its group.
    pub group: u32,
}

/// A program with its arguments.
#[derive(Clone, Debug)]
pub struct Tool {
    argv: Vec<OsString>,
    env: Vec<(&'static str, OsString)>,
    dir: PathBuf,
    user: Option<UserIds>,
}

impl Tool {
    /// A program that runs in this directory.
    pub fn new(program: impl Into<OsString>, dir: &Path) -> Tool {
        Tool { argv: vec![program.into()], env: Vec::new(), dir: dir.to_owned(), user: None }
    }

    /// Adds arguments.
    pub fn args<T: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = T>) -> Tool {
        self.argv.extend(args.into_iter().map(|arg| arg.as_ref().to_owned()));
        self
    }

    /// Adds an argument.
    pub fn arg(self, arg: impl AsRef<OsStr>) -> Tool {
        self.args([arg])
    }

    /// Sets a variable.
    pub fn env(mut self, name: &'static str, value: impl Into<OsString>) -> Tool {
        self.env.push((name, value.into()));
        self
    }

    /// Runs it as this user; as the current user if `None`.
    pub fn user(mut self, user: Option<UserIds>) -> Tool {
        self.user = user;
        self
    }

    /// The command, which dies when this process does. Start it with [`spawn`].
    pub fn command(&self) -> Command {
        let mut command = Command::new(program("setpriv"));
        if let Some(UserIds { user, group }) = self.user {
            command.args(["--reuid", &user.to_string(), "--regid", &group.to_string(), "--clear-groups"]);
        }
        command.args(["--pdeathsig", "KILL", "--", "sh", "-c", EXEC_BELOW_PARENT, &std::process::id().to_string()]);
        command.args(&self.argv).current_dir(&self.dir).stdin(Stdio::null());
        for (name, _) in std::env::vars_os() {
            if VARIABLES.iter().any(|prefix| name.to_string_lossy().starts_with(prefix)) {
                command.env_remove(name);
            }
        }
        // Messages must be in English, because some are searched for.
        command.env("LC_ALL", "C").envs(self.env.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Runs it to completion and returns what it printed; an error is what it printed when it failed.
    pub fn run(&self) -> Result<String, String> {
        self.run_with_input("")
    }

    /// Like [`Tool::run`], with this as standard input.
    pub fn run_with_input(&self, input: &str) -> Result<String, String> {
        let started =
            File::from_input(input).and_then(|input| Ok((input, tempfile::tempfile()?, tempfile::tempfile()?)));
        let (input, mut output, mut errors) = started.or_fail("cannot create a temporary file");
        let share = |file: &File| file.try_clone().or_fail("cannot duplicate a file");
        let mut command = self.command();
        command.stdin(input).stdout(share(&output)).stderr(share(&errors));
        let mut child = spawn(command).or_fail(&format!("cannot start {:?}", self.argv));
        let ended = poll(|| child.try_wait().ok().flatten().ok_or("it is still running".to_owned()));
        if ended.is_err() {
            let _ = child.kill();
            let _ = child.wait();
        }
        let (output, errors) = (output.read_all(), errors.read_all());
        match ended {
            Ok(status) if status.success() => Ok(output),
            Ok(status) => Err(format!("{:?}: {status}\n{output}{errors}", self.argv)),
            Err(late) => Err(format!("{:?}: {late}\n{output}{errors}", self.argv)),
        }
    }
}

/// Files instead of pipes: nobody has to read while the tool runs.
trait TemporaryFile: Sized {
    fn from_input(input: &str) -> io::Result<Self>;
    fn read_all(&mut self) -> String;
}

impl TemporaryFile for File {
    fn from_input(input: &str) -> io::Result<File> {
        let mut file = tempfile::tempfile()?;
        file.write_all(input.as_bytes())?;
        file.rewind()?;
        Ok(file)
    }

    fn read_all(&mut self) -> String {
        let mut bytes = Vec::new();
        let read = self.rewind().and_then(|()| self.read_to_end(&mut bytes));
        read.or_fail("cannot read a temporary file");
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// Starts a command on a thread that lives as long as this process.
///
/// `--pdeathsig` is sent when the *thread* that started the child ends, not when the process does. Test threads end
/// with their test, and a service that is kept for several tests would be killed with the first of them.
pub fn spawn(command: Command) -> io::Result<Child> {
    type Job = (Command, Sender<io::Result<Child>>);
    static SPAWNER: LazyLock<Sender<Job>> = LazyLock::new(|| {
        let (jobs, queue) = channel::<Job>();
        let spawn_all = move || {
            for (mut command, reply) in queue {
                let _ = reply.send(command.spawn());
            }
        };
        std::thread::Builder::new().name("spawner".into()).spawn(spawn_all).or_fail("cannot start a thread");
        jobs
    });
    let (reply, child) = channel();
    // If the thread is gone, `recv` fails.
    let _ = SPAWNER.send((command, reply));
    child.recv().map_err(io::Error::other)?
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str) -> Tool {
        Tool::new("sh", Path::new("/")).args(["-c", script])
    }

    #[test]
    fn a_tool_returns_what_it_printed() {
        assert_eq!(sh("cat; pwd").run_with_input("in ").unwrap(), "in /\n");
        assert_eq!(sh("echo \"$A$PGHOST\"").env("A", "b").run().unwrap(), "b\n");
        let error = sh("echo out; echo err >&2; exit 3").run().unwrap_err();
        assert!(error.ends_with("exit status: 3\nout\nerr\n"), "{error}");
    }

    #[test]
    fn a_program_outlives_the_thread_that_asked_for_it() {
        let mut child = std::thread::scope(|scope| scope.spawn(|| spawn(sh("cat").command())).join()).unwrap().unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(0), "it read the end of its input and was not killed");
        let mut command = sh("cat").command();
        command.stdin(Stdio::piped()).stdout(Stdio::null());
        let mut child = std::thread::scope(|scope| scope.spawn(|| spawn(command)).join()).unwrap().unwrap();
        child.stdin.take().unwrap().write_all(b"text").unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(0));
    }

    #[test]
    #[should_panic(expected = "`no-such-program` is not installed: run `make cluster-tools`")]
    fn a_missing_program_names_the_make_target() {
        program("no-such-program");
    }
}
