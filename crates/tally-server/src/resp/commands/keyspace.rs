//! Commands on keys: which exist, iterating over all of them, and deleting them.

use tally_core::batch::Events;
use tally_core::event::{Change, Correction, Field};
use tally_core::key::Key;
use tally_core::limits::PAGE_ITEMS_MAX;
use tally_core::outcome::{Outcome, Receipt, Refusal};
use tally_core::surface::{EngineError, PageRequest};
use tally_core::time::Millis;

use super::call::{CommandCall, CommandError, EngineCall};
use super::spec::{EngineReply, Execution, Keys, Spec};
use crate::admission::{self, Action};
use crate::limits::{RESP_KEYS_BYTES_MAX, RESP_KEYS_MAX, RESP_MATCH_SLICE};
use crate::metrics::Verb;
use crate::policy::Consistency;
use crate::resp::errors::{INVALID_CURSOR, NOT_AN_INTEGER, SYNTAX};
use crate::resp::glob::{Case, Pattern};
use crate::resp::reply::Reply;
use crate::resp::reply_plan::{NO_OUTCOME, ReplyPlan};
use crate::resp::wire::{Args, integer};
use crate::service::{Failure, Service};

/// Counters that `SCAN` visits by default.
const SCAN_COUNT_DEFAULT: usize = 10;

pub static DEL: Spec = Spec::new("del", -2, Execution::Counter(del))
    .verb(Verb::Delete)
    .keys(Keys::all("RM delete"))
    .redis("write", "@keyspace @write @slow", "request_policy:multi_shard response_policy:agg_sum")
    .syntax(&["key..."])
    .docs("generic", "1.0.0", "O(N) for N keys", "Deletes counters.");

pub static UNLINK: Spec = Spec::new("unlink", -2, Execution::Counter(del))
    .verb(Verb::Delete)
    .keys(Keys::all("RM delete"))
    .redis("write fast", "@keyspace @write @fast", "request_policy:multi_shard response_policy:agg_sum")
    .syntax(&["key..."])
    .docs("generic", "4.0.0", "O(N) for N keys", "Deletes counters. Same as DEL.");

fn del(call: &mut CommandCall<'_, '_>) -> Result<ReplyPlan, CommandError> {
    // Each key has a read and a deletion; the read shows whether the key existed.
    fn write(outcomes: &[Outcome], reply: &mut Reply<'_>) {
        write_existing(outcomes.iter().step_by(2), reply);
    }
    let keys = call.keys(Action::Delete)?;
    let why = call.correction("DEL")?;
    let events = call.writes_with(keys.consistency)?;
    for key in keys.iter() {
        events.push(key, Change::Read(Field::Value), None, None);
        events.push(key, Change::Delete(why.clone()), None, None);
    }
    Ok(ReplyPlan::of_many(2 * keys.len(), write))
}

fn write_existing<'a>(reads: impl Iterator<Item = &'a Outcome>, reply: &mut Reply<'_>) {
    let existing = reads.filter(|read| read.exists).count();
    reply.integer(i64::try_from(existing).unwrap_or(i64::MAX));
}

pub static EXISTS: Spec = Spec::new("exists", -2, Execution::Counter(exists))
    .verb(Verb::Read)
    .keys(Keys::all("RO"))
    .redis("readonly fast", "@keyspace @read @fast", "request_policy:multi_shard response_policy:agg_sum")
    .syntax(&["key..."])
    .docs("generic", "1.0.0", "O(N) for N keys", "Returns how many of the keys exist.");

fn exists(call: &mut CommandCall<'_, '_>) -> Result<ReplyPlan, CommandError> {
    fn write(reads: &[Outcome], reply: &mut Reply<'_>) {
        write_existing(reads.iter(), reply);
    }
    let keys = call.keys(Action::Read)?;
    let events = call.reads_with(keys.consistency)?;
    keys.iter().for_each(|key| events.push(key, Change::Read(Field::Value), None, None));
    Ok(ReplyPlan::of_reads(keys.len(), write))
}

