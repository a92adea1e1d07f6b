//! The progress bar on stderr.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// Counts for the progress bar only; the report is computed from the measurements.
#[derive(Debug, Default)]
pub struct Counters {
    pub arrived: AtomicU64,
    pub answered: AtomicU64,
    pub accepted: AtomicU64,
    pub sold_out: AtomicU64,
    pub settled: AtomicU64,
}

#[derive(Clone)]
pub struct Progress {
    bar: ProgressBar,
}

impl Progress {
    pub fn new(shown: bool) -> Self {
        let bar = if shown { ProgressBar::new_spinner() } else { ProgressBar::hidden() };
        Self { bar }
    }

    pub fn waiting(&self, left: Duration) {
        self.bar.enable_steady_tick(Duration::from_millis(200));
        self.bar.set_message(format!("the sale starts in {:.0} s", left.as_secs_f64()));
    }

    pub fn rushing(&self, arrivals: u64) {
        // The template is a constant. If it is wrong, the default style is used.
        let style = ProgressStyle::with_template("{elapsed_precise} [{bar:32}] {pos}/{len} {msg}");
        self.bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("█▉▊▋▌▍▎▏ "));
        self.bar.disable_steady_tick();
        self.bar.reset_elapsed();
        self.bar.set_length(arrivals);
    }

    pub fn show(&self, counters: &Counters) {
        self.bar.set_position(counters.settled.load(Relaxed));
        self.bar.set_message(format!(
            "arrived {}  answered {}  accepted {}  sold out {}",
            counters.arrived.load(Relaxed),
            counters.answered.load(Relaxed),
            counters.accepted.load(Relaxed),
            counters.sold_out.load(Relaxed),
        ));
    }

    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
