//! `/backup`: a consistent copy of the data directory, as a tar archive.

use std::io::{self, Write};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderValue, header};
use axum::response::Response;
use futures_util::stream;
use tally_engine::backup::Backup;
use tally_engine::clock::{Clock, SystemClock};
use tally_engine::limits::BACKUP_CHUNK_BYTES;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use utoipa::ToSchema;

use super::App;
use super::address::Query;
use super::listen::Peer;
use super::openapi::BackupProblems;
use super::problem::{Kind, Problem};
use crate::admission::Action;
use crate::limits::{BACKUP_CHUNKS_AHEAD, BACKUP_RATE_MIN, BACKUP_SLOW_MAX, WRITE_STALL_MAX};
use crate::metrics::Stopwatch;
use crate::service::BackupStart;

/// Size of a block of a tar archive. A header takes one, and content is padded to whole ones.
const BLOCK_BYTES: u64 = 512;
/// Blocks of zeros that end an archive.
const END_BLOCKS: u64 = 2;

// Not described as `application/x-tar`: generators of clients do not know it.
/// A tar archive.
#[derive(ToSchema)]
#[schema(value_type = String, format = Binary)]
#[allow(dead_code, reason = "the schema of the body")]
struct BackupArchive(Vec<u8>);

/// Copy the data directory while the server runs.
///
/// A tar archive of a data directory with everything that was acknowledged before the call. `tally backup` unpacks and verifies
/// it. A truncated archive unpacks to a directory that no server accepts. Only one backup can run at a time.
#[utoipa::path(
    get, path = "/api/v1/backup", tag = "operations",
    responses(
        (status = 200, description = "The archive", content_type = "application/octet-stream", body = BackupArchive),
        BackupProblems,
    ),
)]
pub async fn backup(State(app): State<App>, request: Request) -> Result<Response, Problem> {
    Query::parse(request.uri(), &[])?;
    let caller = Peer::caller_of(request.extensions());
    app.service.admission().admit_prefix(&caller, b"", Action::Read)?;
    let backup = match app.service.backup().await? {
        BackupStart::Begun(backup) => backup,
        BackupStart::Busy => {
            return Err(Problem::overloaded("another backup is in progress"));
        }
        BackupStart::NoDirectory => {
            return Err(Problem::new(Kind::NoDataDirectory, "a node of a cluster has no data directory"));
        }
    };
    let length = archive_bytes(&backup);
    let (chunks, received) = mpsc::channel(BACKUP_CHUNKS_AHEAD);
    let runtime = Handle::current();
    // The task ends when the body is dropped, because its sends then fail.
    tokio::task::spawn_blocking(move || {
        let mut archive = ArchiveWriter::new(chunks, runtime);
        if let Err(error) = write_archive(&backup, &mut archive) {
            tracing::warn!(%error, "a backup was not completed");
            archive.abort(error);
        }
    });
    let body = stream::unfold(received, async |mut received| Some((received.recv().await?, received)));
    let mut response = Response::new(Body::from_stream(body));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    headers.insert(header::CONTENT_LENGTH, length.into());
    headers.insert(header::CONTENT_DISPOSITION, HeaderValue::from_static("attachment; filename=\"tally-backup.tar\""));
    Ok(response)
}

fn archive_bytes(backup: &Backup) -> u64 {
    let blocks = backup.files().iter().map(|file| 1 + file.bytes.div_ceil(BLOCK_BYTES)).sum::<u64>();
    (blocks + END_BLOCKS) * BLOCK_BYTES
}

fn write_archive(backup: &Backup, out: &mut ArchiveWriter) -> io::Result<()> {
    let now = SystemClock.wall();
    let mut archive = tar::Builder::new(&mut *out);
    for file in backup.files() {
        let mut head = tar::Header::new_gnu();
        head.set_size(file.bytes);
        head.set_mode(0o600);
        head.set_mtime(now.0 / 1_000);
        archive.append_data(&mut head, &file.name, file.reader())?;
    }
    archive.into_inner()?.flush()
}

/// Sends an archive in chunks. Fails if the client stops reading or is too slow, so that the files of the backup are
/// not kept forever.
struct ArchiveWriter {
    chunks: mpsc::Sender<io::Result<Bytes>>,
    runtime: Handle,
    pending: Vec<u8>,
    sent: u64,
    since: Stopwatch,
}

impl ArchiveWriter {
    fn new(chunks: mpsc::Sender<io::Result<Bytes>>, runtime: Handle) -> Self {
        let pending = Vec::with_capacity(BACKUP_CHUNK_BYTES);
        ArchiveWriter { chunks, runtime, pending, sent: 0, since: Stopwatch::start() }
    }

    fn send(&self, chunk: io::Result<Bytes>, within: Duration) -> io::Result<()> {
        let sent = self.runtime.block_on(self.chunks.send_timeout(chunk, within));
        sent.map_err(|_| io::Error::new(io::ErrorKind::TimedOut, "the client went away, or stopped reading"))
    }

    /// Ends the body early, so that the client does not take it for complete.
    fn abort(&self, error: io::Error) {
        // If this fails, the client is gone.
        let _ = self.send(Err(error), WRITE_STALL_MAX);
    }
}

impl Write for ArchiveWriter {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        if self.pending.len() >= BACKUP_CHUNK_BYTES {
            self.flush()?;
        }
        let taken = buf.len().min(BACKUP_CHUNK_BYTES - self.pending.len());
        self.pending.extend_from_slice(&buf[..taken]);
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        let chunk = std::mem::replace(&mut self.pending, Vec::with_capacity(BACKUP_CHUNK_BYTES));
        self.sent += chunk.len() as u64;
        // Longer than the connection takes to notice that the client has stopped reading.
        self.send(Ok(chunk.into()), 2 * WRITE_STALL_MAX)?;
        if is_too_slow(self.sent, self.since.elapsed()) {
            let what = format!("the client reads less than {} KiB per second", BACKUP_RATE_MIN >> 10);
            return Err(io::Error::new(io::ErrorKind::TimedOut, what));
        }
        Ok(())
    }
}

fn is_too_slow(sent: u64, elapsed: Duration) -> bool {
    elapsed > BACKUP_SLOW_MAX && sent < BACKUP_RATE_MIN.saturating_mul(elapsed.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backup_that_would_take_days_is_ended_and_one_that_only_begins_slowly_is_not() {
        let minutes = |minutes: u64| Duration::from_secs(60 * minutes);
        // 256 KiB every 29 seconds keeps the connection alive.
        assert!(is_too_slow(5 * (256 << 10), minutes(2)));
        assert!(!is_too_slow(0, minutes(1)));
        assert!(!is_too_slow(1 << 30, minutes(60)));
        assert!(is_too_slow(1 << 30, minutes(70)), "also one that slows down later");
    }
}
