//! What each crate must not know.
//!
//! A layer is kept in two ways: packages it may not be built from, directly or through another, and paths its
//! shipped code may not name. Tests inside a crate may use what they like.

use crate::Finding;
use crate::manifest::{Lock, Manifest};
use crate::paths::paths;
use crate::source::{Source, is_test_file};
use crate::tree::TextFile;

/// Packages that make up a network or database world of their own.
const FRONT_DOORS: [&str; 5] = ["axum", "hyper", "http", "tower", "redis-protocol"];
const PEERS: [&str; 6] = ["redis", "fred", "rdkafka", "sqlx", "tokio-postgres", "postgres"];
const RUNTIMES: [&str; 4] = ["tokio", "mio", "async-std", "smol"];
const SYSTEM: [&str; 4] = ["rustix", "nix", "socket2", "tempfile"];
const CLOCKS: [&str; 3] = ["chrono", "time", "jiff"];
const RANDOMNESS: [&str; 3] = ["rand", "fastrand", "getrandom"];
const ENGINES: [&str; 2] = ["tally-engine", "tally-server"];
/// Crates that exist for development and never reach a user.
const NEVER_SHIPPED: [&str; 4] = ["tally-sim", "tally-contract", "tally-bench", "tally-tidy"];

/// Packages that a crate must not be built from.
struct Unbuilt {
    package: &'static str,
    without: &'static [&'static [&'static str]],
    why: &'static str,
}

const UNBUILT: [Unbuilt; 5] = [
    Unbuilt {
        package: "tally-core",
        without: &[&RUNTIMES, &SYSTEM, &CLOCKS, &RANDOMNESS, &FRONT_DOORS, &PEERS, &ENGINES, &NEVER_SHIPPED],
        why: "the core does no I/O and knows no runtime, clock or randomness",
    },
    Unbuilt {
        package: "tally-engine",
        without: &[&RUNTIMES, &FRONT_DOORS, &PEERS, &["tally-server"], &NEVER_SHIPPED],
        why: "the engine knows no HTTP, RESP, Redis, Kafka, PostgreSQL or async runtime",
    },
    Unbuilt {
        package: "tally-server",
        without: &[&NEVER_SHIPPED],
        why: "simulation, contract suite and benchmarks do not ship",
    },
    Unbuilt {
        package: "tally-contract",
        without: &[&ENGINES],
        why: "the contract suite knows engines only by their surface",
    },
    Unbuilt { package: "tally-tidy", without: &[&ENGINES, &["tally-core"]], why: "tidy judges the tree from outside" },
];

/// Paths that the shipped code below `dir` must not name.
struct Unnamed {
    dir: &'static str,
    paths: &'static [&'static str],
    words: &'static [&'static str],
    except: fn(&str) -> bool,
    why: &'static str,
}

const UNNAMED: [Unnamed; 5] = [
    Unnamed {
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
        except: nowhere,
        why: "the core is a function of its batches: no I/O, clock, threads or random hash order",
    },
    Unnamed {
        dir: "crates/tally-engine/src/",
        paths: &["std::fs", "std::os::unix::fs", "rustix::fs"],
        words: &[],
        except: touches_the_real_disk,
        why: "go through the `Disk` trait, so that the simulator can cut the power here",
    },
    Unnamed {
        dir: "crates/tally-engine/src/",
        paths: &["std::net", "std::env"],
        words: &[],
        except: nowhere,
        why: "the engine knows no network and takes its settings as arguments",
    },
    Unnamed {
        dir: "crates/tally-engine/src/",
        paths: &[],
        words: &["wait_timeout", "wait_timeout_while", "recv_timeout", "park_timeout", "sleep"],
        except: may_wait_for_time,
        why: "group commit has no timer: wait for work or for the flush, never for time",
    },
    Unnamed {
        dir: "crates/tally-server/src/",
        paths: &["tally_core::partition", "tally_engine::disk"],
        words: &[],
        except: nowhere,
        why: "the server holds no counter logic: use the `Engine` surface",
    },
];

