//! One progress bar over everything a run measures.

use indicatif::{ProgressBar, ProgressStyle};

/// The bar; silent when nobody watches.
pub struct Progress(ProgressBar);

impl Progress {
    /// A bar of so many steps.
    pub fn new(steps: u64) -> Progress {
        let bar = ProgressBar::new(steps);
        if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len}  {elapsed}  {msg}") {
            bar.set_style(style);
        }
        Progress(bar)
    }

    /// Says what is being measured.
    pub fn say(&self, what: &str) {
        self.0.set_message(what.to_owned());
    }

    /// One step is done.
    pub fn step(&self) {
        self.0.inc(1);
    }

    /// Everything is done.
    pub fn finish(&self) {
        self.0.finish_and_clear();
    }
}
