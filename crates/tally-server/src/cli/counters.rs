//! `tally incr`, `decr`, `get`, `list` and `stats`: counters of a running server.

use std::process::ExitCode;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::args::{DecrArgs, GetArgs, IncrArgs, ListArgs, StatsArgs};
use super::client::{Answer, ApiClient, CallError, encode_key, encode_value};
use super::output;

/// Maximum bytes of encoded keys per request, well below the server's limit on the request head.
const KEYS_BYTES_MAX: usize = 16 << 10;

/// `tally incr`.
pub fn incr(args: &IncrArgs) -> ExitCode {
    let client = ApiClient::new(&args.client);
    let answer = change(&client, &args.key, "increment", args.amount, args.request_id.as_deref());
    client.finish(answer, write_table)
}

/// `tally decr`.
pub fn decr(args: &DecrArgs) -> ExitCode {
    let client = ApiClient::new(&args.client);
    let answer = change(&client, &args.key, "decrement", args.amount, args.request_id.as_deref());
    client.finish(answer, write_table)
}

fn change(
    client: &ApiClient,
    key: &str,
    verb: &str,
    amount: i64,
    request_id: Option<&str>,
) -> Result<Answer, CallError> {
    let mut body = Map::from_iter([("amount".to_owned(), json!(amount))]);
    if let Some(id) = request_id {
        body.insert("request_id".to_owned(), json!(id));
    }
    client.post(&format!("/counters/{}/{verb}", encode_key(key)), &Value::Object(body))
}

/// The outcome of a change.
pub fn write_table(answer: &Value) -> Vec<Vec<String>> {
    let note = if answer.get("duplicate") == Some(&Value::Bool(true)) { "duplicate" } else { "" };
    let applied = answer.get("applied").and_then(Value::as_i64).unwrap_or_default();
    vec![
        ["KEY", "VALUE", "CHANGE", ""].map(str::to_owned).to_vec(),
        vec![text(answer, "key"), text(answer, "value"), format!("{applied:+}"), note.to_owned()],
    ]
}

/// `tally get`.
pub fn get(args: &GetArgs) -> ExitCode {
    let client = ApiClient::new(&args.client);
    let read = read_all(&client, &args.keys);
    match read {
        Ok(answer) if args.quiet => {
            let counters = answer.value.get("counters").and_then(Value::as_array).into_iter().flatten();
            counters.for_each(|counter| output::text(&format!("{}\n", text(counter, "value"))));
            ExitCode::SUCCESS
        }
        read => client.finish(read, readings_table),
    }
}

/// `tally list`.
pub fn list(args: &ListArgs) -> ExitCode {
    let client = ApiClient::new(&args.client);
    let limit = if args.all { u64::MAX } else { args.limit };
    let listed = read_pages(&client, &args.prefix, limit);
    if let Ok((_, Some(_))) = &listed {
        output::note(&"There are more counters: use --all, --limit or a longer prefix.");
    }
    client.finish(listed.map(|(answer, _)| answer), readings_table)
}

/// A page of a listing.
#[derive(Deserialize)]
struct CounterPage {
    counters: Vec<Box<RawValue>>,
    next_cursor: Option<String>,
}

/// Up to `limit` counters, and the cursor of the next page.
fn read_pages(client: &ApiClient, prefix: &str, limit: u64) -> Result<(Answer, Option<String>), CallError> {
    let mut all = Counters::default();
    let mut cursor = String::new();
    loop {
        let missing = limit - all.counters.len() as u64;
        let size = missing.min(tally_core::limits::PAGE_ITEMS_MAX as u64);
        let answer = client.get(&format!("/counters?prefix={}&limit={size}{cursor}", encode_value(prefix)))?;
        let page: CounterPage = serde_json::from_str(&answer.text)
            .map_err(|_| CallError::InvalidAnswer("the answer has no `counters`".into()))?;
        all.counters.extend(page.counters);
        match page.next_cursor {
            Some(next) if (all.counters.len() as u64) < limit => cursor = format!("&cursor={next}"),
            next => return Ok((Answer::of(&all)?, next)),
        }
    }
}

