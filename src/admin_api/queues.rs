//! The outbox: what it has left to do, what is parked, and sending it again. For operators.

use actix_web::web::Data;
use actix_web::{HttpRequest, HttpResponse};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;
use uuid::Uuid;

use super::path::number;
use crate::admin::queues::{OutboxQuery, RetriedAll};
use crate::domain::json_object;
use crate::domain::message::ParkedKind;
use crate::http::AppState;
use crate::http::caller::as_caller;
use crate::http::codes::problems;
use crate::http::extract::{Body, query};
use crate::http::problem::Problem;

/// What the outbox has left to do of one kind.
#[derive(Serialize, ToSchema)]
struct ToDo {
    kind: String,
    pending: i64,
    parked: i64,
    /// The age of the oldest pending message, in seconds.
    oldest_s: i64,
    /// Whether there may be more: counting ends at 10000.
    more: bool,
}

/// A message that has failed too often, and is no longer tried.
#[derive(Serialize, ToSchema)]
struct ParkedMessage {
    id: i64,
    kind: String,
    /// The order, payment or wave that the message is about.
    about: Uuid,
    sale_id: i64,
    user: String,
    attempts: i32,
    error: Option<String>,
    created_at_ms: i64,
    /// What else the message says.
    payload: Value,
}

/// What the outbox has left to do, and a page of what is parked, newest first.
#[derive(Serialize, ToSchema)]
struct Outbox {
    to_do: Vec<ToDo>,
    parked: Vec<ParkedMessage>,
    /// `before` of the next page; null on the last one.
    next_before: Option<i64>,
}

/// Which parked messages are sent again.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct RetryKind {
    kind: ParkedKind,
}

/// How many of all messages or items are sent again.
#[derive(Serialize, ToSchema)]
pub(super) struct AllRetried {
    #[schema(minimum = 0)]
    retried: u64,
    /// Whether more are parked: the time was up, or they were parked meanwhile. Then ask again.
    more: bool,
}

impl From<RetriedAll> for AllRetried {
    fn from(RetriedAll { retried, more }: RetriedAll) -> Self {
        Self { retried, more }
    }
}

/// How many messages or items are sent again.
#[derive(Serialize, ToSchema)]
pub(super) struct Retried {
    #[schema(minimum = 0)]
    pub(super) retried: u64,
}

problems!(NotListed: InvalidRequest, SignedOut, Forbidden, TemporarilyUnavailable);
problems! {
    NotDone: InvalidRequest, SignedOut, Forbidden, ForgedRequest, NotFound, TooSlow, BodyTooLarge,
    TemporarilyUnavailable
}
problems! {
    NotAllDone: InvalidRequest, SignedOut, Forbidden, ForgedRequest, TooSlow, BodyTooLarge, TemporarilyUnavailable
}

/// What the outbox has left to do, and what is parked
#[utoipa::path(
    get,
    path = "/api/v1/admin/outbox",
    operation_id = "show_outbox",
    tag = "admin",
    security(("session" = [])),
    params(OutboxQuery),
    responses((status = 200, description = "Figures, and a page of parked messages", body = Outbox), NotListed),
)]
pub async fn outbox(request: HttpRequest, app_state: Data<AppState>) -> Result<HttpResponse, Problem> {
    let page = as_caller(request, &app_state, async move |console, caller| {
        console.outbox(&caller.account, &query(caller.request.query_string())?).await
    });
    let page = page.await?;
    let to_do = page.figures.into_iter().map(|row| ToDo {
        kind: row.kind,
        pending: row.pending,
        parked: row.parked,
        oldest_s: row.oldest_s,
        more: row.more,
    });
    let parked = page.parked.into_iter().map(|row| ParkedMessage {
        id: row.id,
        kind: row.kind,
        about: row.order_id,
        sale_id: row.sale_id,
        user: row.user_id,
        attempts: row.attempts,
        error: row.last_error,
        created_at_ms: row.created_at.timestamp_millis(),
        payload: row.payload,
    });
    Ok(HttpResponse::Ok().json(Outbox { to_do: to_do.collect(), parked: parked.collect(), next_before: page.next }))
}

/// Send one parked message again
#[utoipa::path(
    post,
    path = "/api/v1/admin/outbox/{id}/retry",
    operation_id = "retry_message",
    tag = "admin",
    security(("session" = [], "csrf" = [])),
    params(("id" = i64, Path, minimum = 1, description = "The message")),
    responses((status = 200, description = "The message is pending again", body = Retried), NotDone),
)]
pub async fn retry_message(request: HttpRequest, app_state: Data<AppState>, _: Body) -> Result<HttpResponse, Problem> {
    let retried = as_caller(request, &app_state, async move |console, caller| {
        console.retry_message(&caller.account, number(&caller.request, "message id")?).await
    });
    Ok(HttpResponse::Ok().json(Retried { retried: retried.await? }))
}

/// Send all parked messages of a kind again
///
/// A thousand at a time, for 3 s at most. An instance does so for one caller at a time.
#[utoipa::path(
    post,
    path = "/api/v1/admin/outbox/retry",
    operation_id = "retry_messages",
    tag = "admin",
    security(("session" = [], "csrf" = [])),
    request_body = RetryKind,
    responses((status = 200, description = "The messages are pending again", body = AllRetried), NotAllDone),
)]
pub async fn retry_messages(
    request: HttpRequest,
    app_state: Data<AppState>,
    Body(body): Body,
) -> Result<HttpResponse, Problem> {
    let retried = as_caller(request, &app_state, async move |console, caller| {
        let RetryKind { kind } = json_object::from_slice(&body)?;
        console.retry_messages(&caller.account, kind).await
    });
    Ok(HttpResponse::Ok().json(AllRetried::from(retried.await?)))
}
