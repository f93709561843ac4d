//! The keys and values in Redis.
//!
//! ```text
//! <prefix>:t:<counter key> → version:u8, position:u64be, generation:u64be, time, valid until, then
//!                            version 5: counter record as in the store, or nothing
//!                            version 6: length of the counter record and that, then what is summed of its sub-counters
//!                            versions 3 and 4: the same without `valid until`, which then is zero
//! <prefix>:p:<partition>   → version:u8, epoch:u64be, position:u64be, time:u64be, since:u64be, rolled up:u64be,
//!                            clock reset:u64be, addresses
//! ```
//!
//! The generation is that of the slot (`generation.rs`). The addresses are those of the owner and then of its standbys,
//! with a space between them. Numbers are varints unless a width is given. The scripts compare the fixed-width numbers
//! that follow the version, so their place and meaning are the same in every version.

use tally_core::counter::CounterState;
use tally_core::key::Key;
use tally_core::record::read_counter;
use tally_core::sub_counters::SummedShards;
use tally_core::time::{Millis, Position};
use tally_core::varint::{Cursor, put_bytes, put_u64};

use super::limits::{ADDRESS_BYTES_MAX, TOTAL_RECORD_BYTES_MAX};
use crate::limits::STANDBYS_MAX;

const VERSION: u8 = 5;
/// Version of a total of a counter that has sub-counters.
const VERSION_SUMMED: u8 = 6;
/// The same two versions of earlier builds, without `valid until`.
const VERSION_UNLIMITED: u8 = 3;
const VERSION_SUMMED_UNLIMITED: u8 = 4;
/// Version of a heartbeat.
const VERSION_HEARTBEAT: u8 = 5;

/// The state of a counter at a position of its partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Total {
    /// The position of the partition.
    pub position: Position,
    /// When it was published, by the partition's clock.
    pub at: Millis,
    /// Its worker replaces it whenever the counter changes before this time of the partition's clock. Redis removes it
    /// at about the same time, but by its own clock.
    pub valid_until: Millis,
    /// The counter; `None` if it does not exist.
    pub state: Option<CounterState>,
    /// What is summed of its sub-counters, if it has any.
    pub summed: Option<SummedShards>,
    /// The master under which it was published.
    pub generation: u64,
}

/// A total to publish.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TotalUpdate {
    /// The counter.
    pub key: Key,
    /// The position of the partition.
    pub position: Position,
    /// The time by the partition's clock.
    pub at: Millis,
    /// Changes before this time will be published, too.
    pub valid_until: Millis,
    /// The value of the counter's record as in the store; `None` if the counter does not exist.
    pub record: Option<Vec<u8>>,
    /// What is summed of its sub-counters, if it has any.
    pub summed: Option<SummedShards>,
    /// Whether to publish it even if it is not in Redis, because it is read for the first time.
    pub first: bool,
}

/// How far a partition has been published, and by whom.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heartbeat {
    /// The partition.
    pub partition: u32,
    /// The epoch of its owner.
    pub epoch: u64,
    /// The position of the partition. Every change between `since` and here is published.
    pub position: Position,
    /// Everything that was acknowledged before this time is before that position.
    pub at: Millis,
    /// Totals of earlier positions may be outdated: they were published by a previous owner, which may have died before
    /// it published later changes.
    pub since: Position,
    /// Everything that sub-counters with a rollup had counted before this time is before that position, too. Zero if
    /// that is not known.
    pub rolled_up_at: Millis,
    /// The position after the last reset of the partition's clock. Times of earlier heartbeats may be in the future.
    /// Zero if there was none.
    pub clock_reset: Position,
    /// Where the owner answers; at most [`ADDRESS_BYTES_MAX`] bytes.
    pub owner: String,
    /// Where its standbys answer.
    pub standbys: Vec<String>,
}

pub(super) fn total_key(prefix: &str, key: &Key) -> Vec<u8> {
    [prefix.as_bytes(), b":t:", key.as_bytes()].concat()
}

