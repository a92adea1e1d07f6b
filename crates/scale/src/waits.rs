//! How long many waited: counts in steps of one percent, so that millions of waits need little memory.

use serde::Serialize;

use crate::engine::Nanos;

/// The logarithm of a step.
const STEP: f64 = 0.01;

/// Counts of waits.
#[derive(Debug, Clone, Default)]
pub struct WaitCounts {
    /// By step: those of step n are about e^(n * STEP) nanoseconds long.
    steps: Vec<u64>,
    total: u64,
    longest: Nanos,
}

/// How long the answers of a kind took; all 0 if there were none.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Waits {
    pub p50_ms: f64,
    pub p99_ms: f64,
    pub longest_ms: f64,
}

impl WaitCounts {
    pub fn record(&mut self, wait: Nanos) {
        let step = ((wait.max(1) as f64).ln() / STEP) as usize;
        if step >= self.steps.len() {
            self.steps.resize(step + 1, 0);
        }
        self.steps[step] += 1;
        self.total += 1;
        self.longest = self.longest.max(wait);
    }

    /// The wait that this part of all did not exceed, in milliseconds.
    fn quantile_ms(&self, part: f64) -> f64 {
        let within = (self.total as f64 * part).ceil() as u64;
        let mut so_far = 0;
        for (step, count) in self.steps.iter().enumerate() {
            so_far += count;
            if so_far >= within.max(1) {
                let nanos = ((step as f64 + 0.5) * STEP).exp();
                return nanos.min(self.longest as f64) / 1e6;
            }
        }
        0.0
    }

    pub fn waits(&self) -> Waits {
        Waits { p50_ms: self.quantile_ms(0.5), p99_ms: self.quantile_ms(0.99), longest_ms: self.longest as f64 / 1e6 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Percentiles are right to a percent.
    #[test]
    fn percentiles_are_right_to_a_percent() {
        let mut counts = WaitCounts::default();
        (1..=10_000_u64).for_each(|n| counts.record(n * 1_000));
        let waits = counts.waits();
        assert!((waits.p50_ms / 5.0 - 1.0).abs() < 0.01, "{waits:?}");
        assert!((waits.p99_ms / 9.9 - 1.0).abs() < 0.01, "{waits:?}");
        assert_eq!(waits.longest_ms, 10.0);
    }

    #[test]
    fn nobody_waited_for_nothing() {
        assert_eq!(WaitCounts::default().waits(), Waits { p50_ms: 0.0, p99_ms: 0.0, longest_ms: 0.0 });
    }
}
