//! The schedule of a rush, which depends on the plan and its seed alone.

use std::net::Ipv4Addr;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde::Serialize;

use super::shape::Shape;

/// Number of requests that one bot sends, all with one token and without an Idempotency-Key.
pub(crate) const REQUESTS_PER_BOT: usize = 20;
/// How long a crowd keeps arriving if neither a rate nor a length is given.
const LENGTH_S: f64 = 10.0;
/// Early clicks come within this time before the start, but not in the last moment, when a slow one would be on time.
const EARLY_WITHIN: Duration = Duration::from_secs(2);
const EARLY_MARGIN: Duration = Duration::from_millis(200);

/// The most connections of a crowd: the service's queue for new ones, and the system's ports, bear so many.
pub const CONNECTIONS_MAX: usize = 10_000;

/// The settings of a rush.
#[derive(Debug, Clone, Default)]
pub struct Plan {
    /// Address of the service, `http://host:port` with an optional path before `/api`.
    pub base: String,
    pub sale_id: i64,
    /// Number of buyers. Each buys once, and retries until there is a definite answer.
    pub buyers: usize,
    pub shape: Shape,
    /// Buyers arriving per second, on average. Without it, they arrive over `seconds`, or else over ten seconds.
    pub rate: Option<u32>,
    /// How long buyers keep arriving, in seconds. With `rate`, no more than `rate * seconds` of the buyers come.
    pub seconds: Option<u32>,
    /// Bots, on top of the buyers and of the rate; each sends twenty requests a few milliseconds apart.
    pub bots: usize,
    /// Buyers who also click before the start, if the sale is not open yet.
    pub early: usize,
    /// Buyers who click twice: a second request a moment later, with the same Idempotency-Key.
    pub doubles: usize,
    /// Requests for sales that do not exist.
    pub unknown: usize,
    /// Requests with a forged signature on their token.
    pub forged: usize,
    /// Units left when the rush begins, if known; the report counts down from this number.
    pub stock: Option<u64>,
    /// The most connections, each with one request at a time; at least 1.
    pub connections: usize,
    /// Threads that send, at least 1, each its share of the arrivals over its share of the connections.
    pub threads: usize,
    /// A buyer without a definite answer does not try again.
    pub no_retries: bool,
    /// The same seed gives the same schedule.
    pub seed: u64,
}

/// A buyer; `user` is the token's `sub`.
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
    ForgedToken,
    Bot,
    EarlyClick,
}

impl Role {
    /// Whether the service must refuse their requests, whatever the stock.
    pub fn must_be_refused(self) -> bool {
        matches!(self, Self::UnknownSale | Self::ForgedToken | Self::EarlyClick)
    }
}

/// A caller's request, and when it is due, counted from the beginning of the rush.
#[derive(Debug, Clone, PartialEq)]
pub struct Arrival {
    pub due: Duration,
    pub role: Role,
    /// Index into the crowd, for the token, the address and the Idempotency-Key.
    pub caller: usize,
}

impl Plan {
    pub fn rate_per_second(&self) -> f64 {
        self.arriving().max(1) as f64 / self.length_s()
    }

    /// Length of the rush in seconds, from the earliest possible arrival to the latest.
    pub fn length_s(&self) -> f64 {
        match (self.shape, self.rate, self.seconds) {
            (Shape::Even, Some(rate), _) | (Shape::Rush, Some(rate), None) => {
                (self.arriving() as f64 / f64::from(rate.max(1))).max(0.001)
            }
            (_, _, Some(seconds)) => f64::from(seconds.max(1)),
            (_, None, None) => LENGTH_S,
        }
    }

    /// Number of buyers who arrive, see [`Plan::seconds`].
    pub fn arriving(&self) -> usize {
        match (self.rate, self.seconds) {
            (Some(rate), Some(seconds)) => self.buyers.min(rate.max(1) as usize * seconds.max(1) as usize),
            _ => self.buyers,
        }
    }

    /// Number of identities that [`super::run`] takes: the buyers, then the bots.
    pub fn identities(&self) -> usize {
        self.buyers + self.bots
    }

    /// The schedule, sorted by time.
    pub fn arrivals(&self) -> Vec<Arrival> {
        let mut rng = StdRng::seed_from_u64(self.seed);
        let (buyers, length_s) = (self.arriving(), self.length_s());
        let moment = |rng: &mut StdRng| self.shape.moment(rng, length_s);
        let mut moments_s: Vec<f64> = (0..buyers).map(|_| moment(&mut rng)).collect();
        moments_s.sort_by(f64::total_cmp);
        let extra = self.doubles + self.unknown + self.forged + self.bots * REQUESTS_PER_BOT;
        let mut arrivals = Vec::with_capacity(buyers + extra);
        let mut add = |due_s: f64, role, caller| {
            let due = Duration::from_secs_f64(due_s);
            arrivals.push(Arrival { due, role, caller });
        };

        let mut doubles_left = self.doubles.min(buyers);
        for (buyer, due_s) in moments_s.iter().enumerate() {
            add(*due_s, Role::Buyer, buyer);
            // Spread evenly over the crowd: the remaining double clicks among the remaining buyers.
            if rng.random_range(0..buyers - buyer) < doubles_left {
                doubles_left -= 1;
                add(due_s + rng.random_range(0.05..0.15), Role::SecondClick, buyer);
            }
        }

        // The others arrive in the same shape as the buyers.
        if buyers > 0 {
            for (role, number) in [(Role::UnknownSale, self.unknown), (Role::ForgedToken, self.forged)] {
                for _ in 0..number {
                    add(moment(&mut rng), role, rng.random_range(0..buyers));
                }
            }
        }
        for bot in 0..self.bots {
            let mut due_s = moment(&mut rng);
            for _ in 0..REQUESTS_PER_BOT {
                add(due_s, Role::Bot, self.buyers + bot);
                due_s += rng.random_range(0.005..0.025);
            }
        }

        arrivals.sort_by_key(|arrival| arrival.due);
        arrivals
    }

