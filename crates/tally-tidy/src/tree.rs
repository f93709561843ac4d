//! The files of the tree, read once.

use std::path::{Path, PathBuf};
use std::{fs, io};

/// A text file of the tree.
#[derive(Clone, Debug)]
pub struct TextFile {
    /// Path relative to the root, with `/` between its parts.
    pub path: String,
    /// What it holds.
    pub text: String,
}

/// Directories that hold what is built or stored, not what is written.
const SKIPPED: [&str; 2] = ["target", "tally-data"];

/// Root of the tree: two levels above this crate.
#[must_use]
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Every file below `root` whose name ends with `suffix`, in path order. Hidden directories are left out.
pub fn files(root: &Path, suffix: &str) -> io::Result<Vec<TextFile>> {
    let mut found = Vec::new();
    let mut open = vec![PathBuf::new()];
    while let Some(dir) = open.pop() {
        for entry in fs::read_dir(root.join(&dir))? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let path = dir.join(&name);
            if entry.file_type()?.is_dir() {
                if !name.starts_with('.') && !SKIPPED.contains(&name.as_str()) {
                    open.push(path);
                }
            } else if name.ends_with(suffix) {
                let text = fs::read_to_string(root.join(&path))?;
                found.push(TextFile { path: path.to_string_lossy().replace('\\', "/"), text });
            }
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(found)
}
