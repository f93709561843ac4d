//! The marker: records how far the journal is durable, beside the path of acknowledgements.
//!
//! A flush is never kept waiting for it, and it never keeps the disk busy: one record when flushes have paused, and under
//! load one in a while.

use std::time::Duration;

use super::Shared;
use crate::limits::{MARK_BUSY_MS, MARK_IDLE_MS};

impl Shared {
    pub(super) fn mark_until_stopped(&self) {
        loop {
            // Asked before the record: the flusher has stopped by then, so the last one covers everything.
            let is_stopping = self.is_stopping();
            if !is_stopping {
                self.unmarked.wait();
                self.wait_for_pause();
            }
            if let Err(error) = self.machine.mark_end() {
                tracing::warn!(%error, "how far the journal is durable cannot be recorded until the next start");
            }
            if is_stopping {
                return;
            }
        }
    }

    /// Waits until flushes pause, or have gone on for long.
    fn wait_for_pause(&self) {
        for _ in 0..MARK_BUSY_MS / MARK_IDLE_MS {
            let before = self.machine.flushed();
            self.marker_stop.wait_up_to(Duration::from_millis(MARK_IDLE_MS));
            if self.machine.flushed() == before || self.is_stopping() {
                return;
            }
        }
    }
}
