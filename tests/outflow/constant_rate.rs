//! An outflow sends at exactly its rate per second, although workers are killed, paused and restarted (I5, F19).

use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use seckill::domain::outflow::Pace;
use seckill::flow::outflow_changes::OutflowChange;

use crate::worker_processes::{Worker, Works, jitter_ms, long, pass};
use seckill_harness::busy_machine::Machine;
use seckill_harness::eventually;
use seckill_harness::receiver::Receiver;

/// The long test checks that 95 % of the slots are used only if the machine was idle for at least this share of the time, in per cent. On a
/// busier machine late workers skip slots to keep the rate. The rate is always checked.
const IDLE: f64 = 25.0;
const SECOND: Duration = Duration::from_secs(1);

/// A channel and its receiver.
struct Side {
    channel: &'static str,
    rate: u32,
    receiver: Receiver,
}

impl Side {
    async fn open(works: &Works, channel: &'static str, rate: u32) -> Self {
        let receiver = Receiver::start();
        works.channel(channel, rate, &receiver).await;
        works.backlog(channel, 40, rate.cast_signed() * 300).await;
        Self { channel, rate, receiver }
    }

    fn stamps(&self) -> Vec<Instant> {
        let mut stamps: Vec<Instant> = self.receiver.seen().iter().map(|arrival| arrival.at).collect();
        stamps.sort_unstable();
        stamps
    }

    /// Checks that no second, whenever it begins, has more arrivals than the rate.
    fn assert_rate_never_exceeded(&self) {
        let (stamps, rate) = (self.stamps(), self.rate as usize);
        let closest = stamps.windows(rate + 1).map(|w| w[rate] - w[0]).min().unwrap();
        eprintln!("{}: {} arrivals, any {} of them within {closest:?}", self.channel, stamps.len(), rate + 1);
        assert!(closest > SECOND, "{} arrivals within {closest:?}", rate + 1);
    }

    /// Checks that slots follow each other at the channel's pace: 10 % of the gaps between arrivals are no longer than a slot. A busy
    /// machine leaves slots unused, and so makes some gaps longer.
    fn assert_slots_follow_each_other(&self) {
        let mut gaps: Vec<Duration> = self.stamps().windows(2).map(|w| w[1] - w[0]).collect();
        gaps.sort_unstable();
        let (slot, tenth) = (self.slot(), gaps[gaps.len() / 10]);
        eprintln!("{}: a tenth of the gaps are within {tenth:?}, a slot is {slot:?}", self.channel);
        assert!(tenth < slot.mul_f64(1.2), "nine of ten gaps are longer than {tenth:?}");
    }

    /// The time between two slots.
    fn slot(&self) -> Duration {
        let gap_us = Pace::parse(self.rate.into(), jitter_ms()).unwrap().gap_us();
        Duration::from_micros(gap_us.unsigned_abs())
    }

    /// The number of slots used between the first arrival after `after`, and `to`.
    fn used(&self, after: Instant, to: Instant) -> Usage {
        let used: Vec<Instant> = self.stamps().into_iter().filter(|at| (after..to).contains(at)).collect();
        let (slot, first, last) = (self.slot(), used[0], used[used.len() - 1]);
        // The slot in which the period ends is not counted: its request may not have arrived yet.
        let cut = to - last < slot.mul_f64(1.2);
        let seconds = (if cut { last } else { to } - first).as_secs_f64();
        let usage = Usage { used: used.len() - 1, slots: seconds / slot.as_secs_f64(), seconds };
        eprintln!("{}: {usage:.1?}", self.channel);
        usage
    }

    /// Waits until more requests have arrived than one second may have.
    async fn more_than_a_second(&self) {
        eventually(|| async {
            let arrivals = self.stamps().len();
            (arrivals > self.rate as usize).then_some(()).ok_or_else(|| format!("{arrivals} requests have arrived"))
        })
        .await;
    }

    async fn first_after(&self, after: Instant) {
        eventually(|| async {
            let came = self.stamps().into_iter().any(|at| at > after);
            came.then_some(()).ok_or_else(|| "no request has arrived".to_owned())
        })
        .await;
    }
}

