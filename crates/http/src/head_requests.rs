//! HEAD. Each address that answers GET answers HEAD by the same handler, with the same status and headers. Handlers see GET. The service's
//! front (`app::front`) changes the method, and drops the body of the answer unread.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use actix_web::body::{BodySize, MessageBody};
use actix_web::web::Bytes;
use actix_web::{HttpMessage, HttpRequest};

struct WasHead;

/// Marks a request whose method is changed from HEAD to GET.
pub fn mark(request: &impl HttpMessage) {
    request.extensions_mut().insert(WasHead);
}

/// For handlers that would begin something for the body, such as a stream of events.
pub fn was_head(request: &HttpRequest) -> bool {
    request.extensions().contains::<WasHead>()
}

/// The body of an answer to HEAD: nothing, with the length of the body that GET gets. The length of a stream is unknown.
pub struct NoBody(BodySize);

impl NoBody {
    pub fn instead_of(body: &impl MessageBody) -> Self {
        Self(match body.size() {
            BodySize::Stream => BodySize::None,
            size @ (BodySize::None | BodySize::Sized(_)) => size,
        })
    }
}

impl MessageBody for NoBody {
    type Error = Infallible;

    fn size(&self) -> BodySize {
        self.0
    }

    fn poll_next(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Bytes, Infallible>>> {
        Poll::Ready(None)
    }
}
