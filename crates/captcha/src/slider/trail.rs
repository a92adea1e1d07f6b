//! Judges where the piece was dropped, and how it moved. People start slowly, speed up, and slow down before the gap; by keyboard they
//! press keys in an irregular rhythm. A program that moves the piece straight at one speed does neither. This does not detect programs
//! that imitate people: the limits of their account slow them down.

/// A moment of a drag: milliseconds since its start, and the piece's place then, x and y in pixels of the picture.
pub type Sample = [f64; 3];

/// The greatest distance from the gap, in pixels. People hit within three; a blind guess hits once in twenty times.
const TOLERANCE: f64 = 4.0;
/// The most samples of a trail: eight seconds of pointer moves.
pub const POINTS_MAX: usize = 500;

const POINTS_MIN: usize = 8;
/// The piece begins at the left edge. How far from it a trail may begin, and how far from the trail's end the piece may be dropped.
const BEGIN_MAX: f64 = 12.0;
const END_OFF_MAX: f64 = 2.0;
/// The shortest and the longest time that a person takes, in ms.
const DURATION_MS: std::ops::RangeInclusive<f64> = 250.0..=120_000.0;
/// The longest step, as a part of the way. Even if the page's thread pauses for a moment, a person's trail has shorter steps.
const STEP_PART_MAX: f64 = 0.6;
/// The least variation of a pointer's speed, and of the pauses between keys: standard deviation divided by mean. A hand's speed varies
/// by 0.6 or more, a program's with equal pauses by 0.1.
const SPEED_VARIES: f64 = 0.35;
const RHYTHM_VARIES: f64 = 0.2;
/// Keys move a piece by a few distances: one step, a large one, and back.
const KEY_STEPS: usize = 3;

/// Judges an answer: the piece was dropped at `x`, and the gap is at `gap_x`.
pub fn judge(gap_x: u16, x: f64, trail: &[Sample]) -> bool {
    let is_in_gap = (x - f64::from(gap_x)).abs() <= TOLERANCE; // not if it is NaN
    if !is_in_gap || !duration_ms(x, trail).is_some_and(|ms| DURATION_MS.contains(&ms)) {
        return false;
    }
    let steps = steps(trail);
    // Most of the way in one step is a jump.
    if steps.iter().any(|step| step.way > STEP_PART_MAX * x) {
        return false;
    }
    // Programs have one speed, or press keys in a steady rhythm.
    if is_by_keyboard(trail, &steps) {
        variation(steps.iter().map(|step| step.ms)) >= RHYTHM_VARIES
    } else {
        variation(steps.iter().map(|step| step.way / step.ms)) >= SPEED_VARIES
    }
}

/// The duration of the drag; `None` if this is not the trail of a piece dropped at `x`.
fn duration_ms(x: f64, trail: &[Sample]) -> Option<f64> {
    if !(POINTS_MIN..=POINTS_MAX).contains(&trail.len()) || !trail.iter().flatten().all(|number| number.is_finite()) {
        return None;
    }
    let ([began_ms, from, _], [ended_ms, to, _]) = (trail.first()?, trail.last()?);
    let in_order = trail.is_sorted_by_key(|[ms, ..]| *ms);
    let fits = in_order && from.abs() <= BEGIN_MAX && (to - x).abs() <= END_OFF_MAX;
    fits.then_some(ended_ms - began_ms)
}

/// A move.
struct Step {
    ms: f64,
    /// In pixels, to the right or to the left.
    way: f64,
}

/// The steps of a trail that take time and change the place: a browser may report several places at one time, and a pointer at rest.
fn steps(trail: &[Sample]) -> Vec<Step> {
    let mut steps = Vec::with_capacity(trail.len());
    let mut last = trail.first().copied().unwrap_or_default();
    for sample in trail {
        let ([ms, x, _], [last_ms, last_x, _]) = (*sample, last);
        let step = Step { ms: ms - last_ms, way: (x - last_x).abs() };
        if step.ms > 0.0 && step.way > 0.0 {
            steps.push(step);
            last = *sample;
        }
    }
    steps
}

/// Whether the piece moved along one row in a few distances, as keys move it.
fn is_by_keyboard(trail: &[Sample], steps: &[Step]) -> bool {
    let row = trail.first().map_or(0.0, |[.., y]| *y);
    let mut distances: Vec<f64> = steps.iter().map(|step| step.way).collect();
    distances.sort_by(f64::total_cmp);
    distances.dedup_by(|a, b| (*a - *b).abs() < 0.5);
    trail.iter().all(|[.., y]| (y - row).abs() < 0.5) && distances.len() <= KEY_STEPS
}

