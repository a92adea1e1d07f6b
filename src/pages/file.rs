//! Files as the service sends them.

use bytes::Bytes;

use super::assets::short_hash;
use crate::http::Content;

pub(super) const HTML: &str = "text/html; charset=utf-8";
pub(super) const JPEG: &str = "image/jpeg";

/// What is sent: a body, its type, and the tag by which a client asks whether it has changed.
#[derive(Clone)]
pub(super) struct File {
    pub content_type: &'static str,
    pub body: Content,
    pub tag: String,
}

impl File {
    pub fn new(content_type: &'static str, body: impl Into<Bytes>) -> Self {
        Self::of(content_type, Content::plain(body))
    }

    pub fn of(content_type: &'static str, body: Content) -> Self {
        let hash = short_hash(&body.plain);
        // Two encodings have one tag, so it does not say that the bytes are the same.
        let tag = if body.is_compressed() { format!("W/\"{hash}\"") } else { format!("\"{hash}\"") };
        Self { content_type, tag, body }
    }

    /// Whether one of the tags that a client has is that of this file.
    pub fn is_one_of(&self, tags: &str) -> bool {
        let bare = |tag: &str| tag.trim().trim_start_matches("W/").to_owned();
        tags.split(',').map(bare).any(|tag| tag == bare(&self.tag) || tag == "*")
    }
}
