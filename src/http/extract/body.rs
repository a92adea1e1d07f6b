//! The body of a request, whole.

use std::time::Duration;

use actix_web::dev::Payload;
use actix_web::web::{Bytes, Data};
use actix_web::{FromRequest, HttpRequest};
use futures_util::StreamExt;
use futures_util::future::LocalBoxFuture;

use crate::http::AppState;
use crate::http::problem::Problem;

/// A request's whole body, within `http.body_max_bytes` and `http.client_timeout_ms`.
pub struct Body(pub Bytes);

impl FromRequest for Body {
    type Error = Problem;
    type Future = LocalBoxFuture<'static, Result<Self, Problem>>;

    /// Always reads the body, even where the answer does not depend on it: an unread body closes the connection.
    fn from_request(request: &HttpRequest, payload: &mut Payload) -> Self::Future {
        let limits = request.app_data::<Data<AppState>>().map(|app| (app.body_max_bytes, app.client_timeout));
        let (max_bytes, timeout) = limits.unwrap_or((0, Duration::ZERO));
        let payload = payload.take();
        Box::pin(async move {
            match tokio::time::timeout(timeout, read(payload, max_bytes)).await {
                Ok(body) => body.map(Self),
                Err(_) => Err(Problem::too_slow()),
            }
        })
    }
}

async fn read(mut payload: Payload, max_bytes: usize) -> Result<Bytes, Problem> {
    // Nearly every body is one chunk, which is passed on without a copy.
    let mut body = match payload.next().await {
        None => return Ok(Bytes::new()),
        Some(chunk) => chunk.map_err(|_| Problem::invalid("the body could not be read"))?,
    };
    while body.len() <= max_bytes {
        match payload.next().await {
            None => return Ok(body),
            Some(chunk) => {
                let chunk = chunk.map_err(|_| Problem::invalid("the body could not be read"))?;
                body = [body, chunk].concat().into();
            }
        }
    }
    Err(Problem::too_large(max_bytes))
}
