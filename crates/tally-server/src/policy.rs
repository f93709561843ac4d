//! Policies: the consistency of each namespace.

use std::collections::HashMap;

pub use tally_core::consistency::Consistency;
use tally_core::key::KeyRef;

/// The policy of every namespace.
#[derive(Clone, Debug, Default)]
pub struct Policies {
    consistency: HashMap<Box<[u8]>, Consistency>,
}

impl Policies {
    /// Sets the consistency of a namespace.
    pub fn set_consistency(&mut self, namespace: &str, consistency: Consistency) {
        self.consistency.insert(namespace.as_bytes().into(), consistency);
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
        policies.set_consistency("views", Consistency::BestEffort);
        let key = |key: &'static str| KeyRef::new(key.as_bytes()).unwrap();
        assert_eq!(policies.consistency(key("views:1")), Consistency::BestEffort);
        assert_eq!(policies.consistency(key("views")), Consistency::Eventual);
        assert_eq!(policies.strongest([key("views:1")]), Consistency::BestEffort);
        assert_eq!(policies.strongest([key("views:1"), key("likes:1")]), Consistency::Eventual);
    }
}
