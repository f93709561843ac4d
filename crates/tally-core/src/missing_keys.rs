//! Store keys of records that a batch needs and that are not resident.

/// Store keys in one buffer, which saves an allocation per key.
#[derive(Debug, Default)]
pub struct MissingKeys {
    bytes: Vec<u8>,
    /// Where each key ends.
    ends: Vec<usize>,
}

impl MissingKeys {
    /// Adds a key.
    pub fn push(&mut self, key: &[u8]) {
        self.push_joined(&[key]);
    }

    /// Adds the concatenation of `parts`.
    pub(crate) fn push_joined(&mut self, parts: &[&[u8]]) {
        parts.iter().for_each(|part| self.bytes.extend_from_slice(part));
        self.ends.push(self.bytes.len());
    }

    /// Number of keys.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are no keys.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The key with this index; empty if there is none.
    #[must_use]
    pub fn key(&self, number: usize) -> &[u8] {
        let end_of = |number: usize| self.ends.get(number).copied().unwrap_or(0);
        let start = number.checked_sub(1).map_or(0, end_of);
        self.bytes.get(start..end_of(number)).unwrap_or_default()
    }

    /// All keys, in the order they were added.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> + Clone {
        (0..self.len()).map(|number| self.key(number))
    }

    /// Removes all keys, keeps the allocation.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }
}

impl<K: AsRef<[u8]>> FromIterator<K> for MissingKeys {
    fn from_iter<I: IntoIterator<Item = K>>(keys: I) -> Self {
        let mut missing = MissingKeys::default();
        keys.into_iter().for_each(|key| missing.push(key.as_ref()));
        missing
    }
}
