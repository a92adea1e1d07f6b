//! Money on its way back: a refund is written down with what it is for, leaves by its channel's outflow, and ends when the
//! channel says so. Locks as in money.rs.

use sqlx::PgConnection;
use uuid::Uuid;

use crate::die_at;
use crate::domain::ids::OrderId;
use crate::domain::payment::{ChannelReport, PaymentId, RefundCause, RefundId, RefundStatus};
use crate::ledger::money::channel_reports::ReportOutcome;
use crate::ledger::money::journal::{Movement, write};
use crate::ledger::money::payments::lock_order_of;
use crate::ledger::orders::cancel::give_back;
use crate::ledger::outflow::items::{Enqueued, NewItem, enqueue};
use crate::ledger::{Ledger, LedgerError};

/// How refunds leave through a channel.
#[derive(Debug, Clone)]
pub struct RefundRoute {
    /// The outflow that paces them.
    pub outflow: String,
}

/// What came of the wish to have money back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefundAsked {
    Refund(RefundId, RefundStatus),
    Unknown,
    IllegalState,
}

/// Money that is to go back.
struct NewRefund<'a> {
    payment: PaymentId,
    order: Uuid,
    channel: &'a str,
    amount_cents: i64,
    currency: &'a str,
    cause: RefundCause,
    asked_by: &'a str,
    reason: &'a str,
}

impl Ledger {
    /// A paid order's money is to go back. Asked again, the refund that is under way is told.
    pub async fn ask_refund(
        &self,
        order: OrderId,
        user: Option<&str>,
        asked_by: &str,
        reason: &str,
        outflow_of: impl Fn(&str) -> Option<RefundRoute>,
    ) -> Result<RefundAsked, LedgerError> {
        let mut tx = self.pool.begin().await?;
        let row = sqlx::query!(
            "SELECT status FROM orders WHERE id = $1 AND ($2::text IS NULL OR user_id = $2) FOR UPDATE",
            order.0,
            user
        )
        .fetch_optional(&mut *tx)
        .await?;
        let Some(row) = row else { return Ok(RefundAsked::Unknown) };
        match row.status.as_str() {
            "paid" => {}
            "refunding" => {
                let known = sqlx::query!(
                    "SELECT id, status FROM refunds WHERE order_id = $1 AND cause = 'asked' ORDER BY id LIMIT 1",
                    order.0
                )
                .fetch_one(&mut *tx)
                .await?;
                let status = RefundStatus::parse(&known.status).ok_or(LedgerError::Unreadable("refunds.status"))?;
                return Ok(RefundAsked::Refund(RefundId(known.id), status));
            }
            _ => return Ok(RefundAsked::IllegalState),
        }
        let paid = sqlx::query!(
            "SELECT id, channel, amount_cents, currency FROM payments WHERE order_id = $1 AND pays",
            order.0
        )
        .fetch_optional(&mut *tx)
        .await?;
        // An order that was paid by hand has no money at a channel.
        let Some(paid) = paid else { return Ok(RefundAsked::IllegalState) };
        let Some(route) = outflow_of(&paid.channel) else { return Ok(RefundAsked::IllegalState) };
        sqlx::query!("UPDATE orders SET status = 'refunding' WHERE id = $1", order.0).execute(&mut *tx).await?;
        let refund = NewRefund {
            payment: PaymentId(paid.id),
            order: order.0,
            channel: &paid.channel,
            amount_cents: paid.amount_cents,
            currency: &paid.currency,
            cause: RefundCause::Asked,
            asked_by,
            reason,
        };
        let (id, status) = create_refund(&mut tx, &refund, &route).await?;
        die_at!("refund.before_commit");
        tx.commit().await?;
        die_at!("refund.after_commit");
        Ok(RefundAsked::Refund(id, status))
    }

    pub(in crate::ledger) async fn refunded(
        &self,
        channel: &str,
        key: Uuid,
        payment: Uuid,
        told: &ChannelReport,
    ) -> Result<ReportOutcome, LedgerError> {
        let mut tx = self.pool.begin().await?;
        lock_order_of(&mut tx, PaymentId(payment)).await?;
        let row = sqlx::query!(
            "SELECT id, payment_id, amount_cents, currency, status FROM refunds
             WHERE key = $1 AND channel = $2 FOR UPDATE",
            key,
            channel
        )
        .fetch_optional(&mut *tx)
        .await?;
        let Some(row) = row else { return Ok(ReportOutcome::Misfit("no such refund")) };
        if row.payment_id != payment {
            return Ok(ReportOutcome::Misfit("another payment than the refund's"));
        }
        if row.amount_cents != told.amount_cents || row.currency != told.currency {
            return Ok(ReportOutcome::Misfit("another amount or currency than the refund's"));
        }
        if row.status == "succeeded" {
            return Ok(ReportOutcome::Known);
        }
        finish_refund(&mut tx, row.id).await?;
        die_at!("refunded.before_commit");
        tx.commit().await?;
        die_at!("refunded.after_commit");
        Ok(ReportOutcome::Applied)
    }

