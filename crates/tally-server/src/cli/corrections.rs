//! `tally set`, `delete` and `ledger`: corrections and their record.

use std::process::ExitCode;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::args::{DeleteArgs, LedgerArgs, SetArgs};
use super::client::{Answer, ApiClient, CallError, encode_key, encode_value};
use super::counters::{text, write_table};

/// `tally set`.
pub fn set(args: &SetArgs) -> ExitCode {
    let client = ApiClient::new(&args.client);
    let mut body = Map::from_iter([("value".to_owned(), json!(args.value)), ("reason".to_owned(), json!(args.reason))]);
    body.extend(args.expected.map(|expected| ("expected".to_owned(), json!(expected))));
    body.extend(args.request_id.as_ref().map(|id| ("request_id".to_owned(), json!(id))));
    let answer = client.put(&format!("/counters/{}", encode_key(&args.key)), &Value::Object(body));
    client.finish(answer, write_table)
}

/// `tally delete`.
pub fn delete(args: &DeleteArgs) -> ExitCode {
    let client = ApiClient::new(&args.client);
    let reason = args.reason.as_ref().map_or_else(String::new, |reason| format!("?reason={}", encode_value(reason)));
    let answer = client.delete(&format!("/counters/{}{reason}", encode_key(&args.key)));
    client.finish(answer, write_table)
}

/// `tally ledger`.
pub fn ledger(args: &LedgerArgs) -> ExitCode {
    let client = ApiClient::new(&args.client);
    client.finish(read_ledger(&client, &args.key), entries_table)
}

/// A page of a ledger, with the fields of its entries in the original order.
#[derive(Serialize, Deserialize)]
struct LedgerPage {
    key: String,
    entries: Vec<Box<RawValue>>,
    next: Option<u64>,
}

fn read_ledger(client: &ApiClient, key: &str) -> Result<Answer, CallError> {
    let page = |after: u64| -> Result<LedgerPage, CallError> {
        let answer = client.get(&format!("/counters/{}/ledger?limit=1000&after={after}", encode_key(key)))?;
        serde_json::from_str(&answer.text).map_err(|_| CallError::InvalidAnswer("the response is not a ledger".into()))
    };
    let mut ledger = page(0)?;
    while let Some(after) = ledger.next {
        let next = page(after)?;
        ledger.entries.extend(next.entries);
        ledger.next = next.next;
    }
    Answer::of(&ledger)
}

fn entries_table(answer: &Value) -> Vec<Vec<String>> {
    let mut rows = vec![["SEQ", "AT", "KIND", "BEFORE", "AFTER", "ACTOR", "REASON"].map(str::to_owned).to_vec()];
    for entry in answer.get("entries").and_then(Value::as_array).into_iter().flatten() {
        rows.push(["seq", "at", "kind", "before", "after", "actor", "reason"].map(|field| text(entry, field)).to_vec());
    }
    rows
}
