//! What is to be asked of a channel, because it has not said: payments that may have reached it, refunds that it has
//! taken. Whoever takes one has it until it is due again, so that a worker that dies holds up nothing.

use std::time::Duration;

use chrono::{DateTime, Utc};
use serde_json::json;
use uuid::Uuid;

use crate::domain::ids::OrderId;
use crate::domain::payment::About;
use crate::ledger::audit_log;
use crate::ledger::money::refunds::{RefundRoute, queue};
use crate::ledger::outflow::slots::micros;
use crate::ledger::{Ledger, LedgerError};

/// Something to ask about.
#[derive(Debug, Clone)]
pub struct StatusQuery {
    pub about: About,
    pub channel: String,
    /// Of a payment: which claim it is.
    pub claim: i32,
    /// Whether it may never have reached the channel.
    pub unsure: bool,
}

/// A payment or refund, for people.
#[derive(Debug, Clone, serde::Serialize)]
pub struct MoneyRow {
    pub id: Uuid,
    pub order_id: Uuid,
    pub channel: String,
    pub amount_cents: i64,
    pub currency: String,
    pub status: String,
    pub created_at: DateTime<Utc>,
    pub ended_at: Option<DateTime<Utc>>,
    pub note: Option<String>,
}

/// A callback that does not fit, for people.
#[derive(Debug, Clone, serde::Serialize)]
pub struct SetAside {
    pub id: i64,
    pub at: DateTime<Utc>,
    pub channel: String,
    pub message_id: String,
    pub problem: String,
    pub body: String,
}

/// How money stands.
#[derive(Debug, Clone, Copy)]
pub struct MoneyFigures {
    /// Payments that wait for a slot, and the age of the oldest.
    pub created: i64,
    pub oldest_s: i64,
    /// Payments whose outcome is not known yet.
    pub under_way: i64,
    pub refunds: i64,
    pub refunds_failed: i64,
    pub set_aside: i64,
}

impl Ledger {
    /// Payments whose channel is to be asked now; each time a little later, up to 5 minutes.
    pub async fn payments_to_ask(&self, limit: i64, again: Duration) -> Result<Vec<StatusQuery>, LedgerError> {
        let rows = sqlx::query!(
            "UPDATE payments SET asked = asked + 1,
                    ask_at = now() + least($2::bigint * power(2, least(asked, 10)), 300000000) * interval '1 us'
             WHERE id IN (SELECT id FROM payments WHERE ask_at <= now() ORDER BY ask_at LIMIT $1 FOR UPDATE SKIP LOCKED)
             RETURNING id, order_id, channel, claim, status",
            limit,
            micros(again)
        )
        .fetch_all(&self.pool)
        .await?;
        let question = |id, order, channel, claim, status: &str| StatusQuery {
            about: About::Payment { key: id, order: OrderId(order) },
            channel,
            claim,
            unsure: status == "sending",
        };
        Ok(rows.into_iter().map(|r| question(r.id, r.order_id, r.channel, r.claim, &r.status)).collect())
    }

    /// Refunds that have left some time ago, and of which nothing was heard since; likewise.
    pub async fn refunds_to_ask(&self, limit: i64, after: Duration) -> Result<Vec<StatusQuery>, LedgerError> {
        let rows = sqlx::query!(
            "UPDATE refunds SET asked_at = now()
             WHERE id IN (SELECT r.id FROM refunds r JOIN outflow_items i ON i.id = r.key
                          WHERE r.status = 'requested' AND i.status IN ('done', 'parked')
                            AND coalesce(r.asked_at, i.done_at, r.created_at) <= now() - $2::bigint * interval '1 us'
                          ORDER BY r.created_at LIMIT $1 FOR UPDATE OF r SKIP LOCKED)
             RETURNING key, payment_id, channel",
            limit,
            micros(after)
        )
        .fetch_all(&self.pool)
        .await?;
        let question = |key, payment, channel| StatusQuery {
            about: About::Refund { key, payment },
            channel,
            claim: 0,
            unsure: false,
        };
        Ok(rows.into_iter().map(|r| question(r.key, r.payment_id, r.channel)).collect())
    }

    /// Brings refunds again that found their outflow full; says how many are in it now.
    pub async fn queue_refunds(&self, channel: &str, route: &RefundRoute, limit: i64) -> Result<usize, LedgerError> {
        let mut tx = self.pool.begin().await?;
        let rows = sqlx::query!(
            "SELECT id, key, payment_id, amount_cents, currency FROM refunds
             WHERE status = 'requested' AND NOT queued AND channel = $1 ORDER BY created_at LIMIT $2
             FOR UPDATE SKIP LOCKED",
            channel,
            limit
        )
        .fetch_all(&mut *tx)
        .await?;
        let mut brought = 0;
        for row in rows {
            if !queue(&mut tx, row.key, row.payment_id, row.amount_cents, &row.currency, route).await? {
                break;
            }
            sqlx::query!("UPDATE refunds SET queued = true WHERE id = $1", row.id).execute(&mut *tx).await?;
            brought += 1;
        }
        tx.commit().await?;
        Ok(brought)
    }

