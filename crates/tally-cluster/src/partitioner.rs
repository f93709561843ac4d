//! Which partition a key belongs to.

use tally_core::key::KeyRef;
use xxhash_rust::xxh3::xxh3_64;

/// The part of a key that decides its partition: what is between the first `{` and the next `}`, as in Redis Cluster,
/// so that related counters can be kept together. The whole key if there is no such part or it is empty.
#[must_use]
pub fn tag(key: &[u8]) -> &[u8] {
    let Some(open) = key.iter().position(|&byte| byte == b'{') else { return key };
    match key[open + 1..].iter().position(|&byte| byte == b'}') {
        Some(len) if len > 0 => &key[open + 1..open + 1 + len],
        _ => key,
    }
}

/// The partition of a key. Must never change: counters do not move.
#[must_use]
pub fn partition_of(key: KeyRef<'_>, partitions: u32) -> u32 {
    // Not a remainder: the high bits of the product are as evenly spread and need no division.
    ((u128::from(xxh3_64(tag(key.as_bytes()))) * u128::from(partitions)) >> 64) as u32
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn partition(key: &str) -> u32 {
        partition_of(KeyRef::new(key.as_bytes()).unwrap(), 16)
    }

    /// Changing these would lose every counter of every cluster.
    #[test]
    fn the_partition_of_a_key_never_changes() {
        assert_eq!(["a", "likes:1", "{user:7}:likes", "x{}y", "é"].map(partition), PINNED);
    }

    const PINNED: [u32; 5] = [14, 7, 0, 3, 15];

    #[test]
    fn keys_with_the_same_tag_are_in_the_same_partition() {
        assert_eq!(partition("{user:7}:likes"), partition("{user:7}:views"));
        assert_eq!(partition("a{user:7}b"), partition("user:7"));
        assert_eq!(tag(b"{}a"), b"{}a");
        assert_eq!(tag(b"a{b"), b"a{b");
        assert_eq!(tag(b"a{b}c{d}"), b"b");
    }

    #[test]
    fn keys_are_spread_evenly() {
        let mut counts = [0u32; 16];
        for number in 0..16_000 {
            counts[partition(&format!("page:{number}")) as usize] += 1;
        }
        assert!(counts.iter().all(|count| (800..1_200).contains(count)), "{counts:?}");
    }
}
