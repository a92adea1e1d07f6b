//! Problems: the answers to calls that fail.

use std::fmt::Display;

use actix_web::http::StatusCode;
use actix_web::http::header::RETRY_AFTER;
use actix_web::{HttpResponse, ResponseError};
use serde_json::json;

use seckill_webhook::SignatureError;

/// The longest body of a request.
pub(crate) const BODY_MAX_BYTES: usize = 16 * 1024;

/// Why a call fails. It has no effect, except where the text says otherwise.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum Problem {
    #[error("{0}")]
    Malformed(String),
    #[error("the limit of requests per second is reached; try again in a second")]
    TooMany,
    #[error("failed on purpose (switch fail_permille); the request had no effect")]
    OnPurpose,
    #[error("this Idempotency-Key was used with another body")]
    Mismatch,
    #[error("{0}")]
    NotRefundable(&'static str),
    #[error("no payment or refund has this key")]
    Unknown,
    #[error("the payment is already decided")]
    Decided,
    #[error("the payment or refund is not decided yet")]
    NotDecided,
    #[error(transparent)]
    Unsigned(SignatureError),
    #[error("the request timed out (switch lost_answer_permille); it took effect")]
    Lost,
    #[error("the body is longer than {BODY_MAX_BYTES} bytes")]
    TooLarge,
    #[error("the body did not arrive in time")]
    TooSlow,
    #[error("no such page")]
    NotFound,
    #[error("this page does not support this method")]
    Method,
    /// The file can no longer be written. The last change may be in it or not.
    #[error("the bank is stopping; the request may have taken effect")]
    Unwritten,
}

impl Problem {
    pub(crate) fn malformed(why: &impl Display) -> Self {
        Self::Malformed(why.to_string())
    }

    const fn code(&self) -> (StatusCode, &'static str) {
        match self {
            Self::Malformed(_) => (StatusCode::BAD_REQUEST, "invalid-request"),
            Self::TooMany => (StatusCode::TOO_MANY_REQUESTS, "too-many-requests"),
            Self::OnPurpose => (StatusCode::INTERNAL_SERVER_ERROR, "failed-on-purpose"),
            Self::Mismatch => (StatusCode::UNPROCESSABLE_ENTITY, "idempotency-mismatch"),
            Self::NotRefundable(_) => (StatusCode::UNPROCESSABLE_ENTITY, "not-refundable"),
            Self::Unknown => (StatusCode::NOT_FOUND, "unknown"),
            Self::Decided => (StatusCode::CONFLICT, "already-decided"),
            Self::NotDecided => (StatusCode::CONFLICT, "not-decided"),
            Self::Unsigned(_) => (StatusCode::UNAUTHORIZED, "unauthenticated"),
            Self::Lost => (StatusCode::GATEWAY_TIMEOUT, "timed-out"),
            Self::TooLarge => (StatusCode::PAYLOAD_TOO_LARGE, "body-too-large"),
            Self::TooSlow => (StatusCode::REQUEST_TIMEOUT, "too-slow"),
            Self::NotFound => (StatusCode::NOT_FOUND, "not-found"),
            Self::Method => (StatusCode::METHOD_NOT_ALLOWED, "method-not-allowed"),
            Self::Unwritten => (StatusCode::SERVICE_UNAVAILABLE, "temporarily-unavailable"),
        }
    }
}

impl ResponseError for Problem {
    fn status_code(&self) -> StatusCode {
        self.code().0
    }

    fn error_response(&self) -> HttpResponse {
        let (status, code) = self.code();
        let mut response = HttpResponse::build(status);
        if matches!(self, Self::TooMany) {
            response.insert_header((RETRY_AFTER, "1"));
        }
        // The unread rest of a body must not be taken for the next request. A lost answer (504) closes the connection too.
        if matches!(self, Self::TooLarge | Self::TooSlow | Self::Lost) {
            response.force_close();
        }
        response.json(json!({ "code": code, "detail": self.to_string() }))
    }
}