    /// The clicks before the start, which is `before_start` away; none if too little time is left.
    pub fn early_clicks(&self, before_start: Duration) -> Vec<Arrival> {
        let Some(window) = before_start.checked_sub(EARLY_MARGIN) else {
            return Vec::new();
        };
        let clicks = self.early.min(self.arriving());
        let from = window.saturating_sub(EARLY_WITHIN);
        let gap = (window - from) / u32::try_from(clicks.max(1)).unwrap_or(u32::MAX);
        (0u32..)
            .zip(0..clicks)
            .map(|(n, caller)| Arrival { due: from + gap * n, role: Role::EarlyClick, caller })
            .collect()
    }
}

/// The address of a caller: in 10.0.0.0/8 for buyers, in 172.16.0.0/12 for bots.
pub(crate) fn address(plan: &Plan, caller: usize) -> Ipv4Addr {
    match caller.checked_sub(plan.buyers) {
        None => Ipv4Addr::from(0x0A00_0000 | (caller as u32 + 1) & 0x00FF_FFFF),
        Some(bot) => Ipv4Addr::from(0xAC10_0000 | (bot as u32 + 1) & 0x000F_FFFF),
    }
}

/// The address from which a forged token is sent, in 192.168.0.0/16.
pub(crate) fn forger_address(n: usize) -> Ipv4Addr {
    Ipv4Addr::from(0xC0A8_0000 | (n as u32 + 1) & 0x0000_FFFF)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> Plan {
        Plan {
            buyers: 2_000,
            rate: Some(1_000),
            bots: 3,
            doubles: 20,
            unknown: 10,
            forged: 5,
            seed: 7,
            ..Plan::default()
        }
    }

    fn rush() -> Plan {
        Plan { shape: Shape::Rush, rate: None, ..plan() }
    }

    fn count(arrivals: &[Arrival], role: Role) -> usize {
        arrivals.iter().filter(|arrival| arrival.role == role).count()
    }

    /// Whatever the shape, the schedule follows from the seed, is in order, and has every caller.
    #[test]
    fn each_shape_has_all_arrivals() {
        for plan in [plan(), rush()] {
            let arrivals = plan.arrivals();
            assert_eq!(arrivals, plan.arrivals());
            assert_ne!(arrivals, Plan { seed: 8, ..plan.clone() }.arrivals());
            assert!(arrivals.is_sorted_by_key(|arrival| arrival.due));
            for (role, number) in [
                (Role::Buyer, 2_000),
                (Role::SecondClick, 20),
                (Role::UnknownSale, 10),
                (Role::ForgedToken, 5),
                (Role::Bot, 60),
            ] {
                assert_eq!(count(&arrivals, role), number, "{role:?}");
            }
            let buyers = arrivals.iter().filter(|arrival| arrival.role == Role::Buyer);
            assert!(buyers.map(|arrival| arrival.caller).eq(0..2_000), "every buyer comes once");
        }
    }

    #[test]
    fn arrivals_come_at_the_rate_and_in_the_shape() {
        let arrivals = plan().arrivals();
        let last =
            arrivals.iter().rfind(|arrival| arrival.role == Role::Buyer).map(|arrival| arrival.due.as_secs_f64());
        assert!(last.is_some_and(|last_s| (1.8..2.2).contains(&last_s)), "2000 at 1000 a second ended at {last:?} s");
        let arrivals = rush().arrivals();
        let early = arrivals.iter().filter(|arrival| arrival.due < Duration::from_secs(1)).count();
        assert!(early * 2 > arrivals.len(), "{early} of {} in the first second", arrivals.len());
    }

    #[test]
    fn rate_and_seconds_together_bound_the_crowd() {
        for (plan, rate, length_s) in [
            (plan(), 1_000.0, 2.0),
            (Plan { rate: None, seconds: Some(4), ..plan() }, 500.0, 4.0),
            (Plan { seconds: Some(10), ..plan() }, 1_000.0, 2.0),
            (rush(), 200.0, 10.0),
            (Plan { seconds: Some(4), ..rush() }, 500.0, 4.0),
            (Plan { rate: Some(100), ..rush() }, 100.0, 20.0),
            (Plan { rate: Some(100), seconds: Some(5), ..rush() }, 100.0, 5.0),
        ] {
            assert_eq!((plan.rate_per_second(), plan.length_s()), (rate, length_s), "{plan:?}");
        }
        assert_eq!(count(&Plan { seconds: Some(1), ..plan() }.arrivals(), Role::Buyer), 1_000);
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
    fn every_caller_has_an_address() {
        let plan = Plan { buyers: 100_000, bots: 2, ..plan() };
        let addresses = [0, 65_535, 100_001].map(|caller| address(&plan, caller).to_string());
        assert_eq!(addresses, ["10.0.0.1", "10.1.0.0", "172.16.0.2"]);
    }
}
