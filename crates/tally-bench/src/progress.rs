//! The progress bar of a run.

use indicatif::{ProgressBar, ProgressStyle};

/// A progress bar; hidden if there is no terminal.
pub struct BenchProgress(ProgressBar);

impl BenchProgress {
    /// A bar with this many steps.
    pub fn new(steps: u64) -> BenchProgress {
        let bar = ProgressBar::new(steps);
        if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len}  {elapsed}  {msg}") {
            bar.set_style(style);
        }
        BenchProgress(bar)
    }

    /// Shows what is being measured.
    pub fn show(&self, what: &str) {
        self.0.set_message(what.to_owned());
    }

    /// Completes a step.
    pub fn step(&self) {
        self.0.inc(1);
    }

    /// Removes the bar.
    pub fn finish(&self) {
        self.0.finish_and_clear();
    }
}
