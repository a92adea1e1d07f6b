//! How many purchases of a worker thread may be under way at once, so that none waits for much longer than a target. A purchase
//! waits for as long as those under way take: their number, divided by how many are answered a second (John Little, "A Proof
//! for the Queuing Formula L = λW", Operations Research 9, 1961). That number is known at once, so that shedding neither lags
//! behind the wait nor swings.

use std::time::Duration;

/// How often the limit is adjusted.
pub const TICK: Duration = Duration::from_millis(20);
/// How long answers count: after this time 1/e as much.
const ANSWERS_COUNT: Duration = Duration::from_millis(300);
/// How long answers given while purchases were shed count: after so much time of shedding 1/e.
const FULL_COUNTS: Duration = Duration::from_secs(2);
/// From so long a measurement on, it is known how many are answered a second. Answers come in groups, and the first ones of a crowd come
/// late, so that a shorter one would say too little.
const MEASURED: Duration = Duration::from_millis(150);
/// A thread that answered fewer than this a second, and had more to do, was held up by something that passes.
const SLOWEST: f64 = 2000.0;
/// So many are always let through: they show how many are answered. With fewer than that, nothing is measured.
const ALWAYS: u32 = 8;
/// The first purchase is shed when the wait has been twice the target for so long, or half as much above it for twice as long.
/// A crowd that has just arrived, and that can be served, is served.
const PATIENCE: Duration = Duration::from_millis(150);
/// A wait of more targets than this counts as this many.
const TARGETS_MAX: f64 = 4.0;
/// A look counts for no longer than this, however late it is.
const LOOK_MAX: Duration = Duration::from_millis(40);
/// Shedding ends when the wait has been less than half the target for so long.
const CALM: Duration = Duration::from_millis(300);
/// From this part of the limit on, purchases may soon be shed: what has to be known for that takes a call to Redis, during which a crowd
/// brings as many as can be served.
const NEAR_PART: u32 = 64;

/// How many purchases are answered a second. What was counted long ago fades.
#[derive(Debug, Clone, Copy, Default)]
struct Rate {
    answered: f64,
    seconds: f64,
}

impl Rate {
    /// After the time `over` it counts 1/e as much.
    fn count(&mut self, answered: u32, since: Duration, over: Duration) {
        let faded = (-since.as_secs_f64() / over.as_secs_f64()).exp();
        self.answered = self.answered * faded + f64::from(answered);
        self.seconds = self.seconds * faded + since.as_secs_f64();
    }

    /// At least one in the time that counts; 0 if nothing was counted.
    fn per_second(&self) -> f64 {
        if self.seconds > 0.0 { self.answered.max(1.0) / self.seconds } else { 0.0 }
    }
}

/// The bound on a thread's purchases under way, which applies while there are too many.
#[derive(Debug)]
pub struct ShedLimit {
    target: Duration,
    /// Since the first answer.
    now: Rate,
    /// For how many seconds purchases have been under way before the first answer.
    silent_s: f64,
    /// The rate of answers while purchases were shed: by it, a crowd is known to be too large before its first answers. A higher rate
    /// without a long line replaces it.
    full: Rate,
    /// By how many targets the wait was too long, times the seconds for which it was.
    excess_s: f64,
    calm_for: Duration,
    /// How many may be under way before others are shed; `u32::MAX`: any number.
    limit: u32,
    /// While purchases are shed: how many can be served within the time in which a whole crowd would be.
    served: u32,
    is_shedding: bool,
}

impl ShedLimit {
    /// `target` is the wait that is aimed at.
    pub fn new(target: Duration) -> Self {
        Self {
            target,
            now: Rate::default(),
            silent_s: 0.0,
            full: Rate::default(),
            excess_s: 0.0,
            calm_for: Duration::ZERO,
            limit: u32::MAX,
            served: u32::MAX,
            is_shedding: false,
        }
    }

