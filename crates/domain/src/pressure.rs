//! How long purchases wait before work on them begins. While they wait noticeably, less urgent work gives way.

use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

/// Other work gives way from the wait target divided by this.
const NOTICEABLE_PART: u32 = 50;
/// The least urgent requests are refused from the wait target divided by this.
const LONG_PART: u32 = 2;
/// A wait that is not measured again counts half after this time.
const HALF_LIFE: Duration = Duration::from_millis(50);
/// How long the longest wait is shown.
const SHOWN_FOR: Duration = Duration::from_secs(5);
/// How long another process's report counts.
const REPORT_VALID: Duration = Duration::from_millis(500);
/// Work that gives way rests 19 times its working time: at most 5 % of the time is work.
const REST_FACTOR: u32 = 19;
/// The bounds of a worker's rest between two steps.
const WORKER_REST: RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(1);
const READ_REST_MAX: Duration = Duration::from_millis(250);
/// A worker with a backlog for this long stops giving way until the backlog is done.
const LAG_MAX: Duration = Duration::from_secs(5);

/// A rush begins when a process gets at least this many purchases a second, and this many times the rate before.
const RUSH_PER_SECOND: f64 = 1000.0;
const RUSH_TIMES: f64 = 4.0;
/// Time constants of the present and the earlier average rate. So a steady rush counts as beginning for a little over a second.
const ARRIVALS_NOW: Duration = Duration::from_millis(50);
const ARRIVALS_BEFORE: Duration = Duration::from_secs(4);
const RUSH_BEGINS: &str = "rush";
/// The beginning of a rush lasts this long after it was last noticed, and in all.
const RUSH_VALID: Duration = Duration::from_millis(100);
const RUSH_BEGINS_MAX: Duration = Duration::from_millis(1200);
/// No other rush begins here within this time, so that repeated clumps of purchases do not stop the workers.
const RUSHES_APART: Duration = Duration::from_secs(10);

/// The rate of purchases at one process, which shows that a rush begins. Each thread has its own.
#[derive(Debug, Default)]
pub struct Arrivals {
    now_per_second: f64,
    before_per_second: f64,
    seen: u64,
}

impl Arrivals {
    /// Whether a rush begins. `since` is the time since the last call.
    pub fn read(&mut self, pressure: &Pressure, since: Duration) -> bool {
        let purchases = pressure.arrived.load(Ordering::Relaxed);
        let new = purchases - std::mem::replace(&mut self.seen, purchases);
        self.count(new as f64, since)
    }

    fn count(&mut self, purchases: f64, since: Duration) -> bool {
        let rate = purchases / since.as_secs_f64().max(1e-6);
        let fade = |average: &mut f64, over: Duration| {
            *average += (rate - *average) * (1.0 - (-since.as_secs_f64() / over.as_secs_f64()).exp());
        };
        fade(&mut self.now_per_second, ARRIVALS_NOW);
        fade(&mut self.before_per_second, ARRIVALS_BEFORE);
        self.now_per_second >= RUSH_PER_SECOND && self.now_per_second >= RUSH_TIMES * self.before_per_second
    }
}

/// A notice to other processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Report {
    Wait(Duration),
    RushBegins,
}

impl Report {
    pub fn text(self) -> String {
        match self {
            Self::Wait(wait) => micros(wait).to_string(),
            Self::RushBegins => RUSH_BEGINS.to_owned(),
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        if text == RUSH_BEGINS {
            return Some(Self::RushBegins);
        }
        text.parse().ok().map(|us| Self::Wait(Duration::from_micros(us)))
    }
}

/// The wait of purchases, in this process and in others; shared by all threads.
#[derive(Debug)]
pub struct Pressure {
    started: Instant,
    noticeable: Duration,
    long: Duration,
    here: Reading,
    measured: Notify,
    longest: Reading,
    elsewhere: Reading,
    arrived: AtomicU64,
    rush_here: Rush,
    /// The end of the beginning of another process's rush, in microseconds after the start.
    rush_elsewhere_until_us: AtomicU64,
}

/// The last rush of this process: its start, and the end of its beginning, in microseconds after the start.
#[derive(Debug, Default)]
struct Rush {
    began_us: AtomicU64,
    until_us: AtomicU64,
}

/// The last wait that counts, and when it was measured, in microseconds after the start. The two are not written together: a mixed pair is
/// a wait of a moment ago.
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
    /// Purchases are shed at `wait_target`.
    pub fn new(started: Instant, wait_target: Duration) -> Self {
        Self {
            started,
            noticeable: wait_target / NOTICEABLE_PART,
            long: wait_target / LONG_PART,
            here: Reading::default(),
            measured: Notify::new(),
            longest: Reading::default(),
            elsewhere: Reading::default(),
            arrived: AtomicU64::default(),
            rush_here: Rush::default(),
            rush_elsewhere_until_us: AtomicU64::default(),
        }
    }

