//! Consistency: what an acknowledgement means and what a read sees.

/// The consistency of a namespace or a call. Each engine decides what it has to wait for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Consistency {
    /// Applied in memory: a crash may lose the last moments.
    BestEffort,
    /// In the journal: a crash loses nothing. Reads may be slightly stale but are monotonic.
    #[default]
    Eventual,
    /// Like `Eventual`, and a read sees everything acknowledged before it began.
    Accurate,
    /// Linearizable.
    Exact,
}

impl Consistency {
    /// Every consistency, weakest first.
    pub const ALL: [Consistency; 4] =
        [Consistency::BestEffort, Consistency::Eventual, Consistency::Accurate, Consistency::Exact];

    /// The name in configuration and responses.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Consistency::BestEffort => "best-effort",
            Consistency::Eventual => "eventual",
            Consistency::Accurate => "accurate",
            Consistency::Exact => "exact",
        }
    }

    /// The consistency with this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Consistency::ALL.into_iter().find(|consistency| consistency.name() == name)
    }
}
