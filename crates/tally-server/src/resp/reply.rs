//! Writes replies, byte for byte as Redis does.

/// The version of the protocol a connection speaks. `HELLO` changes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ProtocolVersion {
    /// The version of every new connection: no maps, sets, doubles or booleans, and two kinds of null.
    #[default]
    V2,
    /// The version that `HELLO 3` selects.
    V3,
}

/// Appends replies to a buffer. After opening an array, a map or a set, write its elements.
#[derive(Debug)]
pub struct Reply<'a> {
    out: &'a mut Vec<u8>,
    version: ProtocolVersion,
}

impl<'a> Reply<'a> {
    /// A writer at the end of `out`.
    pub fn new(out: &'a mut Vec<u8>, version: ProtocolVersion) -> Reply<'a> {
        Reply { out, version }
    }

    /// `+OK`.
    #[inline]
    pub fn ok(&mut self) {
        self.out.extend_from_slice(b"+OK\r\n");
    }

    /// A short text without line breaks, such as `PONG`.
    pub fn simple(&mut self, text: &str) {
        debug_assert!(!text.contains(['\r', '\n']), "a simple string is one line");
        self.line(b'+', text.as_bytes());
    }

    /// An error. The text begins with its code, such as `ERR`; line breaks in it become spaces.
    pub fn error(&mut self, text: impl AsRef<[u8]>) {
        let text = text.as_ref();
        let kept = text.iter().rposition(|byte| !is_line_break(*byte)).map_or(0, |last| last + 1);
        self.out.push(b'-');
        self.out.extend(text.iter().take(kept).map(|byte| if is_line_break(*byte) { b' ' } else { *byte }));
        self.end();
    }

    /// An integer.
    #[inline]
    pub fn integer(&mut self, value: i64) {
        self.out.push(b':');
        self.digits(value);
        self.end();
    }

    /// This many integers, each `step` more than the one before.
    pub fn integers(&mut self, first: i64, step: i64, count: u32) {
        if step != 1 || first < 0 {
            let nth = |nth: u32| first.wrapping_add(step.wrapping_mul(i64::from(nth)));
            return (0..count).for_each(|number| self.integer(nth(number)));
        }
        // Incrementing the digits mostly changes the last one, which is cheaper than formatting each number.
        let mut line = Line::new(first);
        self.out.reserve(count as usize * LINE_BYTES);
        for _ in 0..count {
            let end = self.out.len() + line.len;
            // Copies the whole buffer: a copy of fixed size is two instructions.
            self.out.extend_from_slice(&line.bytes);
            self.out.truncate(end);
            line.increment();
        }
    }

    /// A string of any bytes.
    #[inline]
    pub fn bulk(&mut self, bytes: &[u8]) {
        self.header(b'$', bytes.len());
        self.out.extend_from_slice(bytes);
        self.end();
    }

    /// An integer as a string, as `GET` answers.
    #[inline]
    pub fn bulk_integer(&mut self, value: i64) {
        self.bulk(itoa::Buffer::new().format(value).as_bytes());
    }

    /// A null in place of a string.
    #[inline]
    pub fn null(&mut self) {
        self.out.extend_from_slice(match self.version {
            ProtocolVersion::V2 => b"$-1\r\n",
            ProtocolVersion::V3 => b"_\r\n",
        });
    }

    /// A null in place of an array.
    pub fn null_array(&mut self) {
        self.out.extend_from_slice(match self.version {
            ProtocolVersion::V2 => b"*-1\r\n".as_slice(),
            ProtocolVersion::V3 => b"_\r\n",
        });
    }

    /// Opens an array of `len` elements.
    #[inline]
    pub fn array(&mut self, len: usize) {
        self.header(b'*', len);
    }

    /// Opens a map of `len` pairs: key, value, key, value. In version 2 it is a flat array.
    pub fn map(&mut self, len: usize) {
        match self.version {
            ProtocolVersion::V2 => self.header(b'*', len * 2),
            ProtocolVersion::V3 => self.header(b'%', len),
        }
    }

    /// Opens a set of `len` elements. In version 2 it is an array.
    pub fn set(&mut self, len: usize) {
        match self.version {
            ProtocolVersion::V2 => self.header(b'*', len),
            ProtocolVersion::V3 => self.header(b'~', len),
        }
    }

    /// A boolean. In version 2 it is 1 or 0.
    pub fn boolean(&mut self, value: bool) {
        match self.version {
            ProtocolVersion::V2 => self.integer(i64::from(value)),
            ProtocolVersion::V3 => self.line(b'#', if value { b"t" } else { b"f" }),
        }
    }

    /// Human-readable text, such as the reply of `INFO`. In version 2 it is a string.
    pub fn verbatim(&mut self, text: &str) {
        match self.version {
            ProtocolVersion::V2 => self.bulk(text.as_bytes()),
            ProtocolVersion::V3 => {
                const FORMAT: &[u8] = b"txt:";
                self.header(b'=', FORMAT.len() + text.len());
                self.out.extend_from_slice(FORMAT);
                self.out.extend_from_slice(text.as_bytes());
                self.end();
            }
        }
    }

    fn line(&mut self, kind: u8, text: &[u8]) {
        self.out.push(kind);
        self.out.extend_from_slice(text);
        self.end();
    }

    #[inline]
    fn header(&mut self, kind: u8, len: usize) {
        self.out.push(kind);
        self.digits(i64::try_from(len).unwrap_or(i64::MAX));
        self.end();
    }

    #[inline]
    fn digits(&mut self, value: i64) {
        // Most lengths and many counts have one digit.
        if let Ok(digit @ 0..=9) = u8::try_from(value) {
            self.out.push(b'0' + digit);
            return;
        }
        self.out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
    }

    #[inline]
    fn end(&mut self) {
        self.out.extend_from_slice(b"\r\n");
    }
}

/// Enough for a colon, 19 digits and a line end.
const LINE_BYTES: usize = 24;

/// A non-negative integer as a reply.
struct Line {
    bytes: [u8; LINE_BYTES],
    len: usize,
}

impl Line {
    fn new(value: i64) -> Line {
        let mut line = Line { bytes: [0; LINE_BYTES], len: 0 };
        for byte in [b":", itoa::Buffer::new().format(value).as_bytes(), b"\r\n"].into_iter().flatten() {
            line.push(*byte);
        }
        line
    }

