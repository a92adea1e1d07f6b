//! Server-sent events.

use std::ops::RangeInclusive;

use actix_web::HttpResponse;
use actix_web::http::header::CONTENT_TYPE;
use actix_web::web::Bytes;
use futures_util::stream::once;
use futures_util::{Stream, StreamExt};

/// Answers with events. A client that has lost its stream reconnects after a pause of this range: the clients of a stopped instance
/// spread out.
pub fn event_stream(retry_ms: RangeInclusive<u64>, events: impl Stream<Item = Bytes> + 'static) -> HttpResponse {
    let retry = Bytes::from(format!("retry: {}\n\n", rand::random_range(retry_ms)));
    let body = once(std::future::ready(retry)).chain(events).map(Ok::<_, actix_web::Error>);
    HttpResponse::Ok()
        .insert_header((CONTENT_TYPE, "text/event-stream"))
        // nginx would otherwise buffer the events.
        .insert_header(("X-Accel-Buffering", "no"))
        .streaming(body)
}
