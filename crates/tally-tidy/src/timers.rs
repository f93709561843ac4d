//! Which code may wait for time.
//!
//! Group commit has no timer: a write waits for the flush and for nothing else. So the engine may wait for time in the
//! functions listed here and nowhere else, and these are not on the path of a write. A function that calls a listed one
//! waits for time as well, and has to be listed in turn. Tests poll in one place.
//!
//! An entry that names no file, no function, or a function that does not wait is an error: code that moves takes its
//! entry along.

use crate::Finding;
use crate::functions::{Function, enclosing, functions};
use crate::paths::paths;
use crate::source::{SourceText, is_test_file};
use crate::tree::TextFile;

/// Calls with a timeout: those of `std`, channels and locks. `layers` bans the condition variable of `parking_lot`,
/// whose timed waits have the same names as other calls.
const TIMED: [&str; 17] = [
    "park_timeout",
    "park_timeout_ms",
    "park_until",
    "recv_deadline",
    "recv_timeout",
    "sleep",
    "sleep_ms",
    "sleep_until",
    "try_lock_for",
    "try_lock_until",
    "try_read_for",
    "try_write_for",
    "wait_timeout",
    "wait_timeout_ms",
    "wait_timeout_while",
    "wait_while_for",
    "wait_while_until",
];

/// Calls that only sleep, which tests must not use. Waiting for a message, a process or a connection with a deadline is
/// fine.
const SLEEPS: [&str; 5] = ["park_timeout", "park_timeout_ms", "sleep", "sleep_ms", "sleep_until"];

/// A function that may wait for time.
struct Waiting {
    file: &'static str,
    function: &'static str,
    /// Whether a call to it counts as waiting for time.
    callers: Callers,
}

/// What a listed function means for those that call it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Callers {
    /// They wait as long as it does.
    Wait,
    /// It runs on a thread of its own, or other functions have the same name.
    AreNotFollowed,
}

/// Code that must not wait for time, except in some functions.
struct Rule {
    covers: fn(&str) -> bool,
    banned: &'static [&'static str],
    waiting: &'static [Waiting],
    why: &'static str,
}

const RULES: [Rule; 2] = [
    Rule {
        covers: is_engine,
        banned: &TIMED,
        waiting: &[
            Waiting { file: "crates/tally-engine/src/signal.rs", function: "wait_up_to", callers: Callers::Wait },
            // The checkpointer and the merger: a write waits for them only if there is no room left.
            Waiting {
                file: "crates/tally-engine/src/embedded.rs",
                function: "checkpoint_until_stopped",
                callers: Callers::AreNotFollowed,
            },
            Waiting {
                file: "crates/tally-engine/src/embedded.rs",
                function: "pause_before_retry",
                callers: Callers::Wait,
            },
            Waiting {
                file: "crates/tally-engine/src/embedded.rs",
                function: "checkpoint_failed",
                callers: Callers::Wait,
            },
            Waiting {
                file: "crates/tally-engine/src/embedded.rs",
                function: "checkpoint",
                callers: Callers::AreNotFollowed,
            },
            Waiting { file: "crates/tally-engine/src/embedded.rs", function: "warm", callers: Callers::AreNotFollowed },
            // The marker only records what is already flushed.
            Waiting {
                file: "crates/tally-engine/src/embedded/mark.rs",
                function: "wait_for_pause",
                callers: Callers::Wait,
            },
            Waiting {
                file: "crates/tally-engine/src/embedded/mark.rs",
                function: "mark_until_stopped",
                callers: Callers::AreNotFollowed,
            },
        ],
        why: "group commit has no timer: wait for work or for the flush. A thread that may wait is listed in \
              crates/tally-tidy/src/timers.rs",
    },
    Rule {
        covers: is_test,
        banned: &SLEEPS,
        waiting: &[Waiting {
            file: "crates/tally-server/tests/harness/wait.rs",
            function: "wait_for",
            callers: Callers::AreNotFollowed,
        }],
        why: "wait for what you need, with the harness's `wait_for` if nothing announces it",
    },
];

fn is_engine(path: &str) -> bool {
    path.starts_with("crates/tally-engine/src/") && !is_test_file(path)
}

fn is_test(path: &str) -> bool {
    is_test_file(path)
}

/// Forbidden waits for time, and entries that are not needed.
#[must_use]
pub fn timers(files: &[TextFile]) -> Vec<Finding> {
    RULES.iter().flat_map(|rule| rule.check(files)).collect()
}

impl Rule {
    fn check(&self, files: &[TextFile]) -> Vec<Finding> {
        let covered: Vec<&TextFile> = files.iter().filter(|file| (self.covers)(&file.path)).collect();
        let mut findings = Vec::new();
        if covered.is_empty() {
            findings.push(Finding::new(HERE, 1, format!("covers no file: {}", self.why)));
        }
        let mut used = vec![false; self.waiting.len()];
        for file in covered {
            let source = SourceText::new(&file.text);
            let code = if is_test_file(&file.path) { source.code.clone() } else { source.shipped() };
            let functions = functions(&code);
            for named in paths(&code) {
                let Some(word) = self.words().find(|word| named.has_part(word)) else { continue };
                let around = enclosing(&functions, named.offset);
                match self.entry(&file.path, around) {
                    // The function's own name does not count as a use.
                    Some(at) => used[at] |= self.waiting[at].function != word,
                    None => {
                        let within = around.map_or("no function", |function| &function.name);
                        let what = format!("`{word}` in `{within}` waits for time: {}", self.why);
                        findings.push(Finding::new(&file.path, named.line, what));
                    }
                }
            }
        }
        let unused = self.waiting.iter().zip(used).filter(|(_, used)| !used);
        findings.extend(unused.map(|(entry, _)| {
            let Waiting { file, function, .. } = entry;
            Finding::new(HERE, 1, format!("no `{function}` in {file} waits for time: move or drop the entry"))
        }));
        findings
    }

