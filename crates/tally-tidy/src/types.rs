//! One name, one thing: no two types of the workspace have the same name.
//!
//! Tests may name their types as they like. [`SHARED`] lists the names that two files still define; it may only shrink.

use std::collections::{BTreeMap, BTreeSet};

use crate::Finding;
use crate::source::{SourceText, is_test_file, line_at};
use crate::tree::TextFile;

/// Names that several files still define, and the number of files.
pub const SHARED: &[(&str, usize)] = &[("RespClient", 2)];

/// Names defined by more files than allowed, and entries of `shared` that allow too much.
#[must_use]
pub fn types(files: &[TextFile], shared: &[(&str, usize)]) -> Vec<Finding> {
    let mut places: BTreeMap<String, BTreeSet<(&str, usize)>> = BTreeMap::new();
    for file in files.iter().filter(|file| file.path.starts_with("crates/") && !is_test_file(&file.path)) {
        for (name, line) in defined(&SourceText::new(&file.text).shipped()) {
            places.entry(name).or_default().insert((&file.path, line));
        }
    }
    let mut findings = Vec::new();
    for (name, places) in &places {
        let files: BTreeSet<&str> = places.iter().map(|(path, _)| *path).collect();
        let allowed = shared.iter().find(|(known, _)| known == name).map_or(1, |(_, count)| *count);
        if files.len() > allowed {
            let all: Vec<String> = places.iter().map(|(path, line)| format!("{path}:{line}")).collect();
            let (path, line) = places.iter().next_back().copied().unwrap_or_default();
            let what = format!("`{name}` names {} types, in {}: one name, one thing", files.len(), all.join(", "));
            findings.push(Finding::new(path, line, what));
        }
    }
    for (name, allowed) in shared {
        let files: BTreeSet<&str> = places.get(*name).into_iter().flatten().map(|(path, _)| *path).collect();
        if files.len() < *allowed || *allowed < 2 {
            let what = format!("`{name}` is defined in {} files, not {allowed}: shrink or drop its entry", files.len());
            findings.push(Finding::new("crates/tally-tidy/src/types.rs", 1, what));
        }
    }
    findings
}

/// The types that a piece of code defines, with their lines.
fn defined(code: &str) -> Vec<(String, usize)> {
    let mut found = Vec::new();
    let mut after_keyword = false;
    let mut at = 0;
    while at < code.len() {
        let rest = &code[at..];
        let word = rest.bytes().take_while(|b| b.is_ascii_alphanumeric() || *b == b'_').count();
        if word == 0 {
            after_keyword &= rest.starts_with(char::is_whitespace);
            at += 1;
            continue;
        }
        if after_keyword {
            found.push((rest[..word].to_owned(), line_at(code, at)));
        }
        after_keyword = matches!(&rest[..word], "struct" | "enum" | "trait" | "union");
        at += word;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> TextFile {
        TextFile { path: path.into(), text: text.into() }
    }

    fn found(files: &[TextFile], shared: &[(&str, usize)]) -> Vec<String> {
        types(files, shared).iter().map(Finding::to_string).collect()
    }

    #[test]
    fn a_name_that_two_files_define_is_found() {
        let files = [
            file("crates/a/src/lib.rs", "//! A.\npub struct Plan<'a> {\n  x: &'a u8,\n}"),
            file("crates/b/src/lib.rs", "pub(crate) enum Plan { A }\ntrait Other {}"),
        ];
        let two = found(&files, &[]);
        assert_eq!(two.len(), 1);
        assert!(two[0].contains("`Plan` names 2 types, in crates/a/src/lib.rs:2, crates/b/src/lib.rs:1"), "{two:?}");
        assert!(found(&files, &[("Plan", 2)]).is_empty());
    }

    #[test]
    fn tests_comments_and_impls_define_nothing() {
        let files = [
            file("crates/a/src/lib.rs", "struct Plan;\nimpl Plan {}\nfn f(plan: Plan) {}\n// struct Other"),
            file("crates/b/src/lib.rs", "#[cfg(test)]\nmod tests { struct Plan; }\nfn g() { \"struct Plan\"; }"),
            file("crates/b/tests/all.rs", "struct Plan;"),
        ];
        assert!(found(&files, &[]).is_empty(), "{:?}", found(&files, &[]));
    }

    #[test]
    fn an_entry_that_is_no_longer_needed_is_found() {
        let one = [file("crates/a/src/lib.rs", "struct Plan;")];
        assert_eq!(found(&one, &[("Plan", 2)]).len(), 1);
        assert_eq!(found(&one, &[("Gone", 2)]).len(), 1);
        let three = ["a", "b", "c"].map(|name| file(&format!("crates/{name}/src/lib.rs"), "struct Plan;"));
        assert_eq!(found(&three, &[("Plan", 2)]).len(), 1, "a third one is one too many");
    }
}
