//! A frame: one payload in the journal, with its position and a checksum.
//!
//! ```text
//! offset  0       4        8          16               24
//!         crc32   length   position   flushed_before   payload, zero-padded to a multiple of 8
//!         u32     u32      u64        u64              all little-endian
//! ```
//!
//! The checksum covers everything after itself, including padding, and starts from the segment's salt. Without the
//! salt, a client could forge a frame in a key. `position` is the frame's own position, so stale bytes of a recycled
//! segment never pass for a frame. `flushed_before` is the position before which everything was durable when the frame
//! was written; recovery uses it to tell damage from a torn tail.
//!
//! A frame is built in steps, so that the payload is never copied and the flusher computes the checksum outside the
//! engine's lock: [`begin_frame`] reserves the header, the caller appends the payload, [`end_frame`] pads it and sets
//! length and position. [`stamp_frames`] sets `flushed_before` and the checksum just before the write. Frames have no
//! version: it is in the segment's header.

use tally_core::time::Position;

/// Bytes before the payload.
pub const FRAME_HEADER_BYTES: usize = 24;
/// Frames begin at multiples of this, both in the journal and in the segment.
pub const FRAME_ALIGN_BYTES: usize = 8;

const LENGTH_AT: usize = 4;
const POSITION_AT: usize = 8;
const FLUSHED_AT: usize = 16;

/// Initial value of the checksums of a segment's frames. Stored in its header and unknown to clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Salt([u8; 3]);

impl Salt {
    /// The low 24 bits of `bits`.
    #[must_use]
    pub fn new(bits: u64) -> Salt {
        let [a, b, c, ..] = bits.to_le_bytes();
        Salt([a, b, c])
    }

    pub(super) const fn from_bytes(bytes: [u8; 3]) -> Salt {
        Salt(bytes)
    }

    pub(super) fn to_bytes(self) -> [u8; 3] {
        self.0
    }

    fn checksum(self, bytes: &[u8]) -> u32 {
        let [a, b, c] = self.0;
        let mut hasher = crc32fast::Hasher::new_with_initial(u32::from_le_bytes([a, b, c, 0]));
        hasher.update(bytes);
        hasher.finalize()
    }
}

/// A valid frame, borrowed from the read buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// Where it begins.
    pub position: Position,
    /// Where it ends.
    pub end: Position,
    /// Everything before this was durable when the frame was written.
    pub flushed_before: Position,
    /// Its payload.
    pub payload: &'a [u8],
}

/// Why bytes are not the frame that was expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameFault {
    /// Nothing with this position: zeros, or stale bytes.
    #[error("no frame begins here")]
    Absent,
    /// Its length exceeds the available bytes.
    #[error("the frame is truncated")]
    Cut,
    /// It has this position, but its checksum does not match.
    #[error("the frame's checksum does not match")]
    Checksum,
}

/// The header fields, not verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FrameHeader {
    pub crc: u32,
    pub length: u32,
    pub position: Position,
    pub flushed_before: Position,
}

impl FrameHeader {
    /// Reads the fields, if there are enough bytes for them.
    pub fn read(bytes: &[u8]) -> Option<FrameHeader> {
        Some(FrameHeader {
            crc: read_u32(bytes, 0)?,
            length: read_u32(bytes, LENGTH_AT)?,
            position: Position(read_u64(bytes, POSITION_AT)?),
            flushed_before: Position(read_u64(bytes, FLUSHED_AT)?),
        })
    }

    /// Bytes of the whole frame.
    pub fn framed_len(&self) -> u64 {
        framed_len(self.length as usize)
    }
}

/// Bytes a payload takes as a frame.
#[must_use]
pub const fn framed_len(payload: usize) -> u64 {
    (FRAME_HEADER_BYTES as u64 + payload as u64).next_multiple_of(FRAME_ALIGN_BYTES as u64)
}

