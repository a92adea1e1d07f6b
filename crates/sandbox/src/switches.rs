//! How the bank misbehaves. Switches are not written to the file: a restart puts them back.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::event::Verdict;
use super::transfer::TransferRequest;

/// The longest delay: a day, so that a test can decide everything itself.
const DELAY_MAX_MS: u64 = 86_400_000;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Switches {
    /// Payments and refunds are answered so much later.
    pub slow_ms: u64,
    /// Answered with 500, and nothing was done. Shares are in thousandths.
    pub fail_permille: u32,
    /// Done, and answered with 504 after `slow_ms`.
    pub lost_answer_permille: u32,
    /// Decided as failed.
    pub decline_permille: u32,
    /// Each callback is sent so many times more.
    pub repeat_callbacks: u32,
    pub callback_delay_ms: u64,
    /// Each callback is delayed by a random part of `callback_delay_ms`, so that they come out of order.
    pub shuffle_callbacks: bool,
    pub drop_callbacks_permille: u32,
    /// The callback says another amount, by one cent.
    pub wrong_amount_permille: u32,
    pub confirm_ms: u64,
    pub pay_rate: u32,
    pub refund_rate: u32,
    /// Setting it restarts the random numbers.
    pub seed: u64,
}

impl Switches {
    pub fn new(pay_rate: u32, refund_rate: u32, confirm_ms: u64) -> Self {
        Self {
            slow_ms: 0,
            fail_permille: 0,
            lost_answer_permille: 0,
            decline_permille: 0,
            repeat_callbacks: 0,
            callback_delay_ms: 0,
            shuffle_callbacks: false,
            drop_callbacks_permille: 0,
            wrong_amount_permille: 0,
            confirm_ms,
            pay_rate,
            refund_rate,
            seed: 0,
        }
    }

    /// The switches with some of them set anew.
    pub fn with(&self, given: Map<String, Value>) -> Result<Self, String> {
        let unchanged = serde_json::to_value(self).ok().and_then(|value| match value {
            Value::Object(fields) => Some(fields),
            _ => None,
        });
        let mut fields = unchanged.unwrap_or_default();
        fields.extend(given);
        let switches: Self = serde_json::from_value(Value::Object(fields)).map_err(|error| error.to_string())?;
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
            return Err("a share must be 0 to 1000 thousandths".to_owned());
        }
        if delays.iter().any(|delay| *delay > DELAY_MAX_MS) {
            return Err(format!("a delay must be 0 to {DELAY_MAX_MS} ms"));
        }
        // Each of them is a line in memory until it is heard.
        if self.repeat_callbacks > 100 {
            return Err("repeat_callbacks must be 0 to 100".to_owned());
        }
        if [self.pay_rate, self.refund_rate].iter().any(|rate| !(1..=100_000).contains(rate)) {
            return Err("a rate must be 1 to 100000".to_owned());
        }
        Ok(self)
    }
}

/// The only source of randomness: the same seed and the same calls in the same order have the same results.
#[derive(Debug)]
pub struct Dice(StdRng);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Self(StdRng::seed_from_u64(seed))
    }

    pub fn chance(&mut self, permille: u32) -> bool {
        self.0.random_range(0..1000) < permille
    }

    /// From 0 to below 1.
    pub fn unit(&mut self) -> f64 {
        self.0.random()
    }

    /// The decision of a transfer that no operator decides.
    pub fn outcome(&mut self, switches: &Switches) -> bool {
        !self.chance(switches.decline_permille)
    }

    /// A decision, and what its callbacks will be.
    pub fn verdict(&mut self, switches: &Switches, asked: &TransferRequest, succeeded: bool, now_us: i64) -> Verdict {
        let times = if self.chance(switches.drop_callbacks_permille) { 0 } else { 1 + switches.repeat_callbacks };
        let due_us = (0..times).map(|_| now_us + self.delay_us(switches)).collect();
        let wrong = self.chance(switches.wrong_amount_permille);
        let told_cents = if wrong { asked.amount_cents ^ 1 } else { asked.amount_cents };
        Verdict { succeeded, told_cents, due_us }
    }

    fn delay_us(&mut self, switches: &Switches) -> i64 {
        let most_us = switches.callback_delay_ms.cast_signed() * 1000;
        if switches.shuffle_callbacks { self.0.random_range(0..=most_us) } else { most_us }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn with(given: Value) -> Result<Switches, String> {
        let Value::Object(given) = given else { panic!("an object") };
        Switches::new(200, 1, 500).with(given)
    }

    #[test]
    fn only_what_is_given_changes() {
        let expected = Switches { slow_ms: 7, shuffle_callbacks: true, ..Switches::new(200, 1, 500) };
        assert_eq!(with(json!({ "slow_ms": 7, "shuffle_callbacks": true })), Ok(expected));
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for bad in [
            json!({ "fail_permille": 1001 }),
            json!({ "slow_ms": 86_400_001 }),
            json!({ "slow_ms": -1 }),
            json!({ "slow_ms": null }),
            json!({ "pay_rate": 0 }),
            json!({ "repeat_callbacks": 101 }),
            json!({ "shuffle_callbacks": 1 }),
            json!({ "fast": true }),
        ] {
            assert!(with(bad.clone()).is_err(), "{bad}");
        }
    }

    #[test]
    fn shares_are_shares_and_the_same_seed_is_the_same_chance() {
        let throws = |seed, permille| {
            let mut dice = Dice::new(seed);
            (0..10_000).map(|_| dice.chance(permille)).collect::<Vec<_>>()
        };
        let fell = |throws: &[bool]| throws.iter().filter(|fell| **fell).count();
        assert_eq!((fell(&throws(1, 0)), fell(&throws(1, 1000))), (0, 10_000));
        assert!((2_000..3_000).contains(&fell(&throws(1, 250))));
        assert_eq!(throws(1, 250), throws(1, 250));
        assert_ne!(throws(1, 250), throws(2, 250));
    }
}
