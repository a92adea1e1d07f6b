//! Shared by all pages of the console: who may see a page, the frame around it, its headers, and the pages for accounts that may not
//! see it, or for whom it is not there.

use std::fmt::Display;

use actix_web::http::StatusCode;
use actix_web::http::header::{HeaderValue, LOCATION, RETRY_AFTER};
use actix_web::web::Data;
use actix_web::{HttpRequest, HttpResponse, HttpResponseBuilder, ResponseError};
use askama::Template;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use url::form_urlencoded::Serializer;

use super::files::Files;
use super::language::Language;
use super::show;
use crate::admin::{AdminError, Office, admins_only, operators_only};
use crate::api::{Ask, Caller};
use seckill_domain::account::Account;
use seckill_http::Problem;

/// The longest address that a person comes back to after signing in, in bytes.
const THEN_MAX: usize = 1000;
/// The pages may load their own files and call the API of their host. Nothing inline.
const CONTENT_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
                              connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    Viewers,
    /// Admins and managers.
    Operators,
    Admins,
}

impl Access {
    fn check(self, account: &Account) -> Result<(), AdminError> {
        match self {
            Self::Viewers => Ok(()),
            Self::Operators => operators_only(account),
            Self::Admins => admins_only(account),
        }
    }
}

pub(crate) struct Frame {
    pub(crate) account: String,
    pub(crate) role: &'static str,
    pub(crate) csrf: String,
    /// The part of the navigation that the page belongs to: `overview`, `sales`, `orders`, `money`, `queues`, `policies`,
    /// `applications`, `alarms`, `accounts` or `audit-log`.
    pub(crate) section: &'static str,
    pub(crate) may_operate: bool,
    pub(crate) is_admin: bool,
    pub(crate) dev: bool,
    pub(crate) open_alarms: i64,
    files: Data<Files>,
}

impl Frame {
    pub(crate) fn asset(&self, name: &str) -> &str {
        self.files.url(name)
    }

    fn new(caller: &Caller, section: &'static str, dev: bool, files: Data<Files>, open_alarms: i64) -> Self {
        let account = &caller.account;
        Self {
            account: account.name.to_string(),
            role: account.role.into_str(),
            csrf: caller.token.csrf(),
            section,
            may_operate: account.may_operate(),
            is_admin: account.is_admin(),
            dev,
            open_alarms,
            files,
        }
    }
}

/// The page that says why another page cannot be shown. It asks PostgreSQL nothing, because it is also shown when PostgreSQL is away.
#[derive(Template)]
#[template(path = "console/problem.html")]
struct ProblemPage<'a> {
    files: &'a Files,
    status: u16,
    problem: &'a Problem,
    detail: &'a str,
}

/// Renders a page for a signed-in account that the table of pages admits. Others are sent to sign in and come back. A page that the account
/// may not see, that does not exist or that cannot be read now is answered 403, 404 or 503. `make` runs in the line of the admin API.
pub(crate) async fn page<T: Template + 'static>(
    ask: Ask,
    section: &'static str,
    make: impl AsyncFnOnce(&Office, &Caller, Frame) -> Result<T, AdminError> + 'static,
) -> HttpResponse {
    let data = (ask.request.app_data::<Data<Files>>().cloned(), ask.request.app_data::<Access>().copied());
    let (Some(files), Some(access)) = data else {
        tracing::error!("the console's files, or who may see the page, are not among the application's data");
        return answer(StatusCode::INTERNAL_SERVER_ERROR).finish();
    };
    let (dev, of_frame, back) = (ask.app_state.dev, files.clone(), address_of(&ask.request));
    let language = Language::of(&ask.request);
    let made = ask.act(async move |office: &Office, caller: &Caller| {
        access.check(&caller.account)?;
        let open_alarms = office.open_alarms(&caller.account).await?;
        let frame = Frame::new(caller, section, dev, of_frame, open_alarms);
        make(office, caller, frame).await
    });
    match made.await {
        Ok(page) => html(language, StatusCode::OK, &page),
        Err(problem) if problem.status_code() == StatusCode::UNAUTHORIZED => to_sign_in(&back),
        Err(problem) => problem_page(language, &problem, &files),
    }
}

