//! Headers of all answers: no browser takes an answer for another type than it says, shows it in a frame, or runs what is in it, and
//! no cache keeps what may be meant for one caller.

use actix_web::http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, HeaderMap, HeaderValue, X_CONTENT_TYPE_OPTIONS};

/// Adds the headers that an answer does not have. Pages bring a policy of their own, and an answer that is the same for everybody says
/// itself how long it may be kept.
pub fn complete(headers: &mut HeaderMap) {
    if !headers.contains_key(CONTENT_SECURITY_POLICY) {
        let nothing = HeaderValue::from_static("default-src 'none'; frame-ancestors 'none'");
        headers.insert(CONTENT_SECURITY_POLICY, nothing);
    }
    if !headers.contains_key(X_CONTENT_TYPE_OPTIONS) {
        headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    }
    if !headers.contains_key(CACHE_CONTROL) {
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    }
}
