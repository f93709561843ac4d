//! Deterministic simulation: the parts of the world that fail, made to fail on demand and by seed, and an engine in
//! the middle of it.

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
