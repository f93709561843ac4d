//! Accepting connections, the same way for every protocol.

use std::io;

use rustix::net::sockopt::set_tcp_user_timeout;
use tokio::net::TcpStream;

use crate::limits::{ACCEPT_RETRY, WRITE_STALL_MAX};

/// How the listener ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listening {
    /// Every request under way was answered.
    Drained,
    /// Some were cut off after the time allowed.
    CutOff,
}

/// Makes an accepted connection ready to be served.
pub fn prepare(stream: &TcpStream) -> io::Result<()> {
    // Answers are small and clients wait for them: Nagle's algorithm would only delay them.
    stream.set_nodelay(true)?;
    let stall_max = u32::try_from(WRITE_STALL_MAX.as_millis()).unwrap_or(u32::MAX);
    Ok(set_tcp_user_timeout(stream, stall_max)?)
}

/// Waits after an error such as running out of file descriptors, because retrying at once would spin.
pub async fn pause_after(error: &io::Error) {
    if matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset) {
        return;
    }
    tracing::warn!(%error, "a connection could not be accepted");
    tokio::time::sleep(ACCEPT_RETRY).await;
}
