//! An outflow sends at exactly its rate per second, although workers are killed, paused and restarted (I5, F19).

use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use seckill_delivery::outflow_changes::OutflowChange;
use seckill_domain::outflow::Pace;

use crate::worker_processes::{Works, jitter_ms, long, pass, worker};
use seckill_harness::receiver::Receiver;
use seckill_harness::running::Running;
use seckill_harness::{until, wait_until};

const SECOND: Duration = Duration::from_secs(1);

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
        let gap_us = Pace::parse(self.rate.into(), jitter_ms()).unwrap().gap_us();
        let (slot, tenth) = (Duration::from_micros(gap_us.unsigned_abs()), gaps[gaps.len() / 10]);
        eprintln!("{}: a tenth of the gaps are within {tenth:?}, a slot is {slot:?}", self.channel);
        assert!(tenth < slot.mul_f64(1.2), "nine of ten gaps are longer than {tenth:?}");
    }

    /// Waits until more requests have arrived than one second may have.
    async fn more_than_a_second(&self) {
        wait_until(|| async { self.stamps().len() }, |&arrivals| arrivals > self.rate as usize).await;
    }

    async fn first_after(&self, after: Instant) {
        until(true, || async { self.stamps().into_iter().any(|at| at > after) }).await;
    }
}

async fn kill_at_random(works: &Works, workers: &mut [Running], seconds: f64, dice: &mut StdRng) {
    let until = Instant::now() + Duration::from_secs_f64(seconds);
    while Instant::now() < until {
        pass(dice.random_range(0.3..1.0)).await;
        let victim = dice.random_range(0..workers.len());
        workers[victim].kill();
        workers[victim] = worker(&works.environment, None);
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

    let begun = Instant::now();
    for side in &sides {
        side.first_after(begun).await;
    }
    kill_at_random(&works, &mut workers, run_s, &mut dice).await;

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

    // All workers are killed, and all are started again after a pause.
    workers.iter_mut().for_each(Running::kill);
    pass(pause_s / 2.0).await;
    let workers = works.workers(20).await;
    let restarted = Instant::now();
    for side in &sides {
        side.first_after(restarted).await;
    }
    pass(run_s / 2.0).await;
    for side in &sides {
        side.more_than_a_second().await;
    }
    drop(workers);
    for side in &sides {
        side.assert_rate_never_exceeded();
        side.assert_slots_follow_each_other();
    }
}
