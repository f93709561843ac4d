//! The pages: every command in a block of `sh` is run, and its output must be what the page shows. `references` compares
//! the tables of the reference pages with the binary.
//!
//! A comment directly below a command is its output, and so is one at the end of a line that begins with `redis-cli` or
//! `tally`. `…` stands for anything; times, tokens and hashes may differ. A block of `python NAME` is a file for the
//! commands. Blocks of `sh norun` are not run: they start servers, build, or need root or a cluster.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::disallowed_methods)]

#[path = "../harness/mod.rs"]
mod harness;
mod references;

use std::path::{Path, PathBuf};
use std::process::Command;

use harness::{Server, run};
use regex::Regex;

/// The pages with commands that are run.
const RUN: [&str; 8] = [
    "README.md",
    "docs/commands.md",
    "docs/configuration.md",
    "docs/consistency.md",
    "docs/http.md",
    "docs/operating.md",
    "docs/recipes.md",
    "docs/redis.md",
];

/// Commands that a test cannot run against one server on this machine: they start servers, build, need root or a cluster.
const NOT_RUN: [&str; 9] = [
    "cargo ",
    "make ",
    "docker ",
    "systemctl ",
    "tally serve ",
    "tally cluster ",
    "pg_restore ",
    "http://old:",
    "http://new:",
];

/// A part of a page: commands, and what they print.
#[derive(Debug, Default)]
struct Step {
    line: usize,
    commands: String,
    expected: String,
}

/// A fenced block: the text after the opening fence, and its lines with their numbers.
#[derive(Debug)]
struct Block {
    kind: String,
    lines: Vec<(usize, String)>,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The text of a file of the tree.
fn page(name: &str) -> String {
    let path = root().join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Every page for readers, by its path.
fn all_pages() -> Vec<String> {
    let mut pages: Vec<String> =
        ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "deploy/README.md"].map(str::to_owned).to_vec();
    for entry in std::fs::read_dir(root().join("docs")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if name.ends_with(".md") {
            pages.push(format!("docs/{name}"));
        }
    }
    pages.sort();
    pages
}

/// All blocks. One in a list is indented, and so are its lines.
fn blocks(text: &str) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let mut open: Option<(usize, Block)> = None;
    for (number, line) in (1..).zip(text.lines()) {
        let indent = line.len() - line.trim_start().len();
        match (line.trim_start().strip_prefix("```"), &mut open) {
            (Some(kind), None) => open = Some((indent, Block { kind: kind.to_owned(), lines: Vec::new() })),
            (Some(_), Some(_)) => blocks.extend(open.take().map(|(_, block)| block)),
            (None, Some((indent, block))) => {
                block.lines.push((number, line.get(*indent..).unwrap_or_default().to_owned()));
            }
            (None, None) => {}
        }
    }
    blocks
}

/// The steps of all blocks of `sh`.
fn steps(text: &str) -> Vec<Step> {
    let mut steps = Vec::new();
    for block in blocks(text).into_iter().filter(|block| block.kind == "sh") {
        let mut open = Step::default();
        let mut is_output = false;
        for (number, line) in block.lines {
            if line.trim().is_empty() {
                is_output = false;
                continue;
            }
            match line.strip_prefix('#') {
                Some(output) if is_output => open.expected += output,
                Some(_) => {}
                None => {
                    // A command on several lines is one step.
                    if !open.commands.ends_with("\\\n") {
                        steps.push(std::mem::replace(&mut open, Step { line: number, ..Step::default() }));
                    }
                    let has_output = line.starts_with("redis-cli ") || line.starts_with("tally ");
                    match line.split_once("  # ") {
                        Some((command, output)) => {
                            open.commands += command;
                            open.expected += if has_output { output } else { "" };
                        }
                        None => open.commands += &line,
                    }
                    open.commands.push('\n');
                    is_output = true;
                }
            }
        }
        steps.push(open);
    }
    steps.into_iter().filter(|step| !step.commands.is_empty()).collect()
}

fn without_spaces(text: &str) -> String {
    text.split_whitespace().collect()
}

