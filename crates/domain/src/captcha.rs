//! Challenges before a purchase, and how hard they are.

use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use strum::{Display, EnumString, IntoStaticStr};
use utoipa::ToSchema;

use super::ids::Invalid;

/// The challenge of a sale.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[derive(Display, EnumString, IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
pub enum CaptchaKind {
    #[default]
    None,
    Image,
    Slider,
    Work,
}

impl CaptchaKind {
    pub fn parse(text: &str) -> Result<Self, Invalid> {
        text.parse().map_err(|_| Invalid::new("captcha", "must be none, image, slider or work"))
    }

    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// The challenge for a buyer with this wish, if any. Every sale with a challenge accepts a proof of work instead, because some buyers
    /// cannot see pictures.
    pub fn offer(self, wish: Option<ChallengeKind>) -> Option<ChallengeKind> {
        let own = match self {
            Self::None => return None,
            Self::Image => ChallengeKind::Image,
            Self::Slider => ChallengeKind::Slider,
            Self::Work => ChallengeKind::Work,
        };
        match wish {
            None => Some(own),
            Some(wish) => (wish == own || wish == ChallengeKind::Work).then_some(wish),
        }
    }
}

/// A kind of challenge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, IntoStaticStr, ToSchema)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase", const_into_str)]
pub enum ChallengeKind {
    /// Letters to be read.
    Image,
    /// A piece to be dragged into its gap.
    Slider,
    /// A number to be searched for.
    Work,
}

impl ChallengeKind {
    pub const fn as_str(self) -> &'static str {
        self.into_str()
    }
}

/// A pass is given for a right answer, and is good for one purchase, within its time (protocol, rule 18).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pass {
    pub expires_at_ms: i64,
    /// How many passes the buyer had spent in the sale before. Spending a pass ends all others of the same number.
    pub spent_before: u32,
}

/// Whether a purchase needs a pass, and the genuine pass that was shown. The box keeps other purchases small.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PassCheck {
    NotAsked,
    Asked(Option<Box<Pass>>),
}

impl PassCheck {
    pub fn is_good_at(&self, now_ms: i64) -> bool {
        match self {
            Self::NotAsked => true,
            Self::Asked(pass) => pass.as_ref().is_some_and(|pass| now_ms < pass.expires_at_ms),
        }
    }
}

/// Up to this many proofs of work a second have the least bits. Each doubling adds a bit.
const EASY_PER_SECOND: f64 = 50.0;

/// The zero bits of a proof of work. Each bit doubles the work.
pub fn work_bits(bounds: RangeInclusive<u32>, asked_per_second: f64, purchases_wait: bool) -> u32 {
    // A cast of a negative number is 0.
    let for_crowd = (asked_per_second / EASY_PER_SECOND).log2().floor() as u32;
    let for_wait = u32::from(purchases_wait); // one bit more
    bounds.start().saturating_add(for_crowd).saturating_add(for_wait).min(*bounds.end())
}

/// The rate of an event, as a count that decays.
#[derive(Debug)]
pub struct Rate {
    last: Instant,
    count: f64,
}

impl Rate {
    /// After this time something counts 1/e as much.
    const FADES: Duration = Duration::from_secs(3);

    pub fn new(now: Instant) -> Self {
        Self { last: now, count: 0.0 }
    }

    /// Counts one more, and returns the rate per second.
    pub fn count(&mut self, now: Instant) -> f64 {
        let since = now.saturating_duration_since(self.last);
        self.last = self.last.max(now);
        self.count = self.count * (-since.as_secs_f64() / Self::FADES.as_secs_f64()).exp() + 1.0;
        self.count / Self::FADES.as_secs_f64()
    }
}

/// Redis's reply to the spending of a challenge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Spending {
    /// This answer has spent the challenge; a pass for it is for the buyer's next purchase.
    Spent {
        now_ms: i64,
        passes_spent: u32,
    },
    SpentBefore,
    Expired,
    /// This Redis does not know the sale, or the sale is being refilled. The challenge is not spent.
    NotServing,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_grows_with_the_crowd_up_to_its_most() {
        for (asked_per_second, difficulty) in
            [(0.0, 16), (1.0, 16), (99.0, 16), (100.0, 17), (250.0, 18), (800.0, 20), (1e6, 20), (1e300, 20)]
        {
            assert_eq!(work_bits(16..=20, asked_per_second, false), difficulty, "{asked_per_second}");
        }
        assert_eq!((work_bits(16..=20, 1.0, true), work_bits(16..=20, 1e6, true)), (17, 20));
    }

    #[test]
    fn a_rate_follows_what_happens_and_fades() {
        let start = Instant::now();
        let mut rate = Rate::new(start);
        let per_second = (1..=1_000).map(|n| rate.count(start + Duration::from_millis(10 * n))).last();
        assert!(per_second.is_some_and(|rate| (90.0..110.0).contains(&rate)), "{per_second:?}");
        assert!(rate.count(start + Duration::from_secs(40)) < 1.0);
    }
}
