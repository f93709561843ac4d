//! Variable-length integers (LEB128) and a bounds-checked cursor.

/// Appends `value` in 1 to 10 bytes.
pub fn put_u64(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Appends a signed value, zigzag-encoded so that small magnitudes are short.
pub fn put_i64(out: &mut Vec<u8>, value: i64) {
    put_u64(out, ((value << 1) ^ (value >> 63)) as u64);
}

/// Appends length and bytes.
pub fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_u64(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Reads what the `put` functions wrote; returns `None` where the input is malformed or too short.
#[derive(Clone, Copy, Debug)]
pub struct Cursor<'a> {
    rest: &'a [u8],
}

impl<'a> Cursor<'a> {
    /// Reads from the start of `bytes`.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Cursor { rest: bytes }
    }

    /// Whether everything was read.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.rest.is_empty()
    }

    /// What is left to read.
    #[must_use]
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// The next byte.
    pub fn u8(&mut self) -> Option<u8> {
        let (&first, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(first)
    }

    /// The next `n` bytes.
    pub fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(n)?;
        self.rest = rest;
        Some(taken)
    }

    /// The next `N` bytes as an array.
    pub fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    /// A value written by [`put_u64`].
    pub fn u64(&mut self) -> Option<u64> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.u8()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                return None;
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    /// A value written by [`put_i64`].
    pub fn i64(&mut self) -> Option<i64> {
        let coded = self.u64()?;
        Some((coded >> 1) as i64 ^ -((coded & 1) as i64))
    }

    /// Bytes written by [`put_bytes`], refused above `max`.
    pub fn bytes(&mut self, max: usize) -> Option<&'a [u8]> {
        let len = usize::try_from(self.u64()?).ok().filter(|&len| len <= max)?;
        self.take(len)
    }

    /// UTF-8 text written by [`put_bytes`], refused above `max` bytes.
    pub fn text(&mut self, max: usize) -> Option<Box<str>> {
        std::str::from_utf8(self.bytes(max)?).ok().map(Box::from)
    }
}
