//! A rush at one sale, buyer by buyer, as a discrete-event simulation (`engine`).
//!
//! The way of a purchase is that of docs/ARCHITECTURE.md: a load balancer; a thread of a `serve`, which knows for half a second that
//! a shard is empty; one call of the thread to a shard's Redis master at a time, for all who wait for it; the commit line of the
//! instance, with two commits under way, each of all who wait; PostgreSQL's flushes, one after the other, each for all commits that
//! wait for it, and the answer of a synchronous standby. In such lines all who wait are served together: they are bulk
//! queues (Norman Bailey, "On Queueing Processes with Bulk Service", Journal of the Royal Statistical Society B 16, 1954): no formula
//! says how long a wait behind four of them is, which is why they are played.
//!
//! The shards of a sale are simulated by rule 15 of docs/protocol.md.

mod backlog;
mod commits;
mod crowd;
pub mod outcome;
mod purchases;
mod settling;
pub mod shedder;
/// The service's own rule, compiled from its source: this program needs nothing else of the service.
#[path = "../../../../src/domain/shedding.rs"]
pub mod shedding;
mod step;
mod system;
#[cfg(test)]
mod tests;

use clap::Args;
use serde::Serialize;

use crate::assumed::{Assumed, machines, machines_or_none};
use crate::measured::Costs;
pub use outcome::{Outcome, Part, Usage};

/// The most shards of a sale.
pub const SHARDS_MAX: u32 = 64;

/// The machines of each kind, and their processors.
#[derive(Debug, Clone, PartialEq, Eq, Args, Serialize)]
pub struct Topology {
    /// Load balancers; 0 for none
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = machines_or_none)]
    pub balancers: u32,
    /// Processors of a load balancer
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = machines)]
    pub balancer_cores: u32,
    /// Instances of `serve`
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = machines)]
    pub serve: u32,
    /// Processors of an instance, each with a thread
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = machines)]
    pub serve_cores: u32,
    /// Redis masters, each with a processor
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = machines)]
    pub redis: u32,
    /// Shards of the sale, a power of two
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = shards)]
    pub shards: u32,
    /// Processors of PostgreSQL's primary
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = machines)]
    pub postgres_cores: u32,
    /// Processes of `work`; 0 settles nothing
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = machines_or_none)]
    pub work: u32,
    /// Processors of a `work`
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = machines)]
    pub work_cores: u32,
    /// Processors of the broker's node that leads the queues
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = machines)]
    pub broker_cores: u32,
}

/// Shards are asked in an order that meets each of them, which needs a power of two.
fn shards(text: &str) -> Result<u32, String> {
    match text.parse::<u32>() {
        Ok(shards) if shards.is_power_of_two() && shards <= SHARDS_MAX => Ok(shards),
        _ => Err(format!("must be a power of two, at most {SHARDS_MAX}")),
    }
}

impl Topology {
    /// One process of each kind.
    pub fn smallest() -> Self {
        Self {
            balancers: 0,
            balancer_cores: 4,
            serve: 1,
            serve_cores: 2,
            redis: 1,
            shards: 1,
            postgres_cores: 2,
            work: 1,
            work_cores: 1,
            broker_cores: 1,
        }
    }

    /// The processors of all machines of a kind.
    pub fn cores(&self, part: Part) -> u32 {
        match part {
            Part::Client => 0,
            Part::Balancer => self.balancers * self.balancer_cores,
            Part::Serve => self.serve * self.serve_cores,
            Part::Redis => self.redis,
            Part::Postgres => self.postgres_cores,
            Part::Broker => self.broker_cores,
            Part::Work => self.work * self.work_cores,
        }
    }

    /// The machines of a kind.
    pub fn machines(&self, part: Part) -> u32 {
        match part {
            Part::Client => 0,
            Part::Balancer => self.balancers,
            Part::Serve => self.serve,
            Part::Redis => self.redis,
            Part::Postgres | Part::Broker => 1,
            Part::Work => self.work,
        }
    }
}

/// Who comes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Crowd {
    /// Buyers arrive independently of each other and of the answers, each once.
    Open { per_second: f64, seconds: f64 },
    /// So many connections of a load generator, each of which sends its next request after the last answer. A request costs the
    /// generator's one thread so much.
    Closed { connections: u32, seconds: f64, client_us: f64 },
}

/// What they ask for.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    Hello,
    Purchase,
}

/// The sale, and what is known of it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Sale {
    pub units: u64,
    /// How long a thread remembers that a shard is empty: `purchase.sold_out_memory_ms`.
    pub memory_ms: f64,
    /// Purchases that wait to be settled at the beginning.
    pub unsettled: u64,
}

/// What is played.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Rush {
    pub costs: Costs,
    pub assumed: Assumed,
    pub topology: Topology,
    /// All processes, and the load generator, share so many processors of one machine. Otherwise each has its own machine.
    pub one_machine_cores: Option<u32>,
    pub crowd: Crowd,
    pub request: Request,
    pub sale: Sale,
    pub seed: u64,
}

impl Rush {
    /// Plays the rush, and the settling of what was sold.
    pub fn play(&self) -> Outcome {
        system::System::new(self).play()
    }
}
