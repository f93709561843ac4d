//! Tests of the protocol as a whole: against a naive parser, against a real Redis, and with mutated input.

mod fuzz;
mod like_redis;
pub mod naive;
#[path = "../../../tests/harness/redis.rs"]
mod redis;
