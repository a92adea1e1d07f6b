//! Who tries again, and when.

use std::time::Duration;

use super::plan::Role;
use super::reply::Outcome;

/// A buyer without a definite answer retries for this long after the first request, and at most this often.
pub const RETRY_FOR: Duration = Duration::from_secs(30);
const MAX_RETRIES: u32 = 24;
/// First pause before a retry if there is no Retry-After; it doubles up to the second value.
const RETRY_PAUSE: Duration = Duration::from_millis(200);
const MAX_RETRY_PAUSE: Duration = Duration::from_secs(2);
/// A longer Retry-After is cut to this.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(10);

/// The pause before a retry, or `None` if the answer is final. `jitter` is in 0..1.
pub fn retry_pause(
    role: Role,
    outcome: &Outcome<'_>,
    tries: u32,
    retry_after: Option<Duration>,
    jitter: f64,
) -> Option<Duration> {
    // Only a buyer retries: the Idempotency-Key makes the repeated request the same purchase.
    if role != Role::Buyer || *outcome != (Outcome::Failed { may_retry: true }) || tries >= MAX_RETRIES {
        return None;
    }
    let default = RETRY_PAUSE.saturating_mul(1 << tries.min(10)).min(MAX_RETRY_PAUSE);
    let pause = retry_after.map_or(default, |retry_after| retry_after.clamp(RETRY_PAUSE, MAX_RETRY_AFTER));
    // Up to a quarter longer, so that callers who failed together do not retry together.
    Some(pause.mul_f64(1.0 + jitter / 4.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buyer_retries_and_a_bot_does_not() {
        let failed = Outcome::Failed { may_retry: true };
        let pause = |role, tries, retry_after| retry_pause(role, &failed, tries, retry_after, 0.0);
        assert_eq!(pause(Role::Buyer, 0, None), Some(RETRY_PAUSE));
        assert_eq!(pause(Role::Buyer, 2, None), Some(RETRY_PAUSE * 4));
        assert_eq!(pause(Role::Buyer, 20, None), Some(MAX_RETRY_PAUSE));
        assert_eq!(pause(Role::Buyer, 0, Some(Duration::from_secs(3))), Some(Duration::from_secs(3)));
        assert_eq!(pause(Role::Buyer, 0, Some(Duration::from_secs(900))), Some(MAX_RETRY_AFTER));
        assert_eq!(pause(Role::Buyer, MAX_RETRIES, None), None);
        assert_eq!(pause(Role::Bot, 0, None), None);
        assert_eq!(retry_pause(Role::Buyer, &Outcome::SoldOut, 0, None, 0.0), None);
    }
}
