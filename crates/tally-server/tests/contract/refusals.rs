//! Fills in what an answer does not say about a refused event. A client that wants to know reads the counter.

use std::collections::HashMap;

use tally_contract::{EngineClient, Failure};
use tally_core::consistency::Consistency;
use tally_core::key::Key;
use tally_core::outcome::{Outcome, Refusal};
use tally_core::time::Millis;

/// The outcome of one step, as far as its answer says.
pub struct Answered {
    pub key: Vec<u8>,
    pub outcome: Outcome,
    /// Whether `value` is known.
    pub has_value: bool,
}

impl Answered {
    pub fn known(key: &[u8], outcome: Outcome) -> Answered {
        Answered { key: key.to_vec(), outcome, has_value: true }
    }

    pub fn refused(key: &[u8], refusal: Refusal, value: Option<i64>, duplicate: bool) -> Answered {
        let outcome = Outcome {
            value: value.unwrap_or_default(),
            refusal: Some(refusal),
            duplicate: Some(duplicate),
            ..Outcome::EMPTY
        };
        Answered { key: key.to_vec(), outcome, has_value: value.is_some() }
    }
}

/// Completes the outcomes of refused events: with the value of the last event before them, or a reading.
pub fn complete(client: &impl EngineClient, answered: Vec<Answered>) -> Result<Vec<Outcome>, Failure> {
    let mut latest: HashMap<Vec<u8>, (i64, bool)> = HashMap::new();
    let mut outcomes = Vec::with_capacity(answered.len());
    for Answered { key, mut outcome, has_value } in answered {
        if outcome.refusal.is_some() {
            if !latest.contains_key(&key) {
                let reading = client.readings(vec![Key::new(&key)?], Consistency::Exact)?[0];
                latest.insert(key.clone(), (reading.value, reading.exists));
            }
            let (value, exists) = latest[&key];
            outcome.exists = exists;
            if !has_value {
                outcome.value = value;
            }
        } else if outcome.duplicate != Some(true) {
            latest.insert(key, (outcome.value, outcome.exists));
        }
        outcomes.push(outcome);
    }
    Ok(outcomes)
}

/// Milliseconds since the epoch in an RFC 3339 time.
pub fn millis(text: &str) -> Result<Millis, Failure> {
    let time = humantime::parse_rfc3339(text)?.duration_since(std::time::UNIX_EPOCH)?;
    Ok(Millis(u64::try_from(time.as_millis())?))
}
