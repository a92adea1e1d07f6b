//! The caller of a request: a cookie names the session, and every request that changes something carries a token
//! against forgery (CSRF).

use actix_web::dev::Payload;
use actix_web::http::Method;
use actix_web::http::header::{CONTENT_TYPE, HOST, ORIGIN};
use actix_web::web::{Bytes, Data};
use actix_web::{FromRequest, HttpRequest, HttpResponse};
use futures_util::future::LocalBoxFuture;
use serde::Serialize;
use serde::de::DeserializeOwned;
use uuid::Uuid;

use super::Backoffice;
use super::cookies::cookie;
use crate::admin::session::SessionToken;
use crate::admin::{AdminError, Office};
use seckill_domain::account::Account;
use seckill_domain::ids::Invalid;
use seckill_domain::json_object;
use seckill_http::extract::{Body, query};
use seckill_http::problem::Problem;
use seckill_http::{Answer, AppState};

const CSRF_HEADER: &str = "x-csrf-token";
const PATH_MAX_CHARS: usize = 200;

/// A request of a person whose session is not checked yet, with its body.
pub struct Ask {
    pub(crate) request: HttpRequest,
    pub(crate) app_state: Data<AppState>,
    pub(crate) backoffice: Data<Backoffice>,
    body: Bytes,
    reads: bool,
    /// The body is a picture, and is read elsewhere.
    sends_picture: bool,
}

impl FromRequest for Ask {
    type Error = Problem;
    type Future = LocalBoxFuture<'static, Result<Self, Problem>>;

    fn from_request(request: &HttpRequest, payload: &mut Payload) -> Self::Future {
        let (request, reads) = (request.clone(), request.method() == Method::GET);
        let body = (!reads).then(|| Body::from_request(&request, payload));
        Box::pin(async move {
            let (app_state, backoffice) = states(&request)?;
            let body = match body {
                Some(body) => body.await?.0,
                None => Bytes::new(),
            };
            Ok(Self { request, app_state, backoffice, body, reads, sends_picture: false })
        })
    }
}

fn states(request: &HttpRequest) -> Result<(Data<AppState>, Data<Backoffice>), Problem> {
    request.app_data().cloned().zip(request.app_data().cloned()).ok_or_else(Problem::unavailable)
}

impl Ask {
    /// The same for a request that changes nothing whatever its method: it stands in the line of reads.
    pub(crate) fn that_reads(self) -> Self {
        Self { reads: true, ..self }
    }

    pub(crate) fn with_picture(request: HttpRequest) -> Result<Self, Problem> {
        let (app_state, backoffice) = states(&request)?;
        Ok(Self { request, app_state, backoffice, body: Bytes::new(), reads: false, sends_picture: true })
    }

    /// Acts for the account whose session the cookie names. A refusal is written to the audit log before it is answered.
    pub(crate) async fn act<T: 'static>(
        self,
        act: impl AsyncFnOnce(&Office, &Caller) -> Result<T, AdminError> + 'static,
    ) -> Result<T, Problem> {
        let token = session_token(&self.request, &self.backoffice)?;
        let app_state = self.app_state.clone();
        let line = if self.reads { &app_state.bulkheads.admin } else { &app_state.bulkheads.admin_changes };
        line.run(act_with_token(self, token, act)).await
    }

    pub(crate) async fn answer<T: Serialize + 'static>(
        self,
        act: impl AsyncFnOnce(&Office, &Caller) -> Result<T, AdminError> + 'static,
    ) -> Answer {
        Ok(HttpResponse::Ok().json(self.act(act).await?))
    }
}

pub struct Caller {
    pub(crate) request: HttpRequest,
    pub(crate) account: Account,
    pub(crate) token: SessionToken,
    pub(crate) expires_at_ms: i64,
    body: Bytes,
}

impl Caller {
    pub(crate) fn part(&self, name: &str) -> &str {
        self.request.match_info().query(name)
    }

    pub(crate) fn number(&self, field: &'static str) -> Result<i64, Invalid> {
        let id = self.part("id").parse().ok().filter(|id| *id > 0);
        id.ok_or(Invalid::new(field, "must be a whole number of at least 1"))
    }

