//! The Bloom filter of a run.
//!
//! A blocked Bloom filter: the hash of a key selects one cache line of 64 bytes and sets one bit in each of its eight
//! words, so a lookup costs one cache miss. With ten bits per key the false positive rate is about 1 % (0.8 % for an
//! unblocked filter of that size). A false positive costs a read, never a wrong answer.
//!
//! A filter is sized before the number of keys is known: a merge knows only the sum of its inputs, which may share
//! keys. So a filter can be *folded*. The line of a hash is `hash * lines / 2^64`, so with half as many lines its
//! number is halved: combining pairs of neighbouring lines gives exactly the filter of half the size.

use tally_core::varint::Cursor;
use xxhash_rust::xxh3::xxh3_64;

/// Bytes of one line.
pub(super) const LINE_BYTES: usize = 64;
/// Bits per key that a filter is sized for.
const BITS_PER_KEY: u64 = 10;
/// Line counts of large filters are multiples of this power of two, so that they can be folded repeatedly.
const LINES_MULTIPLE_MAX: u64 = 1 << 10;

/// Eight words in one cache line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(align(64))]
struct CacheLine([u64; 8]);

/// A set of hashes with false positives and no false negatives.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Filter {
    lines: Vec<CacheLine>,
}

/// The hash that filters are built from.
pub(super) fn hash(key: &[u8]) -> u64 {
    xxh3_64(key)
}

/// Lines for this many keys, before rounding.
fn lines_needed(keys: u64) -> u64 {
    (keys.saturating_mul(BITS_PER_KEY)).div_ceil(8 * LINE_BYTES as u64).max(1)
}

/// The bit of each word. The high bits of the hash chose the line; the multiplication mixes in the others.
fn masks(hash: u64) -> [u64; 8] {
    let spread = hash.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 16;
    std::array::from_fn(|word| 1 << ((spread >> (6 * word)) & 63))
}

impl Filter {
    /// An empty filter for this many keys. With more keys the false positive rate rises.
    pub(super) fn for_keys(keys: u64) -> Filter {
        let needed = lines_needed(keys);
        // Rounding up costs an eighth at most.
        let unit = (needed / 8).max(1).next_power_of_two().min(LINES_MULTIPLE_MAX);
        let lines = usize::try_from(needed.next_multiple_of(unit)).unwrap_or(usize::MAX);
        Filter { lines: vec![CacheLine::default(); lines] }
    }

    fn line_of(&self, hash: u64) -> usize {
        ((u128::from(hash) * self.lines.len() as u128) >> 64) as usize
    }

    pub(super) fn insert(&mut self, hash: u64) {
        let line = self.line_of(hash);
        if let Some(CacheLine(words)) = self.lines.get_mut(line) {
            for (word, mask) in words.iter_mut().zip(masks(hash)) {
                *word |= mask;
            }
        }
    }

    /// Whether the hash may have been inserted.
    pub(super) fn may_contain(&self, hash: u64) -> bool {
        self.lines.get(self.line_of(hash)).is_none_or(|CacheLine(words)| {
            let missing = words.iter().zip(masks(hash)).fold(0, |missing, (word, mask)| missing | (!word & mask));
            missing == 0
        })
    }

    /// Shrinks the filter to what this many keys need.
    pub(super) fn fold(&mut self, keys: u64) {
        let needed = lines_needed(keys) as usize;
        while self.lines.len().is_multiple_of(2) && self.lines.len() / 2 >= needed {
            let folded = self.lines.chunks_exact(2).map(|pair| match pair {
                [CacheLine(a), CacheLine(b)] => CacheLine(std::array::from_fn(|word| a[word] | b[word])),
                _ => CacheLine::default(),
            });
            self.lines = folded.collect();
        }
    }

    /// Bytes in memory, and on disk.
    pub(super) fn bytes(&self) -> usize {
        self.lines.len() * LINE_BYTES
    }

    /// The encoded lines.
    pub(super) fn encoded(&self) -> impl Iterator<Item = [u8; LINE_BYTES]> {
        self.lines.iter().map(|CacheLine(words)| {
            let mut bytes = [0; LINE_BYTES];
            for (slot, word) in bytes.chunks_exact_mut(8).zip(words) {
                slot.copy_from_slice(&word.to_le_bytes());
            }
            bytes
        })
    }

    /// An empty filter that will be filled with this many bytes by [`Filter::decode`].
    pub(super) fn with_room(bytes: usize) -> Filter {
        Filter { lines: Vec::with_capacity(bytes / LINE_BYTES) }
    }

    /// Appends encoded lines. Ignores an incomplete one at the end.
    pub(super) fn decode(&mut self, encoded: &[u8]) {
        self.lines.extend(encoded.chunks_exact(LINE_BYTES).map(|line| {
            let mut cursor = Cursor::new(line);
            CacheLine(std::array::from_fn(|_| u64::from_le_bytes(cursor.array().unwrap_or_default())))
        }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(range: std::ops::Range<u64>) -> impl Iterator<Item = u64> {
        range.map(|n| hash(&n.to_be_bytes()))
    }

    fn filled(sized_for: u64, count: u64) -> Filter {
        let mut filter = Filter::for_keys(sized_for);
        keys(0..count).for_each(|hash| filter.insert(hash));
        filter
    }

    #[test]
    fn every_inserted_key_is_found_and_false_positives_are_rare() {
        for count in [1, 7, 100, 5_000, 200_000] {
            let filter = filled(count, count);
            assert!(keys(0..count).all(|hash| filter.may_contain(hash)));
            let wrong = keys(1_000_000..1_100_000).filter(|&hash| filter.may_contain(hash)).count();
            assert!(wrong < 1_600, "{wrong} false positives of 100000 in a filter of {count}");
        }
    }

    #[test]
    fn a_folded_filter_keeps_every_key_and_stays_selective() {
        let mut filter = filled(400_000, 30_000);
        let before = filter.bytes();
        filter.fold(30_000);
        assert!(filter.bytes() < before / 6, "{} of {before} bytes", filter.bytes());
        assert!(keys(0..30_000).all(|hash| filter.may_contain(hash)));
        let wrong = keys(1_000_000..1_100_000).filter(|&hash| filter.may_contain(hash)).count();
        assert!(wrong < 1_600, "{wrong}");
    }

    #[test]
    fn a_filter_decodes_to_what_was_encoded() {
        let filter = filled(1_000, 1_000);
        let mut again = Filter::with_room(filter.bytes());
        filter.encoded().for_each(|line| again.decode(&line));
        assert_eq!(again, filter);
    }
}
