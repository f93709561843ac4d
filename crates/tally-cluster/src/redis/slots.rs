//! Which slots have the same owner, to send the commands of one node in one pipeline.
//!
//! The client library knows the owner of each slot and finds it again when it changes, but does not split a pipeline by
//! owner. The table here is only used to group commands. If it is outdated, a pipeline is answered with redirections,
//! and its commands are sent one by one.

use std::collections::HashMap;

use redis::Value;
use redis::cluster_routing::Slot;

/// The owners of the slots, numbered.
#[derive(Debug, Default)]
pub struct SlotOwners {
    owners: HashMap<Slot, usize>,
    count: usize,
}

impl SlotOwners {
    /// Reads the answer of `CLUSTER SLOTS`; what is malformed is left out.
    pub fn parse(answer: &Value) -> SlotOwners {
        let mut table = SlotOwners::default();
        let mut numbers = HashMap::new();
        let Value::Array(ranges) = answer else { return table };
        for (first, last, owner) in ranges.iter().filter_map(range) {
            let next = numbers.len();
            let number = *numbers.entry(owner).or_insert(next);
            table.owners.extend((first..=last).filter_map(Slot::new).map(|slot| (slot, number)));
        }
        table.count = numbers.len();
        table
    }

    /// Groups items by the owner of their slot. Items without a known owner are in a group of their own.
    pub fn group(&self, slots: impl Iterator<Item = Slot>) -> Vec<Vec<usize>> {
        let mut groups = vec![Vec::new(); self.count + 1];
        for (item, slot) in slots.enumerate() {
            groups[self.owners.get(&slot).copied().unwrap_or(self.count)].push(item);
        }
        groups
    }
}

/// First slot, last slot, and the owner's host and port.
fn range(answer: &Value) -> Option<(u16, u16, (Vec<u8>, i64))> {
    let Value::Array(fields) = answer else { return None };
    let [Value::Int(first), Value::Int(last), Value::Array(owner), ..] = &fields[..] else { return None };
    let owner = match &owner[..] {
        [Value::BulkString(host), Value::Int(port), ..] => (host.clone(), *port),
        [_, Value::Int(port), ..] => (Vec::new(), *port),
        _ => return None,
    };
    Some((u16::try_from(*first).ok()?, u16::try_from(*last).ok()?, owner))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(ranges: &[(i64, i64, i64)]) -> Value {
        let node = |port: i64| Value::Array(vec![Value::BulkString(b"10.0.0.1".to_vec()), Value::Int(port)]);
        let range = |(first, last, port): &(i64, i64, i64)| {
            Value::Array(vec![Value::Int(*first), Value::Int(*last), node(*port), node(9)])
        };
        Value::Array(ranges.iter().map(range).collect())
    }

    #[test]
    fn slots_are_grouped_by_owner_and_unknown_ones_are_kept() {
        let table = SlotOwners::parse(&answer(&[(0, 10, 1), (11, 20, 2), (21, 30, 1)]));
        let slots = [30, 0, 15, 16_383, 21].map(|slot| Slot::new(slot).unwrap());
        assert_eq!(table.group(slots.into_iter()), [vec![0, 1, 4], vec![2], vec![3]]);
    }

    #[test]
    fn a_malformed_answer_leaves_all_slots_unknown() {
        let slots = || [Slot::new(0).unwrap()].into_iter();
        for malformed in [Value::Nil, Value::Array(vec![Value::Int(1)]), answer(&[(-1, 1 << 20, 7)])] {
            assert_eq!(SlotOwners::parse(&malformed).group(slots()), [vec![0]]);
        }
    }
}
