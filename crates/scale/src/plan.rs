//! From an aim to machines: how many of each kind a rush and a day need by what was measured, and what both then look like.
//!
//! The first guess is the utilisation law: what arrives in a second, times what it costs, is the processors that are busy; they are
//! planned to be as full as `--fill` says. Then the rush and the day are played on these machines. Machines are added while the
//! day's work waits.

use clap::Args;
use serde::Serialize;

use crate::assumed::{Assumed, count, figure, machines};
use crate::day::{Day, DayOutcome};
use crate::measured::Costs;
use crate::rush::{Crowd, Outcome, Part, Request, Rush, SHARDS_MAX, Sale, Topology};

/// Shards for each Redis master: more than one, so that masters differ little in how many they have.
const SHARDS_A_MASTER: u32 = 2;
/// Buyers who share a call to Redis, and winners who share a commit, while the first guess is made: the rush shows how many do.
const GUESSED_BATCH: f64 = 64.0;
/// How much work may wait in a day, in seconds; and for how many rounds parts grow until no more does.
const WAIT_MAX_S: f64 = 1.0;
const ROUNDS: usize = 40;
const DAYS_A_YEAR: f64 = 365.0;

/// What is aimed at.
#[derive(Debug, Clone, PartialEq, Args, Serialize)]
pub struct Aim {
    /// Buyers a second at one sale
    #[arg(long, value_name = "N", default_value_t = 1_000_000.0, value_parser = figure)]
    pub buyers_per_second: f64,
    /// Seconds for which they come
    #[arg(long, value_name = "S", default_value_t = 5.0, value_parser = figure)]
    pub seconds: f64,
    /// Units of that sale
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = count)]
    pub units: u32,
    /// Seconds in which they shall be sold
    #[arg(long, value_name = "S", default_value_t = 1.0, value_parser = figure)]
    pub sell_within_s: f64,
    /// Seconds in which they shall be settled
    #[arg(long, value_name = "S", default_value_t = 60.0, value_parser = figure)]
    pub settle_within_s: f64,
    #[command(flatten)]
    pub day: Day,
    /// Years for which orders are kept
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = count)]
    pub years: u32,
    /// Bytes that an order takes in PostgreSQL, with its indexes and what belongs to it; by default what the bench's part `scale`
    /// has measured
    #[arg(long, value_name = "N", value_parser = figure)]
    pub bytes_an_order: Option<f64>,
    /// Processors of each machine of `serve`, of a load balancer, of `work`
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = machines)]
    pub machine_cores: u32,
    /// The price of a processor for an hour, in whatever currency
    #[arg(long, value_name = "PRICE", value_parser = figure)]
    pub core_hour: Option<f64>,
}

/// What a part needs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Need {
    pub part: Part,
    /// Microseconds of a processor for a buyer of the rush while it sells, on average; and when it is sold out.
    pub selling_us: f64,
    pub sold_out_us: f64,
    pub machines: u32,
    pub cores: u32,
    /// The buyers a second at which all its processors are busy while the rush sells, and when it is sold out. `None`: nothing is
    /// asked of it then.
    pub selling_bends_at: Option<f64>,
    pub sold_out_bends_at: Option<f64>,
}

/// The orders of some years.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Kept {
    pub years: u32,
    pub orders: f64,
    pub bytes_an_order: Option<f64>,
    pub bytes: Option<f64>,
}

/// Machines, and what they do.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Plan {
    pub topology: Topology,
    pub needs: Vec<Need>,
    pub rush: Outcome,
    pub day: DayOutcome,
    pub kept: Kept,
    pub cores: u32,
    pub core_hours_a_day: f64,
    pub price_a_day: Option<f64>,
}

