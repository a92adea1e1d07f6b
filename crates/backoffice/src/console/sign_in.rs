//! The page to sign in. The form goes to the admin API, which counts attempts.

use actix_web::http::StatusCode;
use actix_web::web::{Data, Query};
use actix_web::{HttpRequest, HttpResponse};
use askama::Template;
use serde::Deserialize;

use super::files::Files;
use super::frame::{html, is_own};
use super::language::Language;
use super::show;
use seckill_http::AppState;

#[derive(Template)]
#[template(path = "console/sign-in.html")]
struct SignInPage<'a> {
    files: &'a Files,
    then: &'a str,
    dev: bool,
}

#[derive(Deserialize)]
struct ThenQuery {
    then: Option<String>,
}

/// Shows the form, also to signed-in people: they may want another account.
pub(crate) async fn show(request: HttpRequest, app_state: Data<AppState>, files: Data<Files>) -> HttpResponse {
    let query = Query::<ThenQuery>::from_query(request.query_string()).ok();
    let then = query.and_then(|query| query.into_inner().then).filter(|then| is_own(then));
    let then = then.as_deref().unwrap_or("/admin");
    html(Language::of(&request), StatusCode::OK, &SignInPage { files: &files, then, dev: app_state.dev })
}
