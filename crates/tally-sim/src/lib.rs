//! Deterministic simulation: the parts of the world that fail, made to fail on demand and by seed.

pub mod disk;
pub mod model;
pub mod rng;

pub use disk::{Loss, SimDisk};
pub use rng::Rng;
