//! What each crate must not depend on or name.
//!
//! There are three kinds of rules: packages a crate must not depend on, directly or indirectly; paths its shipped code
//! must not name; and an order of modules, each of which uses only those before it. Tests inside a crate may use
//! anything.

use crate::Finding;
use crate::manifest::{CrateManifest, Lock};
use crate::paths::{PathUse, paths};
use crate::source::{SourceText, is_test_file};
use crate::tree::TextFile;

/// Packages of protocols and servers.
const PROTOCOLS: [&str; 5] = ["axum", "hyper", "http", "tower", "redis-protocol"];
const PEERS: [&str; 6] = ["redis", "fred", "rdkafka", "sqlx", "tokio-postgres", "postgres"];
const RUNTIMES: [&str; 4] = ["tokio", "mio", "async-std", "smol"];
const SYSTEM: [&str; 4] = ["rustix", "nix", "socket2", "tempfile"];
const CLOCKS: [&str; 3] = ["chrono", "time", "jiff"];
const RANDOMNESS: [&str; 3] = ["rand", "fastrand", "getrandom"];
const ENGINES: [&str; 2] = ["tally-engine", "tally-server"];
/// Crates that exist for development and never reach a user.
const NEVER_SHIPPED: [&str; 5] = ["tally-sim", "tally-contract", "tally-bench", "tally-services", "tally-tidy"];

/// Packages that a crate must not depend on.
struct ForbiddenPackages {
    package: &'static str,
    without: &'static [&'static [&'static str]],
    why: &'static str,
}

const FORBIDDEN_PACKAGES: [ForbiddenPackages; 6] = [
    ForbiddenPackages {
        package: "tally-core",
        without: &[&RUNTIMES, &SYSTEM, &CLOCKS, &RANDOMNESS, &PROTOCOLS, &PEERS, &ENGINES, &NEVER_SHIPPED],
        why: "the core does no I/O and knows no runtime, clock or randomness",
    },
    ForbiddenPackages {
        package: "tally-engine",
        without: &[&RUNTIMES, &PROTOCOLS, &PEERS, &["tally-server"], &NEVER_SHIPPED],
        why: "the engine knows no HTTP, RESP, Redis, Kafka, PostgreSQL or async runtime",
    },
    ForbiddenPackages {
        package: "tally-server",
        without: &[&NEVER_SHIPPED],
        why: "simulation, contract suite and benchmarks do not ship",
    },
    ForbiddenPackages {
        package: "tally-contract",
        without: &[&ENGINES],
        why: "the contract suite knows engines only by their surface",
    },
    ForbiddenPackages {
        package: "tally-services",
        without: &[&RUNTIMES, &PROTOCOLS, &PEERS, &ENGINES, &["tally-core"]],
        why: "services are started for any test, through their own tools, and the crate builds in seconds",
    },
    ForbiddenPackages {
        package: "tally-tidy",
        without: &[&ENGINES, &["tally-core"]],
        why: "tidy judges the tree from outside",
    },
];

/// Paths that the shipped code below `dir` must not name.
struct ForbiddenPaths {
    dir: &'static str,
    paths: &'static [&'static str],
    words: &'static [&'static str],
    /// Files and directories, which end with `/`, that may name them.
    except: &'static [&'static str],
    why: &'static str,
}

const FORBIDDEN_PATHS: [ForbiddenPaths; 5] = [
    ForbiddenPaths {
        dir: "crates/tally-core/src/",
        paths: &[
            "std::fs",
            "std::net",
            "std::os",
            "std::thread",
            "std::env",
            "std::process",
            "std::collections::HashMap",
            "std::collections::HashSet",
            "std::hash::RandomState",
        ],
        words: &["SystemTime", "Instant"],
        except: &[],
        why: "the core is a function of its batches: no I/O, clock, threads or random hash order",
    },
    ForbiddenPaths {
        dir: "crates/tally-engine/src/",
        paths: &["std::fs", "std::os::unix::fs", "rustix::fs"],
        words: &[],
        except: &["crates/tally-engine/src/disk/", "crates/tally-engine/src/lock.rs"],
        why: "go through the `Disk` trait, so that the simulator can cut the power here",
    },
    ForbiddenPaths {
        dir: "crates/tally-engine/src/",
        paths: &["std::net", "std::env"],
        words: &[],
        except: &[],
        why: "the engine knows no network and takes its settings as arguments",
    },
    ForbiddenPaths {
        dir: "crates/tally-engine/src/",
        paths: &["parking_lot::Condvar"],
        words: &[],
        except: &[],
        why: "its timed waits are named like other calls, so tidy cannot distinguish them: use `std::sync::Condvar`",
    },
    ForbiddenPaths {
        dir: "crates/tally-server/src/",
        paths: &["tally_core::partition", "tally_engine::disk"],
        words: &["Partition"],
        except: &[],
        why: "the server holds no counter logic: use the `Engine` surface",
    },
];

