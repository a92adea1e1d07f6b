//! Which problem each error of a buyer's use cases is.

use crate::sale::SaleError;
use crate::sale::challenges::ChallengeRefusal;
use crate::sale::purchase::Refusal;
use seckill_http::codes::Code;
use seckill_http::problem::{Members, Problem};
use seckill_http::quota::CallerTooOften;

impl From<SaleError> for Problem {
    fn from(error: SaleError) -> Self {
        if let SaleError::Overloaded(what) = error {
            return Self::shed(what);
        }
        tracing::warn!(%error, "request failed");
        Self::unavailable()
    }
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::TooMany { per_user } => {
                Self::invalid(format_args!("quantity may be at most {} in this sale", per_user.get()))
            }
            Refusal::UnknownSale => Self::from(Code::UnknownSale),
            Refusal::NotStarted { starts_at_ms } => {
                Self::from(Code::NotStarted).with(Members { starts_at_ms: Some(starts_at_ms), ..Members::default() })
            }
            Refusal::Ended => Self::from(Code::Ended),
            Refusal::WrongKey => Self::from(Code::WrongKey),
            Refusal::LevelTooLow { min_level } => {
                Self::from(Code::LevelTooLow).with(Members { min_level: Some(min_level), ..Members::default() })
            }
            Refusal::NotAllowed => Self::from(Code::NotAllowed),
            Refusal::PassInvalid => Self::from(Code::PassInvalid),
            Refusal::SoldOut => Self::from(Code::SoldOut),
            Refusal::AlreadyPurchased { order } => {
                Self::from(Code::AlreadyPurchased).with(Members { order_id: order, ..Members::default() })
            }
            Refusal::IdempotencyMismatch => Self::from(Code::IdempotencyMismatch),
            Refusal::Limited { limit, window, retry_ms } => {
                Self::limited(limit.as_str(), window.max, window.window_ms.unsigned_abs(), retry_ms)
            }
            Refusal::Lapsed { allowed, retry_ms } => {
                Self::limited("lapsed-holds", allowed.max, allowed.window_ms.unsigned_abs(), retry_ms)
                    .detail("you reserved several times and did not pay in time; please wait before the next time")
            }
            Refusal::Unavailable => Self::unavailable(),
        }
    }
}

impl From<ChallengeRefusal> for Problem {
    fn from(refusal: ChallengeRefusal) -> Self {
        match refusal {
            ChallengeRefusal::UnknownSale => Self::from(Code::UnknownSale),
            ChallengeRefusal::NotStarted { starts_at_ms, opens_at_ms } => {
                let members =
                    Members { starts_at_ms: Some(starts_at_ms), opens_at_ms: Some(opens_at_ms), ..Members::default() };
                Self::from(Code::NotStarted).with(members)
            }
            ChallengeRefusal::Ended => Self::from(Code::Ended),
            ChallengeRefusal::NoChallenge => Self::from(Code::NoChallenge),
            ChallengeRefusal::Failed => Self::from(Code::ChallengeFailed),
            ChallengeRefusal::TooOften(CallerTooOften::Buyer(too_often)) => Self::too_often("buyer", too_often),
            ChallengeRefusal::TooOften(CallerTooOften::Address(too_often)) => Self::too_often("address", too_often),
            ChallengeRefusal::PoolEmpty => Self::shed("challenges"),
            ChallengeRefusal::Unavailable => Self::unavailable(),
        }
    }
}
