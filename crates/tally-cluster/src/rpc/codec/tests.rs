//! Messages survive encoding, and malformed ones are refused without a panic.

use tally_core::batch::{Batch, Events};
use tally_core::counter::CounterState;
use tally_core::key::KeyRef;
use tally_core::ledger::CorrectionKind;
use tally_core::limits::{BATCH_EVENTS_MAX, BATCH_EVENTS_SEAL, CALL_EVENTS_MAX};
use tally_core::partition::Partition;

use super::*;
use crate::rpc::limits::{REQUEST_BYTES_MAX, RESPONSE_BYTES_MAX};

fn key(bytes: &[u8]) -> Key {
    Key::new(bytes).unwrap()
}

/// The outcomes of adding to this many counters.
fn outcomes(counters: usize) -> Outcomes {
    let mut events = Events::new(1);
    for number in 0..counters {
        events.add(KeyRef::new(&number.to_be_bytes()).unwrap(), i64::MIN + 1);
    }
    let batch: &Batch = events.batch();
    let mut outcomes = Outcomes::default();
    Partition::new(1).apply(Millis(u64::MAX), batch, &mut outcomes);
    outcomes
}

fn entry_of(text: &str) -> LedgerEntry {
    LedgerEntry {
        seq: 3,
        at: Millis(1_700_000_000_000),
        kind: CorrectionKind::Adjust,
        actor: text.into(),
        reason: text.into(),
        before: i64::MIN,
        after: i64::MAX,
        previous: [7; 32],
        hash: [255; 32],
    }
}

/// A counter without a ledger, a ledger without a counter, and many of both.
fn snapshots() -> Vec<CounterSnapshot> {
    let expiring = CounterState { expires_at: Some(Millis(u64::MAX)), ..CounterState::new(Millis(5)) };
    let head = ChainHead { seq: u64::MAX, hash: [9; 32] };
    let both = CounterSnapshot { state: Some(expiring), head };
    let mut snapshots = vec![both.clone(); CALL_KEYS_MAX];
    snapshots[0] = CounterSnapshot { head: ChainHead::default(), ..both };
    snapshots[1] = CounterSnapshot { state: None, head };
    snapshots
}

fn requests() -> Vec<RpcRequest> {
    let (partition, key_a) = (u32::MAX, key(b"a"));
    let read = |need, keys| RpcRequest::Read { partition, need, keys };
    vec![
        RpcRequest::Outcomes { partition, offset: u64::MAX },
        read(Need::Refill, Vec::new()),
        read(Need::End, vec![key_a.clone(), key(&[0xff; KEY_BYTES_MAX])]),
        read(Need::Position(Position(u64::MAX)), vec![key(&[0xff; KEY_BYTES_MAX]); CALL_KEYS_MAX]),
        RpcRequest::Ledger { partition, key: key_a, after: u64::MAX, limit: LEDGER_ENTRIES_MAX as u32 },
        RpcRequest::Count { partition },
        RpcRequest::Persist { partition },
        RpcRequest::Snapshots { partition, keys: vec![key(&[0xff; KEY_BYTES_MAX]); CALL_KEYS_MAX] },
        RpcRequest::Status,
    ]
}

fn responses() -> Vec<Result<RpcResponse, RpcError>> {
    let (position, at) = (Position(u64::MAX), Millis(u64::MAX));
    let status = |role, end| PartitionStatus {
        partition: u32::MAX,
        epoch: u64::MAX,
        applied: position,
        persisted: Position(0),
        end,
        role,
    };
    let partitions = vec![status(Role::Owner, None), status(Role::Standby, Some(position))];
    let records = vec![None, Some(vec![1]), Some(vec![0xff; RECORD_BYTES_MAX])];
    let entries = vec![entry_of(""), entry_of(&"x".repeat(REASON_BYTES_MAX))];
    vec![
        Ok(RpcResponse::Outcomes { end: position, at, outcomes: outcomes(3) }),
        Ok(RpcResponse::Outcomes { end: position, at, outcomes: outcomes(BATCH_EVENTS_MAX) }),
        Ok(RpcResponse::Read { position, at, summed_at: Millis(7), records }),
        Ok(RpcResponse::Read {
            position,
            at,
            summed_at: at,
            records: vec![Some(vec![1; RECORD_BYTES_MAX]); CALL_KEYS_MAX],
        }),
        Ok(RpcResponse::Ledger { entries }),
        Ok(RpcResponse::Ledger { entries: vec![entry_of(&"x".repeat(REASON_BYTES_MAX)); LEDGER_ENTRIES_MAX] }),
        Ok(RpcResponse::Count { counters: u64::MAX, at }),
        Ok(RpcResponse::Persisted { position }),
        Ok(RpcResponse::Snapshots { snapshots: snapshots() }),
        Ok(RpcResponse::Status { partitions }),
        Ok(RpcResponse::Status { partitions: vec![status(Role::Owner, Some(position)); STATUS_PARTITIONS_MAX] }),
        Err(RpcError::NotHosted { owner: None }),
        Err(RpcError::NotHosted { owner: Some("x".repeat(ADDRESS_BYTES_MAX)) }),
        Err(RpcError::Gone),
        Err(RpcError::Overloaded),
        Err(RpcError::Closing),
        Err(RpcError::Failed("because".into())),
    ]
}

