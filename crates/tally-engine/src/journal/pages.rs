//! Appending to a segment in whole pages, past the page cache, into blocks that were written before.
//!
//! A flush of a few hundred bytes costs what the file system makes of it. Two things make it dear: the cache, which
//! copies the page and then writes it back, and blocks that are reserved but were never written, whose every first
//! write changes the file's metadata and so drags the file system's own journal into the sync. So pages are handed
//! to the disk directly, and whenever an append reaches into fresh blocks, it writes zeros ahead of itself, as part of
//! the same write. `docs/decisions/0013-the-journal-writes-whole-pages.md` has the figures.
//!
//! The last page is written again with every append until it is full. Its older bytes are the same each time, so a
//! power cut that keeps any of its sectors in either state loses nothing that was durable.

use std::io;
use std::sync::Arc;

use crate::disk::{DIRECT_ALIGN_BYTES, DiskFile};

const PAGE_BYTES: u64 = DIRECT_ALIGN_BYTES as u64;
/// Fresh blocks are written up to the next multiple of this. One flush in many pays for it, a few hundred microseconds.
const FILL_BYTES: u64 = 256 << 10;
/// Most that is copied and written at once, zeros ahead aside.
const PIECE_BYTES: usize = 1 << 20;

/// A segment's file that is appended to.
pub(super) struct Pages {
    file: Arc<dyn DiskFile>,
    /// Bytes of the file; nothing is written beyond.
    len: u64,
    /// Where the next byte goes.
    end: u64,
    /// Every block before this has been written, be it in an earlier life of the file.
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

    /// Goes on with another handle of the same file, which was opened under the name that it has now.
    pub fn continue_with(&mut self, file: Arc<dyn DiskFile>) {
        if self.len.is_multiple_of(PAGE_BYTES) {
            file.bypass_cache();
        }
        self.file = file;
    }

    /// Writes `data` behind what was appended before. The caller has seen to it that it fits.
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

    /// Where the page begins that the next byte falls into, and how much of it is written. The buffer holds that much.
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

    /// The buffer, for the next file.
    pub fn take_buffer(&mut self) -> Buffer {
        std::mem::take(&mut self.buffer)
    }
}

/// Memory that begins where a page does, as writing past the cache asks for.
#[derive(Default)]
pub(super) struct Buffer {
    bytes: Vec<u8>,
    /// Where in `bytes` a page begins.
    start: usize,
}

impl Buffer {
    /// The first `len` bytes.
    fn first(&mut self, len: usize) -> io::Result<&mut [u8]> {
        if self.bytes.is_empty() {
            // Memory that is not touched costs nothing, and a vector that never grows stays where it is.
            self.bytes = vec![0; PIECE_BYTES + FILL_BYTES as usize + DIRECT_ALIGN_BYTES];
            self.start = self.bytes.as_ptr().align_offset(DIRECT_ALIGN_BYTES);
        }
        let bytes = self.bytes.get_mut(self.start..).and_then(|bytes| bytes.get_mut(..len));
        bytes.ok_or_else(|| io::Error::other("more pages than the buffer has"))
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

    /// A file that is strict where a real one would quietly go back to the cache.
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

    /// Appends pieces of these sizes to a fresh file and to a vector; both hold the same, and zeros behind.
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
        fn what_is_appended_is_in_the_file_byte_for_byte(
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
    fn the_buffer_begins_at_a_page() {
        let mut buffer = Buffer::default();
        assert_eq!(buffer.first(8).unwrap().as_ptr().align_offset(DIRECT_ALIGN_BYTES), 0);
        assert!(buffer.first(PIECE_BYTES + FILL_BYTES as usize).is_ok());
        assert!(buffer.first(PIECE_BYTES + FILL_BYTES as usize + DIRECT_ALIGN_BYTES + 1).is_err());
    }
}
