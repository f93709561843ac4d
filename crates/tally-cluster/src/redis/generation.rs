//! Which master holds a slot, and since when.
//!
//! A replica that takes over may lack what its master acknowledged last. So a total says under which master it was
//! published, and is used only if it is read from the same one: the same node, with the same configuration epoch. That
//! epoch changes whenever a node takes slots over.

use std::collections::HashMap;

use redis::Value;
use redis::cluster_routing::Slot;
use xxhash_rust::xxh3::xxh3_64;

/// The generation of each slot: a hash of its master and of that master's configuration epoch.
#[derive(Debug, Default)]
pub struct Generations {
    slots: HashMap<Slot, u64>,
    all: u64,
}

impl Generations {
    /// Reads the answers of `CLUSTER SLOTS` and `CLUSTER NODES`. Malformed parts are left out.
    pub fn parse(slots: &Value, nodes: &str) -> Generations {
        let epochs: HashMap<&str, &str> = nodes.lines().filter_map(epoch_of).collect();
        let mut generations = Generations::default();
        let Value::Array(ranges) = slots else { return generations };
        for (first, last, id) in ranges.iter().filter_map(owner_of) {
            let Some(epoch) = epochs.get(id) else { continue };
            let generation = xxh3_64(format!("{id} {epoch}").as_bytes());
            generations.slots.extend((first..=last).filter_map(Slot::new).map(|slot| (slot, generation)));
            // XOR, because the order of the ranges does not matter.
            generations.all ^= xxh3_64(format!("{first} {last} {id} {epoch}").as_bytes());
        }
        generations
    }

    /// The generation of a slot; `None` if its owner is not known.
    pub fn of(&self, slot: Slot) -> Option<u64> {
        self.slots.get(&slot).copied()
    }

    /// Changes when the generation of any slot changes.
    pub fn all(&self) -> u64 {
        self.all
    }
}

/// Id and configuration epoch in a line of `CLUSTER NODES`.
fn epoch_of(line: &str) -> Option<(&str, &str)> {
    let mut fields = line.split(' ');
    let id = fields.next()?;
    Some((id, fields.nth(5)?))
}

/// First slot, last slot and id of the owner in an item of `CLUSTER SLOTS`.
fn owner_of(range: &Value) -> Option<(u16, u16, &str)> {
    let Value::Array(fields) = range else { return None };
    let [Value::Int(first), Value::Int(last), Value::Array(owner), ..] = &fields[..] else { return None };
    let Some(Value::BulkString(id)) = owner.get(2) else { return None };
    Some((u16::try_from(*first).ok()?, u16::try_from(*last).ok()?, std::str::from_utf8(id).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slots(owner: &str) -> Value {
        let node = |id: &str| {
            let id = Value::BulkString(id.as_bytes().to_vec());
            Value::Array(vec![Value::BulkString(b"10.0.0.1".to_vec()), Value::Int(1), id])
        };
        Value::Array(vec![
            Value::Array(vec![Value::Int(0), Value::Int(99), node(owner)]),
            Value::Array(vec![Value::Int(100), Value::Int(199), node("other")]),
        ])
    }

    fn nodes(epoch: u64) -> String {
        ["a", "b"].map(|id| format!("{id} 10.0.0.1:1@2 master - 0 0 {epoch} connected 0-99\n")).concat()
            + "other 10.0.0.2:1@2,host master - 0 0 7 connected 100-199\n"
    }

    #[test]
    fn a_slot_has_another_generation_under_another_master_or_a_newer_epoch() {
        let slot = |number| Slot::new(number).unwrap();
        let before = Generations::parse(&slots("a"), &nodes(1));
        for after in [Generations::parse(&slots("b"), &nodes(1)), Generations::parse(&slots("a"), &nodes(2))] {
            assert!(after.of(slot(5)).is_some());
            assert_ne!(before.of(slot(5)), after.of(slot(5)));
            assert_eq!(before.of(slot(100)), after.of(slot(100)), "the other master is the same");
            assert_ne!(before.all(), after.all());
        }
        let again = Generations::parse(&slots("a"), &nodes(1));
        assert_eq!((before.of(slot(5)), before.all()), (again.of(slot(5)), again.all()));
        assert_eq!(before.of(slot(200)), None);
        assert_eq!(Generations::parse(&slots("unknown"), &nodes(1)).of(slot(5)), None);
    }
}