    /// The names of all calls that wait for time.
    fn words(&self) -> impl Iterator<Item = &'static str> {
        let followed = self.waiting.iter().filter(|entry| entry.callers == Callers::Wait).map(|entry| entry.function);
        self.banned.iter().copied().chain(followed)
    }

    fn entry(&self, path: &str, around: Option<&Function>) -> Option<usize> {
        let around = around?;
        self.waiting.iter().position(|entry| entry.file == path && entry.function == around.name)
    }
}

/// This file, where the lists are.
const HERE: &str = "crates/tally-tidy/src/timers.rs";

#[cfg(test)]
mod tests {
    use super::*;

    /// The findings in these files, without those about unused entries.
    fn found(files: &[(&str, &str)]) -> Vec<(String, usize)> {
        let file = |(path, text): &(&str, &str)| TextFile { path: (*path).into(), text: (*text).into() };
        let files: Vec<_> = files.iter().map(file).collect();
        let findings = timers(&files).into_iter().filter(|finding| finding.file != HERE);
        findings.map(|finding| (finding.file, finding.line)).collect()
    }

    #[test]
    fn the_path_of_a_write_waits_for_no_timer() {
        let waits = [
            "fn f() {\n let _ = condvar.wait_timeout(guard, pause);\n}",
            "fn f() {\n let _ = mutex.try_lock_for(pause);\n}",
            "fn f() {\n self.flusher.wait_up_to(pause);\n}",
            "fn f() {\n std::thread::park_timeout(pause);\n}",
            "fn f() {\n let _ = receiver.recv_timeout(pause);\n}",
            "fn f() {\n self.pause_before_retry();\n}",
            "fn wait_up_to() {}\nfn checkpoint() { self.wait_up_to(pause); }",
        ];
        for path in ["embedded.rs", "embedded/flusher.rs", "machine.rs", "machine/seal.rs", "journal/writer.rs"] {
            let path = format!("crates/tally-engine/src/{path}");
            for wait in &waits[..6] {
                assert_eq!(found(&[(&path, wait)]), [(path.clone(), 2)], "{wait}");
            }
        }
        // An entry applies only to its own file.
        let elsewhere = "crates/tally-engine/src/machine.rs";
        assert_eq!(found(&[(elsewhere, waits[6])]), [(elsewhere.into(), 1), (elsewhere.into(), 2)]);
    }

    #[test]
    fn the_flusher_may_not_wait_where_the_checkpointer_may() {
        let path = "crates/tally-engine/src/embedded.rs";
        let loops = |name: &str| format!("fn {name}(&self) {{\n self.signal.wait_up_to(pause);\n}}");
        assert_eq!(found(&[(path, &loops("checkpoint_until_stopped"))]), []);
        assert_eq!(found(&[(path, &loops("flush_until_stopped"))]), [(path.into(), 2)]);
        assert_eq!(found(&[(path, "use std::thread::sleep;")]), [(path.into(), 1)]);
        let in_tests = "#[cfg(test)]\nmod tests { fn f() { signal.wait_up_to(pause); } }";
        assert_eq!(found(&[(path, in_tests)]), []);
    }

    #[test]
    fn an_entry_for_code_that_has_moved_is_found() {
        let of =
            |files: &[TextFile]| -> Vec<String> { timers(files).into_iter().map(|finding| finding.what).collect() };
        let has = |found: &[String], text: &str| found.iter().any(|what| what.contains(text));
        let nothing = of(&[]);
        assert!(
            has(&nothing, "covers no file") && has(&nothing, "no `wait_up_to` in crates/tally-engine/src/signal.rs")
        );
        // A function of that name that no longer waits, although it names itself.
        let path = "crates/tally-engine/src/signal.rs".to_owned();
        let idle = TextFile { path: path.clone(), text: "fn wait_up_to() { wait_up_to() }".into() };
        assert!(has(&of(&[idle]), "no `wait_up_to` in"));
        let waits = TextFile { path, text: "fn wait_up_to() { wait_timeout_while() }".into() };
        assert!(!has(&of(&[waits]), "no `wait_up_to` in"));
    }

    #[test]
    fn tests_pass_no_time() {
        let path = "crates/tally-server/tests/counting.rs";
        assert_eq!(found(&[(path, "fn f() {\n tokio::time::sleep(pause).await;\n}")]), [(path.into(), 2)]);
        assert_eq!(found(&[(path, "fn f() {\n thread::park_timeout(pause);\n}")]), [(path.into(), 2)]);
        assert_eq!(found(&[(path, "fn f() { receiver.recv_timeout(PATIENCE) }")]), []);
        let polls = "fn wait_for() { park_timeout(POLL_INTERVAL) }";
        assert_eq!(found(&[("crates/tally-server/tests/harness/wait.rs", polls)]), []);
    }
}
