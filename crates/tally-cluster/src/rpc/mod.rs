//! Requests of API nodes to workers: small binary messages over HTTP/2, with TLS if it is set.
//!
//! A client keeps one connection per worker and sends all requests over it. Answers come in any order. A request that
//! nobody waits for any more is cancelled at the worker. Why HTTP/2: `docs/decisions/0021-how-the-cluster-works.md`.
//!
//! Every request is idempotent: it may be repeated, or sent to another worker.

mod client;
mod codec;
pub mod limits;
mod message;
mod secret;
mod server;

pub use client::{RpcCallError, RpcClient};
pub use message::{Need, PartitionStatus, Role, RpcError, RpcRequest, RpcResponse};
pub use secret::{LinkSecurity, Secret, SecretError};
pub use server::{ListenError, RpcHandler, RpcServer};

/// The identity of a cluster. Every request carries it: a worker's address may be that of another cluster's worker later,
/// which has partitions of the same numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterId(String);

impl ClusterId {
    /// Of the database with this id and the journal in this topic.
    #[must_use]
    pub fn new(id: &str, topic: &str) -> ClusterId {
        ClusterId(format!("{id}/{topic}"))
    }
}

/// The header with the [`ClusterId`].
const CLUSTER_HEADER: &str = "tally-cluster";

/// Where requests go.
const PATH: &str = "/tally";