/// Reserves a header at the end of `out` and returns where the frame starts in it. Append the payload next.
pub fn begin_frame(out: &mut Vec<u8>) -> usize {
    let start = out.len();
    out.resize(start + FRAME_HEADER_BYTES, 0);
    start
}

/// Completes the frame begun at `start`: everything after its header is the payload. It must be less than 4 GiB;
/// [`Reservation::place`](super::Reservation::place) admits none that is larger.
pub fn end_frame(out: &mut Vec<u8>, start: usize, position: Position) {
    let length = out.len() - start - FRAME_HEADER_BYTES;
    out.resize(start + framed_len(length) as usize, 0);
    let frame = &mut out[start..];
    frame[LENGTH_AT..POSITION_AT].copy_from_slice(&(length as u32).to_le_bytes());
    frame[POSITION_AT..FLUSHED_AT].copy_from_slice(&position.0.to_le_bytes());
}

/// Sets `flushed_before` and the checksum of consecutive frames, the first at position `first`. Returns where they end.
pub fn stamp_frames(
    mut frames: &mut [u8],
    first: Position,
    flushed_before: Position,
    salt: Salt,
) -> Result<Position, FrameFault> {
    let mut position = first;
    while !frames.is_empty() {
        let header = FrameHeader::read(frames).ok_or(FrameFault::Cut)?;
        if header.position != position {
            return Err(FrameFault::Absent);
        }
        let framed = header.framed_len();
        if framed > frames.len() as u64 {
            return Err(FrameFault::Cut);
        }
        let (frame, rest) = frames.split_at_mut(framed as usize);
        frame[FLUSHED_AT..FRAME_HEADER_BYTES].copy_from_slice(&flushed_before.0.to_le_bytes());
        let crc = salt.checksum(&frame[LENGTH_AT..]);
        frame[..LENGTH_AT].copy_from_slice(&crc.to_le_bytes());
        position.0 += framed;
        frames = rest;
    }
    Ok(position)
}

/// Appends a complete frame to `out`.
pub fn encode_frame(out: &mut Vec<u8>, position: Position, flushed_before: Position, salt: Salt, payload: &[u8]) {
    let start = begin_frame(out);
    out.extend_from_slice(payload);
    end_frame(out, start, position);
    // The frame was just built, so it is valid.
    let _ = stamp_frames(&mut out[start..], position, flushed_before, salt);
}

/// Decodes the frame at the start of `bytes`, which must have position `expected`.
pub fn decode_frame(bytes: &[u8], expected: Position, salt: Salt) -> Result<Frame<'_>, FrameFault> {
    let header = FrameHeader::read(bytes).ok_or(FrameFault::Absent)?;
    if header.position != expected {
        return Err(FrameFault::Absent);
    }
    let framed = header.framed_len();
    if framed > bytes.len() as u64 {
        return Err(FrameFault::Cut);
    }
    if salt.checksum(&bytes[LENGTH_AT..framed as usize]) != header.crc {
        return Err(FrameFault::Checksum);
    }
    Ok(Frame {
        position: expected,
        end: Position(expected.0 + framed),
        flushed_before: header.flushed_before,
        payload: &bytes[FRAME_HEADER_BYTES..FRAME_HEADER_BYTES + header.length as usize],
    })
}

/// The first aligned offset of a complete header that has the right position. `bytes` begin at `position`.
pub(super) fn find_claim(bytes: &[u8], position: Position) -> Option<usize> {
    let whole_headers_end = bytes.len().checked_sub(FRAME_HEADER_BYTES - FLUSHED_AT)?;
    let mut claimed = position.0;
    for (index, field) in bytes.get(POSITION_AT..whole_headers_end)?.chunks_exact(FRAME_ALIGN_BYTES).enumerate() {
        if field == claimed.to_le_bytes() {
            return Some(index * FRAME_ALIGN_BYTES);
        }
        claimed = claimed.wrapping_add(FRAME_ALIGN_BYTES as u64);
    }
    None
}

