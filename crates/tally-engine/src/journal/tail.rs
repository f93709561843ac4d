//! The tail: frames that have a position and are queued in memory for the flusher.
//!
//! A batch may be applied only once its position is known and disk space is reserved for it. Sealing must decide that
//! under the engine's lock, without I/O. [`Reservation`] does the arithmetic: the reserved space is the rest of the
//! current segment and the spare segments of the [`Writer`](super::Writer).
//!
//! The tail is behind the engine's lock. The flusher uses it like this:
//! ```text
//! loop {
//!     group = lock { tail.take(group) };            // sealing continues
//!     flushed = writer.flush(&mut group)?;          // an error poisons the engine
//!     match writer.prepare_next() {                 // after every flush, and again while the disk is full
//!         Ok(fresh) => lock { tail.add_spares(fresh) },
//!         Err(full) if is_full(&full) => {}         // once the segment is full, batches are refused
//!         Err(fault) => …
//!     }
//! }
//! ```
//! What is queued and what is being flushed may use up the reserved space together, before the flusher can reserve more.
//! [`Tail::has_room`] tells whether a batch has to wait for that.

use tally_core::time::Position;

use super::frame::{begin_frame, end_frame, framed_len};
use super::segment::SEGMENT_HEADER_BYTES;

/// The position of the next frame, and the disk space reserved for frames. Pure arithmetic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reservation {
    /// Position of the next frame, or of the next segment if the frame needs one.
    pub next: Position,
    /// Where the current segment's space ends.
    pub segment_end: Position,
    /// Spare segments that no frame has claimed yet.
    pub spares_ready: u32,
    /// Bytes of a segment.
    pub segment_bytes: u64,
}

/// Where a frame was placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    /// Where it begins.
    pub position: Position,
    /// Where it ends. The frame is durable once the flushed position reaches this.
    pub end: Position,
    /// Whether it is the first of a new segment.
    pub rolls: bool,
}

/// There is no disk space reserved for the payload, or it is larger than a segment. Nothing was queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no disk space is reserved for the journal")]
pub struct NoRoom;

impl Reservation {
    /// Places a payload. Changes nothing if there is no space for it.
    pub fn place(&mut self, payload_len: usize) -> Result<Placement, NoRoom> {
        let framed = framed_len(payload_len);
        let rolls = framed > self.segment_end.0 - self.next.0;
        if rolls {
            if self.spares_ready == 0 || framed > self.payload_max() {
                return Err(NoRoom);
            }
            self.spares_ready -= 1;
            self.segment_end = Position(self.next.0 + self.segment_bytes);
            self.next.0 += SEGMENT_HEADER_BYTES;
        }
        let position = self.next;
        self.next.0 += framed;
        Ok(Placement { position, end: self.next, rolls })
    }

    /// Most bytes of frames in a segment.
    fn payload_max(&self) -> u64 {
        self.segment_bytes - SEGMENT_HEADER_BYTES
    }
}

/// Frames sealed and not yet taken by the flusher.
#[derive(Debug)]
pub struct Tail {
    reservation: Reservation,
    queued: Group,
}

/// What one flush writes: frames in order, and where among them a new segment begins.
#[derive(Debug, Default)]
pub struct Group {
    pub(super) bytes: Vec<u8>,
    /// Offsets in `bytes` of frames that begin a segment.
    pub(super) rolls: Vec<usize>,
}

impl Group {
    /// Whether there is nothing to flush.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Bytes to write.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    fn clear(&mut self) {
        self.bytes.clear();
        self.rolls.clear();
    }
}

impl Tail {
    /// Begins with [`Writer::reservation`](super::Writer::reservation).
    #[must_use]
    pub fn new(reservation: Reservation) -> Tail {
        Tail { reservation, queued: Group::default() }
    }

    /// A tail at `end` without any space: appending fails until the tail is replaced.
    #[must_use]
    pub fn without_room(end: Position, segment_bytes: u64) -> Tail {
        Tail::new(Reservation { next: end, segment_end: end, spares_ready: 0, segment_bytes })
    }