    pub(in crate::ledger) async fn refund_failed(
        &self,
        channel: &str,
        key: Uuid,
        payment: Uuid,
        told: &ChannelReport,
    ) -> Result<ReportOutcome, LedgerError> {
        let mut tx = self.pool.begin().await?;
        let row = sqlx::query!(
            "SELECT id, amount_cents, currency, status FROM refunds
             WHERE key = $1 AND channel = $2 AND payment_id = $3 FOR UPDATE",
            key,
            channel,
            payment
        )
        .fetch_optional(&mut *tx)
        .await?;
        let Some(row) = row else {
            // Of a key that it was tried under before?
            let before = sqlx::query_scalar!(
                r#"SELECT EXISTS (SELECT FROM outflow_items
                                  WHERE id = $1 AND payload ->> 'payment_key' = $2::text) AS "before!""#,
                key,
                payment.to_string()
            );
            let before = before.fetch_one(&mut *tx).await?;
            return Ok(if before { ReportOutcome::Known } else { ReportOutcome::Misfit("no such refund") });
        };
        if row.amount_cents != told.amount_cents || row.currency != told.currency {
            return Ok(ReportOutcome::Misfit("another amount or currency than the refund's"));
        }
        match row.status.as_str() {
            "failed" => return Ok(ReportOutcome::Known),
            "succeeded" => return Ok(ReportOutcome::Misfit("failed, and had succeeded")),
            _ => {}
        }
        sqlx::query!("UPDATE refunds SET status = 'failed', ended_at = now() WHERE id = $1", row.id)
            .execute(&mut *tx)
            .await?;
        tx.commit().await?;
        Ok(ReportOutcome::Applied)
    }
}

/// Gives money back for which no order waits.
pub(in crate::ledger) async fn refund_unwanted(
    tx: &mut PgConnection,
    channel: &str,
    payment: PaymentId,
    row: Movement<'_>,
    route: &RefundRoute,
) -> Result<(), LedgerError> {
    let ended = sqlx::query_scalar!(
        r#"SELECT status IN ('cancelled', 'rejected') AS "ended!" FROM orders WHERE id = $1"#,
        row.order
    )
    .fetch_one(&mut *tx)
    .await?;
    let refund = NewRefund {
        payment,
        order: row.order,
        channel,
        amount_cents: row.amount_cents,
        currency: row.currency,
        cause: if ended { RefundCause::OrderEnded } else { RefundCause::OrderAlreadyPaid },
        asked_by: "seckill",
        reason: "",
    };
    create_refund(tx, &refund, route).await?;
    Ok(())
}

/// Writes a refund down and puts it into the outflow. One that finds no room there is brought again; nothing at all
/// goes back without a channel.
async fn create_refund(
    tx: &mut PgConnection,
    refund: &NewRefund<'_>,
    route: &RefundRoute,
) -> Result<(RefundId, RefundStatus), LedgerError> {
    let (id, key) = (Uuid::now_v7(), Uuid::now_v7());
    let queued = refund.amount_cents == 0
        || queue(tx, key, refund.payment.0, refund.amount_cents, refund.currency, route).await?;
    sqlx::query!(
        "INSERT INTO refunds (id, payment_id, order_id, channel, amount_cents, currency, cause, asked_by, reason, key, queued)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)",
        id,
        refund.payment.0,
        refund.order,
        refund.channel,
        refund.amount_cents,
        refund.currency,
        refund.cause.as_str(),
        refund.asked_by,
        refund.reason,
        key,
        queued
    )
    .execute(&mut *tx)
    .await?;
    if refund.cause == RefundCause::Asked {
        let of = Movement { order: refund.order, amount_cents: refund.amount_cents, currency: refund.currency };
        write(tx, "refund_due", id, of, "sales", "refunds-due").await?;
    }
    if refund.amount_cents > 0 {
        return Ok((RefundId(id), RefundStatus::Requested));
    }
    finish_refund(tx, id).await?;
    Ok((RefundId(id), RefundStatus::Succeeded))
}

/// Puts a refund into its channel's outflow; `false` where that is full.
pub(in crate::ledger) async fn queue(
    tx: &mut PgConnection,
    key: Uuid,
    payment: Uuid,
    amount_cents: i64,
    currency: &str,
    route: &RefundRoute,
) -> Result<bool, LedgerError> {
    let item = NewItem {
        id: key,
        channel: route.outflow.clone(),
        // Refunds know no order among themselves: each is a key of its own.
        key: key.to_string(),
        payload: serde_json::json!({ "payment_key": payment, "amount_cents": amount_cents, "currency": currency }),
    };
    Ok(enqueue(tx, &item).await? != Enqueued::Full)
}

/// The money is back: the books, and the order, where it was this refund that it waited for.
async fn finish_refund(tx: &mut PgConnection, refund: Uuid) -> Result<(), LedgerError> {
    let row = sqlx::query!(
        "UPDATE refunds SET status = 'succeeded', ended_at = now() WHERE id = $1
         RETURNING order_id, channel, amount_cents, currency, cause",
        refund
    )
    .fetch_one(&mut *tx)
    .await?;
    let of = Movement { order: row.order_id, amount_cents: row.amount_cents, currency: &row.currency };
    write(tx, "refund", refund, of, "refunds-due", &format!("channel:{}", row.channel)).await?;
    if row.cause != RefundCause::Asked.as_str() {
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
        "INSERT INTO outbox (kind, order_id, sale_id, user_id, quantity, epoch, shard, returns_units)
         VALUES ('hold_release', $1, $2, $3, $4, 0, $5, $6)",
        order.id,
        order.sale_id,
        order.user_id,
        order.quantity,
        order.shard,
        order.refund_returns_stock
    )
    .execute(&mut *tx)
    .await?;
    give_back(tx, &[(order.sale_id, order.user_id, order.quantity)], order.refund_returns_stock).await
}
