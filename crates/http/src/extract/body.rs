//! The body of a request, whole.

use actix_web::dev::{Payload, RequestHead};
use actix_web::error::PayloadError;
use actix_web::http::header::CONTENT_LENGTH;
use actix_web::web::{Bytes, BytesMut, Data};
use actix_web::{FromRequest, HttpRequest};
use futures_util::future::LocalBoxFuture;
use futures_util::{Stream, StreamExt};

use crate::AppState;
use crate::codes::Code;
use crate::problem::Problem;

/// A request's whole body, within `http.body_max_bytes` and `http.client_timeout_ms`.
pub struct Body(pub Bytes);

impl FromRequest for Body {
    type Error = Problem;
    type Future = LocalBoxFuture<'static, Result<Self, Problem>>;

    /// Always reads the body, even where the answer does not depend on it: an unread body closes the connection.
    fn from_request(request: &HttpRequest, payload: &mut Payload) -> Self::Future {
        let (request, payload) = (request.clone(), payload.take());
        Box::pin(async move {
            let app_state: &Data<AppState> = request.app_data().ok_or_else(Problem::unavailable)?;
            read_of(request.head(), payload, app_state).await.map(Self)
        })
    }
}

pub async fn read_of(head: &RequestHead, payload: Payload, app_state: &AppState) -> Result<Bytes, Problem> {
    let length = head.headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
    match tokio::time::timeout(app_state.client_timeout, read(payload, length, app_state.body_max_bytes)).await {
        Ok(body) => body,
        Err(_) => Err(Problem::from(Code::TooSlow).unread()),
    }
}

/// Reads a whole body. `length` is the length in the head, if there is one. The buffer is never larger than `max_bytes`.
pub async fn read(
    mut payload: impl Stream<Item = Result<Bytes, PayloadError>> + Unpin,
    length: Option<usize>,
    max_bytes: usize,
) -> Result<Bytes, Problem> {
    let mut next =
        async || payload.next().await.transpose().map_err(|_| Problem::invalid("the body could not be read"));
    let Some(first) = next().await? else { return Ok(Bytes::new()) };
    if first.len() > max_bytes {
        return Err(Problem::too_large(max_bytes).unread());
    }
    // Nearly every body is one chunk, which is passed on without a copy. Several chunks are joined.
    let Some(second) = next().await? else { return Ok(first) };
    let mut body = BytesMut::with_capacity(length.unwrap_or(max_bytes).min(max_bytes));
    let mut chunk = Some(second);
    body.extend_from_slice(&first);
    while let Some(more) = chunk {
        if body.len() + more.len() > max_bytes {
            return Err(Problem::too_large(max_bytes).unread());
        }
        body.extend_from_slice(&more);
        chunk = next().await?;
    }
    Ok(body.freeze())
}

#[cfg(test)]
mod tests {
    use futures_util::stream;

    use super::*;

    async fn gathered(bytes: usize, piece: usize, length: Option<usize>) -> Result<Bytes, String> {
        let body: Vec<u8> = (0..bytes).map(|n| n as u8).collect();
        let pieces: Vec<_> = body.chunks(piece).map(|piece| Ok(Bytes::copy_from_slice(piece))).collect();
        read(stream::iter(pieces), length, 1000).await.map_err(|problem| problem.to_string())
    }

    #[tokio::test]
    async fn a_body_is_whole_however_it_is_cut_and_whatever_length_was_announced() {
        for bytes in [0, 1, 2, 999, 1000] {
            for piece in [1, 7, 500, 1000] {
                for length in [None, Some(0), Some(bytes), Some(usize::MAX)] {
                    let body = gathered(bytes, piece, length).await.unwrap();
                    assert!(body.iter().enumerate().all(|(n, byte)| *byte == n as u8), "{bytes} by {piece}");
                    assert_eq!(body.len(), bytes);
                }
            }
        }
        for piece in [1, 1000, 1001, 5000] {
            assert_eq!(gathered(5000, piece, None).await, Err("body-too-large".into()));
        }
    }
}
