//! Readings: values with their exactness and age.

use crate::counter::{Counter, CounterState};
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
    /// Whether some sub-counters could not be reached, so that the value lacks what they counted.
    pub partial: bool,
}

impl Reading {
    /// The reading of a counter, or of one that does not exist, as it is now.
    #[must_use]
    pub fn exact(state: Option<&CounterState>, now: Millis) -> Reading {
        let counter = state.map(|state| &state.counter);
        Reading {
            value: counter.map_or(0, Counter::value),
            exists: counter.is_some(),
            exact: true,
            as_of: now,
            staleness_ms: 0,
            created_at: counter.map(|counter| counter.created),
            updated_at: counter.map(|counter| counter.updated),
            expires_at: state.and_then(|state| state.expires_at),
            shards: 1,
            partial: false,
        }
    }
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
    /// Writes per second to each sub-counter, where they are measured.
    pub shard_loads: Vec<f64>,
}

impl Stats {
    /// The statistics of a counter, or of one that does not exist, as they are now.
    #[must_use]
    pub fn exact(state: Option<CounterState>, now: Millis) -> Stats {
        let reading = Reading::exact(state.as_ref(), now);
        let counter = state.map(|state| state.counter).unwrap_or_default();
        let (min, max) = counter.extremes();
        let [rate_1s, rate_1m, rate_1h] = counter.rates(now);
        Stats {
            shard_loads: Vec::new(),
            shard_values: if reading.exists { vec![reading.value] } else { Vec::new() },
            reading,
            increments: counter.increments(),
            decrements: counter.decrements(),
            min,
            max,
            rate_1s,
            rate_1m,
            rate_1h,
        }
    }
}
