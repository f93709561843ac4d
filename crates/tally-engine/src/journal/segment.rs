//! A segment: one file of the journal, its name and its header.
//!
//! ```text
//! offset  0            8      16       17         20      24             32         36      40
//!         "tallyjnl"   base   version  salt       crc32   directory id   reserved   crc32   frames …
//!         8 bytes      u64    u8       3 bytes    u32     u64            u32        u32     little-endian
//! ```
//!
//! Each checksum covers everything before it. The first 24 bytes are the same in every format, so that an older program
//! can report the version of a newer file. The version determines the rest; the header of format 1 ends there.
//!
//! `reserved` is the length of the file. Only recovery shortens a segment, and only to the end of a frame, so a file
//! with any other length is damaged.

use std::io;

use tally_core::time::Position;

use super::end::END_FILE;
use super::frame::Salt;
use crate::disk::Disk;
use crate::identity::DirId;

/// Bytes before the first frame in the current format. Positions count them.
pub const SEGMENT_HEADER_BYTES: u64 = 40;
/// The current format, which is written, and the newest that can be read.
pub const FORMAT_VERSION: u8 = 2;

const MAGIC: [u8; 8] = *b"tallyjnl";
/// Bytes of the part that every format has, without its checksum.
const COMMON_CHECKED_BYTES: usize = 20;
/// Bytes of the part that every format has.
const COMMON_BYTES: usize = 24;
/// Bytes of the header without its last checksum.
const CHECKED_BYTES: usize = 36;
const VERSION_AT: usize = 16;

/// A valid header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The format of the segment.
    pub version: u8,
    /// Initial value of the checksums of its frames.
    pub salt: Salt,
    /// The directory it belongs to and the length of its file. Not in format 1.
    pub origin: Option<Origin>,
}

/// The part of the header that was added in format 2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The directory it belongs to.
    pub id: DirId,
    /// Bytes reserved for it.
    pub reserved_bytes: u64,
}

impl Header {
    /// Bytes before the first frame.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        match self.origin {
            Some(_) => SEGMENT_HEADER_BYTES,
            None => COMMON_BYTES as u64,
        }
    }
}

/// Why the start of a file is not the header of its segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderFault {
    /// Not a header, or not the one of this file name.
    Damaged(&'static str),
    /// A valid header of a newer format.
    Newer(u8),
}

/// The name of the segment that begins at `base`.
#[must_use]
pub fn segment_name(base: Position) -> String {
    format!("journal-{:016x}.seg", base.0)
}

/// The name of a spare.
#[must_use]
pub(super) fn spare_name(serial: u64) -> String {
    format!("spare-{serial:016x}.seg")
}

/// The header of the segment at `base`. `reserved_bytes`, the length of the file, must fit in 32 bits.
#[must_use]
pub fn encode_header(
    base: Position,
    salt: Salt,
    id: DirId,
    reserved_bytes: u64,
) -> [u8; SEGMENT_HEADER_BYTES as usize] {
    let mut header = [0; SEGMENT_HEADER_BYTES as usize];
    header[..COMMON_BYTES].copy_from_slice(&encode_common(base, salt, FORMAT_VERSION));
    header[24..32].copy_from_slice(&id.to_bytes());
    header[32..CHECKED_BYTES].copy_from_slice(&(reserved_bytes as u32).to_le_bytes());
    let crc = crc32fast::hash(&header[..CHECKED_BYTES]);
    header[CHECKED_BYTES..].copy_from_slice(&crc.to_le_bytes());
    header
}

fn encode_common(base: Position, salt: Salt, version: u8) -> [u8; COMMON_BYTES] {
    let mut header = [0; COMMON_BYTES];
    header[..8].copy_from_slice(&MAGIC);
    header[8..16].copy_from_slice(&base.0.to_le_bytes());
    header[VERSION_AT] = version;
    header[17..20].copy_from_slice(&salt.to_bytes());
    let crc = crc32fast::hash(&header[..COMMON_CHECKED_BYTES]);
    header[COMMON_CHECKED_BYTES..].copy_from_slice(&crc.to_le_bytes());
    header
}

