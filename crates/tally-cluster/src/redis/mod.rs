//! Totals and heartbeats in Redis Cluster: what `eventual` reads are answered from.
//!
//! A worker publishes the totals that are read, and after them a heartbeat per partition. Nothing in Redis goes back to
//! an older position: each value is compared and replaced by a script on the node that holds it, so two workers that
//! both believe they own a partition do no harm. Totals and heartbeats can be lost; the journal and the store have
//! everything. Increments of sub-counters that are not summed yet are only here.
//!
//! | key | value | kept |
//! |---|---|---|
//! | `<prefix>:t:<counter key>` | [`Total`] | for a fixed time after the first publication |
//! | `<prefix>:p:<partition>` | [`Heartbeat`] | forever: the age of a dead worker's partition must stay readable |
//! | `<prefix>:s:{<shard>:<hash>}:<counter key>` | [`ShardState`] | until it is idle and summed |
//! | `<prefix>:a:<partition>` | hash of the counters whose sub-counters are in use: [`ActiveCounter`] | forever |

mod cluster;
mod error;
mod generation;
mod layout;
pub mod limits;
mod link;
mod scripts;
mod shards;
mod topology;
mod totals;

pub use error::RedisError;
pub use layout::{Heartbeat, Total, TotalUpdate, is_address};
pub use shards::{ActiveCounter, AddError, ShardAdd, ShardState};
pub use totals::{PublishReport, RedisSettings, StoredTotal, Totals};