impl Aim {
    /// Plans the machines, and plays the rush and the day on them.
    pub fn plan(&self, costs: &Costs, assumed: &Assumed, measured_bytes: Option<f64>, seed: u64) -> Plan {
        let (topology, day) = self.enough_for_the_day(self.first_guess(costs, assumed), costs, assumed, seed);
        let rush = Rush {
            costs: costs.clone(),
            assumed: assumed.clone(),
            topology: topology.clone(),
            one_machine_cores: None,
            crowd: Crowd::Open { per_second: self.buyers_per_second, seconds: self.seconds },
            request: Request::Purchase,
            sale: Sale { units: u64::from(self.units), memory_ms: 500.0, unsettled: 0 },
            seed,
        };
        let needs = PARTS.map(|part| self.need(part, &topology, costs, assumed)).to_vec();
        let cores = needs.iter().map(|need| need.cores).sum::<u32>();
        let core_hours_a_day = f64::from(cores) * 24.0;
        let bytes_an_order = self.bytes_an_order.or(measured_bytes);
        let orders = (day.orders * DAYS_A_YEAR * f64::from(self.years)).round();
        Plan {
            rush: rush.play(),
            kept: Kept { years: self.years, orders, bytes_an_order, bytes: bytes_an_order.map(|bytes| bytes * orders) },
            price_a_day: self.core_hour.map(|price| price * core_hours_a_day),
            topology,
            needs,
            day,
            cores,
            core_hours_a_day,
        }
    }

    /// The winners among those who come in a second while the rush sells.
    fn winners_a_second(&self) -> f64 {
        (f64::from(self.units) / self.sell_within_s.max(0.001)).min(self.buyers_per_second)
    }

    /// Microseconds for a buyer, while the rush sells and when it is sold out.
    fn costs_of(&self, part: Part, costs: &Costs, assumed: &Assumed) -> (f64, f64) {
        let won = self.winners_a_second() / self.buyers_per_second.max(1.0);
        let lost = 1.0 - won;
        match part {
            Part::Balancer => (costs.balancer_us + assumed.handshake_us, costs.balancer_us + assumed.handshake_us),
            Part::Serve => (lost * costs.asked_us + won * costs.bought_us, costs.memory_us),
            Part::Redis => (costs.call_us / GUESSED_BATCH + lost * costs.refused_us + won * costs.reserved_us, 0.0),
            Part::Postgres => (won * (costs.commit_us / GUESSED_BATCH + costs.row_us), 0.0),
            Part::Client | Part::Broker | Part::Work => (0.0, 0.0),
        }
    }

    fn first_guess(&self, costs: &Costs, assumed: &Assumed) -> Topology {
        let cores = |us_a_second: f64| ((us_a_second / 1e6 / assumed.fill).ceil() as u32).max(1);
        let selling = |part| {
            let (selling, sold_out) = self.costs_of(part, costs, assumed);
            cores(self.buyers_per_second * selling.max(sold_out))
        };
        let machines_for = |part| selling(part).div_ceil(self.machine_cores);
        let settled_a_second = f64::from(self.units) / self.settle_within_s.max(0.001);
        let redis = selling(Part::Redis);
        Topology {
            balancers: machines_for(Part::Balancer),
            balancer_cores: self.machine_cores,
            serve: machines_for(Part::Serve),
            serve_cores: self.machine_cores,
            redis,
            shards: if redis == 1 { 1 } else { (redis * SHARDS_A_MASTER).next_power_of_two().min(SHARDS_MAX) },
            // Settling gives way to purchases, so PostgreSQL does either the one or the other.
            postgres_cores: selling(Part::Postgres).max(cores(settled_a_second * costs.settled.postgres_us)),
            work: cores(settled_a_second * costs.settled.work_us).div_ceil(self.machine_cores),
            work_cores: self.machine_cores,
            broker_cores: cores(settled_a_second * costs.settled.broker_us),
        }
    }

    /// Adds machines until no work of the day waits for long.
    fn enough_for_the_day(
        &self,
        mut topology: Topology,
        costs: &Costs,
        assumed: &Assumed,
        seed: u64,
    ) -> (Topology, DayOutcome) {
        let mut day = self.day.play(costs, assumed, &topology, seed);
        for _ in 0..ROUNDS {
            let waits = day.bends_first().filter(|usage| usage.longest_wait_s > WAIT_MAX_S).map(|usage| usage.part);
            // Settling waits for what is fullest of those that it needs.
            let late = (day.unsettled_for_s > self.settle_within_s).then(|| {
                let peak = |part: &Part| day.usage_of(*part).map_or(0.0, |usage| usage.peak);
                let needed = [Part::Postgres, Part::Broker, Part::Work].into_iter();
                needed.max_by(|a, b| peak(a).total_cmp(&peak(b))).unwrap_or(Part::Postgres)
            });
            let Some(part) = waits.or(late) else { break };
            match part {
                Part::Client => break,
                Part::Balancer => topology.balancers = more(topology.balancers),
                Part::Serve => topology.serve = more(topology.serve),
                Part::Redis => topology.redis = more(topology.redis),
                Part::Postgres => topology.postgres_cores = more(topology.postgres_cores),
                Part::Broker => topology.broker_cores = more(topology.broker_cores),
                Part::Work => topology.work = more(topology.work),
            }
            day = self.day.play(costs, assumed, &topology, seed);
        }
        (topology, day)
    }

