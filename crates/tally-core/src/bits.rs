//! A growable bit set with access to whole words and a running count.

/// A growable bit set.
#[derive(Clone, Debug, Default)]
pub(crate) struct Bits {
    words: Vec<u64>,
    count: usize,
}

impl Bits {
    /// Bits per word.
    pub(crate) const WORD: usize = 64;

    /// The word at index `at`: the 64 bits from `64 * at` on.
    pub(crate) fn word(&self, at: usize) -> u64 {
        self.words.get(at).copied().unwrap_or_default()
    }

    /// Clears a word and returns its bits.
    pub(crate) fn take_word(&mut self, at: usize) -> u64 {
        let taken = self.words.get_mut(at).map(std::mem::take).unwrap_or_default();
        self.count -= taken.count_ones() as usize;
        taken
    }

    pub(crate) fn get(&self, at: usize) -> bool {
        self.words.get(at / 64).is_some_and(|word| word >> (at % 64) & 1 == 1)
    }

    pub(crate) fn set(&mut self, at: usize) {
        if at / 64 >= self.words.len() {
            // Grow by an eighth: doubling would leave up to half of the memory unused.
            let len = (at / 64 + 1).max(self.words.len() + self.words.len() / 8).max(16);
            self.words.reserve_exact(len - self.words.len());
            self.words.resize(len, 0);
        }
        let word = &mut self.words[at / 64];
        self.count += usize::from(*word >> (at % 64) & 1 == 0);
        *word |= 1 << (at % 64);
    }

    pub(crate) fn clear(&mut self, at: usize) {
        self.take(at);
    }

    /// Clears a bit and returns whether it was set.
    pub(crate) fn take(&mut self, at: usize) -> bool {
        let was = self.get(at);
        if was {
            self.words[at / 64] &= !(1 << (at % 64));
            self.count -= 1;
        }
        was
    }

    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// The set bit with this number, counted from zero.
    pub(crate) fn nth(&self, number: usize) -> Option<usize> {
        let mut left = number;
        for (at, word) in self.words.iter().enumerate() {
            let ones = word.count_ones() as usize;
            if left < ones {
                let rest = (0..left).fold(*word, |word, _| word & (word - 1));
                return Some(at * 64 + rest.trailing_zeros() as usize);
            }
            left -= ones;
        }
        None
    }

    /// The first set bit at or after `from`.
    pub(crate) fn next(&self, from: usize) -> Option<usize> {
        let mut at = from / 64;
        let mut word = self.words.get(at)? & (u64::MAX << (from % 64));
        while word == 0 {
            at += 1;
            word = *self.words.get(at)?;
        }
        Some(at * 64 + word.trailing_zeros() as usize)
    }

    /// Sets every bit that is set in `other`.
    pub(crate) fn union_with(&mut self, other: &Bits) {
        if self.words.len() < other.words.len() {
            self.words.resize(other.words.len(), 0);
        }
        for (word, other) in self.words.iter_mut().zip(&other.words) {
            self.count += (other & !*word).count_ones() as usize;
            *word |= other;
        }
    }

    /// Clears every bit that is set in `other`.
    pub(crate) fn difference_with(&mut self, other: &Bits) {
        for (word, other) in self.words.iter_mut().zip(&other.words) {
            self.count -= (*word & other).count_ones() as usize;
            *word &= !other;
        }
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.words.capacity() * 8
    }
}
