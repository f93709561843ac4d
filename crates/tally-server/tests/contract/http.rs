//! The suite's calls as HTTP requests.

use std::sync::Mutex;

use percent_encoding::{NON_ALPHANUMERIC, percent_encode};
use serde_json::{Value, json};
use tally_contract::{Ability, CallStep, EngineClient, Failure};
use tally_core::consistency::Consistency;
use tally_core::event::{Bounds, Change, Condition, Details, Expiry, Field, OnBound};
use tally_core::key::Key;
use tally_core::ledger::{CorrectionKind, LedgerEntry};
use tally_core::outcome::{Outcome, Receipt, Refusal, Token};
use tally_core::reading::{Reading, Stats};
use tally_core::surface::{EngineError, Page, PageRequest, SubmitOptions};
use tally_core::time::Millis;

use crate::harness::{Answer, Client, Server};
use crate::hosts::{ProtocolClient, ServerAddress};
use crate::refusals::{Answered, complete, millis};

/// Maximum keys per request, because the length of a URL is limited.
const KEYS_MAX: usize = 50;

pub struct HttpCalls {
    client: Client,
    server: Option<Mutex<Server>>,
    written: Mutex<Token>,
    prefix: String,
}

impl ProtocolClient for HttpCalls {
    const LACKS: &'static [Ability] = &[
        Ability::Stop,
        Ability::AnyBytes,
        Ability::AnyDelta,
        Ability::AnyConsistency,
        Ability::Actors,
        Ability::ConditionalSets,
        Ability::Expiries,
        Ability::Runs,
        Ability::Groups,
        Ability::Count,
    ];
    const LACKS_IN_CLUSTER: &'static [Ability] = &[Ability::Restart, Ability::AnyNamespace, Ability::FreshListing];

    fn to(address: &ServerAddress, prefix: String) -> HttpCalls {
        HttpCalls { client: Client::new(&address.http), server: None, written: Mutex::default(), prefix }
    }

    fn owning(server: Server) -> HttpCalls {
        let calls = HttpCalls::to(&ServerAddress::of(&server), String::new());
        HttpCalls { server: Some(Mutex::new(server)), ..calls }
    }

    fn take_written(&self) -> Token {
        std::mem::take(&mut self.written.lock().unwrap())
    }

    fn server(&self) -> Option<&Mutex<Server>> {
        self.server.as_ref()
    }
}

/// The error for a call that HTTP cannot express. The host's list of abilities prevents such calls.
fn inexpressible(what: &impl std::fmt::Debug) -> Failure {
    format!("HTTP cannot express {what:?}").into()
}

impl HttpCalls {
    fn stored(&self, key: &[u8]) -> Result<String, Failure> {
        Ok(format!("{}{}", self.prefix, std::str::from_utf8(key)?))
    }

    fn path(&self, key: &[u8], rest: &str) -> Result<String, Failure> {
        Ok(format!("/api/v1/counters/{}{rest}", percent_encode(self.stored(key)?.as_bytes(), NON_ALPHANUMERIC)))
    }

    fn request(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &Value) -> Result<Answer, Failure> {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        Ok(self.client.try_send(method, path, headers, &body)?)
    }

    fn get(&self, path: &str) -> Result<Value, Failure> {
        let answer = self.request("GET", path, &[], &Value::Null)?;
        if answer.status == 200 { Ok(answer.json) } else { Err(format!("GET {path}: {}", answer.text).into()) }
    }

