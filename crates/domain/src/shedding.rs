//! Bounds the purchases of a sale in flight on a worker thread, so that none waits for much longer than a target. Each sale has a bound of
//! its own, so that a slow one takes nothing from the others.
//!
//! When to shed follows CoDel: a wait that stays above the target for a whole interval is a standing queue, and a shorter one is a
//! burst, which is served (Nichols and Jacobson, "Controlling Queue Delay", ACM Queue 10(5), 2012; for requests of servers Maurer, "Fail at
//! Scale", ACM Queue 13(8), 2015). How many stay in flight follows BBR: the rate of delivery times the target (Cardwell and others, "BBR:
//! Congestion-Based Congestion Control", ACM Queue 14(5), 2016). Such a limit neither lags behind the wait nor swings.

use std::time::Duration;

/// How often the limit is adjusted.
pub const TICK: Duration = Duration::from_millis(20);
/// CoDel's interval, as in both papers.
const INTERVAL: Duration = Duration::from_millis(100);
/// The first long wait counts for no longer than this, however late the tick: a thread that was held up once is not overloaded.
const TICK_MAX: Duration = Duration::from_millis(40);
/// The time constant of the delivery rate. Answers come in groups, a tenth of a second apart at most.
const RATE_OVER: Duration = Duration::from_millis(200);
/// So many may always be in flight: their answers show the rate.
const LIMIT_MIN: u32 = 8;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// All purchases are served. The wait has been above the target for this time.
    Serving { above_for: Duration },
    /// Purchases above the limit are shed. For this time there has been no standing queue.
    Shedding { limit: u32, calm_for: Duration },
}

const SERVING: State = State::Serving { above_for: Duration::ZERO };

/// Answers per second: an exponentially weighted average.
#[derive(Debug, Clone, Copy, Default)]
struct DeliveryRate {
    answered: f64,
    seconds: f64,
}

impl DeliveryRate {
    fn count(&mut self, answered: u32, since: Duration) {
        let faded = (-since.as_secs_f64() / RATE_OVER.as_secs_f64()).exp();
        self.answered = self.answered * faded + f64::from(answered);
        self.seconds = self.seconds * faded + since.as_secs_f64();
    }

    fn delivered_within(self, time: Duration) -> u32 {
        (self.answered / self.seconds.max(f64::MIN_POSITIVE) * time.as_secs_f64()).round() as u32
    }
}

/// What a thread has seen since the last tick.
#[derive(Debug, Clone, Copy)]
pub struct Tick {
    pub since: Duration,
    /// Purchases in flight now, and answered since.
    pub in_flight: u32,
    pub answered: u32,
    /// The longest wait for a turn.
    pub wait: Duration,
    /// The part of it before the thread read the request.
    pub unread: Duration,
    /// How long a call to Redis takes.
    pub call: Duration,
}

/// The bound on one sale's purchases in flight on a thread.
#[derive(Debug)]
pub struct ShedLimit {
    target: Duration,
    rate: DeliveryRate,
    state: State,
}

impl ShedLimit {
    pub fn new(target: Duration) -> Self {
        Self { target, rate: DeliveryRate::default(), state: SERVING }
    }

    /// Adjusts the limit, every `TICK`.
    pub fn adjust(&mut self, tick: Tick) {
        self.measure(tick);
        self.state = match self.state {
            State::Serving { .. } if tick.wait <= self.target => SERVING,
            SERVING => State::Serving { above_for: tick.since.min(TICK_MAX) },
            State::Serving { above_for } if above_for < INTERVAL => {
                State::Serving { above_for: above_for + tick.since }
            }
            State::Serving { .. } => self.shedding(tick, Duration::ZERO),
            State::Shedding { .. } if tick.wait >= self.target / 4 => self.shedding(tick, Duration::ZERO),
            State::Shedding { calm_for, .. } if calm_for < INTERVAL => self.shedding(tick, calm_for + tick.since),
            State::Shedding { .. } => SERVING,
        };
    }

    /// With few in flight, the rate of answers is the rate of arrivals, and shows nothing.
    fn measure(&mut self, tick: Tick) {
        match self.state {
            State::Serving { .. } if tick.in_flight < LIMIT_MIN => self.rate = DeliveryRate::default(),
            State::Shedding { limit, .. } if tick.in_flight < limit / 2 => {}
            State::Serving { .. } | State::Shedding { .. } => self.rate.count(tick.answered, tick.since),
        }
    }

