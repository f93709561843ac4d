//! Property tests of the core: its codec, its combining and its state machine.
#![allow(clippy::unwrap_used)]

mod codec;
mod combine;
mod harness;
mod partition;
mod strategies;