#[test]
fn the_largest_batch_is_what_the_tests_take_for_it() {
    assert_eq!(BATCH_EVENTS_MAX, BATCH_EVENTS_SEAL + CALL_EVENTS_MAX);
}

#[test]
fn requests_survive_a_round_trip_within_the_bound() {
    for request in requests() {
        let message = encode_request(&request);
        assert!(message.len() <= REQUEST_BYTES_MAX);
        assert_eq!(decode_request(&message), Some(request));
    }
}

#[test]
fn responses_survive_a_round_trip_within_the_bound() {
    for response in responses() {
        let message = encode_response(&response);
        assert!(message.len() <= RESPONSE_BYTES_MAX);
        assert_eq!(decode_response(&message), Some(response));
    }
}

/// Calls `check` with messages that differ from these in a byte, or are cut short.
fn damaged(messages: &[Vec<u8>], check: impl Fn(&[u8])) {
    for message in messages.iter().filter(|message| message.len() < 8_192) {
        for place in 0..message.len() {
            for byte in [0, 1, 2, 0x7f, 0x80, 0xff, message[place] ^ 1, message[place].wrapping_add(1)] {
                let mut changed = message.clone();
                changed[place] = byte;
                check(&changed);
            }
        }
    }
}

#[test]
fn a_message_that_is_cut_short_or_longer_or_of_another_version_is_refused() {
    let refused = |message: &[u8], is_decoded: &dyn Fn(&[u8]) -> bool| {
        let short = message.len().min(4_096);
        assert!((0..short).all(|len| !is_decoded(&message[..len])), "{message:?}");
        assert!(!is_decoded(&[message, &[0]].concat()));
        assert!(!is_decoded(&[&[VERSION + 1], &message[1..]].concat()));
        assert!(!is_decoded(&[&[VERSION, 0], &message[2..]].concat()));
    };
    for request in requests() {
        refused(&encode_request(&request), &|message| decode_request(message).is_some());
    }
    for response in responses() {
        refused(&encode_response(&response), &|message| decode_response(message).is_some());
    }
}

#[test]
fn a_damaged_message_does_not_panic_and_whatever_decodes_encodes_again() {
    let messages: Vec<Vec<u8>> = requests().iter().map(encode_request).collect();
    damaged(&messages, |message| {
        if let Some(request) = decode_request(message) {
            assert_eq!(decode_request(&encode_request(&request)), Some(request));
        }
    });
    let messages: Vec<Vec<u8>> = responses().iter().map(encode_response).collect();
    damaged(&messages, |message| {
        if let Some(response) = decode_response(message) {
            assert_eq!(decode_response(&encode_response(&response)), Some(response));
        }
    });
}

#[test]
fn more_than_a_limit_is_refused() {
    let keys = vec![key(b"a"); CALL_KEYS_MAX + 1];
    let read = RpcRequest::Read { partition: 0, need: Need::Refill, keys };
    assert_eq!(decode_request(&encode_request(&read)), None);
    let ledger = RpcRequest::Ledger { partition: 0, key: key(b"a"), after: 0, limit: LEDGER_ENTRIES_MAX as u32 + 1 };
    assert_eq!(decode_request(&encode_request(&ledger)), None);
    // Many records are announced, and none follows.
    let mut read = vec![VERSION, kind::READ];
    [1, 1, CALL_KEYS_MAX as u64].into_iter().for_each(|number| put_u64(&mut read, number));
    assert_eq!(decode_response(&read), None);
}

#[test]
fn texts_over_the_limit_are_cut_and_addresses_left_out() {
    let reason = format!("{}é{}", "x".repeat(ERROR_BYTES_MAX - 1), "y".repeat(10));
    let cut = decode_response(&encode_response(&Err(RpcError::Failed(reason))));
    assert_eq!(cut, Some(Err(RpcError::Failed("x".repeat(ERROR_BYTES_MAX - 1)))));
    let long = RpcError::NotHosted { owner: Some("x".repeat(ADDRESS_BYTES_MAX + 1)) };
    assert_eq!(decode_response(&encode_response(&Err(long))), Some(Err(RpcError::NotHosted { owner: None })));
}
