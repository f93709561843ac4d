//! A second parser, written to be obviously correct: it starts over with every byte and copies everything.

use crate::limits::{RESP_ARGS_MAX, RESP_BULK_BYTES_MAX, RESP_LINE_BYTES_MAX};
use crate::resp::wire::{Limits, Parsed, ProtocolError};

/// The result of a parser, with everything copied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    Request(Vec<Vec<u8>>, usize),
    Empty(usize),
    Incomplete,
    Broken(ProtocolError),
}

/// The result of the real parser.
pub fn verdict(parsed: &Parsed<'_>) -> Verdict {
    match parsed {
        Parsed::Request(args, taken) => Verdict::Request(args.iter().map(<[u8]>::to_vec).collect(), *taken),
        Parsed::Empty(taken) => Verdict::Empty(*taken),
        Parsed::Incomplete { .. } => Verdict::Incomplete,
        Parsed::Broken(error) => Verdict::Broken(*error),
    }
}

/// The request at the front of `input`.
pub fn parse(input: &[u8], limits: &Limits) -> Verdict {
    let parsed =
        if input.first().is_none_or(|first| *first == b'*') { array(input, limits) } else { inline(input, limits) };
    match parsed {
        Ok((args, taken)) if args.is_empty() => Verdict::Empty(taken),
        Ok((args, taken)) => Verdict::Request(args, taken),
        Err(verdict) => verdict,
    }
}

type Found = Result<(Vec<Vec<u8>>, usize), Verdict>;

fn array(input: &[u8], limits: &Limits) -> Found {
    let mut rest = input;
    let digits = line(&mut rest, ProtocolError::CountTooLong)?;
    let count = number(&digits[1..], i128::MIN, i32::MAX as usize, ProtocolError::InvalidCount)?;
    if count > limits.args_max as i128 {
        let is_authenticated = limits.args_max == RESP_ARGS_MAX;
        let why = if is_authenticated { ProtocolError::TooManyArguments } else { ProtocolError::UnauthenticatedCount };
        return Err(Verdict::Broken(why));
    }
    let mut args = Vec::new();
    for _ in 0..count {
        let header = line(&mut rest, ProtocolError::LengthTooLong)?;
        let first = header.first().copied().unwrap_or(b'\r');
        if first != b'$' {
            return Err(Verdict::Broken(ProtocolError::ExpectedBulk(first)));
        }
        let len = number(&header[1..], 0, RESP_BULK_BYTES_MAX, ProtocolError::InvalidLength)? as usize;
        if len > limits.bulk_bytes_max {
            return Err(Verdict::Broken(ProtocolError::UnauthenticatedLength));
        }
        if rest.len() < len + 2 {
            return Err(Verdict::Incomplete);
        }
        args.push(rest[..len].to_vec());
        rest = &rest[len + 2..];
    }
    Ok((args, input.len() - rest.len()))
}

fn line<'a>(rest: &mut &'a [u8], too_long: ProtocolError) -> Result<&'a [u8], Verdict> {
    let end = rest.iter().position(|byte| *byte == b'\r');
    if end.unwrap_or(rest.len()) > RESP_LINE_BYTES_MAX {
        return Err(Verdict::Broken(too_long));
    }
    let end = end.filter(|end| end + 1 < rest.len()).ok_or(Verdict::Incomplete)?;
    let line = &rest[..end];
    *rest = &rest[end + 2..];
    Ok(line)
}

fn number(digits: &[u8], min: i128, max: usize, error: ProtocolError) -> Result<i128, Verdict> {
    let text = String::from_utf8_lossy(digits);
    let canonical = text.parse::<i64>().ok().filter(|value| value.to_string() == text).map(i128::from);
    canonical.filter(|value| *value >= min && *value <= max as i128).ok_or(Verdict::Broken(error))
}

