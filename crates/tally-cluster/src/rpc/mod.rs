//! Requests of API nodes to workers, over HTTP/2.

mod client;
mod message;
mod server;

pub use client::{CallError, Client};
pub use message::{Need, PartitionStatus, Request, Response, Role, RpcError};
use sha2::{Digest, Sha256};
pub use server::{Handler, Server};

/// What API nodes and workers share. Kept as a digest, which makes comparing take the same time for every guess.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret {
    text: String,
}

impl Secret {
    /// From the configuration.
    #[must_use]
    pub fn new(text: &str) -> Secret {
        Secret { text: text.to_owned() }
    }

    fn header(&self) -> String {
        format!("Bearer {}", self.text)
    }

    fn admits(&self, header: Option<&[u8]>) -> bool {
        let (own, given) = (Sha256::digest(self.header()), Sha256::digest(header.unwrap_or_default()));
        own == given
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret")
    }
}