/// Decodes the header at the start of `bytes`, which must be that of the segment at `base`.
pub fn check_header(bytes: &[u8], base: Position) -> Result<Header, HeaderFault> {
    let common: &[u8; COMMON_BYTES] =
        bytes.first_chunk().ok_or(HeaderFault::Damaged("the segment header is truncated"))?;
    if common[..8] != MAGIC {
        return Err(HeaderFault::Damaged("this is not a journal segment"));
    }
    if crc32fast::hash(&common[..COMMON_CHECKED_BYTES]).to_le_bytes() != common[COMMON_CHECKED_BYTES..] {
        return Err(HeaderFault::Damaged("the segment header's checksum does not match"));
    }
    let version = common[VERSION_AT];
    let origin = match version {
        0 => return Err(HeaderFault::Damaged("the segment header has no format version")),
        1 => None,
        FORMAT_VERSION => Some(check_origin(bytes)?),
        newer => return Err(HeaderFault::Newer(newer)),
    };
    if common[8..16] != base.0.to_le_bytes() {
        return Err(HeaderFault::Damaged("the segment header has another position than the file name"));
    }
    Ok(Header { version, salt: Salt::from_bytes([common[17], common[18], common[19]]), origin })
}

fn check_origin(bytes: &[u8]) -> Result<Origin, HeaderFault> {
    let header: &[u8; SEGMENT_HEADER_BYTES as usize] =
        bytes.first_chunk().ok_or(HeaderFault::Damaged("the segment header is truncated"))?;
    let (checked, stored) = header.split_at(CHECKED_BYTES);
    if crc32fast::hash(checked).to_le_bytes() != stored {
        return Err(HeaderFault::Damaged("the segment header's second checksum does not match"));
    }
    let [.., a, b, c, d] = checked else { return Err(HeaderFault::Damaged("the segment header is truncated")) };
    let id = header[COMMON_BYTES..].first_chunk().map_or_else(DirId::default, |id| DirId::from_bytes(*id));
    Ok(Origin { id, reserved_bytes: u64::from(u32::from_le_bytes([*a, *b, *c, *d])) })
}

/// What the file names and headers of a journal say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct JournalHeaders {
    /// Where its first segment begins.
    pub first: Option<Position>,
    /// The newest format of a valid segment header.
    pub newest_format: u8,
}

/// Reads file names and headers, but no frames.
pub(crate) fn read_headers(disk: &dyn Disk) -> io::Result<JournalHeaders> {
    let bases = list(disk)?.bases;
    let mut newest_format = 0;
    for base in &bases {
        let mut bytes = [0; SEGMENT_HEADER_BYTES as usize];
        let file = disk.open(&segment_name(*base))?;
        let len = file.len()?.min(SEGMENT_HEADER_BYTES) as usize;
        file.read_at(0, &mut bytes[..len])?;
        newest_format = newest_format.max(match check_header(&bytes[..len], *base) {
            Ok(header) => header.version,
            Err(HeaderFault::Newer(version)) => version,
            Err(HeaderFault::Damaged(_)) => 0,
        });
    }
    Ok(JournalHeaders { first: bases.first().copied(), newest_format })
}

/// The journal's files in a directory.
#[derive(Debug, Default)]
pub(super) struct Listing {
    /// Where segments begin, in order.
    pub bases: Vec<Position>,
    /// Serial numbers of spares, in order.
    pub spares: Vec<u64>,
}

/// Lists the journal's files.
pub(super) fn list(disk: &dyn Disk) -> io::Result<Listing> {
    let mut listing = Listing::default();
    for name in disk.names()? {
        if let Some(base) = numbered(&name, "journal-") {
            listing.bases.push(Position(base));
        } else if let Some(serial) = numbered(&name, "spare-") {
            listing.spares.push(serial);
        }
    }
    listing.bases.sort_unstable();
    listing.spares.sort_unstable();
    Ok(listing)
}

