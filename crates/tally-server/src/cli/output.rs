//! Output: tables or JSON on stdout, errors on stderr.

use std::fmt::Display;
use std::io::Write;

/// Prints rows in aligned columns.
pub fn table(rows: &[Vec<String>]) {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let cell_width = |row: &[String], column: usize| row.get(column).map_or(0, |cell| printable(cell).chars().count());
    let widths: Vec<usize> =
        (0..columns).map(|column| rows.iter().map(|row| cell_width(row, column)).max().unwrap_or(0)).collect();
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{:<width$}", printable(cell)));
        text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        text.push('\n');
    }
    print(&text);
}

/// Prints text as it is.
pub fn text(text: &str) {
    print(text);
}

/// Prints JSON.
pub fn json(value: &dyn Display) {
    print(&format!("{value}\n"));
}

/// Prints an error.
pub fn error(error: &dyn Display) {
    // Nothing can be done if stderr is closed.
    let _ = writeln!(std::io::stderr().lock(), "tally: {error}");
}

/// Prints a note to stderr, where it does not mix with the output.
pub fn note(text: &dyn Display) {
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}

/// Prints an error as JSON.
pub fn error_json(problem: &dyn Display) {
    let _ = writeln!(std::io::stderr().lock(), "{problem}");
}

fn print(text: &str) {
    // A closed pipe is not a failure: `head` closes it early.
    let _ = std::io::stdout().lock().write_all(text.as_bytes());
}

/// Escapes control characters, which a key may contain and a terminal would act on.
fn printable(text: &str) -> String {
    text.chars().flat_map(|c| if c.is_control() { c.escape_default().collect() } else { vec![c] }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(printable("a\u{1b}[31mé"), "a\\u{1b}[31mé");
    }
}