impl ForbiddenPaths {
    fn excepts(&self, path: &str) -> bool {
        self.except.iter().any(|except| is_below(path, except))
    }

    fn bans(&self, named: &PathUse) -> bool {
        let path = self.paths.iter().any(|path| named.is_within(path));
        path || self.words.iter().any(|word| named.has_part(word))
    }
}

/// Whether a path is the file `place`, or lies below it if that ends with `/`.
fn is_below(path: &str, place: &str) -> bool {
    if place.ends_with('/') { path.starts_with(place) } else { path == place }
}

/// This file, where the lists are.
const HERE: &str = "crates/tally-tidy/src/layers.rs";

/// Rules that cannot fail, because their crate, directory, module or file does not exist, and exceptions that nothing
/// needs.
#[must_use]
pub fn void_rules(files: &[TextFile], members: &[CrateManifest], lock: &Lock) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut say = |what: String| findings.push(Finding::new(HERE, 1, what));
    let is_member = |name: &str| members.iter().any(|member| member.name == name);
    for rule in &FORBIDDEN_PACKAGES {
        let own = rule.without.iter().copied().flatten().filter(|name| name.starts_with("tally-"));
        for name in own.chain([&rule.package]).filter(|name| !is_member(name)) {
            say(format!("there is no crate `{name}`: {}", rule.why));
        }
    }
    for member in members.iter().filter(|member| !lock.knows(&member.name)) {
        say(format!("`{}` is not in Cargo.lock, so what it is built from is not known", member.name));
    }
    for rule in &FORBIDDEN_PATHS {
        if !files.iter().any(|file| file.path.starts_with(rule.dir)) {
            say(format!("there is no file below {}: {}", rule.dir, rule.why));
        }
        for module in rule.paths.iter().filter(|path| path.starts_with("tally_")) {
            let places = module_files(module);
            if !files.iter().any(|file| places.contains(&file.path)) {
                say(format!("there is no module `{module}`: {}", rule.why));
            }
        }
        for except in rule.except {
            let needs = |file: &TextFile| {
                let named = paths(&SourceText::new(&file.text).shipped());
                is_below(&file.path, except) && named.iter().any(|named| rule.bans(named))
            };
            if !files.iter().any(needs) {
                say(format!("nothing in {except} needs its exception: {}", rule.why));
            }
        }
    }
    findings
}

/// The possible source files of a module such as `tally_core::partition`.
fn module_files(module: &str) -> [String; 2] {
    let (package, module) = module.split_once("::").unwrap_or((module, "lib"));
    let stem = format!("crates/{}/src/{}", package.replace('_', "-"), module.replace("::", "/"));
    [format!("{stem}.rs"), format!("{stem}/mod.rs")]
}

/// Directories whose modules use each other one way: each may use those that `mod.rs` declares before it.
const LAYERED: [&str; 1] = ["crates/tally-server/src/resp/"];

/// Modules of a layered directory that use one declared after them.
#[must_use]
pub fn order(files: &[TextFile]) -> Vec<Finding> {
    LAYERED.iter().flat_map(|dir| order_of(files, dir)).collect()
}

fn order_of(files: &[TextFile], dir: &str) -> Vec<Finding> {
    let root = files.iter().find(|file| file.path == format!("{dir}mod.rs"));
    let declared = root.map(|file| declared_modules(&SourceText::new(&file.text).shipped())).unwrap_or_default();
    if declared.len() < 2 {
        return vec![Finding::new(HERE, 1, format!("{dir}mod.rs declares no modules to keep in order"))];
    }
    let place = |module: &str| declared.iter().position(|known| known == module);
    // `crate::resp` for `crates/tally-server/src/resp/`.
    let inside = dir.split_once("/src/").map_or("", |(_, inside)| inside.trim_end_matches('/')).replace('/', "::");
    let mut findings = Vec::new();
    for file in files.iter().filter(|file| file.path.starts_with(dir) && !is_test_file(&file.path)) {
        let own = file.path[dir.len()..].trim_end_matches(".rs").trim_end_matches("/mod");
        let own: Vec<&str> = own.split('/').collect();
        let Some(from) = place(own[0]) else { continue };
        for named in paths(&SourceText::new(&file.text).shipped()) {
            let used = used_module(&named.path, &inside, own.len());
            if used.and_then(place).is_some_and(|to| to > from) {
                let what = format!("`{}`: `{}` comes before it in {dir}mod.rs", named.path, own[0]);
                findings.push(Finding::new(&file.path, named.line, what));
            }
        }
    }
    findings.dedup();
    findings
}

