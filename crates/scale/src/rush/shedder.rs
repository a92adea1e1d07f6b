//! Which purchases a thread of `serve` sheds, for a thread that is never held up.

use std::time::Duration;

use super::shedding::{ShedLimit, TICK};

/// Purchases shall not wait for longer than this: `purchase.wait_target_ms`.
const WAIT_TARGET: Duration = Duration::from_millis(100);

/// The purchases under way on a thread, and how many of them are too many.
#[derive(Debug)]
pub struct Shedder {
    under_way: u32,
    answered_since: u32,
    limit: ShedLimit,
}

impl Default for Shedder {
    fn default() -> Self {
        Self { under_way: 0, answered_since: 0, limit: ShedLimit::new(WAIT_TARGET) }
    }
}

impl Shedder {
    /// Whether another purchase is too many.
    pub fn is_full(&self) -> bool {
        self.limit.is_full(self.under_way)
    }

    pub fn begin(&mut self) {
        self.under_way += 1;
    }

    pub fn end(&mut self) {
        self.under_way = self.under_way.saturating_sub(1);
        self.answered_since += 1;
    }

    /// Adjusts the limit. To be called every `TICK`.
    pub fn tick(&mut self) {
        self.limit.adjust(self.under_way, std::mem::take(&mut self.answered_since), Duration::ZERO, TICK);
    }
}
