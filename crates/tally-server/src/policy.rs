//! Policies: the consistency of each namespace, and how a cluster counts in it.

use std::collections::HashMap;
use std::time::Duration;

use tally_cluster::policy::{ShardPolicies, ShardPolicy};

pub use tally_core::consistency::Consistency;
use tally_core::key::KeyRef;

/// The policy of every namespace.
#[derive(Clone, Debug, Default)]
pub struct Policies {
    consistency: HashMap<Box<[u8]>, Consistency>,
    /// Of the `best-effort` namespaces.
    shards: ShardPolicies,
    rollup_every: Option<Duration>,
    persist_every: Option<Duration>,
}

/// The policy of one namespace.
#[derive(Clone, Copy, Debug, Default)]
pub struct NamespacePolicy {
    /// What an acknowledgement means and what a read sees.
    pub consistency: Consistency,
    /// How sub-counters work. Used only in a cluster, with `best-effort`.
    pub shards: ShardPolicy,
    /// How often totals are published.
    pub rollup_every: Option<Duration>,
    /// How often counters are persisted.
    pub persist_every: Option<Duration>,
}

impl Policies {
    /// Sets the policy of a namespace.
    pub fn set(&mut self, namespace: &str, policy: NamespacePolicy) {
        self.consistency.insert(namespace.as_bytes().into(), policy.consistency);
        if policy.consistency == Consistency::BestEffort {
            self.shards.set(namespace.as_bytes(), policy.shards);
        }
        let shorter = |a: Option<Duration>, b: Option<Duration>| a.into_iter().chain(b).min();
        self.rollup_every = shorter(self.rollup_every, policy.rollup_every);
        self.persist_every = shorter(self.persist_every, policy.persist_every);
    }

    /// The configured namespaces and their consistency, by name.
    pub fn namespaces(&self) -> Vec<(String, Consistency)> {
        let name = |name: &[u8]| String::from_utf8_lossy(name).into_owned();
        let mut all: Vec<_> = self.consistency.iter().map(|(key, consistency)| (name(key), *consistency)).collect();
        all.sort_by(|(a, _), (b, _)| a.cmp(b));
        all
    }

    /// How sub-counters work in the `best-effort` namespaces.
    pub fn shards(&self) -> &ShardPolicies {
        &self.shards
    }

    /// How often totals are published: the shortest interval of any namespace, at most the default.
    pub fn rollup_every(&self, default: Duration) -> Duration {
        self.rollup_every.map_or(default, |every| every.min(default))
    }

    /// How often counters are persisted: the shortest interval of any namespace, at most the default.
    pub fn persist_every(&self, default: Duration) -> Duration {
        self.persist_every.map_or(default, |every| every.min(default))
    }

    /// The consistency of a key's namespace.
    #[inline]
    pub fn consistency(&self, key: KeyRef<'_>) -> Consistency {
        if self.consistency.is_empty() {
            return Consistency::default();
        }
        self.consistency.get(key.namespace()).copied().unwrap_or_default()
    }

    /// The consistency of a call over several keys: the strongest of theirs.
    pub fn strongest<'a>(&self, keys: impl IntoIterator<Item = KeyRef<'a>>) -> Consistency {
        keys.into_iter().map(|key| self.consistency(key)).max().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_namespace_without_a_policy_is_eventual() {
        let mut policies = Policies::default();
        policies.set("views", NamespacePolicy { consistency: Consistency::BestEffort, ..NamespacePolicy::default() });
        let key = |key: &'static str| KeyRef::new(key.as_bytes()).unwrap();
        assert_eq!(policies.consistency(key("views:1")), Consistency::BestEffort);
        assert_eq!(policies.consistency(key("views")), Consistency::Eventual);
        assert_eq!(policies.strongest([key("views:1")]), Consistency::BestEffort);
        assert_eq!(policies.strongest([key("views:1"), key("likes:1")]), Consistency::Eventual);
    }
}