    /// One event as one request.
    fn single(&self, step: &CallStep, token: &mut Token) -> Result<Answered, Failure> {
        let CallStep::Event { key, change, id, details } = step else { return Err(inexpressible(step)) };
        if let Change::Read(field) = change {
            return self.read_event(key, *field);
        }
        if details.is_some() && !matches!(change, Change::Add(_)) {
            return Err(inexpressible(step));
        }
        let (method, rest, mut body) = match change {
            Change::Add(delta) => {
                let (rest, amount) =
                    if *delta > 0 { ("/increment", Some(*delta)) } else { ("/decrement", delta.checked_neg()) };
                let amount = amount.filter(|amount| *amount > 0).ok_or_else(|| inexpressible(step))?;
                ("POST", rest.to_owned(), add_body(amount, details.as_deref())?)
            }
            Change::Set { value, when: Condition::Always, expiry: Expiry::Keep, why } => {
                ("PUT", String::new(), json!({ "value": value, "reason": why.reason() }))
            }
            Change::Set { value, when: Condition::Equals(expected), expiry: Expiry::Keep, why } => {
                ("PUT", String::new(), json!({ "value": value, "reason": why.reason(), "expected": expected }))
            }
            Change::Reset(why) => ("POST", "/reset".to_owned(), json!({ "reason": why.reason() })),
            Change::Adjust { delta, why } => {
                ("POST", "/adjust".to_owned(), json!({ "delta": delta, "reason": why.reason() }))
            }
            Change::Delete(why) => {
                let reason = percent_encode(why.reason().as_bytes(), NON_ALPHANUMERIC);
                ("DELETE", format!("?reason={reason}"), Value::Null)
            }
            _ => return Err(inexpressible(step)),
        };
        let mut headers = Vec::new();
        if let Some(id) = id {
            match body.as_object_mut() {
                Some(body) => drop(body.insert("request_id".to_owned(), json!(id))),
                None => headers.push(("Idempotency-Key", id.as_str())),
            }
        }
        let answer = self.request(method, &self.path(key, &rest)?, &headers, &body)?;
        let is_replayed = answer.header("idempotent-replayed") == "true";
        let answered = of_answer(key, &answer.json, token)?;
        assert_eq!(is_replayed, answered.outcome.is_duplicate(), "header and body agree: {}", answer.text);
        Ok(answered)
    }

    fn read_event(&self, key: &[u8], field: Field) -> Result<Answered, Failure> {
        let reading = self.readings(vec![Key::new(key)?], Consistency::Exact)?[0];
        let value = match (field, reading.exists, reading.expires_at) {
            (Field::Value, ..) => reading.value,
            (Field::Expiry, false, _) => 0,
            (Field::Version, ..) => return Err(inexpressible(&field)),
            (Field::Expiry, true, expires_at) => expires_at.map_or(-1, |at| at.0 as i64),
        };
        let outcome = Outcome { value, exists: reading.exists, at: reading.as_of, ..Outcome::EMPTY };
        Ok(Answered::known(key, outcome))
    }

    /// Increments as one request.
    fn batch(&self, steps: &[CallStep], token: &mut Token) -> Result<Vec<Answered>, Failure> {
        let item = |step: &CallStep| match step {
            CallStep::Event { key, change: Change::Add(amount), id, details } => {
                let mut item = add_body(*amount, details.as_deref())?;
                item["key"] = json!(self.stored(key)?);
                if let Some(id) = id {
                    item["request_id"] = json!(id);
                }
                Ok(item)
            }
            other => Err(inexpressible(other)),
        };
        let items = steps.iter().map(item).collect::<Result<Vec<_>, Failure>>()?;
        let body = json!({ "increments": items });
        let answer = self.request("POST", "/api/v1/counters/batch-increment", &[], &body)?;
        if answer.status != 200 {
            return Err(answer.text.into());
        }
        let results = answer.json["results"].as_array().ok_or("no results")?;
        assert_eq!(results.len(), steps.len(), "one result per item");
        let failed = results.iter().filter(|result| result.get("error").is_some()).count();
        assert_eq!(answer.json["failed"], json!(failed));
        let of = |(step, result): (&CallStep, &Value)| match step {
            CallStep::Event { key, .. } => of_answer(key, result.get("error").unwrap_or(result), token),
            other => Err(inexpressible(other)),
        };
        steps.iter().zip(results).map(of).collect()
    }
}

/// The body of an increment.
fn add_body(amount: i64, details: Option<&Details>) -> Result<Value, Failure> {
    let mut body = json!({ "amount": amount });
    let Some(details) = details else { return Ok(body) };
    let Details { bounds: Some(Bounds { floor, ceiling, on_bound }), expiry: None, .. } = details else {
        return Err(inexpressible(details));
    };
    let bounds = [("floor", floor), ("ceiling", ceiling)];
    for (name, bound) in bounds.into_iter().filter_map(|(name, bound)| Some((name, (*bound)?))) {
        body[name] = json!(bound);
    }
    body["on_bound"] = match on_bound {
        OnBound::Refuse => json!("refuse"),
        OnBound::Saturate => json!("saturate"),
        other => return Err(inexpressible(other)),
    };
    Ok(body)
}

