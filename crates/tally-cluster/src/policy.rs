//! How the sub-counters of a `best-effort` namespace are laid out, summed and read.

use std::collections::HashMap;

use tally_core::key::KeyRef;

use crate::limits::SHARDS_MAX_DEFAULT;

/// Which sub-counter a write goes to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ShardLayout {
    /// A random one.
    #[default]
    Random,
    /// Always the same one for the same client.
    ByClient,
    /// All writes of a time slice to the same one, those of the next slice to the next one.
    ByTime,
}

/// The number of sub-counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShardCount {
    /// Grows and shrinks with the load, up to this many.
    Adaptive(u32),
    /// Always this many.
    Fixed(u32),
}

/// When sub-counters are summed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Aggregation {
    /// Every `rollup_every`. A read takes the last sum.
    #[default]
    Rollup,
    /// By each read. Otherwise only every `persist_every`.
    OnRead,
    /// Every `rollup_every`. A read adds what was counted since.
    Hybrid,
}

/// What a read does if it cannot reach a sub-counter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnUnreachable {
    /// It fails.
    #[default]
    Fail,
    /// It answers without it, and says so.
    Partial,
}

/// How the sub-counters of one namespace work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardPolicy {
    /// Which one a write goes to.
    pub layout: ShardLayout,
    /// How many there are.
    pub count: ShardCount,
    /// When they are summed.
    pub aggregation: Aggregation,
    /// What a read does if it cannot reach one.
    pub on_unreachable: OnUnreachable,
}

impl Default for ShardPolicy {
    fn default() -> Self {
        ShardPolicy {
            layout: ShardLayout::default(),
            count: ShardCount::Adaptive(SHARDS_MAX_DEFAULT),
            aggregation: Aggregation::default(),
            on_unreachable: OnUnreachable::default(),
        }
    }
}

impl ShardPolicy {
    /// The number of sub-counters of a counter at its first write.
    #[must_use]
    pub fn first_shards(&self) -> u32 {
        match self.count {
            ShardCount::Adaptive(_) => 1,
            ShardCount::Fixed(shards) => shards,
        }
    }
}

/// The policies of the `best-effort` namespaces.
#[derive(Clone, Debug, Default)]
pub struct ShardPolicies {
    namespaces: HashMap<Box<[u8]>, ShardPolicy>,
}

impl ShardPolicies {
    /// Sets the policy of a namespace.
    pub fn set(&mut self, namespace: &[u8], policy: ShardPolicy) {
        self.namespaces.insert(namespace.into(), policy);
    }

    /// Whether no namespace is `best-effort`.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.namespaces.is_empty()
    }

    /// The policy of a counter's namespace, if that is `best-effort`.
    #[must_use]
    pub fn of(&self, key: KeyRef<'_>) -> Option<&ShardPolicy> {
        self.namespaces.get(key.namespace())
    }
}