/// Standard deviation divided by mean; 0 if there are too few numbers.
fn variation(numbers: impl ExactSizeIterator<Item = f64> + Clone) -> f64 {
    let count = numbers.len() as f64;
    let mean = numbers.clone().sum::<f64>() / count;
    if numbers.len() < POINTS_MIN - 1 || mean <= 0.0 {
        return 0.0;
    }
    let variance = numbers.map(|number| (number - mean).powi(2)).sum::<f64>() / count;
    variance.sqrt() / mean
}

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};

    use super::super::by_hand::{by_keyboard, by_pointer};
    use super::*;

    /// A straight line at one speed, as drawn by a program with almost equal pauses.
    fn straight(rng: &mut StdRng, to: f64, y: f64) -> Vec<Sample> {
        let step = |n: u32| {
            let part = f64::from(n) / 40.0;
            [part * 800.0 + rng.random_range(-1.5..1.5), to * part, y + rng.random_range(-1.0..1.0) * y]
        };
        let mut trail: Vec<Sample> = (0..=40).map(step).collect();
        trail[0][0] = 0.0;
        trail
    }

    #[test]
    fn a_hand_and_a_keyboard_pass_wherever_the_gap_is() {
        let mut rng = StdRng::seed_from_u64(7);
        for gap_x in 64..250 {
            assert!(judge(gap_x, gap_x.into(), &by_pointer(gap_x, &mut rng)), "{gap_x}");
            assert!(judge(gap_x, gap_x.into(), &by_keyboard(gap_x, &mut rng)), "{gap_x}");
        }
    }

    #[test]
    fn a_straight_line_at_one_speed_never_passes() {
        let mut rng = StdRng::seed_from_u64(7);
        for gap_x in 64..250 {
            for y in [0.0, 3.0] {
                let trail = straight(&mut rng, gap_x.into(), y);
                assert!(!judge(gap_x, gap_x.into(), &trail), "{gap_x}");
            }
        }
    }

    #[test]
    fn keys_in_a_steady_rhythm_do_not_pass() {
        let trail: Vec<Sample> = (0..=30_u32).map(|n| [f64::from(n) * 50.0, f64::from(n) * 4.0, 0.0]).collect();
        assert!(!judge(120, 120.0, &trail));
        // A key that is held down repeats evenly. But its first pause is long, and the last steps are single ones.
        let mut held = trail;
        held[1..].iter_mut().for_each(|sample| sample[0] += 450.0);
        held[29][0] += 200.0;
        held[30][0] += 500.0;
        assert!(judge(120, 120.0, &held));
    }

    #[test]
    fn the_piece_must_lie_in_its_gap_at_the_end_of_its_trail() {
        let mut rng = StdRng::seed_from_u64(7);
        let trail = by_pointer(100, &mut rng);
        for (gap_x, x, is_right) in [
            (100, 104.0, false), // its trail ends elsewhere
            (100, 101.5, true),
            (104, 100.0, true),
            (105, 100.0, false),
            (96, 100.0, true),
            (100, f64::NAN, false),
            (100, f64::INFINITY, false),
        ] {
            assert_eq!(judge(gap_x, x, &trail), is_right, "{gap_x}, {x}");
        }
    }

    #[test]
    fn what_is_no_trail_or_is_too_fast_or_jumps_does_not_pass() {
        let trail = by_pointer(100, &mut StdRng::seed_from_u64(7));
        let passes = |change: &dyn Fn(&mut Vec<Sample>)| {
            let mut changed = trail.clone();
            change(&mut changed);
            judge(100, 100.0, &changed)
        };
        assert!(passes(&|_| ()));
        assert!(!passes(&Vec::clear));
        assert!(!passes(&|trail| drop(trail.drain(4..trail.len() - 3))));
        assert!(!passes(&|trail| trail.resize(501, [9e4, 100.0, 0.0])));
        assert!(!passes(&|trail| trail.swap(3, 9)));
        assert!(!passes(&|trail| trail[5][2] = f64::NAN));
        assert!(!passes(&|trail| trail[0][1] = 40.0));
        assert!(!passes(&|trail| trail.iter_mut().for_each(|sample| sample[0] /= 10.0)));
        assert!(!passes(&|trail| trail.iter_mut().for_each(|sample| sample[0] *= 1_000.0)));
        let jump = |trail: &mut Vec<Sample>| {
            let half = trail.len() / 2;
            trail[..half].iter_mut().for_each(|sample| sample[1] = 1.0);
            trail[half..].iter_mut().for_each(|sample| sample[1] = 100.0);
        };
        assert!(!passes(&jump));
    }
}
