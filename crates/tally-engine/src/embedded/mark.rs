//! The marker thread: records in `journal.end` how far the journal is durable.
//!
//! It is not on the path of acknowledgements, and writes rarely: when flushes pause, and about once a second under
//! load.

use std::time::Duration;

use super::Shared;
use crate::limits::{MARK_BUSY_MS, MARK_IDLE_MS};

impl Shared {
    pub(super) fn mark_until_stopped(&self) {
        loop {
            // Read before writing: the flusher has stopped by then, so the last record covers everything.
            let is_stopping = self.is_stopping();
            if !is_stopping {
                self.unmarked.wait();
                self.wait_for_pause();
            }
            if let Err(error) = self.machine.mark_end() {
                tracing::warn!(%error, "journal.end cannot be written; until a restart, damage to the end of the journal may go undetected");
            }
            if is_stopping {
                return;
            }
        }
    }

    /// Waits until there is a pause between flushes, or for `MARK_BUSY_MS`.
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
