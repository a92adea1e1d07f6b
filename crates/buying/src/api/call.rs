//! A request, with the state of its thread and of all threads.

use std::future::{Ready, ready};

use actix_web::dev::Payload;
use actix_web::web::Data;
use actix_web::{FromRequest, HttpRequest};

use crate::sale::thread_state::ThreadState;
use seckill_http::AppState;
use seckill_http::problem::Problem;

pub struct Call {
    pub request: HttpRequest,
    pub thread: Data<ThreadState>,
    pub app_state: Data<AppState>,
}

impl FromRequest for Call {
    type Error = Problem;
    type Future = Ready<Result<Self, Problem>>;

    fn from_request(request: &HttpRequest, _: &mut Payload) -> Self::Future {
        let state = request.app_data().cloned().zip(request.app_data().cloned());
        let call = state.map(|(thread, app_state)| Self { request: request.clone(), thread, app_state });
        ready(call.ok_or_else(Problem::unavailable))
    }
}
