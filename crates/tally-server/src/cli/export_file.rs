//! The file that `tally export` writes and `tally import` reads.
//!
//! ```text
//! {"tally_export":1}                                              the format's version
//! {"key":"likes:1","counter":{…},"ledger":[…]}                    items of `/api/v1/export`, one per line
//! {"end":{"lines":7,"counters":5,"ledger_entries":12,"request_ids":2,"sha256":"…"}}
//! ```
//!
//! The checksum is that of all bytes before the last line: `head -n -1 FILE | sha256sum`. A file without the last line is
//! unfinished.

use std::io::{self, BufRead, Read, Write};

use data_encoding::HEXLOWER;
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::limits::EXPORT_LINE_BYTES_MAX;

const VERSION: u64 = 1;
/// Only the last line begins with it.
const END: &[u8] = b"{\"end\":";

/// The totals of an export.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExportSummary {
    /// Lines between the first and the last.
    pub lines: u64,
    /// Counters, including deleted ones with a ledger.
    pub counters: u64,
    /// Entries of all ledgers.
    pub ledger_entries: u64,
    /// Request ids.
    pub request_ids: u64,
    sha256: String,
}

impl ExportSummary {
    /// Counts an item.
    fn count(&mut self, item: &ItemShape) {
        self.lines += 1;
        self.request_ids += u64::from(item.request.is_some());
        self.counters += u64::from(item.request.is_none() && !item.more);
        self.ledger_entries += item.ledger.len() as u64;
    }
}

/// The fields of an item that the totals need. The server checks the rest.
#[derive(Deserialize)]
struct ItemShape {
    #[serde(default)]
    ledger: Vec<IgnoredAny>,
    #[serde(default)]
    more: bool,
    request: Option<IgnoredAny>,
}

#[derive(Serialize, Deserialize)]
struct FirstLine {
    tally_export: u64,
}

#[derive(Serialize, Deserialize)]
struct LastLine {
    end: ExportSummary,
}

/// Why a file is not imported.
#[derive(Debug, thiserror::Error)]
pub enum ExportFileError {
    /// It cannot be read.
    #[error("cannot read the export: {0}")]
    Io(#[from] io::Error),
    /// It is not an export.
    #[error("this is not an export of Tally: its first line is not {{\"tally_export\":1}}")]
    NotAnExport,
    /// A newer version wrote it.
    #[error("the export has format {0}; this version of Tally reads format {VERSION}. Upgrade Tally")]
    Newer(u64),
    /// The last line is missing.
    #[error("the export is unfinished: it ends after {0} lines without the line that has its totals. Export again")]
    Unfinished(u64),
    /// A line, a total or the checksum is wrong.
    #[error("the export is damaged: {0}")]
    Damaged(String),
}

/// Writes an export.
pub struct ExportWriter<W> {
    out: W,
    hasher: Sha256,
    summary: ExportSummary,
}

impl<W: Write> ExportWriter<W> {
    /// Begins an export.
    pub fn begin(out: W) -> io::Result<Self> {
        let mut writer = ExportWriter { out, hasher: Sha256::new(), summary: ExportSummary::default() };
        writer.line(&serde_json::to_string(&FirstLine { tally_export: VERSION })?)?;
        Ok(writer)
    }

    /// Writes an item.
    pub fn item(&mut self, item: &str) -> io::Result<()> {
        self.summary.count(&serde_json::from_str(item)?);
        self.line(item)
    }

    /// The totals so far.
    pub fn summary(&self) -> &ExportSummary {
        &self.summary
    }

    /// Writes the last line.
    pub fn finish(mut self) -> io::Result<(W, ExportSummary)> {
        self.summary.sha256 = HEXLOWER.encode(&self.hasher.clone().finalize());
        let last = LastLine { end: self.summary.clone() };
        self.line(&serde_json::to_string(&last)?)?;
        self.out.flush()?;
        Ok((self.out, self.summary))
    }

    fn line(&mut self, text: &str) -> io::Result<()> {
        for bytes in [text.as_bytes(), b"\n"] {
            self.hasher.update(bytes);
            self.out.write_all(bytes)?;
        }
        Ok(())
    }
}

/// Reads an export. After an error there is nothing more to read.
pub struct ExportReader<R> {
    input: R,
    hasher: Sha256,
    found: ExportSummary,
    line: Vec<u8>,
    bytes: u64,
}

impl<R: BufRead> ExportReader<R> {
    /// Reads the first line.
    pub fn begin(input: R) -> Result<Self, ExportFileError> {
        let (hasher, found) = (Sha256::new(), ExportSummary::default());
        let mut reader = ExportReader { input, hasher, found, line: Vec::new(), bytes: 0 };
        let is_whole = reader.read_line().map_err(|_| ExportFileError::NotAnExport)?;
        let first: Result<FirstLine, _> = serde_json::from_slice(&reader.line);
        match first {
            Ok(FirstLine { tally_export: VERSION }) if is_whole => {}
            Ok(FirstLine { tally_export }) if is_whole => return Err(ExportFileError::Newer(tally_export)),
            _ => return Err(ExportFileError::NotAnExport),
        }
        reader.hasher.update(&reader.line);
        Ok(reader)
    }

