//! Rules for the documents of the tree: links resolve, the code map names real files, decision records have no gaps,
//! and the changelog has a section for the next change.

use crate::Finding;
use crate::tree::TextFile;

/// The directory of the decision records.
pub const DECISIONS: &str = "docs/decisions/";

/// Sections every decision record has.
const RECORD_SECTIONS: [&str; 4] = ["## Context", "## Decision", "## Consequences", "## Not taken"];

/// Broken relative links of a Markdown file. `exists` takes paths relative to the root; `documents` has the Markdown
/// files whose headings can be linked to.
#[must_use]
pub fn links(file: &TextFile, documents: &[TextFile], exists: &dyn Fn(&str) -> bool) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (line, prose) in prose(&file.text) {
        for target in link_targets(&prose) {
            if target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            let (path, anchor) = target.split_once('#').unwrap_or((&target, ""));
            let path = if path.is_empty() { file.path.clone() } else { resolve(&file.path, path) };
            if !exists(&path) {
                findings.push(Finding::new(&file.path, line, format!("({target}) leads nowhere")));
                continue;
            }
            let linked = documents.iter().find(|document| document.path == path);
            if !anchor.is_empty() && !linked.is_some_and(|linked| anchors(&linked.text).any(|a| a == anchor)) {
                findings.push(Finding::new(&file.path, line, format!("({target}) names no heading")));
            }
        }
    }
    findings
}

/// Source paths between backticks, such as `tally-core/src/key.rs`, that do not exist. A map without any source path is
/// a finding, too.
#[must_use]
pub fn code_map(file: &TextFile, exists: &dyn Fn(&str) -> bool) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut places = 0;
    for (line, text) in (1..).zip(file.text.lines()) {
        for name in text.split('`').skip(1).step_by(2) {
            let name = name.strip_prefix("crates/").unwrap_or(name);
            if !(name.starts_with("tally-") && (name.contains("/src") || name.contains("/tests"))) {
                continue;
            }
            places += 1;
            let path = format!("crates/{}", name.trim_end_matches('/'));
            // A module is a directory or a file; the map need not say which.
            if !exists(&path) && !exists(&format!("{path}.rs")) {
                findings.push(Finding::new(&file.path, line, format!("there is no crates/{name}")));
            }
        }
    }
    if places == 0 {
        findings.push(Finding::new(&file.path, 1, "the code map names no source file"));
    }
    findings
}

/// Types between backticks, such as `Engine` or `Machine::seal`, that no source file names.
#[must_use]
pub fn types_of_code_map(file: &TextFile, sources: &[TextFile]) -> Vec<Finding> {
    let named = |name: &str| sources.iter().any(|source| words(&source.text).any(|word| word == name));
    let mut findings = Vec::new();
    for (line, text) in (1..).zip(file.text.lines()) {
        for span in text.split('`').skip(1).step_by(2) {
            let is_type = |word: &&str| word.starts_with(char::is_uppercase) && word.contains(char::is_lowercase);
            for name in words(span).filter(is_type).filter(|name| !named(name)) {
                findings.push(Finding::new(&file.path, line, format!("no source file names `{name}`")));
            }
        }
    }
    findings
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_alphanumeric() && c != '_')
}

/// Decision records that are misnumbered, missing from the index or lack a section.
#[must_use]
pub fn decisions(documents: &[TextFile]) -> Vec<Finding> {
    let index_path = format!("{DECISIONS}README.md");
    let Some(index) = documents.iter().find(|document| document.path == index_path) else {
        return vec![Finding::new(&index_path, 1, "the index of decision records is missing")];
    };
    let mut findings = Vec::new();
    let records: Vec<_> = documents
        .iter()
        .filter(|document| document.path.starts_with(DECISIONS) && document.path != index_path)
        .collect();
    if records.is_empty() {
        findings.push(Finding::new(&index_path, 1, "there are no decision records"));
    }
    for (record, number) in records.into_iter().zip(1..) {
        let name = &record.path[DECISIONS.len()..];
        if !name.starts_with(&format!("{number:04}-")) {
            findings.push(Finding::new(&record.path, 1, format!("expected number {number:04}: no gaps, no repeats")));
        }
        if !index.text.contains(&format!("({name})")) {
            findings.push(Finding::new(&record.path, 1, format!("not listed in {index_path}")));
        }
        for section in RECORD_SECTIONS.iter().filter(|section| !record.text.lines().any(|line| line == **section)) {
            findings.push(Finding::new(&record.path, 1, format!("has no section `{section}`")));
        }
    }
    findings
}

/// A changelog that has no place for the next change.
#[must_use]
pub fn changelog(file: &TextFile) -> Vec<Finding> {
    match file.text.lines().find(|line| line.starts_with("## ")) {
        Some("## Unreleased") => Vec::new(),
        _ => vec![Finding::new(&file.path, 1, "the first section must be `## Unreleased`")],
    }
}

/// Lines with their number, without code blocks and code spans.
fn prose(text: &str) -> Vec<(usize, String)> {
    let mut fenced = false;
    let mut lines = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if !fenced {
            lines.push((number, line.split('`').step_by(2).collect::<Vec<_>>().join("`")));
        }
    }
    lines
}

