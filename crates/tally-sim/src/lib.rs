//! Deterministic simulation: an engine on a disk, a clock and a workload that fail and vary by seed.

pub mod call;
pub mod disk;
pub mod history;
pub mod life;
pub mod model;
pub mod rng;
pub mod workload;
pub mod world;

pub use disk::{Loss, SimDisk};
pub use rng::Rng;
pub use world::World;
