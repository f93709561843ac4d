//! Moves counters between servers: `/export` reads everything page by page, `/import` takes what another server exported.

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use data_encoding::HEXLOWER;
use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};
use tally_core::batch::Events;
use tally_core::event::RequestId;
use tally_core::import::Existing;
use tally_core::key::Key;
use tally_core::ledger::LedgerEntry;
use tally_core::limits::{CALL_BYTES_MAX, CALL_EVENTS_MAX, IMPORT_ENTRIES_MAX, LEDGER_ENTRY_BYTES_MAX};
use tally_core::outcome::{Outcome, Refusal};
use tally_core::surface::{CounterSnapshot, EngineError, RequestCursor};
use utoipa::ToSchema;

use super::App;
use super::address::Query;
use super::answer::json;
use super::body::{self, Items};
use super::listen::Peer;
use super::openapi::{BatchProblems, ExportQuery, ReadProblems};
use super::problem::{Kind, Problem, ProblemJson};
use super::transfer_items::{Arrival, TransferItem};
use crate::admission::{self, Action, PAGE_LIMITS};
use crate::limits::{EXPORT_ITEM_TEXT_BYTES_MAX, EXPORT_PAGE_BYTES_MAX, IMPORT_ITEMS_MAX};
use crate::service::Failure;

/// One page of an export.
#[derive(Serialize, ToSchema)]
struct ExportAnswer {
    /// Counters with their ledgers, then request ids. Send them to `/import` of another server as they are.
    #[schema(value_type = Vec<Object>, example = json!([{
        "key": "likes:post:42",
        "counter": {
            "value": 5, "increments": "5", "decrements": "0", "min": 0, "max": 5,
            "created_at_ms": 1_772_442_847_482_u64, "updated_at_ms": 1_772_442_847_482_u64,
            "rates": [5, 0, 5, 0, 5, 0],
        },
    }]))]
    items: Vec<Box<RawValue>>,
    /// `cursor` of the next page; `null` on the last page.
    #[schema(required, example = "r0")]
    next_cursor: Option<String>,
    /// About how many counters there are; only on the first page.
    #[schema(required, example = 1)]
    counters: Option<u64>,
}

/// Where an export continues.
#[derive(Clone, Debug, PartialEq, Eq)]
enum ExportCursor {
    /// After this key.
    Keys(Option<Key>),
    /// In the ledger of this key, after the entry with this number.
    Ledger(Key, u64),
    Requests(RequestCursor),
}

impl ExportCursor {
    fn parse(text: &str) -> Option<ExportCursor> {
        let (kind, rest) = text.split_at_checked(1)?;
        let (first, second) = rest.split_once('-').map_or((rest, None), |(first, second)| (first, Some(second)));
        match kind {
            "k" => {
                let key = Key::new(HEXLOWER.decode(first.as_bytes()).ok()?).ok()?;
                Some(match second {
                    None => ExportCursor::Keys(Some(key)),
                    Some(seq) => ExportCursor::Ledger(key, seq.parse().ok()?),
                })
            }
            "r" => {
                let after = match second {
                    None => None,
                    Some(id) => Some(RequestId(HEXLOWER.decode(id.as_bytes()).ok()?.try_into().ok()?)),
                };
                Some(ExportCursor::Requests(RequestCursor { partition: first.parse().ok()?, after }))
            }
            _ => None,
        }
    }

    fn text(&self) -> Option<String> {
        let hex = |bytes: &[u8]| HEXLOWER.encode(bytes);
        match self {
            ExportCursor::Keys(None) => None,
            ExportCursor::Keys(Some(key)) => Some(format!("k{}", hex(key.as_bytes()))),
            ExportCursor::Ledger(key, seq) => Some(format!("k{}-{seq}", hex(key.as_bytes()))),
            ExportCursor::Requests(RequestCursor { partition, after: None }) => Some(format!("r{partition}")),
            ExportCursor::Requests(RequestCursor { partition, after: Some(id) }) => {
                Some(format!("r{partition}-{}", hex(&id.0)))
            }
        }
    }
}

