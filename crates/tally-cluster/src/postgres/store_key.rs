//! Which table a record belongs to, by its store key.

use tally_core::key::KeyRef;
use tally_core::record::{self, META_KEY, REQUEST_PREFIX};

/// A store key by family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StoreKey<'a> {
    /// Table `counters`.
    Counter(KeyRef<'a>),
    /// Table `idempotent_requests`.
    Request(&'a [u8]),
    /// Table `counter_ledger`.
    Ledger(KeyRef<'a>, u64),
    /// Not stored.
    Expiry,
    /// Columns of `partitions`.
    Meta,
    /// Table `records`: every other key, including those of a known family with an unknown layout.
    Other(&'a [u8]),
}

/// Bytes of a request id.
const REQUEST_BYTES: usize = size_of::<record::RequestKey>() - 1;

impl<'a> StoreKey<'a> {
    pub(super) fn of(store_key: &'a [u8]) -> StoreKey<'a> {
        if let Some(key) = record::counter_of(store_key) {
            StoreKey::Counter(key)
        } else if let Some(id) = store_key.strip_prefix(REQUEST_PREFIX).filter(|id| id.len() == REQUEST_BYTES) {
            StoreKey::Request(id)
        } else if let Some((key, seq)) = ledger_of(store_key) {
            StoreKey::Ledger(key, seq)
        } else if record::expiry_of(store_key).is_some() {
            StoreKey::Expiry
        } else if store_key == META_KEY {
            StoreKey::Meta
        } else {
            StoreKey::Other(store_key)
        }
    }
}

/// The key and the number of a ledger entry, if this is the store key of one.
fn ledger_of(store_key: &[u8]) -> Option<(KeyRef<'_>, u64)> {
    let (_family_and_length, rest) = store_key.split_first_chunk::<3>()?;
    let (key, seq) = rest.split_last_chunk::<8>()?;
    let key = KeyRef::new(key).ok()?;
    // A `bigint` cannot hold more.
    let seq = u64::from_be_bytes(*seq);
    (seq <= i64::MAX as u64 && record::is_ledger_of(store_key, key)).then_some((key, seq))
}

#[cfg(test)]
mod tests {
    use tally_core::event::RequestId;
    use tally_core::time::Millis;

    use super::*;

    #[test]
    fn a_store_key_belongs_to_the_table_of_its_family() {
        let key = KeyRef::new(b"likes").unwrap();
        assert_eq!(StoreKey::of(&record::counter_key(b"likes")), StoreKey::Counter(key));
        assert_eq!(StoreKey::of(&record::request_key(RequestId([7; 16]))), StoreKey::Request(&[7; 16]));
        assert_eq!(StoreKey::of(&record::ledger_key(key, 3)), StoreKey::Ledger(key, 3));
        assert_eq!(StoreKey::of(&record::expiry_key(Millis(5), key)), StoreKey::Expiry);
        assert_eq!(StoreKey::of(META_KEY), StoreKey::Meta);
        let head = record::head_key(key);
        assert_eq!(StoreKey::of(&head), StoreKey::Other(&head));
    }

    #[test]
    fn a_key_of_another_layout_is_kept_as_it_is() {
        for other in [&b""[..], b"c", b"i123", b"l", b"l\0\x05like", b"e123", b"m2", b"zz"] {
            assert_eq!(StoreKey::of(other), StoreKey::Other(other));
        }
        let key = KeyRef::new(b"likes").unwrap();
        let beyond = record::ledger_key(key, u64::MAX);
        assert_eq!(StoreKey::of(&beyond), StoreKey::Other(&beyond));
    }
}