/// The answer at addresses of the console where there is no page. A stranger does not learn that there is none.
pub(crate) async fn missing(ask: Ask) -> HttpResponse {
    page(ask, "overview", async |_, _, _| -> Result<NoPage, AdminError> { Err(AdminError::Unknown("page")) }).await
}

#[derive(Template)]
#[template(source = "", ext = "html")]
struct NoPage;

/// An address with all conditions that are not empty, and with the last entry of the page before.
pub(crate) fn address(path: &str, conditions: &[(&str, &Option<String>)], before: Option<&dyn Display>) -> String {
    let mut query = Serializer::new(String::new());
    query.extend_pairs(
        conditions.iter().filter_map(|(name, text)| Some((name, text.as_deref().filter(|text| !text.is_empty())?))),
    );
    query.extend_pairs(before.map(|before| ("before", before.to_string())));
    let query = query.finish();
    if query.is_empty() { path.to_owned() } else { format!("{path}?{query}") }
}

pub(crate) fn html(language: Language, status: StatusCode, page: &impl Template) -> HttpResponse {
    match language.render(|| page.render()) {
        Ok(text) => answer(status).content_type("text/html; charset=utf-8").body(text),
        Err(error) => {
            tracing::error!(%error, "page of the console not made");
            answer(StatusCode::INTERNAL_SERVER_ERROR).finish()
        }
    }
}

/// An answer with the headers that all pages of the console have. No copy is kept: a page shows what only its account may see.
fn answer(status: StatusCode) -> HttpResponseBuilder {
    let mut response = HttpResponse::build(status);
    for header in [
        ("Cache-Control", "no-store"),
        ("Content-Security-Policy", CONTENT_POLICY),
        ("X-Content-Type-Options", "nosniff"),
        ("Referrer-Policy", "same-origin"),
        ("Permissions-Policy", "camera=(), geolocation=(), microphone=()"),
        ("Cross-Origin-Opener-Policy", "same-origin"),
    ] {
        response.insert_header(header);
    }
    response
}

fn problem_page(language: Language, problem: &Problem, files: &Files) -> HttpResponse {
    let status = problem.status_code();
    let page = ProblemPage { files, status: status.as_u16(), problem, detail: problem.text().unwrap_or_default() };
    let mut response = html(language, status, &page);
    if status == StatusCode::SERVICE_UNAVAILABLE {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
    }
    response
}

fn address_of(request: &HttpRequest) -> String {
    let whole = request.uri().path_and_query().map(|whole| whole.as_str()).unwrap_or_default();
    if is_own(whole) { whole.to_owned() } else { "/admin".to_owned() }
}

/// Whether an address leads to a page of the console. Braces would be filled in by the script (`data-then`).
pub(crate) fn is_own(address: &str) -> bool {
    let rest = address.strip_prefix("/admin");
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['/', '?']))
        && address.len() <= THEN_MAX
        && !address.contains(['\\', '{', '}'])
        && !address.contains(|c: char| c.is_ascii_control())
}

fn to_sign_in(back: &str) -> HttpResponse {
    let then = utf8_percent_encode(back, NON_ALPHANUMERIC);
    answer(StatusCode::SEE_OTHER).insert_header((LOCATION, format!("/admin/sign-in?then={then}"))).finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_are_sent_back_to_pages_of_the_console_only() {
        for own in ["/admin", "/admin/", "/admin?x=1", "/admin/sales/7?tab=a%20b"] {
            assert!(is_own(own), "{own}");
        }
        let long = format!("/admin/{}", "x".repeat(THEN_MAX));
        for other in ["", "/", "//evil.example", "/administrator", "https://evil.example/admin", "/admin\\x", &long] {
            assert!(!is_own(other), "{other}");
        }
        for other in ["/admin/{csrf_token}", "/admin/\r\nSet-Cookie: a=b", "\t/admin", "javascript:/admin"] {
            assert!(!is_own(other), "{other}");
        }
    }
}
