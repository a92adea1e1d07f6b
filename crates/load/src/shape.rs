//! How a crowd spreads over time.

use rand::RngExt;
use rand::rngs::StdRng;
use serde::Serialize;

/// In a rush, the share of the crowd that waits for the start with the page open; the rest hears of it later.
pub const WAITING_SHARE: f64 = 0.6;
/// When half of those who wait have clicked, and how widely the others are spread about it: the median and the sigma of
/// a log-normal distribution, as times of reaction are.
const CLICK_MEDIAN_S: f64 = 0.35;
const CLICK_SIGMA: f64 = 0.6;
/// A short rush is quicker to click: no more than this part of its length.
const MAX_MEDIAN_PART: f64 = 1.0 / 8.0;
/// The mean of the tail's exponential distribution, as a part of the rush; it is cut off at the end.
const TAIL_MEAN_PART: f64 = 1.0 / 4.0;

/// The shape of a crowd.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Shape {
    /// One steady rate from beginning to end
    #[default]
    Even,
    /// A waiting crowd that clicks at the start, and a long tail of those who hear of it
    Rush,
}

/// One arrival of a rush, in seconds from the start.
pub fn rush_moment(dice: &mut StdRng, seconds: f64) -> f64 {
    let moment_s = if dice.random_bool(WAITING_SHARE) {
        let median_s = CLICK_MEDIAN_S.min(seconds * MAX_MEDIAN_PART);
        median_s * (CLICK_SIGMA * normal(dice)).exp()
    } else {
        // The inverse of the distribution function, of which only the part before the end is drawn from.
        let before_end = -(-1.0 / TAIL_MEAN_PART).exp_m1();
        -seconds * TAIL_MEAN_PART * (-before_end * dice.random::<f64>()).ln_1p()
    };
    moment_s.clamp(0.0, seconds)
}

/// The time from one arrival of a steady stream to the next: people do not agree on a rhythm.
pub fn even_gap(dice: &mut StdRng, rate: f64) -> f64 {
    -(1.0 - dice.random::<f64>()).ln() / rate
}

/// The standard normal distribution, after Box and Muller.
fn normal(dice: &mut StdRng) -> f64 {
    let (radius, angle) = (1.0 - dice.random::<f64>(), dice.random::<f64>());
    (-2.0 * radius.ln()).sqrt() * (std::f64::consts::TAU * angle).cos()
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    #[test]
    fn a_rush_has_a_spike_and_a_tail() {
        let mut dice = StdRng::seed_from_u64(1);
        let moments: Vec<f64> = (0..20_000).map(|_| rush_moment(&mut dice, 20.0)).collect();
        let share = |from_s: f64, to_s: f64| {
            moments.iter().filter(|moment_s| (from_s..to_s).contains(*moment_s)).count() as f64 / moments.len() as f64
        };
        assert!((0.60..0.70).contains(&share(0.0, 1.0)), "{} in the first second", share(0.0, 1.0));
        assert!(share(0.0, 0.1) < 0.03, "nobody clicks at once");
        // The tail never ends suddenly, and never grows again.
        assert!(share(2.0, 5.0) > share(5.0, 8.0) && share(5.0, 8.0) > share(8.0, 11.0) && share(15.0, 20.0) > 0.005);
        assert!(moments.iter().all(|moment_s| (0.0..=20.0).contains(moment_s)));
    }

    #[test]
    fn a_short_rush_stays_within_its_time() {
        let mut dice = StdRng::seed_from_u64(1);
        assert!((0..5_000).all(|_| rush_moment(&mut dice, 1.0) <= 1.0));
    }
}
