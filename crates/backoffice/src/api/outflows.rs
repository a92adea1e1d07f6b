//! The outflows: pausing them, changing their rate, and sending parked items again. For operators.

use serde::Serialize;
use utoipa::ToSchema;

use super::queues::Retried;
use super::{Answer, NotDoneToOne, NotReadGuarded, NotReadSomeGuarded};
use crate::admin::queues::{ChannelFigures, ItemPage, ItemQuery, RetriedAll};
use crate::api::Ask;
use seckill_delivery::outflow_changes::OutflowChange;

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

/// The outflows
#[utoipa::path(
    get,
    path = "/api/v1/admin/outflows",
    responses((status = 200, description = "All of them, by name", body = Outflows), NotReadGuarded),
)]
pub(super) async fn list_outflows(ask: Ask) -> Answer {
    ask.answer(async |office, caller| {
        let outflows = office.outflows(&caller.account).await?.into_iter().map(Outflow::from);
        Ok(Outflows { outflows: outflows.collect() })
    })
    .await
}

/// Pause or resume an outflow, or change its rate
#[utoipa::path(
    put,
    path = "/api/v1/admin/outflows/{name}",
    params(("name" = String, Path, description = "The outflow")),
    request_body = OutflowChange,
    responses((status = 200, description = "The outflow as it is now", body = Outflow), NotDoneToOne),
)]
pub(super) async fn change_outflow(ask: Ask) -> Answer {
    ask.answer(async |office, caller| {
        Ok(Outflow::from(office.change_outflow(&caller.account, caller.part("name"), caller.body()?).await?))
    })
    .await
}

/// Parked items of outflows, newest first
#[utoipa::path(
    get,
    path = "/api/v1/admin/outflow-items",
    params(ItemQuery),
    responses((status = 200, description = "A page of parked items", body = ItemPage), NotReadSomeGuarded),
)]
pub(super) async fn list_outflow_items(ask: Ask) -> Answer {
    ask.answer(async |office, caller| office.parked_items(&caller.account, &caller.query::<ItemQuery>()?).await).await
}

/// Send one parked item of an outflow again
///
/// Under the same Idempotency-Key: the receiver takes it once.
#[utoipa::path(
    post,
    path = "/api/v1/admin/outflow-items/{id}/retry",
    params(("id" = Uuid, Path, description = "The item")),
    responses((status = 200, description = "The item is pending again", body = Retried), NotDoneToOne),
)]
pub(super) async fn retry_outflow_item(ask: Ask) -> Answer {
    ask.answer(async |office, caller| {
        office.retry_item(&caller.account, caller.uuid("item id")?).await?;
        Ok(Retried { retried: 1 })
    })
    .await
}

/// Send all parked items of an outflow again
///
/// A thousand at a time, for 3 s at most. An instance does so for one caller at a time.
#[utoipa::path(
    post,
    path = "/api/v1/admin/outflows/{name}/retry",
    params(("name" = String, Path, description = "The outflow")),
    responses((status = 200, description = "The items are pending again", body = RetriedAll), NotDoneToOne),
)]
pub(super) async fn retry_outflow_items(ask: Ask) -> Answer {
    ask.answer(async |office, caller| office.retry_items(&caller.account, caller.part("name")).await).await
}
