//! Tidiness as a test: the rules of the source tree that neither rustc nor clippy can check.
//!
//! Every checker takes text and returns what is wrong with it, so each is tested here on snippets that break its
//! rule. `tests/tidy.rs` runs them all over the real tree. The crate has no dependencies and never ships.

pub mod documents;
pub mod functions;
pub mod layers;
pub mod manifest;
pub mod paths;
pub mod source;
pub mod style;
pub mod timers;
pub mod tree;
pub mod types;
pub mod words;

/// One broken rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// File, relative to the root of the tree.
    pub file: String,
    /// Line in it, from 1.
    pub line: usize,
    /// What is wrong and what to do about it.
    pub what: String,
}

impl Finding {
    /// A finding at a line.
    #[must_use]
    pub fn new(file: &str, line: usize, what: impl Into<String>) -> Self {
        Finding { file: file.into(), line, what: what.into() }
    }
}

impl std::fmt::Display for Finding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}: {}", self.file, self.line, self.what)
    }
}
