//! Connections in `MONITOR` mode, which see the commands of all others.
//!
//! Each has a feed: threads append lines to it, and the task of the connection writes them to its socket. A feed is
//! bounded: a monitor that reads too slowly is disconnected. Without monitors, the only cost is one check for all
//! requests that arrived together.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tally_core::time::Millis;
use tokio::sync::Notify;

use super::clients::{ClosingMode, RespClient};
use super::wire::Args;
use crate::limits::{RESP_MONITOR_BYTES_MAX, RESP_MONITOR_STEP_BYTES, RESP_MONITORS_MAX};

/// All monitors.
#[derive(Default)]
pub struct Monitors {
    /// How many feeds there are.
    count: AtomicUsize,
    feeds: Mutex<Vec<Arc<MonitorFeed>>>,
}

/// The lines that wait for one monitor.
struct MonitorFeed {
    client: Arc<RespClient>,
    lines: Mutex<Vec<u8>>,
    /// Notified when lines are added.
    filled: Notify,
}

impl MonitorFeed {
    fn lines(&self) -> MutexGuard<'_, Vec<u8>> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends lines. Returns whether there was room.
    fn append(&self, bytes: &[u8]) -> bool {
        let mut lines = self.lines();
        let has_room = lines.len() < RESP_MONITOR_BYTES_MAX;
        if has_room {
            lines.extend_from_slice(bytes);
            self.filled.notify_one();
        }
        has_room
    }
}

impl Monitors {
    fn feeds(&self) -> MutexGuard<'_, Vec<Arc<MonitorFeed>>> {
        self.feeds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a client a monitor; `None` if there are too many.
    pub fn add(self: &Arc<Self>, client: &Arc<RespClient>) -> Option<MonitorSubscription> {
        let mut feeds = self.feeds();
        if feeds.len() >= RESP_MONITORS_MAX {
            return None;
        }
        let feed = Arc::new(MonitorFeed { client: Arc::clone(client), lines: Mutex::default(), filled: Notify::new() });
        feeds.push(Arc::clone(&feed));
        self.count.store(feeds.len(), Relaxed);
        client.set_monitoring(true);
        Some(MonitorSubscription { monitors: Arc::clone(self), feed })
    }

    /// Records requests that arrived together; `None` if there are no monitors.
    #[inline]
    pub fn recorder(&self) -> Option<MonitorLines<'_>> {
        if self.count.load(Relaxed) == 0 { None } else { Some(MonitorLines { monitors: self, bytes: Vec::new() }) }
    }

    /// Keeps the feeds that `is_kept` accepts.
    fn retain(&self, mut is_kept: impl FnMut(&MonitorFeed) -> bool) {
        let mut feeds = self.feeds();
        feeds.retain(|feed| is_kept(feed));
        self.count.store(feeds.len(), Relaxed);
    }

    /// Sends lines to all monitors, and disconnects those without room for them.
    fn publish(&self, bytes: &[u8]) {
        self.retain(|feed| {
            let has_room = feed.append(bytes);
            if !has_room {
                tracing::info!(client = feed.client.id, "closing a monitor: it reads too slowly");
                feed.client.close(ClosingMode::AtOnce);
            }
            has_room
        });
    }
}

/// A connection's subscription to all commands. Ends when it is dropped.
pub struct MonitorSubscription {
    monitors: Arc<Monitors>,
    feed: Arc<MonitorFeed>,
}

impl MonitorSubscription {
    /// The next lines.
    pub async fn next(&self) -> Vec<u8> {
        loop {
            let lines = std::mem::take(&mut *self.feed.lines());
            if !lines.is_empty() {
                return lines;
            }
            self.feed.filled.notified().await;
        }
    }
}

impl Drop for MonitorSubscription {
    fn drop(&mut self) {
        self.feed.client.set_monitoring(false);
        self.monitors.retain(|feed| !std::ptr::eq(feed, &*self.feed));
    }
}

/// Requests, as monitors see them.
pub struct MonitorLines<'a> {
    monitors: &'a Monitors,
    bytes: Vec<u8>,
}

impl MonitorLines<'_> {
    /// Adds a request. Arguments for which `is_secret` is true are redacted.
    pub fn add(&mut self, now: Millis, peer: SocketAddr, args: &Args<'_>, is_secret: impl Fn(usize) -> bool) {
        let (seconds, micros) = (now.0 / 1000, now.0 % 1000 * 1000);
        self.bytes.extend_from_slice(format!("+{seconds}.{micros:06} [0 {peer}]").as_bytes());
        for (at, arg) in args.iter().enumerate() {
            self.bytes.extend_from_slice(b" \"");
            put_escaped(&mut self.bytes, if is_secret(at) { b"(redacted)" } else { arg });
            self.bytes.push(b'"');
        }
        self.bytes.extend_from_slice(b"\r\n");
        if self.bytes.len() >= RESP_MONITOR_STEP_BYTES {
            self.publish();
        }
    }

    /// Sends what was added.
    pub fn publish(&mut self) {
        if !self.bytes.is_empty() {
            self.monitors.publish(&self.bytes);
            self.bytes.clear();
        }
    }
}

/// The argument as Redis quotes it.
fn put_escaped(out: &mut Vec<u8>, arg: &[u8]) {
    for byte in arg {
        match byte {
            b'\\' | b'"' => out.extend([b'\\', *byte]),
            b'\n' => out.extend(b"\\n"),
            b'\r' => out.extend(b"\\r"),
            b'\t' => out.extend(b"\\t"),
            0x07 => out.extend(b"\\a"),
            0x08 => out.extend(b"\\b"),
            b' '..=b'~' => out.push(*byte),
            other => out.extend(format!("\\x{other:02x}").bytes()),
        }
    }
}
