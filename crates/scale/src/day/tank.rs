//! A part of the system as a tank of work.

use super::DAY_S;
use super::outcome::DayUsage;
use crate::rush::Part;

/// A part: work that waits, in seconds of a processor.
pub(super) struct Tank {
    part: Part,
    cores: f64,
    /// What is left of this second.
    free_s: f64,
    waiting_s: f64,
    busy_s: f64,
    busiest_s: f64,
    longest_wait_s: f64,
}

impl Tank {
    pub fn new(part: Part, cores: u32) -> Self {
        let cores = f64::from(cores);
        Self { part, cores, free_s: 0.0, waiting_s: 0.0, busy_s: 0.0, busiest_s: 0.0, longest_wait_s: 0.0 }
    }

    pub fn is_there(&self) -> bool {
        self.cores > 0.0
    }

    /// A second begins, with so much work that goes first.
    pub fn fill(&mut self, work_us: f64) {
        if self.is_there() {
            self.waiting_s += work_us / 1e6;
            let done = self.waiting_s.min(self.cores);
            self.waiting_s -= done;
            self.free_s = self.cores - done;
            self.longest_wait_s = self.longest_wait_s.max(self.waiting_s / self.cores);
        }
    }

    /// For how many pieces of other work there is room in this second.
    pub fn room(&self, us: f64) -> f64 {
        if us > 0.0 && self.is_there() { self.free_s * 1e6 / us } else { f64::INFINITY }
    }

    pub fn take(&mut self, pieces: f64, us: f64) {
        self.free_s = (self.free_s - pieces * us / 1e6).max(0.0);
    }

    pub fn end_second(&mut self) {
        let busy_s = self.cores - self.free_s;
        self.busy_s += busy_s;
        self.busiest_s = self.busiest_s.max(busy_s);
    }

    pub fn usage(&self) -> DayUsage {
        DayUsage {
            part: self.part,
            cores: self.cores as u32,
            busy_s: self.busy_s,
            mean: self.busy_s / self.cores / DAY_S as f64,
            peak: self.busiest_s / self.cores,
            longest_wait_s: self.longest_wait_s,
        }
    }
}
