//! Applies reports of channels (protocol, rule 16). A report takes effect once, even if it arrives many times. Its effects and its line in
//! the journal are in one transaction.
//!
//! Lock order: the order, its payment, its refund, then the rows that end an order.

use std::collections::HashSet;

use sqlx::PgConnection;
use uuid::Uuid;

use crate::money::payments::{Movement, lock_order_of, write};
use crate::money::refunds::refund_unwanted;
use crate::orders::cancel::{abandon, settle_expiries};
use crate::{LedgerError, Payments};
use seckill_domain::ids::OrderId;
use seckill_domain::payment::{About, ChannelReport, PaymentId, Progress, ReportOutcome};
use seckill_runtime::die_at;

#[derive(Debug)]
pub struct ReportOf {
    pub channel: String,
    pub report: ChannelReport,
}

struct PaymentRow {
    order: Uuid,
    amount_cents: i64,
    currency: String,
    status: String,
}

impl PaymentRow {
    fn movement(&self) -> Movement<'_> {
        Movement { order: self.order, amount_cents: self.amount_cents, currency: &self.currency }
    }
}

impl Payments {
    /// Applies a channel's report of a payment or refund. `outflow`: for a refund.
    pub async fn take_in(
        &self,
        channel: &str,
        report: &ChannelReport,
        outflow: &str,
    ) -> Result<ReportOutcome, LedgerError> {
        match (report.about, report.progress) {
            (_, Progress::Pending) => Ok(ReportOutcome::Pending),
            (About::Payment { key, order }, _) => self.payment_ended(channel, key, order, report, outflow).await,
            (About::Refund { key, payment }, _) => self.refund_ended(channel, key, payment, report).await,
        }
    }

    /// Applies the reports of successful payments in flight whose orders wait for them, in one transaction. Returns for each report whether
    /// it was applied. Apply each of the others with `take_in`: it is of another kind, or its order or payment is locked.
    pub async fn pay_orders(&self, reports: &[ReportOf]) -> Result<Vec<bool>, LedgerError> {
        let (mut keys, mut orders, mut channels) = (Vec::new(), Vec::new(), Vec::new());
        let (mut amounts, mut currencies) = (Vec::new(), Vec::new());
        let mut seen = HashSet::with_capacity(reports.len());
        for ReportOf { channel, report } in reports {
            let About::Payment { key, order } = report.about else { continue };
            if report.progress == Progress::Succeeded && seen.insert(key.0) {
                keys.push(key.0);
                orders.push(order.0);
                channels.push(channel.clone());
                amounts.push(report.amount_cents);
                currencies.push(report.currency.clone());
            }
        }
        let mut tx = self.0.begin().await?;
        // An order has only one payment at a time, so no other payment needs to be abandoned here.
        let paid = sqlx::query_scalar!(
            "WITH reported AS (
               SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::text[], $4::bigint[], $5::text[])
                 AS r (payment, order_id, channel, amount_cents, currency)
             ), due AS (
               SELECT p.id FROM reported r JOIN payments p ON p.id = r.payment JOIN orders o ON o.id = r.order_id
               WHERE (p.order_id, p.channel, p.amount_cents, p.currency) = (r.order_id, r.channel, r.amount_cents, r.currency)
                 AND p.status || '' IN ('created', 'sending', 'waiting') AND o.status || '' = 'pending_payment'
               FOR UPDATE OF o, p SKIP LOCKED
             ), paid AS (
               UPDATE payments SET status = 'succeeded', pays = true, reason = NULL, ask_at = NULL, ended_at = now()
               WHERE id IN (SELECT id FROM due) RETURNING id, order_id, channel, amount_cents, currency
             ), booked AS (
               INSERT INTO journal (entry, subject, order_id, debit, credit, amount_cents, currency)
               SELECT 'payment', id, order_id, 'channel:' || channel, 'sales', amount_cents, currency FROM paid
             ), ended AS (
               UPDATE orders SET status = 'paid' WHERE id IN (SELECT order_id FROM paid)
             ), settled AS (
               UPDATE outbox SET status = 'processed', processed_at = now()
               WHERE id IN (SELECT b.id FROM paid JOIN outbox b ON b.order_id = paid.order_id
                            WHERE b.kind = 'group_expire' AND b.status || '' <> 'processed' FOR UPDATE OF b SKIP LOCKED)
             )
             SELECT id FROM paid",
            &keys,
            &orders,
            &channels,
            &amounts,
            &currencies
        )
        .fetch_all(&mut *tx)
        .await?;
        die_at!("paid.before_commit");
        tx.commit().await?;
        die_at!("paid.after_commit");
        // Of two reports of one payment, the first is the applied one.
        let mut paid: HashSet<Uuid> = paid.into_iter().collect();
        let applied =
            |report: &ChannelReport| report.progress == Progress::Succeeded && paid.remove(&report.about.key());
        Ok(reports.iter().map(|of| &of.report).map(applied).collect())
    }

    async fn payment_ended(
        &self,
        channel: &str,
        id: PaymentId,
        order: OrderId,
        report: &ChannelReport,
        outflow: &str,
    ) -> Result<ReportOutcome, LedgerError> {
        let mut tx = self.0.begin().await?;
        let waits = lock_order_of(&mut tx, id).await?;
        let row = sqlx::query_as!(
            PaymentRow,
            r#"SELECT order_id AS "order", amount_cents, currency, status FROM payments
               WHERE id = $1 AND channel = $2 FOR UPDATE"#,
            id.0,
            channel
        )
        .fetch_optional(&mut *tx)
        .await?;
        let Some(row) = row else { return Ok(ReportOutcome::Misfit("no such payment")) };
        if row.order != order.0 {
            return Ok(ReportOutcome::Misfit("another order than the payment's"));
        }
        if row.amount_cents != report.amount_cents || row.currency != report.currency {
            return Ok(ReportOutcome::Misfit("another amount or currency than the payment's"));
        }
        let taken_in = match (row.status.as_str(), report.progress == Progress::Succeeded) {
            ("succeeded", true) | ("failed" | "abandoned", false) => return Ok(ReportOutcome::Known),
            ("succeeded", false) => return Ok(ReportOutcome::Misfit("failed, and had succeeded")),
            (_, false) => {
                fail_payment(&mut tx, id, &row, report.reason.as_deref().unwrap_or("declined")).await?;
                ReportOutcome::Applied
            }
            (_, true) => {
                sqlx::query!(
                    "UPDATE payments SET status = 'succeeded', pays = $2, reason = NULL, ask_at = NULL, ended_at = now()
                     WHERE id = $1",
                    id.0,
                    waits
                )
                .execute(&mut *tx)
                .await?;
                let credit = if waits { "sales" } else { "refunds-due" };
                write(&mut tx, "payment", id.0, row.movement(), &format!("channel:{channel}"), credit).await?;
                if waits {
                    sqlx::query!("UPDATE orders SET status = 'paid' WHERE id = $1", row.order)
                        .execute(&mut *tx)
                        .await?;
                    // A second payment that was not sent is not needed any more.
                    abandon(&mut tx, &[row.order]).await?;
                    settle_expiries(&mut tx, &[row.order]).await?;
                    ReportOutcome::Applied
                } else {
                    refund_unwanted(&mut tx, channel, id, row.movement(), outflow).await?;
                    ReportOutcome::Refunding
                }
            }
        };
        die_at!("money.before_commit");
        tx.commit().await?;
        die_at!("money.after_commit");
        Ok(taken_in)
    }

    /// The channel has refused a payment for good. No money has moved.
    pub async fn payment_refused(&self, id: PaymentId, claim: i32, why: &str) -> Result<(), LedgerError> {
        let mut tx = self.0.begin().await?;
        lock_order_of(&mut tx, id).await?;
        let row = sqlx::query_as!(
            PaymentRow,
            r#"SELECT order_id AS "order", amount_cents, currency, status FROM payments
               WHERE id = $1 AND claim = $2 AND status || '' = 'sending' FOR UPDATE"#,
            id.0,
            claim
        )
        .fetch_optional(&mut *tx)
        .await?;
        let Some(row) = row else { return Ok(()) };
        fail_payment(&mut tx, id, &row, why).await?;
        Ok(tx.commit().await?)
    }

    /// Quarantines a callback for an operator. A repeated callback adds no row.
    pub async fn set_aside(&self, channel: &str, message: &str, problem: &str, body: &str) -> Result<(), LedgerError> {
        self.0
            .run(sqlx::query!(
            "INSERT INTO callbacks_set_aside (channel, message_id, problem, body) VALUES ($1, $2, $3, left($4, 16384))
             ON CONFLICT DO NOTHING",
            channel,
            message,
            problem,
            body
        ))
            .await
    }
}

