//! The cluster engine: the journal is a Kafka topic, totals are published to Redis Cluster, and the state is kept in
//! PostgreSQL. How it works and why: `docs/decisions/0021-how-the-cluster-works.md`.

pub mod redis;
pub mod rpc;
