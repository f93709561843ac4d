//! The core of Tally: its vocabulary, its codecs and the partition state machine.
//!
//! Nothing here does I/O, reads a clock, draws a random number or uses an async runtime: the state of a partition is a
//! function of the batches applied to it, and replaying them gives the same state bit for bit.

pub mod batch;
mod bits;
pub mod consistency;
pub mod counter;
mod counter_table;
pub mod event;
pub mod import;
pub mod key;
pub mod ledger;
pub mod ledger_heads;
pub mod limits;
pub mod missing_keys;
pub mod outcome;
mod outcome_codec;
pub mod partition;
pub mod rates;
pub mod reading;
pub mod record;
pub mod request_ids;
pub mod sub_counters;
pub mod surface;
pub mod time;
pub mod varint;
