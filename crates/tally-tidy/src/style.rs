//! Rules for every Rust file of the tree.

use crate::Finding;
use crate::paths::paths;
use crate::source::{SourceText, is_test_file, line_at};
use crate::tree::TextFile;

/// Longest Rust file, in lines.
pub const LINES_MAX: usize = 600;

/// Code that is banned everywhere, and what to do instead. Blanks are ignored when matching.
const BANNED: [(&str, &str); 5] = [
    ("todo!", "finish it or leave it out"),
    ("unimplemented!", "finish it or leave it out"),
    ("dbg!", "use tracing"),
    (",ignore", "a test that is ignored somewhere is ignored everywhere sooner or later"),
    ("#[ignore", "make the test quick or give it a knob in the environment, as TALLY_SEEDS is"),
];

/// Words that mark work left undone.
const UNDONE: [&str; 2] = ["TODO", "FIXME"];

/// Everything that is wrong with one Rust file.
#[must_use]
pub fn rust_file(file: &TextFile) -> Vec<Finding> {
    let source = SourceText::new(&file.text);
    [
        opening(file),
        length(file),
        banned(&file.path, &source),
        undone(&file.path, &source),
        exceptions(&file.path, &source),
        undocumented_limits(file),
    ]
    .concat()
}

fn opening(file: &TextFile) -> Vec<Finding> {
    let first = file.text.lines().next().unwrap_or_default();
    match first.strip_prefix("//!") {
        Some(rest) if !rest.trim().is_empty() => Vec::new(),
        _ => vec![Finding::new(&file.path, 1, "the first line must be `//!` and say what the file is for")],
    }
}

fn length(file: &TextFile) -> Vec<Finding> {
    let lines = file.text.lines().count();
    if lines <= LINES_MAX {
        return Vec::new();
    }
    vec![Finding::new(&file.path, LINES_MAX + 1, format!("{lines} lines; split it, {LINES_MAX} is the most"))]
}

fn banned(path: &str, source: &SourceText) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (line, code) in source.code.lines().enumerate() {
        let packed: String = code.split_whitespace().collect();
        for (bad, instead) in BANNED.iter().filter(|(bad, _)| contains_word(&packed, bad)) {
            findings.push(Finding::new(path, line + 1, format!("`{bad}` is banned: {instead}")));
        }
    }
    for named in paths(&source.code) {
        if named.path == "unsafe" {
            findings.push(Finding::new(path, named.line, "`unsafe` is banned: find the safe way or the crate for it"));
        }
        if named.path.ends_with("thread::sleep") || named.path.ends_with("thread::sleep_ms") {
            let instead = "wait for what you need (a channel, a condition, a line of output), not for time";
            findings.push(Finding::new(path, named.line, format!("`thread::sleep` is banned: {instead}")));
        }
    }
    findings
}

fn undone(path: &str, source: &SourceText) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (line, comment) in source.comments.lines().enumerate() {
        for word in UNDONE.iter().filter(|word| contains_word(comment, word)) {
            findings.push(Finding::new(path, line + 1, format!("{word}: do it now or open an issue")));
        }
    }
    findings
}

/// Lints switched off in shipped code without a reason.
fn exceptions(path: &str, source: &SourceText) -> Vec<Finding> {
    if is_test_file(path) {
        return Vec::new();
    }
    let code = &source.shipped();
    let mut findings = Vec::new();
    for (start, _) in code.match_indices('#') {
        let attribute = code[start + 1..].trim_start_matches('!');
        let Some(body) = ["[allow(", "[expect("].iter().find_map(|open| attribute.strip_prefix(open)) else { continue };
        let body = &body[..body.find(")]").unwrap_or(body.len())];
        if !contains_word(body, "reason") {
            let what = "say why: `#[expect(lint, reason = \"…\")]`";
            findings.push(Finding::new(path, line_at(code, start), what));
        }
    }
    findings
}

