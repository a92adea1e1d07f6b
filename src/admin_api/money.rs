//! Payments, refunds, and callbacks that contradict our books. For operators.

use actix_web::web::Data;
use actix_web::{HttpRequest, HttpResponse};
use serde::Serialize;
use utoipa::ToSchema;

use super::money_line::MoneyLine;
use super::path::{number, uuid};
use crate::admin::money::{ConflictQuery, MoneyFigures, MoneyPage, PaymentQuery, RefundQuery};
use crate::domain::payment::{PaymentId, RefundId};
use crate::http::AppState;
use crate::http::caller::as_caller;
use crate::http::codes::problems;
use crate::http::extract::{Body, query};
use crate::http::problem::Problem;

/// How money stands.
#[derive(Serialize, ToSchema)]
#[schema(as = MoneyFigures)]
struct Figures {
    /// Payments that wait to be sent to their channel, and the age of the oldest in seconds.
    created: i64,
    oldest_s: i64,
    /// Payments that were sent, and whose outcome is not known yet.
    under_way: i64,
    /// Refunds that are under way, and those that their channel has refused.
    refunds: i64,
    refunds_failed: i64,
    /// Callbacks that contradict our books.
    set_aside: i64,
}

/// A page of payments, newest first.
#[derive(Serialize, ToSchema)]
struct Payments {
    figures: Figures,
    payments: Vec<MoneyLine>,
    /// `before` of the next page; null on the last one.
    next_before: Option<PaymentId>,
}

/// A page of refunds, newest first.
#[derive(Serialize, ToSchema)]
struct Refunds {
    figures: Figures,
    refunds: Vec<MoneyLine>,
    /// `before` of the next page; null on the last one.
    next_before: Option<RefundId>,
}

/// A signed callback, or an answer of a payment channel, that cannot be applied to our books. It had no effect.
#[derive(Serialize, ToSchema)]
#[schema(as = CallbackSetAside)]
struct Conflict {
    id: i64,
    at_ms: i64,
    channel: String,
    message_id: String,
    problem: String,
    /// The callback's body, as it came.
    body: String,
}

/// A page of callbacks that are not settled yet, newest first.
#[derive(Serialize, ToSchema)]
#[schema(as = CallbacksSetAside)]
struct Conflicts {
    conflicts: Vec<Conflict>,
    /// `before` of the next page; null on the last one.
    next_before: Option<i64>,
}

/// The callback is settled.
#[derive(Serialize, ToSchema)]
#[schema(as = CallbackSettled)]
struct Settled {
    settled: i64,
}

/// The refund is sent again.
#[derive(Serialize, ToSchema)]
struct RefundRetried {
    refund_id: RefundId,
}

impl From<MoneyFigures> for Figures {
    fn from(figures: MoneyFigures) -> Self {
        let MoneyFigures { created, oldest_s, under_way, refunds, refunds_failed, set_aside } = figures;
        Self { created, oldest_s, under_way, refunds, refunds_failed, set_aside }
    }
}

problems!(NotListed: InvalidRequest, SignedOut, Forbidden, TemporarilyUnavailable);
problems! {
    NotDone: InvalidRequest, SignedOut, Forbidden, ForgedRequest, NotFound, TooSlow, BodyTooLarge,
    TemporarilyUnavailable
}

/// Payments, newest first
#[utoipa::path(
    get,
    path = "/api/v1/admin/payments",
    operation_id = "list_payments",
    tag = "admin",
    security(("session" = [])),
    params(PaymentQuery),
    responses((status = 200, description = "A page of payments", body = Payments), NotListed),
)]
pub async fn payments(request: HttpRequest, app_state: Data<AppState>) -> Result<HttpResponse, Problem> {
    let page = as_caller(request, &app_state, async move |console, caller| {
        console.payments(&caller.account, &query(caller.request.query_string())?).await
    });
    let MoneyPage { figures, rows, next } = page.await?;
    let payments = rows.into_iter().map(MoneyLine::from).collect();
    Ok(HttpResponse::Ok().json(Payments { figures: figures.into(), payments, next_before: next.map(PaymentId) }))
}