/// The outcome in an answer to a write, or in a problem.
fn of_answer(key: &[u8], answer: &Value, token: &mut Token) -> Result<Answered, Failure> {
    let refusal = match answer["type"].as_str() {
        None => None,
        Some("/problems/overflow") => Some(Refusal::Overflow),
        Some("/problems/bound") => Some(Refusal::Bound),
        Some("/problems/unexpected-value") => Some(Refusal::NotExpected),
        Some("/problems/idempotency-mismatch") => Some(Refusal::PayloadMismatch),
        Some(_) => return Err(answer.to_string().into()),
    };
    if let Some(refusal) = refusal {
        return Ok(Answered::refused(key, refusal, answer["value"].as_i64(), answer["duplicate"] == json!(true)));
    }
    token.merge(&answer["token"].as_str().ok_or("no token")?.parse()?);
    let outcome = Outcome {
        value: integer(&answer["value"])?,
        applied: integer(&answer["applied"])?,
        exists: boolean(&answer["exists"])?,
        exact: boolean(&answer["exact"])?,
        duplicate: answer["duplicate"].as_bool(),
        refusal: None,
        at: time(&answer["as_of"])?,
    };
    Ok(Answered::known(key, outcome))
}

fn integer(value: &Value) -> Result<i64, Failure> {
    value.as_i64().ok_or_else(|| format!("not an integer: {value}").into())
}

fn boolean(value: &Value) -> Result<bool, Failure> {
    value.as_bool().ok_or_else(|| format!("not a boolean: {value}").into())
}

fn number<T: TryFrom<u64>>(value: &Value) -> Result<T, Failure> {
    let number = value.as_u64().and_then(|number| T::try_from(number).ok());
    number.ok_or_else(|| format!("not a natural number: {value}").into())
}

fn rate(value: &Value) -> Result<f64, Failure> {
    value.as_f64().ok_or_else(|| format!("not a number: {value}").into())
}

fn time(value: &Value) -> Result<Millis, Failure> {
    millis(value.as_str().ok_or_else(|| format!("not a time: {value}"))?)
}

fn optional_time(value: &Value) -> Result<Option<Millis>, Failure> {
    if value.is_null() { Ok(None) } else { time(value).map(Some) }
}

fn reading(answer: &Value) -> Result<Reading, Failure> {
    Ok(Reading {
        value: integer(&answer["value"])?,
        exists: boolean(&answer["exists"])?,
        exact: boolean(&answer["exact"])?,
        as_of: time(&answer["as_of"])?,
        staleness_ms: number(&answer["staleness_ms"])?,
        created_at: optional_time(&answer["created_at"])?,
        updated_at: optional_time(&answer["updated_at"])?,
        expires_at: optional_time(&answer["expires_at"])?,
        shards: number(&answer["shards"])?,
        // Absent where the whole value is shown.
        partial: answer["partial"] == json!(true),
    })
}

fn entry(answer: &Value) -> Result<LedgerEntry, Failure> {
    let text = |name: &str| answer[name].as_str().ok_or_else(|| format!("no {name}: {answer}"));
    let hash = |name: &str| -> Result<[u8; 32], Failure> {
        let bytes = data_encoding::HEXLOWER.decode(text(name)?.as_bytes())?;
        bytes.try_into().map_err(|_| "a hash has 32 bytes".into())
    };
    Ok(LedgerEntry {
        seq: number(&answer["seq"])?,
        at: time(&answer["at"])?,
        kind: match text("kind")? {
            "set" => CorrectionKind::Set,
            "reset" => CorrectionKind::Reset,
            "adjust" => CorrectionKind::Adjust,
            "delete" => CorrectionKind::Delete,
            other => return Err(format!("a correction of kind {other}").into()),
        },
        actor: text("actor")?.into(),
        reason: text("reason")?.into(),
        before: integer(&answer["before"])?,
        after: integer(&answer["after"])?,
        previous: hash("previous")?,
        hash: hash("hash")?,
    })
}

fn is_increment(step: &CallStep) -> bool {
    matches!(step, CallStep::Event { change: Change::Add(1..), .. })
}

