//! The binary form of a batch: it gives back what went in, and refuses everything else without a panic.

use proptest::collection::vec;
use proptest::prelude::*;
use tally_core::batch::{Batch, CodecError, Events, decode, encode};
use tally_core::event::{Bounds, Change, Correction, Details, OnBound, RequestId};
use tally_core::key::Key;
use tally_core::limits::{
    DIMENSION_BYTES_MAX, DIMENSIONS_MAX, KEY_BYTES_MAX, MEMBER_BYTES_MAX, REASON_BYTES_MAX, REQUEST_ID_BYTES_MAX,
};
use tally_core::time::Millis;
use tally_sim::model::Event;

use crate::drawn;

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
    fn a_batch_comes_back_as_it_was(
        events in vec(drawn::event(&prop_oneof![drawn::extreme(), drawn::modest()].boxed()), 0..40),
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
        prop_assert_eq!(events_of(&back), events_of(call.batch()));
        prop_assert_eq!(encoded(&back, Millis(at)), &bytes[before.len()..]);
    }

    #[test]
    fn arbitrary_bytes_are_refused_without_a_panic(bytes in vec(any::<u8>(), 0..200)) {
        let _ = decode(&bytes, SEED, &mut Batch::default());
    }

    #[test]
    fn a_damaged_batch_is_refused(
        events in vec(drawn::event(&drawn::modest()), 1..8), place in any::<prop::sample::Index>(), flip in 1u8..,
    ) {
        let mut bytes = encoded(call_of(&events).batch(), Millis(1));
        let place = place.index(bytes.len());
        bytes[place] ^= flip;
        prop_assert!(decode(&bytes, SEED, &mut Batch::default()).is_err());
        bytes[place] ^= flip;
        bytes.truncate(place);
        prop_assert!(decode(&bytes, SEED, &mut Batch::default()).is_err());
    }

    /// A checksum proves that bytes are as written, not that this program wrote them.
    #[test]
    fn nonsense_with_a_sound_checksum_does_not_panic_and_what_decodes_encodes_again(
        events in vec(drawn::event(&drawn::modest()), 1..8),
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
fn the_largest_event_of_every_kind_comes_back() {
    let long = |len: usize| "x".repeat(len).into_boxed_str();
    let key = Key::new(vec![0xff; KEY_BYTES_MAX]).unwrap();
    let why = || Correction { actor: long(REASON_BYTES_MAX), reason: long(REASON_BYTES_MAX) };
    let dimensions = vec![(long(DIMENSION_BYTES_MAX), long(DIMENSION_BYTES_MAX)); DIMENSIONS_MAX];
    let bounds = Bounds { floor: Some(i64::MIN), ceiling: Some(i64::MAX), on_bound: OnBound::Saturate };
    let member = Some(vec![0; MEMBER_BYTES_MAX].into_boxed_slice());
    let details = Details { member, dimensions, at: Some(Millis(u64::MAX)), bounds: Some(bounds) };
    let id = RequestId::new(key.as_ref(), &[7; REQUEST_ID_BYTES_MAX]).unwrap();
    for change in [
        Change::Add(i64::MIN),
        Change::Set { value: i64::MIN, expected: Some(i64::MIN), why: why() },
        Change::Reset(why()),
        Change::Adjust { delta: i64::MIN, why: why() },
        Change::Delete(why()),
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

#[test]
fn a_later_version_is_named_and_refused() {
    let mut bytes = encoded(&Batch::default(), Millis(5));
    bytes[0] = 9;
    let content = bytes.len() - 4;
    let crc = crc32fast::hash(&bytes[..content]);
    bytes[content..].copy_from_slice(&crc.to_le_bytes());
    assert_eq!(decode(&bytes, SEED, &mut Batch::default()), Err(CodecError::Version(9)));
}