pub(super) fn heartbeat_key(prefix: &str, partition: u32) -> Vec<u8> {
    format!("{prefix}:p:{partition}").into_bytes()
}

impl TotalUpdate {
    pub(super) fn encode(&self, generation: u64) -> Vec<u8> {
        let record = self.record.as_deref().unwrap_or_default();
        let mut value = Vec::with_capacity(36 + record.len());
        value.push(if self.summed.is_some() { VERSION_SUMMED } else { VERSION });
        value.extend_from_slice(&self.position.0.to_be_bytes());
        value.extend_from_slice(&generation.to_be_bytes());
        put_u64(&mut value, self.at.0);
        put_u64(&mut value, self.valid_until.0);
        match &self.summed {
            None => value.extend_from_slice(record),
            Some(summed) => {
                put_bytes(&mut value, record);
                summed.encode(&mut value);
            }
        }
        value
    }
}

impl Total {
    pub(super) fn decode(value: &[u8]) -> Option<Total> {
        let mut cursor = Cursor::new(value);
        let version = cursor.u8()?;
        let position = Position(u64::from_be_bytes(cursor.array()?));
        let generation = u64::from_be_bytes(cursor.array()?);
        let at = Millis(cursor.u64()?);
        let valid_until = match version {
            VERSION_UNLIMITED | VERSION_SUMMED_UNLIMITED => Millis(0),
            _ => Millis(cursor.u64()?),
        };
        let (record, summed) = match version {
            VERSION | VERSION_UNLIMITED => (cursor.rest(), None),
            VERSION_SUMMED | VERSION_SUMMED_UNLIMITED => {
                let record = cursor.bytes(TOTAL_RECORD_BYTES_MAX)?;
                (record, Some(SummedShards::decode(&mut cursor).filter(|_| cursor.is_done())?))
            }
            _ => return None,
        };
        let state = if record.is_empty() { None } else { Some(read_counter(record)?) };
        Some(Total { position, at, valid_until, state, summed, generation })
    }

    /// Whether it is still kept current, given that everything that changed before `published_at` is published.
    pub fn is_valid(&self, published_at: Option<Millis>) -> bool {
        published_at.unwrap_or(self.at) <= self.valid_until
    }
}

impl Heartbeat {
    pub(super) fn encode(&self) -> Vec<u8> {
        let Heartbeat { epoch, position, at, since, rolled_up_at, clock_reset, .. } = self;
        let numbers = [*epoch, position.0, at.0, since.0, rolled_up_at.0, clock_reset.0].map(u64::to_be_bytes).concat();
        let addresses = std::iter::once(&self.owner).chain(&self.standbys).map(String::as_str).collect::<Vec<_>>();
        [&[VERSION_HEARTBEAT], &numbers[..], addresses.join(" ").as_bytes()].concat()
    }

    pub(super) fn decode(partition: u32, value: &[u8]) -> Option<Heartbeat> {
        let mut cursor = Cursor::new(value);
        if cursor.u8()? != VERSION_HEARTBEAT {
            return None;
        }
        let mut number = || cursor.array().map(u64::from_be_bytes);
        let (epoch, position, at) = (number()?, Position(number()?), Millis(number()?));
        let (since, rolled_up_at, clock_reset) = (Position(number()?), Millis(number()?), Position(number()?));
        let mut addresses = std::str::from_utf8(cursor.rest()).ok()?.split(' ').map(str::to_owned);
        let (owner, standbys) = (addresses.next()?, addresses.collect::<Vec<_>>());
        let heartbeat = Heartbeat { partition, epoch, position, at, since, rolled_up_at, clock_reset, owner, standbys };
        heartbeat.is_readable().then_some(heartbeat)
    }

    /// Whether its addresses can be decoded again.
    pub(super) fn is_readable(&self) -> bool {
        let mut addresses = self.standbys.iter().chain([&self.owner]);
        self.standbys.len() <= STANDBYS_MAX as usize && addresses.all(|address| is_address(address))
    }
}

