//! A segment: one file of the journal, its name and its header.
//!
//! ```text
//! offset  0            8      16       17         20      24
//!         "tallyjnl"   base   version  salt       crc32   frames …
//!         8 bytes      u64    u8       3 bytes    u32     little-endian
//! ```
//!
//! The checksum covers the 20 bytes before it. These 24 bytes stay as they are in every format to come, so that an
//! older program can always say which version it met; the version governs the frames that follow.

use std::io;

use tally_core::time::Position;

use super::frame::Salt;
use crate::disk::Disk;

/// Bytes before the first frame; they count as part of the journal.
pub const SEGMENT_HEADER_BYTES: u64 = 24;
/// The format this program writes, and the newest it reads.
pub const FORMAT_VERSION: u8 = 1;

const MAGIC: [u8; 8] = *b"tallyjnl";
const CHECKED_BYTES: usize = 20;

/// Why the start of a file is not the header of its segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderFault {
    /// Not a header, or not the one this file name asks for.
    Damaged(&'static str),
    /// A sound header of a format from the future.
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

/// The header of the segment that begins at `base`.
#[must_use]
pub fn encode_header(base: Position, salt: Salt) -> [u8; SEGMENT_HEADER_BYTES as usize] {
    encode_versioned(base, salt, FORMAT_VERSION)
}

fn encode_versioned(base: Position, salt: Salt, version: u8) -> [u8; SEGMENT_HEADER_BYTES as usize] {
    let mut header = [0; SEGMENT_HEADER_BYTES as usize];
    header[..8].copy_from_slice(&MAGIC);
    header[8..16].copy_from_slice(&base.0.to_le_bytes());
    header[16] = version;
    header[17..20].copy_from_slice(&salt.to_bytes());
    let crc = crc32fast::hash(&header[..CHECKED_BYTES]);
    header[CHECKED_BYTES..].copy_from_slice(&crc.to_le_bytes());
    header
}

/// Checks that `bytes` begin with the header of the segment at `base`, and reads its salt.
pub fn check_header(bytes: &[u8], base: Position) -> Result<Salt, HeaderFault> {
    let header: &[u8; SEGMENT_HEADER_BYTES as usize] =
        bytes.first_chunk().ok_or(HeaderFault::Damaged("the segment header is cut short"))?;
    if header[..8] != MAGIC {
        return Err(HeaderFault::Damaged("this is not a journal segment"));
    }
    if crc32fast::hash(&header[..CHECKED_BYTES]).to_le_bytes() != header[CHECKED_BYTES..] {
        return Err(HeaderFault::Damaged("the segment header's checksum does not match"));
    }
    match header[16] {
        0 => return Err(HeaderFault::Damaged("the segment header names no format")),
        1..=FORMAT_VERSION => {}
        newer => return Err(HeaderFault::Newer(newer)),
    }
    if header[8..16] != base.0.to_le_bytes() {
        return Err(HeaderFault::Damaged("the segment header names another position than the file name"));
    }
    Ok(Salt::from_bytes([header[17], header[18], header[19]]))
}

/// The journal's files in a directory.
#[derive(Debug, Default)]
pub(super) struct Listing {
    /// Where segments begin, in order.
    pub bases: Vec<Position>,
    /// Serial numbers of spares, in order.
    pub spares: Vec<u64>,
}

/// Lists what belongs to the journal and leaves out the rest.
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

/// Removes the segments whose every byte lies before `before`, a durable checkpoint, and all spares: what a writer that
/// found no room to begin can do without. The last segment stays, whatever its place.
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

    #[test]
    fn a_header_is_sound_for_its_own_base_only() {
        let header = encode_header(Position(4096), SALT);
        assert_eq!(check_header(&header, Position(4096)), Ok(SALT));
        assert!(matches!(check_header(&header, Position(0)), Err(HeaderFault::Damaged(_))));
        assert!(matches!(check_header(&header[..23], Position(4096)), Err(HeaderFault::Damaged(_))));
    }

    #[test]
    fn every_flipped_bit_of_a_header_is_damage_and_never_a_newer_version() {
        for bit in 0..SEGMENT_HEADER_BYTES * 8 {
            let mut header = encode_header(Position(4096), SALT);
            header[bit as usize / 8] ^= 1 << (bit % 8);
            assert!(matches!(check_header(&header, Position(4096)), Err(HeaderFault::Damaged(_))), "bit {bit}");
        }
    }

    #[test]
    fn a_sound_header_of_a_later_format_says_its_version() {
        assert_eq!(check_header(&encode_versioned(Position(8), SALT, 7), Position(8)), Err(HeaderFault::Newer(7)));
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
