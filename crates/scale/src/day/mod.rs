//! A day of many sales, second by second, as fluids: each part is a tank that fills with work and is emptied at the rate of its
//! processors (Gordon Newell, "Applications of Queueing Theory", 1982, chapter 2). So it tells which part is too small for how long,
//! and not how waits are spread within a second: that is what a simulated rush (`rush`) is for.
//!
//! PostgreSQL commits winners first, then settles, then cancels, then carries payments, as the service gives way to purchases. What
//! nobody has measured is left out: reads, page views, refunds. An order that lapses is taken to cost what settling it has cost.

mod orders;
pub mod outcome;
mod tank;
#[cfg(test)]
mod tests;

use clap::Args;
use serde::Serialize;

use crate::assumed::{Assumed, count, figure, share};
use crate::measured::{CALL_MAX, Costs};
use crate::random::Random;
use crate::rush::{Part, Topology};
use orders::Orders;
pub use outcome::{DayOutcome, DayUsage};
use tank::Tank;

const DAY_S: usize = 86_400;
/// What is not done two days after the beginning is given up.
const END_S: usize = 2 * DAY_S;
/// `purchase.committers`.
const COMMITTERS: f64 = 2.0;

/// What a day consists of.
#[derive(Debug, Clone, PartialEq, Args, Serialize)]
pub struct Day {
    /// Sales in a day
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = count)]
    pub sales_a_day: u32,
    /// Moments of the day at which sales begin, such as each full hour; as many sales begin at each
    #[arg(long, value_name = "N", default_value_t = 24, value_parser = count)]
    pub starts_a_day: u32,
    /// Units of a sale
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = count)]
    pub units_a_sale: u32,
    /// Buyers who come for a unit, on average: sales differ
    #[arg(long, value_name = "N", default_value_t = 20.0, value_parser = figure)]
    pub buyers_a_unit: f64,
    /// Seconds after the start at which a buyer comes, on average
    #[arg(long, value_name = "S", default_value_t = 10.0, value_parser = figure)]
    pub come_after_s: f64,
    /// The share of orders that are paid
    #[arg(long, value_name = "SHARE", default_value_t = 0.8, value_parser = share)]
    pub paid: f64,
    /// Seconds from an order to its payment, on average
    #[arg(long, value_name = "S", default_value_t = 60.0, value_parser = figure)]
    pub pay_after_s: f64,
    /// Seconds after which an order lapses that its buyer does not pay
    #[arg(long, value_name = "S", default_value_t = 900, value_parser = count)]
    pub pay_within_s: u32,
    /// Payments a second that all channels together take
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = count)]
    pub channel_rate: u32,
}

/// A sale that buyers still come to.
struct Live {
    begun: usize,
    buyers: f64,
    units_left: f64,
}

/// Who came in a second.
#[derive(Default)]
struct Came {
    buyers: f64,
    /// Of them: for whom Redis was asked, and in how many calls; who won.
    asked: f64,
    calls: f64,
    won: f64,
}

/// The parts of the system.
struct Tanks {
    balancer: Tank,
    serve: Tank,
    redis: Tank,
    postgres: Tank,
    broker: Tank,
    work: Tank,
}

impl Tanks {
    fn new(topology: &Topology) -> Self {
        let tank = |part| Tank::new(part, topology.cores(part));
        Self {
            balancer: tank(Part::Balancer),
            serve: tank(Part::Serve),
            redis: tank(Part::Redis),
            postgres: tank(Part::Postgres),
            broker: tank(Part::Broker),
            work: tank(Part::Work),
        }
    }

    fn all(&mut self) -> [&mut Tank; 6] {
        let Self { balancer, serve, redis, postgres, broker, work } = self;
        [balancer, serve, redis, postgres, broker, work]
    }

    /// Gives each part the work of those who came.
    fn fill(&mut self, came: &Came, commits: f64, costs: &Costs, assumed: &Assumed) {
        let (lost, known) = (came.asked - came.won, came.buyers - came.asked);
        self.balancer.fill(came.buyers * (costs.balancer_us + assumed.handshake_us));
        self.serve.fill(known * costs.memory_us + lost * costs.asked_us + came.won * costs.bought_us);
        self.redis.fill(came.calls * costs.call_us + lost * costs.refused_us + came.won * costs.reserved_us);
        self.postgres.fill(commits * costs.commit_us + came.won * costs.row_us);
        self.broker.fill(0.0);
        self.work.fill(0.0);
    }
}

