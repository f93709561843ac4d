//! Exported counters and request ids as JSON: the items of `/export` and `/import`, and the lines of an export file.
//!
//! ```text
//! {"key":"likes:1","counter":{"value":5,…},"ledger":[{"seq":1,…}],"more":false}   a counter and its ledger
//! {"request":"…","outcome":"…"}                                                    a request id
//! ```
//!
//! A key that is not UTF-8 is in `key_hex`. `counter` is `null` if the counter was deleted and only has a ledger. A
//! long ledger takes several items: all but the last have `"more":true` and no counter. Sums are strings, because they
//! may need 80 bits; times are milliseconds since 1970.

use std::borrow::Cow;

use data_encoding::HEXLOWER;
use serde::{Deserialize, Serialize};
use tally_core::counter::{Counter, CounterParts, CounterState};
use tally_core::event::{Change, Correction, RequestId};
use tally_core::import::{Existing, ImportPart, ImportedCounter};
use tally_core::key::{Key, KeyRef};
use tally_core::ledger::{ChainHash, CorrectionKind, LedgerEntry};
use tally_core::record::{read_request, write_request};
use tally_core::request_ids::FirstOutcome;
use tally_core::time::Millis;

/// An item.
#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TransferItem<'a> {
    #[serde(default, borrow, skip_serializing_if = "Option::is_none")]
    key: Option<Cow<'a, str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    key_hex: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    counter: Option<TransferCounter>,
    #[serde(default, borrow, skip_serializing_if = "Vec::is_empty")]
    ledger: Vec<TransferEntry<'a>>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    more: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    request: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    outcome: Option<String>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct TransferCounter {
    value: i64,
    increments: String,
    decrements: String,
    min: i64,
    max: i64,
    created_at_ms: u64,
    updated_at_ms: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    expires_at_ms: Option<u64>,
    /// Sums of the current and the previous second, minute and hour.
    rates: [i64; 6],
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct TransferEntry<'a> {
    seq: u64,
    at_ms: u64,
    kind: TransferKind,
    #[serde(borrow)]
    actor: Cow<'a, str>,
    #[serde(borrow)]
    reason: Cow<'a, str>,
    before: i64,
    after: i64,
    previous: String,
    hash: String,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum TransferKind {
    Set,
    Reset,
    Adjust,
    Delete,
}

/// The event that imports an item.
pub enum Arrival {
    /// A counter, or a part of its ledger.
    Counter(Key, Change),
    /// A request id.
    Request(RequestId, Change),
}

impl<'a> TransferItem<'a> {
    /// The last part of a counter: the rest of its ledger, and its state if it exists.
    pub fn last(key: &'a Key, state: Option<&CounterState>, entries: &'a [LedgerEntry]) -> Self {
        TransferItem { counter: state.map(TransferCounter::of), ..TransferItem::part(key, entries) }
    }

    /// A part of a ledger; more entries follow.
    pub fn ledger(key: &'a Key, entries: &'a [LedgerEntry]) -> Self {
        TransferItem { more: true, ..TransferItem::part(key, entries) }
    }

    fn part(key: &'a Key, entries: &'a [LedgerEntry]) -> Self {
        let text = std::str::from_utf8(key.as_bytes()).ok();
        TransferItem {
            key: text.map(Cow::Borrowed),
            key_hex: text.is_none().then(|| HEXLOWER.encode(key.as_bytes())),
            ledger: entries.iter().map(TransferEntry::of).collect(),
            ..TransferItem::default()
        }
    }

    /// A request id.
    pub fn request(id: RequestId, first: &FirstOutcome) -> Self {
        let mut record = Vec::new();
        write_request(first, &mut record);
        let (request, outcome) = (Some(HEXLOWER.encode(&id.0)), Some(HEXLOWER.encode(&record)));
        TransferItem { request, outcome, ..TransferItem::default() }
    }

