//! The paths a piece of code names, with groups unfolded: `use std::{fs, io::{self, Read}}` names `std::fs`,
//! `std::io` and `std::io::Read`.

/// One path and where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathUse {
    /// Parts joined by `::`.
    pub path: String,
    /// Line, from 1.
    pub line: usize,
    /// Offset of its first part.
    pub offset: usize,
}

impl PathUse {
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
enum PathToken<'a> {
    Word(&'a str),
    PathSeparator,
    Other(u8),
}

/// Every path in `code`, which must be free of comments and literals.
#[must_use]
pub fn paths(code: &str) -> Vec<PathUse> {
    let tokens = tokens(code);
    let mut reader = PathReader { code, tokens: &tokens, at: 0, counted: (0, 1), found: Vec::new() };
    while reader.at < tokens.len() {
        match reader.peek() {
            Some(PathToken::Word(_)) => reader.path(""),
            _ => reader.at += 1,
        }
    }
    reader.found
}

fn tokens(code: &str) -> Vec<(usize, PathToken<'_>)> {
    let bytes = code.as_bytes();
    let mut tokens = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let word = bytes[at..].iter().take_while(|b| b.is_ascii_alphanumeric() || **b == b'_').count();
        let (token, len) = match bytes[at] {
            _ if word > 0 => (PathToken::Word(&code[at..at + word]), word),
            b':' if bytes.get(at + 1) == Some(&b':') => (PathToken::PathSeparator, 2),
            other => (PathToken::Other(other), 1),
        };
        if !matches!(token, PathToken::Other(b) if b.is_ascii_whitespace()) {
            tokens.push((at, token));
        }
        at += len;
    }
    tokens
}

struct PathReader<'a> {
    code: &'a str,
    tokens: &'a [(usize, PathToken<'a>)],
    at: usize,
    /// An offset and its line, from where counting continues.
    counted: (usize, usize),
    found: Vec<PathUse>,
}

impl<'a> PathReader<'a> {
    fn peek(&self) -> Option<PathToken<'a>> {
        self.tokens.get(self.at).map(|&(_, token)| token)
    }

    /// The line of an offset. Offsets must not decrease from call to call.
    fn line_at(&mut self, offset: usize) -> usize {
        let (from, line) = self.counted;
        let more = self.code.as_bytes()[from..offset].iter().filter(|&&byte| byte == b'\n').count();
        self.counted = (offset, line + more);
        line + more
    }

    /// Reads one path that continues `prefix`, unfolding the group it may end in.
    fn path(&mut self, prefix: &str) {
        let mut path = prefix.to_owned();
        let offset = self.tokens[self.at].0;
        while let Some(PathToken::Word(word)) = self.peek() {
            if word != "self" || path.is_empty() {
                path = if path.is_empty() { word.into() } else { format!("{path}::{word}") };
            }
            self.at += 1;
            if self.peek() != Some(PathToken::PathSeparator) {
                break;
            }
            self.at += 1;
            if self.peek() == Some(PathToken::Other(b'{')) {
                return self.group(&path);
            }
        }
        let line = self.line_at(offset);
        self.found.push(PathUse { path, line, offset });
    }

    fn group(&mut self, prefix: &str) {
        self.at += 1;
        while let Some(token) = self.peek() {
            match token {
                PathToken::Other(b'}') => {
                    self.at += 1;
                    return;
                }
                // A new name is not a path.
                PathToken::Word("as") => self.at += 2,
                PathToken::Word(_) => self.path(prefix),
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
