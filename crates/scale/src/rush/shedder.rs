//! Which purchases a thread of `serve` sheds: the rule of the service's own `domain::shedding`, for a thread that is never held up.
//! A test compares the two (tests/shedding.rs), so that this program needs nothing of the service.

/// Purchases shall not wait for longer than this: `purchase.wait_target_ms`.
pub const WAIT_TARGET_S: f64 = 0.1;
/// How often the limit is adjusted.
pub const TICK_S: f64 = 0.02;
/// So long answers count: after this time 1/e as much.
const ANSWERS_COUNT_S: f64 = 0.3;
/// From so long a measurement on, it is known how many are answered a second.
const MEASURED_S: f64 = 0.15;
const ALWAYS: u32 = 8;
const PATIENCE_S: f64 = 0.15;
const TARGETS_MAX: f64 = 4.0;
const LOOK_MAX_S: f64 = 0.04;
const CALM_S: f64 = 0.3;

/// The purchases under way on a thread, and how many of them are too many.
#[derive(Debug, Clone)]
pub struct Shedder {
    under_way: u32,
    answered_since: u32,
    /// Purchases answered, and in how many seconds, both fading. They count from the first answer on.
    answered: f64,
    measured_s: f64,
    /// For how many seconds purchases have been under way before the first answer.
    silent_s: f64,
    excess_s: f64,
    calm_s: f64,
    limit: u32,
    is_shedding: bool,
}

impl Default for Shedder {
    fn default() -> Self {
        Self {
            under_way: 0,
            answered_since: 0,
            answered: 0.0,
            measured_s: 0.0,
            silent_s: 0.0,
            excess_s: 0.0,
            calm_s: 0.0,
            limit: u32::MAX,
            is_shedding: false,
        }
    }
}

impl Shedder {
    /// Whether another purchase is too many.
    pub fn is_full(&self) -> bool {
        self.is_shedding && self.under_way >= self.limit
    }

    pub fn begin(&mut self) {
        self.under_way += 1;
    }

    pub fn end(&mut self) {
        self.under_way = self.under_way.saturating_sub(1);
        self.answered_since += 1;
    }

    /// Adjusts the limit, so many seconds after the last time.
    pub fn tick(&mut self, since_s: f64) {
        if self.under_way < ALWAYS && !self.is_shedding {
            (self.answered, self.measured_s, self.silent_s) = (0.0, 0.0, 0.0);
        }
        let answered = std::mem::take(&mut self.answered_since);
        let mut wait_s = 0.0;
        self.limit = ALWAYS;
        if answered == 0 && self.measured_s == 0.0 {
            self.silent_s += since_s;
            wait_s = self.silent_s;
        } else {
            let faded = (-since_s / ANSWERS_COUNT_S).exp();
            self.answered = self.answered * faded + f64::from(answered);
            self.measured_s = self.measured_s * faded + since_s;
            let per_second = self.answered.max(1.0) / self.measured_s;
            if self.measured_s >= MEASURED_S {
                wait_s = f64::from(self.under_way) / per_second;
            }
            self.limit = ((per_second * WAIT_TARGET_S) as u32).max(ALWAYS);
        }
        let targets = wait_s / WAIT_TARGET_S;
        if self.is_shedding {
            self.calm_s = if targets < 0.5 { self.calm_s + since_s } else { 0.0 };
            self.is_shedding = self.calm_s < CALM_S;
        } else {
            let excess = (targets.min(TARGETS_MAX) - 1.0) * since_s.min(LOOK_MAX_S);
            self.excess_s = if targets > 1.0 { self.excess_s + excess } else { 0.0 };
            if self.excess_s > PATIENCE_S {
                (self.is_shedding, self.excess_s, self.calm_s) = (true, 0.0, 0.0);
            }
        }
    }
}
