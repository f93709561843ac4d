//! Errors for requests that match no command, worded as in Redis.

use crate::resp::wire::Args;

/// Maximum bytes of a request that an error quotes.
const ECHO_BYTES_MAX: usize = 128;

/// No command has this name.
#[cold]
pub fn unknown_command(args: &Args<'_>) -> Vec<u8> {
    let mut shown = Vec::new();
    for arg in args.iter().skip(1) {
        if shown.len() >= ECHO_BYTES_MAX {
            break;
        }
        let room = ECHO_BYTES_MAX - shown.len();
        shown.extend([b"'", begin(arg, room), b"' "].concat());
    }
    let name = begin(args.name(), ECHO_BYTES_MAX);
    one_line([b"ERR unknown command '", name, b"', with args beginning with: ", &shown].concat())
}

/// The command exists, but has no such subcommand.
#[cold]
pub fn unknown_subcommand(container: &str, name: &[u8]) -> Vec<u8> {
    let tried = begin(name, ECHO_BYTES_MAX);
    let container = container.to_ascii_uppercase();
    one_line([b"ERR unknown subcommand '", tried, b"'. Try ", container.as_bytes(), b" HELP."].concat())
}

/// Too few or too many arguments.
#[cold]
pub fn wrong_arguments(name: &str) -> Vec<u8> {
    format!("ERR wrong number of arguments for '{name}' command").into_bytes()
}

/// At most `bytes_max` bytes, up to the first zero byte: Redis prints a C string.
fn begin(text: &[u8], bytes_max: usize) -> &[u8] {
    let text = &text[..text.len().min(bytes_max)];
    text.split(|byte| *byte == 0).next().unwrap_or_default()
}

/// Replaces line breaks with spaces. A trailing space stays.
fn one_line(mut text: Vec<u8>) -> Vec<u8> {
    for byte in &mut text {
        if matches!(byte, b'\r' | b'\n') {
            *byte = b' ';
        }
    }
    text
}
