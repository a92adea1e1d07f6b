//! Bearer tokens, and the buyer that a token names.

use actix_web::dev::RequestHead;
use actix_web::http::header::AUTHORIZATION;

use crate::AppState;
use crate::problem::Problem;
use seckill_tokens::{Buyer, TokenFault};

impl AppState {
    /// The buyer whose request this is.
    pub fn buyer(&self, request: &RequestHead, now_ms: i64) -> Result<Buyer, Problem> {
        self.tokens.buyer(bearer_token(request)?, now_ms).map_err(|fault| match fault {
            // The issuer is asked for its keys. A repeat of the request is then answered.
            TokenFault::KeyNotRead => Problem::unavailable(),
            _ if self.dev => {
                let reason = self.tokens.reason(fault);
                Problem::unauthenticated(format_args!("{}: {reason}", fault.text()))
            }
            _ => Problem::unauthenticated(fault.text()),
        })
    }

    /// The user that a token names, unverified: used only to choose which requests are shed.
    pub fn unverified_user(&self, request: &RequestHead) -> Option<String> {
        self.tokens.unverified_user(bearer_token(request).ok()?)
    }
}

pub fn bearer_token(request: &RequestHead) -> Result<&str, Problem> {
    let header =
        request.headers().get(AUTHORIZATION).ok_or_else(|| Problem::unauthenticated("no Authorization header"))?;
    let (scheme, token) = header.to_str().ok().and_then(|text| text.split_once(' ')).unwrap_or_default();
    if scheme.eq_ignore_ascii_case("bearer") {
        Ok(token.trim())
    } else {
        Err(Problem::unauthenticated("not a bearer token"))
    }
}
