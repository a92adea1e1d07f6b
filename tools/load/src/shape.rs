//! How arrivals are spread over time.

use rand::RngExt;
use rand::rngs::StdRng;
use serde::Serialize;

/// In a rush, the share of the crowd that waits for the start with the page open; the rest comes later.
pub(crate) const WAITING_SHARE: f64 = 0.6;
/// Reaction times of waiting buyers: median and sigma of a log-normal distribution.
const CLICK_MEDIAN_S: f64 = 0.35;
const CLICK_SIGMA: f64 = 0.6;
/// In a short rush, the median is at most this part of its length.
const MAX_MEDIAN_PART: f64 = 1.0 / 8.0;
/// Mean of the tail's exponential distribution, as a part of the rush. The tail is cut off at the end.
const TAIL_MEAN_PART: f64 = 1.0 / 4.0;

/// The shape of a crowd.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Shape {
    /// One steady rate from beginning to end
    #[default]
    Even,
    /// Most buyers click when the sale starts, the others come in a long tail
    Rush,
}

impl Shape {
    /// One arrival, in seconds from the start.
    pub fn moment(self, rng: &mut StdRng, seconds: f64) -> f64 {
        match self {
            Self::Even => rng.random_range(0.0..seconds),
            Self::Rush => rush_moment(rng, seconds).clamp(0.0, seconds),
        }
    }
}

fn rush_moment(rng: &mut StdRng, seconds: f64) -> f64 {
    if rng.random_bool(WAITING_SHARE) {
        let median_s = CLICK_MEDIAN_S.min(seconds * MAX_MEDIAN_PART);
        return median_s * (CLICK_SIGMA * normal(rng)).exp();
    }
    // The inverse of the distribution function, restricted to the part before the end.
    let before_end = -(-1.0 / TAIL_MEAN_PART).exp_m1();
    -seconds * TAIL_MEAN_PART * (-before_end * rng.random::<f64>()).ln_1p()
}

/// The standard normal distribution, after Box and Muller.
fn normal(rng: &mut StdRng) -> f64 {
    let (radius, angle) = (1.0 - rng.random::<f64>(), rng.random::<f64>());
    (-2.0 * radius.ln()).sqrt() * (std::f64::consts::TAU * angle).cos()
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    #[test]
    fn a_rush_has_a_spike_and_a_tail() {
        let mut rng = StdRng::seed_from_u64(1);
        let moments: Vec<f64> = (0..20_000).map(|_| Shape::Rush.moment(&mut rng, 20.0)).collect();
        let share = |from_s: f64, to_s: f64| {
            moments.iter().filter(|moment_s| (from_s..to_s).contains(*moment_s)).count() as f64 / moments.len() as f64
        };
        assert!((0.60..0.70).contains(&share(0.0, 1.0)), "{} in the first second", share(0.0, 1.0));
        assert!(share(0.0, 0.1) < 0.03, "reactions take time");
        // The tail falls steadily, and does not end suddenly.
        assert!(share(2.0, 5.0) > share(5.0, 8.0) && share(5.0, 8.0) > share(8.0, 11.0) && share(15.0, 20.0) > 0.005);
        assert!(moments.iter().all(|moment_s| (0.0..=20.0).contains(moment_s)));
        assert!((0..5_000).all(|_| Shape::Rush.moment(&mut rng, 1.0) <= 1.0), "a short rush stays within its time");
    }
}
