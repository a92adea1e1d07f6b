//! Refunds: written in the transaction of their cause, sent by their channel's outflow, and ended by the channel's report.

use serde::{Deserialize, Serialize};
use serde_json::json;
use sqlx::PgConnection;
use uuid::Uuid;

use crate::money::payments::{Movement, lock_order_of, write};
use crate::orders::cancel::give_back;
use crate::outflow::items::{EnqueueOutcome, NewItem, enqueue};
use crate::{LedgerError, Payments, audit_log};
use seckill_domain::ids::OrderId;
use seckill_domain::payment::{
    ChannelReport, PaymentId, Progress, RefundCause, RefundId, RefundKey, RefundStatus, ReportOutcome,
};
use seckill_runtime::die_at;

/// The payload of a refund's outflow item. The channel builds its request from this.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RefundItem {
    pub payment_key: PaymentId,
    pub amount_cents: i64,
    pub currency: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefundOutcome {
    Refund(RefundId, RefundStatus),
    Unknown,
    IllegalState,
}

struct NewRefund<'a> {
    payment: PaymentId,
    money: Movement<'a>,
    channel: &'a str,
    cause: RefundCause,
    asked_by: &'a str,
    reason: &'a str,
}

impl Payments {
    /// Asks for the refund of a paid order. A repeated call returns the refund in flight. Refunds that the buyer did not ask for (`user` is
    /// `None`) are in the audit log. `outflow_of`: the outflow for the refunds of a payment channel.
    pub async fn ask_refund(
        &self,
        order: OrderId,
        user: Option<&str>,
        asked_by: &str,
        reason: &str,
        outflow_of: impl Fn(&str) -> Option<String>,
    ) -> Result<RefundOutcome, LedgerError> {
        let mut tx = self.0.begin().await?;
        let row = sqlx::query!(
            "SELECT status FROM orders WHERE id = $1 AND ($2::text IS NULL OR user_id = $2) FOR UPDATE",
            order.0,
            user
        )
        .fetch_optional(&mut *tx)
        .await?;
        let Some(row) = row else { return Ok(RefundOutcome::Unknown) };
        match row.status.as_str() {
            "paid" => {}
            "refunding" => {
                let known = sqlx::query!(
                    "SELECT id, status FROM refunds WHERE order_id = $1 AND cause = 'asked' ORDER BY id LIMIT 1",
                    order.0
                )
                .fetch_one(&mut *tx)
                .await?;
                let status = known.status.parse().map_err(|_| LedgerError::Unreadable("refunds.status"))?;
                return Ok(RefundOutcome::Refund(RefundId(known.id), status));
            }
            _ => return Ok(RefundOutcome::IllegalState),
        }
        let paid = sqlx::query!(
            "SELECT id, channel, amount_cents, currency FROM payments WHERE order_id = $1 AND pays",
            order.0
        )
        .fetch_optional(&mut *tx)
        .await?;
        // For an order that an operator marked as paid, no channel has money.
        let Some(paid) = paid else { return Ok(RefundOutcome::IllegalState) };
        // Nothing goes back for a free order, so its refund needs no channel.
        let is_free = paid.amount_cents == 0;
        let outflow = outflow_of(&paid.channel).or_else(|| is_free.then(String::new));
        let Some(outflow) = outflow else { return Ok(RefundOutcome::IllegalState) };
        sqlx::query!("UPDATE orders SET status = 'refunding' WHERE id = $1", order.0).execute(&mut *tx).await?;
        let refund = NewRefund {
            payment: PaymentId(paid.id),
            money: Movement { order: order.0, amount_cents: paid.amount_cents, currency: &paid.currency },
            channel: &paid.channel,
            cause: RefundCause::Asked,
            asked_by,
            reason,
        };
        let (id, status) = create_refund(&mut tx, &refund, &outflow).await?;
        if user.is_none() {
            let details =
                json!({ "refund": id, "amount_cents": paid.amount_cents, "currency": paid.currency, "reason": reason });
            audit_log::append(&mut tx, asked_by, "refund order", &format!("order {order}"), details).await?;
        }
        die_at!("refund.before_commit");
        tx.commit().await?;
        die_at!("refund.after_commit");
        Ok(RefundOutcome::Refund(id, status))
    }

    pub(crate) async fn refund_ended(
        &self,
        channel: &str,
        key: RefundKey,
        payment: PaymentId,
        report: &ChannelReport,
    ) -> Result<ReportOutcome, LedgerError> {
        let succeeded = report.progress == Progress::Succeeded;
        let mut tx = self.0.begin().await?;
        if succeeded {
            lock_order_of(&mut tx, payment).await?;
        }
        let row = sqlx::query!(
            "SELECT id, payment_id, amount_cents, currency, status FROM refunds
             WHERE key = $1 AND channel = $2 FOR UPDATE",
            key.0,
            channel
        )
        .fetch_optional(&mut *tx)
        .await?;
        let Some(row) = row else {
            // A failure may be of an earlier key of the refund.
            let before = sqlx::query_scalar!(
                r#"SELECT EXISTS (SELECT FROM outflow_items
                                  WHERE id = $1 AND payload ->> 'payment_key' = $2::text) AS "before!""#,
                key.0,
                payment.to_string()
            );
            let is_known = !succeeded && before.fetch_one(&mut *tx).await?;
            return Ok(if is_known { ReportOutcome::Known } else { ReportOutcome::Misfit("no such refund") });
        };
        if row.payment_id != payment.0 {
            return Ok(ReportOutcome::Misfit("another payment than the refund's"));
        }
        if row.amount_cents != report.amount_cents || row.currency != report.currency {
            return Ok(ReportOutcome::Misfit("another amount or currency than the refund's"));
        }
        match (row.status.as_str(), succeeded) {
            ("succeeded", true) | ("failed", false) => return Ok(ReportOutcome::Known),
            ("succeeded", false) => return Ok(ReportOutcome::Misfit("failed, and had succeeded")),
            (_, true) => finish_refund(&mut tx, RefundId(row.id)).await?,
            (_, false) => {
                sqlx::query!("UPDATE refunds SET status = 'failed', ended_at = now() WHERE id = $1", row.id)
                    .execute(&mut *tx)
                    .await?;
            }
        }
        if succeeded {
            die_at!("refunded.before_commit");
        }
        tx.commit().await?;
        if succeeded {
            die_at!("refunded.after_commit");
        }
        Ok(ReportOutcome::Applied)
    }
}

