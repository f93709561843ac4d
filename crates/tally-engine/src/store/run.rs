//! A run: an immutable file of entries sorted by key, with its filter and index in memory.
//!
//! A run is the sorted string table of a log-structured merge tree (O'Neil et al. 1996), laid out much like LevelDB's:
//!
//! ```text
//! header   magic "TALLYRUN", version u32, file number u64, checksum                       24 bytes
//! origin   directory id u64, checksum                                                      12 bytes
//! block 0  entries, checksum                                                             about 4 KiB
//! block 1  …
//! filter   lines of 64 bytes (see `filter`), checksum                          10 to 20 bits per key
//! index    smallest key, largest key, then separator and length of each block, checksum
//! footer   offsets of filter and index, entries, tombstones, blocks, digest (u64 each), checksum    52 bytes
//! ```
//!
//! An entry is
//!
//! ```text
//! varint  number of bytes shared with the previous key; 0 for the first entry of a block
//! varint  length of the rest of the key, and the rest of the key
//! varint  0 for a tombstone, else 1 + length of the value, and the value
//! ```
//!
//! Fixed numbers are little-endian, varints LEB128. Sections are contiguous, so every byte is covered by exactly one
//! checksum. A checksum is the CRC-32 of the section, with the offset of the section as initial value, so a section
//! that the disk returns from the wrong offset does not match. The header is the same in every version of the format.
//!
//! The digest is the XXH3 of all checksums before the footer, in order. The manifest has it too, so an intact section
//! of another run is detected: opening compares the two, and `tally check` computes the digest again. Version 1 has
//! neither origin nor digest. It can be read, and the next merge replaces it.
//!
//! Trade-offs:
//! * Keys share prefixes and entries are small, so prefix compression halves the file. In return a block is searched
//!   linearly, about forty entries on average, which costs a fraction of reading it.
//! * Blocks are small because a point lookup needs one entry. Scans and merges read many at once.
//! * Filter and index are kept in memory, about 12 bits per entry. A lookup reads at most one block of a run, and
//!   almost always none of a run without the key.

use std::io;
use std::sync::Arc;

use tally_core::varint::Cursor;

use super::StoreError;
use super::filter::{Filter, LINE_BYTES};
use super::index::Index;
use crate::disk::{Disk, DiskFile};
use crate::identity::{DirId, FOREIGN};

/// Longest key the store holds.
pub const KEY_BYTES_MAX: usize = 1024;
/// Longest value the store holds.
pub const VALUE_BYTES_MAX: usize = 64 << 10;

/// Version of the format.
pub(super) const VERSION: u32 = 2;
/// A block ends with the entry that takes it to this size.
pub(super) const BLOCK_BYTES: usize = 4 << 10;
pub(super) const CHECKSUM_BYTES: usize = 4;
/// Bytes of the header, which every version has.
const HEADER_BYTES: usize = 24;
const ORIGIN_BYTES: usize = 12;
/// Where the first block begins.
pub(super) const BLOCKS_AT: usize = HEADER_BYTES + ORIGIN_BYTES;
pub(super) const FOOTER_BYTES: usize = 52;
/// Where the first block begins in version 1.
const BLOCKS_AT_V1: usize = HEADER_BYTES;
const FOOTER_BYTES_V1: usize = 44;
const MAGIC: [u8; 8] = *b"TALLYRUN";
/// How much of a filter is read at once.
const FILTER_READ_BYTES: usize = 4096 * LINE_BYTES;

const _: () = assert!(KEY_BYTES_MAX > tally_core::limits::KEY_BYTES_MAX + tally_core::limits::REQUEST_ID_BYTES_MAX);

/// An open run.
pub(super) struct Run {
    pub(super) number: u64,
    pub(super) name: String,
    pub(super) file: Arc<dyn DiskFile>,
    /// Length of the file.
    pub(super) bytes: u64,
    /// Number of entries, including tombstones.
    pub(super) entries: u64,
    /// Number of tombstones.
    pub(super) tombstones: u64,
    /// The digest of all its checksums; none in version 1.
    pub(super) digest: Option<u64>,
    pub(super) smallest: Box<[u8]>,
    pub(super) largest: Box<[u8]>,
    pub(super) index: Index,
    pub(super) filter: Filter,
}

/// A run as listed in the manifest. Opening it checks these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RunRef {
    pub(super) number: u64,
    pub(super) entries: u64,
    pub(super) bytes: u64,
    /// None for a run of version 1.
    pub(super) digest: Option<u64>,
}