    /// Adjusts the limit. `under_way` purchases are under way now; `answered` were answered `since` the last call; those that
    /// have not been looked at wait for as long as the thread is `late`. To be called every `TICK`.
    pub fn adjust(&mut self, under_way: u32, answered: u32, late: Duration, since: Duration) {
        if under_way < ALWAYS && !self.is_shedding {
            (self.now, self.silent_s) = (Rate::default(), 0.0);
        }
        if answered == 0 && self.now.seconds == 0.0 {
            self.silent_s += since.as_secs_f64();
        } else {
            self.now.count(answered, since, ANSWERS_COUNT);
        }
        let is_measured = self.now.seconds >= MEASURED.as_secs_f64();
        let is_known = self.full.seconds > 0.0;
        let is_remembered = !is_measured && is_known && self.silent_s < MEASURED.as_secs_f64();
        let per_second = if is_remembered { self.full.per_second().max(SLOWEST) } else { self.now.per_second() };
        let line_s = if is_measured || is_remembered { f64::from(under_way) / per_second } else { 0.0 };
        let is_line_long = line_s > self.target.as_secs_f64() / 2.0;
        if is_measured && self.is_shedding && under_way * 2 >= self.limit {
            self.full.count(answered, since, FULL_COUNTS);
        } else if is_measured && is_known && !is_line_long && per_second > self.full.per_second() {
            self.full = self.now;
        }
        let silent_s = if line_s == 0.0 && self.now.seconds == 0.0 { self.silent_s } else { 0.0 };
        let wait_s = late.as_secs_f64() + line_s + silent_s;
        let targets = wait_s / self.target.as_secs_f64();
        if self.is_shedding {
            self.calm_for = if targets < 0.5 { self.calm_for + since } else { Duration::ZERO };
            self.is_shedding = self.calm_for < CALM;
        } else {
            // A thread that was held up once is no overload: that takes a second look.
            let excess = (targets.min(TARGETS_MAX) - 1.0) * since.min(LOOK_MAX).as_secs_f64();
            self.excess_s = if targets > 1.0 { self.excess_s + excess } else { 0.0 };
            let line_and_late_s = line_s + late.min(self.target / 2).as_secs_f64();
            let is_too_large = line_and_late_s > self.served_within().as_secs_f64();
            if is_remembered && is_line_long && is_too_large || self.excess_s > PATIENCE.as_secs_f64() {
                (self.is_shedding, self.excess_s, self.calm_for) = (true, 0.0, Duration::ZERO);
            }
        }
        let served = answered_within(per_second, self.served_within());
        self.limit = match self.is_shedding {
            true => answered_within(per_second, self.target.saturating_sub(late)),
            // A busy thread looks late and seldom, and half of a large crowd comes meanwhile.
            false if is_remembered => served,
            false => u32::MAX,
        };
        // Who stands in line is not refused by a rate that is not known yet.
        self.served = if self.is_shedding && (is_measured || is_remembered) { served } else { u32::MAX };
    }

    /// How many of those under way are too many, although they were let through: before it was known that too many had come, or who
    /// holds a ticket.
    pub fn excess(&self, under_way: u32) -> u32 {
        under_way.saturating_sub(self.served)
    }

    /// Whether purchases are shed, or soon may be, with so many under way.
    pub fn is_near(&self, under_way: u32) -> bool {
        self.is_shedding || self.excess_s > 0.0 || under_way > self.limit / NEAR_PART
    }

    /// A purchase that has not been looked at, and has waited for longer, is shed as well: before it was known that too many had come,
    /// too many were let through.
    pub fn patience(&self) -> Duration {
        if self.is_shedding { self.served_within() } else { Duration::MAX }
    }

    /// A crowd that can be served within this time is served whole.
    fn served_within(&self) -> Duration {
        self.target * 3 / 2
    }

    /// Whether another purchase is too many, with so many under way.
    pub fn is_full(&self, under_way: u32) -> bool {
        under_way >= self.limit
    }
}