/// Refunds, newest first
#[utoipa::path(
    get,
    path = "/api/v1/admin/refunds",
    operation_id = "list_refunds",
    tag = "admin",
    security(("session" = [])),
    params(RefundQuery),
    responses((status = 200, description = "A page of refunds", body = Refunds), NotListed),
)]
pub async fn refunds(request: HttpRequest, app_state: Data<AppState>) -> Result<HttpResponse, Problem> {
    let page = as_caller(request, &app_state, async move |console, caller| {
        console.refunds(&caller.account, &query(caller.request.query_string())?).await
    });
    let MoneyPage { figures, rows, next } = page.await?;
    let refunds = rows.into_iter().map(MoneyLine::from).collect();
    Ok(HttpResponse::Ok().json(Refunds { figures: figures.into(), refunds, next_before: next.map(RefundId) }))
}

/// Callbacks of payment channels that contradict our books, newest first
#[utoipa::path(
    get,
    path = "/api/v1/admin/payments/conflicts",
    operation_id = "list_conflicts",
    tag = "admin",
    security(("session" = [])),
    params(ConflictQuery),
    responses((status = 200, description = "A page of callbacks that are not settled", body = Conflicts), NotListed),
)]
pub async fn conflicts(request: HttpRequest, app_state: Data<AppState>) -> Result<HttpResponse, Problem> {
    let page = as_caller(request, &app_state, async move |console, caller| {
        console.conflicts(&caller.account, &query(caller.request.query_string())?).await
    });
    let page = page.await?;
    let conflicts = page.callbacks.into_iter().map(|callback| Conflict {
        id: callback.id,
        at_ms: callback.at.timestamp_millis(),
        channel: callback.channel,
        message_id: callback.message_id,
        problem: callback.problem,
        body: callback.body,
    });
    Ok(HttpResponse::Ok().json(Conflicts { conflicts: conflicts.collect(), next_before: page.next }))
}

/// Mark a callback that contradicts our books as dealt with
///
/// Nothing else changes: what the callback says is never applied.
#[utoipa::path(
    post,
    path = "/api/v1/admin/payments/conflicts/{id}/settle",
    operation_id = "settle_conflict",
    tag = "admin",
    security(("session" = [], "csrf" = [])),
    params(("id" = i64, Path, minimum = 1, description = "The callback")),
    responses((status = 200, description = "Settled", body = Settled), NotDone),
)]
pub async fn settle(request: HttpRequest, app_state: Data<AppState>, _: Body) -> Result<HttpResponse, Problem> {
    let settled = as_caller(request, &app_state, async move |console, caller| {
        let id = number(&caller.request, "callback id")?;
        console.settle_conflict(&caller.account, id).await.map(|()| id)
    });
    Ok(HttpResponse::Ok().json(Settled { settled: settled.await? }))
}

/// Send a refund again that its payment channel has refused
///
/// It gets another key, so that the channel decides anew.
#[utoipa::path(
    post,
    path = "/api/v1/admin/refunds/{id}/retry",
    operation_id = "retry_refund",
    tag = "admin",
    security(("session" = [], "csrf" = [])),
    params(("id" = RefundId, Path, description = "The refund")),
    responses((status = 200, description = "The refund is under way again", body = RefundRetried), NotDone),
)]
pub async fn retry(request: HttpRequest, app_state: Data<AppState>, _: Body) -> Result<HttpResponse, Problem> {
    let retried = as_caller(request, &app_state, async move |console, caller| {
        let refund_id = RefundId(uuid(&caller.request, "refund id")?);
        console.retry_refund(&caller.account, refund_id).await.map(|()| refund_id)
    });
    Ok(HttpResponse::Ok().json(RefundRetried { refund_id: retried.await? }))
}
