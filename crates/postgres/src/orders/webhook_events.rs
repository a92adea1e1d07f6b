//! Claims events for the order webhook, and writes their outcomes. A trigger writes the events (migrations/0003_orders.sql).

use std::time::Duration;

use chrono::{DateTime, Utc};

use crate::outbox::{RetryPolicy, one_line};
use crate::{LedgerError, Orders};
use seckill_domain::ids::{OrderId, SaleId};
use seckill_domain::trace_context::TraceContext;
use seckill_webhook::backoff_ms;

#[derive(Debug, Clone)]
pub struct OrderEvent {
    pub order: OrderId,
    pub step: i64,
    pub status: String,
    pub at: DateTime<Utc>,
    pub sale: SaleId,
    pub user: String,
    pub quantity: i32,
    pub amount_cents: i64,
    pub currency: String,
    pub reason: Option<String>,
    pub attempts: u32,
    /// The trace of the order's purchase, if traced.
    pub trace: Option<TraceContext>,
    claims: i32,
}

/// Due events, at most one of each order.
#[derive(Debug)]
pub struct TakenEvents {
    pub events: Vec<OrderEvent>,
    pub now_s: i64,
    pub more: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventOutcome {
    /// The event is deleted. `freed`: how many later events of its order are due now.
    Delivered {
        freed: i64,
    },
    WillRetry,
    Parked,
    /// Another worker has claimed the event meanwhile.
    Overtaken,
}

impl Orders {
    /// Records whether a receiver is configured. Events are kept only for a configured receiver. Returns whether this has changed.
    pub async fn set_shop_listens(&self, listens: bool) -> Result<bool, LedgerError> {
        let changed = sqlx::query!(
            "WITH changed AS (UPDATE shop SET listens = $1 WHERE listens <> $1 RETURNING listens)
             INSERT INTO audit_log (actor, action, subject, details)
             SELECT 'worker', 'shop', 'webhook', jsonb_build_object('listens', listens) FROM changed",
            listens
        )
        .execute(&self.0.pool)
        .await?;
        Ok(changed.rows_affected() > 0)
    }

    /// Claims, for `lease`, the oldest due events that are the first of their order. An event behind an earlier one is delayed.
    pub async fn take_order_events(&self, limit: i64, lease: Duration) -> Result<TakenEvents, LedgerError> {
        let rows = sqlx::query!(
            r#"WITH due AS (
                 SELECT order_id, step_id FROM order_events WHERE next_attempt_at <= now() AND status = 'pending'
                 ORDER BY next_attempt_at, step_id LIMIT $1 FOR UPDATE SKIP LOCKED),
               seen AS (
                 SELECT order_id, step_id,
                        (SELECT first.next_attempt_at FROM order_events first
                         WHERE first.order_id = due.order_id AND first.step_id < due.step_id
                         ORDER BY first.step_id LIMIT 1) AS behind
                 FROM due),
               taken AS (
                 UPDATE order_events e
                 SET claims = claims + (behind IS NULL)::integer,
                     next_attempt_at = CASE WHEN behind IS NULL THEN now() + $2::bigint * interval '1 ms'
                                            ELSE greatest(behind, now() + interval '1 second') END
                 FROM seen WHERE e.order_id = seen.order_id AND e.step_id = seen.step_id
                 RETURNING e.order_id, e.step_id, e.attempts, e.claims, behind IS NULL AS first)
               SELECT t.order_id, t.step_id, t.attempts, t.claims, t.first AS "first!", s.to_status AS status, s.at, o.sale_id,
                      o.user_id, o.quantity, o.amount_cents, o.currency, o.trace, CASE WHEN s.to_status = o.status THEN o.reason END AS reason,
                      extract(epoch FROM clock_timestamp())::bigint AS "now_s!"
               FROM taken t JOIN order_steps s ON s.id = t.step_id JOIN orders o ON o.id = t.order_id
               ORDER BY t.step_id"#,
            limit,
            millis(lease)
        )
        .fetch_all(&self.0.pool)
        .await?;
        let now_s = rows.first().map_or(0, |row| row.now_s);
        let more = rows.len() as u64 >= limit.unsigned_abs();
        let events = rows.into_iter().filter(|row| row.first).map(|row| OrderEvent {
            order: OrderId(row.order_id),
            step: row.step_id,
            status: row.status,
            at: row.at,
            sale: SaleId::from_db(row.sale_id),
            user: row.user_id,
            quantity: row.quantity,
            amount_cents: row.amount_cents,
            currency: row.currency,
            reason: row.reason,
            attempts: row.attempts.unsigned_abs(),
            trace: row.trace.as_deref().and_then(TraceContext::from_text),
            claims: row.claims,
        });
        Ok(TakenEvents { events: events.collect(), now_s, more })
    }

