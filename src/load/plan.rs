//! Who comes when: a schedule that depends on the plan and its seed alone.

use std::net::Ipv4Addr;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde::Serialize;

/// Requests that one bot sends, all with one token and without an Idempotency-Key.
const REQUESTS_PER_BOT: usize = 20;
/// Order of arrival where there is no pace: as if this many buyers came in a second.
const UNPACED_ORDER_PER_SECOND: f64 = 10_000.0;
/// Early clicks come within this time before the start, and not in the last moment, when a slow one would be on time.
const EARLY_WITHIN: Duration = Duration::from_secs(2);
const EARLY_MARGIN: Duration = Duration::from_millis(200);

/// What the rush shall be.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Address of the service, `http://host:port` with an optional path before `/api`.
    pub base: String,
    pub sale_id: i64,
    /// Buyers who come once each, and ask again until they have a definite answer.
    pub buyers: usize,
    /// Buyers arriving per second; `None` with `seconds` is `buyers / seconds`, and with neither all are due at once.
    pub rate: Option<u32>,
    /// How long buyers keep arriving, in seconds. With `rate`, no more than `rate * seconds` of the buyers come.
    pub seconds: Option<u32>,
    /// Bots, on top of the buyers and of the rate; each sends twenty requests a few milliseconds apart.
    pub bots: usize,
    /// Buyers who also click before the start; only where the rush finds the sale not yet open.
    pub early: usize,
    /// Buyers who click twice: a second request a moment later, with the same Idempotency-Key.
    pub doubles: usize,
    /// Requests for sales that do not exist.
    pub unknown: usize,
    /// Connections kept open, each with one request at a time.
    pub connections: usize,
    /// The same seed is the same schedule.
    pub seed: u64,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            base: "http://127.0.0.1:8080".to_owned(),
            sale_id: 1,
            buyers: 10_000,
            rate: None,
            seconds: None,
            bots: 0,
            early: 0,
            doubles: 0,
            unknown: 0,
            connections: 256,
            seed: 1,
        }
    }
}

/// Somebody who may buy: the name is the token's `sub`.
#[derive(Debug, Clone)]
pub struct Buyer {
    pub user: String,
    pub token: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    Buyer,
    SecondClick,
    UnknownSale,
    Bot,
    EarlyClick,
}

/// One request that is due at a moment, counted from the beginning of the rush.
#[derive(Debug, Clone, PartialEq)]
pub struct Arrival {
    pub due: Duration,
    pub role: Role,
    /// Whose token, address and Idempotency-Key: an index into the crowd.
    pub who: usize,
}

impl Plan {
    /// Whether arrivals are spread over time; if not, all are due at once and latency counts from the send.
    pub fn paced(&self) -> bool {
        self.rate_per_second().is_some()
    }

    pub fn rate_per_second(&self) -> Option<f64> {
        match (self.rate, self.seconds) {
            (Some(rate), _) => Some(f64::from(rate.max(1))),
            (None, Some(seconds)) => Some(self.buyers.max(1) as f64 / f64::from(seconds.max(1))),
            (None, None) => None,
        }
    }

    /// Buyers that really come, see [`Plan::seconds`].
    pub fn arriving(&self) -> usize {
        match (self.rate, self.seconds) {
            (Some(rate), Some(seconds)) => self.buyers.min(rate.max(1) as usize * seconds.max(1) as usize),
            _ => self.buyers,
        }
    }

    /// Identities that [`super::run`] has to be given: the buyers, then the bots.
    pub fn identities(&self) -> usize {
        self.buyers + self.bots
    }

    /// The schedule, sorted by time.
    pub fn arrivals(&self) -> Vec<Arrival> {
        let mut dice = StdRng::seed_from_u64(self.seed);
        let rate = self.rate_per_second().unwrap_or(UNPACED_ORDER_PER_SECOND);
        let buyers = self.arriving();
        let mut arrivals = Vec::with_capacity(buyers + self.doubles + self.unknown + self.bots * REQUESTS_PER_BOT);
        let mut come = |due_s: f64, role, who| {
            let due = Duration::from_secs_f64(due_s);
            arrivals.push(Arrival { due, role, who });
        };

        // Gaps drawn from the exponential distribution: people do not agree on a rhythm.
        let mut clock_s = 0.0;
        let mut doubles_left = self.doubles.min(buyers);
        for who in 0..buyers {
            clock_s += -(1.0 - dice.random::<f64>()).ln() / rate;
            come(clock_s, Role::Buyer, who);
            // Spread evenly over the crowd: the remaining double clicks among the remaining buyers.
            if dice.random_range(0..buyers - who) < doubles_left {
                doubles_left -= 1;
                come(clock_s + dice.random_range(0.05..0.15), Role::SecondClick, who);
            }
        }

        let span_s = clock_s.max(0.001);
        if buyers > 0 {
            for _ in 0..self.unknown {
                come(dice.random_range(0.0..span_s), Role::UnknownSale, dice.random_range(0..buyers));
            }
        }
        for bot in 0..self.bots {
            let mut due_s = dice.random_range(0.0..span_s);
            for _ in 0..REQUESTS_PER_BOT {
                come(due_s, Role::Bot, self.buyers + bot);
                due_s += dice.random_range(0.005..0.025);
            }
        }

        arrivals.sort_by_key(|arrival| arrival.due);
        if !self.paced() {
            arrivals.iter_mut().for_each(|arrival| arrival.due = Duration::ZERO);
        }
        arrivals
    }