    /// Queues the payload that `encode` appends to its argument. It must only append.
    pub fn append(&mut self, encode: impl FnOnce(&mut Vec<u8>)) -> Result<Placement, NoRoom> {
        let bytes = &mut self.queued.bytes;
        let start = begin_frame(bytes);
        let payload_start = bytes.len();
        encode(bytes);
        match self.reservation.place(bytes.len() - payload_start) {
            Ok(placement) => {
                end_frame(bytes, start, placement.position);
                if placement.rolls {
                    self.queued.rolls.push(start);
                }
                Ok(placement)
            }
            Err(no_room) => {
                bytes.truncate(start);
                Err(no_room)
            }
        }
    }

    /// Whether space is reserved for a payload of this length. One that no segment can hold counts as having room: waiting
    /// for another segment does not help it.
    #[must_use]
    pub fn has_room(&self, payload_len: usize) -> bool {
        let mut reservation = self.reservation;
        framed_len(payload_len) > reservation.payload_max() || reservation.place(payload_len).is_ok()
    }

    /// Takes everything queued, and reuses the buffers of a flushed group for the next one.
    pub fn take(&mut self, mut reuse: Group) -> Group {
        reuse.clear();
        std::mem::replace(&mut self.queued, reuse)
    }

    /// Adds the spares that [`Writer::prepare_next`](super::Writer::prepare_next) returned.
    pub fn add_spares(&mut self, fresh: u32) {
        self.reservation.spares_ready += fresh;
    }

    /// The current reservation.
    #[must_use]
    pub fn reservation(&self) -> Reservation {
        self.reservation
    }

    /// Bytes queued.
    #[must_use]
    pub fn queued_bytes(&self) -> usize {
        self.queued.len()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn reservation(spares_ready: u32) -> Reservation {
        Reservation { next: Position(24), segment_end: Position(128), spares_ready, segment_bytes: 128 }
    }

    #[test]
    fn frames_fill_a_segment_to_the_last_byte_and_then_claim_a_spare() {
        let mut reservation = reservation(1);
        let placed = |position, end, rolls| Placement { position: Position(position), end: Position(end), rolls };
        assert_eq!(reservation.place(40), Ok(placed(24, 88, false)));
        assert_eq!(reservation.place(16), Ok(placed(88, 128, false)));
        assert_eq!(reservation.place(0), Ok(placed(168, 192, true)));
        assert_eq!(reservation.segment_end, Position(256));
        assert_eq!(reservation.spares_ready, 0);
    }

    #[test]
    fn without_a_spare_there_is_no_room_but_smaller_frames_still_fit() {
        let mut reservation = reservation(0);
        let before = reservation;
        assert_eq!(reservation.place(81), Err(NoRoom));
        assert_eq!(reservation, before);
        assert!(reservation.place(80).is_ok());
        assert_eq!(reservation.place(0), Err(NoRoom));
        reservation.spares_ready += 1;
        assert!(reservation.place(0).unwrap().rolls);
    }

    #[test]
    fn a_payload_larger_than_a_segment_never_claims_a_spare() {
        let mut reservation = reservation(1);
        assert_eq!(reservation.place(81), Err(NoRoom));
        assert_eq!(reservation.spares_ready, 1);
    }

    #[test]
    fn a_payload_has_room_unless_another_segment_would_give_it_some() {
        let mut tail = Tail::new(reservation(1));
        assert!(tail.has_room(80));
        tail.append(|out| out.resize(out.len() + 80, 7)).unwrap();
        assert!(tail.has_room(40), "in the spare");
        tail.append(|out| out.resize(out.len() + 40, 7)).unwrap();
        assert!(!tail.has_room(64), "the only spare is in use");
        assert!(tail.has_room(65), "no segment can hold it");
        tail.add_spares(1);
        assert!(tail.has_room(64));
    }

    #[test]
    fn a_refused_payload_leaves_no_trace_in_the_queue() {
        let mut tail = Tail::new(reservation(0));
        tail.append(|out| out.extend_from_slice(b"fits")).unwrap();
        let queued = tail.queued_bytes();
        assert_eq!(tail.append(|out| out.resize(out.len() + 500, 7)), Err(NoRoom));
        assert_eq!(tail.queued_bytes(), queued);
        let group = tail.take(Group::default());
        assert_eq!(group.len(), queued);
        assert!(group.rolls.is_empty());
        assert_eq!(tail.queued_bytes(), 0);
    }
}