/// What the output must match.
fn pattern(expected: &str) -> Regex {
    let expected = without_spaces(expected);
    // The status, which curl does not print.
    let expected = Regex::new(r"^\d{3}\{").unwrap().replace(&expected, "{").into_owned();
    let escaped = regex::escape(&expected).replace('…', ".*");
    let variable = [
        (r"\d{4}\\-\d\d\\-\d\dT\d\d:\d\d:\d\d\\\.\d{3}Z", r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"),
        (r#""token":"\d+""#, r#""token":"[^"]*""#),
        (r#""rate_1(.)":[\d.\\]+"#, r#""rate_1$1":[\d.e-]+"#),
        (r#""(hash|previous)":"[0-9a-f]+\.\*""#, r#""$1":"[0-9a-f]+""#),
    ];
    let pattern = variable.iter().fold(escaped, |text, (from, to)| {
        // A replacement has no groups of its own besides `$1`.
        Regex::new(from).unwrap().replace_all(&text, to.replace("$1", "${1}").as_str()).into_owned()
    });
    Regex::new(&format!("(?s)^{pattern}$")).unwrap_or_else(|error| panic!("{expected}: {error}"))
}

/// Runs all commands of a page in one shell, on a server of their own.
fn check(name: &str) {
    assert!(RUN.contains(&name), "{name} is not among the pages that are run");
    let text = page(name);
    let steps = steps(&text);
    let server = Server::start();
    let dir = tempfile::tempdir().unwrap();
    for block in blocks(&text) {
        if let Some(file) = block.kind.strip_prefix("python ") {
            let lines: Vec<String> = block.lines.into_iter().map(|(_, line)| line + "\n").collect();
            harness::write(dir.path().join(file), &lines.concat());
        }
    }
    let address = server.base.strip_prefix("http://").unwrap();
    let redis_port = server.redis.rsplit(':').next().unwrap();
    // As in a terminal, where redis-cli shows types.
    let mut script = "redis-cli() { command redis-cli --no-raw \"$@\"; }\n".to_owned();
    let outputs: Vec<PathBuf> = (0..steps.len()).map(|step| dir.path().join(format!("{step}.out"))).collect();
    for (step, output) in steps.iter().zip(&outputs) {
        let commands = step.commands.replace("127.0.0.1:7300", address).replace("-p 7379", &format!("-p {redis_port}"));
        script += &format!("{{\n{commands}}} >{} 2>{}.err\n", output.display(), output.display());
    }
    let tally = Path::new(env!("CARGO_BIN_EXE_tally")).parent().unwrap().to_owned();
    let path =
        std::env::join_paths([tally].into_iter().chain(std::env::split_paths(&std::env::var_os("PATH").unwrap())));
    let mut bash = Command::new("bash");
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("TALLY_")) {
        bash.env_remove(name);
    }
    bash.args(["-c", &script]).env("PATH", path.unwrap()).env("TALLY_SERVER", &server.base).current_dir(dir.path());
    run(&mut bash);
    let mut differing = String::new();
    for (step, output) in steps.iter().zip(&outputs).filter(|(step, _)| !step.expected.trim().is_empty()) {
        let printed = std::fs::read_to_string(output).unwrap_or_default();
        if !pattern(&step.expected).is_match(&without_spaces(&printed)) {
            let Step { line, commands, expected } = step;
            differing += &format!("\nline {line}: {commands}shown:   {expected}\nprinted: {printed}");
        }
    }
    assert!(differing.is_empty(), "{name} is not true:{differing}");
    let compared = steps.iter().filter(|step| !step.expected.trim().is_empty()).count();
    assert!(compared > 0, "{name} shows no output");
}

#[test]
fn the_tour_of_the_readme_is_true() {
    check("README.md");
}

#[test]
fn the_page_of_commands_shows_what_they_print() {
    check("docs/commands.md");
}

#[test]
fn the_page_on_configuration_shows_what_a_wrong_setting_prints() {
    check("docs/configuration.md");
}

#[test]
fn tokens_work_as_the_page_on_consistency_shows() {
    check("docs/consistency.md");
}

#[test]
fn the_page_on_http_shows_what_calls_answer() {
    check("docs/http.md");
}

#[test]
fn the_operating_page_shows_health_and_verifies_a_ledger() {
    check("docs/operating.md");
}

#[test]
fn the_recipes_do_what_they_say() {
    check("docs/recipes.md");
}

#[test]
fn the_page_on_redis_shows_what_commands_reply() {
    check("docs/redis.md");
}

#[test]
fn every_page_with_commands_is_run() {
    let with_commands: Vec<String> = all_pages().into_iter().filter(|name| !steps(&page(name)).is_empty()).collect();
    assert_eq!(with_commands, RUN);
}

#[test]
fn a_block_is_left_out_only_if_it_starts_servers_builds_or_needs_root_or_a_cluster() {
    let mut without_reason = Vec::new();
    for name in all_pages() {
        for block in blocks(&page(&name)).into_iter().filter(|block| block.kind != "sh") {
            let is_shell = block.kind.starts_with("sh ") || ["bash", "console", "shell"].contains(&block.kind.as_str());
            let has_reason = block.kind == "sh norun"
                && block.lines.iter().any(|(_, line)| NOT_RUN.iter().any(|it| line.contains(it)));
            if is_shell && !has_reason {
                without_reason.push((name.clone(), block));
            }
        }
    }
    assert!(without_reason.is_empty(), "{without_reason:#?}");
}

#[test]
fn output_that_differs_is_noticed() {
    let found = steps(
        "text\n```sh\na=1\n\n# Prose.\ncurl x\n# {\"value\":1, …}\nredis-cli y  # (integer) 2\n```\n```sh norun\nno\n```\n\
         1. A list\n\n   ```sh\n   tally z  # 3\n   ```\n",
    );
    let commands: Vec<&str> = found.iter().map(|step| step.commands.trim()).collect();
    assert_eq!(commands, ["a=1", "curl x", "redis-cli y", "tally z"]);
    let matches = |step: usize, printed: &str| pattern(&found[step].expected).is_match(&without_spaces(printed));
    assert!(matches(1, r#"{"value":1,"more":true}"#) && matches(2, "(integer) 2\n") && matches(3, "3\n"));
    assert!(!matches(1, r#"{"value":2,"more":true}"#) && !matches(2, "(integer) 3\n"));
    let timed = pattern(r#"409 {"as_of":"2026-03-02T09:14:07.482Z","token":"50","rate_1m":0.11,"hash":"4f69…"}"#);
    assert!(timed.is_match(r#"{"as_of":"2031-01-01T00:00:00.001Z","token":"7","rate_1m":0.5,"hash":"00ff"}"#));
}
