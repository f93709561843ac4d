//! The files of the tree, read once.

use std::path::{Path, PathBuf};
use std::{fs, io};

/// A text file of the tree.
#[derive(Clone, Debug)]
pub struct TextFile {
    /// Path relative to the root, with `/` between its parts.
    pub path: String,
    /// Its contents.
    pub text: String,
}

/// Directories at the root with build output and data. Directories of the same name further down are read like any
/// other.
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
                let is_skipped = dir.as_os_str().is_empty() && SKIPPED.contains(&name.as_str());
                if !name.starts_with('.') && !is_skipped {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_built_at_the_root_is_left_out() {
        // Below `target`, so that nothing is left in the tree.
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tidy-tree");
        for dir in ["target", "src/target", ".hidden"] {
            fs::create_dir_all(root.join(dir)).unwrap();
            fs::write(root.join(dir).join("a.rs"), "").unwrap();
        }
        let found: Vec<String> = files(&root, ".rs").unwrap().into_iter().map(|file| file.path).collect();
        fs::remove_dir_all(&root).unwrap();
        assert_eq!(found, ["src/target/a.rs"]);
    }
}
