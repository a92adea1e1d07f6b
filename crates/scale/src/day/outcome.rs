//! What a day looked like.

use serde::Serialize;

use crate::rush::Part;

/// How busy a part was.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct DayUsage {
    pub part: Part,
    pub cores: u32,
    /// Processor time, in seconds.
    pub busy_s: f64,
    /// The share of the day, and of the busiest second.
    pub mean: f64,
    pub peak: f64,
    /// How much work that goes first has waited at most, in seconds of all processors of the part.
    pub longest_wait_s: f64,
}

/// What came of a day. Nothing is lost: orders are settled in the end, and then paid or lapsed.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct DayOutcome {
    pub buyers: f64,
    pub most_buyers_a_second: f64,
    pub orders: f64,
    pub settled: f64,
    pub paid: f64,
    pub lapsed: f64,
    pub usage: Vec<DayUsage>,
    /// The most orders that waited to be settled at the end of a second; and for how long at most some did without a pause.
    pub unsettled_most: f64,
    pub unsettled_for_s: f64,
    /// The most payments that waited for their channel, and how long it took to take those.
    pub payments_waiting_most: f64,
    pub payments_wait_s: f64,
}

impl DayOutcome {
    pub fn usage_of(&self, part: Part) -> Option<&DayUsage> {
        self.usage.iter().find(|usage| usage.part == part)
    }

    /// The part in which work waited for the longest; where none did, the busiest.
    pub fn bends_first(&self) -> Option<&DayUsage> {
        self.usage.iter().max_by(|a, b| a.longest_wait_s.total_cmp(&b.longest_wait_s).then(a.peak.total_cmp(&b.peak)))
    }
}