    fn push(&mut self, byte: u8) {
        if let Some(place) = self.bytes.get_mut(self.len) {
            *place = byte;
            self.len += 1;
        }
    }

    /// Increments it.
    #[inline]
    fn increment(&mut self) {
        let (_, digits) = self.bytes.split_at_mut(1);
        let digits = digits.get_mut(..self.len - 3).unwrap_or_default();
        for digit in digits.iter_mut().rev() {
            if *digit < b'9' {
                *digit += 1;
                return;
            }
            *digit = b'0';
        }
        // All digits were nines.
        if let Some(first) = digits.first_mut() {
            *first = b'1';
        }
        self.len -= 2;
        b"0\r\n".iter().for_each(|byte| self.push(*byte));
    }
}

fn is_line_break(byte: u8) -> bool {
    matches!(byte, b'\r' | b'\n')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(version: ProtocolVersion, write: impl FnOnce(&mut Reply<'_>)) -> String {
        let mut out = b"before ".to_vec();
        write(&mut Reply::new(&mut out, version));
        String::from_utf8_lossy(&out[7..]).into_owned()
    }

    /// The same reply in both versions.
    fn both(write: impl Fn(&mut Reply<'_>)) -> [String; 2] {
        [ProtocolVersion::V2, ProtocolVersion::V3].map(|version| written(version, &write))
    }

    #[test]
    fn plain_replies_are_the_same_in_both_versions() {
        for (write, bytes) in [
            ((|reply| reply.ok()) as fn(&mut Reply<'_>), "+OK\r\n"),
            (|reply| reply.simple("PONG"), "+PONG\r\n"),
            (|reply| reply.integer(0), ":0\r\n"),
            (|reply| reply.integer(-10), ":-10\r\n"),
            (|reply| reply.integer(i64::MIN), ":-9223372036854775808\r\n"),
            (|reply| reply.integer(i64::MAX), ":9223372036854775807\r\n"),
            (|reply| reply.bulk(b""), "$0\r\n\r\n"),
            (|reply| reply.bulk(b"0123456789"), "$10\r\n0123456789\r\n"),
            (|reply| reply.bulk_integer(-42), "$3\r\n-42\r\n"),
            (|reply| reply.array(12), "*12\r\n"),
        ] {
            assert_eq!(both(write), [bytes, bytes]);
        }
    }

    #[test]
    fn integers_written_in_a_row_equal_those_written_one_by_one() {
        for first in [0, 1, 8, 99, 995, 123_456, 999_999_990, i64::MAX - 40, -3, -1000, i64::MIN] {
            for step in [1, 0, 2, -1, -7, 1_000_003] {
                let one_by_one = |reply: &mut Reply<'_>| {
                    (0..40).for_each(|nth| reply.integer(first.wrapping_add(step * nth)));
                };
                let in_a_row = written(ProtocolVersion::V2, |reply| reply.integers(first, step, 40));
                assert_eq!(in_a_row, written(ProtocolVersion::V2, one_by_one), "from {first} by {step}");
            }
        }
        assert_eq!(written(ProtocolVersion::V2, |reply| reply.integers(i64::MAX, 1, 1)), ":9223372036854775807\r\n");
        assert_eq!(written(ProtocolVersion::V2, |reply| reply.integers(7, 1, 0)), "");
    }

    #[test]
    fn an_error_stays_on_one_line() {
        assert_eq!(written(ProtocolVersion::V2, |reply| reply.error("ERR no")), "-ERR no\r\n");
        assert_eq!(written(ProtocolVersion::V2, |reply| reply.error("ERR a\r\nb\n\r\n")), "-ERR a  b\r\n");
    }

    #[test]
    fn types_that_version_two_lacks_are_replaced() {
        assert_eq!(both(|reply| reply.null()), ["$-1\r\n", "_\r\n"]);
        assert_eq!(both(|reply| reply.map(3)), ["*6\r\n", "%3\r\n"]);
        assert_eq!(both(|reply| reply.set(3)), ["*3\r\n", "~3\r\n"]);
        assert_eq!(both(|reply| reply.boolean(true)), [":1\r\n", "#t\r\n"]);
        assert_eq!(both(|reply| reply.boolean(false)), [":0\r\n", "#f\r\n"]);
        assert_eq!(both(|reply| reply.verbatim("a\r\n")), ["$3\r\na\r\n\r\n", "=7\r\ntxt:a\r\n\r\n"]);
    }
}
