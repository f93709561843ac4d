//! Inline requests: words separated by spaces, in quotes if they contain spaces. People type these by hand.

use super::{Limits, Parser, ProtocolError, Span, Stop};

impl Parser {
    /// Parses one line and returns its length in bytes.
    #[cold]
    pub(super) fn inline(&mut self, input: &[u8], limits: &Limits) -> Result<usize, Stop> {
        let line = self.line(input, b'\n', ProtocolError::InlineTooBig)?;
        let taken = line.len() + 1;
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if is_http(line) {
            return Err(Stop::Broken(ProtocolError::Http));
        }
        self.spans.clear();
        self.words.clear();
        let mut rest = line;
        loop {
            rest = rest.get(blanks(rest)..).unwrap_or_default();
            if rest.is_empty() {
                return Ok(taken);
            }
            if self.spans.len() == limits.args_max {
                return Err(Stop::Broken(ProtocolError::InlineTooBig));
            }
            let start = self.words.len();
            let used = word(rest, &mut self.words).ok_or(Stop::Broken(ProtocolError::UnbalancedQuotes))?;
            self.spans.push(Span { start, end: self.words.len() });
            rest = rest.get(used..).unwrap_or_default();
        }
    }
}

/// Whether a line is what a browser sends: a request line, or the header that every request has.
fn is_http(line: &[u8]) -> bool {
    let mut words = line.split(|byte| is_blank(*byte)).filter(|word| !word.is_empty());
    let first = words.next().unwrap_or_default();
    if first.eq_ignore_ascii_case(b"post") || first.eq_ignore_ascii_case(b"host:") {
        return true;
    }
    let version = words.nth(1).unwrap_or_default();
    version.starts_with(b"HTTP/") && words.next().is_none()
}

/// A space according to `isspace` in C.
fn is_blank(byte: u8) -> bool {
    byte.is_ascii_whitespace() || byte == b'\x0b'
}

fn blanks(rest: &[u8]) -> usize {
    rest.iter().take_while(|byte| is_blank(**byte)).count()
}

/// Parses one word, without its quotes, and returns its length in bytes. `None` if a quote is unbalanced.
fn word(rest: &[u8], into: &mut Vec<u8>) -> Option<usize> {
    let mut at = 0;
    while let Some(&byte) = rest.get(at) {
        at += 1;
        match byte {
            b' ' | b'\n' | b'\r' | b'\t' => break,
            b'"' => return Some(at + closed(rest.get(at..)?, double_quoted, into)?),
            b'\'' => return Some(at + closed(rest.get(at..)?, single_quoted, into)?),
            _ => into.push(byte),
        }
    }
    Some(at)
}

/// The part up to the closing quote, which must be followed by a space or the end of the line.
fn closed(rest: &[u8], read: fn(&[u8], &mut Vec<u8>) -> Option<usize>, into: &mut Vec<u8>) -> Option<usize> {
    let used = read(rest, into)?;
    rest.get(used).is_none_or(|next| is_blank(*next)).then_some(used)
}

fn double_quoted(rest: &[u8], into: &mut Vec<u8>) -> Option<usize> {
    let mut at = 0;
    loop {
        match rest.get(at..)? {
            [b'"', ..] => return Some(at + 1),
            [b'\\', b'x', high, low, ..] if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => {
                into.push(hex(*high) << 4 | hex(*low));
                at += 4;
            }
            [b'\\', escaped, ..] => {
                into.push(match escaped {
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    b'b' => b'\x08',
                    b'a' => b'\x07',
                    other => *other,
                });
                at += 2;
            }
            [other, ..] => {
                into.push(*other);
                at += 1;
            }
            [] => return None,
        }
    }
}

fn single_quoted(rest: &[u8], into: &mut Vec<u8>) -> Option<usize> {
    let mut at = 0;
    loop {
        match rest.get(at..)? {
            [b'\'', ..] => return Some(at + 1),
            [b'\\', b'\'', ..] => {
                into.push(b'\'');
                at += 2;
            }
            [other, ..] => {
                into.push(*other);
                at += 1;
            }
            [] => return None,
        }
    }
}

/// The value of a byte that is known to be a digit.
fn hex(digit: u8) -> u8 {
    match digit {
        b'0'..=b'9' => digit - b'0',
        _ => (digit | 0x20) - b'a' + 10,
    }
}