    /// The event that imports it into an engine. `admit` admits a key.
    pub fn arrive<E: From<String>>(
        &self,
        existing: Existing,
        admit: impl Fn(&[u8]) -> Result<Key, E>,
    ) -> Result<Arrival, E> {
        let invalid = |why: &str| E::from(why.to_owned());
        if let (Some(request), Some(outcome), None, None) = (&self.request, &self.outcome, &self.key, &self.key_hex) {
            let id = hex(request).ok_or_else(|| invalid("`request` is not a request id"))?;
            let record = HEXLOWER.decode(outcome.as_bytes()).ok();
            let first =
                record.as_deref().and_then(read_request).ok_or_else(|| invalid("`outcome` is not an outcome"))?;
            return Ok(Arrival::Request(RequestId(id), Change::ImportRequest(first)));
        }
        let key = match (&self.key, &self.key_hex, &self.request, &self.outcome) {
            (Some(key), None, None, None) => admit(key.as_bytes())?,
            (None, Some(key), None, None) => {
                let key = HEXLOWER.decode(key.as_bytes()).map_err(|_| invalid("`key_hex` is not hexadecimal"))?;
                admit(&key)?
            }
            _ => return Err(invalid("an item has `key` or `key_hex`, or `request` and `outcome`")),
        };
        let imported = self.imported(key.as_ref(), existing).map_err(E::from)?;
        Ok(Arrival::Counter(key, Change::Import(Box::new(imported))))
    }

    fn imported(&self, key: KeyRef<'_>, existing: Existing) -> Result<ImportedCounter, String> {
        let part = match (&self.counter, self.more) {
            (Some(_), true) => {
                return Err("an item with `more` has no `counter`: that comes with the last one".to_owned());
            }
            (None, true) => ImportPart::Ledger,
            (counter, false) => ImportPart::Last(counter.as_ref().map(TransferCounter::state).transpose()?),
        };
        let entries = self.ledger.iter().map(TransferEntry::entry).collect::<Result<Vec<_>, _>>()?;
        ImportedCounter::new(key, part, existing, entries).map_err(|error| error.to_string())
    }
}

impl TransferCounter {
    fn of(state: &CounterState) -> TransferCounter {
        let parts = state.counter.parts();
        TransferCounter {
            value: state.counter.value(),
            increments: parts.increments.to_string(),
            decrements: parts.decrements.to_string(),
            min: parts.min,
            max: parts.max,
            created_at_ms: parts.created.0,
            updated_at_ms: parts.updated.0,
            expires_at_ms: state.expires_at.map(|at| at.0),
            rates: parts.rates,
        }
    }

    fn state(&self) -> Result<CounterState, String> {
        let sum = |name: &str, text: &str| text.parse::<u128>().map_err(|_| format!("`{name}` is not a sum"));
        let parts = CounterParts {
            increments: sum("increments", &self.increments)?,
            decrements: sum("decrements", &self.decrements)?,
            min: self.min,
            max: self.max,
            created: Millis(self.created_at_ms),
            updated: Millis(self.updated_at_ms),
            rates: self.rates,
        };
        let counter = Counter::from_parts(&parts).filter(|counter| counter.value() == self.value);
        let counter = counter.ok_or("the numbers of `counter` contradict each other")?;
        Ok(CounterState { counter, expires_at: self.expires_at_ms.map(Millis) })
    }
}