/// Computes the digest of a run from the checksums of its sections, in order.
#[derive(Default)]
pub(super) struct Digest(xxhash_rust::xxh3::Xxh3);

impl Digest {
    pub(super) fn add(&mut self, checksum: u32) {
        self.0.update(&checksum.to_le_bytes());
    }

    pub(super) fn finish(&self) -> u64 {
        self.0.digest()
    }
}

/// The name of the run file with this number.
pub(super) fn file_name(number: u64) -> String {
    format!("run-{number:016}.run")
}

/// The number of the run file with this name; `None` for other files.
pub(super) fn file_number(name: &str) -> Option<u64> {
    let digits = name.strip_prefix("run-")?.strip_suffix(".run")?;
    let number = digits.parse().ok()?;
    (file_name(number) == name).then_some(number)
}

/// A hasher for the checksum of a section that begins at `offset`.
pub(super) fn checksum_at(offset: u64) -> crc32fast::Hasher {
    crc32fast::Hasher::new_with_initial(offset as u32 ^ (offset >> 32) as u32)
}

/// The checksum of a section that begins at `offset`.
pub(super) fn checksum(offset: u64, part: &[u8]) -> u32 {
    let mut hasher = checksum_at(offset);
    hasher.update(part);
    hasher.finalize()
}

/// The content of a section that begins at `offset` and ends with its checksum; `None` if that does not match.
pub(super) fn checked(offset: u64, part: &[u8]) -> Option<&[u8]> {
    let (content, &stored) = part.split_last_chunk()?;
    (checksum(offset, content) == u32::from_le_bytes(stored)).then_some(content)
}

/// Length of the common prefix.
pub(super) fn shared_prefix(a: &[u8], b: &[u8]) -> usize {
    let words = a.chunks_exact(8).zip(b.chunks_exact(8)).take_while(|(a, b)| a == b).count();
    let rest = a.iter().zip(b).skip(8 * words);
    8 * words + rest.take_while(|(a, b)| a == b).count()
}

/// Header and origin of the run with this number, and their checksums.
pub(super) fn header(number: u64, id: DirId) -> (Vec<u8>, [u32; 2]) {
    let mut out = Vec::with_capacity(BLOCKS_AT);
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&VERSION.to_le_bytes());
    out.extend_from_slice(&number.to_le_bytes());
    let checksums = [checksum(0, &out), checksum(HEADER_BYTES as u64, &id.to_bytes())];
    out.extend_from_slice(&checksums[0].to_le_bytes());
    out.extend_from_slice(&id.to_bytes());
    out.extend_from_slice(&checksums[1].to_le_bytes());
    (out, checksums)
}

/// The format version in a run's header; `None` if the header is invalid.
pub(super) fn version_of(disk: &dyn Disk, name: &str) -> io::Result<Option<u32>> {
    let mut bytes = [0; HEADER_BYTES];
    match disk.open(name)?.read_at(0, &mut bytes) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        other => other?,
    }
    let content = checked(0, &bytes).and_then(|content| content.strip_prefix(&MAGIC));
    Ok(content.and_then(|content| Cursor::new(content).array().map(u32::from_le_bytes)))
}

/// The footer: offsets and counts.
#[derive(Clone, Copy)]
pub(super) struct Footer {
    pub(super) filter: u64,
    pub(super) index: u64,
    pub(super) entries: u64,
    pub(super) tombstones: u64,
    pub(super) blocks: u64,
    /// None in version 1.
    pub(super) digest: Option<u64>,
}

impl Footer {
    /// Encodes a footer that begins at `offset`.
    pub(super) fn encode(&self, offset: u64) -> Vec<u8> {
        let mut out = Vec::with_capacity(FOOTER_BYTES);
        let digest = self.digest.unwrap_or_default();
        for number in [self.filter, self.index, self.entries, self.tombstones, self.blocks, digest] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        out.extend_from_slice(&checksum(offset, &out).to_le_bytes());
        out
    }

    fn decode(content: &[u8]) -> Option<Footer> {
        let mut cursor = Cursor::new(content);
        let mut number = || cursor.array().map(u64::from_le_bytes);
        let (filter, index) = (number()?, number()?);
        Some(Footer { filter, index, entries: number()?, tombstones: number()?, blocks: number()?, digest: number() })
    }
}

impl Run {
    /// Whether the run may contain the key, according to its range and filter. `hash` is the key's.
    pub(super) fn may_hold(&self, key: &[u8], hash: u64) -> bool {
        // The range first: the filter costs a cache miss.
        *self.smallest <= *key && *key <= *self.largest && self.filter.may_contain(hash)
    }

