//! Payments, refunds, and callbacks that contradict our books. For operators.

use serde::Serialize;
use utoipa::ToSchema;

use super::{Answer, NotDoneToOne, NotReadSomeGuarded};
use crate::admin::money::{ConflictPage, ConflictQuery, MoneyFigures, MoneyPage, MoneyRow, PaymentQuery, RefundQuery};
use crate::api::Ask;
use seckill_domain::payment::{PaymentId, RefundId};

/// A page of payments, newest first.
#[derive(Serialize, ToSchema)]
struct Payments {
    figures: MoneyFigures,
    payments: Vec<MoneyRow>,
    /// `before` of the next page; null on the last one.
    next_before: Option<PaymentId>,
}

/// A page of refunds, newest first.
#[derive(Serialize, ToSchema)]
struct Refunds {
    figures: MoneyFigures,
    refunds: Vec<MoneyRow>,
    /// `before` of the next page; null on the last one.
    next_before: Option<RefundId>,
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

/// Payments, newest first
#[utoipa::path(
    get,
    path = "/api/v1/admin/payments",
    params(PaymentQuery),
    responses((status = 200, description = "A page of payments", body = Payments), NotReadSomeGuarded),
)]
pub(super) async fn list_payments(ask: Ask) -> Answer {
    ask.answer(async |office, caller| {
        let page = office.payments(&caller.account, &caller.query::<PaymentQuery>()?).await?;
        let MoneyPage { figures, rows: payments, next } = page;
        Ok(Payments { figures, payments, next_before: next.map(PaymentId) })
    })
    .await
}

/// Refunds, newest first
#[utoipa::path(
    get,
    path = "/api/v1/admin/refunds",
    params(RefundQuery),
    responses((status = 200, description = "A page of refunds", body = Refunds), NotReadSomeGuarded),
)]
pub(super) async fn list_refunds(ask: Ask) -> Answer {
    ask.answer(async |office, caller| {
        let page = office.refunds(&caller.account, &caller.query::<RefundQuery>()?).await?;
        let MoneyPage { figures, rows: refunds, next } = page;
        Ok(Refunds { figures, refunds, next_before: next.map(RefundId) })
    })
    .await
}

/// Callbacks of payment channels that contradict our books, newest first
#[utoipa::path(
    get,
    path = "/api/v1/admin/payments/conflicts",
    params(ConflictQuery),
    responses((status = 200, description = "A page of callbacks that are not settled", body = ConflictPage), NotReadSomeGuarded),
)]
pub(super) async fn list_conflicts(ask: Ask) -> Answer {
    ask.answer(async |office, caller| office.conflicts(&caller.account, &caller.query::<ConflictQuery>()?).await).await
}

/// Mark a callback that contradicts our books as dealt with
///
/// Nothing else changes: the callback is never applied.
#[utoipa::path(
    post,
    path = "/api/v1/admin/payments/conflicts/{id}/settle",
    params(("id" = i64, Path, minimum = 1, description = "The callback")),
    responses((status = 200, description = "Settled", body = Settled), NotDoneToOne),
)]
pub(super) async fn settle_conflict(ask: Ask) -> Answer {
    ask.answer(async |office, caller| {
        let settled = caller.number("callback id")?;
        office.settle_conflict(&caller.account, settled).await?;
        Ok(Settled { settled })
    })
    .await
}

/// Send a refund again that its payment channel has refused
///
/// It gets another key, so that the channel decides again.
#[utoipa::path(
    post,
    path = "/api/v1/admin/refunds/{id}/retry",
    params(("id" = RefundId, Path, description = "The refund")),
    responses((status = 200, description = "The refund is under way again", body = RefundRetried), NotDoneToOne),
)]
pub(super) async fn retry_refund(ask: Ask) -> Answer {
    ask.answer(async |office, caller| {
        let refund_id = RefundId(caller.uuid("refund id")?);
        office.retry_refund(&caller.account, refund_id).await?;
        Ok(RefundRetried { refund_id })
    })
    .await
}
