//! Readings: values with their exactness and age.

use crate::time::Millis;

/// A value with its provenance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// The value; zero for a counter that does not exist.
    pub value: i64,
    /// Whether the counter exists.
    pub exists: bool,
    /// Whether the value includes every acknowledged change.
    pub exact: bool,
    /// The time at which this was the value.
    pub as_of: Millis,
    /// How old the value was when it was returned.
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

/// A reading with the counter's statistics.
#[derive(Clone, Debug, PartialEq)]
pub struct Stats {
    /// The value and its provenance.
    pub reading: Reading,
    /// Sum of all additions.
    pub increments: u64,
    /// Sum of all subtractions, as a positive number.
    pub decrements: u64,
    /// Lowest value ever, including the initial zero.
    pub min: i64,
    /// Highest value ever, including the initial zero.
    pub max: i64,
    /// Net change per second over the last second.
    pub rate_1s: f64,
    /// Net change per second over the last minute.
    pub rate_1m: f64,
    /// Net change per second over the last hour.
    pub rate_1h: f64,
    /// The value of each sub-counter.
    pub shard_values: Vec<i64>,
}