    /// A refund that has left, and that the channel knows nothing of, leaves once more, under the same key. `false` where it
    /// was not taken at all: then it is parked, and waits for people.
    pub async fn refund_again(&self, key: Uuid) -> Result<bool, LedgerError> {
        let mut tx = self.pool.begin().await?;
        let item = sqlx::query!("SELECT channel, key FROM outflow_items WHERE id = $1 AND status = 'done'", key)
            .fetch_optional(&mut *tx)
            .await?;
        let Some(item) = item else { return Ok(false) };
        // Its key first, as everybody locks them.
        sqlx::query!(
            "INSERT INTO outflow_keys (channel, key, turn_at) VALUES ($1, $2, clock_timestamp())
             ON CONFLICT (channel, key) DO UPDATE SET turn_at = outflow_keys.turn_at",
            item.channel,
            item.key
        )
        .execute(&mut *tx)
        .await?;
        sqlx::query!(
            "UPDATE outflow_items SET status = 'pending', done_at = NULL WHERE id = $1 AND status = 'done'",
            key
        )
        .execute(&mut *tx)
        .await?;
        sqlx::query!("SELECT pg_notify('seckill_outflow', '')").execute(&mut *tx).await?;
        tx.commit().await?;
        Ok(true)
    }

    /// Tries a refund again that the channel has refused, under a new key; `false` when there is no such refund.
    pub async fn retry_refund(&self, refund: Uuid, actor: &str) -> Result<bool, LedgerError> {
        let mut tx = self.pool.begin().await?;
        let done = sqlx::query!(
            "UPDATE refunds SET status = 'requested', key = $2, queued = false, ended_at = NULL, asked_at = NULL
             WHERE id = $1 AND status = 'failed'",
            refund,
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

    /// The newest payments, for people.
    pub async fn payments(&self, limit: i64) -> Result<Vec<MoneyRow>, LedgerError> {
        Ok(sqlx::query_as!(
            MoneyRow,
            "SELECT id, order_id, channel, amount_cents, currency, status, created_at, ended_at, reason AS note
             FROM payments ORDER BY created_at DESC, id LIMIT $1",
            limit
        )
        .fetch_all(&self.pool)
        .await?)
    }

    /// The newest refunds, for people.
    pub async fn refunds(&self, limit: i64) -> Result<Vec<MoneyRow>, LedgerError> {
        Ok(sqlx::query_as!(
            MoneyRow,
            r#"SELECT id, order_id, channel, amount_cents, currency, status, created_at, ended_at,
                      cause || ' by ' || asked_by AS "note?"
               FROM refunds ORDER BY created_at DESC, id LIMIT $1"#,
            limit
        )
        .fetch_all(&self.pool)
        .await?)
    }

    /// Callbacks that were set aside and not looked into yet, oldest first.
    pub async fn callbacks_set_aside(&self, limit: i64) -> Result<Vec<SetAside>, LedgerError> {
        Ok(sqlx::query_as!(
            SetAside,
            "SELECT id, at, channel, message_id, problem, body FROM callbacks_set_aside
             WHERE settled_at IS NULL ORDER BY id LIMIT $1",
            limit
        )
        .fetch_all(&self.pool)
        .await?)
    }

    /// Somebody has looked into these; says how many there were.
    pub async fn settle_set_aside(&self, ids: &[i64], actor: &str) -> Result<u64, LedgerError> {
        let mut tx = self.pool.begin().await?;
        let done = sqlx::query!(
            "UPDATE callbacks_set_aside SET settled_at = now() WHERE id = ANY($1) AND settled_at IS NULL",
            ids
        )
        .execute(&mut *tx)
        .await?;
        audit_log::append(&mut tx, actor, "settle callbacks", "callbacks set aside", json!({ "ids": ids })).await?;
        tx.commit().await?;
        Ok(done.rows_affected())
    }

    /// How money stands. Partial indexes have it.
    pub async fn money_figures(&self) -> Result<MoneyFigures, LedgerError> {
        Ok(sqlx::query_as!(
            MoneyFigures,
            r#"SELECT (SELECT count(*) FROM payments WHERE status = 'created') AS "created!",
                      (SELECT coalesce(extract(epoch FROM now() - min(created_at)), 0)::bigint FROM payments
                       WHERE status = 'created') AS "oldest_s!",
                      (SELECT count(*) FROM payments WHERE ask_at IS NOT NULL) AS "under_way!",
                      (SELECT count(*) FROM refunds WHERE status = 'requested') AS "refunds!",
                      (SELECT count(*) FROM refunds WHERE status = 'failed') AS "refunds_failed!",
                      (SELECT count(*) FROM callbacks_set_aside WHERE settled_at IS NULL) AS "set_aside!""#
        )
        .fetch_one(&self.pool)
        .await?)
    }

    /// Of these payments and refunds, by their keys: what we think of each, as `status`, amount and currency.
    pub async fn money_by_key(&self, keys: &[Uuid]) -> Result<Vec<(Uuid, String, i64, String)>, LedgerError> {
        let rows = sqlx::query!(
            r#"SELECT id AS "key!", status AS "status!", amount_cents AS "amount!", currency AS "currency!"
               FROM payments WHERE id = ANY($1)
               UNION ALL SELECT key, status, amount_cents, currency FROM refunds WHERE key = ANY($1)"#,
            keys
        )
        .fetch_all(&self.pool)
        .await?;
        Ok(rows.into_iter().map(|r| (r.key, r.status, r.amount, r.currency)).collect())
    }

    /// The keys of all money that our books say has moved through a channel.
    pub async fn moved_through(&self, channel: &str) -> Result<Vec<Uuid>, LedgerError> {
        Ok(sqlx::query_scalar!(
            r#"SELECT id AS "key!" FROM payments WHERE channel = $1 AND status = 'succeeded' AND amount_cents > 0
               UNION ALL SELECT key FROM refunds WHERE channel = $1 AND status = 'succeeded' AND amount_cents > 0"#,
            channel
        )
        .fetch_all(&self.pool)
        .await?)
    }
}
