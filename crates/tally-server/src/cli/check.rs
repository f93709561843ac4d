//! `tally check`: verifies a data directory without changing it.

use std::process::ExitCode;

use serde_json::json;
use tally_engine::check::{CheckError, Report, check};

use super::args::{CheckArgs, Output};
use super::{EXIT_FAILED, output};
use crate::progress;

/// Reads everything and reports.
pub fn run(args: &CheckArgs) -> ExitCode {
    let bar = progress::bytes("checking");
    let checked = check(&args.dir, &mut |done, total| progress::show(&bar, done, total));
    bar.finish_and_clear();
    match checked {
        Ok(report) => {
            show(&report, args);
            ExitCode::SUCCESS
        }
        Err(error) => {
            let dir = args.dir.display();
            output::error(&match error {
                CheckError::Damaged { .. } => format!("{dir} is not sound: {error}\nNothing was changed. Keep a copy."),
                CheckError::Unreadable(why) => format!("{dir} cannot be checked: {why}"),
            });
            ExitCode::from(EXIT_FAILED)
        }
    }
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
