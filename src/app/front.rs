//! The first code for each request, and the last for each answer.

use std::rc::Rc;
use std::task::{Context, Poll};

use actix_http::Request;
use actix_service::Service;
use actix_web::body::{BoxBody, EitherBody, MessageBody};
use actix_web::dev::{Response, ServiceResponse};
use actix_web::http::Method;
use actix_web::{Error, HttpResponse, ResponseError};
use futures_util::future::LocalBoxFuture;

use super::connection::Unanswered;
use super::slices::{LongAnswers, Slices};
use crate::api::Shortcut;
use seckill_domain::origin::Origin;
use seckill_http::codes::Code;
use seckill_http::head_requests::{self, NoBody};
use seckill_http::{self as http, Problem};

pub(crate) struct Front<S> {
    pub(crate) app: S,
    pub(crate) shortcut: Option<Rc<Shortcut>>,
    pub(crate) long_answers: Rc<LongAnswers>,
    /// In development mode, the service also answers to the host names of these origins.
    pub(crate) hosts: Option<Rc<[Origin]>>,
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

    fn call(&self, mut request: Request) -> Self::Future {
        http::count_request(request.path());
        let (unanswered, long_answers) = (Unanswered::new(&request), Rc::clone(&self.long_answers));
        if self.hosts.as_ref().is_some_and(|own| http::hosts::is_foreign(request.head(), own)) {
            let hosts = "in development mode, the names are localhost and those of pages.origin and http.cors_origins";
            let refused = Problem::from(Code::Misdirected).detail(hosts).unread();
            let refused = Response::from(refused.error_response());
            return Box::pin(async move {
                Ok(finished(refused.map_body(|_, body| EitherBody::right(body)), unanswered, &long_answers))
            });
        }
        let purchase =
            self.shortcut.as_ref().and_then(|shortcut| Some((Rc::clone(shortcut), Shortcut::sale(&request)?)));
        if let Some((shortcut, sale)) = purchase {
            return Box::pin(async move {
                let answer = shortcut.answer(sale, request).await.map_body(|_, body| EitherBody::right(body));
                Ok(finished(answer, unanswered, &long_answers))
            });
        }
        let is_head = *request.method() == Method::HEAD;
        if is_head {
            head_requests::mark(&request);
            request.head_mut().method = Method::GET;
        }
        let answer = self.app.call(request);
        Box::pin(async move {
            let answer = Response::from(answer.await.map_err(|error| error.error_response())?);
            let answer = answer.map_body(|_, body| match is_head {
                true => EitherBody::right(BoxBody::new(NoBody::instead_of(&body))),
                false => EitherBody::left(body),
            });
            Ok(finished(answer, unanswered, &long_answers))
        })
    }
}

fn finished<B: MessageBody + 'static>(
    answer: Response<EitherBody<B>>,
    unanswered: Option<Unanswered>,
    long_answers: &LongAnswers,
) -> Response<EitherBody<EitherBody<B>, Slices>> {
    drop(unanswered);
    let (head, body) = answer.into_parts();
    let mut answer = match long_answers.slice(body) {
        Some(body) => head.set_body(body),
        None => Response::from(Problem::shed("long answers").error_response())
            .map_body(|_, body| EitherBody::left(EitherBody::right(body))),
    };
    http::answer_headers::complete(answer.headers_mut());
    answer
}
