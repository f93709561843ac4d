//! Appending to a segment in whole pages, with direct I/O, to blocks that were written before.
//!
//! Two things make a small flush expensive: the page cache, which copies the page before it is written back, and the
//! first write to a reserved block, which changes metadata and so makes the sync wait for the file system's own
//! journal. So pages are written with direct I/O, and an append that reaches new blocks also writes zeros ahead of
//! itself. `docs/decisions/0013-the-journal-writes-whole-pages.md` has the figures.
//!
//! The last page is rewritten with every append until it is full. Its earlier bytes do not change, so a torn write
//! cannot lose durable data.

use std::io;
use std::sync::Arc;

use crate::disk::{DIRECT_ALIGN_BYTES, DiskFile};

const PAGE_BYTES: u64 = DIRECT_ALIGN_BYTES as u64;
/// New blocks are filled with zeros up to the next multiple of this, which takes a few hundred microseconds.
const FILL_BYTES: u64 = 256 << 10;
/// Most bytes copied and written at once, not counting zeros.
const PIECE_BYTES: usize = 1 << 20;

/// A segment file that is appended to.
pub(super) struct Pages {
    file: Arc<dyn DiskFile>,
    /// Length of the file. Nothing is written beyond it.
    len: u64,
    /// Offset of the next byte.
    end: u64,
    /// Every block before this has been written, perhaps before the file was recycled.
    filled: u64,
    buffer: Buffer,
}

impl Pages {
    /// Begins at the start of a file of `len` bytes, whose blocks before `filled` were written before.
    pub fn begin(file: Arc<dyn DiskFile>, len: u64, filled: u64, buffer: Buffer) -> Pages {
        if len.is_multiple_of(PAGE_BYTES) {
            file.bypass_cache();
        }
        Pages { file, len, end: 0, filled, buffer }
    }

    /// Continues with another handle of the same file, opened under its new name.
    pub fn continue_with(&mut self, file: Arc<dyn DiskFile>) {
        if self.len.is_multiple_of(PAGE_BYTES) {
            file.bypass_cache();
        }
        self.file = file;
    }

    /// Appends `data`. The caller has checked that it fits.
    pub fn append(&mut self, mut data: &[u8]) -> io::Result<()> {
        while !data.is_empty() {
            let (start, held) = self.last_page();
            let (piece, rest) = data.split_at(data.len().min(PIECE_BYTES - held));
            let end = self.end + piece.len() as u64;
            let mut until = end.next_multiple_of(PAGE_BYTES);
            if until > self.filled && rest.is_empty() {
                until = until.next_multiple_of(FILL_BYTES);
            }
            until = until.min(self.len);
            let pages = self.buffer.first((until - start) as usize)?;
            pages[held..held + piece.len()].copy_from_slice(piece);
            pages[held + piece.len()..].fill(0);
            self.file.write_at(start, pages)?;
            self.end = end;
            self.filled = self.filled.max(until);
            self.buffer.keep((end - end % PAGE_BYTES - start) as usize);
            data = rest;
        }
        Ok(())
    }

    /// Offset of the page that the next byte belongs to, and how much of it is written. The buffer contains that part.
    fn last_page(&self) -> (u64, usize) {
        let held = self.end % PAGE_BYTES;
        (self.end - held, held as usize)
    }

    /// Makes what was appended durable.
    pub fn sync(&self) -> io::Result<()> {
        self.file.sync()
    }

    /// Every block before this has been written.
    pub fn filled(&self) -> u64 {
        self.filled
    }

    /// Takes the buffer, to be reused for the next file.
    pub fn take_buffer(&mut self) -> Buffer {
        std::mem::take(&mut self.buffer)
    }
}

/// Page-aligned memory, as direct I/O requires.
#[derive(Default)]
pub(super) struct Buffer {
    bytes: Vec<u8>,
    /// Offset of the first page in `bytes`.
    start: usize,
}

impl Buffer {
    /// The first `len` bytes.
    fn first(&mut self, len: usize) -> io::Result<&mut [u8]> {
        if self.bytes.is_empty() {
            // Untouched memory costs nothing, and a vector that never grows is never moved.
            self.bytes = vec![0; PIECE_BYTES + FILL_BYTES as usize + DIRECT_ALIGN_BYTES];
            self.start = self.bytes.as_ptr().align_offset(DIRECT_ALIGN_BYTES);
        }
        let bytes = self.bytes.get_mut(self.start..).and_then(|bytes| bytes.get_mut(..len));
        bytes.ok_or_else(|| io::Error::other("a write is larger than the buffer"))
    }

