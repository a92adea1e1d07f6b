//! The steps of a rush, and what they carry from one process to the next.

use super::outcome::Answer;
use crate::engine::Nanos;
use crate::random::Random;

/// What happens next.
pub(super) enum Step {
    /// Another buyer arrives.
    Arrive,
    /// The load generator has written a first request; has read an answer.
    Sent(Buyer),
    Read(Buyer, Answer),
    /// The load balancer has passed the request on.
    Balanced(Buyer),
    /// The request is at its thread of `serve`.
    Came(Buyer),
    /// The thread has worked on it.
    Parsed(Buyer),
    /// The thread has refused it.
    Refused(Buyer),
    /// The thread has answered a hello-world request.
    Greeted(Buyer),
    /// A call is at Redis; is judged; is back at its thread; has been read there.
    Called(Call),
    Judged(Call),
    Replied(Call),
    PassedOn(Call),
    /// A commit is at PostgreSQL; its rows are written; it is back at its instance.
    Inserting(Commit),
    Inserted(Commit),
    Committed(Commit),
    /// The disk has flushed; what was flushed is durable.
    Flushed,
    Durable(Flushing),
    /// Winners of one call have their answers.
    Won(Vec<Buyer>),
    /// Settling begins, at the latest.
    Settle,
    /// A batch has passed the worker, the broker, PostgreSQL.
    Worked(Batch),
    Carried(Batch),
    Written(Batch),
    /// The shedders adjust their limits.
    Tick,
    /// The parts are looked at.
    Look,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Buyer {
    pub begun: Nanos,
    /// The thread of `serve` that serves the buyer.
    pub thread: u32,
    /// The home shard, and the distance from each shard to the one that is asked after it. The distance is odd, so that all shards
    /// are met: their number is a power of two. It differs from buyer to buyer, so that the buyers of an empty shard spread.
    pub home: u8,
    pub distance: u8,
    /// Shards that are empty, as the thread knows or Redis has said.
    pub passed: u8,
    pub was_asked: bool,
    /// Whether the shedder counts the buyer.
    pub is_counted: bool,
}

impl Buyer {
    pub fn new(begun: Nanos, thread: u32, shards: u32, random: &mut Random) -> Self {
        let (home, distance) = (random.below(shards) as u8, random.below(shards) as u8 | 1);
        Self { begun, thread, home, distance, passed: 0, was_asked: false, is_counted: false }
    }

    /// The shard to ask next.
    pub fn shard(&self, shards: usize) -> usize {
        (usize::from(self.home) + usize::from(self.distance) * usize::from(self.passed)) % shards
    }
}

/// A call of `reserve.lua` for many buyers.
pub(super) struct Call {
    pub thread: u32,
    pub shard: usize,
    pub buyers: Vec<Buyer>,
    /// The first so many have won.
    pub winners: usize,
    /// Whether the shard is empty now.
    pub is_empty: bool,
}

/// A commit under way.
pub(super) struct Commit {
    pub instance: usize,
    pub lane: usize,
    pub groups: Vec<Vec<Buyer>>,
    pub winners: usize,
}

/// What waits for PostgreSQL's disk.
pub(super) enum Flushing {
    Commit(Commit),
    Settled(Batch),
}

/// Orders that are settled together, and the loop that does it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Batch {
    pub on: usize,
    pub orders: u64,
}
