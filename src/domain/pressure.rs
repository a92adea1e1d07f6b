//! How long purchases wait before they are worked on. While they wait noticeably, whatever is less urgent gives way.

use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// From this part of the wait at which purchases are shed, other work gives way.
const NOTICEABLE_PART: u32 = 50;
/// From this part of it, what can be asked for again a little later is refused.
const LONG_PART: u32 = 4;
/// A wait that is not measured again counts half after this time.
const HALF_LIFE: Duration = Duration::from_millis(50);
/// How long the longest wait is shown: at least once to whoever looks every five seconds.
const SHOWN_FOR: Duration = Duration::from_secs(5);
/// How long a wait counts that another process has reported.
const REPORT_VALID: Duration = Duration::from_millis(500);
/// Work that gives way rests for this many times as long as it has worked.
const REST_FACTOR: u32 = 19;
/// The shortest and the longest rest of a worker between two steps: the longest is what keeps it going.
const WORKER_REST: RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(1);
/// The longest rest between two reads.
const READ_REST_MAX: Duration = Duration::from_millis(250);
/// A worker that has had more to do for so long gives way no more until it has done all. Its lag is bounded by that.
const LAG_MAX: Duration = Duration::from_secs(5);

/// The wait of purchases, in this process and in others; shared by all threads.
#[derive(Debug)]
pub struct Pressure {
    started: Instant,
    /// From this wait on, other work gives way.
    noticeable: Duration,
    /// From this wait on, the least urgent requests are refused.
    long: Duration,
    here: Reading,
    longest: Reading,
    elsewhere: Reading,
}

/// The last wait that counts, in microseconds, and when it was measured, in microseconds after the start. The two are not
/// written together: a mixed pair is a wait that was true a moment ago.
#[derive(Debug, Default)]
struct Reading {
    wait_us: AtomicU64,
    at_us: AtomicU64,
}

impl Reading {
    fn set(&self, wait: Duration, at_us: u64) {
        self.wait_us.store(micros(wait), Ordering::Relaxed);
        self.at_us.store(at_us, Ordering::Relaxed);
    }

    /// The wait, and its age.
    fn get(&self, now_us: u64) -> (Duration, Duration) {
        let age_us = now_us.saturating_sub(self.at_us.load(Ordering::Relaxed));
        (Duration::from_micros(self.wait_us.load(Ordering::Relaxed)), Duration::from_micros(age_us))
    }
}

impl Pressure {
    /// `wait_target` is the wait at which purchases are shed.
    pub fn new(started: Instant, wait_target: Duration) -> Self {
        Self {
            started,
            noticeable: wait_target / NOTICEABLE_PART,
            long: wait_target / LONG_PART,
            here: Reading::default(),
            longest: Reading::default(),
            elsewhere: Reading::default(),
        }
    }

    /// Records how long purchases wait on one thread of this process. The longest wait counts.
    pub fn record(&self, wait: Duration, now: Instant) {
        if wait >= self.here(now) {
            self.here.set(wait, self.micros_at(now));
        }
        let (longest, age) = self.longest.get(self.micros_at(now));
        if wait >= longest || age > SHOWN_FOR {
            self.longest.set(wait, self.micros_at(now));
        }
    }

    /// Records what another process has reported.
    pub fn record_elsewhere(&self, wait: Duration, now: Instant) {
        self.elsewhere.set(wait, self.micros_at(now));
    }

    /// How long purchases wait in this process.
    pub fn here(&self, now: Instant) -> Duration {
        let (wait, age) = self.here.get(self.micros_at(now));
        wait.mul_f64(0.5_f64.powf(age.as_secs_f64() / HALF_LIFE.as_secs_f64()))
    }

    /// The longest that purchases have lately waited in this process: the wait itself is over before somebody looks.
    pub fn longest_here(&self, now: Instant) -> Duration {
        let (longest, age) = self.longest.get(self.micros_at(now));
        if age > SHOWN_FOR { self.here(now) } else { longest }
    }

    /// Whether purchases of this process wait noticeably, which other processes are to know.
    pub fn is_noticeable_here(&self, now: Instant) -> bool {
        self.here(now) >= self.noticeable
    }

