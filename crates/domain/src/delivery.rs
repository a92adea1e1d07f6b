//! Requests to other people's servers: what an answer means for the item that was sent, and what a failure means for its receiver.
//!
//! An outage is the receiver's failure, and no item's: nothing is counted against an item while its receiver is away. A receiver that fails
//! `AWAY_FROM` times in a row is away: after a pause one item is sent as a probe. Each failed probe doubles the pause (a circuit breaker with
//! exponential backoff; Nygard, Release It!).

use std::time::Duration;

/// The meaning of an answer, or of its lack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeliveryOutcome {
    Done,
    /// The receiver will never take the item.
    Refused(String),
    Failed(ReceiverFailure),
}

/// The receiver cannot take items now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReceiverFailure {
    pub why: String,
    /// The pause that the receiver asks for.
    pub asks_pause: Option<Duration>,
    /// The item must be sent again under the same key.
    pub may_have_taken_effect: bool,
}

impl DeliveryOutcome {
    /// The meaning of an answer's status. Redirects are not followed, so they are refusals.
    pub fn of(status: u16, retry_after: Option<Duration>, body: &str) -> Self {
        let why = format!("{status} {body}").trim_end().to_owned();
        let asked = retry_after.map(|pause| pause.clamp(PAUSE_MIN, ASKED_MAX));
        match status {
            200..=299 => Self::Done,
            429 => Self::Failed(ReceiverFailure {
                why,
                asks_pause: Some(asked.unwrap_or(PAUSE_MIN)),
                may_have_taken_effect: false,
            }),
            // The same as no answer.
            408 | 425 | 500..=599 => {
                Self::Failed(ReceiverFailure { why, asks_pause: asked, may_have_taken_effect: true })
            }
            _ => Self::Refused(why),
        }
    }
}

/// With so many failures in a row a receiver is away. One or two may belong to an item that the receiver cannot process.
pub const AWAY_FROM: u32 = 3;
/// The pause before the first probe, and the longest.
pub const PAUSE_MIN: Duration = Duration::from_secs(1);
pub const PAUSE_MAX: Duration = Duration::from_secs(120);
/// The longest pause that a receiver can ask for.
const ASKED_MAX: Duration = Duration::from_secs(3_600);

/// Whether a receiver may be sent something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    Well,
    /// Nothing is sent for this time.
    Pauses(Duration),
    /// The pause is over: one item is sent as a probe.
    ProbeDue,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_status_means() {
        let failed = |status, asked| match DeliveryOutcome::of(status, asked, "no") {
            DeliveryOutcome::Failed(failure) => {
                (failure.asks_pause.map(|pause| pause.as_secs()), failure.may_have_taken_effect)
            }
            other => panic!("{status}: {other:?}"),
        };
        let secs = |s| Some(Duration::from_secs(s));
        assert_eq!(DeliveryOutcome::of(204, None, ""), DeliveryOutcome::Done);
        for status in [408, 425, 500, 502, 503, 504, 599] {
            assert_eq!(failed(status, None), (None, true));
            assert_eq!(failed(status, secs(30)), (Some(30), true));
        }
        assert_eq!(failed(429, None), (Some(1), false));
        assert_eq!(failed(429, secs(0)), (Some(1), false));
        assert_eq!(failed(429, Some(Duration::MAX)), (Some(3_600), false));
        for status in [302, 400, 401, 404, 410, 422] {
            assert_eq!(DeliveryOutcome::of(status, secs(1), "no"), DeliveryOutcome::Refused(format!("{status} no")));
        }
    }
}
