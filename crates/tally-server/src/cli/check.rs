//! `tally check`: verifies a data directory without changing it.

use std::path::Path;
use std::process::ExitCode;

use serde_json::json;
use tally_engine::check::{CheckError, Report, check};

use super::args::{CheckArgs, Output};
use super::{EXIT_DAMAGED, EXIT_FAILED, output};
use crate::progress;

/// Checks the directory and prints a report.
pub fn run(args: &CheckArgs) -> ExitCode {
    if let Err(why) = require_directory(&args.dir) {
        return not_checked(&why, args.output);
    }
    let bar = progress::bytes("checking");
    let checked = check(&args.dir, &mut |done, total| progress::show(&bar, done, total));
    bar.finish_and_clear();
    match checked {
        Ok(report) => {
            show(&report, args);
            ExitCode::SUCCESS
        }
        Err(CheckError::Damaged { file, offset, what }) => damaged(args, &file, offset, &what),
        Err(CheckError::InUse { by }) => {
            let dir = args.dir.display();
            let why = format!("{dir} is in use{by}; stop the server first, or check a copy made with `tally backup`");
            not_checked(&why, args.output)
        }
        Err(CheckError::Unreadable(why)) => {
            not_checked(&format!("cannot check {}: {why}", args.dir.display()), args.output)
        }
    }
}

/// Refuses a path that is not a directory. Other errors are left to the check, which explains them.
fn require_directory(dir: &Path) -> Result<(), String> {
    match std::fs::metadata(dir) {
        Ok(found) if !found.is_dir() => Err(format!("{} is not a directory", dir.display())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Err(format!("{} does not exist", dir.display())),
        _ => Ok(()),
    }
}

fn not_checked(why: &str, output: Output) -> ExitCode {
    match output {
        Output::Json => output::error_json(&json!({ "title": "Cannot check the data", "detail": why })),
        Output::Table => output::error(&why),
    }
    ExitCode::from(EXIT_FAILED)
}

fn damaged(args: &CheckArgs, file: &str, offset: u64, what: &str) -> ExitCode {
    match args.output {
        Output::Json => output::json(&json!({ "sound": false, "file": file, "offset": offset, "what": what })),
        Output::Table => output::error(&format!(
            "{}: {file} is damaged at byte {offset}: {what}\nNothing was changed. Keep a copy, and restore a backup: see \"Damage\" in docs/operating.md.",
            args.dir.display()
        )),
    }
    ExitCode::from(EXIT_DAMAGED)
}

fn show(report: &Report, args: &CheckArgs) {
    let Report { segments, batches, torn_bytes, runs, entries, bytes } = report;
    if args.output == Output::Json {
        return output::json(&json!({
            "sound": true, "segments": segments, "batches": batches, "torn_bytes": torn_bytes, "runs": runs,
            "entries": entries, "bytes": bytes,
        }));
    }
    let row = |name: &str, value: &dyn ToString| vec![name.to_owned(), value.to_string()];
    output::table(&[
        row("sound", &"yes"),
        row("journal segments", segments),
        row("batches to replay", batches),
        row("torn bytes to drop", torn_bytes),
        row("store runs", runs),
        row("store entries", entries),
        row("bytes verified", bytes),
    ]);
}
