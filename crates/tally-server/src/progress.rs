//! A progress bar on the terminal; hidden if there is no terminal.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// A bar for work measured in bytes.
pub fn bytes(doing: &'static str) -> ProgressBar {
    bar(doing, "{msg} {wide_bar} {bytes} of {total_bytes} ({eta} left)")
}

/// A bar for work measured in counters.
pub fn counters(doing: &'static str) -> ProgressBar {
    bar(doing, "{msg} {wide_bar} {human_pos} of {human_len} counters ({eta} left)")
}

fn bar(doing: &'static str, template: &str) -> ProgressBar {
    let bar = ProgressBar::new(0).with_message(doing);
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

/// Updates the bar.
pub fn show(bar: &ProgressBar, done: u64, total: u64) {
    bar.set_length(total);
    bar.set_position(done);
}
