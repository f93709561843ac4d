//! Accepts connections: shared by every protocol.

use std::io;

use rustix::net::sockopt::set_tcp_user_timeout;
use tokio::net::TcpStream;

use crate::limits::{ACCEPT_RETRY, WRITE_STALL_MAX};

/// How a listener ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listening {
    /// Every request in progress was answered.
    Drained,
    /// Some requests were cut off by the drain timeout.
    CutOff,
}

/// Sets the socket options of an accepted connection.
pub fn prepare(stream: &TcpStream) -> io::Result<()> {
    // Answers are small and clients wait for them, so Nagle's algorithm only adds latency.
    stream.set_nodelay(true)?;
    let stall_max = u32::try_from(WRITE_STALL_MAX.as_millis()).unwrap_or(u32::MAX);
    Ok(set_tcp_user_timeout(stream, stall_max)?)
}

/// Waits after an accept error such as running out of file descriptors; retrying at once would spin.
pub async fn pause_after(error: &io::Error) {
    if matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset) {
        return;
    }
    tracing::warn!(%error, "cannot accept a connection");
    tokio::time::sleep(ACCEPT_RETRY).await;
}