pub static TOUCH: Spec = Spec::new("touch", -2, Execution::Counter(exists))
    .verb(Verb::Read)
    .keys(Keys::all("RO"))
    .redis("readonly fast", "@keyspace @read @fast", "request_policy:multi_shard response_policy:agg_sum")
    .syntax(&["key..."])
    .docs("generic", "3.2.1", "O(N) for N keys", "Returns how many of the keys exist. Same as EXISTS.");

pub static TYPE: Spec = Spec::new("type", 2, Execution::Read(Field::Value, ReplyPlan::of_reads(1, kind)))
    .verb(Verb::Read)
    .keys(Keys::first("RO"))
    .redis("readonly fast", "@keyspace @read @fast", "")
    .syntax(&["key"])
    .docs("generic", "1.0.0", "O(1)", "Returns the type of a key's value.");

fn kind(outcomes: &[Outcome], reply: &mut Reply<'_>) {
    match outcomes {
        [read] => reply.simple(if read.exists { "string" } else { "none" }),
        _ => reply.error(NO_OUTCOME),
    }
}

pub static SCAN: Spec = Spec::new("scan", -2, Execution::Engine(scan))
    .verb(Verb::List)
    .redis("readonly", "@keyspace @read @slow", "nondeterministic_output request_policy:special")
    .syntax(&["cursor", "[MATCH pattern]", "[COUNT count]", "[TYPE type]"])
    .docs("generic", "2.8.0", "O(1) per call, O(N) for a full iteration", "Iterates over the keys.");

/// The arguments of `SCAN`.
struct ScanRequest {
    /// Where to continue; 0 at the start.
    cursor: u64,
    pattern: Option<Pattern>,
    /// Counters to visit.
    count: usize,
    /// Whether the type filter matches: every counter is a string.
    strings: bool,
}

fn scan(call: EngineCall, args: Args<'_>) -> Result<EngineReply, CommandError> {
    let cursor = args.get(1).unwrap_or_default();
    let cursor = std::str::from_utf8(cursor).ok().and_then(|text| text.parse().ok()).ok_or(INVALID_CURSOR)?;
    let mut request = ScanRequest { cursor, pattern: None, count: SCAN_COUNT_DEFAULT, strings: true };
    let mut options = args.iter().skip(2);
    while let Some(word) = options.next() {
        let value = options.next().ok_or(SYNTAX)?;
        if word.eq_ignore_ascii_case(b"MATCH") {
            request.pattern = if value == b"*" { None } else { Some(Pattern::parse(value)?) };
        } else if word.eq_ignore_ascii_case(b"COUNT") {
            let number = integer(value).ok_or(NOT_AN_INTEGER)?;
            let count = usize::try_from(number).ok().filter(|&count| count > 0).ok_or(SYNTAX)?;
            request.count = count.min(PAGE_ITEMS_MAX);
        } else if word.eq_ignore_ascii_case(b"TYPE") {
            request.strings = value.eq_ignore_ascii_case(b"string");
        } else {
            return Err(SYNTAX.into());
        }
    }
    let prefix = request.pattern.as_ref().map(Pattern::prefix).unwrap_or_default();
    call.server.service.admission().admit_prefix(&call.caller, &prefix, Action::List)?;
    Ok(Box::pin(async move { run_scan(&call, request, prefix).await }))
}

async fn run_scan(call: &EngineCall, request: ScanRequest, prefix: Vec<u8>) -> Result<Vec<u8>, Failure> {
    let mut out = Vec::new();
    let mut reply = Reply::new(&mut out, call.version);
    let ScanRequest { cursor, pattern, count, strings } = request;
    let after = match cursor {
        0 => None,
        number => match call.server.cursors.recall(number) {
            Some(key) => Some(key),
            None => {
                reply.error(INVALID_CURSOR);
                return Ok(out);
            }
        },
    };
    let _visiting = call.server.listings.scan(count).await;
    let page = call.server.service.list(PageRequest { prefix, after, limit: count }).await?;
    let next = page.next.map_or(0, |key| call.server.cursors.remember(key));
    let keys = page.items.into_iter().map(|(key, _)| key).filter(|_| strings);
    let keys = match pattern {
        Some(pattern) => matching(&pattern, keys).await,
        None => keys.collect(),
    };
    reply.array(2);
    reply.bulk(next.to_string().as_bytes());
    reply.array(keys.len());
    keys.iter().for_each(|key| reply.bulk(key.as_bytes()));
    Ok(out)
}