/// Constants of a `limits.rs` that do not say what they bound.
fn undocumented_limits(file: &TextFile) -> Vec<Finding> {
    if file.path.rsplit('/').next() != Some("limits.rs") {
        return Vec::new();
    }
    let lines: Vec<&str> = file.text.lines().map(str::trim).collect();
    let mut findings = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let declared = line.trim_start_matches("pub ").trim_start_matches("pub(crate) ").strip_prefix("const ");
        let Some(name) = declared.and_then(|rest| rest.split(':').next()).filter(|name| *name != "_") else { continue };
        let before = lines[..at].iter().rev().find(|line| !line.starts_with("#["));
        if !before.is_some_and(|line| line.starts_with("///")) {
            findings.push(Finding::new(&file.path, at + 1, format!("{name}: say what it bounds, with `///`")));
        }
    }
    findings
}

/// Whether `text` has `word` with no letter, digit or underscore right before or after it.
fn contains_word(text: &str, word: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(word).any(|(at, _)| {
        let runs_on_before = word.starts_with(is_part) && text[..at].ends_with(is_part);
        let runs_on_after = word.ends_with(is_part) && text[at + word.len()..].starts_with(is_part);
        !runs_on_before && !runs_on_after
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> Vec<usize> {
        let file = TextFile { path: path.into(), text: text.into() };
        rust_file(&file).into_iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn the_first_line_says_what_the_file_is_for() {
        assert_eq!(found("a.rs", "use x;\n"), [1]);
        assert_eq!(found("a.rs", "//!\n"), [1]);
        assert!(found("a.rs", "//! Keys.\n").is_empty());
    }

    #[test]
    fn long_files_are_refused() {
        assert!(found("a.rs", &format!("//! A.{}", "\n".repeat(600))).is_empty());
        assert_eq!(found("a.rs", &format!("//! A.{}", "\n\n".repeat(600))), [601]);
    }

    #[test]
    fn banned_code_is_found_in_code_alone() {
        for bad in [
            "todo!()",
            "unimplemented!()",
            "dbg!(x)",
            "#[ignore]",
            "#[ignore = \"slow\"]",
            "#[cfg_attr(x, ignore)]",
            "unsafe { f() }",
        ] {
            assert_eq!(found("a.rs", &format!("//! A.\n{bad}")), [2], "{bad}");
            assert!(found("a.rs", &format!("//! A: {bad}\nconst A: &str = \"{}\";", bad.replace('"', ""))).is_empty());
        }
        assert_eq!(found("a.rs", "//! A.\nfn f() {\n  std::thread::sleep(pause);\n}"), [3]);
        assert_eq!(found("a.rs", "//! A.\nuse std::{io, thread::{self, sleep}};"), [2]);
        assert_eq!(found("a.rs", "//! A.\nfn f() { thread::sleep_ms(1) }"), [2]);
        assert!(found("a.rs", "//! A.\nlet unsafety = mytodo!();").is_empty());
    }

    #[test]
    fn work_left_undone_is_found_in_comments() {
        assert_eq!(found("a.rs", "//! A.\n// TODO: later\n/* FIXME */"), [2, 3]);
        assert!(found("a.rs", "//! A.\n// TODOS are gone\n").is_empty());
    }

    #[test]
    fn an_exception_has_a_reason() {
        assert_eq!(found("a.rs", "//! A.\n#![allow(clippy::x)]\n#[expect(y)]\nfn f() {}"), [2, 3]);
        assert!(found("a.rs", "//! A.\n#[expect(\n  y,\n  reason = \"z\"\n)]\nfn f() {}").is_empty());
        assert!(found("a.rs", "//! A.\n#[cfg(test)]\nmod tests { #![allow(clippy::x)] }").is_empty());
    }

    #[test]
    fn every_limit_says_what_it_bounds() {
        assert_eq!(found("src/limits.rs", "//! A.\n/// Most.\npub const A: u8 = 1;\nconst B: u8 = 2;\n"), [4]);
        assert!(found("src/limits.rs", "//! A.\n/// Most.\n#[x]\npub const A: u8 = 1;\nconst _: () = ();").is_empty());
        assert!(found("src/other.rs", "//! A.\nconst B: u8 = 2;\n").is_empty());
    }
}