/// Splits a line with a small state machine, unlike the real parser.
fn inline(input: &[u8], limits: &Limits) -> Found {
    let end = input.iter().position(|byte| *byte == b'\n');
    if end.unwrap_or(input.len()) > RESP_LINE_BYTES_MAX {
        return Err(Verdict::Broken(ProtocolError::InlineTooBig));
    }
    let end = end.ok_or(Verdict::Incomplete)?;
    let mut line = input[..end].to_vec();
    if line.last() == Some(&b'\r') {
        line.pop();
    }
    let text: String = line.iter().map(|byte| char::from(*byte)).collect();
    let is_space = |c: char| matches!(c, ' ' | '\t' | '\n' | '\r' | '\x0b' | '\x0c');
    let plain: Vec<&str> = text.split(is_space).filter(|word| !word.is_empty()).collect();
    let first = plain.first().map(|word| word.to_lowercase()).unwrap_or_default();
    if first == "post" || first == "host:" || (plain.len() == 3 && plain[2].starts_with("HTTP/")) {
        return Err(Verdict::Broken(ProtocolError::Http));
    }
    let words = split(&line, limits.args_max)?;
    Ok((words, end + 1))
}

#[derive(PartialEq)]
enum Inside {
    Blanks,
    Word,
    Double,
    Single,
    Closed,
}

fn split(line: &[u8], words_max: usize) -> Result<Vec<Vec<u8>>, Verdict> {
    let unbalanced = || Verdict::Broken(ProtocolError::UnbalancedQuotes);
    let space = |byte: u8| matches!(byte, b' ' | b'\t' | b'\n' | b'\r' | 0x0b | 0x0c);
    let (mut words, mut word, mut inside, mut at) = (Vec::new(), Vec::new(), Inside::Blanks, 0);
    while at < line.len() {
        let byte = line[at];
        let next = line.get(at + 1).copied();
        at += 1;
        if inside == Inside::Blanks {
            if space(byte) {
                continue;
            }
            if words.len() == words_max {
                return Err(Verdict::Broken(ProtocolError::InlineTooBig));
            }
            inside = Inside::Word;
        }
        match (&inside, byte) {
            (Inside::Word, b' ' | b'\t' | b'\n' | b'\r') => {
                words.push(std::mem::take(&mut word));
                inside = Inside::Blanks;
            }
            (Inside::Word, b'"') => inside = Inside::Double,
            (Inside::Word, b'\'') => inside = Inside::Single,
            (Inside::Double, b'"') | (Inside::Single, b'\'') => inside = Inside::Closed,
            (Inside::Closed, byte) if space(byte) => {
                words.push(std::mem::take(&mut word));
                inside = Inside::Blanks;
            }
            (Inside::Closed, _) => return Err(unbalanced()),
            (Inside::Single, b'\\') if next == Some(b'\'') => {
                word.push(b'\'');
                at += 1;
            }
            (Inside::Double, b'\\') if next.is_some() => {
                let hex = line.get(at + 1..at + 3).filter(|hex| hex.iter().all(u8::is_ascii_hexdigit));
                match (next, hex) {
                    (Some(b'x'), Some(hex)) => {
                        let hex = String::from_utf8_lossy(hex).into_owned();
                        word.push(u8::from_str_radix(&hex, 16).unwrap_or(0));
                        at += 3;
                    }
                    (escaped, _) => {
                        let escaped = escaped.unwrap_or(0);
                        let known = [(b'n', b'\n'), (b'r', b'\r'), (b't', b'\t'), (b'b', 8), (b'a', 7)];
                        word.push(known.iter().find(|(from, _)| *from == escaped).map_or(escaped, |(_, to)| *to));
                        at += 1;
                    }
                }
            }
            (_, byte) => word.push(byte),
        }
    }
    match inside {
        Inside::Blanks => {}
        Inside::Word | Inside::Closed => words.push(word),
        Inside::Double | Inside::Single => return Err(unbalanced()),
    }
    Ok(words)
}