    /// Deletes a delivered event. The next event of its order is due then.
    pub async fn order_event_delivered(&self, event: &OrderEvent) -> Result<EventOutcome, LedgerError> {
        let written = sqlx::query!(
            r#"WITH told AS (
                 DELETE FROM order_events WHERE order_id = $1 AND step_id = $2 AND claims = $3 RETURNING order_id),
               freed AS (
                 UPDATE order_events e SET next_attempt_at = now() FROM told
                 WHERE e.order_id = told.order_id AND e.step_id > $2 AND e.status = 'pending' RETURNING 1)
               SELECT (SELECT count(*) FROM told) AS "told!", (SELECT count(*) FROM freed) AS "freed!""#,
            event.order.0,
            event.step,
            event.claims
        )
        .fetch_one(&self.0.pool)
        .await?;
        Ok(if written.told == 1 { EventOutcome::Delivered { freed: written.freed } } else { EventOutcome::Overtaken })
    }

    /// Counts a failure. The event is sent again later, or parked at the limit of attempts.
    pub async fn order_event_failed(
        &self,
        event: &OrderEvent,
        error: &str,
        terms: RetryPolicy,
    ) -> Result<EventOutcome, LedgerError> {
        let attempts = event.attempts + 1;
        let parked = attempts >= terms.max_attempts;
        let wait = backoff_ms(attempts, terms.backoff_base_ms, terms.backoff_max_ms, rand::random());
        self.delay_event(event, attempts, Some(one_line(error)), parked, wait.cast_signed()).await
    }

    /// Delays an event, because the receiver is away or asks for a pause. Counts no attempt.
    pub async fn order_event_postponed(
        &self,
        event: &OrderEvent,
        error: Option<&str>,
        wait: Duration,
    ) -> Result<EventOutcome, LedgerError> {
        self.delay_event(event, event.attempts, error.map(one_line), false, millis(wait)).await
    }

    async fn delay_event(
        &self,
        event: &OrderEvent,
        attempts: u32,
        error: Option<String>,
        parked: bool,
        wait_ms: i64,
    ) -> Result<EventOutcome, LedgerError> {
        let written = sqlx::query!(
            "UPDATE order_events
             SET attempts = $4, last_error = coalesce($5, last_error), status = CASE WHEN $6 THEN 'parked' ELSE 'pending' END,
                 next_attempt_at = CASE WHEN $6 THEN 'infinity' ELSE now() + $7::bigint * interval '1 ms' END
             WHERE order_id = $1 AND step_id = $2 AND claims = $3",
            event.order.0,
            event.step,
            event.claims,
            attempts.cast_signed(),
            error,
            parked,
            wait_ms
        )
        .execute(&self.0.pool)
        .await?;
        Ok(match (written.rows_affected(), parked) {
            (0, _) => EventOutcome::Overtaken,
            (_, true) => EventOutcome::Parked,
            (_, false) => EventOutcome::WillRetry,
        })
    }
}

fn millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}
