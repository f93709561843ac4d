//! The index of a run: offset and key range of each block.
//!
//! The *separator* of a block is the shortest prefix that is greater than every key of the previous block and not
//! greater than any key of the block itself. Block `i` has the keys from separator `i` to separator `i + 1`, exclusive;
//! the first separator is empty. All separators are in one arena: the two hundred thousand blocks of a run with ten
//! million entries take a few megabytes and three allocations.

use std::ops::Range;

use tally_core::varint::{self, Cursor};

use super::run::KEY_BYTES_MAX;

/// The blocks of one run, in order.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Index {
    separators: Vec<u8>,
    /// Where each separator ends in the arena.
    separator_ends: Vec<u32>,
    /// Where each block ends in the file.
    block_ends: Vec<u64>,
    /// Where the first block begins.
    start: u64,
}

impl Index {
    /// No blocks yet; the first will begin at `start`.
    pub(super) fn new(start: u64) -> Index {
        Index { separators: Vec::new(), separator_ends: Vec::new(), block_ends: Vec::new(), start }
    }

    /// Begins a block. `None` if the separators exceed 4 GiB.
    pub(super) fn begin_block(&mut self, separator: &[u8]) -> Option<()> {
        let end = u32::try_from(self.separators.len() + separator.len()).ok()?;
        self.separators.extend_from_slice(separator);
        self.separator_ends.push(end);
        Some(())
    }

    /// Ends the block.
    pub(super) fn end_block(&mut self, end: u64) {
        self.block_ends.push(end);
    }

    /// Number of blocks.
    pub(super) fn len(&self) -> usize {
        self.block_ends.len()
    }

    /// Where the last block ends.
    pub(super) fn end(&self) -> u64 {
        self.block_ends.last().copied().unwrap_or(self.start)
    }

    /// Bytes in memory.
    pub(super) fn bytes(&self) -> usize {
        self.separators.capacity() + self.separator_ends.capacity() * 4 + self.block_ends.capacity() * 8
    }

    /// Releases unused capacity.
    pub(super) fn shrink(&mut self) {
        self.separators.shrink_to_fit();
        self.separator_ends.shrink_to_fit();
        self.block_ends.shrink_to_fit();
    }

    /// The range of a block in the file; empty if it does not exist.
    pub(super) fn block(&self, block: usize) -> Range<u64> {
        let end_of = |block: usize| self.block_ends.get(block).copied();
        let start = match block.checked_sub(1) {
            None => self.start,
            Some(before) => end_of(before).unwrap_or(self.end()),
        };
        start..end_of(block).unwrap_or(self.end())
    }

    /// The separator of a block; empty if it does not exist.
    pub(super) fn separator(&self, block: usize) -> &[u8] {
        let end_of = |block: usize| self.separator_ends.get(block).copied().unwrap_or(0) as usize;
        let start = block.checked_sub(1).map_or(0, end_of);
        self.separators.get(start..end_of(block)).unwrap_or_default()
    }

    /// The only block from `from` on that can contain `key`. A galloping search, because the next of several ascending
    /// lookups ends nearby.
    pub(super) fn find(&self, key: &[u8], from: usize) -> usize {
        let (mut low, mut high, mut step) = (from, self.len(), 1);
        while low + step < high {
            if self.separator(low + step) <= key {
                low += step;
                step *= 2;
            } else {
                high = low + step;
            }
        }
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if self.separator(middle) <= key {
                low = middle;
            } else {
                high = middle;
            }
        }
        low
    }

    /// The last block that ends within a read from block `from` up to `offset`; at least `from` itself.
    pub(super) fn last_block_within(&self, from: usize, offset: u64) -> usize {
        let ends = self.block_ends.get(from..).unwrap_or_default();
        from + ends.partition_point(|&end| end <= offset).saturating_sub(1)
    }

    /// Appends separator and length of every block.
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        for block in 0..self.len() {
            let Range { start, end } = self.block(block);
            varint::put_bytes(out, self.separator(block));
            varint::put_u64(out, end - start);
        }
    }

    /// Reads `blocks` blocks that begin at `start`.
    pub(super) fn decode(cursor: &mut Cursor<'_>, blocks: u64, start: u64) -> Option<Index> {
        let mut index = Index::new(start);
        for _ in 0..blocks {
            index.begin_block(cursor.bytes(KEY_BYTES_MAX)?)?;
            let len = cursor.u64()?;
            index.end_block(index.end().checked_add(len)?);
        }
        index.shrink();
        Some(index)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn index() -> Index {
        let mut index = Index::new(24);
        for (separator, end) in [(&b""[..], 100), (b"f", 250), (b"fm", 300), (b"x", 420)] {
            index.begin_block(separator).unwrap();
            index.end_block(end);
        }
        index
    }

    #[test]
    fn a_key_is_in_the_last_block_whose_separator_is_not_greater() {
        for (key, block) in [("", 0), ("a", 0), ("ezzz", 0), ("f", 1), ("flz", 1), ("fm", 2), ("w", 2), ("xx", 3)] {
            for from in 0..=block {
                assert_eq!(index().find(key.as_bytes(), from), block, "{key} from {from}");
            }
        }
    }

    #[test]
    fn blocks_are_contiguous() {
        assert_eq!(
            (0..5).map(|block| index().block(block)).collect::<Vec<_>>(),
            [24..100, 100..250, 250..300, 300..420, 420..420]
        );
    }

    #[test]
    fn a_read_covers_the_blocks_that_end_within_it_and_at_least_one() {
        for (from, offset, last) in
            [(0, 0, 0), (0, 99, 0), (0, 100, 0), (0, 299, 1), (0, 300, 2), (1, 420, 3), (3, 0, 3)]
        {
            assert_eq!(index().last_block_within(from, offset), last, "{from} {offset}");
        }
    }

    #[test]
    fn an_index_decodes_to_what_was_encoded() {
        let mut encoded = Vec::new();
        index().encode(&mut encoded);
        let again = Index::decode(&mut Cursor::new(&encoded), 4, 24).unwrap();
        assert_eq!(again, index());
        assert_eq!(Index::decode(&mut Cursor::new(&encoded), 5, 24), None);
    }
}
