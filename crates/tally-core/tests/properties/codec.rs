//! The batch codec: round trips are lossless, and invalid input is refused without a panic.

use proptest::collection::vec;
use proptest::prelude::*;
use tally_core::batch::{Batch, CodecError, Combiner, Events, decode, encode};
use tally_core::counter::{Counter, CounterState};
use tally_core::event::{
    AddExpiry, Bounds, Change, ChangeRef, Condition, Correction, Deadline, Details, Dimensions, EventRef, Expiry,
    ExpiryCondition, Field, Member, OnBound, RequestId,
};
use tally_core::import::{Existing, ImportError, ImportPart, ImportedCounter};
use tally_core::key::Key;
use tally_core::ledger::{CHAIN_START, CorrectionKind, LedgerEntry};
use tally_core::limits::{
    BATCH_EVENTS_MAX, BATCH_EVENTS_SEAL, CALL_EVENTS_MAX, CALL_PARTS_MAX, DIMENSION_BYTES_MAX, DIMENSIONS_MAX,
    IMPORT_ENTRIES_MAX, KEY_BYTES_MAX, MEMBER_BYTES_MAX, REASON_BYTES_MAX, REQUEST_ID_BYTES_MAX, SHARDS_MAX,
};
use tally_core::sub_counters::{ShardReports, SubCounter};
use tally_core::time::Millis;
use tally_sim::model::Event;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::strategies;

const SEED: u64 = 11;

fn call_of(events: &[Event]) -> Events {
    let mut call = Events::new(SEED);
    for event in events {
        event.push_to(&mut call);
    }
    call
}

fn events_of(batch: &Batch) -> Vec<String> {
    batch.iter().map(|event| format!("{event:?}")).collect()
}

fn encoded(batch: &Batch, at: Millis) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode(batch, at, &mut bytes);
    bytes
}

proptest! {
    #[test]
    fn a_batch_survives_a_round_trip(
        events in vec(strategies::event(&prop_oneof![strategies::extreme(), strategies::modest()].boxed()), 0..40),
        at in any::<u64>(),
        before in vec(any::<u8>(), 0..9),
    ) {
        let call = call_of(&events);
        let mut bytes = before.clone();
        encode(call.batch(), Millis(at), &mut bytes);
        prop_assert_eq!(&bytes[..before.len()], &before[..]);
        prop_assert!(bytes.len() - before.len() <= call.batch().bytes(), "the estimate is an upper bound");
        let mut back = Batch::default();
        prop_assert_eq!(decode(&bytes[before.len()..], SEED, &mut back), Ok(Millis(at)));
        let is_read = |event: &EventRef<'_>| matches!(event.change, ChangeRef::Other(Change::Read(_)));
        let written = call.batch().iter().filter(|event| !is_read(event)).map(|event| format!("{event:?}"));
        prop_assert_eq!(events_of(&back), written.collect::<Vec<_>>());
        prop_assert_eq!(encoded(&back, Millis(at)), &bytes[before.len()..]);
    }

    #[test]
    fn arbitrary_bytes_are_refused_without_a_panic(bytes in vec(any::<u8>(), 0..200)) {
        let _ = decode(&bytes, SEED, &mut Batch::default());
    }

    #[test]
    fn a_damaged_batch_is_refused(
        events in vec(strategies::event(&strategies::modest()), 1..8), place in any::<prop::sample::Index>(), flip in 1u8..,
    ) {
        let mut bytes = encoded(call_of(&events).batch(), Millis(1));
        let place = place.index(bytes.len());
        bytes[place] ^= flip;
        prop_assert!(decode(&bytes, SEED, &mut Batch::default()).is_err());
        bytes[place] ^= flip;
        bytes.truncate(place);
        prop_assert!(decode(&bytes, SEED, &mut Batch::default()).is_err());
    }

    /// A checksum proves that the bytes are intact, not that this version wrote them.
    #[test]
    fn garbage_with_a_valid_checksum_does_not_panic_and_whatever_decodes_encodes_again(
        events in vec(strategies::event(&strategies::modest()), 1..8),
        changes in vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in any::<prop::sample::Index>(),
    ) {
        let bytes = encoded(call_of(&events).batch(), Millis(1));
        let mut content = bytes[..bytes.len() - 4].to_vec();
        for (place, byte) in changes {
            let place = place.index(content.len());
            content[place] = byte;
        }
        content.truncate(1 + cut.index(content.len()));
        let crc = crc32fast::hash(&content);
        content.extend_from_slice(&crc.to_le_bytes());
        let mut back = Batch::default();
        if let Ok(at) = decode(&content, SEED, &mut back) {
            let again = encoded(&back, at);
            let mut twice = Batch::default();
            prop_assert_eq!(decode(&again, SEED, &mut twice), Ok(at));
            prop_assert_eq!(events_of(&twice), events_of(&back));
        }
    }
}