    /// Bytes read so far.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The totals so far; complete at the end.
    pub fn summary(&self) -> &ExportSummary {
        &self.found
    }

    /// The next item; `None` at the end, after the last line has been verified.
    pub fn next_item(&mut self) -> Result<Option<&str>, ExportFileError> {
        if !self.read_line()? {
            return Err(ExportFileError::Unfinished(self.found.lines));
        }
        if self.line.starts_with(END) {
            return self.check_end().map(|()| None);
        }
        let number = self.found.lines + 2;
        let damaged = |what: &str| ExportFileError::Damaged(format!("line {number} is {what}"));
        self.found.count(&serde_json::from_slice(&self.line).map_err(|_| damaged("not an item"))?);
        self.hasher.update(&self.line);
        std::str::from_utf8(&self.line).map(|line| Some(line.trim_end())).map_err(|_| damaged("not UTF-8"))
    }

    fn check_end(&mut self) -> Result<(), ExportFileError> {
        let damaged = |what: &str| Err(ExportFileError::Damaged(what.to_owned()));
        let Ok(LastLine { end }) = serde_json::from_slice(&self.line) else {
            return damaged("its last line cannot be read");
        };
        self.found.sha256 = HEXLOWER.encode(&self.hasher.clone().finalize());
        if end != self.found {
            return damaged("its content does not match the totals and the checksum in its last line");
        }
        if !self.input.fill_buf()?.is_empty() {
            return damaged("something follows its last line");
        }
        Ok(())
    }

    /// Reads a line with its newline; `false` at the end of the input, or if the newline is missing.
    fn read_line(&mut self) -> Result<bool, ExportFileError> {
        self.line.clear();
        let max = EXPORT_LINE_BYTES_MAX as u64 + 1;
        self.bytes += self.input.by_ref().take(max).read_until(b'\n', &mut self.line)? as u64;
        if self.line.len() as u64 == max && self.line.last() != Some(&b'\n') {
            return Err(ExportFileError::Damaged(format!("line {} is too long", self.found.lines + 2)));
        }
        Ok(self.line.last() == Some(&b'\n'))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const ITEMS: [&str; 3] = [
        r#"{"key":"a","ledger":[{"seq":1},{"seq":2}],"more":true}"#,
        r#"{"key":"a","counter":{},"ledger":[{"seq":3}]}"#,
        r#"{"request":"00","outcome":"00"}"#,
    ];

    fn export() -> Vec<u8> {
        let mut writer = ExportWriter::begin(Vec::new()).unwrap();
        ITEMS.iter().for_each(|item| writer.item(item).unwrap());
        writer.finish().unwrap().0
    }

    fn read(bytes: &[u8]) -> Result<Vec<String>, ExportFileError> {
        let mut reader = ExportReader::begin(bytes)?;
        let mut items = Vec::new();
        while let Some(item) = reader.next_item()? {
            items.push(item.to_owned());
        }
        let ExportSummary { lines, counters, ledger_entries, request_ids, .. } = *reader.summary();
        assert_eq!((lines, counters, ledger_entries, request_ids, reader.bytes()), (3, 1, 3, 1, bytes.len() as u64));
        Ok(items)
    }

    #[test]
    fn what_was_written_is_read() {
        assert_eq!(read(&export()).unwrap(), ITEMS);
    }

    #[test]
    fn a_file_that_is_cut_off_anywhere_is_refused() {
        let whole = export();
        let first = whole.iter().position(|byte| *byte == b'\n').unwrap() + 1;
        for len in 0..whole.len() {
            let error = read(&whole[..len]).unwrap_err();
            let as_expected = match error {
                ExportFileError::NotAnExport => len < first,
                ExportFileError::Unfinished(_) => len >= first,
                _ => false,
            };
            assert!(as_expected, "{len} of {}: {error}", whole.len());
        }
    }

    #[test]
    fn a_changed_byte_is_found() {
        let whole = export();
        for at in 0..whole.len() {
            let mut changed = whole.clone();
            changed[at] ^= 1;
            assert!(read(&changed).is_err(), "byte {at}");
        }
        assert!(matches!(read(&[&whole[..], b"{}\n"].concat()), Err(ExportFileError::Damaged(_))));
        assert!(matches!(read(b"{\"tally_export\":2}\n"), Err(ExportFileError::Newer(2))));
        let missing = String::from_utf8(whole).unwrap().replacen(&format!("{}\n", ITEMS[2]), "", 1);
        assert!(matches!(read(missing.as_bytes()), Err(ExportFileError::Damaged(_))));
    }
}