    /// Records the wait of purchases on one thread of this process. The longest counts.
    pub fn record(&self, wait: Duration, now: Instant) {
        if wait >= self.here(now) {
            self.here.set(wait, self.micros_at(now));
        }
        let (longest, age) = self.longest.get(self.micros_at(now));
        if wait >= longest || age > SHOWN_FOR {
            self.longest.set(wait, self.micros_at(now));
        }
        self.measured.notify_one();
    }

    /// Returns when a wait has been recorded since the last call.
    pub async fn measured(&self) {
        self.measured.notified().await;
    }

    pub fn record_arrivals(&self, purchases: u32) {
        self.arrived.fetch_add(purchases.into(), Ordering::Relaxed);
    }

    pub fn record_rush(&self, now: Instant) {
        let Rush { began_us, until_us } = &self.rush_here;
        let (now_us, began) = (self.micros_at(now), began_us.load(Ordering::Relaxed));
        let since = Duration::from_micros(now_us.saturating_sub(began));
        if until_us.load(Ordering::Relaxed) == 0 || since >= RUSHES_APART {
            began_us.store(now_us, Ordering::Relaxed);
        } else if since >= RUSH_BEGINS_MAX {
            return;
        }
        until_us.fetch_max(self.micros_at(now + RUSH_VALID), Ordering::Relaxed);
    }

    pub fn record_elsewhere(&self, report: Report, now: Instant) {
        match report {
            Report::Wait(wait) => self.elsewhere.set(wait, self.micros_at(now)),
            Report::RushBegins => {
                let until_us = self.micros_at(now + REPORT_VALID);
                self.rush_elsewhere_until_us.fetch_max(until_us, Ordering::Relaxed);
            }
        }
    }

    /// How long purchases wait in this process.
    pub(crate) fn here(&self, now: Instant) -> Duration {
        let (wait, age) = self.here.get(self.micros_at(now));
        wait.mul_f64(0.5_f64.powf(age.as_secs_f64() / HALF_LIFE.as_secs_f64()))
    }

    /// The longest wait of the last seconds in this process.
    pub fn longest_here(&self, now: Instant) -> Duration {
        let (longest, age) = self.longest.get(self.micros_at(now));
        if age > SHOWN_FOR { self.here(now) } else { longest }
    }

    /// The report to other processes, without their own reports.
    pub fn report(&self, now: Instant) -> Option<Report> {
        if self.begins_rush(now, &self.rush_here.until_us) {
            return Some(Report::RushBegins);
        }
        let wait = self.here(now);
        (wait >= self.noticeable).then_some(Report::Wait(wait))
    }

    fn begins_rush(&self, now: Instant, until_us: &AtomicU64) -> bool {
        self.micros_at(now) < until_us.load(Ordering::Relaxed)
    }

    /// Whether purchases of this process wait so long that the least urgent requests are refused.
    pub fn is_long_here(&self, now: Instant) -> bool {
        self.here(now) >= self.long
    }

    /// Whether purchases wait noticeably, in this process or another one.
    pub fn is_noticeable(&self, now: Instant) -> bool {
        let (elsewhere, age) = self.elsewhere.get(self.micros_at(now));
        self.here(now) >= self.noticeable || age <= REPORT_VALID && elsewhere >= self.noticeable
    }

    /// A worker's rest after a step that took `took`; it has had a backlog for `behind`.
    pub fn worker_rest(&self, took: Duration, behind: Duration, now: Instant) -> Duration {
        let rushes = [&self.rush_here.until_us, &self.rush_elsewhere_until_us];
        if behind < LAG_MAX && rushes.into_iter().any(|until_us| self.begins_rush(now, until_us)) {
            *WORKER_REST.end()
        } else if behind < LAG_MAX && self.is_noticeable(now) {
            (took * REST_FACTOR).clamp(*WORKER_REST.start(), *WORKER_REST.end())
        } else {
            Duration::ZERO
        }
    }

    /// A reader's rest after a read that took `took`.
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

