//! Batches.

/// Events of one submission.
pub struct Events {}
