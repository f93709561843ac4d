//! Flushing sealed batches, and maintaining the journal's files between flushes.

use std::io;
use std::sync::atomic::Ordering;

use tally_core::limits::{FLUSH_HERE_EVENTS_MAX, FLUSH_HERE_MICROS_MAX};
use tally_core::surface::EngineError;
use tally_core::time::Position;

use super::recover::begin_writing;
use super::{Durability, Machine, Seal};
use crate::disk::is_full;
use crate::journal::{Group, Tail, Writer};
use crate::signal::lock;

/// What a flush works with.
pub(super) struct FlushState {
    /// None while the disk has no room for a first segment.
    pub(super) writer: Option<Writer>,
    /// Reused from one flush to the next.
    pub(super) group: Group,
}

impl FlushState {
    /// Whether no next segment is reserved.
    fn needs_spare(&self) -> bool {
        self.writer.as_ref().is_none_or(Writer::needs_spare)
    }
}

impl Machine {
    /// Writes and syncs everything sealed, and wakes the callers of those batches. Returns whether there was anything
    /// to flush. A failure poisons the engine: a flush is never retried.
    pub fn flush(&self) -> Result<bool, EngineError> {
        self.flush_with(&mut lock(&self.flushing))
    }

    /// Seals and flushes on the calling thread. Returns `None` if that could take long, because another flush is
    /// running, the disk is slow or the batch is large; and while no next segment is reserved, because a batch may
    /// have to wait for that. The flusher does it in those cases.
    pub fn try_flush(&self) -> Option<(Seal, Result<bool, EngineError>)> {
        if self.last_flush_micros.load(Ordering::Relaxed) > FLUSH_HERE_MICROS_MAX
            || self.open.with(|batch| batch.len()) > FLUSH_HERE_EVENTS_MAX
        {
            return None;
        }
        let mut flushing = self.flushing.try_lock().ok()?;
        if flushing.needs_spare() {
            return None;
        }
        // Without waiting: another thread that is sealing may be fetching from the store.
        let sealed = self.try_seal()?;
        Some((sealed, self.flush_with(&mut flushing)))
    }

    fn flush_with(&self, flushing: &mut FlushState) -> Result<bool, EngineError> {
        let reuse = std::mem::take(&mut flushing.group);
        flushing.group = self.state.lock().journal.tail.take(reuse);
        let Some(writer) = flushing.writer.as_mut().filter(|_| !flushing.group.is_empty()) else {
            return Ok(false);
        };
        let began = self.clock.elapsed();
        let flushed = match writer.flush(&mut flushing.group) {
            Ok(flushed) => flushed,
            Err(error) => return Err(self.poison(format!("the journal could not be flushed: {error}"))),
        };
        let micros = u64::try_from(self.clock.elapsed().saturating_sub(began).as_micros()).unwrap_or(u64::MAX);
        self.last_flush_micros.store(micros, Ordering::Relaxed);
        self.meters.flushed(micros, flushing.group.len());
        self.flushed.store(flushed.0, Ordering::Release);
        self.release(flushed);
        Ok(true)
    }

    /// Wakes the callers of every batch before `flushed`.
    fn release(&self, flushed: Position) {
        let durable = self.state.lock().journal.in_flight.take_flushed(flushed);
        for (batch, ticket) in durable {
            ticket.reach(Durability::Flushed, &batch);
        }
    }

    /// Reserves the next segment and trims old ones. Called by the flusher between flushes, and after a batch was
    /// refused for lack of room.
    pub fn maintain_journal(&self) {
        let mut flushing = lock(&self.flushing);
        let Some(writer) = &mut flushing.writer else {
            return self.retry_writer(&mut flushing);
        };
        let trim_to = self.trim_to.swap(0, Ordering::AcqRel);
        if trim_to > 0
            && let Err(error) = writer.trim(Position(trim_to))
        {
            tracing::warn!(%error, "old journal segments could not be removed; retrying after the next checkpoint");
        }
        if writer.needs_spare() {
            match writer.prepare_next() {
                Ok(fresh) => {
                    self.state.lock().journal.tail.add_spares(fresh);
                    self.report_room();
                }
                Err(error) => self.report_no_room(&error),
            }
        }
    }

    /// Whether `maintain_journal` has something to do. Does not wait for a running flush to see whether a spare is
    /// needed: the flushing thread asks again afterwards.
    #[must_use]
    pub fn needs_maintenance(&self) -> bool {
        self.trim_to.load(Ordering::Acquire) > 0
            || self.flushing.try_lock().is_ok_and(|flushing| flushing.needs_spare())
    }

    /// Tries again to begin a segment on a disk that had no room for one at the start. Nothing has been appended since,
    /// so the journal still ends where it did.
    fn retry_writer(&self, flushing: &mut FlushState) {
        let end = self.state.lock().applied;
        match begin_writing(&self.disk, end, &self.store, &self.settings) {
            Ok(Some(writer)) => {
                self.state.lock().journal.tail = Tail::new(writer.reservation());
                flushing.writer = Some(writer);
                self.report_room();
            }
            Ok(None) => {}
            Err(error) => tracing::warn!(%error, "the journal cannot be continued yet; retrying"),
        }
    }

    /// Logs that the journal has no room, once until there is room again.
    fn report_no_room(&self, error: &io::Error) {
        if self.no_spare_space.swap(true, Ordering::AcqRel) {
            return;
        }
        match is_full(error) {
            true => tracing::warn!(%error, "no disk space for the journal: writes are refused until some is freed"),
            false => tracing::warn!(%error, "the journal's next segment cannot be reserved: writes will be refused"),
        }
    }

    fn report_room(&self) {
        self.disk_full.store(false, Ordering::Release);
        if self.no_spare_space.swap(false, Ordering::AcqRel) {
            tracing::info!("the journal has room again: writes are accepted");
        }
    }

    /// Records in `journal.end` how far the journal is durable. Returns whether it wrote anything. Flushes can run at
    /// the same time. After an error, later starts detect less damage; nothing else depends on the file.
    pub fn mark_end(&self) -> io::Result<bool> {
        let end_file = lock(&self.flushing).writer.as_ref().map(Writer::end_file);
        end_file.map_or(Ok(false), |file| file.write())
    }
}
