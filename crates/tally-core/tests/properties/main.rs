//! What holds of the core for any input: its codec, its combining and its state machine.
#![allow(clippy::unwrap_used)]

mod beside;
mod codec;
mod combine;
mod drawn;
mod partition;