    /// Opens a run that the manifest of directory `id` lists. Reads and checks everything but the blocks.
    pub(super) fn open(disk: &dyn Disk, id: DirId, named: RunRef) -> Result<Run, StoreError> {
        let name = file_name(named.number);
        let file = disk.open(&name).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => StoreError::damaged(
                &name,
                0,
                "the file is missing, but the manifest lists it; restore it from a backup",
            ),
            _ => StoreError::io(&name, error),
        })?;
        RunOpener { name, file, id, named }.open()
    }

    /// The checksums of the filter and the index in the file.
    pub(super) fn part_checksums(&self) -> Result<[u32; 2], StoreError> {
        let footer_bytes = if self.digest.is_some() { FOOTER_BYTES } else { FOOTER_BYTES_V1 };
        let footer_at = self.bytes - footer_bytes as u64;
        let index_at = self.index.end() + (self.filter.bytes() + CHECKSUM_BYTES) as u64;
        let mut checksums = [0; 2];
        for (checksum, end) in checksums.iter_mut().zip([index_at, footer_at]) {
            let offset = end - CHECKSUM_BYTES as u64;
            let mut stored = [0; CHECKSUM_BYTES];
            self.file.read_at(offset, &mut stored).map_err(|error| StoreError::reading(&self.name, offset, error))?;
            *checksum = u32::from_le_bytes(stored);
        }
        Ok(checksums)
    }

    /// The run as the manifest lists it.
    pub(super) fn named(&self) -> RunRef {
        RunRef { number: self.number, entries: self.entries, bytes: self.bytes, digest: self.digest }
    }

    /// Bytes used in memory.
    pub(super) fn memory_bytes(&self) -> usize {
        self.filter.bytes() + self.index.bytes() + self.smallest.len() + self.largest.len() + size_of::<Run>()
    }

    pub(super) fn damaged(&self, offset: u64, what: &'static str) -> StoreError {
        StoreError::damaged(&self.name, offset, what)
    }
}

/// The content of the index section.
struct IndexSection {
    smallest: Box<[u8]>,
    largest: Box<[u8]>,
    index: Index,
}

/// A run being opened.
struct RunOpener {
    name: String,
    file: Arc<dyn DiskFile>,
    id: DirId,
    named: RunRef,
}

impl RunOpener {
    fn damaged(&self, offset: u64, what: &'static str) -> StoreError {
        StoreError::damaged(&self.name, offset, what)
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), StoreError> {
        self.file.read_at(offset, buf).map_err(|error| StoreError::reading(&self.name, offset, error))
    }

    fn open(self) -> Result<Run, StoreError> {
        let len = self.file.len().map_err(|error| StoreError::io(&self.name, error))?;
        let (blocks_at, footer_bytes) = match self.named.digest {
            Some(_) => (BLOCKS_AT, FOOTER_BYTES),
            None => (BLOCKS_AT_V1, FOOTER_BYTES_V1),
        };
        if len != self.named.bytes || len < (blocks_at + footer_bytes) as u64 {
            let offset = len.min(self.named.bytes);
            return Err(self.damaged(offset, "the length of the file is not the one in the manifest"));
        }
        self.check_header()?;
        let end = len - footer_bytes as u64;
        let footer = self.read_footer(blocks_at as u64, end, footer_bytes)?;
        let filter = self.read_filter(footer.filter, footer.index)?;
        let IndexSection { smallest, largest, index } = self.read_index(blocks_at as u64, &footer, end)?;
        Ok(Run {
            number: self.named.number,
            name: self.name,
            file: self.file,
            bytes: len,
            entries: footer.entries,
            tombstones: footer.tombstones,
            digest: footer.digest,
            smallest,
            largest,
            index,
            filter,
        })
    }

    fn check_header(&self) -> Result<(), StoreError> {
        let mut bytes = [0; HEADER_BYTES];
        self.read(0, &mut bytes)?;
        let content = checked(0, &bytes).ok_or_else(|| self.damaged(0, "the header does not match its checksum"))?;
        let mut cursor = Cursor::new(content);
        if cursor.array() != Some(MAGIC) {
            return Err(self.damaged(0, "the file is not a run"));
        }
        let version = cursor.array().map(u32::from_le_bytes).unwrap_or_default();
        if !(1..=VERSION).contains(&version) {
            return Err(StoreError::Version { file: self.name.clone(), found: version, known: VERSION });
        }
        if cursor.array().map(u64::from_le_bytes) != Some(self.named.number) {
            return Err(self.damaged(0, "the file is another run under this name"));
        }
        if (version == 1) != self.named.digest.is_none() {
            return Err(self.damaged(0, "the format version is not the one in the manifest"));
        }
        if version == 1 { Ok(()) } else { self.check_origin() }
    }

