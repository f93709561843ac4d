//! A directory for the data of one service, removed even when the test process is killed.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::fail::OrFail;

/// Waits until its standard input is closed, which happens when the owner drops the directory or is killed. A service
/// may be dying at that moment and still write, so the removal is repeated.
const CLEANER: &str = r#"trap '' HUP INT TERM
read -r _
eval "$2"
for _ in $(seq 100); do rm -rf -- "$1" && exit; sleep 0.1; done
exit 1"#;

/// A temporary directory, and a small process that removes it.
pub struct ScratchDir {
    path: PathBuf,
    cleaner: Child,
}

impl ScratchDir {
    /// A new directory for this service.
    pub fn new(service: &str) -> ScratchDir {
        ScratchDir::with_cleanup(service, ":")
    }

    /// A new directory for this service; before it is removed, the shell runs `cleanup` with the directory as `$1`.
    pub fn with_cleanup(service: &str, cleanup: &str) -> ScratchDir {
        let dir = tempfile::Builder::new().prefix(&format!("tally-{service}-")).tempdir();
        let path = dir.or_fail("cannot create a temporary directory").keep();
        // In its own process group: Ctrl-C in a terminal is meant for the test.
        let cleaner = Command::new("sh")
            .args(["-c", CLEANER, "cleaner"])
            .arg(&path)
            .arg(cleanup)
            .current_dir("/")
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .or_fail("cannot start sh");
        ScratchDir { path, cleaner }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes a file and returns its path.
    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path.join(name);
        std::fs::write(&path, text).or_fail(&format!("cannot write {}", path.display()));
        path
    }
}

impl Drop for ScratchDir {
    fn drop(&mut self) {
        drop(self.cleaner.stdin.take());
        let _ = self.cleaner.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_directory_is_removed_after_its_cleanup() {
        let other = ScratchDir::new("other");
        let dir = ScratchDir::with_cleanup("cleanup", &format!("cp \"$1\"/file '{}'", other.path().display()));
        dir.write("file", "text");
        let path = dir.path().to_owned();
        drop(dir);
        assert!(!path.exists());
        assert_eq!(std::fs::read_to_string(other.path().join("file")).unwrap(), "text");
    }
}
