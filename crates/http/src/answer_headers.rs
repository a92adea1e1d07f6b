//! Headers of all answers. With them a browser does not guess another type, does not show the answer in a frame, and runs no script in
//! it. No cache keeps an answer that may be meant for one caller.

use actix_web::http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, HeaderMap, HeaderValue, X_CONTENT_TYPE_OPTIONS};

/// Adds the headers that an answer does not have yet. Pages bring a policy of their own. An answer that is the same for all callers
/// says itself how long it may be cached.
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