    fn need(&self, part: Part, topology: &Topology, costs: &Costs, assumed: &Assumed) -> Need {
        let (selling_us, sold_out_us) = self.costs_of(part, costs, assumed);
        let (machines, cores) = (topology.machines(part), topology.cores(part));
        let bends_at = |us: f64| (us > 0.0).then(|| f64::from(cores) * 1e6 / us);
        let (selling_bends_at, sold_out_bends_at) = (bends_at(selling_us), bends_at(sold_out_us));
        Need { part, selling_us, sold_out_us, machines, cores, selling_bends_at, sold_out_bends_at }
    }
}

/// The kinds of machines that are planned.
const PARTS: [Part; 6] = [Part::Balancer, Part::Serve, Part::Redis, Part::Postgres, Part::Broker, Part::Work];

/// A quarter more, and one at least.
fn more(count: u32) -> u32 {
    count + (count / 4).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measured::Measured;

    fn aim(buyers_per_second: f64, sales_a_day: u32) -> Aim {
        let day = Day {
            sales_a_day,
            starts_a_day: 24,
            units_a_sale: 50,
            buyers_a_unit: 20.0,
            come_after_s: 10.0,
            paid: 0.8,
            pay_after_s: 60.0,
            pay_within_s: 900,
            channel_rate: 200,
        };
        Aim {
            buyers_per_second,
            seconds: 1.0,
            units: 2_000,
            sell_within_s: 0.5,
            settle_within_s: 10.0,
            day,
            years: 2,
            bytes_an_order: Some(1000.0),
            machine_cores: 4,
            core_hour: Some(0.5),
        }
    }

    fn plan(aim: &Aim) -> Plan {
        let costs = Measured::sample().unwrap().costs().unwrap();
        let assumed = Assumed { network_us: 200.0, flush_us: 200.0, standby_us: 500.0, handshake_us: 0.0, fill: 0.5 };
        aim.plan(&costs, &assumed, None, 3)
    }

    /// The planned machines carry what they were planned for: nothing is shed, all units are sold and settled in time.
    #[test]
    fn what_is_planned_carries_the_aim() {
        let aim = aim(50_000.0, 500);
        let plan = plan(&aim);
        assert_eq!((plan.rush.unavailable, plan.rush.accepted), (0, 2_000), "{plan:#?}");
        assert!(plan.rush.sold_out_after_s.is_some_and(|after| after < 1.0), "{plan:#?}");
        assert!(plan.rush.usage.iter().all(|usage| usage.mean < 0.9), "{plan:#?}");
        assert!(plan.day.unsettled_for_s <= aim.settle_within_s, "{plan:#?}");
        let due = plan.day.orders * 730.0;
        assert!((plan.kept.orders / due - 1.0).abs() < 1e-6 && plan.kept.bytes.is_some_and(|bytes| bytes > due));
        assert!(plan.price_a_day.is_some_and(|price| (price - f64::from(plan.cores) * 12.0).abs() < 1e-6));
        for need in &plan.needs {
            let mut bends = [need.selling_bends_at, need.sold_out_bends_at].into_iter().flatten();
            assert!(bends.all(|at| at >= 50_000.0), "{need:?} bends below the aim");
        }
    }

    /// More buyers and more sales need no fewer machines of any kind.
    #[test]
    fn larger_aims_need_no_fewer_machines() {
        let plans = [plan(&aim(20_000.0, 200)), plan(&aim(80_000.0, 200)), plan(&aim(80_000.0, 4_000))];
        for two in plans.windows(2) {
            for (less, more) in two[0].needs.iter().zip(&two[1].needs) {
                assert!(less.cores <= more.cores, "{less:?} {more:?}");
            }
        }
    }
}
