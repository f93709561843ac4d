//! The identity of a data directory: a random number in every file, so that a file of another directory is detected.

/// Identifies a data directory. Chosen at the first start and never changed; a copy of the directory has the same
/// identity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DirId(u64);

/// The error for a file with another identity.
pub(crate) const FOREIGN: &str = "the file belongs to another data directory";

impl DirId {
    /// The identity with these bits, which should be random.
    #[must_use]
    pub const fn new(bits: u64) -> DirId {
        DirId(bits)
    }

    pub(crate) const fn from_bytes(bytes: [u8; 8]) -> DirId {
        DirId(u64::from_le_bytes(bytes))
    }

    pub(crate) const fn to_bytes(self) -> [u8; 8] {
        self.0.to_le_bytes()
    }
}
