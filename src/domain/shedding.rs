//! Which share of purchases is shed, so that the others do not wait longer than a target: the controller PIE of RFC 8033
//! ("Proportional Integral controller Enhanced"), with gains for a tick of 20 ms.

use std::time::Duration;

/// How often the share is adjusted.
pub const TICK: Duration = Duration::from_millis(20);
/// What the share gains in a tick for each target's length that the wait is above the target.
const ABOVE: f64 = 0.02;
/// What it gains for each target's length by which the wait has grown since the last tick.
const GROWN: f64 = 0.2;
/// What is let through grows by this factor in a tick in which the wait was short.
const RECOVERY: f64 = 1.1;
/// Some purchases always get through: they show how long the wait is.
const SHARE_MAX: f64 = 0.98;
/// A smaller share is none.
const SHARE_MIN: f64 = 0.01;
/// The wait may be above the target for so long, and up to so many targets, before the first purchase is shed: a crowd that
/// has just arrived, and that can be served, is served.
const BURST: Duration = Duration::from_millis(300);
const BURST_TARGETS: f64 = 5.0;

/// The share that is shed, from 0 to 1.
#[derive(Debug)]
pub struct ShedShare {
    target: Duration,
    share: f64,
    before: Duration,
    above_for: Duration,
    /// The part of a purchase that is to be shed and is not yet.
    due: f64,
}

impl ShedShare {
    pub fn new(target: Duration) -> Self {
        Self { target, share: 0.0, before: Duration::ZERO, above_for: Duration::ZERO, due: 0.0 }
    }

    /// Adjusts the share to how long purchases wait now. To be called every `TICK`.
    pub fn adjust(&mut self, wait: Duration) {
        let in_targets = |wait: Duration| wait.as_secs_f64() / self.target.as_secs_f64();
        let (now, before) = (in_targets(wait), in_targets(self.before));
        self.before = wait;
        self.above_for = if now > 1.0 { self.above_for + TICK } else { Duration::ZERO };
        if self.share == 0.0 && self.above_for <= BURST && now <= BURST_TARGETS {
            return;
        }
        // What is let through is what changes the wait. The more is shed, the smaller are the steps.
        self.share += (1.0 - self.share) * (ABOVE * (now - 1.0) + GROWN * (now - before));
        if now < 0.5 && before < 0.5 {
            self.share = 1.0 - (1.0 - self.share) * RECOVERY;
        }
        self.share = self.share.clamp(0.0, SHARE_MAX);
    }

    pub fn is_shedding(&self) -> bool {
        self.share >= SHARE_MIN
    }

    /// Whether the next purchase is shed: evenly, so that of many the share is shed.
    pub fn sheds_next(&mut self) -> bool {
        self.due += self.share;
        let shed = self.due >= 1.0;
        self.due -= f64::from(u8::from(shed));
        shed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TARGET: Duration = Duration::from_millis(50);

    /// Plays arrivals at `load` times what can be served, for `seconds`; returns the waits of each tick, and the share that
    /// was shed in the second half.
    fn play(load: f64, seconds: u64) -> (Vec<Duration>, f64) {
        let mut shares = ShedShare::new(TARGET);
        let ticks = seconds * 1000 / TICK.as_millis() as u64;
        let per_tick = 200.0;
        let (mut queue, mut waits, mut asked, mut shed) = (0.0_f64, Vec::new(), 0_u32, 0_u32);
        for tick in 0..ticks {
            for _ in 0..(load * per_tick) as u32 {
                let sheds = shares.sheds_next();
                queue += f64::from(u8::from(!sheds));
                if tick >= ticks / 2 {
                    asked += 1;
                    shed += u32::from(sheds);
                }
            }
            queue = (queue - per_tick).max(0.0);
            let wait = TICK.mul_f64(queue / per_tick);
            shares.adjust(wait);
            waits.push(wait);
        }
        (waits, f64::from(shed) / f64::from(asked))
    }

    #[test]
    fn what_can_be_served_is_served() {
        for load in [0.1, 0.5, 0.95] {
            assert_eq!(play(load, 20).1, 0.0, "load {load}");
        }
    }

    #[test]
    fn what_is_too_much_is_shed_and_the_wait_stays_near_its_target() {
        for load in [1.2, 2.0, 3.0, 5.0, 20.0] {
            let (waits, shed) = play(load, 20);
            let wanted = 1.0 - 1.0 / load;
            assert!((shed - wanted).abs() < 0.05, "load {load}: {shed} is shed, and {wanted} is too much");
            let late = &waits[waits.len() / 2..];
            let mean = late.iter().sum::<Duration>() / u32::try_from(late.len()).unwrap_or(1);
            let most = late.iter().max().copied().unwrap_or_default();
            assert!(mean < TARGET * 2 && most < TARGET * 3, "load {load}: mean {mean:?}, most {most:?}");
            assert!(mean > TARGET / 4, "load {load}: mean {mean:?}: more is shed than need be");
        }
    }

    #[test]
    fn a_short_crowd_is_served_whole() {
        let mut shares = ShedShare::new(TARGET);
        for _ in 0..BURST.as_millis() / TICK.as_millis() {
            shares.adjust(TARGET * 3);
            assert!(!shares.is_shedding());
        }
        shares.adjust(Duration::ZERO);
        assert!(!shares.is_shedding());
    }

    #[test]
    fn a_wait_that_stays_a_little_above_the_target_is_shed() {
        let mut shares = ShedShare::new(TARGET);
        let ticks = (0..500).take_while(|_| {
            shares.adjust(TARGET.mul_f64(1.4));
            !shares.is_shedding()
        });
        assert!(ticks.count() < 100, "two seconds");
    }

    #[test]
    fn shedding_ends_soon_after_the_crowd() {
        let mut shares = ShedShare::new(TARGET);
        for _ in 0..200 {
            shares.adjust(TARGET * 4);
        }
        assert!(shares.is_shedding());
        let ticks = (0..).take_while(|_| {
            shares.adjust(Duration::ZERO);
            shares.is_shedding()
        });
        assert!(ticks.count() < 100, "two seconds");
    }
}
