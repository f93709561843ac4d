//! Commands that wait for the engine by themselves: walks, counts, and clearing everything.

use tally_core::batch::Events;
use tally_core::event::Change;
use tally_core::key::Key;
use tally_core::limits::PAGE_ITEMS_MAX;
use tally_core::outcome::Refusal;
use tally_core::surface::{EngineError, PageRequest};

use super::clients::Client;
use super::commands::Command;
use super::door::Door;
use super::errors::{INVALID_CURSOR, NOT_AN_INTEGER, SYNTAX, failure};
use super::glob::{Case, matches};
use super::op::Refused;
use super::reply::{Reply, Version};
use super::turn::{FAILED, OK};
use super::wire::{Args, integer};
use crate::admission;
use crate::metrics::{Stopwatch, Verb};
use crate::policy::Consistency;
use crate::service::{Failure, Freshness};

/// How many counters `SCAN` looks at when nothing is said.
const SCAN_COUNT_DEFAULT: usize = 10;

/// A command for later, with everything it needs.
#[derive(Debug)]
pub enum Slow {
    /// `SCAN cursor [MATCH pattern] [COUNT n] [TYPE type]`.
    Scan {
        /// Where to go on; 0 at the start.
        cursor: u64,
        /// Only keys like this.
        pattern: Option<Vec<u8>>,
        /// How many counters to look at.
        count: usize,
        /// Whether strings are wanted: counters are nothing else.
        strings: bool,
    },
    /// `DBSIZE`.
    DbSize,
    /// `RANDOMKEY`.
    RandomKey,
    /// `FLUSHALL` and `FLUSHDB`.
    Flush,
    /// `TALLY.READ key [EXACT]`.
    Read {
        /// The counter.
        key: Key,
        /// How fresh the reading must be.
        freshness: Freshness,
    },
}

impl Slow {
    /// The command, if it is one of these.
    pub fn read(command: Command, args: Args<'_>) -> Option<Result<Slow, Refused>> {
        Some(match command {
            Command::Scan => scan(args),
            Command::DbSize => Ok(Slow::DbSize),
            Command::RandomKey => Ok(Slow::RandomKey),
            Command::FlushAll | Command::FlushDb => flush(args),
            Command::TallyRead => tally_read(args),
            _ => return None,
        })
    }
}

fn scan(args: Args<'_>) -> Result<Slow, Refused> {
    let cursor = args.get(1).unwrap_or_default();
    let cursor = std::str::from_utf8(cursor).ok().and_then(|text| text.parse().ok()).ok_or(INVALID_CURSOR)?;
    let (mut pattern, mut count, mut strings) = (None, SCAN_COUNT_DEFAULT, true);
    let mut options = args.iter().skip(2);
    while let Some(word) = options.next() {
        let value = options.next().ok_or(SYNTAX)?;
        if word.eq_ignore_ascii_case(b"MATCH") {
            pattern = Some(value.to_vec()).filter(|pattern| pattern != b"*");
        } else if word.eq_ignore_ascii_case(b"COUNT") {
            let number = integer(value).ok_or(NOT_AN_INTEGER)?;
            count = usize::try_from(number).ok().filter(|&count| count > 0).ok_or(SYNTAX)?.min(PAGE_ITEMS_MAX);
        } else if word.eq_ignore_ascii_case(b"TYPE") {
            strings = value.eq_ignore_ascii_case(b"string");
        } else {
            return Err(SYNTAX.into());
        }
    }
    Ok(Slow::Scan { cursor, pattern, count, strings })
}

fn flush(args: Args<'_>) -> Result<Slow, Refused> {
    match args.get(1) {
        None => Ok(Slow::Flush),
        Some(how) if args.len() == 2 && (how.eq_ignore_ascii_case(b"SYNC") || how.eq_ignore_ascii_case(b"ASYNC")) => {
            Ok(Slow::Flush)
        }
        Some(_) => Err(SYNTAX.into()),
    }
}

fn tally_read(args: Args<'_>) -> Result<Slow, Refused> {
    let key = admission::key(args.get(1).unwrap_or_default()).map_err(|denied| format!("ERR {denied}"))?;
    let freshness = match args.get(2) {
        None => Freshness::default(),
        Some(word) if args.len() == 3 && word.eq_ignore_ascii_case(b"EXACT") => Freshness::exact(),
        Some(_) => return Err(SYNTAX.into()),
    };
    Ok(Slow::Read { key: key.to_key(), freshness })
}

