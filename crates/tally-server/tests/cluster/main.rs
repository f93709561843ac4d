//! A cluster of real processes on real Kafka, Redis Cluster and PostgreSQL, some of which are killed.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::disallowed_methods)]

mod balancer;
mod best_effort;
mod faults;
#[path = "../harness/mod.rs"]
mod harness;
mod kills;
mod observed;
mod place;
mod standbys;
mod working;