/// Counters as in the answer, with their fields in the original order.
#[derive(Default, Serialize, Deserialize)]
struct Counters {
    counters: Vec<Box<RawValue>>,
}

fn read_all(client: &ApiClient, keys: &[String]) -> Result<Answer, CallError> {
    let invalid = |_| CallError::InvalidAnswer("the answer has no `counters`".into());
    let mut all = Counters::default();
    for list in lists(keys) {
        let answer = client.get(&format!("/counters?keys={list}"))?;
        let mut page: Counters = serde_json::from_str(&answer.text).map_err(invalid)?;
        all.counters.append(&mut page.counters);
    }
    Answer::of(&all)
}

/// The keys, encoded and joined, in lists that each fit a request.
fn lists(keys: &[String]) -> Vec<String> {
    let mut lists: Vec<String> = Vec::new();
    for key in keys.iter().map(|key| encode_key(key)) {
        match lists.last_mut() {
            Some(list) if list.len() + key.len() < KEYS_BYTES_MAX => {
                list.push(',');
                list.push_str(&key);
            }
            _ => lists.push(key),
        }
    }
    lists
}

fn readings_table(answer: &Value) -> Vec<Vec<String>> {
    let mut rows = vec![["KEY", "VALUE", "UPDATED"].map(str::to_owned).to_vec()];
    for counter in answer.get("counters").and_then(Value::as_array).into_iter().flatten() {
        let exists = counter.get("exists") == Some(&Value::Bool(true));
        let updated = if exists { text(counter, "updated_at") } else { "does not exist".to_owned() };
        rows.push(vec![text(counter, "key"), text(counter, "value"), updated]);
    }
    rows
}

/// `tally stats`.
pub fn stats(args: &StatsArgs) -> ExitCode {
    let client = ApiClient::new(&args.client);
    let answer = client.get(&format!("/counters/{}/stats", encode_key(&args.key)));
    client.finish(answer, statistics)
}

fn statistics(answer: &Value) -> Vec<Vec<String>> {
    const ROWS: [(&str, &str); 13] = [
        ("key", "key"),
        ("value", "value"),
        ("added in total", "increments"),
        ("subtracted in total", "decrements"),
        ("minimum", "min"),
        ("maximum", "max"),
        ("per second, last second", "rate_1s"),
        ("per second, last minute", "rate_1m"),
        ("per second, last hour", "rate_1h"),
        ("shards", "shards"),
        ("created", "created_at"),
        ("updated", "updated_at"),
        ("expires", "expires_at"),
    ];
    if answer.get("exists") != Some(&Value::Bool(true)) {
        let row = |name: &str, text: String| vec![name.to_owned(), text];
        return vec![row("key", text(answer, "key")), row("value", "0, does not exist".to_owned())];
    }
    ROWS.iter().map(|(name, field)| vec![(*name).to_owned(), text(answer, field)]).collect()
}

/// A field for a table.
pub fn text(answer: &Value, field: &str) -> String {
    match answer.get(field) {
        Some(Value::String(text)) => text.clone(),
        None | Some(Value::Null) => "-".to_owned(),
        Some(Value::Number(number)) if number.is_f64() => rounded(number.as_f64().unwrap_or_default()),
        Some(other) => other.to_string(),
    }
}

/// A rate with at most three decimals.
fn rounded(rate: f64) -> String {
    let text = format!("{rate:.3}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text == "-0" { "0".to_owned() } else { text.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_rounded() {
        assert_eq!([0.0, 12.0, 0.016_666_7, -2.5, -0.000_01].map(rounded), ["0", "12", "0.017", "-2.5", "0"]);
    }

    #[test]
    fn many_keys_are_split_into_lists_that_fit_a_request() {
        let keys: Vec<String> = (0..100).map(|i| format!("{i}{}", "é".repeat(200))).collect();
        let lists = lists(&keys);
        assert!(lists.iter().all(|list| list.len() <= KEYS_BYTES_MAX + 2));
        assert_eq!(lists.iter().map(|list| list.split(',').count()).sum::<usize>(), 100);
    }
}
