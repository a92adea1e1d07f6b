//! Cross-origin requests: pages of the listed origins may call the API.

use actix_cors::Cors;
use actix_web::http::Method;
use actix_web::http::header::{AUTHORIZATION, CONTENT_TYPE, HeaderName, LINK, LOCATION, RETRY_AFTER};

use seckill_domain::origin::Origin;
use seckill_domain::trace_context::{TRACEPARENT, TRACESTATE};

const REMEMBERED_S: usize = 3600;

/// Allows the headers that the pages send and read. It does not allow cookies, so no foreign page acts for an account that is signed in
/// to the console. A request from any other origin gets no such headers, and its browser hides the answer from the page.
pub fn cors(origins: &[Origin]) -> Cors {
    let cors = Cors::default()
        .allowed_methods([Method::GET, Method::HEAD, Method::POST])
        .allowed_headers([
            AUTHORIZATION,
            CONTENT_TYPE,
            HeaderName::from_static("idempotency-key"),
            HeaderName::from_static(TRACEPARENT),
            HeaderName::from_static(TRACESTATE),
        ])
        .expose_headers([
            RETRY_AFTER,
            LOCATION,
            LINK,
            HeaderName::from_static("ratelimit"),
            HeaderName::from_static("ratelimit-policy"),
        ])
        // Browsers name the origin in requests within one origin, too.
        .block_on_origin_mismatch(false)
        .max_age(REMEMBERED_S);
    origins.iter().fold(cors, |cors, origin| cors.allowed_origin(origin.as_str()))
}