fn nowhere(_: &str) -> bool {
    false
}

/// The disk module and the lock file of the data directory.
fn touches_the_real_disk(path: &str) -> bool {
    path == "crates/tally-engine/src/disk.rs"
        || path.starts_with("crates/tally-engine/src/disk/")
        || path.ends_with("/lock.rs")
}

/// Everything but the path from submission to flush.
fn may_wait_for_time(path: &str) -> bool {
    let within = path.trim_start_matches("crates/tally-engine/src/");
    let file = within.rsplit('/').next().unwrap_or(within);
    let journal = within == "journal.rs" || within.starts_with("journal/");
    !(journal || ["combine", "flush", "seal", "submit"].iter().any(|word| file.starts_with(word)))
}

/// Packages that crates are built from against the rules.
#[must_use]
pub fn dependencies(members: &[Manifest], lock: &Lock) -> Vec<Finding> {
    let mut findings = Vec::new();
    for rule in &UNBUILT {
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
pub fn lints(members: &[Manifest]) -> Vec<Finding> {
    let without = members.iter().filter(|member| !member.inherits_lints);
    without.map(|member| Finding::new(&member.file, 1, "add `[lints]` with `workspace = true`")).collect()
}

/// Paths that shipped code names against the rules.
#[must_use]
pub fn names(file: &TextFile) -> Vec<Finding> {
    let rules: Vec<_> =
        UNNAMED.iter().filter(|rule| file.path.starts_with(rule.dir) && !(rule.except)(&file.path)).collect();
    if rules.is_empty() || is_test_file(&file.path) {
        return Vec::new();
    }
    let mut findings = Vec::new();
    for named in paths(&Source::new(&file.text).shipped()) {
        for rule in &rules {
            let path = rule.paths.iter().any(|path| named.is_within(path));
            let word = rule.words.iter().any(|word| named.has_part(word));
            if path || word {
                findings.push(Finding::new(&file.path, named.line, format!("`{}`: {}", named.path, rule.why)));
            }
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
        assert_eq!(found("crates/tally-engine/src/embedded/lock.rs", "use std::fs::File;"), 0);
        assert_eq!(found("crates/tally-engine/src/disk/real.rs", "use std::net::TcpStream;"), 1);
    }

    #[test]
    fn the_path_to_the_flush_waits_for_no_timer() {
        let bad = "fn f() { let _ = condvar.wait_timeout(guard, pause); }";
        assert_eq!(found("crates/tally-engine/src/journal/writer.rs", bad), 1);
        assert_eq!(found("crates/tally-engine/src/embedded/flusher.rs", bad), 1);
        assert_eq!(found("crates/tally-engine/src/embedded/checkpoint.rs", bad), 0);
    }

    #[test]
    fn the_server_goes_through_the_surface() {
        assert_eq!(found("crates/tally-server/src/service.rs", "use tally_core::{key, partition::Partition};"), 1);
    }

    #[test]
    fn a_forbidden_package_is_found_behind_an_allowed_one() {
        let text = "[package]\nname = \"tally-core\"\n[dependencies]\nharmless = \"1\"\n";
        let members = [Manifest::parse("crates/tally-core/Cargo.toml", text).unwrap()];
        let lock = Lock::parse("name = \"harmless\"\ndependencies = [\n \"tokio\",\n]\nname = \"tokio\"\n");
        let findings = dependencies(&members, &lock);
        assert_eq!(findings.len(), 1);
        assert_eq!(findings[0].line, 4);
        assert!(findings[0].what.starts_with("tally-core → harmless → tokio"));
    }

    #[test]
    fn a_crate_without_the_workspace_lints_is_found() {
        assert_eq!(lints(&[Manifest::default()]).len(), 1);
    }
}