/// Export everything, to move it to another server.
///
/// Follow `next_cursor` to the end. Each counter is consistent with its ledger; different counters may be from different
/// moments. Everything acknowledged before the first page was requested is included. `tally export` does this.
#[utoipa::path(
    get, path = "/api/v1/export", tag = "operations",
    params(ExportQuery),
    responses((status = 200, description = "One page", body = ExportAnswer), ReadProblems),
)]
pub async fn export(State(app): State<App>, request: Request) -> Result<Response, Problem> {
    let query = Query::parse(request.uri(), &["cursor", "limit"])?;
    let limit = admission::page_limit(query.number("limit", PAGE_LIMITS)?)?;
    let invalid = || Problem::new(Kind::InvalidCursor, "send `next_cursor` of the previous page unchanged");
    let cursor = query.raw("cursor").map(|cursor| ExportCursor::parse(cursor).ok_or_else(invalid)).transpose()?;
    let caller = Peer::caller_of(request.extensions());
    app.service.admission().admit_prefix(&caller, b"", Action::Read)?;
    let room = app.answer_room.reserve(EXPORT_PAGE_BYTES_MAX).await?;
    let counters = match cursor {
        None => {
            app.service.sync_store().await?;
            Some(app.service.count().await?)
        }
        Some(_) => None,
    };
    let mut page = ExportPage { app: &app, items: Vec::new(), bytes: 0 };
    let next = page.fill(cursor.unwrap_or(ExportCursor::Keys(None)), limit).await?;
    let answer = ExportAnswer { items: page.items, next_cursor: next.and_then(|next| next.text()), counters };
    Ok(room.hold(json(StatusCode::OK, &answer)))
}

/// A page that is being filled.
struct ExportPage<'a> {
    app: &'a App,
    items: Vec<Box<RawValue>>,
    bytes: usize,
}

