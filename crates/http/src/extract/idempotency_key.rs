//! The key with which a client repeats a request.

use actix_web::http::header::{HeaderMap, HeaderName};

use seckill_domain::ids::{IdempotencyKey, Invalid};

/// Made once: a text that is no standard header would be parsed for each request.
static HEADER: HeaderName = HeaderName::from_static("idempotency-key");

pub fn idempotency_key(headers: &HeaderMap) -> Result<Option<IdempotencyKey>, Invalid> {
    let mut keys = headers.get_all(&HEADER);
    match (keys.next(), keys.next()) {
        (None, _) => Ok(None),
        (Some(key), None) => IdempotencyKey::parse(key.to_str().unwrap_or_default()).map(Some),
        (Some(_), Some(_)) => Err(Invalid::new("Idempotency-Key", "must be sent once")),
    }
}