fn answered_within(per_second: f64, time: Duration) -> u32 {
    ((per_second * time.as_secs_f64()) as u32).max(ALWAYS)
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    const TARGET: Duration = Duration::from_millis(200);
    const PER_SECOND: f64 = 5000.0;
    /// A purchase without a line takes so long.
    const SHORTEST: Duration = Duration::from_millis(30);

    /// What came of a load.
    struct Played {
        /// The part that was shed.
        shed: f64,
        /// The waits of the others, sorted.
        waits: Vec<Duration>,
        limit: ShedLimit,
    }

    /// Plays arrivals at `load` times what can be served, for `seconds`, and looks at those of the second half.
    fn play(load: f64, seconds: u32) -> Played {
        let end = Duration::from_secs(seconds.into());
        play_on(ShedLimit::new(TARGET), load, end / 2, end)
    }

    /// Plays arrivals at `load` times what can be served until `end`, and looks at those who come later than `from`. They are served in groups,
    /// one after the other, each of which is what has come meanwhile.
    fn play_on(mut limit: ShedLimit, load: f64, from: Duration, end: Duration) -> Played {
        let step = Duration::from_millis(1);
        let (mut due, mut shed, mut asked) = (0.0, 0_u32, 0_u32);
        let (mut line, mut group, mut answered) = (VecDeque::new(), Vec::new(), 0);
        let (mut group_ends, mut last_tick, mut waits) = (Duration::ZERO, Duration::ZERO, Vec::new());
        let mut now = Duration::ZERO;
        while now < end {
            now += step;
            due += load * PER_SECOND * step.as_secs_f64();
            while due >= 1.0 {
                due -= 1.0;
                let is_full = limit.is_full((line.len() + group.len()) as u32);
                if now > from {
                    asked += 1;
                    shed += u32::from(is_full);
                }
                if !is_full {
                    line.push_back(now);
                }
            }
            if now >= group_ends {
                answered += group.len() as u32;
                waits.extend(group.drain(..).filter(|came| *came > from).map(|came: Duration| now - came));
                group.extend(line.drain(..));
                group_ends = now + SHORTEST.max(Duration::from_secs_f64(group.len() as f64 / PER_SECOND));
            }
            if now - last_tick >= TICK {
                let under_way = (line.len() + group.len()) as u32;
                limit.adjust(under_way, std::mem::take(&mut answered), Duration::ZERO, now - last_tick);
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
            assert!(!played.limit.is_near(0));
        }
    }

    #[test]
    fn what_is_too_much_is_shed_and_nobody_waits_for_much_longer_than_the_target() {
        for load in [1.1, 1.25, 2.0, 3.0, 5.0, 20.0] {
            let Played { shed, waits, .. } = play(load, 20);
            let wanted = 1.0 - 1.0 / load;
            assert!((shed - wanted).abs() < 0.05, "load {load}: {shed} is shed, and {wanted} is too much");
            let most = waits[waits.len() - 1];
            assert!(most < TARGET * 3, "load {load}: {most:?}");
            let slowest = waits[waits.len() * 99 / 100];
            assert!(slowest < TARGET * 2, "load {load}: one in a hundred waits {slowest:?}");
            let median = waits[waits.len() / 2];
            assert!(median > TARGET / 3, "load {load}: {median:?}: more is shed than need be");
        }
    }

    /// A limit that has seen a crowd which was too large, and the quiet after it.
    fn after_a_crowd() -> ShedLimit {
        after_quiet(play(3.0, 3).limit)
    }

    fn after_quiet(mut limit: ShedLimit) -> ShedLimit {
        for _ in 0..100 {
            limit.adjust(0, 0, Duration::ZERO, TICK);
        }
        assert!(!limit.is_near(0));
        limit
    }

    #[test]
    fn a_crowd_that_is_too_large_is_shed_sooner_after_another_one() {
        let slowest = |limit| {
            let waits = play_on(limit, 3.0, Duration::ZERO, Duration::from_secs(1)).waits;
            waits[waits.len() * 99 / 100]
        };
        let (first, second) = (slowest(ShedLimit::new(TARGET)), slowest(after_a_crowd()));
        assert!(first > TARGET * 3 && second < TARGET * 2, "{first:?}, then {second:?}");
    }

    #[test]
    fn a_crowd_that_comes_at_once_is_shed_at_once_after_another_one() {
        assert!(!ShedLimit::new(TARGET).is_full(1_000_000));
        let limit = after_a_crowd();
        let served = (PER_SECOND * limit.served_within().as_secs_f64()) as u32;
        let within = |n: u32, part: f64| (f64::from(n) * part) as u32;
        assert!(limit.is_full(within(served, 1.1)) && !limit.is_full(within(served, 0.9)), "{served}: {limit:?}");
        assert!(limit.is_near(within(served, 0.02)) && !limit.is_near(within(served, 0.01)), "{served}: {limit:?}");
        assert_eq!(limit.excess(served * 2), 0, "nothing is shed yet");
    }

    #[test]
    fn more_than_can_be_served_were_let_through() {
        let mut limit = after_a_crowd();
        limit.adjust(100, 0, Duration::ZERO, TICK);
        limit.adjust(4_000, 0, Duration::ZERO, TICK);
        let served = (PER_SECOND * limit.served_within().as_secs_f64()) as u32;
        let excess = limit.excess(4_000);
        assert!(excess.abs_diff(4_000 - served) < served / 10, "{excess} of 4000, {served} can be served: {limit:?}");
        assert_eq!(limit.excess(served / 2), 0);
    }

    #[test]
    fn what_can_be_served_is_served_after_a_crowd_too() {
        for load in [0.1, 0.5, 0.9] {
            let played = play_on(after_a_crowd(), load, Duration::ZERO, Duration::from_secs(5));
            assert_eq!(played.shed, 0.0, "load {load}");
        }
    }

    #[test]
    fn a_thread_that_was_held_up_for_long_serves_the_next_crowd() {
        let mut limit = ShedLimit::new(TARGET);
        for _ in 0..100 {
            limit.adjust(5000, 1, Duration::ZERO, TICK);
        }
        assert!(limit.is_shedding && limit.full.per_second() < 60.0);
        let played = play_on(after_quiet(limit), 0.9, Duration::ZERO, Duration::from_secs(5));
        assert_eq!(played.shed, 0.0);
        assert!(played.limit.full.per_second() > 4000.0, "it has answered more");
    }

    #[test]
    fn a_thread_that_was_held_up_once_sheds_nothing_after_a_crowd_either() {
        let mut limit = after_a_crowd();
        limit.adjust(100, 0, Duration::ZERO, TICK);
        let late = MEASURED - Duration::from_millis(11);
        limit.adjust(930, 10, late, late);
        assert!(limit.is_near(930) && !limit.is_full(930), "{limit:?}");
    }

    #[test]
    fn slow_answers_to_a_few_are_not_remembered() {
        let mut limit = after_a_crowd();
        let full = limit.full.per_second();
        // 50 under way take 0.15 s.
        for _ in 0..1_000 {
            limit.adjust(50, 7, Duration::ZERO, TICK);
        }
        assert_eq!(limit.full.per_second(), full);
    }

    #[test]
    fn a_thread_that_answers_no_more_is_not_taken_for_what_it_was() {
        let mut limit = after_a_crowd();
        for _ in 0..20 {
            limit.adjust(5000, 0, Duration::ZERO, TICK);
        }
        assert!(limit.is_full(ALWAYS) && !limit.is_full(ALWAYS - 1));
    }

    #[test]
    fn a_short_crowd_is_served_whole() {
        let mut limit = ShedLimit::new(TARGET);
        // 400 have come at once, and 1,000 a second are answered: the last of them waits twice as long as is aimed at.
        for tick in 1..=20 {
            limit.adjust(400 - 20 * tick, 20, Duration::ZERO, TICK);
            assert!(!limit.is_shedding, "tick {tick}");
        }
    }

    #[test]
    fn a_crowd_whose_first_answers_come_late_and_in_groups_is_served() {
        let mut limit = ShedLimit::new(TARGET);
        // It comes at once, as many as are answered in 0.16 s; the first group is answered after 0.12 s.
        let answered = [0, 0, 0, 0, 0, 100, 0, 0, 200, 0, 150, 50, 100, 200];
        let mut under_way = 800;
        for (tick, answered) in answered.into_iter().enumerate() {
            under_way -= answered;
            limit.adjust(under_way, answered, Duration::from_millis(30), TICK);
            assert!(!limit.is_shedding, "tick {tick}");
        }
        assert_eq!(under_way, 0);
    }

    #[test]
    fn a_thread_that_was_held_up_once_sheds_nothing() {
        let mut limit = ShedLimit::new(TARGET);
        let held_up = TARGET * 5;
        limit.adjust(200, 4, held_up, held_up);
        assert!(!limit.is_shedding);
        limit.adjust(20, 180, Duration::ZERO, TICK);
        assert!(!limit.is_near(0));
    }

    #[test]
    fn a_thread_that_is_late_sheds_although_little_is_under_way() {
        let mut limit = ShedLimit::new(TARGET);
        for _ in 0..10 {
            limit.adjust(20, 2, TARGET * 2, TICK);
        }
        assert!(limit.is_full(ALWAYS) && !limit.is_full(ALWAYS - 1));
    }

    #[test]
    fn without_any_answer_a_few_are_let_through() {
        let mut limit = ShedLimit::new(TARGET);
        for _ in 0..100 {
            limit.adjust(5000, 0, Duration::ZERO, TICK);
        }
        assert!(limit.is_full(5000) && limit.is_full(ALWAYS) && !limit.is_full(ALWAYS - 1));
        assert_eq!(limit.excess(5000), 0, "how many could be served is not known");
    }

    #[test]
    fn shedding_ends_soon_after_the_crowd() {
        let mut limit = play(5.0, 2).limit;
        assert!(limit.is_shedding);
        assert!(limit.patience() > TARGET && limit.patience() < TARGET * 2);
        let ticks = (0..).take_while(|_| {
            limit.adjust(0, 0, Duration::ZERO, TICK);
            limit.is_shedding
        });
        assert!(ticks.count() < 50, "a second");
        assert_eq!(limit.patience(), Duration::MAX, "all are served who came");
    }
}
