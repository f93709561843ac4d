//! Readings: values that say what they are.

use crate::time::Millis;

/// A value with its provenance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// The value; zero for a counter that does not exist.
    pub value: i64,
    /// Whether the counter exists.
    pub exists: bool,
    /// Whether every acknowledged change is in the value.
    pub exact: bool,
    /// The moment the value stood.
    pub as_of: Millis,
    /// How long before the answer that was.
    pub staleness_ms: u64,
    /// First change, if any.
    pub created_at: Option<Millis>,
    /// Last change, if any.
    pub updated_at: Option<Millis>,
    /// When the counter expires, if it does.
    pub expires_at: Option<Millis>,
    /// Sub-counters the value is summed from.
    pub shards: u32,
}

/// A reading with what the counter's history adds to it.
#[derive(Clone, Debug, PartialEq)]
pub struct Stats {
    /// The value and its provenance.
    pub reading: Reading,
    /// Everything ever added.
    pub increments: u64,
    /// Everything ever taken away, as a positive number.
    pub decrements: u64,
    /// Lowest value ever held, counting the zero it started from.
    pub min: i64,
    /// Highest value ever held, counting the zero it started from.
    pub max: i64,
    /// Net change per second over the last second.
    pub rate_1s: f64,
    /// Net change per second over the last minute.
    pub rate_1m: f64,
    /// Net change per second over the last hour.
    pub rate_1h: f64,
    /// What each sub-counter holds.
    pub shard_values: Vec<i64>,
}