pub(crate) async fn refund_unwanted(
    tx: &mut PgConnection,
    channel: &str,
    payment: PaymentId,
    money: Movement<'_>,
    outflow: &str,
) -> Result<(), LedgerError> {
    let ended = sqlx::query_scalar!(
        r#"SELECT status IN ('cancelled', 'rejected') AS "ended!" FROM orders WHERE id = $1"#,
        money.order
    )
    .fetch_one(&mut *tx)
    .await?;
    let refund = NewRefund {
        payment,
        money,
        channel,
        cause: if ended { RefundCause::OrderEnded } else { RefundCause::OrderAlreadyPaid },
        asked_by: "seckill",
        reason: "",
    };
    create_refund(tx, &refund, outflow).await?;
    Ok(())
}

/// Writes a refund and queues it in the outflow, or later if that is full. A refund of 0 ends at once, without the channel.
async fn create_refund(
    tx: &mut PgConnection,
    refund: &NewRefund<'_>,
    outflow: &str,
) -> Result<(RefundId, RefundStatus), LedgerError> {
    let (id, key) = (RefundId(Uuid::now_v7()), RefundKey(Uuid::now_v7()));
    let NewRefund { payment, money: Movement { order, amount_cents, currency }, .. } = *refund;
    let item = RefundItem { payment_key: payment, amount_cents, currency: currency.to_owned() };
    let queued = amount_cents == 0 || queue(tx, key, &item, outflow).await?;
    sqlx::query!(
        "INSERT INTO refunds (id, payment_id, order_id, channel, amount_cents, currency, cause, asked_by, reason, key, queued)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)",
        id.0,
        payment.0,
        order,
        refund.channel,
        amount_cents,
        currency,
        <&str>::from(refund.cause),
        refund.asked_by,
        refund.reason,
        key.0,
        queued
    )
    .execute(&mut *tx)
    .await?;
    if refund.cause == RefundCause::Asked {
        write(tx, "refund_due", id.0, refund.money, "sales", "refunds-due").await?;
    }
    if amount_cents > 0 {
        return Ok((id, RefundStatus::Requested));
    }
    finish_refund(tx, id).await?;
    Ok((id, RefundStatus::Succeeded))
}

/// Queues a refund in its channel's outflow. Returns `false` if that is full.
pub(crate) async fn queue(
    tx: &mut PgConnection,
    key: RefundKey,
    refund: &RefundItem,
    outflow: &str,
) -> Result<bool, LedgerError> {
    let item = NewItem {
        id: key.0,
        channel: outflow.to_owned(),
        // Refunds need no order: each has its own key.
        key: key.to_string(),
        payload: serde_json::to_value(refund).map_err(|_| LedgerError::Unreadable("refunds"))?,
    };
    Ok(enqueue(tx, &item).await? != EnqueueOutcome::Full)
}

/// The channel has returned the money. Writes the journal, and ends the order if it waited for this refund.
async fn finish_refund(tx: &mut PgConnection, refund: RefundId) -> Result<(), LedgerError> {
    let row = sqlx::query!(
        "UPDATE refunds SET status = 'succeeded', ended_at = now() WHERE id = $1
         RETURNING order_id, channel, amount_cents, currency, cause",
        refund.0
    )
    .fetch_one(&mut *tx)
    .await?;
    let of = Movement { order: row.order_id, amount_cents: row.amount_cents, currency: &row.currency };
    write(tx, "refund", refund.0, of, "refunds-due", &format!("channel:{}", row.channel)).await?;
    if row.cause != <&str>::from(RefundCause::Asked) {
        return Ok(());
    }
    let order = sqlx::query!(
        "UPDATE orders o SET status = 'refunded', units_kept = NOT s.refund_returns_stock
         FROM sales s WHERE o.id = $1 AND s.id = o.sale_id
         RETURNING o.id, o.sale_id, o.user_id, o.quantity, o.shard, s.refund_returns_stock",
        row.order_id
    )
    .fetch_one(&mut *tx)
    .await?;
    sqlx::query!(
        "INSERT INTO outbox (kind, order_id, sale_id, quantity, shard, returns_units, members)
         VALUES ('hold_release', $1, $2, $3, $4, $5, ARRAY[$1::uuid])",
        order.id,
        order.sale_id,
        order.quantity,
        order.shard,
        order.refund_returns_stock
    )
    .execute(&mut *tx)
    .await?;
    give_back(tx, &[(order.sale_id, order.user_id, order.quantity)], order.refund_returns_stock).await
}