/// The module of the layered directory that a path leads to, named in a file `depth` modules below the directory.
fn used_module<'a>(path: &'a str, inside: &str, depth: usize) -> Option<&'a str> {
    let from_root = path.strip_prefix("crate::").and_then(|rest| rest.strip_prefix(inside)?.strip_prefix("::"));
    let upwards = "super::".repeat(depth);
    from_root.or_else(|| path.strip_prefix(&upwards))?.split("::").next()
}

/// The modules that a piece of code declares, in order.
fn declared_modules(code: &str) -> Vec<String> {
    let declared = code.lines().filter_map(|line| line.trim().strip_suffix(';'));
    declared.filter_map(|line| line.rsplit_once("mod ")).map(|(_, name)| name.to_owned()).collect()
}

/// Forbidden packages that crates depend on.
#[must_use]
pub fn dependencies(members: &[CrateManifest], lock: &Lock) -> Vec<Finding> {
    let mut findings = Vec::new();
    for rule in &FORBIDDEN_PACKAGES {
        for member in members.iter().filter(|member| member.name == rule.package) {
            for &banned in rule.without.iter().copied().flatten() {
                let Some(chain) = lock.chain(members, &member.name, banned) else { continue };
                let line = member.dependencies.iter().find(|(name, _)| *name == chain[1]).map_or(1, |found| found.1);
                findings.push(Finding::new(&member.file, line, format!("{}: {}", chain.join(" → "), rule.why)));
            }
        }
    }
    findings
}

/// Crates that opted out of the lints of the workspace.
#[must_use]
pub fn lints(members: &[CrateManifest]) -> Vec<Finding> {
    let without = members.iter().filter(|member| !member.inherits_lints);
    without.map(|member| Finding::new(&member.file, 1, "add `[lints]` with `workspace = true`")).collect()
}

