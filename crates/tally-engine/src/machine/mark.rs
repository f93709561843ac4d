//! Recording how far the journal is durable, so that damage to its end is noticed.

use std::io;

use super::Machine;
use crate::journal::Writer;
use crate::signal::lock;

impl Machine {
    /// Writes to `journal.end` how far the journal is durable, if it went on since the last time; whether it did.
    /// Flushes go on meanwhile. An error concerns later starts only: they will notice less.
    pub fn mark_end(&self) -> io::Result<bool> {
        let mark = lock(&self.writer).writer.as_ref().map(Writer::end_file);
        mark.map_or(Ok(false), |mark| mark.write())
    }
}
