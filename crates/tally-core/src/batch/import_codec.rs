//! The binary form of imports. Counters, ledger entries and first outcomes are encoded as in the store's records.

use crate::import::{Existing, ImportPart, ImportedCounter};
use crate::limits::{COUNTER_BYTES_MAX, IMPORT_ENTRIES_MAX, LEDGER_ENTRY_BYTES_MAX};
use crate::record::{read_counter, read_ledger, read_request, write_counter, write_ledger, write_request};
use crate::request_ids::FirstOutcome;
use crate::varint::{Cursor, put_bytes, put_u64};

const IMPORT_REPLACES: u8 = 1;
const IMPORT_LAST: u8 = 1 << 1;
const IMPORT_COUNTER: u8 = 1 << 2;
const IMPORT_LAST_COUNTER: u8 = IMPORT_LAST | IMPORT_COUNTER;
/// Largest encoded first outcome: all its numbers.
const REQUEST_BYTES_MAX: usize = 64;

pub(super) fn put_import(out: &mut Vec<u8>, imported: &ImportedCounter) {
    let replaces = if imported.existing() == Existing::Replace { IMPORT_REPLACES } else { 0 };
    let (part, counter) = match imported.part() {
        ImportPart::Ledger => (0, None),
        ImportPart::Last(None) => (IMPORT_LAST, None),
        ImportPart::Last(Some(state)) => (IMPORT_LAST_COUNTER, Some(state)),
    };
    out.push(replaces | part);
    if let Some(state) = counter {
        put_record(out, |out| write_counter(&state, out));
    }
    put_u64(out, imported.entries().len() as u64);
    for entry in imported.entries() {
        put_record(out, |out| write_ledger(entry, out));
    }
}

/// Appends a record of the store, with its length.
fn put_record(out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    let mut record = Vec::new();
    write(&mut record);
    put_bytes(out, &record);
}

pub(super) fn read_import(cursor: &mut Cursor<'_>) -> Option<ImportedCounter> {
    let parts = cursor.u8()?;
    let existing = if parts & IMPORT_REPLACES != 0 { Existing::Replace } else { Existing::Refuse };
    let part = match parts & !IMPORT_REPLACES {
        0 => ImportPart::Ledger,
        IMPORT_LAST => ImportPart::Last(None),
        IMPORT_LAST_COUNTER => ImportPart::Last(Some(read_counter(cursor.bytes(COUNTER_BYTES_MAX)?)?)),
        _ => return None,
    };
    let count = usize::try_from(cursor.u64()?).ok().filter(|&count| count <= IMPORT_ENTRIES_MAX)?;
    let entries = (0..count).map(|_| read_ledger(cursor.bytes(LEDGER_ENTRY_BYTES_MAX)?)).collect::<Option<_>>()?;
    ImportedCounter::linked(part, existing, entries).ok()
}

pub(super) fn put_import_request(out: &mut Vec<u8>, first: &FirstOutcome) {
    put_record(out, |out| write_request(first, out));
}

pub(super) fn read_import_request(cursor: &mut Cursor<'_>) -> Option<FirstOutcome> {
    read_request(cursor.bytes(REQUEST_BYTES_MAX)?)
}