impl ExportPage<'_> {
    /// Fills the page and returns where the next one begins.
    async fn fill(&mut self, cursor: ExportCursor, limit: usize) -> Result<Option<ExportCursor>, Problem> {
        let after = match cursor {
            ExportCursor::Requests(after) => return self.requests(after, limit).await,
            ExportCursor::Keys(after) => after,
            ExportCursor::Ledger(key, seq) => {
                let snapshots = self.app.service.snapshots(vec![key.clone()]).await?;
                let Some(snapshot) = snapshots.first() else { return Err(no_answer().into()) };
                if let Some(next) = self.counter(&key, snapshot, seq).await? {
                    return Ok(Some(next));
                }
                Some(key)
            }
        };
        let page = self.app.service.all_keys(after, limit).await?;
        let snapshots = self.app.service.snapshots(page.keys.clone()).await?;
        let mut done: Option<&Key> = None;
        for (key, snapshot) in page.keys.iter().zip(&snapshots) {
            if let Some(done) = done.filter(|_| self.is_full()) {
                return Ok(Some(ExportCursor::Keys(Some(done.clone()))));
            }
            if let Some(next) = self.counter(key, snapshot, 0).await? {
                return Ok(Some(next));
            }
            done = Some(key);
        }
        Ok(Some(match page.next {
            Some(next) => ExportCursor::Keys(Some(next)),
            None => ExportCursor::Requests(RequestCursor { partition: 0, after: None }),
        }))
    }

    /// Adds a counter and its ledger after entry `after`. Returns where to continue if the ledger does not fit.
    async fn counter(
        &mut self,
        key: &Key,
        snapshot: &CounterSnapshot,
        mut after: u64,
    ) -> Result<Option<ExportCursor>, Problem> {
        if snapshot.state.is_none() && snapshot.head.seq == 0 {
            return Ok(None);
        }
        loop {
            let entries = self.entries(key, after, snapshot.head.seq).await?;
            let last = entries.last().map_or(after, |last| last.seq);
            if last >= snapshot.head.seq {
                self.push(&TransferItem::last(key, snapshot.state.as_ref(), &entries))?;
                return Ok(None);
            }
            if entries.is_empty() {
                return Err(no_answer().into());
            }
            self.push(&TransferItem::ledger(key, &entries))?;
            after = last;
            if self.is_full() {
                return Ok(Some(ExportCursor::Ledger(key.clone(), after)));
            }
        }
    }

    /// Entries of a ledger, as many as one item holds.
    async fn entries(&self, key: &Key, after: u64, end: u64) -> Result<Vec<LedgerEntry>, Problem> {
        if after >= end {
            return Ok(Vec::new());
        }
        let mut entries = self.app.service.ledger(key.clone(), after, IMPORT_ENTRIES_MAX).await?;
        let mut bytes = 0;
        entries.retain(|entry| {
            // At least one, then as many as fit.
            let fits = bytes < EXPORT_ITEM_TEXT_BYTES_MAX;
            bytes += entry.actor.len() + entry.reason.len();
            fits && entry.seq <= end
        });
        Ok(entries)
    }

    async fn requests(&mut self, after: RequestCursor, limit: usize) -> Result<Option<ExportCursor>, Problem> {
        let page = self.app.service.requests(after, limit).await?;
        for (id, first) in &page.requests {
            self.push(&TransferItem::request(*id, first))?;
        }
        Ok(page.next.map(ExportCursor::Requests))
    }

    fn push(&mut self, item: &TransferItem<'_>) -> Result<(), Problem> {
        let item = to_raw_value(item).map_err(|error| Problem::new(Kind::Internal, error.to_string()))?;
        self.bytes += item.get().len() + 1;
        self.items.push(item);
        Ok(())
    }

    /// Whether another item may no longer fit.
    fn is_full(&self) -> bool {
        self.bytes > EXPORT_PAGE_BYTES_MAX / 2
    }
}

fn no_answer() -> Failure {
    EngineError::Unreadable("a counter or its ledger could not be read".to_owned()).into()
}

/// What to import.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ImportBody<'a> {
    #[serde(default)]
    replace: bool,
    #[serde(borrow)]
    items: Items<&'a RawValue, IMPORT_ITEMS_MAX>,
}

/// What to import.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Import)]
#[allow(dead_code, reason = "the schema of `ImportBody`")]
struct ImportSchema {
    /// Whether to replace counters that exist here with different content; `false` by default.
    #[serde(default)]
    #[schema(required = false, default = false)]
    replace: bool,
    /// 1 to 1000 items of an export, unchanged and in order.
    #[schema(value_type = Vec<Object>, min_items = 1, max_items = 1000)]
    items: Vec<serde_json::Value>,
}

/// The result of an import.
#[derive(Serialize, ToSchema)]
struct ImportAnswer<'a> {
    /// Items that changed something.
    #[schema(example = 1)]
    imported: usize,
    /// Items that were already here.
    unchanged: usize,
    /// Items that were refused.
    #[schema(example = json!([]))]
    failed: Vec<RefusedItem<'a>>,
}

/// An item that was refused. It changed nothing.
#[derive(Serialize, ToSchema)]
struct RefusedItem<'a> {
    /// Its place in the request, from 0.
    index: usize,
    /// The key; `null` if the item has no valid one, or one that is not UTF-8.
    #[schema(required)]
    key: Option<String>,
    /// The reason.
    error: ProblemJson<'a>,
}

