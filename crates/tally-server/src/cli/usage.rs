//! What was typed and makes no sense: said to people as clap has it, to programs as JSON.

use std::ffi::OsString;
use std::process::ExitCode;

use serde_json::json;

use super::{EXIT_USAGE, output};

/// Says what is wrong with what was typed, or shows the help that was asked for.
pub fn refuse(error: &clap::Error, typed: &[OsString]) -> ExitCode {
    if !error.use_stderr() || !asks_for_json(typed) {
        error.exit();
    }
    let text = error.render().to_string();
    output::error_json(&json!({ "title": "The command cannot be understood", "detail": detail(&text) }));
    ExitCode::from(EXIT_USAGE)
}

/// Whether JSON was asked for. The command could not be parsed, so this looks at what was typed.
fn asks_for_json(typed: &[OsString]) -> bool {
    let flags = || typed.iter().take_while(|text| *text != "--");
    let as_one = |text: &OsString| ["-ojson", "-o=json", "--output=json"].iter().any(|flag| text == flag);
    let as_two = |(flag, value): (&OsString, &OsString)| (flag == "-o" || flag == "--output") && value == "json";
    flags().any(as_one) || flags().zip(flags().skip(1)).any(as_two)
}

/// The message without the usage and the advice that follow it for people.
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
    fn json_is_asked_for_in_every_way_clap_takes() {
        let asks = |typed: &str| asks_for_json(&typed.split(' ').map(OsString::from).collect::<Vec<_>>());
        for typed in ["get -o json", "get --output json", "get -ojson", "get -o=json", "--output=json get"] {
            assert!(asks(typed), "{typed}");
        }
        for typed in ["get", "get -o table", "get json", "get -- -o json", "get -o jsn", "get -o"] {
            assert!(!asks(typed), "{typed}");
        }
    }
}