/// Targets of `[text](target)` and `[name]: target`.
fn link_targets(prose: &str) -> Vec<String> {
    let mut targets: Vec<String> = prose
        .match_indices("](")
        .filter_map(|(at, open)| prose[at + open.len()..].split([')', ' ']).next())
        .map(str::to_owned)
        .collect();
    if prose.starts_with('[')
        && let Some((_, target)) = prose.split_once("]: ")
    {
        targets.push(target.trim().to_owned());
    }
    targets
}

/// The path of `target` as seen from the file `from`, relative to the root.
fn resolve(from: &str, target: &str) -> String {
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." if parts.last().is_some_and(|last| *last != "..") => drop(parts.pop()),
            other => parts.push(other),
        }
    }
    parts.join("/")
}

/// Anchors of the headings: lower case, hyphens for spaces, no punctuation.
fn anchors(text: &str) -> impl Iterator<Item = String> {
    let headings: Vec<String> = prose_with_spans(text).filter(|line| line.starts_with('#')).collect();
    headings.into_iter().map(|heading| {
        let title = heading.trim_start_matches('#').trim().to_lowercase();
        title
            .chars()
            .filter(|c| c.is_alphanumeric() || "-_ ".contains(*c))
            .map(|c| if c == ' ' { '-' } else { c })
            .collect()
    })
}

/// Lines outside code blocks, including their code spans.
fn prose_with_spans(text: &str) -> impl Iterator<Item = String> {
    let numbers: Vec<usize> = prose(text).into_iter().map(|(number, _)| number).collect();
    (1..).zip(text.lines()).filter(move |(number, _)| numbers.contains(number)).map(|(_, line)| line.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document(path: &str, text: &str) -> TextFile {
        TextFile { path: path.into(), text: text.into() }
    }

    #[test]
    fn a_link_that_leads_nowhere_is_found() {
        let documents = [document("README.md", "# Two Words, `and` code\n")];
        let exists = |path: &str| path == "README.md";
        let found = |text: &str| {
            let findings = links(&document("docs/a.md", text), &documents, &exists);
            findings.into_iter().map(|finding| finding.line).collect::<Vec<_>>()
        };
        assert_eq!(found("x\n[a](../GONE.md)"), [2]);
        assert_eq!(found("[a]: ../../README.md"), [1]);
        assert_eq!(found("[a](../README.md#one-word)"), [1]);
        assert!(found("[a](../README.md#two-words-and-code) [b](https://example.com/x)").is_empty());
        assert!(found("`[a](gone)`\n```\n[a](gone)\n```\n").is_empty());
    }

    #[test]
    fn a_code_map_that_names_a_missing_file_is_found() {
        let exists = |path: &str| path == "crates/tally-core/src/key.rs";
        let found = |text: &str| code_map(&document("ARCHITECTURE.md", text), &exists).len();
        assert_eq!(found("`tally-core/src/key.rs` and `tally-core` and `src/gone.rs`"), 0);
        assert_eq!(found("`tally-core/src/key`"), 0);
        assert_eq!(found("`tally-core/src/gone.rs`"), 1);
        assert_eq!(found("`crates/tally-core/src/gone.rs` and `tally-core/src/key.rs`"), 1);
        assert_eq!(found("no map at all"), 1);
    }

    #[test]
    fn a_code_map_that_names_a_missing_type_is_found() {
        let sources = [document("crates/a.rs", "struct Machine;\nimpl Machine { fn seal() {} }")];
        let found = |text: &str| types_of_code_map(&document("ARCHITECTURE.md", text), &sources).len();
        assert_eq!(found("`Machine::seal`, `crates/Machine.rs`, `OBJECT FREQ` and Gone"), 0);
        assert_eq!(found("`Gone` and\n`Mach`"), 2);
    }

    #[test]
    fn records_are_numbered_listed_and_whole() {
        let whole = RECORD_SECTIONS.join("\n");
        let index = document("docs/decisions/README.md", "[a](0001-a.md) [c](0003-c.md)");
        let first = document("docs/decisions/0001-a.md", &whole);
        assert!(decisions(&[first.clone(), index.clone()]).is_empty());
        assert_eq!(decisions(&[first.clone(), document("docs/decisions/0003-c.md", &whole), index.clone()]).len(), 1);
        assert_eq!(decisions(&[first.clone(), document("docs/decisions/0002-b.md", &whole), index.clone()]).len(), 1);
        assert_eq!(decisions(&[document("docs/decisions/0001-a.md", "## Context"), index]).len(), 3);
        assert_eq!(decisions(&[first]).len(), 1);
        assert_eq!(decisions(&[document("docs/decisions/README.md", "")]).len(), 1);
    }

    #[test]
    fn the_changelog_is_open_for_the_next_change() {
        assert!(changelog(&document("CHANGELOG.md", "# Changelog\n\n## Unreleased\n")).is_empty());
        assert_eq!(changelog(&document("CHANGELOG.md", "# Changelog\n\n## 0.1.0\n\n## Unreleased\n")).len(), 1);
        assert_eq!(changelog(&document("CHANGELOG.md", "")).len(), 1);
    }
}