/// Import what another server exported.
///
/// Each item succeeds or is refused on its own. Importing the same items again changes nothing. A counter that exists with
/// different content is refused unless `replace` is set. A ledger is extended, never rewritten: if the one here is not the
/// beginning of the imported one, the counter is refused even then. `tally import` does this.
#[utoipa::path(
    post, path = "/api/v1/import", tag = "operations",
    request_body(content = ImportSchema, example = json!({
        "items": [{
            "key": "likes:post:7",
            "counter": {
                "value": 12, "increments": "15", "decrements": "3", "min": 0, "max": 13,
                "created_at_ms": 1_772_442_847_482_u64, "updated_at_ms": 1_772_446_447_482_u64,
                "rates": [0, 0, 0, 0, 0, 0],
            },
        }],
    })),
    responses((status = 200, description = "How many items were imported, and which were not", body = ImportAnswer),
        BatchProblems),
)]
pub async fn import(State(app): State<App>, request: Request) -> Result<Response, Problem> {
    let (parts, body) = request.into_parts();
    Query::none(&parts.uri)?;
    let instead = "an import takes no `Idempotency-Key`; importing the same again changes nothing";
    super::idempotency::refuse_header(&parts.headers, instead)?;
    let (bytes, _room) = app.batch_room.collect(&parts.headers, body).await?;
    let input: ImportBody<'_> = body::parse(&bytes)?;
    match input.items.count {
        0 => return Err(Problem::new(Kind::BatchEmpty, "`items` is empty; send 1 to 1000 items")),
        1..=IMPORT_ITEMS_MAX => {}
        len => {
            let detail = format!("`items` has {len} items; send at most {IMPORT_ITEMS_MAX} at once");
            return Err(Problem::new(Kind::BatchTooLarge, detail));
        }
    }
    let room = app.answer_room.reserve(IMPORT_ANSWER_BYTES_MAX).await?;
    let caller = Peer::caller_of(&parts.extensions);
    let existing = if input.replace { Existing::Replace } else { Existing::Refuse };
    let mut import =
        Import { app: &app, routes: None, events: app.service.events()?, waiting: Vec::new(), report: Vec::new() };
    for (index, raw) in input.items.first.iter().enumerate() {
        let admit = |key: &[u8]| match app.service.admission().admit(&caller, key, Action::Import) {
            Ok(key) => Ok(key.to_key()),
            Err(denied) => Err(InvalidItem(denied.into())),
        };
        let item = body::parse::<TransferItem<'_>>(raw.get().as_bytes()).map_err(InvalidItem);
        match item.and_then(|item| item.arrive(existing, admit)) {
            Ok(arrival) => import.push(index, arrival).await?,
            Err(InvalidItem(problem)) => import.report.push((index, None, Err(problem))),
        }
    }
    import.submit().await?;
    Ok(room.hold(answer(&mut import.report)))
}

/// Maximum size of an answer: a key and a problem for each item.
const IMPORT_ANSWER_BYTES_MAX: usize = IMPORT_ITEMS_MAX * (6 * 512 + 1_536) + 1_024;

/// Why an item is not imported.
struct InvalidItem(Problem);

impl From<String> for InvalidItem {
    fn from(why: String) -> Self {
        InvalidItem(Problem::new(Kind::InvalidItem, why))
    }
}

/// An import in progress.
struct Import<'a> {
    app: &'a App,
    /// A key in each partition, once they are needed.
    routes: Option<Vec<Key>>,
    events: Events,
    /// For each item in `events`: its place, its key, and how many events it has.
    waiting: Vec<(usize, Option<Key>, usize)>,
    /// For each item with a result: its place, its key, and whether it changed anything.
    report: Vec<(usize, Option<Key>, Result<bool, Problem>)>,
}

