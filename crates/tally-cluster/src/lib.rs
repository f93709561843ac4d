//! The cluster engine: the journal is a Kafka topic, totals are published to Redis Cluster, and the state is kept in
//! PostgreSQL. How it works and why: `docs/decisions/0021-how-the-cluster-works.md`.

pub mod api;
pub mod kafka;
pub mod limits;
pub mod partitioner;
pub mod policy;
pub mod postgres;
pub mod redis;
pub mod rpc;
pub mod tls;
pub mod worker;

/// Random, so that clients cannot craft colliding keys.
fn seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(0u8)
}
