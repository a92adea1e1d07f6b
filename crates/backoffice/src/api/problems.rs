//! Which problem each error of the use cases is.

use actix_web::http::header::WWW_AUTHENTICATE;

use crate::admin::AdminError;
use crate::admin::password::HashingError;
use crate::picture::{FILE_BYTES_MAX, PictureError};
use seckill_domain::account::Denial;
use seckill_http::codes::Code;
use seckill_http::problem::Problem;

impl From<AdminError> for Problem {
    fn from(error: AdminError) -> Self {
        let signed_out = |code| Self::from(code).header(WWW_AUTHENTICATE, "Cookie");
        match error {
            AdminError::Flow(error) => error.into(),
            AdminError::Invalid(invalid) => invalid.into(),
            AdminError::Malformed(malformed) => Self::invalid(malformed),
            AdminError::WrongCredentials => signed_out(Code::WrongCredentials),
            AdminError::SignedOut => signed_out(Code::SignedOut),
            AdminError::TooMany { limit, max, window_ms, retry_ms } => Self::limited(limit, max, window_ms, retry_ms),
            AdminError::Forged(why) => Self::from(Code::ForgedRequest).detail(why),
            AdminError::Denied(Denial::Forbidden) => Self::from(Code::Forbidden),
            // The answer hides which of the two it is.
            AdminError::Denied(Denial::Hidden) | AdminError::Unknown(_) => Self::from(Code::NotFound),
            AdminError::Conflict(why) => Self::from(Code::Conflict).detail(why),
            AdminError::Unworkable(why) => Self::from(Code::UnworkableTerms).about(&why),
            AdminError::Picture(PictureError::Busy) => Self::shed("pictures"),
            AdminError::Picture(PictureError::TooLong) => Self::too_large(FILE_BYTES_MAX),
            AdminError::Picture(wrong) => Self::invalid(wrong),
            AdminError::Sale(error) => error.into(),
            AdminError::OtherRequest => Self::from(Code::IdempotencyMismatch),
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
