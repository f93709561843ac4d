//! A cluster of real processes on real Kafka, Redis Cluster and PostgreSQL, some of which are killed.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::disallowed_methods)]

mod balancer;
mod best_effort;
mod clocks;
mod encrypted;
mod faults;
mod freshness;
#[path = "../harness/mod.rs"]
mod harness;
mod history;
mod kills;
mod linearizable;
mod load;
mod observed;
mod place;
mod proxy;
mod redis_commands;
mod standbys;
mod steps;
mod transfer;
mod watched;
mod working;