fn read_u32(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|field| u32::from_le_bytes(*field))
}

fn read_u64(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().map(|field| u64::from_le_bytes(*field))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    const SALT: Salt = Salt([1, 2, 3]);

    fn frame(payload: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        encode_frame(&mut out, Position(64), Position(24), SALT, payload);
        out
    }

    #[test]
    fn a_frame_reads_back_as_written_and_ends_aligned() {
        for length in 0..40 {
            let payload: Vec<u8> = (0..length).collect();
            let bytes = frame(&payload);
            assert_eq!(bytes.len() as u64, framed_len(payload.len()));
            assert_eq!(bytes.len() % FRAME_ALIGN_BYTES, 0);
            let read = decode_frame(&bytes, Position(64), SALT).unwrap();
            assert_eq!(read.payload, payload);
            assert_eq!(read.flushed_before, Position(24));
            assert_eq!(read.end, Position(64 + bytes.len() as u64));
        }
    }

    #[test]
    fn every_flipped_bit_of_a_frame_is_detected_including_padding() {
        let intact = frame(b"eleven byte");
        for bit in 0..intact.len() * 8 {
            let mut bytes = intact.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(decode_frame(&bytes, Position(64), SALT).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn every_truncation_of_a_frame_is_detected() {
        let intact = frame(b"eleven byte");
        for length in 0..intact.len() {
            assert!(decode_frame(&intact[..length], Position(64), SALT).is_err(), "{length} bytes");
        }
    }

    #[test]
    fn a_frame_at_another_position_is_absent() {
        assert_eq!(decode_frame(&frame(b"x"), Position(72), SALT), Err(FrameFault::Absent));
        assert_eq!(decode_frame(&[0; 64], Position(24), SALT), Err(FrameFault::Absent));
    }

    #[test]
    fn a_payload_encoded_in_place_and_stamped_later_is_the_same_frame() {
        let mut staged = Vec::new();
        let mut position = Position(64);
        for payload in [&b"one"[..], b"", b"three and more"] {
            let start = begin_frame(&mut staged);
            staged.extend_from_slice(payload);
            end_frame(&mut staged, start, position);
            position.0 += framed_len(payload.len());
        }
        assert_eq!(stamp_frames(&mut staged, Position(64), Position(24), SALT), Ok(position));
        let mut direct = Vec::new();
        let mut position = Position(64);
        for payload in [&b"one"[..], b"", b"three and more"] {
            encode_frame(&mut direct, position, Position(24), SALT, payload);
            position.0 += framed_len(payload.len());
        }
        assert_eq!(staged, direct);
    }

    #[test]
    fn stamping_refuses_frames_of_other_positions_and_truncated_ones() {
        let mut bytes = frame(b"payload");
        assert_eq!(stamp_frames(&mut bytes, Position(0), Position(0), SALT), Err(FrameFault::Absent));
        let cut = bytes.len() - 1;
        assert_eq!(stamp_frames(&mut bytes[..cut], Position(64), Position(0), SALT), Err(FrameFault::Cut));
    }

    #[test]
    fn candidate_frames_are_found_at_aligned_offsets_only() {
        let mut bytes = vec![0; 16];
        encode_frame(&mut bytes, Position(1016), Position(0), SALT, b"payload");
        assert_eq!(find_claim(&bytes, Position(1000)), Some(16));
        assert_eq!(find_claim(&bytes, Position(1008)), None);
        assert_eq!(find_claim(&bytes[..16], Position(1000)), None);
    }

    #[test]
    fn a_frame_with_the_wrong_salt_is_invalid() {
        let mut forged = Vec::new();
        encode_frame(&mut forged, Position(64), Position(24), Salt::new(0), b"forged");
        assert_eq!(decode_frame(&forged, Position(64), SALT), Err(FrameFault::Checksum));
    }
}
