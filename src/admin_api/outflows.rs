//! The outflows: pausing them, changing their rate, and sending parked items again. For operators.

use actix_web::web::Data;
use actix_web::{HttpRequest, HttpResponse};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use super::path::uuid;
use super::queues::{AllRetried, Retried};
use crate::admin::queues::{ChannelFigures, ItemQuery};
use crate::domain::json_object;
use crate::domain::whole_number;
use crate::flow::outflow_changes::OutflowChange;
use crate::http::AppState;
use crate::http::caller::as_caller;
use crate::http::codes::problems;
use crate::http::extract::{Body, query};
use crate::http::problem::Problem;

/// A queue whose items are sent at a constant rate.
#[derive(Serialize, ToSchema)]
struct Outflow {
    name: String,
    /// Requests per second.
    rate: i32,
    jitter_ms: i32,
    paused: bool,
    waiting: i64,
    /// The age of the oldest item that waits, in seconds.
    oldest_s: i64,
    parked: i64,
    /// The most items that may wait.
    capacity: i64,
    /// The receiver, without what may be secret in its address.
    target: String,
}

/// All outflows.
#[derive(Serialize, ToSchema)]
struct Outflows {
    outflows: Vec<Outflow>,
}

/// What is to change of an outflow. What is left out or null stays as it is.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct OutflowTerms {
    paused: Option<bool>,
    /// Requests per second. When it changes, nothing is sent for a second.
    #[serde(default, deserialize_with = "whole_number::optional")]
    #[schema(minimum = 1, maximum = 100)]
    rate: Option<i64>,
    /// The largest difference between the network delays of two requests.
    #[serde(default, deserialize_with = "whole_number::optional")]
    #[schema(minimum = 0, maximum = 10000)]
    jitter_ms: Option<i64>,
}

/// An item that its receiver did not take, and which is no longer tried.
#[derive(Serialize, ToSchema)]
struct OutflowItem {
    id: Uuid,
    outflow: String,
    key: String,
    attempts: i32,
    error: Option<String>,
    created_at_ms: i64,
    /// The beginning of what is sent.
    payload: String,
}

/// A page of parked items, newest first.
#[derive(Serialize, ToSchema)]
struct OutflowItems {
    items: Vec<OutflowItem>,
    /// `before` of the next page; null on the last one.
    next_before: Option<i64>,
}

impl From<ChannelFigures> for Outflow {
    fn from(figures: ChannelFigures) -> Self {
        Self {
            oldest_s: figures.oldest_s(),
            target: figures.shown_target(),
            name: figures.name,
            rate: figures.rate,
            jitter_ms: figures.jitter_ms,
            paused: figures.paused,
            waiting: figures.waiting,
            parked: figures.parked,
            capacity: figures.capacity,
        }
    }
}

problems!(NotListed: InvalidRequest, SignedOut, Forbidden, TemporarilyUnavailable);
problems!(NotShown: SignedOut, Forbidden, TemporarilyUnavailable);
problems! {
    NotDone: InvalidRequest, SignedOut, Forbidden, ForgedRequest, NotFound, TooSlow, BodyTooLarge,
    TemporarilyUnavailable
}

/// The outflows
#[utoipa::path(
    get,
    path = "/api/v1/admin/outflows",
    operation_id = "list_outflows",
    tag = "admin",
    security(("session" = [])),
    responses((status = 200, description = "All of them, by name", body = Outflows), NotShown),
)]
pub async fn list(request: HttpRequest, app_state: Data<AppState>) -> Result<HttpResponse, Problem> {
    let outflows = as_caller(request, &app_state, async move |console, caller| console.outflows(&caller.account).await);
    let outflows = outflows.await?.into_iter().map(Outflow::from).collect();
    Ok(HttpResponse::Ok().json(Outflows { outflows }))
}

/// Pause or resume an outflow, or change its rate
#[utoipa::path(
    put,
    path = "/api/v1/admin/outflows/{name}",
    operation_id = "change_outflow",
    tag = "admin",
    security(("session" = [], "csrf" = [])),
    params(("name" = String, Path, description = "The outflow")),
    request_body = OutflowTerms,
    responses((status = 200, description = "The outflow as it is now", body = Outflow), NotDone),
)]
pub async fn change(
    request: HttpRequest,
    app_state: Data<AppState>,
    Body(body): Body,
) -> Result<HttpResponse, Problem> {
    let outflow = as_caller(request, &app_state, async move |console, caller| {
        let OutflowTerms { paused, rate, jitter_ms } = json_object::from_slice(&body)?;
        let change = OutflowChange { paused, rate, jitter_ms };
        console.change_outflow(&caller.account, caller.request.match_info().query("name"), change).await
    });
    Ok(HttpResponse::Ok().json(Outflow::from(outflow.await?)))
}

/// Parked items of outflows, newest first
#[utoipa::path(
    get,
    path = "/api/v1/admin/outflow-items",
    operation_id = "list_outflow_items",
    tag = "admin",
    security(("session" = [])),
    params(ItemQuery),
    responses((status = 200, description = "A page of parked items", body = OutflowItems), NotListed),
)]
pub async fn items(request: HttpRequest, app_state: Data<AppState>) -> Result<HttpResponse, Problem> {
    let page = as_caller(request, &app_state, async move |console, caller| {
        console.parked_items(&caller.account, &query(caller.request.query_string())?).await
    });
    let page = page.await?;
    let items = page.items.into_iter().map(|item| OutflowItem {
        id: item.id,
        outflow: item.channel,
        key: item.key,
        attempts: item.attempts,
        error: item.last_error,
        created_at_ms: item.created_at.timestamp_millis(),
        payload: item.payload,
    });
    Ok(HttpResponse::Ok().json(OutflowItems { items: items.collect(), next_before: page.next }))
}

/// Send one parked item of an outflow again
///
/// Under the same Idempotency-Key: the receiver takes it once.
#[utoipa::path(
    post,
    path = "/api/v1/admin/outflow-items/{id}/retry",
    operation_id = "retry_outflow_item",
    tag = "admin",
    security(("session" = [], "csrf" = [])),
    params(("id" = Uuid, Path, description = "The item")),
    responses((status = 200, description = "The item is pending again", body = Retried), NotDone),
)]
pub async fn retry_item(request: HttpRequest, app_state: Data<AppState>, _: Body) -> Result<HttpResponse, Problem> {
    let retried = as_caller(request, &app_state, async move |console, caller| {
        console.retry_item(&caller.account, uuid(&caller.request, "item id")?).await
    });
    retried.await?;
    Ok(HttpResponse::Ok().json(Retried { retried: 1 }))
}

/// Send all parked items of an outflow again
///
/// A thousand at a time, for 3 s at most. An instance does so for one caller at a time.
#[utoipa::path(
    post,
    path = "/api/v1/admin/outflows/{name}/retry",
    operation_id = "retry_outflow_items",
    tag = "admin",
    security(("session" = [], "csrf" = [])),
    params(("name" = String, Path, description = "The outflow")),
    responses((status = 200, description = "The items are pending again", body = AllRetried), NotDone),
)]
pub async fn retry_items(request: HttpRequest, app_state: Data<AppState>, _: Body) -> Result<HttpResponse, Problem> {
    let retried = as_caller(request, &app_state, async move |console, caller| {
        console.retry_items(&caller.account, caller.request.match_info().query("name")).await
    });
    Ok(HttpResponse::Ok().json(AllRetried::from(retried.await?)))
}