#[test]
fn the_largest_event_of_every_kind_survives_a_round_trip() {
    let long = |len: usize| "x".repeat(len).into_boxed_str();
    let key = Key::new(vec![0xff; KEY_BYTES_MAX]).unwrap();
    let why = || Correction::new(&long(REASON_BYTES_MAX), &long(REASON_BYTES_MAX)).unwrap();
    let mut dimensions = Dimensions::default();
    for _ in 0..DIMENSIONS_MAX {
        dimensions.push(&long(DIMENSION_BYTES_MAX), &long(DIMENSION_BYTES_MAX)).unwrap();
    }
    let bounds = Bounds { floor: Some(i64::MIN), ceiling: Some(i64::MAX), on_bound: OnBound::Saturate };
    let member = Some(Member::new(&[0; MEMBER_BYTES_MAX]).unwrap());
    let expiry = AddExpiry { at: Some(Deadline::After(u64::MAX)), only_if_none: true };
    let details =
        Details { member, dimensions, at: Some(Millis(u64::MAX)), bounds: Some(bounds), expiry: Some(expiry) };

    let id = RequestId::new(key.as_ref(), &[7; REQUEST_ID_BYTES_MAX]).unwrap();
    for change in [
        Change::Add(i64::MIN),
        Change::Set {
            value: i64::MIN,
            when: Condition::Equals(i64::MIN),
            expiry: Expiry::At(Deadline::At(Millis(u64::MAX))),
            why: why(),
        },
        Change::Reset(why()),
        Change::Adjust { delta: i64::MIN, why: why() },
        Change::Delete(why()),
        Change::Expire { at: Some(Deadline::After(u64::MAX)), when: ExpiryCondition::IfSomeAndEarlier },
        Change::Sweep { expires_at: Millis(u64::MAX) },
        Change::Guard { version: i64::MIN, covers: u32::MAX },
        Change::Sum(ShardReports::new((0..SHARDS_MAX).map(largest_report).collect()).unwrap()),
    ] {
        let mut call = Events::new(SEED);
        call.push(key.as_ref(), change, Some(id), Some(details.clone()));
        let bytes = encoded(call.batch(), Millis(u64::MAX));
        assert!(bytes.len() <= call.batch().bytes());
        let mut back = Batch::default();
        assert_eq!(decode(&bytes, SEED, &mut back), Ok(Millis(u64::MAX)));
        assert_eq!(events_of(&back), events_of(call.batch()));
    }
}

fn largest_report(shard: u32) -> SubCounter {
    let (incarnation, increments, decrements) = (u64::MAX, u64::MAX, u64::MAX);
    SubCounter { shard, incarnation, increments, decrements, is_closed: true }
}

fn import_of(key: &Key, entries: usize) -> Change {
    let mut ledger: Vec<LedgerEntry> = Vec::new();
    for seq in 1..=entries as u64 {
        let previous = ledger.last().map_or(CHAIN_START, |last| last.hash);
        let text: Box<str> = "x".repeat(REASON_BYTES_MAX).into();
        let mut entry = LedgerEntry {
            seq,
            at: Millis(u64::MAX),
            kind: CorrectionKind::Set,
            actor: text.clone(),
            reason: text,
            before: i64::MIN,
            after: i64::MAX,
            previous,
            hash: previous,
        };
        entry.hash = entry.expected_hash(key.as_ref());
        ledger.push(entry);
    }
    let mut counter = Counter::new(Millis(1));
    counter.correct(Millis(u64::MAX), i64::MIN).unwrap();
    let state = CounterState { counter, expires_at: Some(Millis(u64::MAX)) };
    let part = ImportPart::Last(Some(state));
    Change::Import(Box::new(ImportedCounter::new(key.as_ref(), part, Existing::Replace, ledger).unwrap()))
}