/// Forbidden paths that shipped code names.
#[must_use]
pub fn names(file: &TextFile) -> Vec<Finding> {
    let rules: Vec<_> =
        FORBIDDEN_PATHS.iter().filter(|rule| file.path.starts_with(rule.dir) && !rule.excepts(&file.path)).collect();
    if rules.is_empty() || is_test_file(&file.path) {
        return Vec::new();
    }
    let mut findings = Vec::new();
    for named in paths(&SourceText::new(&file.text).shipped()) {
        for rule in rules.iter().filter(|rule| rule.bans(&named)) {
            findings.push(Finding::new(&file.path, named.line, format!("`{}`: {}", named.path, rule.why)));
        }
    }
    findings.dedup();
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> usize {
        names(&TextFile { path: path.into(), text: text.into() }).len()
    }

    #[test]
    fn the_core_names_no_file_clock_or_thread() {
        let path = "crates/tally-core/src/partition.rs";
        for bad in [
            "use std::{fs, io};",
            "use std::time::{Duration, Instant};",
            "fn f() { std::thread::yield_now(); }",
            "use std::collections::{BTreeMap, HashMap};",
        ] {
            assert_eq!(found(path, bad), 1, "{bad}");
        }
        assert_eq!(found(path, "// std::fs\nuse std::io;\n#[cfg(test)]\nmod tests { use std::fs; }"), 0);
        assert_eq!(found("crates/tally-core/src/partition/tests.rs", "use std::fs;"), 0);
    }

    #[test]
    fn the_engine_reaches_files_only_through_its_disk() {
        assert_eq!(found("crates/tally-engine/src/store/run.rs", "use std::fs::File;"), 1);
        assert_eq!(found("crates/tally-engine/src/disk/real.rs", "use std::fs::File;"), 0);
        assert_eq!(found("crates/tally-engine/src/lock.rs", "use std::fs::File;"), 0);
        assert_eq!(found("crates/tally-engine/src/embedded/lock.rs", "use std::fs::File;"), 1);
        assert_eq!(found("crates/tally-engine/src/disk/real.rs", "use std::net::TcpStream;"), 1);
    }

    #[test]
    fn the_engine_waits_on_the_condition_variable_whose_timed_waits_are_known() {
        assert_eq!(found("crates/tally-engine/src/signal.rs", "use parking_lot::{Condvar, Mutex};"), 1);
        assert_eq!(found("crates/tally-engine/src/signal.rs", "use std::sync::Condvar;"), 0);
    }

    #[test]
    fn the_server_goes_through_the_surface() {
        assert_eq!(found("crates/tally-server/src/service.rs", "use tally_core::{key, partition::apply};"), 1);
        assert_eq!(found("crates/tally-server/src/service.rs", "fn f(partition: &Partition) {}"), 1);
    }

    #[test]
    fn a_module_that_uses_a_later_one_is_found() {
        let dir = "crates/tally-server/src/resp/";
        let found = |path: &str, text: &str| {
            let root = "//! A.\nmod wire;\n\npub mod turn;\n\n#[cfg(test)]\nmod tests;\n";
            let files = [("mod.rs", root), (path, text)]
                .map(|(path, text)| TextFile { path: format!("{dir}{path}"), text: text.into() });
            order(&files).len()
        };
        assert_eq!(found("wire.rs", "use super::turn::Turn;"), 1);
        assert_eq!(found("wire.rs", "fn f(turn: &crate::resp::turn::Turn) {}"), 1);
        assert_eq!(found("wire/mod.rs", "use super::{turn::Turn};"), 1);
        assert_eq!(found("wire/number.rs", "use super::super::turn::Turn;"), 1);
        assert_eq!(found("wire/number.rs", "use crate::resp::turn::{Turn, TurnLoad};"), 2);
        assert_eq!(found("wire/number.rs", "use super::turn;"), 0, "a module of its own");
        assert_eq!(found("turn.rs", "use super::wire::Args;\nuse super::turn::Turn;"), 0);
        assert_eq!(found("wire.rs", "#[cfg(test)]\nmod tests { use crate::resp::turn::Turn; }"), 0);
        assert_eq!(found("wire/tests.rs", "use crate::resp::turn::Turn;"), 0);
        assert_eq!(order(&[]).len(), 1, "the directory is gone");
    }

    #[test]
    fn a_forbidden_package_is_found_behind_an_allowed_one() {
        let text = "[package]\nname = \"tally-core\"\n[dependencies]\nharmless = \"1\"\n";
        let members = [CrateManifest::parse("crates/tally-core/Cargo.toml", text).unwrap()];
        let lock = Lock::parse("name = \"harmless\"\ndependencies = [\n \"tokio\",\n]\nname = \"tokio\"\n");
        let findings = dependencies(&members, &lock);
        assert_eq!(findings.len(), 1);
        assert_eq!(findings[0].line, 4);
        assert!(findings[0].what.starts_with("tally-core → harmless → tokio"));
    }

    #[test]
    fn a_rule_about_something_that_is_not_there_is_found() {
        let found = void_rules(&[], &[], &Lock::default());
        for what in [
            "there is no crate `tally-core`",
            "there is no crate `tally-sim`",
            "there is no file below crates/tally-engine/src/",
            "there is no module `tally_core::partition`",
            "nothing in crates/tally-engine/src/lock.rs needs its exception",
        ] {
            assert!(found.iter().any(|finding| finding.what.starts_with(what)), "{what}");
        }
        let has = |text: &str, what: &str| {
            let lock = TextFile { path: "crates/tally-engine/src/lock.rs".into(), text: text.into() };
            void_rules(&[lock], &[], &Lock::default()).iter().any(|finding| finding.what.contains(what))
        };
        assert!(has("use std::io;", "lock.rs needs its exception"), "it is there and does not need it");
        assert!(!has("use std::fs::File;", "lock.rs needs its exception"));
        let member = CrateManifest { name: "tally-core".into(), ..CrateManifest::default() };
        let unlocked = void_rules(&[], &[member], &Lock::parse("name = \"other\"\n"));
        assert!(unlocked.iter().any(|finding| finding.what.starts_with("`tally-core` is not in Cargo.lock")));
    }

    #[test]
    fn a_crate_without_the_workspace_lints_is_found() {
        assert_eq!(lints(&[CrateManifest::default()]).len(), 1);
    }
}
