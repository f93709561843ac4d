//! `tally export` and `tally import`: move everything from one running server to another.

use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Seek, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use indicatif::ProgressBar;
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;

use super::args::{ExportArgs, ImportArgs, Output};
use super::client::{Answer, ApiClient, CallError, fail};
use super::export_file::{ExportFileError, ExportReader, ExportSummary, ExportWriter};
use super::{EXIT_DAMAGED, EXIT_FAILED, output};
use crate::limits::{IMPORT_ITEMS_MAX, IMPORT_SEND_BYTES, MOVE_RETRIES_MAX, MOVE_RETRY_AFTER, MOVE_WAIT_MAX};
use crate::progress;

/// Stands for standard input and output.
const STANDARD: &str = "-";
/// Maximum number of refused counters that are named.
const NAMED_MAX: usize = 10;

/// Why an export or import failed.
#[derive(Debug)]
enum TransferError {
    Call(CallError),
    Io(String),
    File(ExportFileError),
}

impl From<CallError> for TransferError {
    fn from(error: CallError) -> Self {
        TransferError::Call(error)
    }
}

impl From<ExportFileError> for TransferError {
    fn from(error: ExportFileError) -> Self {
        TransferError::File(error)
    }
}

impl TransferError {
    fn io(path: &Path, error: &io::Error) -> TransferError {
        TransferError::Io(format!("{}: {error}", path.display()))
    }

    /// Prints it, and returns the exit code.
    fn report(&self, format: Output) -> ExitCode {
        let (why, code) = match self {
            TransferError::Call(error) => return fail(error, format),
            TransferError::Io(why) => (why.clone(), EXIT_FAILED),
            TransferError::File(error @ ExportFileError::Io(_)) => (error.to_string(), EXIT_FAILED),
            TransferError::File(error) => (error.to_string(), EXIT_DAMAGED),
        };
        match format {
            Output::Json => output::error_json(&json!({ "title": "Import failed", "detail": why })),
            Output::Table => output::error(&why),
        }
        ExitCode::from(code)
    }
}

/// Retries a call while the server answers 503, for example while a worker is replaced, and prints why. Export and
/// import calls are safe to repeat.
fn retry_while_unavailable(
    bar: &ProgressBar,
    call: impl Fn() -> Result<Answer, CallError>,
) -> Result<Answer, CallError> {
    for attempt in 0..MOVE_RETRIES_MAX {
        match call() {
            Err(CallError::Refused { problem }) if problem.value.get("status") == Some(&json!(503)) => {
                if attempt == 0 {
                    let why = problem.value.get("detail").and_then(serde_json::Value::as_str).unwrap_or_default();
                    bar.suspend(|| output::note(&format!("the server is not available, trying again: {why}")));
                }
                std::thread::park_timeout(MOVE_RETRY_AFTER);
            }
            answered => return answered,
        }
    }
    call()
}

#[derive(Deserialize)]
struct ExportedPage {
    items: Vec<Box<RawValue>>,
    next_cursor: Option<String>,
    counters: Option<u64>,
}

/// `tally export`.
pub fn export(args: &ExportArgs) -> ExitCode {
    let client = ApiClient::with_wait(&args.server, Output::Table, MOVE_WAIT_MAX);
    let exported = match args.output.as_str() {
        STANDARD => export_to(&client, io::stdout().lock()).map(|(_, summary)| summary),
        path => export_to_file(&client, Path::new(path)),
    };
    match exported {
        Ok(summary) => {
            let ExportSummary { counters, ledger_entries, request_ids, .. } = summary;
            // On stderr, because standard output may be the export.
            output::note(&format!(
                "exported {counters} counters, {ledger_entries} ledger entries and {request_ids} request ids"
            ));
            ExitCode::SUCCESS
        }
        Err(error) => error.report(Output::Table),
    }
}