    /// Moves the page at `from` to the front.
    fn keep(&mut self, from: usize) {
        if from > 0 {
            let from = self.start + from;
            let until = (from + DIRECT_ALIGN_BYTES).min(self.bytes.len());
            self.bytes.copy_within(from..until, self.start);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::atomic::{AtomicBool, Ordering};

    use proptest::prelude::*;

    use super::*;
    use crate::disk::{Disk, RealDisk};

    /// A file that checks the alignment of direct I/O, where a real one would fall back to the cache.
    struct Strict {
        file: Arc<dyn DiskFile>,
        bypassing: AtomicBool,
    }

    impl DiskFile for Strict {
        fn len(&self) -> io::Result<u64> {
            self.file.len()
        }

        fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
            self.file.read_at(offset, buf)
        }

        fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
            if self.bypassing.load(Ordering::Relaxed) {
                let places = [offset as usize, data.len(), data.as_ptr().addr()];
                assert_eq!(places.map(|place| place % DIRECT_ALIGN_BYTES), [0; 3], "{} bytes at {offset}", data.len());
            }
            self.file.write_at(offset, data)
        }

        fn allocate(&self, len: u64) -> io::Result<()> {
            self.file.allocate(len)
        }

        fn truncate(&self, len: u64) -> io::Result<()> {
            self.file.truncate(len)
        }

        fn sync(&self) -> io::Result<()> {
            self.file.sync()
        }

        fn bypass_cache(&self) {
            self.bypassing.store(true, Ordering::Relaxed);
            self.file.bypass_cache();
        }
    }

    /// Appends pieces of these sizes to a new file. It must contain exactly them, followed by zeros.
    fn check(len: u64, filled: u64, sizes: &[usize]) {
        let dir = tempfile::tempdir().unwrap();
        let disk = RealDisk::new(dir.path()).unwrap();
        let file = disk.create("a").unwrap();
        file.allocate(len).unwrap();
        let file = Arc::new(Strict { file, bypassing: AtomicBool::new(false) });
        let mut pages = Pages::begin(file.clone(), len, filled, Buffer::default());
        assert_eq!(file.bypassing.load(Ordering::Relaxed), len.is_multiple_of(PAGE_BYTES));
        let mut expected = Vec::new();
        for (number, size) in sizes.iter().enumerate() {
            let room = (len as usize).saturating_sub(expected.len());
            let data = vec![number as u8 + 1; (*size).min(room)];
            pages.append(&data).unwrap();
            pages.sync().unwrap();
            expected.extend(data);
            let written = std::fs::read(dir.path().join("a")).unwrap();
            assert_eq!(written.len() as u64, len);
            assert!(written.starts_with(&expected), "after {number} of {sizes:?}");
            assert!(written[expected.len()..].iter().all(|byte| *byte == 0));
            assert!(pages.filled() >= expected.len() as u64);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

        #[test]
        fn the_file_contains_exactly_what_was_appended(
            len in prop_oneof![Just(256_u64), Just(4096), Just(8200), Just(64 << 10), Just(4 << 20)],
            filled in prop_oneof![Just(0_u64), Just(4096), Just(4 << 20)],
            sizes in proptest::collection::vec(
                prop_oneof![8 => 0..600_usize, 4 => 4000..9000_usize, 1 => 0..3_000_000_usize], 1..24),
        ) {
            check(len, filled, &sizes);
        }
    }

    #[test]
    fn appends_larger_than_the_buffer_are_written_in_pieces() {
        check(16 << 20, 0, &[100, 3 * PIECE_BYTES + 17, 5, 2 * PIECE_BYTES]);
    }

    #[test]
    fn the_buffer_is_page_aligned() {
        let mut buffer = Buffer::default();
        assert_eq!(buffer.first(8).unwrap().as_ptr().align_offset(DIRECT_ALIGN_BYTES), 0);
        assert!(buffer.first(PIECE_BYTES + FILL_BYTES as usize).is_ok());
        assert!(buffer.first(PIECE_BYTES + FILL_BYTES as usize + DIRECT_ALIGN_BYTES + 1).is_err());
    }
}
