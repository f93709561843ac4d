//! Patterns for keys and names, as Redis matches them: `*`, `?`, `[a-z]`, `[^ab]`, and `\` to escape.
//!
//! Matching backtracks only to the last `*`. That is enough, because everything else matches exactly one byte, and it
//! bounds the work by the product of both lengths, whatever the pattern.

use crate::limits::RESP_PATTERN_BYTES_MAX;

/// A pattern of bounded length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern(Vec<u8>);

impl Pattern {
    /// A pattern as a client sent it. If it is too long, the text of the error.
    pub fn parse(pattern: &[u8]) -> Result<Pattern, String> {
        match pattern.len() {
            0..=RESP_PATTERN_BYTES_MAX => Ok(Pattern(pattern.to_vec())),
            len => Err(format!("ERR the pattern has {len} bytes; it can have at most {RESP_PATTERN_BYTES_MAX}")),
        }
    }

    /// Whether it matches all of `text`.
    pub fn matches(&self, text: &[u8], case: Case) -> bool {
        matches(&self.0, text, case)
    }

    /// The literal prefix of every text that matches.
    pub fn prefix(&self) -> Vec<u8> {
        self.0.iter().copied().take_while(|byte| !matches!(byte, b'*' | b'?' | b'[' | b'\\')).collect()
    }
}

/// Whether matching is case-sensitive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Case {
    /// It is.
    Sensitive,
    /// It is not.
    Insensitive,
}

/// Whether `pattern` matches all of `text`.
pub fn matches(pattern: &[u8], text: &[u8], case: Case) -> bool {
    let (mut rest, mut at) = (pattern, 0);
    // The pattern after the last `*`, and where in the text it was last tried.
    let mut star: Option<(&[u8], usize)> = None;
    loop {
        if let Some((b'*', behind)) = rest.split_first() {
            star = Some((behind, at));
            rest = behind;
            continue;
        }
        let Some(&byte) = text.get(at) else { return rest.is_empty() };
        if let Some(behind) = one(rest, byte, case) {
            rest = behind;
            at += 1;
            continue;
        }
        let Some((behind, tried)) = star else { return false };
        (rest, at) = (behind, tried + 1);
        star = Some((behind, at));
    }
}

/// Matches one byte and returns the rest of the pattern.
fn one(pattern: &[u8], byte: u8, case: Case) -> Option<&[u8]> {
    match pattern {
        [b'?', rest @ ..] => Some(rest),
        [b'[', rest @ ..] => class(rest, byte, case),
        [b'\\', literal, rest @ ..] | [literal, rest @ ..] => same(*literal, byte, case).then_some(rest),
        [] => None,
    }
}

/// Matches one byte against what follows `[`. A class that is not closed ends with the pattern.
fn class(pattern: &[u8], byte: u8, case: Case) -> Option<&[u8]> {
    let (is_negated, mut rest) = match pattern {
        [b'^', rest @ ..] => (true, rest),
        _ => (false, pattern),
    };
    let mut is_in = false;
    loop {
        rest = match rest {
            [b'\\', literal, rest @ ..] => {
                is_in |= *literal == byte;
                rest
            }
            [b']', rest @ ..] => return (is_in != is_negated).then_some(rest),
            [from, b'-', to, rest @ ..] => {
                is_in |= is_between(*from, *to, byte, case);
                rest
            }
            [literal, rest @ ..] => {
                is_in |= same(*literal, byte, case);
                rest
            }
            [] => return (is_in != is_negated).then_some(rest),
        };
    }
}

fn is_between(from: u8, to: u8, byte: u8, case: Case) -> bool {
    let (from, to) = (from.min(to), from.max(to));
    let (from, to, byte) = (folded(from, case), folded(to, case), folded(byte, case));
    from <= byte && byte <= to
}

fn same(literal: u8, byte: u8, case: Case) -> bool {
    folded(literal, case) == folded(byte, case)
}