#[test]
fn the_largest_import_survives_a_round_trip_and_a_larger_one_is_refused() {
    let key = Key::new(vec![0xff; KEY_BYTES_MAX]).unwrap();
    let mut call = Events::new(SEED);
    call.push(key.as_ref(), import_of(&key, IMPORT_ENTRIES_MAX), None, None);
    assert!(call.batch().fits_call());
    let bytes = encoded(call.batch(), Millis(5));
    assert!(bytes.len() <= call.batch().bytes());
    let mut back = Batch::default();
    assert_eq!(decode(&bytes, SEED, &mut back), Ok(Millis(5)));
    assert_eq!(events_of(&back), events_of(call.batch()));
    let Change::Import(import) = import_of(&key, IMPORT_ENTRIES_MAX) else { unreachable!() };
    let mut entries = import.entries().to_vec();
    let check = |entries: &[LedgerEntry]| {
        ImportedCounter::new(key.as_ref(), ImportPart::Ledger, Existing::Refuse, entries.to_vec()).map(|_| ())
    };
    assert_eq!(check(&entries[7..]), Ok(()));
    assert_eq!(check(&[&entries[..3], &entries[4..]].concat()), Err(ImportError::BrokenChain(5)));
    entries[9].after = 0;
    assert_eq!(check(&entries), Err(ImportError::BrokenChain(10)));
    entries.push(entries[0].clone());
    let many = ImportError::TooManyEntries(IMPORT_ENTRIES_MAX + 1);
    entries[9].after = i64::MAX;
    assert_eq!(check(&entries), Err(many));
}

/// A build that knows neither imports nor sums can then read every journal without them, and reports the format of the
/// others.
#[test]
fn only_batches_with_imports_or_sums_have_format_3() {
    let key = Key::new("k").unwrap();
    let sum = Change::Sum(ShardReports::new(vec![largest_report(0)]).unwrap());
    for new in [import_of(&key, 1), sum] {
        let mut call = Events::new(SEED);
        call.add(key.as_ref(), 1);
        assert_eq!(encoded(call.batch(), Millis(5))[0], 2);
        call.push(key.as_ref(), new, None, None);
        let mut bytes = encoded(call.batch(), Millis(5));
        assert_eq!(bytes[0], 3);
        let mut combiner = Combiner::default();
        combiner.combine(&call, &mut Vec::new());
        assert_eq!(encoded(combiner.batch(), Millis(5))[0], 3);
        bytes[0] = 2;
        let content = bytes.len() - 4;
        let crc = crc32fast::hash(&bytes[..content]);
        bytes[content..].copy_from_slice(&crc.to_le_bytes());
        assert!(matches!(decode(&bytes, SEED, &mut Batch::default()), Err(CodecError::Malformed(_))));
    }
}

/// Bytes as version 1 wrote them: two sets, an increment of 2, and increments that sum up to 7.
#[test]
fn batches_of_version_1_are_read_and_fingerprints_stay_the_same() {
    let key = Key::new("k").unwrap();
    let set = |when| Change::Set { value: 3, when, expiry: Expiry::Keep, why: Correction::new("a", "r").unwrap() };
    let mut call = Events::new(SEED);
    call.push(key.as_ref(), set(Condition::Always), None, None);
    call.push(key.as_ref(), set(Condition::Equals(-1)), None, None);
    call.push(key.as_ref(), Change::Add(2), None, None);
    let mut written = [
        &[1, 5, 4][..],
        &[1, 1, b'k', 6, 0, 1, b'a', 1, b'r'],
        &[1 | 1 << 6, 1, b'k', 6, 1, 1, 1, b'a', 1, b'r'],
        &[0, 1, b'k', 4],
        &[1 << 5, 1, b'k', 14],
    ]
    .concat();
    let crc = crc32fast::hash(&written);
    written.extend_from_slice(&crc.to_le_bytes());
    let mut back = Batch::default();
    assert_eq!(decode(&written, SEED, &mut back), Ok(Millis(5)));
    assert_eq!(events_of(&back)[..3], events_of(call.batch()));
    let sum = back.iter().last().unwrap();
    assert!(sum.bare_sum && matches!(sum.change, ChangeRef::Add(7)), "{sum:?}");
    let fingerprints: Vec<u64> = call.batch().iter().map(|event| event.fingerprint()).collect();
    let fingerprint = |bytes: &[u8]| xxh3_64_with_seed(bytes, xxh3_64_with_seed(b"k", 0));
    let always = fingerprint(&[1, 6, 0, 0, 1, b'r']);
    let equals = fingerprint(&[1, 6, 1, 1, 0, 1, b'r']);
    assert_eq!(fingerprints, [always, equals, xxh3_64_with_seed(b"k", 2)]);
}

