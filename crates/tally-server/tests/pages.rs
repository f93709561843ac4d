//! The pages: every command in a block of `sh` is run, and its output must be what the page shows.
//!
//! A comment directly below a command is its output, and so is one at the end of a line that begins with `redis-cli` or
//! `tally`. `…` stands for anything; times, tokens and hashes may differ. Blocks of `sh norun` are not run: they start
//! servers, build or measure.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::disallowed_methods)]

mod harness;

use std::path::{Path, PathBuf};
use std::process::Command;

use harness::{Server, run};
use regex::Regex;

/// A part of a page: commands, and what they print.
#[derive(Debug, Default)]
struct Step {
    line: usize,
    commands: String,
    expected: String,
}

fn page(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The steps of all blocks of `sh`.
fn steps(text: &str) -> Vec<Step> {
    let (mut steps, mut is_run, mut is_output) = (Vec::new(), false, false);
    let mut open = Step::default();
    for (number, line) in text.lines().enumerate() {
        match line.strip_prefix("```") {
            Some(kind) => {
                is_run = kind == "sh";
                is_output = false;
                steps.push(std::mem::take(&mut open));
            }
            None if !is_run => {}
            None if line.trim().is_empty() => is_output = false,
            None => match line.strip_prefix('#') {
                Some(output) if is_output => open.expected += output,
                Some(_) => {}
                None => {
                    // A command on several lines is one step.
                    if !open.commands.ends_with("\\\n") {
                        steps.push(std::mem::replace(&mut open, Step { line: number + 1, ..Step::default() }));
                    }
                    let has_output = line.starts_with("redis-cli ") || line.starts_with("tally ");
                    match line.split_once("  # ") {
                        Some((command, output)) => {
                            open.commands += command;
                            open.expected += if has_output { output } else { "" };
                        }
                        None => open.commands += line,
                    }
                    open.commands.push('\n');
                    is_output = true;
                }
            },
        }
    }
    steps.push(open);
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
    let steps = steps(&page(name));
    assert!(!steps.is_empty(), "{name} has no commands");
    let server = Server::start();
    let dir = tempfile::tempdir().unwrap();
    let address = server.base.strip_prefix("http://").unwrap();
    let redis_port = server.redis.rsplit(':').next().unwrap();
    // As in a terminal, where redis-cli shows types.
    let mut script = "redis-cli() { command redis-cli --no-raw \"$@\"; }\n".to_owned();
    let outputs: Vec<PathBuf> = (0..steps.len()).map(|step| dir.path().join(step.to_string())).collect();
    for (step, output) in steps.iter().zip(&outputs) {
        let commands = step.commands.replace("127.0.0.1:7300", address).replace("-p 7379", &format!("-p {redis_port}"));
        script += &format!("{{\n{commands}}} >{} 2>{}.err\n", output.display(), output.display());
    }
    let tally = Path::new(env!("CARGO_BIN_EXE_tally")).parent().unwrap().to_owned();
    let path =
        std::env::join_paths([tally].into_iter().chain(std::env::split_paths(&std::env::var_os("PATH").unwrap())));
    let mut bash = Command::new("bash");
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
fn the_recipes_do_what_they_say() {
    check("docs/recipes.md");
}

#[test]
fn the_tour_of_the_readme_is_true() {
    check("README.md");
}

#[test]
fn output_that_differs_is_noticed() {
    let found = steps(
        "text\n```sh\na=1\n\n# Prose.\ncurl x\n# {\"value\":1, …}\nredis-cli y  # (integer) 2\n```\n```sh norun\nno\n```\n",
    );
    assert_eq!(found.iter().map(|step| step.commands.trim()).collect::<Vec<_>>(), ["a=1", "curl x", "redis-cli y"]);
    let matches = |step: usize, printed: &str| pattern(&found[step].expected).is_match(&without_spaces(printed));
    assert!(matches(1, r#"{"value":1,"more":true}"#) && matches(2, "(integer) 2\n"));
    assert!(!matches(1, r#"{"value":2,"more":true}"#) && !matches(2, "(integer) 3\n"));
    let timed = pattern(r#"409 {"as_of":"2026-03-02T09:14:07.482Z","token":"50","rate_1m":0.11,"hash":"4f69…"}"#);
    assert!(timed.is_match(r#"{"as_of":"2031-01-01T00:00:00.001Z","token":"7","rate_1m":0.5,"hash":"00ff"}"#));
}