    /// The clicks before the start, where it is `before_start` away; none if there is no time left for them.
    pub fn early_clicks(&self, before_start: Duration) -> Vec<Arrival> {
        let Some(window) = before_start.checked_sub(EARLY_MARGIN) else {
            return Vec::new();
        };
        let clicks = self.early.min(self.arriving());
        let from = window.saturating_sub(EARLY_WITHIN);
        let gap = (window - from) / u32::try_from(clicks.max(1)).unwrap_or(u32::MAX);
        (0u32..).zip(0..clicks).map(|(n, who)| Arrival { due: from + gap * n, role: Role::EarlyClick, who }).collect()
    }
}

/// The address a member of the crowd comes from: a network of 10.0.0.0/8 for buyers, of 172.16.0.0/12 for bots.
pub fn address(plan: &Plan, who: usize) -> Ipv4Addr {
    match who.checked_sub(plan.buyers) {
        None => Ipv4Addr::from(0x0A00_0000 | (who as u32 + 1) & 0x00FF_FFFF),
        Some(bot) => Ipv4Addr::from(0xAC10_0000 | (bot as u32 + 1) & 0x000F_FFFF),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> Plan {
        Plan { buyers: 2_000, rate: Some(1_000), bots: 3, doubles: 20, unknown: 10, seed: 7, ..Plan::default() }
    }

    fn count(arrivals: &[Arrival], role: Role) -> usize {
        arrivals.iter().filter(|arrival| arrival.role == role).count()
    }

    #[test]
    fn the_schedule_follows_from_the_seed() {
        assert_eq!(plan().arrivals(), plan().arrivals());
        assert_ne!(plan().arrivals(), Plan { seed: 8, ..plan() }.arrivals());
    }

    #[test]
    fn everybody_comes_in_order_and_at_the_rate() {
        let arrivals = plan().arrivals();
        assert!(arrivals.is_sorted_by_key(|arrival| arrival.due));
        assert_eq!(count(&arrivals, Role::Buyer), 2_000);
        assert_eq!(count(&arrivals, Role::Bot), 60);
        assert_eq!(count(&arrivals, Role::SecondClick), 20);
        assert_eq!(count(&arrivals, Role::UnknownSale), 10);
        let last =
            arrivals.iter().rfind(|arrival| arrival.role == Role::Buyer).map(|arrival| arrival.due.as_secs_f64());
        assert!(last.is_some_and(|last_s| (1.8..2.2).contains(&last_s)), "2000 at 1000 a second ended at {last:?} s");
    }

    #[test]
    fn without_a_pace_all_are_due_at_once() {
        let arrivals = Plan { rate: None, ..plan() }.arrivals();
        assert!(arrivals.iter().all(|arrival| arrival.due.is_zero()));
        assert_eq!(Plan { rate: None, seconds: Some(4), ..plan() }.rate_per_second(), Some(500.0));
    }

    #[test]
    fn rate_and_seconds_together_bound_the_crowd() {
        let bounded = Plan { seconds: Some(1), ..plan() };
        assert_eq!(count(&bounded.arrivals(), Role::Buyer), 1_000);
        assert!(Plan { buyers: 0, bots: 0, ..plan() }.arrivals().is_empty());
    }

    #[test]
    fn early_clicks_end_before_the_start() {
        let plan = Plan { early: 5, ..plan() };
        let clicks = plan.early_clicks(Duration::from_secs(10));
        assert_eq!(clicks.len(), 5);
        assert_eq!(clicks[0].due, Duration::from_millis(7_800));
        assert!(clicks[4].due < Duration::from_millis(9_800));
        assert!(plan.early_clicks(Duration::from_millis(100)).is_empty());
    }

    #[test]
    fn every_member_of_the_crowd_has_an_address() {
        let plan = Plan { buyers: 100_000, bots: 2, ..plan() };
        assert_eq!(address(&plan, 0).to_string(), "10.0.0.1");
        assert_eq!(address(&plan, 65_535).to_string(), "10.1.0.0");
        assert_eq!(address(&plan, 100_001).to_string(), "172.16.0.2");
    }
}
