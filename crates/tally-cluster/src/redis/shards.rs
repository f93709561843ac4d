//! Sub-counters of best-effort counters, and the list of counters whose sub-counters are in use.
//!
//! A sub-counter is a hash with what it has counted since it was created: `i` is its incarnation, `p` and `n` are the
//! sums of additions and subtractions, `w` is the number of writes and `r` the recent writes per second. A replica that
//! takes over may lack the latest writes, but it has a prefix of them: never sums without their incarnation.

use redis::Value;
use redis::cluster_routing::Slot;
use tally_core::key::{Key, KeyRef};
use tally_core::limits::SHARDS_MAX;
use tally_core::sub_counters::SubCounter;
use xxhash_rust::xxh3::xxh3_64;

use super::cluster::OnceError;
use super::error::RedisError;
use super::limits::{ACTIVE_COUNTERS_MAX, SCAN_COUNT, SCAN_RESTARTS_MAX};
use super::scripts::{KeyCommand, KeyVerb, ShardScript};
use super::totals::{Totals, unexpected};

/// What to add to a sub-counter. One direction only, so that it is added whole or not at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShardAdd {
    /// Additions.
    Up(u64),
    /// Subtractions.
    Down(u64),
}

/// Why an addition failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddError {
    /// The sums of the sub-counter would overflow. Nothing was added.
    #[error("the sub-counter would overflow")]
    Overflow,
    /// Nothing was added.
    #[error(transparent)]
    NotAdded(RedisError),
    /// The addition may have been made.
    #[error(transparent)]
    Unknown(RedisError),
}

/// A sub-counter as it is in Redis.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ShardState {
    /// What it has counted.
    pub counted: SubCounter,
    /// Number of writes.
    pub writes: u64,
    /// Writes per second, as measured by the last rollup.
    pub writes_per_second: f64,
}

/// A counter whose sub-counters are in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActiveCounter {
    /// The counter.
    pub key: Key,
    /// Number of sub-counters that are written to.
    pub shards: u32,
    /// Number of sub-counters that may exist.
    pub peak: u32,
    /// The entry as it is in Redis. Each registration by a writer changes it.
    pub entry: Vec<u8>,
}

/// Fields of a hash and their values.
type ScannedFields = Vec<(Vec<u8>, Vec<u8>)>;

fn shard_key(prefix: &str, key: KeyRef<'_>, shard: u32) -> Vec<u8> {
    // The tag spreads sub-counters over all nodes, even if the key has a tag itself.
    let tag = format!("{prefix}:s:{{{shard}:{:016x}}}:", xxh3_64(key.as_bytes()));
    [tag.as_bytes(), key.as_bytes()].concat()
}

fn active_key(prefix: &str, partition: u32) -> Vec<u8> {
    format!("{prefix}:a:{partition}").into_bytes()
}

impl ActiveCounter {
    fn parse(key: &[u8], entry: Vec<u8>) -> Option<ActiveCounter> {
        let text = std::str::from_utf8(&entry).ok()?;
        let mut numbers = text.split(':').skip(1);
        let (shards, peak) = (numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?);
        Some(ActiveCounter { key: Key::new(key).ok()?, shards, peak, entry })
    }
}

/// A list that is read page by page.
///
/// A cursor is valid only on the node that returned it. Another node may continue elsewhere and miss entries, so the
/// list is read from the start again if another master answers.
#[derive(Debug, Default)]
struct ActiveScan {
    cursor: u64,
    /// Generation of the master that returned the cursor; `None` if it is not known.
    generation: Option<u64>,
    restarts: u32,
    found: Vec<ActiveCounter>,
}

#[derive(Debug, PartialEq, Eq)]
enum ScanStep {
    Continue,
    Done,
    /// The masters changed too often.
    Failed,
}

impl ActiveScan {
    /// Adds the page at the cursor. `generation` is that of the master that answered, if it is known.
    fn add_page(&mut self, generation: Option<u64>, next: u64, entries: ScannedFields) -> ScanStep {
        let is_first = self.cursor == 0;
        if !is_first && (generation.is_none() || generation != self.generation) {
            if self.restarts == SCAN_RESTARTS_MAX {
                return ScanStep::Failed;
            }
            *self = ActiveScan { restarts: self.restarts + 1, ..ActiveScan::default() };
            return ScanStep::Continue;
        }
        self.found.extend(entries.into_iter().filter_map(|(key, entry)| ActiveCounter::parse(&key, entry)));
        (self.cursor, self.generation) = (next, generation);
        let is_done = next == 0 || self.found.len() >= 2 * ACTIVE_COUNTERS_MAX;
        if is_done { ScanStep::Done } else { ScanStep::Continue }
    }
}

