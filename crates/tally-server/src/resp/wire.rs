//! Parses the requests of a connection, without copying them and without reading a byte twice.
//!
//! A request is either an array of bulk strings, `*2\r\n$4\r\nINCR\r\n$1\r\na\r\n`, or one line of words, `INCR a\r\n`.
//! Requests are accepted and refused as by Redis, with the same errors. Three things are stricter: a line longer than the
//! limit is refused even if it arrives at once, the words of a line are limited like the arguments of an array, and a zero
//! byte does not end a line.
//!
//! The caller keeps the bytes and passes all of them, from the first byte of the request on. If the request is incomplete,
//! the parser remembers how far it got, so a request that arrives in a thousand pieces costs no more than one that arrives
//! whole. Nothing is allocated for a length that was only announced.

mod error;
mod inline;
mod number;
#[cfg(test)]
mod tests;

pub use error::ProtocolError;
pub use number::integer;

use crate::limits::{
    RESP_ARGS_MAX, RESP_BULK_BYTES_MAX, RESP_LINE_BYTES_MAX, RESP_SCRATCH_BYTES_KEPT, RESP_UNAUTHENTICATED_ARGS_MAX,
    RESP_UNAUTHENTICATED_BULK_BYTES_MAX,
};

/// Every element ends with these two bytes. As in Redis, they are not checked after a bulk string.
const LINE_END: &[u8] = b"\r\n";

/// How large a request may be, which depends on whether the client is authenticated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Longest argument.
    pub bulk_bytes_max: usize,
    /// Maximum number of arguments, including the command's name.
    pub args_max: usize,
}

impl Limits {
    /// For authenticated clients. No client gets more than this.
    pub const AUTHENTICATED: Limits = Limits { bulk_bytes_max: RESP_BULK_BYTES_MAX, args_max: RESP_ARGS_MAX };
    /// For clients that have not sent `AUTH` or `HELLO` yet.
    #[cfg_attr(not(test), expect(dead_code, reason = "there is no authentication yet"))]
    pub const UNAUTHENTICATED: Limits =
        Limits { bulk_bytes_max: RESP_UNAUTHENTICATED_BULK_BYTES_MAX, args_max: RESP_UNAUTHENTICATED_ARGS_MAX };
}

/// The result of parsing the bytes so far.
#[derive(Debug)]
pub enum Parsed<'a> {
    /// A request with at least one argument, and its length in bytes.
    Request(Args<'a>, usize),
    /// An empty request of this many bytes. It gets no answer.
    Empty(usize),
    /// The request is incomplete: at least `needed` more bytes are missing.
    Incomplete {
        /// At least one.
        needed: usize,
    },
    /// The stream is invalid from here on: answer and close.
    Broken(ProtocolError),
}

/// The arguments of one request, the command's name first.
#[derive(Clone, Copy, Debug)]
pub struct Args<'a> {
    bytes: &'a [u8],
    spans: &'a [Span],
}

#[derive(Clone, Copy, Debug)]
struct Span {
    start: usize,
    end: usize,
}

impl<'a> Args<'a> {
    /// How many there are. Never zero.
    pub fn len(&self) -> usize {
        self.spans.len()
    }

    /// The argument at `index`; the command's name is at 0.
    pub fn get(&self, index: usize) -> Option<&'a [u8]> {
        let span = self.spans.get(index)?;
        self.bytes.get(span.start..span.end)
    }

    /// The command's name.
    pub fn name(&self) -> &'a [u8] {
        self.get(0).unwrap_or_default()
    }

    /// All of them in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &'a [u8]> + use<'a> {
        let bytes = self.bytes;
        self.spans.iter().map(move |span| bytes.get(span.start..span.end).unwrap_or_default())
    }
}

/// A complete request as sent, and the bytes after it.
#[derive(Clone, Copy, Debug)]
pub struct Sent<'a> {
    /// The bytes of the request.
    pub request: &'a [u8],
    /// The bytes after it.
    pub behind: &'a [u8],
}

impl Sent<'_> {
    /// How many times in a row the request was sent, up to `max`; 1 if something else follows. Equal bytes are equal
    /// requests, so all but the first need not be parsed.
    #[inline]
    pub fn times(&self, max: u32) -> u32 {
        let len = self.request.len().max(1);
        let whole = (self.behind.len() / len).min(max.saturating_sub(1) as usize);
        let run = self.behind.get(..whole * len).unwrap_or_default();
        if whole == 0 || !run.starts_with(self.request) {
            return 1;
        }
        // Usually all of the input repeats: then it equals itself, shifted by one request.
        let again = match run.get(len..) == run.get(..run.len() - len) {
            true => whole,
            false => run.chunks_exact(len).take_while(|next| *next == self.request).count(),
        };
        u32::try_from(1 + again).unwrap_or(max)
    }
}

/// Why there is no request: it is incomplete or invalid.
enum Stop {
    Incomplete(usize),
    Broken(ProtocolError),
}

/// The parser of one connection.
#[derive(Debug, Default)]
pub struct Parser {
    /// Where the arguments found so far are.
    spans: Vec<Span>,
    /// The words of an inline request, without their quotes. Spans point here instead of into the input.
    words: Vec<u8>,
    /// Arguments still to come. Zero between requests.
    missing: usize,
    /// Where the next element begins, when arguments are missing.
    at: usize,
    /// The length of the bulk string that begins at `at`, once its line was read.
    bulk: Option<usize>,
    /// How many bytes of the current line were searched for its end.
    searched: usize,
}

