//! `tally backup`: copies the data directory of a running server and verifies the copy.

use std::io::{self, Read};
use std::path::Path;
use std::process::ExitCode;

use serde_json::json;
use tally_engine::backup::{BackupError, BackupTarget};
use tally_engine::check::Report;

use super::args::{BackupArgs, Output};
use super::client::{ApiClient, CallError, fail};
use super::{EXIT_FAILED, output};
use crate::limits::BACKUP_BEGIN_MAX;
use crate::progress;

/// Why there is no backup.
enum BackupFailure {
    Call(CallError),
    /// Nothing was written.
    Refused(BackupError),
    /// The directory is an unfinished backup.
    Unfinished(BackupError),
}

/// Makes the backup and prints a report.
pub fn run(args: &BackupArgs) -> ExitCode {
    let client = ApiClient::for_stream(&args.client, BACKUP_BEGIN_MAX);
    match copy(&client, &args.dir) {
        Ok(report) => {
            show(&report, args);
            ExitCode::SUCCESS
        }
        Err(BackupFailure::Call(error)) => fail(&error, args.client.output),
        Err(BackupFailure::Refused(error)) => failed(&error.to_string(), args.client.output),
        Err(BackupFailure::Unfinished(error)) => {
            let dir = args.dir.display();
            failed(&format!("{error}\n{dir} is an unfinished backup: remove it and try again"), args.client.output)
        }
    }
}

fn copy(client: &ApiClient, dir: &Path) -> Result<Report, BackupFailure> {
    // First, so that a directory is only created if there is something to copy.
    let (length, body) = client.stream("/backup").map_err(BackupFailure::Call)?;
    let mut target = BackupTarget::create(dir).map_err(BackupFailure::Refused)?;
    let bar = progress::bytes("copying");
    bar.set_length(length);
    let copied = unpack(&mut target, body, &mut |bytes| bar.inc(bytes));
    bar.finish_and_clear();
    copied.map_err(BackupFailure::Unfinished)?;
    let bar = progress::bytes("verifying");
    let verified = target.finish(&mut |done, total| progress::show(&bar, done, total));
    bar.finish_and_clear();
    verified.map_err(BackupFailure::Unfinished)
}

fn unpack(target: &mut BackupTarget, body: impl Read, progress: &mut dyn FnMut(u64)) -> Result<(), BackupError> {
    let received = |source: io::Error| BackupError::Io { file: "the archive".to_owned(), source };
    let mut archive = tar::Archive::new(body);
    // Raw, because tar extension headers would be read into memory in full. A backup has none.
    for entry in archive.entries().map_err(received)?.raw(true) {
        let mut entry = entry.map_err(received)?;
        let name = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
        if !entry.header().entry_type().is_file() {
            return Err(BackupError::Malformed(format!("{name} is not a file")));
        }
        let bytes = entry.size();
        target.write(&name, bytes, &mut entry, progress)?;
    }
    Ok(())
}

fn failed(why: &str, format: Output) -> ExitCode {
    match format {
        Output::Json => output::error_json(&json!({ "title": "Not backed up", "detail": why })),
        Output::Table => output::error(&why),
    }
    ExitCode::from(EXIT_FAILED)
}

fn show(report: &Report, args: &BackupArgs) {
    let Report { runs, entries, bytes, .. } = report;
    let dir = args.dir.display().to_string();
    if args.client.output == Output::Json {
        return output::json(&json!({ "dir": dir, "runs": runs, "entries": entries, "bytes": bytes }));
    }
    let row = |name: &str, value: &dyn ToString| vec![name.to_owned(), value.to_string()];
    output::table(&[
        row("backup", &dir),
        row("store runs", runs),
        row("store entries", entries),
        row("bytes verified", bytes),
    ]);
}
