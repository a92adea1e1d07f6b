//! Files as the service sends them.

use bytes::Bytes;

use seckill_http::Content;
use seckill_http::static_files::short_hash;

pub(super) const HTML: &str = "text/html; charset=utf-8";
pub(super) const JPEG: &str = "image/jpeg";

/// A file as it is sent: body, type, and the tag (ETag) by which a client asks whether it has changed.
#[derive(Clone)]
pub(super) struct File {
    pub(crate) content_type: &'static str,
    pub(crate) body: Content,
    pub(crate) tag: String,
}

impl File {
    pub(crate) fn new(content_type: &'static str, body: impl Into<Bytes>) -> Self {
        Self::of(content_type, Content::plain(body))
    }

    pub(crate) fn of(content_type: &'static str, body: Content) -> Self {
        let hash = short_hash(&body.plain);
        // The two encodings share one tag, so the tag is weak: equal tags do not mean equal bytes.
        let tag = if body.is_compressed() { format!("W/\"{hash}\"") } else { format!("\"{hash}\"") };
        Self { content_type, tag, body }
    }

    pub(crate) fn is_one_of(&self, tags: &str) -> bool {
        let bare = |tag: &str| tag.trim().trim_start_matches("W/").to_owned();
        tags.split(',').map(bare).any(|tag| tag == bare(&self.tag) || tag == "*")
    }
}
