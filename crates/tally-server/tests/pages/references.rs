//! The reference pages have what the binary has, and nothing else: flags, variables, commands, calls, errors, metrics,
//! limits. Links between pages are checked by `tally-tidy`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::net::TcpListener;

use regex::Regex;
use serde_json::Value;

use crate::harness::resp::{Redis, Reply};
use crate::harness::{Server, run, tally, write};
use crate::{all_pages, blocks, page, root};

/// The text below a heading, up to the next one of the same rank.
fn section(page_name: &str, heading: &str) -> String {
    let text = page(page_name);
    let rank = heading.split(' ').next().unwrap();
    let mut lines = text.lines().skip_while(|line| *line != heading);
    assert!(lines.next().is_some(), "{page_name} has no `{heading}`");
    let is_next = |line: &str| line.split(' ').next() == Some(rank);
    lines.take_while(|line| !is_next(line)).map(|line| line.to_owned() + "\n").collect()
}

/// The cells of all rows of all tables.
fn rows(text: &str) -> Vec<Vec<String>> {
    let rows = text.lines().filter_map(|line| line.strip_prefix('|')?.strip_suffix('|'));
    rows.map(|row| row.split('|').map(|cell| cell.trim().to_owned()).collect()).collect()
}

/// The texts between backticks.
fn code(text: &str) -> Vec<String> {
    text.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// The texts between backticks in the first cell of each row.
fn first_cells(text: &str) -> BTreeSet<String> {
    rows(text).iter().flat_map(|row| code(&row[0])).collect()
}

/// All matches of a pattern's first group.
fn found(pattern: &str, text: &str) -> BTreeSet<String> {
    Regex::new(pattern).unwrap().captures_iter(text).map(|found| found[1].to_owned()).collect()
}

/// Asserts that both are equal; the error shows the difference.
fn same<T: Ord + Debug>(page_name: &str, documented: &BTreeSet<T>, actual: &BTreeSet<T>) {
    assert!(!actual.is_empty(), "nothing was found to compare {page_name} with");
    let missing: Vec<&T> = actual.difference(documented).collect();
    let stale: Vec<&T> = documented.difference(actual).collect();
    assert!(missing.is_empty() && stale.is_empty(), "{page_name} lacks {missing:?} and has {stale:?}, which is gone");
}

/// The output of `tally … --help` in one line, because it is wrapped.
fn help(command: &[&str]) -> String {
    let shown = run(tally().args(command).arg("--help"));
    assert_eq!(shown.code, 0, "{}", shown.err);
    shown.out.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The commands that a help text lists.
fn listed_commands(command: &[&str]) -> Vec<String> {
    let shown = run(tally().args(command).arg("--help")).out;
    let lines = shown.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    lines.filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect()
}

#[test]
fn the_page_of_commands_has_every_command() {
    let mut actual = BTreeSet::new();
    for command in listed_commands(&[]) {
        let parts: Vec<String> = listed_commands(&[&command]).into_iter().filter(|part| part != "help").collect();
        match parts.is_empty() || command == "help" {
            true => drop(actual.insert(command)),
            false => actual.extend(parts.into_iter().map(|part| format!("{command} {part}"))),
        }
    }
    let text = page("docs/commands.md");
    let documented = found(r"(?m)^\| `tally ((?:cluster )?[a-z-]+)", &text);
    same("docs/commands.md", &documented, &actual);
}

#[test]
fn the_page_of_commands_has_every_option_but_those_of_the_server() {
    let mut commands: Vec<Vec<String>> = listed_commands(&[]).into_iter().map(|command| vec![command]).collect();
    commands.extend(listed_commands(&["cluster"]).into_iter().map(|part| vec!["cluster".to_owned(), part]));
    let is_shown =
        |command: &Vec<String>| !["serve", "help"].contains(&command[0].as_str()) && command.last().unwrap() != "help";
    let options = commands.iter().filter(|command| is_shown(command)).flat_map(|command| {
        let help = help(&command.iter().map(String::as_str).collect::<Vec<_>>());
        // Not those of the examples.
        let options = help.split(" Examples:").next().unwrap().split(" Options: ").nth(1).unwrap_or_default();
        found(r"(?:^| )(--[a-z-]+)", options)
    });
    let actual: BTreeSet<String> = options.filter(|option| option != "--help").collect();
    let documented = rows(&section("docs/commands.md", "## Options"));
    let documented: BTreeSet<String> = documented.iter().flat_map(|row| found(r"(--[a-z][a-z-]*)", &row[0])).collect();
    same("docs/commands.md", &documented, &actual);
}

#[test]
fn the_page_of_commands_has_every_exit_code() {
    let sources = ["cli/mod.rs", "serve.rs"].map(|file| page(&format!("crates/tally-server/src/{file}")));
    let mut actual = found(r"const EXIT_[A-Z_]+: u8 = (\d+);", &sources.concat());
    actual.insert("0".to_owned());
    let documented = rows(&section("docs/commands.md", "## Exit codes"));
    let is_code = |cell: &String| cell.parse::<u8>().is_ok();
    same("docs/commands.md", &documented.into_iter().map(|row| row[0].clone()).filter(is_code).collect(), &actual);
}

#[test]
fn the_page_on_configuration_has_every_flag_with_its_variable_and_default() {
    let help = help(&["serve"]);
    let flag = Regex::new(r"--([a-z-]+)(?: <[A-Z]+>|\[=<BOOL>\]) (.*?)\[env: (TALLY_[A-Z_]+)=").unwrap();
    let flags: Vec<_> = flag.captures_iter(&help).map(|found| [1, 2, 3].map(|group| found[group].to_owned())).collect();
    let actual = flags.iter().map(|[flag, _, variable]| (flag.clone(), variable.clone())).collect();
    let documented = rows(&section("docs/configuration.md", "## Server"));
    let flag_of = |row: &Vec<String>| code(&row[0]).first()?.strip_prefix("--").map(str::to_owned);
    let pairs = documented.iter().filter_map(|row| Some((flag_of(row)?, code(&row[1]).pop()?)));
    same("docs/configuration.md", &pairs.collect(), &actual);
    for [flag, text, _] in &flags {
        let Some(default) = found(r"\[default: ([^\]]+)\]", text).pop_first() else { continue };
        let row = documented.iter().find(|row| flag_of(row).as_ref() == Some(flag)).unwrap();
        assert!(
            row[3].contains(&default),
            "docs/configuration.md: the default of --{flag} is {default}, not {}",
            row[3]
        );
    }
}

#[test]
fn the_readme_links_every_page() {
    let readme = page("README.md");
    let is_linked = |name: &String| readme.contains(&format!("]({name})"));
    let is_plan = |name: &String| ["README.md", "docs/plan.md"].contains(&name.as_str());
    let missing: Vec<String> = all_pages().into_iter().filter(|name| !is_plan(name) && !is_linked(name)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

/// The strings in a constant of a source file.
fn strings_of(file: &str, constant: &str) -> BTreeSet<String> {
    let source = page(file);
    let list = source.split(&format!("const {constant}:")).nth(1).unwrap_or_else(|| panic!("{file}: no {constant}"));
    found(r#""([a-z_]+)""#, list.split(';').nth(1).unwrap())
}

#[test]
fn the_page_on_configuration_has_every_key_of_the_file() {
    let name = "docs/configuration.md";
    let keys = strings_of("crates/tally-server/src/config/file.rs", "KEYS");
    let documented = rows(&section(name, "## Server"));
    let mut documented: BTreeSet<String> = documented.iter().flat_map(|row| code(&row[2])).collect();
    documented.extend(["namespaces".to_owned(), "cluster".to_owned()]);
    same(name, &documented, &keys);
    let keys = strings_of("crates/tally-server/src/config/namespaces.rs", "NAMESPACE_KEYS");
    same(name, &first_cells(&section(name, "## Namespaces")), &keys);
    let keys = strings_of("crates/tally-server/src/config/cluster.rs", "CLUSTER_KEYS");
    same(name, &first_cells(&section(name, "## Cluster")), &keys);
}

#[test]
fn every_example_of_a_configuration_file_is_valid() {
    let dir = tempfile::tempdir().unwrap();
    // An address that is in use stops the start right after the settings are validated.
    let in_use = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = in_use.local_addr().unwrap().to_string();
    let mut examples = 0;
    for name in all_pages() {
        for block in blocks(&page(&name)).into_iter().filter(|block| block.kind == "toml") {
            let lines: Vec<String> = block.lines.into_iter().map(|(_, line)| line + "\n").collect();
            let file = write(dir.path().join("tally.toml"), &lines.concat());
            let started = run(tally().args(["serve", "--http", &address, "--config"]).arg(file));
            assert!(started.err.contains("cannot listen on"), "{name}: {}\n{}", lines.concat(), started.err);
            examples += 1;
        }
    }
    assert!(examples > 3, "{examples}");
}

#[test]
fn the_page_on_http_has_every_call() {
    let server = Server::start();
    let described = server.send("GET", "/openapi.json", "").json;
    let mut actual = BTreeSet::new();
    for (path, methods) in described["paths"].as_object().unwrap() {
        actual.extend(methods.as_object().unwrap().keys().map(|method| format!("{} {path}", method.to_uppercase())));
    }
    let documented = first_cells(&section("docs/http.md", "## Calls"));
    same("docs/http.md", &documented, &actual);
}

#[test]
fn the_page_on_http_has_every_problem_with_its_status() {
    let server = Server::start();
    let listed = server.send("GET", "/problems", "").json;
    let shown = |problem: &Value| (problem["type"].as_str().unwrap().to_owned(), problem["status"].to_string());
    let actual: BTreeSet<(String, String)> = listed["problems"].as_array().unwrap().iter().map(shown).collect();
    let documented = rows(&section("docs/http.md", "## Errors"));
    let documented = documented.iter().filter_map(|row| Some((code(&row[0]).pop()?, row[1].clone())));
    same("docs/http.md", &documented.filter(|(kind, _)| kind.starts_with('/')).collect(), &actual);
}

/// The metrics of a table with their types.
fn documented_metrics(heading: &str) -> BTreeSet<(String, String)> {
    let rows = rows(&section("docs/metrics.md", heading));
    rows.iter().filter_map(|row| Some((code(&row[0]).pop()?, row[1].clone()))).collect()
}

#[test]
fn the_page_of_metrics_has_every_metric_of_a_server_with_its_type() {
    let server = Server::start();
    server.send("POST", "/api/v1/counters/a/increment", "");
    let text = server.send("GET", "/metrics", "").text;
    let declared = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
    let actual: BTreeSet<(String, String)> = declared.map(|(name, kind)| (name.to_owned(), kind.to_owned())).collect();
    let mut documented = documented_metrics("## Every server");
    documented.extend(documented_metrics("## Single server"));
    same("docs/metrics.md", &documented, &actual);
}

#[test]
fn the_page_of_metrics_has_every_metric_of_a_cluster() {
    let mut actual = BTreeSet::new();
    let mut dirs = vec![root().join("crates/tally-cluster/src")];
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => dirs.push(path),
                false => actual.extend(found(r#""(tally_[a-z_]+)""#, &std::fs::read_to_string(path).unwrap())),
            }
        }
    }
    let documented = documented_metrics("## Cluster nodes").into_iter().map(|(name, _)| name).collect();
    same("docs/metrics.md", &documented, &actual);
}

#[test]
fn the_page_of_metrics_has_every_verb() {
    let source = page("crates/tally-server/src/metrics.rs");
    let actual = found(r#"Verb::[A-Za-z]+ => "([a-z-]+)""#, &source);
    let labels = section("docs/metrics.md", "## Labels");
    let verbs: String =
        labels.lines().skip_while(|line| !line.starts_with("| `verb` | HTTP")).skip(2).collect::<Vec<_>>().join("\n");
    let verbs: String = verbs.split("\n\n").next().unwrap().to_owned();
    same("docs/metrics.md", &first_cells(&verbs), &actual);
}

/// The commands on the page on Redis: those by themselves, and subcommands as `CONTAINER|SUBCOMMAND`.
fn documented_commands() -> (BTreeSet<String>, BTreeSet<String>) {
    let (mut commands, mut parts) = (BTreeSet::new(), BTreeSet::new());
    // A command, and what follows it in parentheses.
    let command = Regex::new(r"`([A-Z][A-Z. -]*)`(?: \(((?:`[A-Z-]+` ?)+)\))?").unwrap();
    for row in rows(&section("docs/redis.md", "## Commands")).iter().filter(|row| row.len() == 2) {
        for found in command.captures_iter(&row[1]) {
            let name = found[1].to_owned();
            let of_it = found.get(2).map_or_else(Vec::new, |list| code(list.as_str()));
            parts.extend(of_it.iter().map(|part| format!("{name}|{part}")));
            match name.split_once(' ') {
                Some((container, part)) => drop(parts.insert(format!("{container}|{part}"))),
                None => drop(commands.insert(name)),
            }
        }
    }
    (commands, parts)
}

#[test]
fn the_page_on_redis_has_every_command() {
    let server = Server::start();
    let listed = Redis::connect(&server.redis).call(&["COMMAND", "LIST"]);
    let names = listed.items().iter().map(|name: &Reply| name.text().to_uppercase());
    let (parts, commands): (BTreeSet<String>, BTreeSet<String>) = names.partition(|name| name.contains('|'));
    let (documented, mut documented_parts) = documented_commands();
    same("docs/redis.md", &documented, &commands);
    // Options of commands are in parentheses, too. Every container has `HELP`, and all of `CLUSTER` is refused.
    let containers: BTreeSet<&str> = parts.iter().map(|part| part.split('|').next().unwrap()).collect();
    documented_parts.retain(|part| containers.contains(part.split('|').next().unwrap()));
    let is_own = |part: &String| !part.ends_with("|HELP") && !part.starts_with("CLUSTER|");
    same("docs/redis.md", &documented_parts, &parts.iter().filter(|part| is_own(part)).cloned().collect());
}

/// The value of a constant that is a product or a shift of numbers, or a number of seconds.
fn value(expression: &str) -> Option<u64> {
    let number = |text: &str| text.trim().replace('_', "").parse::<u64>().ok();
    if let Some(seconds) = expression.strip_prefix("Duration::from_secs(") {
        return number(seconds.strip_suffix(')')?);
    }
    match expression.split_once("<<") {
        Some((number_of, bits)) => Some(number(number_of)? << number(bits)?),
        None => expression.split('*').map(number).product(),
    }
}

/// A number with commas between its thousands.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let groups: Vec<&str> =
        digits.as_bytes().rchunks(3).rev().map(|group| std::str::from_utf8(group).unwrap()).collect();
    groups.join(",")
}

/// The ways in which a page may show a constant of this name.
fn shown(name: &str, value: u64) -> Vec<String> {
    let mut ways = vec![grouped(value), format!("{value} s")];
    for (unit, bits) in [("KiB", 10), ("MiB", 20), ("GiB", 30)] {
        if value.trailing_zeros() >= bits {
            ways.push(format!("{} {unit}", value >> bits));
        }
    }
    if name.ends_with("_MS") {
        let seconds = value / 1_000;
        ways.push(format!("{seconds} s"));
        ways.push(format!("{} minutes", seconds / 60));
        ways.push(format!("{} hours", seconds / 3_600));
        ways.push("one hour".to_owned());
    }
    ways
}

#[test]
fn the_page_of_limits_shows_the_values_of_the_constants_it_names() {
    let files =
        ["tally-core", "tally-server", "tally-cluster"].map(|name| page(&format!("crates/{name}/src/limits.rs")));
    let constant = Regex::new(r"pub const ([A-Z_]+): [A-Za-z0-9:]+ = ([^;]+);").unwrap();
    let constants: BTreeMap<String, String> = files
        .iter()
        .flat_map(|source| constant.captures_iter(source))
        .map(|found| (found[1].to_owned(), found[2].to_owned()))
        .collect();
    let mut compared = 0;
    for row in rows(&page("docs/limits.md")) {
        for name in row.last().map_or_else(Vec::new, |cell| code(cell)) {
            let expression = constants.get(&name).unwrap_or_else(|| panic!("docs/limits.md: there is no {name}"));
            let Some(value) = value(expression) else { continue };
            let (ways, text) = (shown(&name, value), row.join(" "));
            assert!(ways.iter().any(|way| text.contains(way)), "docs/limits.md: {name} is {value}, not as in: {text}");
            compared += 1;
        }
    }
    assert!(compared > 40, "{compared}");
    assert_eq!(
        (value("2 << 20"), value("24 * 60"), value("10_000"), value("A + 1")),
        (Some(2 << 20), Some(1_440), Some(10_000), None)
    );
}

#[test]
#[should_panic(expected = "lacks [\"b\"] and has [\"c\"], which is gone")]
fn a_table_that_differs_is_noticed() {
    let documented = first_cells("| flag | what |\n|---|---|\n| `a`, `c` | `d` |\n");
    same("a page", &documented, &BTreeSet::from(["a".to_owned(), "b".to_owned()]));
}
