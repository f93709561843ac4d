//! Private words that prose must not use, because the field has standard ones.
//!
//! Comments of Rust files are checked, and all of the Makefile, the CI script and the documents.

use crate::Finding;
use crate::source::{SourceText, line_at};
use crate::tree::TextFile;

/// A word or phrase in lower case, and what to write instead. A space stands for anything between two words.
pub type Wording = (&'static str, &'static str);

/// The words. `looks up` is fine, so `looks` is not listed by itself.
pub const BANNED: &[Wording] = &[
    ("a look", "a read, a lookup"),
    ("as typed", "as given"),
    ("asker", "caller"),
    ("fares", "the health, the state"),
    ("for want of", "because there is no"),
    ("front door", "protocol"),
    ("front doors", "protocols"),
    ("glance", "snapshot"),
    ("heed", "apply, record"),
    ("is warned of", "logs a warning"),
    ("journal's house", "what is done: reserves the next segment and trims old ones"),
    ("likewise", "also, too"),
    ("looked at", "read, checked"),
    ("looks at", "reads, checks"),
    ("only looks", "only reads"),
    ("put off", "deferred"),
    ("so many", "the number, by name"),
    ("was typed", "was given"),
    ("which cannot work", "what the limit is"),
    ("whoever", "the caller, the thread, clients that"),
];

/// Banned words in the comments of a Rust file, or anywhere in a document.
#[must_use]
pub fn words(file: &TextFile, banned: &[Wording]) -> Vec<Finding> {
    let is_rust = file.path.ends_with(".rs");
    let prose = if is_rust { SourceText::new(&file.text).comments } else { file.text.clone() };
    let spoken = spoken(&prose);
    let mut findings = Vec::new();
    for (phrase, instead) in banned {
        let wanted: Vec<&str> = phrase.split(' ').collect();
        for said in spoken.windows(wanted.len()) {
            if said.iter().zip(&wanted).all(|((_, word), wanted)| word == wanted) {
                let line = line_at(&prose, said[0].0);
                findings.push(Finding::new(&file.path, line, format!("`{phrase}`: write {instead}")));
            }
        }
    }
    findings.sort_by_key(|finding| finding.line);
    findings
}

/// The words of a text in lower case, with their offsets. Punctuation and the ends of lines separate them.
fn spoken(prose: &str) -> Vec<(usize, String)> {
    let is_word = |c: char| c.is_alphanumeric() || c == '\'' || c == '_';
    let mut words = Vec::new();
    let mut start = None;
    for (at, c) in prose.char_indices().chain([(prose.len(), ' ')]) {
        match (is_word(c), start) {
            (true, None) => start = Some(at),
            (false, Some(from)) => {
                words.push((from, prose[from..at].to_lowercase()));
                start = None;
            }
            _ => {}
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str, banned: &[Wording]) -> Vec<usize> {
        let file = TextFile { path: path.into(), text: text.into() };
        words(&file, banned).into_iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn every_banned_word_is_found() {
        for wording in BANNED {
            let text = format!("//! A.\n/// It is the {} of it.\nfn f() {{}}", wording.0.to_uppercase());
            assert_eq!(found("a.rs", &text, &[*wording]), [2], "{}", wording.0);
        }
    }

    #[test]
    fn phrases_are_found_across_lines_and_in_documents() {
        let banned = [("front door", "protocol")];
        assert_eq!(found("a.rs", "//! A.\n// The front\n// door.", &banned), [2]);
        assert_eq!(found("ARCHITECTURE.md", "1. **Front door**, `src`", &banned), [1]);
        assert_eq!(found("a.rs", "// a front-door", &banned), [1]);
    }

    #[test]
    fn code_and_longer_words_are_not_prose() {
        let banned = [("heed", "apply")];
        assert!(found("a.rs", "fn heed() { \"heed\" }", &banned).is_empty());
        assert!(found("a.rs", "// heedless, `heed_it`", &banned).is_empty());
    }
}