/// Whether this is the name of a file of the journal.
pub(crate) fn is_journal(name: &str) -> bool {
    name == END_FILE || numbered(name, "journal-").is_some()
}

/// Whether this is the name of a spare segment.
pub(crate) fn is_spare(name: &str) -> bool {
    numbered(name, "spare-").is_some()
}

/// Frees disk space on a full disk: removes all spares, and the segments that lie entirely before `before`, a durable
/// checkpoint. The last segment is never removed.
pub fn remove_before(disk: &dyn Disk, before: Position) -> io::Result<()> {
    let listing = list(disk)?;
    for pair in listing.bases.windows(2) {
        if let [base, next] = pair
            && *next <= before
        {
            disk.remove(&segment_name(*base))?;
        }
    }
    for serial in listing.spares {
        disk.remove(&spare_name(serial))?;
    }
    disk.sync_names()
}

fn numbered(name: &str, prefix: &str) -> Option<u64> {
    let digits = name.strip_prefix(prefix)?.strip_suffix(".seg")?;
    let lower_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    (digits.len() == 16 && digits.bytes().all(lower_hex)).then(|| u64::from_str_radix(digits, 16).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    const SALT: Salt = Salt::from_bytes([1, 2, 3]);
    const ORIGIN: Origin = Origin { id: DirId::new(0x1122_3344_5566_7788), reserved_bytes: 64 << 20 };

    fn header() -> [u8; SEGMENT_HEADER_BYTES as usize] {
        encode_header(Position(4096), SALT, ORIGIN.id, ORIGIN.reserved_bytes)
    }

    #[test]
    fn a_header_is_valid_for_its_own_base_only() {
        let expected = Header { version: FORMAT_VERSION, salt: SALT, origin: Some(ORIGIN) };
        assert_eq!(check_header(&header(), Position(4096)), Ok(expected));
        assert_eq!(expected.bytes(), SEGMENT_HEADER_BYTES);
        assert!(matches!(check_header(&header(), Position(0)), Err(HeaderFault::Damaged(_))));
        for length in 0..SEGMENT_HEADER_BYTES as usize {
            assert!(matches!(check_header(&header()[..length], Position(4096)), Err(HeaderFault::Damaged(_))));
        }
    }

    #[test]
    fn a_header_of_format_1_is_read_and_ends_after_24_bytes() {
        let found = check_header(&encode_common(Position(8), SALT, 1), Position(8));
        assert_eq!(found, Ok(Header { version: 1, salt: SALT, origin: None }));
        assert_eq!(found.map(|header| header.bytes()), Ok(24));
    }

    #[test]
    fn every_flipped_bit_of_a_header_is_damage_and_never_another_version() {
        for bit in 0..SEGMENT_HEADER_BYTES * 8 {
            let mut header = header();
            header[bit as usize / 8] ^= 1 << (bit % 8);
            assert!(matches!(check_header(&header, Position(4096)), Err(HeaderFault::Damaged(_))), "bit {bit}");
        }
    }

    #[test]
    fn a_header_of_a_newer_format_reports_its_version() {
        assert_eq!(check_header(&encode_common(Position(8), SALT, 7), Position(8)), Err(HeaderFault::Newer(7)));
    }

    #[test]
    fn only_names_exactly_as_written_belong_to_the_journal() {
        assert_eq!(numbered(&segment_name(Position(0xab)), "journal-"), Some(0xab));
        assert_eq!(numbered(&spare_name(3), "spare-"), Some(3));
        for name in ["journal-ab.seg", "journal-00000000000000AB.seg", "journal-+0000000000000ab.seg", "journal-.seg"] {
            assert_eq!(numbered(name, "journal-"), None, "{name}");
        }
    }
}
