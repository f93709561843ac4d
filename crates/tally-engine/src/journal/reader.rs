//! Reading one segment file, in large chunks.

use std::io;
use std::sync::Arc;

use tally_core::time::Position;

use super::frame::{
    FRAME_ALIGN_BYTES, FRAME_HEADER_BYTES, Frame, FrameFault, FrameHeader, Salt, decode_frame, find_claim,
};
use super::segment::{Header, HeaderFault, SEGMENT_HEADER_BYTES, check_header};
use crate::disk::DiskFile;

/// Bytes read at once. A larger frame is read whole.
const CHUNK_BYTES: u64 = 1 << 20;

/// A segment being read.
pub(super) struct SegmentReader {
    file: Arc<dyn DiskFile>,
    base: Position,
    /// From the header, once it is read.
    salt: Salt,
    len: u64,
    buffer: Vec<u8>,
    /// Offset in the file at which the buffer begins.
    buffer_at: u64,
    /// Bytes of the buffer that are valid.
    filled: usize,
}

/// What follows the first invalid frame of a segment.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct TailScan {
    /// Offset of a valid frame which shows that the invalid one was flushed.
    pub later_flush: Option<u64>,
    /// End of the last bytes that look like a frame of this segment, or the start of the scan if there are none.
    pub claims_end: u64,
}

impl SegmentReader {
    /// Reads `file`, the segment at `base`. `buffer` is reused from one segment to the next.
    pub fn new(file: Arc<dyn DiskFile>, base: Position, buffer: Vec<u8>) -> io::Result<SegmentReader> {
        let len = file.len()?;
        Ok(SegmentReader { file, base, salt: Salt::default(), len, buffer, buffer_at: 0, filled: 0 })
    }

    /// Bytes of the file.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns the file and the buffer.
    pub fn into_parts(self) -> (Arc<dyn DiskFile>, Vec<u8>) {
        (self.file, self.buffer)
    }

    /// Reads the segment's header, which must be valid before frames can be read.
    pub fn header(&mut self) -> io::Result<Result<Header, HeaderFault>> {
        let base = self.base;
        let header = check_header(self.window(0, SEGMENT_HEADER_BYTES)?, base);
        if let Ok(header) = &header {
            self.salt = header.salt;
        }
        Ok(header)
    }

    /// The frame at `offset`, if it is valid.
    pub fn frame(&mut self, offset: u64) -> io::Result<Result<Frame<'_>, FrameFault>> {
        let position = self.position(offset);
        let Some(header) = FrameHeader::read(self.window(offset, FRAME_HEADER_BYTES as u64)?) else {
            return Ok(Err(FrameFault::Absent));
        };
        if header.position != position {
            return Ok(Err(FrameFault::Absent));
        }
        if header.framed_len() > self.len - offset {
            return Ok(Err(FrameFault::Cut));
        }
        let salt = self.salt;
        Ok(decode_frame(self.window(offset, header.framed_len())?, position, salt))
    }

    /// Scans everything from `bad` on, the offset of an invalid frame, to tell a torn tail from damage.
    pub fn scan_tail(&mut self, bad: u64) -> io::Result<TailScan> {
        let bad_position = self.position(bad);
        let mut found = TailScan { later_flush: None, claims_end: bad };
        let mut offset = bad;
        while offset + FRAME_HEADER_BYTES as u64 <= self.len {
            let position = self.position(offset);
            let window = self.window(offset, FRAME_HEADER_BYTES as u64)?;
            let Some(at) = find_claim(window, position) else {
                // Continue at the first aligned offset whose header is not entirely in the window.
                let headers = (window.len() - FRAME_HEADER_BYTES) / FRAME_ALIGN_BYTES + 1;
                offset += (headers * FRAME_ALIGN_BYTES) as u64;
                continue;
            };
            let header = FrameHeader::read(&window[at..]);
            offset += at as u64;
            if let Some(header) = header {
                found.claims_end = found.claims_end.max(self.len.min(offset.saturating_add(header.framed_len())));
                if header.flushed_before > bad_position && self.frame(offset)?.is_ok() {
                    found.later_flush = Some(offset);
                    return Ok(found);
                }
            }
            offset += FRAME_ALIGN_BYTES as u64;
        }
        Ok(found)
    }

    fn position(&self, offset: u64) -> Position {
        Position(self.base.0.wrapping_add(offset))
    }

    /// The bytes from `offset` on: at least `want`, or up to the end of the file.
    fn window(&mut self, offset: u64, want: u64) -> io::Result<&[u8]> {
        let end = offset.saturating_add(want).min(self.len);
        let filled_to = self.buffer_at + self.filled as u64;
        if offset < self.buffer_at || end > filled_to {
            self.refill(offset, end)?;
        }
        let from = offset.saturating_sub(self.buffer_at).min(self.filled as u64);
        Ok(&self.buffer[from as usize..self.filled])
    }

    /// Makes the buffer begin at `offset` and reach at least `end`, keeping the bytes it already has.
    fn refill(&mut self, offset: u64, end: u64) -> io::Result<()> {
        let kept = match offset.checked_sub(self.buffer_at) {
            Some(skip) if skip <= self.filled as u64 => {
                self.buffer.copy_within(skip as usize..self.filled, 0);
                self.filled - skip as usize
            }
            _ => 0,
        };
        self.buffer_at = offset;
        self.filled = kept;
        let to = end.max(self.len.min(offset + kept as u64 + CHUNK_BYTES));
        let wanted = to.saturating_sub(offset) as usize;
        if self.buffer.len() < wanted {
            self.buffer.resize(wanted, 0);
        }
        if kept < wanted {
            self.file.read_at(offset + kept as u64, &mut self.buffer[kept..wanted])?;
        }
        self.filled = wanted;
        Ok(())
    }
}