    fn check_origin(&self) -> Result<(), StoreError> {
        let offset = HEADER_BYTES as u64;
        let mut bytes = [0; ORIGIN_BYTES];
        self.read(offset, &mut bytes)?;
        match checked(offset, &bytes) {
            None => Err(self.damaged(offset, "the origin does not match its checksum")),
            Some(id) if *id != self.id.to_bytes() => Err(self.damaged(offset, FOREIGN)),
            Some(_) => Ok(()),
        }
    }

    fn read_footer(&self, blocks_at: u64, offset: u64, bytes: usize) -> Result<Footer, StoreError> {
        let mut bytes = vec![0; bytes];
        self.read(offset, &mut bytes)?;
        let footer = checked(offset, &bytes)
            .and_then(Footer::decode)
            .ok_or_else(|| self.damaged(offset, "the footer does not match its checksum"))?;
        let ordered = blocks_at <= footer.filter && footer.filter < footer.index && footer.index < offset;
        if !ordered || footer.entries != self.named.entries {
            return Err(self.damaged(offset, "the footer contradicts the file or the manifest"));
        }
        if footer.digest != self.named.digest {
            return Err(self.damaged(offset, "the digest is not the one in the manifest"));
        }
        Ok(footer)
    }

    /// Reads the filter in chunks, so that a large one does not take twice its memory.
    fn read_filter(&self, start: u64, end: u64) -> Result<Filter, StoreError> {
        let mut left = (end - start) as usize;
        if left < LINE_BYTES + CHECKSUM_BYTES || !(left - CHECKSUM_BYTES).is_multiple_of(LINE_BYTES) {
            return Err(self.damaged(start, "the filter has an impossible length"));
        }
        left -= CHECKSUM_BYTES;
        let mut filter = Filter::with_room(left);
        let mut hasher = checksum_at(start);
        let mut buf = vec![0; left.min(FILTER_READ_BYTES)];
        let mut offset = start;
        while left > 0 {
            buf.truncate(left);
            self.read(offset, &mut buf)?;
            hasher.update(&buf);
            filter.decode(&buf);
            offset += buf.len() as u64;
            left -= buf.len();
        }
        let mut stored = [0; CHECKSUM_BYTES];
        self.read(offset, &mut stored)?;
        if hasher.finalize() != u32::from_le_bytes(stored) {
            return Err(self.damaged(start, "the filter does not match its checksum"));
        }
        Ok(filter)
    }

    fn read_index(&self, blocks_at: u64, footer: &Footer, end: u64) -> Result<IndexSection, StoreError> {
        let mut bytes = vec![0; (end - footer.index) as usize];
        self.read(footer.index, &mut bytes)?;
        let content = checked(footer.index, &bytes)
            .ok_or_else(|| self.damaged(footer.index, "the index does not match its checksum"))?;
        let parse = |cursor: &mut Cursor<'_>| {
            let smallest = cursor.bytes(KEY_BYTES_MAX)?.into();
            let largest = cursor.bytes(KEY_BYTES_MAX)?.into();
            let index = Index::decode(cursor, footer.blocks, blocks_at)?;
            (cursor.is_done() && index.end() == footer.filter).then_some(IndexSection { smallest, largest, index })
        };
        parse(&mut Cursor::new(content))
            .ok_or_else(|| self.damaged(footer.index, "the index contradicts itself or the footer"))
    }
}

#[cfg(test)]
mod tests {
    use super::shared_prefix;

    #[test]
    fn the_shared_prefix_ends_at_the_first_difference_or_the_shorter_end() {
        for (a, b, shared) in [
            ("", "", 0),
            ("", "a", 0),
            ("abc", "abd", 2),
            ("abcdefgh", "abcdefgh", 8),
            ("abcdefghi", "abcdefghij", 9),
            ("abcdefghijklmnopq", "abcdefghijklmnopX", 16),
            ("abcdefgXijklmnopq", "abcdefghijklmnopq", 7),
        ] {
            assert_eq!(shared_prefix(a.as_bytes(), b.as_bytes()), shared, "{a} {b}");
        }
    }
}
