//! Policies: what each namespace asks of an acknowledgement and of a reading.

use std::collections::HashMap;

use tally_core::key::KeyRef;
use tally_core::surface::Durability;

/// What an acknowledgement means and what a reading sees.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Consistency {
    /// Applied in memory: a crash may take back the last moments.
    BestEffort,
    /// In the journal and flushed: a crash takes nothing back.
    #[default]
    Eventual,
    /// As `eventual`, and a reading sees everything acknowledged before it began.
    Accurate,
    /// Linearizable.
    Exact,
}

impl Consistency {
    /// Every consistency, in the order of strength.
    pub const ALL: [Consistency; 4] =
        [Consistency::BestEffort, Consistency::Eventual, Consistency::Accurate, Consistency::Exact];

    /// The name used in configuration and answers.
    pub fn name(self) -> &'static str {
        match self {
            Consistency::BestEffort => "best-effort",
            Consistency::Eventual => "eventual",
            Consistency::Accurate => "accurate",
            Consistency::Exact => "exact",
        }
    }

    /// The consistency with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Consistency::ALL.into_iter().find(|consistency| consistency.name() == name)
    }

    /// What the engine must rest an answer on.
    pub fn durability(self) -> Durability {
        match self {
            Consistency::BestEffort => Durability::Applied,
            Consistency::Eventual | Consistency::Accurate | Consistency::Exact => Durability::Flushed,
        }
    }
}

/// The policy of every namespace.
#[derive(Clone, Debug, Default)]
pub struct Policies {
    consistency: HashMap<Box<[u8]>, Consistency>,
}

impl Policies {
    /// Gives a namespace its consistency.
    pub fn set_consistency(&mut self, namespace: &str, consistency: Consistency) {
        self.consistency.insert(namespace.as_bytes().into(), consistency);
    }

    /// The consistency of the namespace a key belongs to.
    #[inline]
    pub fn consistency(&self, key: KeyRef<'_>) -> Consistency {
        if self.consistency.is_empty() {
            return Consistency::default();
        }
        self.consistency.get(key.namespace()).copied().unwrap_or_default()
    }

    /// What one call over several keys must rest on: the most any of them asks.
    pub fn durability<'a>(&self, keys: impl IntoIterator<Item = KeyRef<'a>>) -> Durability {
        keys.into_iter().map(|key| self.consistency(key).durability()).max().unwrap_or(Durability::Flushed)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_namespace_without_a_policy_is_eventual() {
        let mut policies = Policies::default();
        policies.set_consistency("views", Consistency::BestEffort);
        let key = |key: &'static str| KeyRef::new(key.as_bytes()).unwrap();
        assert_eq!(policies.consistency(key("views:1")), Consistency::BestEffort);
        assert_eq!(policies.consistency(key("views")), Consistency::Eventual);
        assert_eq!(policies.durability([key("views:1")]), Durability::Applied);
        assert_eq!(policies.durability([key("views:1"), key("likes:1")]), Durability::Flushed);
    }
}
