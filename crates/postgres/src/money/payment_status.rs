//! Asks channels for the state of payments and refunds without a callback, and counts money for operators. A worker claims a question until
//! the question is due again. If the worker dies, nothing is late.

use std::time::Duration;

use serde_json::json;
use uuid::Uuid;

use crate::money::refunds::{RefundItem, queue};
use crate::outflow::items::add_or_lock_key;
use crate::{LedgerError, Payments, audit_log, micros};
use seckill_domain::ids::OrderId;
use seckill_domain::payment::{About, PaymentId, RefundId, RefundKey};

#[derive(Debug, Clone, Copy)]
pub enum StatusQuery {
    /// With the claim under which the payment was sent.
    Payment {
        payment: PaymentId,
        order: OrderId,
        claim: i32,
    },
    Refund {
        key: RefundKey,
        payment: PaymentId,
    },
}

impl StatusQuery {
    pub const fn about(&self) -> About {
        match *self {
            Self::Payment { payment, order, .. } => About::Payment { key: payment, order },
            Self::Refund { key, payment } => About::Refund { key, payment },
        }
    }
}

/// How money stands.
#[derive(Debug, Clone, Copy, serde::Serialize, utoipa::ToSchema)]
pub struct MoneyFigures {
    /// Payments that wait to be sent to their channel, and the age of the oldest in seconds.
    pub created: i64,
    pub oldest_s: i64,
    /// Payments that were sent, and whose outcome is not known yet.
    pub under_way: i64,
    /// Refunds in flight, and refunds that the channel has refused.
    pub refunds: i64,
    pub refunds_failed: i64,
    /// Callbacks that contradict our books.
    pub set_aside: i64,
}

