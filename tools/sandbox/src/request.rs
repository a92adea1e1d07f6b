//! Reads the body of a call, within bounds of size and time, and verifies its signature.

use std::time::Duration;

use actix_web::dev::Payload;
use actix_web::error::PayloadError;
use actix_web::web::{Bytes, Data};
use actix_web::{FromRequest, HttpRequest};
use chrono::Utc;
use futures_util::future::LocalBoxFuture;
use uuid::Uuid;

use super::bank::Bank;
use super::problem::Problem;
use seckill_webhook::{Secret, verify};

/// How long a body may take to arrive.
const BODY_TIMEOUT: Duration = Duration::from_secs(5);

/// The complete body of a call.
pub(crate) struct Body(pub Bytes);

impl FromRequest for Body {
    type Error = Problem;
    type Future = LocalBoxFuture<'static, Result<Self, Problem>>;

    fn from_request(request: &HttpRequest, payload: &mut Payload) -> Self::Future {
        let complete = Bytes::from_request(request, payload);
        Box::pin(async move {
            match tokio::time::timeout(BODY_TIMEOUT, complete).await {
                Ok(Ok(body)) => Ok(Self(body)),
                Ok(Err(error)) => match error.as_error::<PayloadError>() {
                    Some(PayloadError::Overflow) => Err(Problem::TooLarge),
                    _ => Err(Problem::malformed(&error)),
                },
                Err(_) => Err(Problem::TooSlow),
            }
        })
    }
}

/// A call with a valid signature (Standard Webhooks).
pub(crate) struct Signed {
    /// The time at which the head of the call was read.
    pub at_us: i64,
    /// The Idempotency-Key, if it is a UUID.
    pub key: Option<Uuid>,
    pub body: Bytes,
}

impl FromRequest for Signed {
    type Error = Problem;
    type Future = LocalBoxFuture<'static, Result<Self, Problem>>;

    fn from_request(request: &HttpRequest, payload: &mut Payload) -> Self::Future {
        let at_us = request.app_data::<Data<Bank>>().map(|bank| bank.now_us());
        let secret = request.app_data::<Data<Secret>>().cloned();
        let (body, request) = (Body::from_request(request, payload), request.clone());
        Box::pin(async move {
            let Body(body) = body.await?;
            let (Some(at_us), Some(secret)) = (at_us, secret) else { return Err(Problem::Unwritten) };
            let text = |name| request.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
            let (id, timestamp, signature) = (text("webhook-id"), text("webhook-timestamp"), text("webhook-signature"));
            let keys = std::slice::from_ref(secret.as_ref());
            verify(keys, id, timestamp, signature, &body, Utc::now().timestamp()).map_err(Problem::Unsigned)?;
            Ok(Self { at_us, key: Uuid::try_parse(text("idempotency-key")).ok(), body })
        })
    }
}