impl Parser {
    /// The request at the front of `input`.
    ///
    /// After `Incomplete`, call again with the same bytes followed by more. After `Request` and `Empty`, the next input
    /// begins after their bytes. After `Broken`, do not call again.
    #[inline]
    pub fn next<'a>(&'a mut self, input: &'a [u8], limits: &Limits) -> Parsed<'a> {
        let is_inline = self.missing == 0 && input.first().is_some_and(|first| *first != b'*');
        let taken = if is_inline { self.inline(input, limits) } else { self.array(input, limits) };
        match taken {
            Ok(taken) if self.spans.is_empty() => Parsed::Empty(taken),
            Ok(taken) => {
                let bytes = if is_inline { &self.words } else { input };
                Parsed::Request(Args { bytes, spans: &self.spans }, taken)
            }
            Err(Stop::Incomplete(needed)) => Parsed::Incomplete { needed },
            Err(Stop::Broken(error)) => Parsed::Broken(error),
        }
    }

    /// Frees memory that a large request needed. For connections that become idle between requests.
    pub fn trim(&mut self) {
        if self.missing == 0 {
            self.spans.clear();
            self.words.clear();
            self.spans.shrink_to(RESP_SCRATCH_BYTES_KEPT / size_of::<Span>());
            self.words.shrink_to(RESP_SCRATCH_BYTES_KEPT);
        }
    }

    fn array(&mut self, input: &[u8], limits: &Limits) -> Result<usize, Stop> {
        if self.missing == 0 {
            self.spans.clear();
            let (count, end) = self.count(input, limits)?;
            if count == 0 {
                return Ok(end);
            }
            (self.missing, self.at) = (count, end);
        }
        while self.missing > 0 {
            let len = match self.bulk {
                Some(len) => len,
                None => self.bulk_len(input, limits)?,
            };
            let end = self.at + len;
            let next = end + LINE_END.len();
            if input.len() < next {
                self.bulk = Some(len);
                return Err(Stop::Incomplete(next - input.len()));
            }
            self.spans.push(Span { start: self.at, end });
            self.at = next;
            self.bulk = None;
            self.missing -= 1;
        }
        Ok(self.at)
    }

    /// How many arguments `*…` announces, and where its line ends. A count below zero means none.
    #[inline]
    fn count(&mut self, input: &[u8], limits: &Limits) -> Result<(usize, usize), Stop> {
        if let Some((count, end)) = number::short(input, 1)
            && count <= limits.args_max
        {
            self.searched = 0;
            return Ok((count, end));
        }
        let line = self.length_line(input, 0, ProtocolError::CountTooLong)?;
        let count = number::integer(line.get(1..).unwrap_or_default())
            .filter(|count| *count <= i64::from(i32::MAX))
            .ok_or(Stop::Broken(ProtocolError::InvalidCount))?;
        let count = usize::try_from(count).unwrap_or(0);
        if count > limits.args_max {
            let is_unauthenticated = limits.args_max < RESP_ARGS_MAX;
            let why =
                if is_unauthenticated { ProtocolError::UnauthenticatedCount } else { ProtocolError::TooManyArguments };
            return Err(Stop::Broken(why));
        }
        Ok((count, line.len() + LINE_END.len()))
    }

    /// The length that the line `$…` at `at` announces. Moves `at` after that line.
    #[inline]
    fn bulk_len(&mut self, input: &[u8], limits: &Limits) -> Result<usize, Stop> {
        if input.get(self.at) == Some(&b'$')
            && let Some((len, end)) = number::short(input, self.at + 1)
            && len <= limits.bulk_bytes_max
        {
            self.searched = 0;
            self.at = end;
            return Ok(len);
        }
        let line = self.length_line(input, self.at, ProtocolError::LengthTooLong)?;
        let digits = match line.split_first() {
            Some((b'$', digits)) => digits,
            // An empty line: its first byte is its end.
            other => return Err(Stop::Broken(ProtocolError::ExpectedBulk(other.map_or(b'\r', |(first, _)| *first)))),
        };
        let len = number::integer(digits)
            .and_then(|len| usize::try_from(len).ok())
            .filter(|len| *len <= RESP_BULK_BYTES_MAX)
            .ok_or(Stop::Broken(ProtocolError::InvalidLength))?;
        if len > limits.bulk_bytes_max {
            return Err(Stop::Broken(ProtocolError::UnauthenticatedLength));
        }
        self.at += line.len() + LINE_END.len();
        Ok(len)
    }

    /// The line that begins at `from`, without its end. As in Redis, `\r` ends it and one byte follows.
    #[cold]
    fn length_line<'i>(&mut self, input: &'i [u8], from: usize, too_long: ProtocolError) -> Result<&'i [u8], Stop> {
        let rest = input.get(from..).unwrap_or_default();
        let line = self.line(rest, b'\r', too_long)?;
        if rest.len() < line.len() + LINE_END.len() {
            self.searched = line.len();
            return Err(Stop::Incomplete(1));
        }
        Ok(line)
    }

    /// The bytes before the first `end`, which must come within the limit for a line.
    fn line<'i>(&mut self, rest: &'i [u8], end: u8, too_long: ProtocolError) -> Result<&'i [u8], Stop> {
        let unsearched = rest.get(self.searched..).unwrap_or_default();
        let found = unsearched.iter().position(|byte| *byte == end).map(|at| self.searched + at);
        if found.unwrap_or(rest.len()) > RESP_LINE_BYTES_MAX {
            return Err(Stop::Broken(too_long));
        }
        match found.and_then(|at| rest.get(..at)) {
            Some(line) => {
                self.searched = 0;
                Ok(line)
            }
            None => {
                self.searched = rest.len();
                Err(Stop::Incomplete(1))
            }
        }
    }
}