/// Writes to a temporary file next to it first, so that an unfinished export never replaces a finished one.
fn export_to_file(client: &ApiClient, path: &Path) -> Result<ExportSummary, TransferError> {
    let mut unfinished = path.as_os_str().to_owned();
    unfinished.push(".unfinished");
    let unfinished = PathBuf::from(unfinished);
    let failed = |error: io::Error| TransferError::io(&unfinished, &error);
    let file = File::create(&unfinished).map_err(failed)?;
    let (file, summary) = export_to(client, BufWriter::new(file))?;
    let file = file.into_inner().map_err(|error| failed(error.into_error()))?;
    file.sync_all().map_err(failed)?;
    std::fs::rename(&unfinished, path).map_err(|error| TransferError::io(path, &error))?;
    Ok(summary)
}

fn export_to<W: Write>(client: &ApiClient, out: W) -> Result<(W, ExportSummary), TransferError> {
    let bar = progress::counters("exporting");
    let exported = export_pages(client, out, &bar);
    bar.finish_and_clear();
    exported
}

fn export_pages<W: Write>(client: &ApiClient, out: W, bar: &ProgressBar) -> Result<(W, ExportSummary), TransferError> {
    let failed = |error: io::Error| TransferError::Io(format!("cannot write the export: {error}"));
    let mut writer = ExportWriter::begin(out).map_err(failed)?;
    let mut cursor = String::new();
    let mut total = 0;
    loop {
        let answer = retry_while_unavailable(bar, || client.get(&format!("/export?limit=1000{cursor}")))?;
        let not_a_page = |_| CallError::InvalidAnswer("the answer is not a page of an export".to_owned());
        let page: ExportedPage = serde_json::from_str(&answer.text).map_err(not_a_page)?;
        for item in &page.items {
            writer.item(item.get()).map_err(failed)?;
        }
        total = page.counters.unwrap_or(total);
        let done = writer.summary().counters;
        progress::show(bar, done, total.max(done));
        match page.next_cursor {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return writer.finish().map_err(failed),
        }
    }
}

/// The result of an import, in items.
#[derive(Default)]
struct ImportTotals {
    imported: u64,
    unchanged: u64,
    refused: u64,
    /// The first refused items: key and reason.
    named: Vec<(String, String)>,
}

#[derive(Deserialize)]
struct ImportedPart {
    imported: u64,
    unchanged: u64,
    failed: Vec<FailedItem>,
}

#[derive(Deserialize)]
struct FailedItem {
    key: Option<String>,
    error: FailedReason,
}

#[derive(Deserialize)]
struct FailedReason {
    detail: String,
}

/// `tally import`.
pub fn import(args: &ImportArgs) -> ExitCode {
    let client = ApiClient::with_wait(&args.client.server, args.client.output, MOVE_WAIT_MAX);
    let mut totals = ImportTotals::default();
    let imported = match args.file.to_str() {
        Some(STANDARD) => import_from(&client, args, io::stdin().lock(), 0, &mut totals),
        _ => import_file(&client, args, &mut totals),
    };
    let changed = totals.imported + totals.unchanged + totals.refused > 0;
    match imported {
        Ok(summary) => show(&summary, &totals, args.client.output),
        Err(error) => {
            if changed && args.client.output == Output::Table {
                let ImportTotals { imported, unchanged, .. } = totals;
                output::note(&format!(
                    "{imported} records were imported and {unchanged} were there already when it stopped. \
                     It is safe to run it again"
                ));
            }
            error.report(args.client.output)
        }
    }
}

/// Checks the whole file before anything is imported.
fn import_file(
    client: &ApiClient,
    args: &ImportArgs,
    totals: &mut ImportTotals,
) -> Result<ExportSummary, TransferError> {
    let failed = |error: io::Error| TransferError::io(&args.file, &error);
    let mut file = File::open(&args.file).map_err(failed)?;
    let bytes = file.metadata().map_err(failed)?.len();
    let bar = progress::bytes("checking");
    let mut reader = ExportReader::begin(BufReader::new(&file))?;
    while reader.next_item()?.is_some() {
        progress::show(&bar, reader.bytes(), bytes);
    }
    bar.finish_and_clear();
    file.rewind().map_err(failed)?;
    import_from(client, args, BufReader::new(&file), bytes, totals)
}