impl Totals {
    /// Adds to a sub-counter, once.
    pub async fn add_to_shard(&self, key: KeyRef<'_>, shard: u32, add: ShardAdd) -> Result<(), AddError> {
        let (field, amount) = match add {
            ShardAdd::Up(amount) => ("p", amount),
            ShardAdd::Down(amount) => ("n", amount),
        };
        let arguments = vec![field.as_bytes().to_vec(), text(amount)];
        let command = self.shard_script(key, shard, ShardScript::Add, arguments);
        match self.cluster.run_once(command, &self.hashes).await {
            Ok(Value::Int(1)) => Ok(()),
            Ok(other) => Err(AddError::Unknown(unexpected(&other))),
            Err(OnceError::NotRun(error)) if is_overflow(&error) => Err(AddError::Overflow),
            Err(OnceError::NotRun(error)) => Err(AddError::NotAdded(self.failed(&error))),
            Err(OnceError::Unknown(error)) => Err(AddError::Unknown(self.failed(&error))),
        }
    }

    /// Reads sub-counters, in order; `None` for those that do not exist.
    pub async fn shards(&self, wanted: &[(KeyRef<'_>, u32)]) -> Result<Vec<Option<ShardState>>, RedisError> {
        let command = |(key, shard): &(KeyRef<'_>, u32)| KeyCommand {
            key: shard_key(&self.prefix, *key, *shard),
            verb: KeyVerb::Fields(&["i", "p", "n", "w", "r"]),
        };
        let answers = self.run(&wanted.iter().map(command).collect::<Vec<_>>()).await?;
        Ok(wanted.iter().zip(answers).map(|((_, shard), answer)| state(*shard, answer)).collect())
    }

    /// Removes sub-counters, each only if it still has counted exactly this. Returns for each whether it is gone.
    pub async fn close_shards(&self, closed: &[(KeyRef<'_>, SubCounter)]) -> Result<Vec<bool>, RedisError> {
        let command = |(key, counted): &(KeyRef<'_>, SubCounter)| {
            let numbers = [counted.incarnation, counted.increments, counted.decrements];
            self.shard_script(*key, counted.shard, ShardScript::Close, numbers.map(text).into())
        };
        self.run_all(closed.iter().map(command)).await
    }

    /// Removes a sub-counter of this incarnation, whatever it has counted.
    pub async fn discard_shard(&self, key: KeyRef<'_>, counted: &SubCounter) -> Result<bool, RedisError> {
        let arguments = vec![text(counted.incarnation), Vec::new(), Vec::new()];
        let command = self.shard_script(key, counted.shard, ShardScript::Close, arguments);
        Ok(self.run_all([command]).await? == [true])
    }

    /// Records the loads of sub-counters, in writes per second, for statistics.
    pub async fn note_rates(&self, loads: &[(KeyRef<'_>, u32, f64)]) -> Result<(), RedisError> {
        let command = |(key, shard, per_second): &(KeyRef<'_>, u32, f64)| {
            let arguments = vec![format!("{per_second:.1}").into_bytes()];
            self.shard_script(*key, *shard, ShardScript::Rate, arguments)
        };
        self.run_all(loads.iter().map(command)).await.map(drop)
    }

    fn shard_script(&self, key: KeyRef<'_>, shard: u32, script: ShardScript, arguments: Vec<Vec<u8>>) -> KeyCommand {
        KeyCommand { key: shard_key(&self.prefix, key, shard), verb: KeyVerb::Shard { script, arguments } }
    }

    /// Adds a counter to the list of active ones of its partition. `shards` is its number of sub-counters if it is new,
    /// and sub-counters below `peak` may exist. Returns the number of sub-counters, or `None` if the list is full.
    pub async fn register(
        &self,
        partition: u32,
        key: KeyRef<'_>,
        shards: u32,
        peak: u32,
    ) -> Result<Option<u32>, RedisError> {
        let numbers = [u64::from(shards), u64::from(peak), ACTIVE_COUNTERS_MAX as u64];
        let arguments = std::iter::once(key.as_bytes().to_vec()).chain(numbers.map(text));
        let shards = self.run_active(partition, ShardScript::Register, arguments.collect()).await?;
        Ok(u32::try_from(shards).ok().filter(|&shards| shards > 0).map(|shards| shards.min(SHARDS_MAX)))
    }

    /// The counters of a partition whose sub-counters are in use. Fails if the masters of Redis keep changing
    /// meanwhile.
    pub async fn active(&self, partition: u32) -> Result<Vec<ActiveCounter>, RedisError> {
        let mut scan = ActiveScan::default();
        loop {
            let key = active_key(&self.prefix, partition);
            let slot = Slot::for_key(&key);
            let command = KeyCommand { key, verb: KeyVerb::Scan { cursor: scan.cursor, count: SCAN_COUNT } };
            let sent = self.cluster.run(&[command], &self.hashes).await;
            let (mut answers, topology) = sent.map_err(|error| self.failed(&error))?;
            let (next, entries): (u64, ScannedFields) = redis::from_redis_value(answers.pop().unwrap_or(Value::Nil))
                .map_err(|error| RedisError::Unexpected(error.to_string()))?;
            let generation = topology.and_then(|topology| topology.generations.of(slot));
            match scan.add_page(generation, next, entries) {
                ScanStep::Continue => {}
                ScanStep::Done => return Ok(scan.found),
                ScanStep::Failed => {
                    let why = "the masters of Redis changed while counters were listed";
                    return Err(RedisError::Down(why.to_owned()));
                }
            }
        }
    }

    /// The number of sub-counters of a counter that may exist; 0 if it is not active.
    pub async fn peak(&self, partition: u32, key: KeyRef<'_>) -> Result<u32, RedisError> {
        let command =
            KeyCommand { key: active_key(&self.prefix, partition), verb: KeyVerb::Field(key.as_bytes().to_vec()) };
        match self.run(&[command]).await?.pop() {
            Some(Value::BulkString(entry)) => {
                Ok(ActiveCounter::parse(key.as_bytes(), entry).map_or(0, |active| active.peak))
            }
            _ => Ok(0),
        }
    }

    /// Changes the number of sub-counters that are written to.
    pub async fn reshard(&self, partition: u32, key: KeyRef<'_>, shards: u32) -> Result<(), RedisError> {
        let arguments = vec![key.as_bytes().to_vec(), text(u64::from(shards))];
        self.run_active(partition, ShardScript::Reshard, arguments).await.map(drop)
    }

    /// Removes counters from the list of active ones, unless a writer has registered them since. Returns for each
    /// whether it is gone.
    pub async fn retire(&self, partition: u32, retired: &[&ActiveCounter]) -> Result<Vec<bool>, RedisError> {
        let command = |active: &&ActiveCounter| KeyCommand {
            key: active_key(&self.prefix, partition),
            verb: KeyVerb::Shard {
                script: ShardScript::Retire,
                arguments: vec![active.key.as_bytes().to_vec(), active.entry.clone()],
            },
        };
        self.run_all(retired.iter().map(command)).await
    }

    /// Runs scripts that return 1 or 0.
    async fn run_all(&self, commands: impl IntoIterator<Item = KeyCommand>) -> Result<Vec<bool>, RedisError> {
        let commands: Vec<KeyCommand> = commands.into_iter().collect();
        Ok(self.run(&commands).await?.into_iter().map(|answer| answer == Value::Int(1)).collect())
    }

    async fn run_active(
        &self,
        partition: u32,
        script: ShardScript,
        arguments: Vec<Vec<u8>>,
    ) -> Result<i64, RedisError> {
        let command =
            KeyCommand { key: active_key(&self.prefix, partition), verb: KeyVerb::Shard { script, arguments } };
        match self.run(&[command]).await?.pop() {
            Some(Value::Int(answer)) => Ok(answer),
            other => Err(unexpected(&other.unwrap_or(Value::Nil))),
        }
    }
}

fn text(number: u64) -> Vec<u8> {
    number.to_string().into_bytes()
}

fn state(shard: u32, answer: Value) -> Option<ShardState> {
    let [i, p, n, w, r]: [Option<String>; 5] =
        redis::from_redis_value::<Vec<Option<String>>>(answer).ok()?.try_into().ok()?;
    let number = |field: Option<String>| field.map_or(Some(0), |field| field.parse().ok());
    let counted = SubCounter {
        shard,
        incarnation: i?.parse().ok()?,
        increments: number(p)?,
        decrements: number(n)?,
        is_closed: false,
    };
    Some(ShardState { counted, writes: number(w)?, writes_per_second: r.and_then(|r| r.parse().ok()).unwrap_or(0.0) })
}

fn is_overflow(error: &redis::RedisError) -> bool {
    let said = error.to_string();
    // The second message is about an amount that is too large by itself.
    said.contains("overflow") || said.contains("out of range")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(names: &[&str]) -> ScannedFields {
        names.iter().map(|name| (name.as_bytes().to_vec(), b"7:1:1".to_vec())).collect()
    }

    fn found(scan: &ActiveScan) -> Vec<&[u8]> {
        scan.found.iter().map(|active| active.key.as_bytes()).collect()
    }

    #[test]
    fn a_list_that_another_master_continues_is_read_from_the_start_again() {
        // Either another master is known, or only that the command was sent again.
        for other in [Some(2), None] {
            let mut scan = ActiveScan::default();
            assert_eq!(scan.add_page(Some(1), 17, entries(&["a"])), ScanStep::Continue);
            assert_eq!(scan.add_page(other, 0, entries(&["c"])), ScanStep::Continue);
            assert_eq!((scan.cursor, found(&scan).len()), (0, 0));
            assert_eq!(scan.add_page(Some(2), 5, entries(&["a", "b"])), ScanStep::Continue);
            assert_eq!(scan.add_page(Some(2), 0, entries(&["c"])), ScanStep::Done);
            assert_eq!(found(&scan), [b"a", b"b", b"c"]);
        }
    }

    #[test]
    fn a_list_of_one_page_is_complete_whoever_answers() {
        let mut scan = ActiveScan::default();
        assert_eq!(scan.add_page(None, 0, entries(&["a"])), ScanStep::Done);
        assert_eq!(found(&scan), [b"a"]);
    }

    #[test]
    fn a_list_whose_masters_keep_changing_fails() {
        let mut scan = ActiveScan::default();
        let mut steps = (0..100).map(|generation| scan.add_page(Some(generation), 9, entries(&["a"])));
        assert!(steps.any(|step| step == ScanStep::Failed));
    }
}
