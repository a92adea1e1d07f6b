//! Why a permit was refused, or granted although it should not have been.

use serde::Deserialize;

/// Why a permit was refused, or granted although it should not have been.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Reason {
    /// The limit is reached.
    Limit,
    /// The policy's breaker is open: calls under it failed or were slow.
    Breaker,
    /// Too many callers wait in the policy's line already.
    QueueFull,
    /// The application's keys take all the memory in Redis that they may take.
    TooManyKeys,
    /// The service's limiter is away, and the policy says what is answered then.
    LimiterDown,
    /// The policy only counts: it would have refused.
    Shadow,
    /// The service could not be asked: [`WhenAway`](crate::WhenAway).
    #[serde(skip_deserializing)]
    ServiceAway,
    /// A reason that this version does not know.
    #[serde(other)]
    Unknown,
}
