//! Switches make the bank misbehave. They are not written to the file, so a restart resets them.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::event::Verdict;
use super::transfer::TransferRequest;

/// The longest delay: a day, so that a test can decide each payment by hand before the bank does.
const DELAY_MAX_MS: u64 = 86_400_000;

/// docs/payments.md describes each switch.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Switches {
    pub slow_ms: u64,
    pub fail_permille: u32,
    pub lost_answer_permille: u32,
    pub decline_permille: u32,
    pub decline_reason: String,
    pub repeat_callbacks: u32,
    pub callback_delay_ms: u64,
    pub shuffle_callbacks: bool,
    pub drop_callbacks_permille: u32,
    pub wrong_amount_permille: u32,
    pub confirm_ms: u64,
    pub pay_rate: u32,
    pub refund_rate: u32,
    pub seed: u64,
}

impl Switches {
    pub(crate) fn new(pay_rate: u32, refund_rate: u32, confirm_ms: u64) -> Self {
        Self { confirm_ms, pay_rate, refund_rate, ..Self::default() }
    }

    /// These switches with the given ones changed.
    pub(crate) fn with(&self, given: &Map<String, Value>) -> Result<Self, String> {
        let mut switches = serde_json::to_value(self).map_err(|error| error.to_string())?;
        switches.as_object_mut().into_iter().for_each(|fields| fields.extend(given.clone()));
        let switches: Self = serde_json::from_value(switches).map_err(|error| error.to_string())?;
        switches.checked()
    }

    fn checked(self) -> Result<Self, String> {
        let shares = [
            self.fail_permille,
            self.lost_answer_permille,
            self.decline_permille,
            self.drop_callbacks_permille,
            self.wrong_amount_permille,
        ];
        let delays = [self.slow_ms, self.callback_delay_ms, self.confirm_ms];
        if shares.iter().any(|share| *share > 1000) {
            return Err("a switch that ends in _permille must be 0 to 1000".to_owned());
        }
        if delays.iter().any(|delay| *delay > DELAY_MAX_MS) {
            return Err(format!("a switch that ends in _ms must be 0 to {DELAY_MAX_MS}"));
        }
        // Each repetition takes memory until its callback ends.
        if self.repeat_callbacks > 100 {
            return Err("repeat_callbacks must be 0 to 100".to_owned());
        }
        if [self.pay_rate, self.refund_rate].iter().any(|rate| !(1..=100_000).contains(rate)) {
            return Err("pay_rate and refund_rate must be 1 to 100000".to_owned());
        }
        Ok(self)
    }
}

/// The only source of random numbers. The same seed and the same calls in the same order have the same results.
#[derive(Debug)]
pub(crate) struct Dice(StdRng);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(StdRng::seed_from_u64(seed))
    }

    /// True for `permille` of 1000 calls on average.
    pub(crate) fn chance(&mut self, permille: u32) -> bool {
        self.0.random_range(0..1000) < permille
    }

    /// A random number of at least 0 and less than 1.
    pub(crate) fn unit(&mut self) -> f64 {
        self.0.random()
    }

    /// Whether a transfer succeeds that is not decided by hand.
    pub(crate) fn outcome(&mut self, switches: &Switches) -> bool {
        !self.chance(switches.decline_permille)
    }

    /// A decision, with the amount and the times of its callbacks.
    pub(crate) fn verdict(
        &mut self,
        switches: &Switches,
        request: &TransferRequest,
        succeeded: bool,
        now_us: i64,
    ) -> Verdict {
        let times = if self.chance(switches.drop_callbacks_permille) { 0 } else { 1 + switches.repeat_callbacks };
        let due_us = (0..times).map(|_| now_us + self.delay_us(switches)).collect();
        let wrong = self.chance(switches.wrong_amount_permille);
        let told_cents = if wrong { request.amount_cents ^ 1 } else { request.amount_cents };
        let reason = (!succeeded && !switches.decline_reason.is_empty()).then(|| switches.decline_reason.clone());
        Verdict { succeeded, told_cents, due_us, reason }
    }

    fn delay_us(&mut self, switches: &Switches) -> i64 {
        let max_us = switches.callback_delay_ms.cast_signed() * 1000;
        if switches.shuffle_callbacks { self.0.random_range(0..=max_us) } else { max_us }
    }
}
