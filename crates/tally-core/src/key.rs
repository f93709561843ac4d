//! Keys and their namespaces.

use std::borrow::Borrow;

use crate::limits::KEY_BYTES_MAX;

/// The namespace of a key without one.
pub const DEFAULT_NAMESPACE: &[u8] = b"default";

/// A valid key, borrowed: 1 to 512 arbitrary bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyRef<'a>(&'a [u8]);

/// An owned key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(Box<[u8]>);

/// Why bytes are not a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// A key has at least one byte.
    #[error("the key is empty; a key has 1 to {KEY_BYTES_MAX} bytes")]
    Empty,
    /// A key has at most 512 bytes.
    #[error("the key has {0} bytes; a key has 1 to {KEY_BYTES_MAX} bytes")]
    TooLong(usize),
}

impl<'a> KeyRef<'a> {
    /// Checks the length; every byte value is allowed.
    pub fn new(bytes: &'a [u8]) -> Result<Self, KeyError> {
        match bytes.len() {
            0 => Err(KeyError::Empty),
            1..=KEY_BYTES_MAX => Ok(KeyRef(bytes)),
            n => Err(KeyError::TooLong(n)),
        }
    }

    /// Skips the check, for keys that were checked when they were added to a batch or table.
    pub(crate) fn trusted(bytes: &'a [u8]) -> Self {
        debug_assert!(KeyRef::new(bytes).is_ok());
        KeyRef(bytes)
    }

    /// The bytes of the key.
    #[must_use]
    pub fn as_bytes(self) -> &'a [u8] {
        self.0
    }

    /// Everything before the first `:`, or `default` if there is no `:` or nothing before it.
    #[must_use]
    pub fn namespace(self) -> &'a [u8] {
        match self.0.iter().position(|&b| b == b':') {
            Some(0) | None => DEFAULT_NAMESPACE,
            Some(end) => &self.0[..end],
        }
    }

    /// An owned copy.
    #[must_use]
    pub fn to_key(self) -> Key {
        Key(self.0.into())
    }
}

impl Key {
    /// Checks the length; every byte value is allowed.
    pub fn new(bytes: impl AsRef<[u8]>) -> Result<Self, KeyError> {
        KeyRef::new(bytes.as_ref()).map(KeyRef::to_key)
    }

    /// Borrows the key.
    #[must_use]
    pub fn as_ref(&self) -> KeyRef<'_> {
        KeyRef(&self.0)
    }

    /// The bytes of the key.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// Keys compare like their bytes, so maps and sets of them can be searched by bytes.
impl Borrow<[u8]> for Key {
    fn borrow(&self) -> &[u8] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_has_1_to_512_bytes() {
        assert_eq!(KeyRef::new(b""), Err(KeyError::Empty));
        assert!(KeyRef::new(&[0xff; 512]).is_ok());
        assert_eq!(KeyRef::new(&[b'a'; 513]), Err(KeyError::TooLong(513)));
    }

    #[test]
    fn the_namespace_is_everything_before_the_first_colon() {
        let namespace = |key: &'static str| KeyRef::new(key.as_bytes()).map(KeyRef::namespace);
        assert_eq!(namespace("likes:post:42"), Ok(&b"likes"[..]));
        assert_eq!(namespace("hits"), Ok(&b"default"[..]));
        assert_eq!(namespace(":hits"), Ok(&b"default"[..]));
        assert_eq!(namespace("a:"), Ok(&b"a"[..]));
    }
}