    /// While calls are slow, as many may be in flight as are in a call and wait for the next one: fewer would not make it faster.
    fn shedding(&self, tick: Tick, calm_for: Duration) -> State {
        let within = self.target.max(tick.call * 2).saturating_sub(tick.unread);
        State::Shedding { limit: self.rate.delivered_within(within).max(LIMIT_MIN), calm_for }
    }

    /// Whether purchases are shed, or soon may be.
    pub fn is_near(&self) -> bool {
        self.state != SERVING
    }

    /// Whether another purchase is too many, with so many in flight.
    pub fn is_full(&self, in_flight: u32) -> bool {
        matches!(self.state, State::Shedding { limit, .. } if in_flight >= limit)
    }

    /// Purchases that have waited for longer are shed too: too many were let through before the overload was known. `None` while all are
    /// served.
    pub fn patience(&self) -> Option<Duration> {
        matches!(self.state, State::Shedding { .. }).then_some(self.target * 3 / 2)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    const TARGET: Duration = Duration::from_millis(200);
    const PER_SECOND: f64 = 5000.0;
    const GROUP_MAX: usize = 256;
    /// A purchase without a line takes so long.
    const SHORTEST: Duration = Duration::from_millis(30);
    const QUIET: Tick = Tick {
        since: TICK,
        in_flight: 0,
        answered: 0,
        wait: Duration::ZERO,
        unread: Duration::ZERO,
        call: Duration::ZERO,
    };

    /// What came of a load.
    struct Played {
        /// The part that was shed.
        shed: f64,
        /// The waits of the others, sorted.
        waits: Vec<Duration>,
        limit: ShedLimit,
    }

    /// Plays arrivals at `load` times what can be served for some seconds, and looks at the second half.
    fn play(load: f64, seconds: u32) -> Played {
        play_on(ShedLimit::new(TARGET), load, Duration::from_secs(seconds.into()))
    }

    /// They are served in groups, one after the other. A group is what has come meanwhile, up to a bound.
    fn play_on(mut limit: ShedLimit, load: f64, end: Duration) -> Played {
        let step = Duration::from_millis(1);
        let (mut due, mut shed, mut asked) = (0.0, 0_u32, 0_u32);
        let (mut line, mut group, mut answered) = (VecDeque::<Duration>::new(), Vec::new(), 0);
        let (mut group_ends, mut last_tick, mut waits) = (Duration::ZERO, Duration::ZERO, Vec::new());
        let mut now = Duration::ZERO;
        while now < end {
            now += step;
            let counts = |came: Duration| came > end / 2;
            due += load * PER_SECOND * step.as_secs_f64();
            while due >= 1.0 {
                due -= 1.0;
                asked += u32::from(counts(now));
                if limit.is_full((line.len() + group.len()) as u32) {
                    shed += u32::from(counts(now));
                } else {
                    line.push_back(now);
                }
            }
            if now >= group_ends {
                answered += group.len() as u32;
                waits.extend(group.drain(..).filter(|came| counts(*came)).map(|came| now - came));
                while group.len() < GROUP_MAX
                    && let Some(came) = line.pop_front()
                {
                    if limit.patience().is_none_or(|patience| now - came <= patience) {
                        group.push(came);
                    } else {
                        shed += u32::from(counts(came));
                    }
                }
                group_ends = now + SHORTEST.max(Duration::from_secs_f64(group.len() as f64 / PER_SECOND));
            }
            if now - last_tick >= TICK {
                let wait = line.front().map_or(Duration::ZERO, |came| now - *came);
                let in_flight = (line.len() + group.len()) as u32;
                limit.adjust(Tick { in_flight, answered: std::mem::take(&mut answered), wait, ..QUIET });
                last_tick = now;
            }
        }
        waits.sort_unstable();
        Played { shed: f64::from(shed) / f64::from(asked), waits, limit }
    }

    #[test]
    fn what_can_be_served_is_served() {
        for load in [0.001, 0.1, 0.5, 0.9] {
            let played = play(load, 20);
            assert_eq!(played.shed, 0.0, "load {load}");
            assert!(!played.limit.is_near());
        }
    }

    #[test]
    fn the_excess_is_shed_and_nobody_waits_for_much_longer_than_the_target() {
        for load in [1.1, 1.25, 2.0, 3.0, 5.0, 20.0] {
            let Played { shed, waits, .. } = play(load, 20);
            let excess = 1.0 - 1.0 / load;
            assert!((shed - excess).abs() < 0.05, "load {load}: {shed} is shed, and {excess} is too much");
            let at = |part: f64| waits[((waits.len() - 1) as f64 * part) as usize];
            assert!(at(1.0) < TARGET * 3 && at(0.99) < TARGET * 2, "load {load}: {:?}, {:?}", at(0.99), at(1.0));
            assert!(at(0.5) > TARGET / 3, "load {load}: {:?}: more is shed than need be", at(0.5));
        }
    }

    /// Whether a thread sheds after so many of these ticks.
    fn sheds_after(ticks: u32, tick: Tick) -> bool {
        let mut limit = ShedLimit::new(TARGET);
        (0..ticks).for_each(|_| limit.adjust(tick));
        limit.is_full(u32::MAX)
    }

    #[test]
    fn a_burst_is_served_and_a_standing_queue_is_not() {
        let tick = Tick { in_flight: 400, answered: 20, wait: TARGET + TICK, ..QUIET };
        let ticks = (INTERVAL.as_millis() / TICK.as_millis()) as u32;
        assert!(!sheds_after(ticks, tick) && sheds_after(ticks + 1, tick));
        assert!(!sheds_after(100, Tick { wait: TARGET, ..tick }));
        assert!(
            !sheds_after(1, Tick { since: TARGET * 5, unread: TARGET * 5, wait: TARGET * 5, ..tick }),
            "held up once"
        );
    }

    #[test]
    fn unread_requests_take_their_part_of_the_target() {
        let full_at = |unread| {
            let mut limit = ShedLimit::new(TARGET);
            let tick = Tick { in_flight: 1000, answered: 100, wait: TARGET * 2, unread, ..QUIET };
            (0..10).for_each(|_| limit.adjust(tick));
            (0..).find(|in_flight| limit.is_full(*in_flight)).unwrap()
        };
        assert_eq!([full_at(Duration::ZERO), full_at(TARGET / 2), full_at(TARGET * 2)], [1000, 500, LIMIT_MIN]);
    }

    #[test]
    fn without_any_answer_a_few_are_let_through() {
        let mut limit = ShedLimit::new(TARGET);
        (0..100).for_each(|_| limit.adjust(Tick { in_flight: 5000, wait: TARGET * 9, ..QUIET }));
        assert!(limit.is_full(LIMIT_MIN) && !limit.is_full(LIMIT_MIN - 1));
        // When answers come again, the next crowd is served.
        (0..10).for_each(|_| limit.adjust(QUIET));
        assert_eq!(play_on(limit, 0.9, Duration::from_secs(5)).shed, 0.0);
    }

    /// Where a call is slower than the target, all who fit into it and the next one are served.
    #[test]
    fn slow_calls_without_a_queue_shed_nobody() {
        let mut limit = ShedLimit::new(TARGET);
        let tick = Tick { in_flight: 600, answered: 20, wait: TARGET * 2, call: TARGET * 2, ..QUIET };
        (0..500).for_each(|_| limit.adjust(tick));
        assert!(limit.is_near() && !limit.is_full(600) && limit.is_full(900), "{limit:?}");
        (0..10).for_each(|_| limit.adjust(Tick { wait: Duration::ZERO, ..tick }));
        assert!(!limit.is_near(), "nobody waits for a turn");
    }

    #[test]
    fn shedding_ends_soon_after_the_crowd() {
        let mut limit = play(5.0, 2).limit;
        assert_eq!(limit.patience(), Some(TARGET * 3 / 2));
        let ticks = (0..).take_while(|_| {
            limit.adjust(QUIET);
            limit.is_near()
        });
        assert!(ticks.count() < 10, "a fifth of a second");
        assert_eq!(limit.patience(), None, "all are served who came");
    }
}
