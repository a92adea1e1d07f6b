//! The outbox: its backlog, parked messages, and sending these again. For operators.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Answer, NotDone, NotDoneToOne, NotReadSomeGuarded};
use crate::admin::queues::{OutboxPage, OutboxQuery, RetriedAll};
use crate::api::Ask;
use seckill_domain::message::ParkedKind;

/// Which parked messages are sent again.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct RetryKind {
    kind: ParkedKind,
}

/// How many messages or items are sent again.
#[derive(Serialize, ToSchema)]
pub(super) struct Retried {
    #[schema(minimum = 0)]
    pub(super) retried: u64,
}

/// The backlog of the outbox, and parked messages
#[utoipa::path(
    get,
    path = "/api/v1/admin/outbox",
    params(OutboxQuery),
    responses((status = 200, description = "Figures, and a page of parked messages", body = OutboxPage), NotReadSomeGuarded),
)]
pub(super) async fn show_outbox(ask: Ask) -> Answer {
    ask.answer(async |office, caller| office.outbox(&caller.account, &caller.query::<OutboxQuery>()?).await).await
}

/// Send one parked message again
#[utoipa::path(
    post,
    path = "/api/v1/admin/outbox/{id}/retry",
    params(("id" = i64, Path, minimum = 1, description = "The message")),
    responses((status = 200, description = "The message is pending again", body = Retried), NotDoneToOne),
)]
pub(super) async fn retry_message(ask: Ask) -> Answer {
    ask.answer(async |office, caller| {
        Ok(Retried { retried: office.retry_message(&caller.account, caller.number("message id")?).await? })
    })
    .await
}

/// Send all parked messages of a kind again
///
/// A thousand at a time, for 3 s at most. An instance does so for one caller at a time.
#[utoipa::path(
    post,
    path = "/api/v1/admin/outbox/retry",
    request_body = RetryKind,
    responses((status = 200, description = "The messages are pending again", body = RetriedAll), NotDone),
)]
pub(super) async fn retry_messages(ask: Ask) -> Answer {
    ask.answer(async |office, caller| {
        let RetryKind { kind } = caller.body()?;
        office.retry_messages(&caller.account, kind).await
    })
    .await
}