/// Ends a failed payment, whose order is locked: so its number is later than those of the order's steps so far. If the order's time to pay is over, the order is cancelled.
async fn fail_payment(tx: &mut PgConnection, id: PaymentId, row: &PaymentRow, why: &str) -> Result<(), LedgerError> {
    sqlx::query!(
        "UPDATE payments p SET status = 'failed', reason = left($2, 500), ask_at = NULL, ended_at = now(),
                failed_step = CASE WHEN o.status = 'pending_payment' THEN nextval('order_steps_id_seq') END
         FROM orders o WHERE p.id = $1 AND o.id = p.order_id",
        id.0,
        why
    )
    .execute(&mut *tx)
    .await?;
    sqlx::query!(
        "UPDATE orders o SET wait_until = NULL WHERE id = $1 AND status || '' = 'pending_payment'
           AND NOT EXISTS (SELECT FROM payments p WHERE p.order_id = o.id AND p.status IN ('created', 'sending', 'waiting'))",
        row.order
    )
    .execute(&mut *tx)
    .await?;
    // The expiry message is delayed again and again while the order waits for a payment. Make it due now.
    sqlx::query!(
        "UPDATE outbox SET status = 'pending', next_attempt_at = now()
         WHERE id IN (SELECT id FROM outbox WHERE kind = 'group_expire' AND order_id = $1 AND status || '' = 'sent'
                        AND due_at <= now() FOR UPDATE SKIP LOCKED)",
        row.order
    )
    .execute(&mut *tx)
    .await?;
    // In a larger group, the order has no expiry of its own, and the group's may come too late. Add one if the deadline has passed.
    sqlx::query!(
        "INSERT INTO outbox (kind, order_id, sale_id, quantity, shard, due_at)
         SELECT 'group_expire', id, sale_id, quantity, shard, expires_at FROM orders
         WHERE id = $1 AND group_id <> id AND status || '' = 'pending_payment' AND wait_until IS NULL AND expires_at <= now()
         ON CONFLICT (kind, order_id) DO NOTHING",
        row.order
    )
    .execute(&mut *tx)
    .await?;
    Ok(())
}
