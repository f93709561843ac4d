//! Which node owns which slot.

use std::collections::{BTreeSet, HashMap};

use redis::Value;
use redis::cluster_routing::Slot;

use super::generation::Generations;
use super::limits::NODES_MAX;

/// What a node said about the cluster.
#[derive(Debug, Default)]
pub struct Topology {
    /// Addresses of the owners.
    owners: Vec<String>,
    /// The owner of each slot, by its place in `owners`.
    slots: HashMap<Slot, usize>,
    /// Addresses of all nodes.
    nodes: BTreeSet<String>,
    /// The generations of the slots.
    pub generations: Generations,
}

impl Topology {
    /// Reads the answer of `CLUSTER SLOTS`; malformed parts are left out. A node that does not know its own host is
    /// reached by the address that was asked.
    pub fn parse(answer: &Value, asked: &str) -> Topology {
        let mut topology = Topology::default();
        let Value::Array(ranges) = answer else { return topology };
        for (first, last, nodes) in ranges.iter().filter_map(slot_range) {
            let mut nodes = nodes.iter().filter_map(|node| address(node, asked));
            let Some(owner) = nodes.next() else { continue };
            topology.nodes.extend(nodes);
            let place = topology.place(owner);
            topology.slots.extend((first..=last).filter_map(Slot::new).map(|slot| (slot, place)));
        }
        while topology.nodes.len() > NODES_MAX {
            topology.nodes.pop_last();
        }
        topology
    }

    fn place(&mut self, owner: String) -> usize {
        if let Some(place) = self.owners.iter().position(|known| *known == owner) {
            return place;
        }
        self.nodes.insert(owner.clone());
        self.owners.push(owner);
        self.owners.len() - 1
    }

    /// The address of the node that owns a slot.
    pub fn owner(&self, slot: Slot) -> Option<&str> {
        self.slots.get(&slot).map(|place| &self.owners[*place][..])
    }

    /// Whether the owner of any slot is known.
    pub fn has_owners(&self) -> bool {
        !self.owners.is_empty()
    }

    /// Whether there is a node with this address.
    pub fn has_node(&self, address: &str) -> bool {
        self.nodes.contains(address)
    }

    /// The addresses of all nodes.
    pub fn nodes(&self) -> impl Iterator<Item = &str> {
        self.nodes.iter().map(String::as_str)
    }
}

fn slot_range(answer: &Value) -> Option<(u16, u16, &[Value])> {
    let Value::Array(fields) = answer else { return None };
    let [Value::Int(first), Value::Int(last), nodes @ ..] = &fields[..] else { return None };
    Some((u16::try_from(*first).ok()?, u16::try_from(*last).ok()?, nodes))
}

fn address(node: &Value, asked: &str) -> Option<String> {
    let Value::Array(fields) = node else { return None };
    let [host, Value::Int(port), ..] = &fields[..] else { return None };
    let port = u16::try_from(*port).ok()?;
    match host {
        // The answer of a node that does not know the address of another one.
        Value::BulkString(host) if host == b"?" => None,
        Value::BulkString(host) if !host.is_empty() => {
            let host = std::str::from_utf8(host).ok()?;
            Some(if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") })
        }
        _ => asked.rsplit_once(':').map(|(host, _)| format!("{host}:{port}")),
    }
}

/// The address in a redirection, which has no brackets around the host.
pub fn redirected_to(address: &str, asked: &str) -> Option<String> {
    let (host, port) = address.rsplit_once(':')?;
    let port: u16 = port.parse().ok()?;
    match host {
        "" => asked.rsplit_once(':').map(|(host, _)| format!("{host}:{port}")),
        host if host.contains(':') && !host.starts_with('[') => Some(format!("[{host}]:{port}")),
        host => Some(format!("{host}:{port}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(host: &str, port: i64) -> Value {
        Value::Array(vec![Value::BulkString(host.as_bytes().to_vec()), Value::Int(port)])
    }

    fn range(first: i64, last: i64, nodes: &[Value]) -> Value {
        Value::Array([&[Value::Int(first), Value::Int(last)], nodes].concat())
    }

    #[test]
    fn every_slot_has_the_owner_that_the_answer_names() {
        let (one, two) = (node("10.0.0.1", 1), node("::1", 2));
        let answer = Value::Array(vec![
            range(0, 10, &[one.clone(), two.clone()]),
            range(11, 20, &[two, node("?", 3)]),
            range(21, 30, &[one]),
            range(31, 40, &[node("", 4)]),
        ]);
        let topology = Topology::parse(&answer, "asked:9");
        let owner = |slot| topology.owner(Slot::new(slot).unwrap());
        let expected = [(0, "10.0.0.1:1"), (10, "10.0.0.1:1"), (11, "[::1]:2"), (30, "10.0.0.1:1"), (40, "asked:4")];
        for (slot, expected) in expected {
            assert_eq!(owner(slot), Some(expected));
        }
        assert_eq!(owner(41), None);
        assert_eq!(topology.nodes().collect::<Vec<_>>(), ["10.0.0.1:1", "[::1]:2", "asked:4"]);
    }

    #[test]
    fn a_malformed_answer_leaves_slots_without_an_owner() {
        let unknown = [
            Value::Nil,
            Value::Array(vec![Value::Int(1)]),
            Value::Array(vec![range(-1, 1 << 20, &[node("a", 1)])]),
            Value::Array(vec![range(0, 1, &[])]),
            Value::Array(vec![range(0, 1, &[node("a", 1 << 20)])]),
        ];
        for answer in unknown {
            assert_eq!(Topology::parse(&answer, "asked:9").owner(Slot::new(0).unwrap()), None, "{answer:?}");
        }
    }

    #[test]
    fn a_redirection_names_an_address() {
        assert_eq!(redirected_to("10.0.0.1:7", "a:1").as_deref(), Some("10.0.0.1:7"));
        assert_eq!(redirected_to("::1:7", "a:1").as_deref(), Some("[::1]:7"));
        assert_eq!(redirected_to(":7", "a:1").as_deref(), Some("a:7"));
        assert_eq!(redirected_to("a:x", "a:1"), None);
    }
}
