//! The paths a piece of code names, with groups unfolded: `use std::{fs, io::{self, Read}}` names `std::fs`,
//! `std::io` and `std::io::Read`.

use crate::source::line_at;

/// One path and where it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// Parts joined by `::`.
    pub path: String,
    /// Line, from 1.
    pub line: usize,
}

impl Named {
    /// Whether the path is `prefix` or lies below it.
    #[must_use]
    pub fn is_within(&self, prefix: &str) -> bool {
        self.path.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
    }

    /// Whether `word` is one of the parts.
    #[must_use]
    pub fn has_part(&self, word: &str) -> bool {
        self.path.split("::").any(|part| part == word)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token<'a> {
    Word(&'a str),
    PathSeparator,
    Other(u8),
}

/// Every path in `code`, which must be free of comments and literals.
#[must_use]
pub fn paths(code: &str) -> Vec<Named> {
    let tokens = tokens(code);
    let mut reader = Reader { code, tokens: &tokens, at: 0, found: Vec::new() };
    while reader.at < tokens.len() {
        match reader.peek() {
            Some(Token::Word(_)) => reader.path(""),
            _ => reader.at += 1,
        }
    }
    reader.found
}

fn tokens(code: &str) -> Vec<(usize, Token<'_>)> {
    let bytes = code.as_bytes();
    let mut tokens = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let word = bytes[at..].iter().take_while(|b| b.is_ascii_alphanumeric() || **b == b'_').count();
        let (token, len) = match bytes[at] {
            _ if word > 0 => (Token::Word(&code[at..at + word]), word),
            b':' if bytes.get(at + 1) == Some(&b':') => (Token::PathSeparator, 2),
            other => (Token::Other(other), 1),
        };
        if !matches!(token, Token::Other(b) if b.is_ascii_whitespace()) {
            tokens.push((at, token));
        }
        at += len;
    }
    tokens
}

struct Reader<'a> {
    code: &'a str,
    tokens: &'a [(usize, Token<'a>)],
    at: usize,
    found: Vec<Named>,
}

impl<'a> Reader<'a> {
    fn peek(&self) -> Option<Token<'a>> {
        self.tokens.get(self.at).map(|&(_, token)| token)
    }

    /// Reads one path that continues `prefix`, unfolding the group it may end in.
    fn path(&mut self, prefix: &str) {
        let mut path = prefix.to_owned();
        let offset = self.tokens[self.at].0;
        while let Some(Token::Word(word)) = self.peek() {
            if word != "self" || path.is_empty() {
                path = if path.is_empty() { word.into() } else { format!("{path}::{word}") };
            }
            self.at += 1;
            if self.peek() != Some(Token::PathSeparator) {
                break;
            }
            self.at += 1;
            if self.peek() == Some(Token::Other(b'{')) {
                return self.group(&path);
            }
        }
        self.found.push(Named { path, line: line_at(self.code, offset) });
    }

    fn group(&mut self, prefix: &str) {
        self.at += 1;
        while let Some(token) = self.peek() {
            match token {
                Token::Other(b'}') => {
                    self.at += 1;
                    return;
                }
                // A new name is not a path.
                Token::Word("as") => self.at += 2,
                Token::Word(_) => self.path(prefix),
                _ => self.at += 1,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(code: &str) -> Vec<String> {
        paths(code).into_iter().map(|named| named.path).collect()
    }

    #[test]
    fn groups_are_unfolded() {
        let found = named("use std::{fs as files, io::{self, Read}, net::*};");
        assert_eq!(found, ["use", "std::fs", "std::io", "std::io::Read", "std::net"]);
    }

    #[test]
    fn paths_in_expressions_are_found_with_their_line() {
        let found = paths("fn f() {\n  let t = std::time::Instant::now();\n}");
        let named = found.iter().find(|named| named.has_part("Instant")).unwrap();
        assert_eq!((named.path.as_str(), named.line), ("std::time::Instant::now", 2));
        assert!(named.is_within("std::time") && !named.is_within("std::tim"));
    }
}
