//! Trails as people make them, for tests and for development. Releases do not contain this code.

use rand::{Rng, RngExt};

use super::Sample;

/// A drag by pointer to `x`, 600 to 1100 ms long: slow at both ends, with small moves up and down. A hand's speed changes as smoothly
/// as possible (T. Flash and N. Hogan, "The coordination of arm movements", 1985).
pub fn by_pointer(x: u16, rng: &mut impl Rng) -> Vec<Sample> {
    const SAMPLES: u32 = 45;
    let (duration_ms, sway) = (rng.random_range(600.0..1100.0), rng.random_range(1.0..4.0));
    (0..=SAMPLES)
        .map(|n| {
            let part = f64::from(n) / f64::from(SAMPLES);
            let way = part.powi(3) * (10.0 - 15.0 * part + 6.0 * part.powi(2));
            let late_ms = if n == 0 { 0.0 } else { rng.random_range(0.0..3.0) };
            [tenth(part * duration_ms + late_ms), tenth(way * f64::from(x)), tenth((part * 5.0).sin() * sway)]
        })
        .collect()
}

/// Presses of a key that moves the piece by four pixels, and of another key for the rest.
pub fn by_keyboard(x: u16, rng: &mut impl Rng) -> Vec<Sample> {
    let (mut ms, mut at) = (0.0, 0.0);
    let mut trail = vec![[0.0, 0.0, 0.0]];
    while at < f64::from(x) {
        at += (f64::from(x) - at).min(4.0);
        ms += rng.random_range(50.0..250.0);
        trail.push([tenth(ms), at, 0.0]);
    }
    trail
}

/// Rounded to a tenth, as a page would send it.
fn tenth(number: f64) -> f64 {
    (number * 10.0).round() / 10.0
}