    /// Whether purchases of this process wait so long that what is not urgent is to be refused.
    pub fn is_long_here(&self, now: Instant) -> bool {
        self.here(now) >= self.long
    }

    /// Whether purchases wait noticeably, in this process or another one.
    pub fn is_noticeable(&self, now: Instant) -> bool {
        let (elsewhere, age) = self.elsewhere.get(self.micros_at(now));
        self.is_noticeable_here(now) || age <= REPORT_VALID && elsewhere >= self.noticeable
    }

    /// How long a worker rests after a step that took so long, if it has had more to do for as long as `behind`.
    pub fn worker_rest(&self, took: Duration, behind: Duration, now: Instant) -> Duration {
        if behind < LAG_MAX && self.is_noticeable(now) {
            (took * REST_FACTOR).clamp(*WORKER_REST.start(), *WORKER_REST.end())
        } else {
            Duration::ZERO
        }
    }

    /// How long a place for reads stays empty after a read that took so long.
    pub fn read_rest(&self, took: Duration, now: Instant) -> Duration {
        if self.is_noticeable(now) { (took * REST_FACTOR).min(READ_REST_MAX) } else { Duration::ZERO }
    }

    fn micros_at(&self, now: Instant) -> u64 {
        micros(now.saturating_duration_since(self.started))
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn the_longest_wait_is_shown_for_a_while() {
        let start = Instant::now();
        let pressure = Pressure::new(start, ms(250));
        assert_eq!(pressure.longest_here(start), Duration::ZERO);
        pressure.record(ms(80), start);
        pressure.record(ms(1), start + ms(1_000));
        assert_eq!(pressure.longest_here(start + ms(4_999)), ms(80));
        assert!(pressure.longest_here(start + ms(5_001)) < ms(1), "nothing since");
        pressure.record(ms(2), start + ms(5_002));
        assert_eq!(pressure.longest_here(start + ms(5_003)), ms(2));
    }

    #[test]
    fn the_longest_wait_counts_and_is_forgotten() {
        let start = Instant::now();
        let pressure = Pressure::new(start, ms(250));
        assert!(!pressure.is_noticeable(start));
        pressure.record(ms(80), start);
        pressure.record(ms(1), start);
        assert_eq!(pressure.here(start), ms(80));
        assert_eq!(pressure.here(start + ms(100)).as_millis(), 20);
        assert!(pressure.is_noticeable(start + ms(150)));
        assert!(pressure.is_long_here(start) && !pressure.is_long_here(start + ms(50)), "a quarter of the target");
        assert!(!pressure.is_noticeable(start + ms(250)));
    }

    #[test]
    fn a_report_of_another_process_counts_for_half_a_second() {
        let start = Instant::now();
        let pressure = Pressure::new(start, ms(250));
        pressure.record_elsewhere(ms(40), start);
        assert!(pressure.is_noticeable(start + ms(400)));
        assert!(!pressure.is_noticeable_here(start + ms(400)));
        pressure.record_elsewhere(ms(10), start + ms(100));
        assert!(pressure.is_noticeable(start + ms(600)), "a lower report counts as long");
        assert!(!pressure.is_noticeable(start + ms(700)));
    }

    #[test]
    fn workers_rest_by_what_they_took_and_never_for_long() {
        let start = Instant::now();
        let pressure = Pressure::new(start, ms(250));
        assert_eq!(pressure.worker_rest(ms(50), ms(0), start), ms(0), "nobody waits");
        pressure.record(ms(80), start);
        assert_eq!(pressure.worker_rest(ms(1), ms(0), start), ms(100));
        assert_eq!(pressure.worker_rest(ms(20), ms(0), start), ms(380));
        assert_eq!(pressure.worker_rest(ms(5000), ms(0), start), ms(1000));
        assert_eq!(pressure.worker_rest(ms(20), ms(5000), start), ms(0), "it is far behind");
        assert_eq!(pressure.read_rest(ms(2), start), ms(38));
        assert_eq!(pressure.read_rest(ms(2000), start), ms(250));
    }
}
