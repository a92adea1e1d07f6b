//! Files as the service sends them.

use bytes::Bytes;

use super::assets::short_hash;

pub(super) const HTML: &str = "text/html; charset=utf-8";
pub(super) const JPEG: &str = "image/jpeg";

/// What is sent: a body, its type, and the tag by which a client asks whether it has changed.
#[derive(Clone)]
pub(super) struct File {
    pub content_type: &'static str,
    pub body: Bytes,
    pub tag: String,
}

impl File {
    pub fn new(content_type: &'static str, body: impl Into<Bytes>) -> Self {
        let body = body.into();
        Self { content_type, tag: format!("\"{}\"", short_hash(&body)), body }
    }
}