/// Carries a command out, counts it under its verb and returns its reply.
pub async fn run(door: &Door, client: &Client, (verb, command): (Verb, Slow), version: Version) -> Vec<u8> {
    let since = Stopwatch::start();
    let mut out = Vec::new();
    let mut reply = Reply::new(&mut out, version);
    let done = match command {
        Slow::Scan { cursor, pattern, count, strings } => {
            run_scan(door, cursor, pattern.as_deref(), count, strings, &mut reply).await
        }
        Slow::DbSize => run_db_size(door, &mut reply).await,
        Slow::RandomKey => run_random_key(door, &mut reply).await,
        Slow::Flush => run_flush(door, client, &mut reply).await,
        Slow::Read { key, freshness } => run_read(door, key, freshness, &mut reply).await,
    };
    door.metrics.request(verb, if done.is_ok() { OK } else { FAILED }, &since);
    if let Err(error) = done {
        out.clear();
        Reply::new(&mut out, version).error(failure(&error));
    }
    out
}

async fn run_scan(
    door: &Door,
    cursor: u64,
    pattern: Option<&[u8]>,
    count: usize,
    strings: bool,
    reply: &mut Reply<'_>,
) -> Result<(), Failure> {
    let after = match cursor {
        0 => None,
        number => match door.cursors.recall(number) {
            Some(key) => Some(key),
            None => {
                reply.error(INVALID_CURSOR);
                return Ok(());
            }
        },
    };
    let page =
        door.service.list(PageRequest { prefix: prefix(pattern.unwrap_or_default()), after, limit: count }).await?;
    let next = page.next.map_or(0, |key| door.cursors.remember(key));
    let wanted = |key: &Key| strings && pattern.is_none_or(|pattern| matches(pattern, key.as_bytes(), Case::Kept));
    let keys: Vec<Key> = page.items.into_iter().map(|(key, _)| key).filter(wanted).collect();
    reply.array(2);
    reply.bulk(next.to_string().as_bytes());
    reply.array(keys.len());
    keys.iter().for_each(|key| reply.bulk(key.as_bytes()));
    Ok(())
}

/// What every key that matches begins with.
fn prefix(pattern: &[u8]) -> Vec<u8> {
    pattern.iter().copied().take_while(|byte| !matches!(byte, b'*' | b'?' | b'[' | b'\\')).collect()
}

async fn run_db_size(door: &Door, reply: &mut Reply<'_>) -> Result<(), Failure> {
    let count = door.service.count().await?;
    reply.integer(i64::try_from(count).unwrap_or(i64::MAX));
    Ok(())
}

async fn run_random_key(door: &Door, reply: &mut Reply<'_>) -> Result<(), Failure> {
    match door.service.sample(door.random()).await? {
        Some(key) => reply.bulk(key.as_bytes()),
        None => reply.null(),
    }
    Ok(())
}

/// Removes every counter, a page at a time, each with its ledger entry. Counters created meanwhile may stay.
async fn run_flush(door: &Door, client: &Client, reply: &mut Reply<'_>) -> Result<(), Failure> {
    let why = match admission::correction(client.peer.ip(), "FLUSHALL") {
        Ok(why) => why,
        Err(denied) => {
            reply.error(format!("ERR {denied}"));
            return Ok(());
        }
    };
    let mut after = None;
    loop {
        let page = door.service.list(PageRequest { prefix: Vec::new(), after, limit: PAGE_ITEMS_MAX }).await?;
        let mut events: Events = door.service.events()?;
        for (key, _) in &page.items {
            events.push(key.as_ref(), Change::Delete(why.clone()), None, None);
        }
        let receipt = door.service.submit(events, Consistency::Exact).await?;
        if receipt.outcomes.iter().any(|outcome| outcome.refusal == Some(Refusal::NoRoom)) {
            return Err(EngineError::DiskFull.into());
        }
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    reply.ok();
    Ok(())
}

async fn run_read(door: &Door, key: Key, freshness: Freshness, reply: &mut Reply<'_>) -> Result<(), Failure> {
    let readings = door.service.read(vec![key], freshness).await?;
    let Some(reading) = readings.first() else { return Err(Failure::Recovering) };
    let time = |at: Option<tally_core::time::Millis>, reply: &mut Reply<'_>| match at {
        Some(at) => reply.integer(i64::try_from(at.0).unwrap_or(i64::MAX)),
        None => reply.null(),
    };
    reply.map(8);
    reply.bulk(b"value");
    reply.integer(reading.value);
    reply.bulk(b"exists");
    reply.boolean(reading.exists);
    reply.bulk(b"exact");
    reply.boolean(reading.exact);
    reply.bulk(b"as_of");
    reply.integer(i64::try_from(reading.as_of.0).unwrap_or(i64::MAX));
    reply.bulk(b"staleness_ms");
    reply.integer(i64::try_from(reading.staleness_ms).unwrap_or(i64::MAX));
    reply.bulk(b"created_at");
    time(reading.created_at, reply);
    reply.bulk(b"updated_at");
    time(reading.updated_at, reply);
    reply.bulk(b"expires_at");
    time(reading.expires_at, reply);
    Ok(())
}