impl<'a> TransferEntry<'a> {
    fn of(entry: &'a LedgerEntry) -> TransferEntry<'a> {
        TransferEntry {
            seq: entry.seq,
            at_ms: entry.at.0,
            kind: match entry.kind {
                CorrectionKind::Set => TransferKind::Set,
                CorrectionKind::Reset => TransferKind::Reset,
                CorrectionKind::Adjust => TransferKind::Adjust,
                CorrectionKind::Delete => TransferKind::Delete,
            },
            actor: Cow::Borrowed(&entry.actor),
            reason: Cow::Borrowed(&entry.reason),
            before: entry.before,
            after: entry.after,
            previous: HEXLOWER.encode(&entry.previous),
            hash: HEXLOWER.encode(&entry.hash),
        }
    }

    fn entry(&self) -> Result<LedgerEntry, String> {
        let chain_hash = |text: &str| -> Result<ChainHash, String> {
            hex(text).ok_or_else(|| format!("entry {} of the ledger has an invalid hash", self.seq))
        };
        // Checks the lengths.
        Correction::new(&self.actor, &self.reason).map_err(|error| error.to_string())?;
        Ok(LedgerEntry {
            seq: self.seq,
            at: Millis(self.at_ms),
            kind: match self.kind {
                TransferKind::Set => CorrectionKind::Set,
                TransferKind::Reset => CorrectionKind::Reset,
                TransferKind::Adjust => CorrectionKind::Adjust,
                TransferKind::Delete => CorrectionKind::Delete,
            },
            actor: (*self.actor).into(),
            reason: (*self.reason).into(),
            before: self.before,
            after: self.after,
            previous: chain_hash(&self.previous)?,
            hash: chain_hash(&self.hash)?,
        })
    }
}

fn hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    HEXLOWER.decode(text.as_bytes()).ok()?.try_into().ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use super::*;

    fn arrive(json: &str) -> Result<Arrival, String> {
        let item: TransferItem<'_> = serde_json::from_str(json).map_err(|error| error.to_string())?;
        item.arrive(Existing::Refuse, |key| Key::new(key).map_err(|error| error.to_string()))
    }

    fn state() -> CounterState {
        let mut counter = Counter::new(Millis(5));
        counter.add(Millis(9), 7).unwrap();
        counter.add(Millis(10), -10).unwrap();
        CounterState { counter, expires_at: Some(Millis(99)) }
    }

    #[test]
    fn an_item_survives_json() {
        let key = Key::new(b"\xff").unwrap();
        let mut entry = LedgerEntry {
            seq: 1,
            at: Millis(3),
            kind: CorrectionKind::Adjust,
            actor: "a\0".into(),
            reason: "\u{e9}".into(),
            before: i64::MIN,
            after: i64::MAX,
            previous: [0; 32],
            hash: [0; 32],
        };
        entry.hash = entry.expected_hash(key.as_ref());
        let entries = [entry];
        let json = serde_json::to_string(&TransferItem::last(&key, Some(&state()), &entries)).unwrap();
        match arrive(&json).unwrap() {
            Arrival::Counter(back, Change::Import(imported)) => {
                assert_eq!((back, imported.part()), (key, ImportPart::Last(Some(state()))));
                assert_eq!(imported.entries(), entries);
            }
            _ => panic!("{json}"),
        }
    }

    #[test]
    fn contradictions_are_refused() {
        let key = Key::new("k").unwrap();
        let json = serde_json::to_string(&TransferItem::last(&key, Some(&state()), &[])).unwrap();
        assert!(arrive(&json).is_ok());
        for (part, other) in [
            ("\"value\":-3", "\"value\":-2"),
            ("\"increments\":\"7\"", "\"increments\":\"8\""),
            ("\"min\":-3", "\"min\":0"),
            ("\"created_at_ms\":5", "\"created_at_ms\":11"),
            ("\"key\":\"k\"", "\"key\":\"k\",\"more\":true"),
            ("\"key\":\"k\"", "\"key\":\"k\",\"key_hex\":\"00\""),
            ("\"key\":\"k\"", "\"key\":\"\""),
            ("\"rates\":[7", "\"rates\":[9223372036854775807"),
        ] {
            let changed = json.replace(part, other);
            if changed != json {
                assert!(arrive(&changed).is_err(), "{changed}");
            }
        }
        for json in ["{}", r#"{"request":"00","outcome":"00"}"#, r#"{"key":"k","typo":1}"#] {
            assert!(arrive(json).is_err(), "{json}");
        }
    }
}