/// The use of a channel's slots in a period that starts at an arrival.
#[derive(Debug)]
struct Usage {
    used: usize,
    slots: f64,
    seconds: f64,
}

/// Checks in the long test that the slots are used. In a few seconds next to other tests, the number says little.
fn assert_used(side: &Side, phases: &[Usage], idle: f64) {
    let used = phases.iter().map(|u| u.used).sum::<usize>() as f64;
    let (slots, seconds) = (phases.iter().map(|u| u.slots).sum::<f64>(), phases.iter().map(|u| u.seconds).sum::<f64>());
    let (share, of_rate) = (100.0 * used / slots, 100.0 * used / seconds / f64::from(side.rate));
    eprintln!("{}: {used} of {slots:.1} slots, {share:.1} %; {of_rate:.1} % of the rate", side.channel);
    if !long() {
        return;
    }
    if idle < IDLE {
        return eprintln!("NOT CHECKED: this machine was too busy");
    }
    assert!(share >= 95.0, "{used} of {slots:.1} slots were used, on a machine that was {idle:.0} % idle");
}

async fn kill_at_random(works: &Works, workers: &mut [Worker], seconds: f64, dice: &mut StdRng) {
    let until = Instant::now() + Duration::from_secs_f64(seconds);
    while Instant::now() < until {
        pass(dice.random_range(0.3..1.0)).await;
        let victim = dice.random_range(0..workers.len());
        workers[victim].kill();
        workers[victim] = Worker::start(&works.environment, None);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_and_fifty_per_second_over_twenty_workers_that_are_killed_paused_and_restarted() {
    let (run_s, pause_s) = if long() { (60.0, 60.0) } else { (7.0, 2.0) };
    let seed = rand::random();
    let mut dice = StdRng::seed_from_u64(seed);
    eprintln!("seed {seed}");
    let works = Works::alone().await;
    let mut workers = works.workers(20).await;
    let sides = [Side::open(&works, "refunds", 1).await, Side::open(&works, "payments", 50).await];
    let (machine, mut phases) = (Machine::now(), [Vec::new(), Vec::new()]);
    let mut record_usage = |since: Instant| {
        for (side, phases) in sides.iter().zip(&mut phases) {
            phases.push(side.used(since, Instant::now()));
        }
    };

    let begun = Instant::now();
    for side in &sides {
        side.first_after(begun).await;
    }
    kill_at_random(&works, &mut workers, run_s, &mut dice).await;
    record_usage(begun);

    for side in &sides {
        assert!(works.change(side.channel, OutflowChange { paused: Some(true), ..OutflowChange::default() }).await);
    }
    pass(3.0).await; // requests that already have a slot are sent, and arrive
    let paused = Instant::now();
    pass(pause_s).await;
    for side in &sides {
        assert_eq!(side.stamps().into_iter().filter(|at| *at > paused).count(), 0, "sent while paused");
        assert!(works.change(side.channel, OutflowChange { paused: Some(false), ..OutflowChange::default() }).await);
    }
    let resumed = Instant::now();
    for side in &sides {
        side.first_after(resumed).await;
    }
    pass(run_s / 2.0).await;
    record_usage(resumed);

    // All workers are killed, and all are started again after a pause.
    workers.iter_mut().for_each(Worker::kill);
    pass(pause_s / 2.0).await;
    let workers = works.workers(20).await;
    let restarted = Instant::now();
    for side in &sides {
        side.first_after(restarted).await;
    }
    pass(run_s / 2.0).await;
    record_usage(restarted);
    for side in &sides {
        side.more_than_a_second().await;
    }
    drop(workers);
    let idle = machine.idle_since();
    eprintln!("idle: {idle:.0} %");
    for (side, phases) in sides.iter().zip(&phases) {
        side.assert_rate_never_exceeded();
        side.assert_slots_follow_each_other();
        assert_used(side, phases, idle);
    }
}
