//! One try of an arrival.

use std::time::{Duration, Instant};

/// A request to be sent for an arrival, or under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Attempt {
    pub arrival: usize,
    /// Requests already sent for it.
    pub tries: u32,
    pub first_sent: Instant,
    pub sent: Instant,
    /// How late the first request was although a connection was free.
    pub own_lag: Duration,
}