#[test]
fn reads_are_not_encoded() {
    let (a, b) = (Key::new("a").unwrap(), Key::new("b").unwrap());
    let read = || Change::Read(Field::Value);
    let id = RequestId::new(a.as_ref(), b"id").unwrap();
    let mut call = Events::new(SEED);
    call.push(a.as_ref(), read(), Some(id), Some(Details { at: Some(Millis(1)), ..Details::default() }));
    call.push(b.as_ref(), Change::Read(Field::Expiry), None, None);
    assert_eq!((call.batch().len(), call.batch().reads(), call.batch().journalled_len()), (2, 2, 0));
    assert!(call.batch().is_read_only());
    assert!(call.batch().iter().all(|event| event.request_id.is_none() && event.details.is_none()));
    call.group(|group| {
        group.push(a.as_ref(), read(), None, None);
        group.add(b.as_ref(), 1);
    });
    call.push(b.as_ref(), read(), None, None);
    assert_eq!((call.batch().len(), call.batch().reads(), call.batch().journalled_len()), (5, 4, 1));
    assert!(!call.batch().is_read_only());
    let mut back = Batch::default();
    decode(&encoded(call.batch(), Millis(0)), SEED, &mut back).unwrap();
    assert_eq!(events_of(&back), events_of(call.batch())[3..4]);
    call.clear();
    assert_eq!((call.len(), call.batch().len(), call.batch().reads()), (0, 0, 0));
}

#[test]
fn events_of_a_group_are_never_combined() {
    let key = Key::new("k").unwrap();
    let mut call = Events::new(SEED);
    call.add(key.as_ref(), 1);
    call.group(|_| {});
    call.add(key.as_ref(), 1);
    assert_eq!(call.batch().len(), 1, "an empty group has no effect");
    call.group(|group| {
        group.add(key.as_ref(), 1);
        group.push(key.as_ref(), Change::Add(1), None, Some(Details::default()));
        group.group(|inner| inner.add_times(key.as_ref(), 1, 5));
    });
    call.add(key.as_ref(), 1);
    call.add(key.as_ref(), 1);
    let sums = |batch: &Batch| -> Vec<i128> {
        let sum = |event: EventRef<'_>| match event.change {
            ChangeRef::Add(delta) => i128::from(delta),
            ChangeRef::Adds(adds) => adds.sum(),
            ChangeRef::Other(_) => 0,
        };
        batch.iter().map(sum).collect()
    };
    assert_eq!(sums(call.batch()), [2, 1, 1, 5, 2]);
    let mut combiner = Combiner::default();
    combiner.combine(&call, &mut Vec::new());
    combiner.combine(&call, &mut Vec::new());
    // The first adds of the second call are combined with the last ones of the first.
    assert_eq!(sums(combiner.batch()), [2, 1, 1, 5, 4, 1, 1, 5, 2]);
}

#[test]
fn the_largest_batch_that_engines_accept_survives_a_round_trip() {
    let key = |number: usize| Key::new(format!("{number:0>512}")).unwrap();
    let mut many_events = Events::new(SEED);
    (0..CALL_EVENTS_MAX).for_each(|number| many_events.add(key(number).as_ref(), i64::MIN));
    let mut many_parts = Events::new(SEED);
    (0..CALL_PARTS_MAX).for_each(|number| many_parts.add(key(0).as_ref(), 1 + number as i64 % 2));
    assert!(many_events.batch().fits_call() && many_parts.batch().fits_call());
    many_parts.add(key(0).as_ref(), 1);
    many_events.add(key(CALL_EVENTS_MAX).as_ref(), 1);
    assert!(!many_events.batch().fits_call() && !many_parts.batch().fits_call());
    let mut combiner = Combiner::default();
    for events in 0..BATCH_EVENTS_SEAL - 1 {
        let mut call = Events::new(SEED);
        call.add(key(CALL_EVENTS_MAX + events).as_ref(), i64::MIN);
        combiner.combine(&call, &mut Vec::new());
    }
    combiner.combine(&many_events, &mut Vec::new());
    assert_eq!(combiner.batch().len(), BATCH_EVENTS_MAX);
    let bytes = encoded(combiner.batch(), Millis(u64::MAX));
    let mut back = Batch::default();
    assert_eq!(decode(&bytes, SEED, &mut back), Ok(Millis(u64::MAX)));
    assert_eq!(back.len(), BATCH_EVENTS_MAX);
    assert_eq!(encoded(&back, Millis(u64::MAX)), bytes);
}

#[test]
#[should_panic(expected = "the batch exceeds its limits")]
fn encoding_a_batch_that_could_not_be_decoded_panics() {
    let mut call = Events::new(SEED);
    for number in 0..=BATCH_EVENTS_MAX {
        call.add(Key::new(format!("{number}")).unwrap().as_ref(), 1);
    }
    encoded(call.batch(), Millis(1));
}

#[test]
fn a_newer_version_is_refused_and_reported() {
    let mut bytes = encoded(&Batch::default(), Millis(5));
    bytes[0] = 9;
    let content = bytes.len() - 4;
    let crc = crc32fast::hash(&bytes[..content]);
    bytes[content..].copy_from_slice(&crc.to_le_bytes());
    assert_eq!(decode(&bytes, SEED, &mut Batch::default()), Err(CodecError::Version(9)));
}