impl Payments {
    /// Whether a channel has payments to ask about now, or undecided refunds.
    pub async fn is_anything_open(&self, channel: &str) -> Result<bool, LedgerError> {
        let open = sqlx::query_scalar!(
            r#"SELECT coalesce((SELECT ask_at <= now() FROM payments WHERE channel = $1 AND ask_at IS NOT NULL
                                ORDER BY ask_at LIMIT 1), false)
                   OR coalesce((SELECT true FROM refunds WHERE channel = $1 AND status = 'requested'
                                ORDER BY created_at LIMIT 1), false) AS "open!""#,
            channel
        );
        Ok(open.fetch_one(&self.0.pool).await?)
    }

    /// Claims payments to ask about, at growing intervals, up to 5 minutes.
    pub async fn payments_to_ask(
        &self,
        channel: &str,
        limit: i64,
        again: Duration,
    ) -> Result<Vec<StatusQuery>, LedgerError> {
        let rows = sqlx::query!(
            "UPDATE payments SET asked = asked + 1,
                    ask_at = now() + least($2::bigint * power(2, least(asked, 10)), 300000000) * interval '1 us'
             WHERE id IN (SELECT id FROM payments WHERE channel = $3 AND ask_at <= now() ORDER BY ask_at LIMIT $1
                          FOR UPDATE SKIP LOCKED)
             RETURNING id, order_id, claim",
            limit,
            micros(again),
            channel
        )
        .fetch_all(&self.0.pool)
        .await?;
        let query = |id, order, claim| StatusQuery::Payment { payment: PaymentId(id), order: OrderId(order), claim };
        Ok(rows.into_iter().map(|row| query(row.id, row.order_id, row.claim)).collect())
    }

    /// Claims refunds that were sent some time ago and are undecided.
    pub async fn refunds_to_ask(
        &self,
        channel: &str,
        limit: i64,
        after: Duration,
    ) -> Result<Vec<StatusQuery>, LedgerError> {
        let rows = sqlx::query!(
            "UPDATE refunds SET asked_at = now()
             WHERE id IN (SELECT r.id FROM refunds r JOIN outflow_items i ON i.id = r.key
                          WHERE r.channel = $3 AND r.status = 'requested' AND i.status IN ('done', 'parked')
                            AND coalesce(r.asked_at, i.done_at, r.created_at) <= now() - $2::bigint * interval '1 us'
                          ORDER BY r.created_at LIMIT $1 FOR UPDATE OF r SKIP LOCKED)
             RETURNING key, payment_id",
            limit,
            micros(after),
            channel
        )
        .fetch_all(&self.0.pool)
        .await?;
        let query = |key, payment| StatusQuery::Refund { key: RefundKey(key), payment: PaymentId(payment) };
        Ok(rows.into_iter().map(|row| query(row.key, row.payment_id)).collect())
    }

    /// The channels outside `configured` that have money in flight, with the number of payments and refunds.
    pub async fn money_without_channel(&self, configured: &[String]) -> Result<Vec<(String, i64)>, LedgerError> {
        let rows = sqlx::query!(
            r#"SELECT channel AS "channel!", count(*) AS "rows!"
               FROM (SELECT channel FROM payments WHERE status IN ('created', 'sending', 'waiting')
                     UNION ALL SELECT channel FROM refunds WHERE status = 'requested') AS live
               WHERE channel <> ALL($1) GROUP BY channel"#,
            configured
        )
        .fetch_all(&self.0.pool)
        .await?;
        Ok(rows.into_iter().map(|row| (row.channel, row.rows)).collect())
    }

    /// Queues refunds that had found their outflow full.
    pub async fn queue_refunds(&self, channel: &str, outflow: &str, limit: i64) -> Result<(), LedgerError> {
        let waiting = sqlx::query_scalar!(
            r#"SELECT coalesce((SELECT true FROM refunds WHERE status = 'requested' AND NOT queued AND channel = $1
                                ORDER BY created_at LIMIT 1), false) AS "waiting!""#,
            channel
        );
        if !waiting.fetch_one(&self.0.pool).await? {
            return Ok(());
        }
        let mut tx = self.0.begin().await?;
        let rows = sqlx::query!(
            "SELECT id, key, payment_id, amount_cents, currency FROM refunds
             WHERE status = 'requested' AND NOT queued AND channel = $1 ORDER BY created_at LIMIT $2
             FOR UPDATE SKIP LOCKED",
            channel,
            limit
        )
        .fetch_all(&mut *tx)
        .await?;
        for row in rows {
            let (payment_key, amount_cents) = (PaymentId(row.payment_id), row.amount_cents);
            let item = RefundItem { payment_key, amount_cents, currency: row.currency };
            if !queue(&mut tx, RefundKey(row.key), &item, outflow).await? {
                break;
            }
            sqlx::query!("UPDATE refunds SET queued = true WHERE id = $1", row.id).execute(&mut *tx).await?;
        }
        Ok(tx.commit().await?)
    }

    /// Sends a refund again under the same key: the channel has never received it. Returns `false` if the item is parked for an operator.
    pub async fn refund_again(&self, key: RefundKey) -> Result<bool, LedgerError> {
        let mut tx = self.0.begin().await?;
        let item = sqlx::query!("SELECT channel, key FROM outflow_items WHERE id = $1 AND status = 'done'", key.0)
            .fetch_optional(&mut *tx)
            .await?;
        let Some(item) = item else { return Ok(false) };
        add_or_lock_key(&mut tx, &item.channel, &item.key).await?;
        sqlx::query!(
            "UPDATE outflow_items SET status = 'pending', done_at = NULL WHERE id = $1 AND status = 'done'",
            key.0
        )
        .execute(&mut *tx)
        .await?;
        sqlx::query!("SELECT pg_notify('seckill_outflow', '')").execute(&mut *tx).await?;
        tx.commit().await?;
        Ok(true)
    }

    /// Retries a refused refund under a new key. Returns `false` if there is no such refund.
    pub async fn retry_refund(&self, refund: RefundId, actor: &str) -> Result<bool, LedgerError> {
        let mut tx = self.0.begin().await?;
        let done = sqlx::query!(
            "UPDATE refunds SET status = 'requested', key = $2, queued = false, ended_at = NULL, asked_at = NULL
             WHERE id = $1 AND status || '' = 'failed'",
            refund.0,
            Uuid::now_v7()
        )
        .execute(&mut *tx)
        .await?;
        if done.rows_affected() == 0 {
            return Ok(false);
        }
        audit_log::append(&mut tx, actor, "retry refund", &format!("refund {refund}"), json!({})).await?;
        tx.commit().await?;
        Ok(true)
    }

    /// Reads partial indexes only.
    pub async fn money_figures(&self) -> Result<MoneyFigures, LedgerError> {
        Ok(sqlx::query_as!(
            MoneyFigures,
            r#"SELECT (SELECT count(*) FROM payments WHERE status || '' = 'created') AS "created!",
                      (SELECT coalesce(extract(epoch FROM now() - min(created_at)), 0)::bigint FROM payments
                       WHERE status || '' = 'created') AS "oldest_s!",
                      (SELECT count(*) FROM payments WHERE ask_at IS NOT NULL) AS "under_way!",
                      (SELECT count(*) FROM refunds WHERE status = 'requested') AS "refunds!",
                      (SELECT count(*) FROM refunds WHERE status = 'failed') AS "refunds_failed!",
                      (SELECT count(*) FROM callbacks_set_aside WHERE settled_at IS NULL) AS "set_aside!""#
        )
        .fetch_one(&self.0.pool)
        .await?)
    }

    /// Payments and refunds in our books by key: status, amount and currency.
    pub async fn money_by_key(&self, keys: &[Uuid]) -> Result<Vec<(Uuid, String, i64, String)>, LedgerError> {
        let rows = sqlx::query!(
            r#"SELECT id AS "key!", status AS "status!", amount_cents AS "amount!", currency AS "currency!"
               FROM payments WHERE id = ANY($1)
               UNION ALL SELECT key, status, amount_cents, currency FROM refunds WHERE key = ANY($1)"#,
            keys
        )
        .fetch_all(&self.0.pool)
        .await?;
        Ok(rows.into_iter().map(|r| (r.key, r.status, r.amount, r.currency)).collect())
    }

    /// The keys of all money that moved through a channel, by our books.
    pub async fn moved_through(&self, channel: &str) -> Result<Vec<Uuid>, LedgerError> {
        Ok(sqlx::query_scalar!(
            r#"SELECT id AS "key!" FROM payments WHERE channel = $1 AND status = 'succeeded'
               UNION ALL SELECT key FROM refunds WHERE channel = $1 AND status = 'succeeded'"#,
            channel
        )
        .fetch_all(&self.0.pool)
        .await?)
    }
}
