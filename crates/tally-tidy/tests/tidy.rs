//! The rules of the tree, checked on the tree: each test is one rule and lists everything that breaks it.

use std::error::Error;

use tally_tidy::manifest::{CrateManifest, Lock};
use tally_tidy::tree::{TextFile, files, root};
use tally_tidy::{Finding, documents, layers, style, timers, types, words};

type Verdict = Result<(), Box<dyn Error>>;

/// Passes if there are no findings, and otherwise prints all of them.
fn expect_none(findings: &[Finding]) -> Verdict {
    if findings.is_empty() {
        return Ok(());
    }
    let lines: Vec<String> = findings.iter().map(Finding::to_string).collect();
    println!("{}", lines.join("\n"));
    Err(format!("{} places break a rule of the tree; they are listed above", findings.len()).into())
}

/// The files of the tree with this suffix. Finding none is an error, because every rule would pass.
fn some_files(suffix: &str) -> Result<Vec<TextFile>, Box<dyn Error>> {
    let found = files(&root(), suffix)?;
    if found.is_empty() { Err(format!("found no {suffix} file").into()) } else { Ok(found) }
}

fn exists(path: &str) -> bool {
    root().join(path).exists()
}

fn lock() -> Result<Lock, Box<dyn Error>> {
    Ok(Lock::parse(&std::fs::read_to_string(root().join("Cargo.lock"))?))
}

fn members() -> Result<Vec<CrateManifest>, Box<dyn Error>> {
    let manifests = some_files("Cargo.toml")?;
    let crates = manifests.iter().filter(|file| file.path.starts_with("crates/"));
    let parsed: Result<Vec<_>, Finding> = crates.map(|file| CrateManifest::parse(&file.path, &file.text)).collect();
    parsed.map_err(|finding| finding.to_string().into())
}

#[test]
fn every_rust_file_keeps_to_the_style() -> Verdict {
    expect_none(&some_files(".rs")?.iter().flat_map(style::rust_file).collect::<Vec<_>>())
}

#[test]
fn shipped_code_names_nothing_its_layer_must_not_know() -> Verdict {
    expect_none(&some_files(".rs")?.iter().flat_map(layers::names).collect::<Vec<_>>())
}

#[test]
fn modules_use_only_those_declared_before_them() -> Verdict {
    expect_none(&layers::order(&some_files(".rs")?))
}

#[test]
fn every_rule_about_layers_can_fail() -> Verdict {
    expect_none(&layers::void_rules(&some_files(".rs")?, &members()?, &lock()?))
}

#[test]
fn time_is_waited_for_only_where_it_may_be() -> Verdict {
    expect_none(&timers::timers(&some_files(".rs")?))
}

#[test]
fn no_two_types_have_the_same_name() -> Verdict {
    expect_none(&types::types(&some_files(".rs")?, types::SHARED))
}

#[test]
fn prose_uses_the_words_of_the_field() -> Verdict {
    let ci = TextFile { path: ".ci/run".into(), text: std::fs::read_to_string(root().join(".ci/run"))? };
    let files = [some_files(".rs")?, some_files(".md")?, some_files("Makefile")?, vec![ci]].concat();
    expect_none(&files.iter().flat_map(|file| words::words(file, words::BANNED)).collect::<Vec<_>>())
}

#[test]
fn every_crate_has_its_bounds_in_one_file() -> Verdict {
    // The rule that each bound is documented holds for files of this name.
    for path in ["crates/tally-core/src/limits.rs", "crates/tally-server/src/limits.rs"] {
        assert!(exists(path), "{path} is gone: is the rule about bounds still of use?");
    }
    Ok(())
}

#[test]
fn no_crate_is_built_from_what_its_layer_must_not_know() -> Verdict {
    expect_none(&layers::dependencies(&members()?, &lock()?))
}

#[test]
fn every_crate_inherits_the_lints_of_the_workspace() -> Verdict {
    expect_none(&layers::lints(&members()?))
}

#[test]
fn every_relative_link_leads_somewhere() -> Verdict {
    let documents = some_files(".md")?;
    let findings = documents.iter().flat_map(|file| documents::links(file, &documents, &exists));
    expect_none(&findings.collect::<Vec<_>>())
}

#[test]
fn the_code_map_names_files_that_are_there() -> Verdict {
    let documents = some_files("ARCHITECTURE.md")?;
    expect_none(&documents.iter().flat_map(|file| documents::code_map(file, &exists)).collect::<Vec<_>>())
}

#[test]
fn the_code_map_names_types_that_are_there() -> Verdict {
    let (documents, sources) = (some_files("ARCHITECTURE.md")?, some_files(".rs")?);
    let findings = documents.iter().flat_map(|file| documents::types_of_code_map(file, &sources));
    expect_none(&findings.collect::<Vec<_>>())
}

#[test]
fn decision_records_are_numbered_listed_and_whole() -> Verdict {
    expect_none(&documents::decisions(&some_files(".md")?))
}

#[test]
fn the_changelog_is_open_for_the_next_change() -> Verdict {
    expect_none(&some_files("CHANGELOG.md")?.iter().flat_map(documents::changelog).collect::<Vec<_>>())
}