fn import_from(
    client: &ApiClient,
    args: &ImportArgs,
    input: impl BufRead,
    bytes: u64,
    totals: &mut ImportTotals,
) -> Result<ExportSummary, TransferError> {
    let bar = progress::bytes("importing");
    bar.set_length(bytes);
    let imported = import_items(client, args, input, totals, &bar);
    bar.finish_and_clear();
    imported
}

fn import_items(
    client: &ApiClient,
    args: &ImportArgs,
    input: impl BufRead,
    totals: &mut ImportTotals,
    bar: &ProgressBar,
) -> Result<ExportSummary, TransferError> {
    let head = format!("{{\"replace\":{},\"items\":[", args.replace);
    let mut reader = ExportReader::begin(input)?;
    let (mut body, mut items) = (head.clone(), 0);
    loop {
        let item = reader.next_item()?;
        let is_end = item.is_none();
        if let Some(item) = item {
            if items > 0 {
                body.push(',');
            }
            body.push_str(item);
            items += 1;
        }
        if items > 0 && (is_end || items == IMPORT_ITEMS_MAX || body.len() >= IMPORT_SEND_BYTES) {
            body.push_str("]}");
            totals.add(&retry_while_unavailable(bar, || client.post_text("/import", body.clone()))?)?;
            (body, items) = (head.clone(), 0);
            let (done, total) = (reader.bytes(), bar.length().unwrap_or_default());
            progress::show(bar, done, total.max(done));
        }
        if is_end {
            return Ok(reader.summary().clone());
        }
    }
}

impl ImportTotals {
    fn add(&mut self, answer: &Answer) -> Result<(), CallError> {
        let not_one = |_| CallError::InvalidAnswer("the answer is not the result of an import".to_owned());
        let part: ImportedPart = serde_json::from_str(&answer.text).map_err(not_one)?;
        self.imported += part.imported;
        self.unchanged += part.unchanged;
        self.refused += part.failed.len() as u64;
        let room = NAMED_MAX - self.named.len();
        self.named.extend(
            part.failed.into_iter().take(room).map(|item| {
                (item.key.unwrap_or_else(|| "a counter whose key is not text".to_owned()), item.error.detail)
            }),
        );
        Ok(())
    }
}

fn show(summary: &ExportSummary, totals: &ImportTotals, format: Output) -> ExitCode {
    let ImportTotals { imported, unchanged, refused, named } = totals;
    match format {
        Output::Json => {
            let named: Vec<_> = named.iter().map(|(key, why)| json!({ "key": key, "detail": why })).collect();
            output::json(&json!({
                "counters": summary.counters, "ledger_entries": summary.ledger_entries,
                "request_ids": summary.request_ids, "imported": imported, "unchanged": unchanged, "refused": refused,
                "first_refused": named,
            }));
        }
        Output::Table => {
            let row = |name: &str, value: u64| vec![name.to_owned(), value.to_string()];
            output::table(&[
                row("counters in the file", summary.counters),
                row("ledger entries", summary.ledger_entries),
                row("request ids", summary.request_ids),
                row("records imported", *imported),
                row("records already there", *unchanged),
                row("records refused", *refused),
            ]);
            for (key, why) in named {
                output::error(&format!("{key}: {why}"));
            }
        }
    }
    if *refused == 0 {
        return ExitCode::SUCCESS;
    }
    if format == Output::Table {
        output::error(&format!(
            "records refused and left as they are: {refused}. To replace counters that differ, use --replace"
        ));
    }
    ExitCode::from(EXIT_FAILED)
}