/// The keys that match. Yields between slices, so that the thread serves other connections.
async fn matching(pattern: &Pattern, keys: impl Iterator<Item = Key>) -> Vec<Key> {
    let mut found = Vec::new();
    for (number, key) in keys.enumerate() {
        if number % RESP_MATCH_SLICE == 0 {
            tokio::task::yield_now().await;
        }
        if pattern.matches(key.as_bytes(), Case::Sensitive) {
            found.push(key);
        }
    }
    found
}

pub static KEYS: Spec = Spec::new("keys", 2, Execution::Engine(keys))
    .verb(Verb::List)
    .redis("readonly", "@keyspace @read @slow @dangerous", "request_policy:all_shards nondeterministic_output_order")
    .syntax(&["pattern"])
    .docs("generic", "1.0.0", "O(N) for all keys", "Returns the keys that match a pattern, if they are not too many.");

fn keys(call: EngineCall, args: Args<'_>) -> Result<EngineReply, CommandError> {
    let pattern = Pattern::parse(args.get(1).unwrap_or_default())?;
    let prefix = pattern.prefix();
    call.server.service.admission().admit_prefix(&call.caller, &prefix, Action::List)?;
    Ok(Box::pin(async move {
        let _listing = call.server.listings.keys().await;
        let (mut found, mut bytes, mut after) = (Vec::new(), 0, None);
        loop {
            let request = PageRequest { prefix: prefix.clone(), after, limit: PAGE_ITEMS_MAX };
            let page = call.server.service.list(request).await?;
            let more = matching(&pattern, page.items.into_iter().map(|(key, _)| key)).await;
            bytes += more.iter().map(|key| key.as_bytes().len()).sum::<usize>();
            found.extend(more);
            if found.len() > RESP_KEYS_MAX || bytes > RESP_KEYS_BYTES_MAX {
                let text = format!(
                    "ERR more than {RESP_KEYS_MAX} keys or {RESP_KEYS_BYTES_MAX} bytes of keys match; use SCAN"
                );
                return Ok(call.reply(|reply| reply.error(text)));
            }
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        Ok(call.reply(|reply| {
            reply.array(found.len());
            found.iter().for_each(|key| reply.bulk(key.as_bytes()));
        }))
    }))
}

pub static DBSIZE: Spec = Spec::new("dbsize", 1, Execution::Engine(dbsize))
    .verb(Verb::List)
    .redis("readonly fast", "@keyspace @read @fast", "request_policy:all_shards response_policy:agg_sum")
    .docs("server", "1.0.0", "O(1)", "Returns the number of keys.");

fn dbsize(call: EngineCall, _: Args<'_>) -> Result<EngineReply, CommandError> {
    call.server.service.admission().admit_prefix(&call.caller, b"", Action::List)?;
    Ok(Box::pin(async move {
        let count = call.server.service.count().await?;
        Ok(call.reply(|reply| reply.integer(i64::try_from(count).unwrap_or(i64::MAX))))
    }))
}

pub static RANDOMKEY: Spec = Spec::new("randomkey", 1, Execution::Engine(randomkey))
    .verb(Verb::List)
    .redis("readonly", "@keyspace @read @slow", "request_policy:all_shards nondeterministic_output")
    .docs("generic", "1.0.0", "O(1)", "Returns a random key.");

fn randomkey(call: EngineCall, _: Args<'_>) -> Result<EngineReply, CommandError> {
    call.server.service.admission().admit_prefix(&call.caller, b"", Action::List)?;
    Ok(Box::pin(async move {
        let key = call.server.service.sample(call.server.random()).await?;
        Ok(call.reply(|reply| match key {
            Some(key) => reply.bulk(key.as_bytes()),
            None => reply.null(),
        }))
    }))
}

pub static FLUSHALL: Spec = Spec::new("flushall", -1, Execution::Engine(flush))
    .verb(Verb::Delete)
    .redis("write", "@keyspace @write @slow @dangerous", "request_policy:all_shards response_policy:all_succeeded")
    .syntax(&["[ASYNC | SYNC]"])
    .docs("server", "1.0.0", "O(N) for all keys", "Deletes all counters.");

pub static FLUSHDB: Spec = Spec::new("flushdb", -1, Execution::Engine(flush))
    .verb(Verb::Delete)
    .redis("write", "@keyspace @write @slow @dangerous", "request_policy:all_shards response_policy:all_succeeded")
    .syntax(&["[ASYNC | SYNC]"])
    .docs(
        "server",
        "1.0.0",
        "O(N) for all keys",
        "Deletes all counters. Same as FLUSHALL, because there is only one database.",
    );

fn flush(call: EngineCall, args: Args<'_>) -> Result<EngineReply, CommandError> {
    let is_known = |how: &[u8]| how.eq_ignore_ascii_case(b"SYNC") || how.eq_ignore_ascii_case(b"ASYNC");
    match args.get(1) {
        Some(how) if args.len() > 2 || !is_known(how) => return Err(SYNTAX.into()),
        _ => {}
    }
    call.server.service.admission().admit_prefix(&call.caller, b"", Action::Delete)?;
    Ok(Box::pin(async move { run_flush(&call).await }))
}

/// Deletes every counter, page by page, each with a ledger entry. Counters created meanwhile may remain.
async fn run_flush(call: &EngineCall) -> Result<Vec<u8>, Failure> {
    let service = &call.server.service;
    let why = match admission::correction(&call.caller, "FLUSHALL") {
        Ok(why) => why,
        Err(denied) => return Ok(call.reply(|reply| reply.error(format!("ERR {denied}")))),
    };
    let _visiting = call.server.listings.scan(PAGE_ITEMS_MAX).await;
    let mut after = None;
    let mut is_first = true;
    loop {
        let deleted = delete_page(service, after.take(), &why).await;
        after = deleted.map_err(|error| if is_first { error } else { partly_deleted(&error) })?;
        is_first = false;
        if after.is_none() {
            break;
        }
    }
    if service.count().await? > 0 {
        sweep_expired(service).await.map_err(|error| partly_deleted(&error))?;
    }
    Ok(call.reply(|reply| reply.ok()))
}

/// Deletes the counters of one page. Returns where the next one begins.
async fn delete_page(service: &Service, after: Option<Key>, why: &Correction) -> Result<Option<Key>, Failure> {
    let page = service.list(PageRequest { prefix: Vec::new(), after, limit: PAGE_ITEMS_MAX }).await?;
    let mut events: Events = service.events()?;
    for (key, _) in &page.items {
        events.push(key.as_ref(), Change::Delete(why.clone()), None, None);
    }
    refuse_if_full(&service.submit(events, Consistency::Exact).await?)?;
    Ok(page.next)
}

fn partly_deleted(error: &Failure) -> Failure {
    EngineError::OutcomeUnknown(format!("some counters were deleted, others not: {error}")).into()
}

/// Removes expired counters: listings do not show them, but the number of counters includes them.
async fn sweep_expired(service: &Service) -> Result<(), Failure> {
    service.sync_store().await?;
    let mut after = None;
    loop {
        let page = service.all_keys(after, PAGE_ITEMS_MAX).await?;
        let mut events: Events = service.events()?;
        // The expiry record stays in the store for the engine's own sweep, which knows the time of the record.
        let sweep = Change::Sweep { expires_at: Millis(u64::MAX) };
        page.keys.iter().for_each(|key| events.push(key.as_ref(), sweep.clone(), None, None));
        if !events.is_empty() {
            refuse_if_full(&service.submit(events, Consistency::Exact).await?)?;
        }
        after = page.next;
        if after.is_none() {
            return Ok(());
        }
    }
}

/// A full disk refuses all changes of a submission together.
fn refuse_if_full(receipt: &Receipt) -> Result<(), Failure> {
    let has_room = receipt.outcomes.iter().all(|outcome| outcome.refusal != Some(Refusal::NoRoom));
    if has_room { Ok(()) } else { Err(EngineError::DiskFull.into()) }
}
