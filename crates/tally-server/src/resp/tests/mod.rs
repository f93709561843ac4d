//! Tests of the protocol as a whole: against a naive parser, against a real Redis, and with mutated input.

pub mod naive;
