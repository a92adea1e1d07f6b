//! Why a permit was refused, or granted beyond the limit.

use serde::Deserialize;

/// Why a permit was refused, or granted beyond the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Reason {
    /// The limit is reached.
    Limit,
    /// The policy's breaker is open: calls under it failed or were slow.
    Breaker,
    /// The policy's queue is full.
    QueueFull,
    /// The application's keys have reached their memory limit in Redis.
    TooManyKeys,
    /// The service's limiter is away, and the policy decided what to answer.
    LimiterDown,
    /// The policy only counts: otherwise it would have refused.
    Shadow,
    /// The service could not be asked: [`WhenAway`](crate::WhenAway).
    #[serde(skip_deserializing)]
    ServiceAway,
    /// A reason that this version does not know.
    #[serde(other)]
    Unknown,
}
