//! Consistency: what an acknowledgement means and what a read sees.

/// What a namespace promises. Engines get it as it was asked for, because each knows best what it has to wait for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Consistency {
    /// Applied in memory: a crash may lose the last moments.
    BestEffort,
    /// In the journal: a crash loses nothing. A read may be a little old, and never goes back.
    #[default]
    Eventual,
    /// As `Eventual`, and a read sees everything acknowledged before it began.
    Accurate,
    /// Linearizable.
    Exact,
}

impl Consistency {
    /// Every consistency, weakest first.
    pub const ALL: [Consistency; 4] =
        [Consistency::BestEffort, Consistency::Eventual, Consistency::Accurate, Consistency::Exact];

    /// The name used in configuration and answers.
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
