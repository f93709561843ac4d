//! Usage errors: clap's own text, or JSON with `-o json`.

use std::ffi::OsString;
use std::process::ExitCode;

use serde_json::json;

use super::{EXIT_USAGE, output};

/// Prints a usage error, or the help that was requested.
pub fn refuse(error: &clap::Error, args: &[OsString]) -> ExitCode {
    if !error.use_stderr() || !wants_json(args) {
        error.exit();
    }
    let text = error.render().to_string();
    output::error_json(&json!({ "title": "Invalid command line", "detail": detail(&text) }));
    ExitCode::from(EXIT_USAGE)
}

/// Whether the arguments contain `-o json`, in any spelling. They could not be parsed, so they are searched as text.
fn wants_json(args: &[OsString]) -> bool {
    let flags = || args.iter().take_while(|text| *text != "--");
    let as_one = |text: &OsString| ["-ojson", "-o=json", "--output=json"].iter().any(|flag| text == flag);
    let as_two = |(flag, value): (&OsString, &OsString)| (flag == "-o" || flag == "--output") && value == "json";
    flags().any(as_one) || flags().zip(flags().skip(1)).any(as_two)
}

/// The message, without the usage and the advice after it.
fn detail(text: &str) -> &str {
    let text = text.strip_prefix("error: ").unwrap_or(text);
    let ends = ["\n\nUsage:", "\n\nFor more information"];
    let end = ends.iter().filter_map(|end| text.find(end)).min().unwrap_or(text.len());
    text[..end].trim()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_output_is_recognised_in_every_spelling_clap_accepts() {
        let asks = |args: &str| wants_json(&args.split(' ').map(OsString::from).collect::<Vec<_>>());
        for args in ["get -o json", "get --output json", "get -ojson", "get -o=json", "--output=json get"] {
            assert!(asks(args), "{args}");
        }
        for args in ["get", "get -o table", "get json", "get -- -o json", "get -o jsn", "get -o"] {
            assert!(!asks(args), "{args}");
        }
    }
}