impl EngineClient for HttpCalls {
    fn send(&self, steps: &[CallStep], options: SubmitOptions) -> Result<Result<Receipt, EngineError>, Failure> {
        if options.consistency != Consistency::Exact {
            return Err(inexpressible(&options));
        }
        let mut token = Token::default();
        let mut answered = Vec::with_capacity(steps.len());
        for run in steps.chunk_by(|before, after| is_increment(before) && is_increment(after)) {
            match run {
                [step] => answered.push(self.single(step, &mut token)?),
                increments => answered.extend(self.batch(increments, &mut token)?),
            }
        }
        self.written.lock().unwrap().merge(&token);
        let outcomes = complete(self, answered)?;
        let as_of = outcomes.last().map_or(Millis(0), |outcome| outcome.at);
        Ok(Ok(Receipt { outcomes, as_of, token }))
    }

    fn readings(&self, keys: Vec<Key>, consistency: Consistency) -> Result<Vec<Reading>, Failure> {
        if consistency != Consistency::Exact {
            return Err(inexpressible(&consistency));
        }
        if let [key] = &keys[..] {
            return Ok(vec![reading(&self.get(&self.path(key.as_bytes(), "/exact")?)?)?]);
        }
        let mut readings = Vec::with_capacity(keys.len());
        for chunk in keys.chunks(KEYS_MAX) {
            let mut query = String::new();
            for key in chunk {
                let separator = if query.is_empty() { '?' } else { '&' };
                let stored = self.stored(key.as_bytes())?;
                query += &format!("{separator}key={}", percent_encode(stored.as_bytes(), NON_ALPHANUMERIC));
            }
            let answer = self.get(&format!("/api/v1/counters{query}"))?;
            for counter in answer["counters"].as_array().ok_or("no counters")? {
                readings.push(reading(counter)?);
            }
        }
        Ok(readings)
    }

    fn statistics(&self, key: Key) -> Result<Stats, Failure> {
        let answer = self.get(&self.path(key.as_bytes(), "/stats")?)?;
        let shards = answer["shard_values"].as_array().ok_or("no shards")?;
        Ok(Stats {
            reading: reading(&answer)?,
            increments: number(&answer["increments"])?,
            decrements: number(&answer["decrements"])?,
            min: integer(&answer["min"])?,
            max: integer(&answer["max"])?,
            rate_1s: rate(&answer["rate_1s"])?,
            rate_1m: rate(&answer["rate_1m"])?,
            rate_1h: rate(&answer["rate_1h"])?,
            shard_values: shards.iter().map(integer).collect::<Result<_, _>>()?,
            shard_loads: answer["shard_loads"].as_array().into_iter().flatten().map(rate).collect::<Result<_, _>>()?,
        })
    }

    fn page(&self, page: PageRequest) -> Result<Page, Failure> {
        let encode = |text: String| percent_encode(text.as_bytes(), NON_ALPHANUMERIC).to_string();
        let mut path = format!("/api/v1/counters?prefix={}&limit={}", encode(self.stored(&page.prefix)?), page.limit);
        if let Some(after) = page.after {
            // A cursor is opaque to clients; the suite also starts pages where no page has ended.
            let cursor = data_encoding::HEXLOWER.encode(self.stored(after.as_bytes())?.as_bytes());
            path += &format!("&cursor={cursor}");
        }
        let own = |stored: &str| -> Result<Key, Failure> {
            Ok(Key::new(stored.strip_prefix(&self.prefix).ok_or("a counter of somebody else")?)?)
        };
        let answer = self.get(&path)?;
        let mut items = Vec::new();
        for counter in answer["counters"].as_array().ok_or("no counters")? {
            items.push((own(counter["key"].as_str().ok_or("no key")?)?, reading(counter)?));
        }
        let next = match answer["next_cursor"].as_str() {
            Some(cursor) => {
                let stored = String::from_utf8(data_encoding::HEXLOWER.decode(cursor.as_bytes())?)?;
                Some(own(&stored)?)
            }
            None => None,
        };
        Ok(Page { items, next })
    }

    fn entries(&self, key: Key, after: u64, limit: usize) -> Result<Vec<LedgerEntry>, Failure> {
        let answer = self.get(&self.path(key.as_bytes(), &format!("/ledger?after={after}&limit={limit}"))?)?;
        answer["entries"].as_array().ok_or("no entries")?.iter().map(entry).collect()
    }

    fn counters(&self) -> Result<u64, Failure> {
        Err(inexpressible(&"the number of counters"))
    }

    fn any_counter(&self, _: u64) -> Result<Option<Key>, Failure> {
        Err(inexpressible(&"a sample"))
    }
}