impl Day {
    /// Plays a day on these machines, and the time after it until all is done.
    pub fn play(&self, costs: &Costs, assumed: &Assumed, topology: &Topology, seed: u64) -> DayOutcome {
        let (mut tanks, mut orders) = (Tanks::new(topology), Orders::default());
        let (mut live, mut random) = (Vec::new(), Random::new(seed));
        let (mut outcome, mut unsettled_for_s) = (DayOutcome::default(), 0.0);
        for second in 0..END_S {
            if second >= DAY_S && live.is_empty() && orders.are_done() {
                break;
            }
            if second < DAY_S {
                self.begin_sales(second, &mut live, &mut random);
            }
            let came = self.come(second, &mut live, topology, assumed, costs);
            tanks.fill(&came, commits(came.won, topology, assumed, costs), costs, assumed);
            orders.win(came.won);
            orders.go_on(second, self, &mut tanks, costs);
            tanks.all().into_iter().for_each(Tank::end_second);

            outcome.buyers += came.buyers;
            outcome.most_buyers_a_second = outcome.most_buyers_a_second.max(came.buyers);
            unsettled_for_s = if orders.unsettled > 0.5 { unsettled_for_s + 1.0 } else { 0.0 };
            outcome.unsettled_most = outcome.unsettled_most.max(orders.unsettled);
            outcome.unsettled_for_s = outcome.unsettled_for_s.max(unsettled_for_s);
            outcome.payments_waiting_most = outcome.payments_waiting_most.max(orders.wish);
        }
        outcome.payments_wait_s = outcome.payments_waiting_most / f64::from(self.channel_rate);
        let there = tanks.all().into_iter().filter(|tank| tank.is_there());
        let usage = there.map(|tank| tank.usage()).collect();
        let Orders { won, settled, paid, lapsed, .. } = orders;
        DayOutcome { orders: won, settled, paid, lapsed, usage, ..outcome }
    }

    /// Begins the sales of this second. Their crowds differ, as independent lives do: by an exponential distribution.
    fn begin_sales(&self, second: usize, live: &mut Vec<Live>, random: &mut Random) {
        let starts = self.starts_a_day as usize;
        let first = (second * starts).div_ceil(DAY_S);
        for start in (first..starts).take_while(|start| start * DAY_S / starts == second) {
            let (sales, more) = (self.sales_a_day as usize / starts, self.sales_a_day as usize % starts);
            for _ in 0..sales + usize::from(start < more) {
                let units_left = f64::from(self.units_a_sale);
                let buyers = random.exponential(units_left * self.buyers_a_unit);
                live.push(Live { begun: second, buyers, units_left });
            }
        }
    }

    /// The buyers of a second. Redis is asked for all who come before the sale is known to be sold out.
    fn come(&self, second: usize, live: &mut Vec<Live>, topology: &Topology, assumed: &Assumed, costs: &Costs) -> Came {
        let mut came = Came::default();
        // A thread has one call of a sale under way at a time, so many come together in one when many come.
        let calls_max = f64::from(topology.cores(Part::Serve)) * 1e6 / (assumed.network_us + costs.call_us).max(1.0);
        let still_to_come = |since: usize| (-(since as f64) / self.come_after_s.max(0.001)).exp();
        live.retain_mut(|sale| {
            let since = second - sale.begun;
            let later = sale.buyers * still_to_come(since + 1);
            let is_last = later < 0.5;
            let now = sale.buyers * still_to_come(since) - if is_last { 0.0 } else { later };
            let won = now.min(sale.units_left);
            came.buyers += now;
            if sale.units_left > 0.0 {
                came.asked += now;
                came.calls += now.min(calls_max).max(now / CALL_MAX);
                came.won += won;
                sale.units_left -= won;
            }
            !is_last
        });
        came
    }
}

/// The commits of a second: each instance has two under way at a time, for all who wait.
fn commits(won: f64, topology: &Topology, assumed: &Assumed, costs: &Costs) -> f64 {
    let takes_us = assumed.network_us + assumed.flush_us + assumed.standby_us + costs.commit_us;
    let most = f64::from(topology.serve) * COMMITTERS * 1e6 / takes_us.max(1.0);
    won.min(most)
}