    pub(crate) fn uuid(&self, field: &'static str) -> Result<Uuid, Invalid> {
        Uuid::try_parse(self.part("id")).map_err(|_| Invalid::new(field, "must be a UUID"))
    }

    pub(crate) fn query<T: DeserializeOwned>(&self) -> Result<T, Invalid> {
        query(self.request.query_string())
    }

    pub(crate) fn body<T: DeserializeOwned>(&self) -> Result<T, AdminError> {
        Ok(json_object::from_body(&self.body)?)
    }
}

/// The token in the session's cookie. A malformed token is refused here and takes no place in a queue.
pub(crate) fn session_token(request: &HttpRequest, backoffice: &Backoffice) -> Result<SessionToken, AdminError> {
    let token = cookie(request, backoffice.cookies.session).ok_or(AdminError::SignedOut)?;
    backoffice.office.received(token)
}

async fn act_with_token<T>(
    ask: Ask,
    token: SessionToken,
    act: impl AsyncFnOnce(&Office, &Caller) -> Result<T, AdminError>,
) -> Result<T, AdminError> {
    let Ask { request, backoffice, body, sends_picture, .. } = ask;
    let office = &backoffice.office;
    let (account, expires_at_ms) = office.account(&token).await?;
    let caller = Caller { request, account, token, expires_at_ms, body };
    let outcome = match check_not_forged(sends_picture, &caller.request, &caller.token) {
        Ok(()) => act(office, &caller).await,
        Err(forged) => Err(forged),
    };
    // A refusal that cannot be written to the audit log is answered by the reason why.
    if let Some(why) = outcome.as_ref().err().and_then(AdminError::refusal) {
        let path: String = caller.request.path().chars().take(PATH_MAX_CHARS).collect();
        let attempt = format!("{} {path}", caller.request.method());
        office.record_refusal(&caller.account, &attempt, why).await?;
    }
    outcome
}

/// Refuses a changing request unless one of our pages sent it.
fn check_not_forged(sends_picture: bool, request: &HttpRequest, token: &SessionToken) -> Result<(), AdminError> {
    if request.method() == Method::GET {
        return Ok(());
    }
    if sends_picture {
        // A form of another site can send neither of these types.
        let is_picture = |given: String| given.starts_with("image/") || given == "application/octet-stream";
        if !content_type(request).is_some_and(is_picture) {
            return Err(AdminError::Forged("Content-Type must be an image's"));
        }
        check_origin(request)?;
    } else {
        check_same_site(request)?;
    }
    let given = request.headers().get(CSRF_HEADER).and_then(|value| value.to_str().ok());
    match given {
        Some(given) if token.is_csrf(given) => Ok(()),
        Some(_) => Err(AdminError::Forged("X-CSRF-Token is not this session's")),
        None => Err(AdminError::Forged("X-CSRF-Token is missing")),
    }
}

/// Refuses requests that another site's page could send without asking the browser: types other than JSON, and a foreign Origin.
pub(crate) fn check_same_site(request: &HttpRequest) -> Result<(), AdminError> {
    let content_type = content_type(request);
    let is_json = content_type.as_deref() == Some("application/json");
    // The body of a DELETE is not used, so it needs no type.
    let needs_none = request.method() == Method::DELETE && content_type.is_none();
    if !is_json && !needs_none {
        return Err(AdminError::Forged("Content-Type must be application/json"));
    }
    check_origin(request)
}

fn content_type(request: &HttpRequest) -> Option<String> {
    let given = request.headers().get(CONTENT_TYPE)?.to_str().unwrap_or_default();
    Some(given.split(';').next().unwrap_or_default().trim().to_ascii_lowercase())
}

fn check_origin(request: &HttpRequest) -> Result<(), AdminError> {
    let header = |name: &str| request.headers().get(name).map(|value| value.to_str().unwrap_or_default());
    let Some(origin) = header(ORIGIN.as_str()) else { return Ok(()) };
    let host = header(HOST.as_str()).unwrap_or_default();
    let origins = ["http://", "https://"].iter().filter_map(|scheme| origin.strip_prefix(scheme));
    if origins.into_iter().any(|origin| !host.is_empty() && origin.eq_ignore_ascii_case(host)) {
        Ok(())
    } else {
        Err(AdminError::Forged("Origin is another site's"))
    }
}
