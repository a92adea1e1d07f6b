//! What each request passes first, and each answer last.

use std::rc::Rc;
use std::task::{Context, Poll};

use actix_http::Request;
use actix_service::Service;
use actix_web::body::{EitherBody, MessageBody};
use actix_web::dev::{Response, ServiceResponse};
use actix_web::{Error, HttpResponse};
use futures_util::future::LocalBoxFuture;

use super::connection::Unanswered;
use super::slices::Slices;
use crate::api::Shortcut;
use crate::http;

/// The application of one worker thread, and the shortcut beside it.
pub struct Front<S> {
    pub app: S,
    pub shortcut: Option<Rc<Shortcut>>,
}

impl<S, B> Service<Request> for Front<S>
where
    S: Service<Request, Response = ServiceResponse<B>, Error = Error>,
    S::Future: 'static,
    B: MessageBody + 'static,
{
    type Response = Response<EitherBody<EitherBody<B>, Slices>>;
    type Error = HttpResponse;
    type Future = LocalBoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.app.poll_ready(cx).map_err(|error| error.error_response())
    }

    fn call(&self, request: Request) -> Self::Future {
        http::count_request(request.path());
        let unanswered = Unanswered::new(&request);
        let purchase =
            self.shortcut.as_ref().and_then(|shortcut| Some((Rc::clone(shortcut), Shortcut::sale(&request)?)));
        if let Some((shortcut, sale)) = purchase {
            return Box::pin(async move {
                let answer = shortcut.answer(sale, request).await.map_body(|_, body| EitherBody::right(body));
                Ok(finished(answer, unanswered))
            });
        }
        let answer = self.app.call(request);
        Box::pin(async move {
            let answer = answer.await.map_err(|error| error.error_response())?;
            Ok(finished(Response::from(answer).map_body(|_, body| EitherBody::left(body)), unanswered))
        })
    }
}

/// Adds what all answers have.
fn finished<B: MessageBody>(
    mut answer: Response<B>,
    unanswered: Option<Unanswered>,
) -> Response<EitherBody<B, Slices>> {
    drop(unanswered);
    http::answer_headers::complete(answer.headers_mut());
    answer.map_body(|_, body| Slices::of(body))
}
