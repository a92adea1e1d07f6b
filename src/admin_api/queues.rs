//! The outbox: its backlog, parked messages, and sending these again. For operators.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;
use uuid::Uuid;

use super::{Answer, NotDone, NotDoneToOne, NotReadSomeGuarded};
use crate::admin::queues::{OutboxQuery, RetriedAll};
use crate::domain::message::ParkedKind;
use crate::http::Ask;

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

/// What the outbox has left to do, and what is parked
#[utoipa::path(
    get,
    path = "/api/v1/admin/outbox",
    params(OutboxQuery),
    responses((status = 200, description = "Figures, and a page of parked messages", body = Outbox), NotReadSomeGuarded),
)]
pub async fn show_outbox(ask: Ask) -> Answer {
    ask.answer(async |console, caller| {
        let page = console.outbox(&caller.account, &caller.query::<OutboxQuery>()?).await?;
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
        Ok(Outbox { to_do: to_do.collect(), parked: parked.collect(), next_before: page.next })
    })
    .await
}

/// Send one parked message again
#[utoipa::path(
    post,
    path = "/api/v1/admin/outbox/{id}/retry",
    params(("id" = i64, Path, minimum = 1, description = "The message")),
    responses((status = 200, description = "The message is pending again", body = Retried), NotDoneToOne),
)]
pub async fn retry_message(ask: Ask) -> Answer {
    ask.answer(async |console, caller| {
        Ok(Retried { retried: console.retry_message(&caller.account, caller.number("message id")?).await? })
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
    responses((status = 200, description = "The messages are pending again", body = AllRetried), NotDone),
)]
pub async fn retry_messages(ask: Ask) -> Answer {
    ask.answer(async |console, caller| {
        let RetryKind { kind } = caller.body()?;
        Ok(AllRetried::from(console.retry_messages(&caller.account, kind).await?))
    })
    .await
}