fn folded(byte: u8, case: Case) -> u8 {
    match case {
        Case::Sensitive => byte,
        Case::Insensitive => byte.to_ascii_lowercase(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    /// Matches by exhaustive backtracking.
    fn naive(pattern: &[u8], text: &[u8], case: Case) -> bool {
        match (pattern, text) {
            ([], _) => text.is_empty(),
            ([b'*', rest @ ..], _) => (0..=text.len()).any(|skipped| naive(rest, &text[skipped..], case)),
            (_, []) => false,
            ([b'?', rest @ ..], _) => naive(rest, &text[1..], case),
            ([b'[', rest @ ..], _) => {
                let negated = rest.first() == Some(&b'^');
                let mut at = usize::from(negated);
                let mut chosen = false;
                while at < rest.len() && rest[at] != b']' {
                    if rest[at] == b'\\' && at + 1 < rest.len() {
                        chosen |= rest[at + 1] == text[0];
                        at += 2;
                    } else if at + 2 < rest.len() && rest[at + 1] == b'-' {
                        let (low, high) = (rest[at].min(rest[at + 2]), rest[at].max(rest[at + 2]));
                        chosen |= (fold(low, case)..=fold(high, case)).contains(&fold(text[0], case));
                        at += 3;
                    } else {
                        chosen |= fold(rest[at], case) == fold(text[0], case);
                        at += 1;
                    }
                }
                chosen != negated && naive(rest.get(at + 1..).unwrap_or_default(), &text[1..], case)
            }
            ([b'\\', literal, rest @ ..], _) | ([literal, rest @ ..], _) => {
                fold(*literal, case) == fold(text[0], case) && naive(rest, &text[1..], case)
            }
        }
    }

    fn fold(byte: u8, case: Case) -> u8 {
        if case == Case::Insensitive && byte.is_ascii_uppercase() { byte + 32 } else { byte }
    }

    #[test]
    fn patterns_match_like_in_redis() {
        for (pattern, text) in [
            ("*", ""),
            ("*", "abc"),
            ("a*c", "abbc"),
            ("a**c", "ac"),
            ("h?llo", "hello"),
            ("h[ae]llo", "hallo"),
            ("h[^e]llo", "hallo"),
            ("h[a-b]llo", "hbllo"),
            ("h[b-a]llo", "hallo"),
            (r"h\*llo", "h*llo"),
            (r"[\]]", "]"),
            ("[a", "a"),
            ("[^", "x"),
            (r"a\", r"a\"),
            ("*:*:x", "a:b:c:x"),
        ] {
            assert!(matches(pattern.as_bytes(), text.as_bytes(), Case::Sensitive), "{pattern} {text}");
        }
        for (pattern, text) in [
            ("", "a"),
            ("a", ""),
            ("?", ""),
            ("h[^a]llo", "hallo"),
            (r"h\?llo", "hello"),
            ("[", "["),
            ("a*b", "ac"),
            ("A", "a"),
        ] {
            assert!(!matches(pattern.as_bytes(), text.as_bytes(), Case::Sensitive), "{pattern} {text}");
        }
        assert!(matches(b"Get[A-C]", b"gETb", Case::Insensitive));
    }

    #[test]
    fn a_hostile_pattern_terminates() {
        let pattern = b"*a".repeat(200);
        let text = [vec![b'a'; 512], vec![b'b']].concat();
        assert!(!matches(&pattern, &text, Case::Sensitive));
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 4096, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn matching_agrees_with_exhaustive_backtracking(
            pattern in vec(proptest::sample::select(b"ab*?[]^-\\Ac".as_slice()), 0..10),
            text in vec(proptest::sample::select(b"abAc]-\\".as_slice()), 0..8),
        ) {
            for case in [Case::Sensitive, Case::Insensitive] {
                prop_assert_eq!(matches(&pattern, &text, case), naive(&pattern, &text, case));
            }
        }
    }
}