impl Import<'_> {
    async fn push(&mut self, index: usize, arrival: Arrival) -> Result<(), Problem> {
        let events = match arrival {
            Arrival::Counter(..) => 1,
            Arrival::Request(..) => self.routes.get_or_insert_with(|| self.app.service.routes()).len(),
        };
        // Even the largest import event fits into the other half: see the assertion below.
        let is_full = self.events.len() + events > CALL_EVENTS_MAX || self.events.batch().bytes() > CALL_BYTES_MAX / 2;
        if is_full {
            self.submit().await?;
        }
        match arrival {
            Arrival::Counter(key, change) => {
                self.events.push(key.as_ref(), change, None, None);
                self.waiting.push((index, Some(key), 1));
            }
            Arrival::Request(id, change) => {
                for route in self.routes.iter().flatten() {
                    self.events.push(route.as_ref(), change.clone(), Some(id), None);
                }
                self.waiting.push((index, None, events));
            }
        }
        Ok(())
    }

    async fn submit(&mut self) -> Result<(), Problem> {
        if self.waiting.is_empty() {
            return Ok(());
        }
        let events = std::mem::replace(&mut self.events, self.app.service.events()?);
        let imported = self.app.service.import(events).await;
        // Once a part was imported, "nothing was changed" would be wrong.
        let is_unchanged = self.report.iter().all(|(_, _, changed)| changed.is_err());
        let partly = |error: Failure| {
            let why = format!("a part was imported, and can be imported again: {error}");
            if is_unchanged { error } else { EngineError::OutcomeUnknown(why).into() }
        };
        let mut outcomes = imported.map_err(partly)?.into_iter();
        for (index, key, events) in self.waiting.drain(..) {
            let of_item: Vec<Outcome> = outcomes.by_ref().take(events).collect();
            let refusal = of_item.iter().find_map(|outcome| Some((outcome, outcome.refusal?)));
            self.report.push((
                index,
                key,
                match refusal {
                    Some((outcome, refusal)) => Err(refused(outcome, refusal)),
                    None => Ok(of_item.iter().any(|outcome| outcome.applied != 0)),
                },
            ));
        }
        Ok(())
    }
}

const _: () = assert!(IMPORT_ENTRIES_MAX * LEDGER_ENTRY_BYTES_MAX < CALL_BYTES_MAX / 4);

fn refused(outcome: &Outcome, refusal: Refusal) -> Problem {
    match refusal {
        Refusal::LedgerDiffers => Problem::new(
            Kind::LedgerDiffers,
            "the ledger here is not the beginning of the imported one; import into a server without this counter",
        ),
        _ => Problem::new(
            Kind::ImportConflict,
            format!(
                "the counter exists with the value {} and different content; `replace` overwrites it",
                outcome.value
            ),
        ),
    }
}

fn answer(report: &mut [(usize, Option<Key>, Result<bool, Problem>)]) -> Response {
    report.sort_by_key(|(index, _, _)| *index);
    let count = |wanted: bool| report.iter().filter(|(_, _, changed)| changed.as_ref().ok() == Some(&wanted)).count();
    let failed = report.iter().filter_map(|(index, key, changed)| {
        let key = key.as_ref().and_then(|key| Some(std::str::from_utf8(key.as_bytes()).ok()?.to_owned()));
        Some(RefusedItem { index: *index, key, error: changed.as_ref().err()?.json(None) })
    });
    json(StatusCode::OK, &ImportAnswer { imported: count(true), unchanged: count(false), failed: failed.collect() })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_cursor_survives_its_text_and_other_texts_are_refused() {
        let key = || Key::new(b"a\xff").unwrap();
        let id = RequestId([7; 16]);
        for cursor in [
            ExportCursor::Keys(Some(key())),
            ExportCursor::Ledger(key(), u64::MAX),
            ExportCursor::Requests(RequestCursor { partition: 3, after: None }),
            ExportCursor::Requests(RequestCursor { partition: 0, after: Some(id) }),
        ] {
            assert_eq!(ExportCursor::parse(&cursor.text().unwrap()), Some(cursor));
        }
        for text in ["", "k", "k6", "kzz", "k61-", "k61-x", "r", "rx", "r0-00", "x61", "\u{e9}"] {
            assert_eq!(ExportCursor::parse(text), None, "{text}");
        }
    }
}