    fn pressure(start: Instant) -> Pressure {
        Pressure::new(start, ms(100))
    }

    #[test]
    fn the_longest_wait_counts_and_is_forgotten() {
        let start = Instant::now();
        let pressure = pressure(start);
        assert!(!pressure.is_noticeable(start));
        pressure.record(ms(80), start);
        pressure.record(ms(1), start);
        assert_eq!([0, 100].map(|at| pressure.here(start + ms(at)).as_millis()), [80, 20]);
        assert_eq!([0, 50].map(|at| pressure.is_long_here(start + ms(at))), [true, false], "half of the target");
        assert_eq!([150, 300].map(|at| pressure.is_noticeable(start + ms(at))), [true, false]);
    }

    #[test]
    fn a_report_of_another_process_counts_for_half_a_second() {
        let start = Instant::now();
        let pressure = pressure(start);
        pressure.record_elsewhere(Report::Wait(ms(40)), start);
        assert!(pressure.is_noticeable(start + ms(400)));
        assert_eq!(pressure.report(start + ms(400)), None, "nobody waits here");
        pressure.record_elsewhere(Report::Wait(ms(10)), start + ms(100));
        assert_eq!(
            [600, 700].map(|at| pressure.is_noticeable(start + ms(at))),
            [true, false],
            "a lower report counts too"
        );
    }

    /// The number of ticks of 20 ms, with this many purchases each, in which a rush begins.
    fn begins_for(arrivals: &mut Arrivals, purchases: u32, ticks: u32) -> u32 {
        (0..ticks).map(|_| u32::from(arrivals.count(purchases.into(), ms(20)))).sum()
    }

    #[test]
    fn a_rush_begins_for_a_second_and_a_steady_crowd_does_not() {
        let mut arrivals = Arrivals::default();
        assert_eq!(begins_for(&mut arrivals, 16, 500), 0, "800 a second");
        let begins = begins_for(&mut arrivals, 300, 500);
        assert!((40..80).contains(&begins), "{begins} ticks");
        assert_eq!(begins_for(&mut arrivals, 600, 500), 0, "twice as many");
        assert_eq!(begins_for(&mut arrivals, 0, 1_000), 0);
        assert!(begins_for(&mut arrivals, 200, 10) > 5, "it comes again");
        assert!(Arrivals::default().count(1_000.0, ms(20)));
    }

    #[test]
    fn clumps_of_purchases_do_not_stop_the_workers() {
        let start = Instant::now();
        let pressure = pressure(start);
        let rests = (0..600).filter(|tick| {
            let now = start + ms(100 * tick);
            pressure.record_rush(now);
            pressure.worker_rest(ms(1), ms(0), now) > ms(0)
        });
        assert_eq!(rests.count(), 6 * 12, "of 600 tenths of a second");
    }

    #[test]
    fn workers_rest_while_a_rush_begins_here_or_elsewhere() {
        let start = Instant::now();
        let pressure = pressure(start);
        pressure.record_rush(start);
        assert_eq!(pressure.report(start), Some(Report::RushBegins));
        assert_eq!(pressure.worker_rest(ms(1), ms(0), start), ms(1_000));
        assert_eq!(pressure.worker_rest(ms(1), ms(5_000), start), ms(0), "it is far behind");
        assert_eq!(pressure.worker_rest(ms(1), ms(0), start + ms(100)), ms(0));
        pressure.record_elsewhere(Report::RushBegins, start + ms(200));
        assert_eq!(pressure.report(start + ms(200)), None, "another process's notice is not passed on");
        assert_eq!(pressure.worker_rest(ms(1), ms(0), start + ms(600)), ms(1_000));
        assert_eq!(pressure.worker_rest(ms(1), ms(0), start + ms(700)), ms(0));
    }

    #[test]
    fn workers_rest_by_what_they_took_and_never_for_long() {
        let start = Instant::now();
        let pressure = pressure(start);
        assert_eq!(pressure.worker_rest(ms(50), ms(0), start), ms(0), "nobody waits");
        pressure.record(ms(80), start);
        let worker_rests = [1, 20, 5000].map(|took| pressure.worker_rest(ms(took), ms(0), start));
        assert_eq!(worker_rests, [ms(100), ms(380), ms(1000)]);
        assert_eq!(pressure.worker_rest(ms(20), ms(5000), start), ms(0), "it is far behind");
        assert_eq!([2, 2000].map(|took| pressure.read_rest(ms(took), start)), [ms(38), ms(250)]);
    }
}