/// Whether heartbeats can carry an address.
pub fn is_address(text: &str) -> bool {
    (1..=ADDRESS_BYTES_MAX).contains(&text.len()) && !text.contains(' ')
}

#[cfg(test)]
mod tests {
    use tally_core::record::Records;

    use super::*;

    #[test]
    fn a_total_survives_encoding_and_one_that_is_cut_short_is_refused() {
        let state = CounterState::new(Millis(5));
        let mut records = Records::default();
        records.put_counter(b"k", &state);
        let record = records.iter().next().and_then(|(_, value)| value).map(<[u8]>::to_vec);
        let key = Key::new("k").unwrap();
        let (position, at, valid_until) = (Position(u64::MAX), Millis(1 << 40), Millis(1 << 41));
        let update = TotalUpdate { key, position, at, valid_until, record, summed: None, first: true };
        let value = update.encode(u64::MAX - 1);
        let generation = u64::MAX - 1;
        let total = Total { position, at, valid_until, state: Some(state), summed: None, generation };
        assert_eq!(Total::decode(&value), Some(total.clone()));
        let deleted = TotalUpdate { record: None, ..update }.encode(u64::MAX - 1);
        assert_eq!(Total::decode(&deleted), Some(Total { state: None, ..total }));
        // Without the whole record it is the total of a deleted counter, or nothing.
        for len in (0..value.len()).filter(|len| *len != deleted.len()) {
            assert_eq!(Total::decode(&value[..len]), None, "{len}");
        }
        let other_version = [&[VERSION + 1], &value[1..]].concat();
        assert_eq!(Total::decode(&other_version), None);
    }

    #[test]
    fn a_total_is_valid_as_long_as_its_worker_keeps_it_current_and_that_of_an_earlier_build_never_is() {
        let (key, at, valid_until) = (Key::new("k").unwrap(), Millis(1), Millis(100));
        let update =
            TotalUpdate { key, position: Position(7), at, valid_until, record: None, summed: None, first: true };
        let value = update.encode(9);
        let total = Total::decode(&value).unwrap();
        assert!(total.is_valid(None) && total.is_valid(Some(valid_until)) && !total.is_valid(Some(Millis(101))));
        // The last two bytes are times: when it was published, and until when it is valid.
        let earlier = [&[VERSION_UNLIMITED], &value[1..value.len() - 1]].concat();
        let total = Total::decode(&earlier).unwrap();
        assert_eq!((total.position, total.at), (Position(7), at));
        assert!(!total.is_valid(None) && !total.is_valid(Some(at)));
    }

    #[test]
    fn a_heartbeat_survives_encoding_and_a_malformed_one_is_refused() {
        let owner = "worker-1.example:7400".to_owned();
        let (since, rolled_up_at, clock_reset) = (Position(9), Millis(6), Position(3));
        let standbys = vec!["worker-2:7400".to_owned(), "worker-3:7400".to_owned()];
        let (position, at) = (Position(1 << 60), Millis(7));
        let (partition, epoch) = (3, 1);
        let heartbeat = Heartbeat { partition, epoch, position, at, since, rolled_up_at, clock_reset, owner, standbys };
        for heartbeat in [Heartbeat { standbys: Vec::new(), ..heartbeat.clone() }, heartbeat.clone()] {
            assert_eq!(Heartbeat::decode(3, &heartbeat.encode()), Some(heartbeat));
        }
        let value = heartbeat.encode();
        assert_eq!(Heartbeat::decode(3, &value[..48]), None);
        assert_eq!(Heartbeat::decode(3, &[&value[..49], &[0xff]].concat()), None);
        assert_eq!(Heartbeat::decode(3, &[&value[..49], &[b'a'; ADDRESS_BYTES_MAX + 1]].concat()), None);
        assert_eq!(Heartbeat::decode(3, &[&value[..49], &[b' '; STANDBYS_MAX as usize + 1]].concat()), None);
    }
}
