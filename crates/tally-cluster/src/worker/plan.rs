//! Which workers stand by for which partitions.
//!
//! Every worker computes the same plan from the members of the group, so nothing has to be agreed on. The standbys of a
//! partition are the workers with the lowest hash of partition and address, without its owner (rendezvous hashing).
//! When a worker joins or leaves, only the partitions that it ranks high for get another standby.

use std::collections::BTreeMap;

use xxhash_rust::xxh3::xxh3_64;

use crate::kafka::GroupWorker;

/// The standbys of each partition, or `None` while a partition has no owner.
pub fn plan(workers: &[GroupWorker], partitions: u32, standbys: u32) -> Option<BTreeMap<u32, Vec<String>>> {
    (0..partitions)
        .map(|partition| {
            let owner = workers.iter().find(|worker| worker.partitions.contains(&partition))?;
            let mut others: Vec<&String> = workers.iter().map(|worker| &worker.address).collect();
            others.retain(|address| **address != owner.address);
            others.sort_by_key(|address| (xxh3_64(format!("{partition} {address}").as_bytes()), *address));
            others.dedup();
            Some((partition, others.into_iter().take(standbys as usize).cloned().collect()))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn workers(owned: &[(&str, &[u32])]) -> Vec<GroupWorker> {
        let worker = |(address, partitions): &(&str, &[u32])| GroupWorker {
            address: (*address).to_owned(),
            partitions: partitions.to_vec(),
        };
        owned.iter().map(worker).collect()
    }

    #[test]
    fn a_partition_has_standbys_other_than_its_owner() {
        let found = plan(&workers(&[("a", &[0]), ("b", &[1]), ("c", &[2])]), 3, 2).unwrap();
        for (partition, owner) in [(0, "a"), (1, "b"), (2, "c")] {
            assert_eq!(found[&partition].len(), 2);
            assert!(!found[&partition].contains(&owner.to_owned()));
        }
        assert_eq!(plan(&workers(&[("a", &[0, 1])]), 2, 1).unwrap()[&0], Vec::<String>::new());
    }

    #[test]
    fn nothing_is_planned_while_a_partition_has_no_owner() {
        assert_eq!(plan(&workers(&[("a", &[0]), ("b", &[])]), 2, 1), None);
    }

    #[test]
    fn standbys_stay_when_another_worker_joins_unless_it_ranks_higher() {
        let partitions: Vec<u32> = (0..64).collect();
        let before = plan(&workers(&[("a", &partitions), ("b", &[]), ("c", &[])]), 64, 1).unwrap();
        let after = plan(&workers(&[("a", &partitions), ("b", &[]), ("c", &[]), ("d", &[])]), 64, 1).unwrap();
        for partition in 0..64 {
            assert!(after[&partition] == before[&partition] || after[&partition] == ["d"]);
        }
        assert!((1..64).any(|partition| after[&partition] == before[&partition]));
    }
}
