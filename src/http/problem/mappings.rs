//! Which problem each error of the use cases is.

use actix_web::http::header::WWW_AUTHENTICATE;

use super::{Members, Problem};
use crate::admin::AdminError;
use crate::admin::password::HashingError;
use seckill_domain::account::Denied;
use seckill_domain::ids::Invalid;
use seckill_domain::policy::WrongPolicy;
use crate::flow::FlowError;
use crate::http::codes::Code;
use crate::pay::PayError;
use crate::picture::{FILE_BYTES_MAX, PictureError};
use crate::sale::SaleError;
use crate::sale::challenges::ChallengeRefusal;
use crate::sale::purchase::Refusal;
use crate::sale::quota::CallerTooOften;
use seckill_runtime::worker::batcher::BatchError;

impl From<Invalid> for Problem {
    fn from(invalid: Invalid) -> Self {
        Self::invalid(invalid)
    }
}

impl From<SaleError> for Problem {
    fn from(error: SaleError) -> Self {
        if let SaleError::Overloaded(what) = error {
            return Self::shed(what);
        }
        tracing::warn!(%error, "request failed");
        Self::unavailable()
    }
}

impl From<PayError> for Problem {
    fn from(error: PayError) -> Self {
        if matches!(error, PayError::Batch(BatchError::TooMany)) {
            return Self::shed("payments");
        }
        tracing::warn!(%error, "request failed");
        Self::unavailable()
    }
}

impl From<AdminError> for Problem {
    fn from(error: AdminError) -> Self {
        let signed_out = |code| Self::from(code).header(WWW_AUTHENTICATE, "Cookie");
        match error {
            AdminError::Flow(error) => error.into(),
            AdminError::Invalid(invalid) => Self::invalid(invalid),
            AdminError::Malformed(malformed) => Self::invalid(malformed),
            AdminError::WrongCredentials => signed_out(Code::WrongCredentials),
            AdminError::SignedOut => signed_out(Code::SignedOut),
            AdminError::TooMany { limit, max, window_ms, retry_ms } => Self::limited(limit, max, window_ms, retry_ms),
            AdminError::Forged(why) => Self::from(Code::ForgedRequest).detail(why),
            AdminError::Denied(Denied::Forbidden) => Self::from(Code::Forbidden),
            // The answer hides which of the two it is.
            AdminError::Denied(Denied::Hidden) | AdminError::Unknown(_) => Self::from(Code::NotFound),
            AdminError::Conflict(why) => Self::from(Code::Conflict).detail(why),
            AdminError::Unworkable(why) => Self::from(Code::UnworkableTerms).detail(why),
            AdminError::Picture(PictureError::Busy) => Self::shed("pictures"),
            AdminError::Picture(PictureError::TooLong) => Self::too_large(FILE_BYTES_MAX),
            AdminError::Picture(wrong) => Self::invalid(wrong),
            AdminError::Sale(error) => error.into(),
            AdminError::IllegalState(why) => Self::from(Code::IllegalState).detail(why),
            AdminError::Busy(what) => Self::shed(what),
            AdminError::Pay(error) => error.into(),
            AdminError::Hashing(HashingError::Busy) => Self::shed("sign-ins"),
            AdminError::Gate(_) | AdminError::Ledger(_) | AdminError::Hashing(_) => {
                tracing::warn!(%error, "request failed");
                Self::unavailable()
            }
        }
    }
}

impl From<FlowError> for Problem {
    fn from(error: FlowError) -> Self {
        match &error {
            FlowError::Invalid(invalid) => Self::invalid(invalid),
            FlowError::Policy(wrong @ WrongPolicy::Unworkable(_)) => Self::from(Code::UnworkableTerms).detail(wrong),
            FlowError::Policy(wrong) => Self::invalid(wrong),
            FlowError::Unknown(_) => Self::from(Code::NotFound),
            FlowError::Ambiguous | FlowError::Exists(_) | FlowError::TwoTokens { .. } => {
                Self::from(Code::Conflict).detail(error)
            }
            FlowError::NotOwned => Self::from(Code::Forbidden).detail(error),
            FlowError::Gate(_) | FlowError::Ledger(_) => {
                tracing::warn!(%error, "request failed");
                Self::unavailable()
            }
        }
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
