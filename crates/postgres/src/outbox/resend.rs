//! Finds sent messages that were lost, by marks in their queues, and sends them again.

use crate::{LedgerError, Outbox};

impl Outbox {
    /// The queues that may hold overdue messages: sent, not processed, and late by `after_ms`. All payment channels count as one.
    pub async fn queues_with_overdue(&self, after_ms: u64) -> Result<Vec<String>, LedgerError> {
        Ok(sqlx::query_scalar!(
            r#"SELECT queue AS "queue!"
               FROM (VALUES ('groups-placed',
                             (SELECT sent_at FROM outbox WHERE status = 'sent' AND kind = 'group_placed' ORDER BY sent_at LIMIT 1)),
                            ('groups-expire',
                             (SELECT due_at FROM outbox WHERE status = 'sent' AND kind = 'group_expire' ORDER BY due_at LIMIT 1)),
                            ('payment-requested',
                             (SELECT sent_at FROM outbox WHERE status = 'sent' AND kind = 'payment_requested'
                              ORDER BY sent_at LIMIT 1))) AS first (queue, at)
               WHERE at < now() - $1::bigint * interval '1 ms'"#,
            after_ms.cast_signed()
        )
        .fetch_all(&self.0.pool)
        .await?)
    }

    /// Records that a mark published at `mark_ms` has left its queue.
    pub async fn mark_passed(&self, queue: &str, mark_ms: i64) -> Result<(), LedgerError> {
        self.0
            .run(sqlx::query!(
                "INSERT INTO queue_marks (queue, published_at) VALUES ($1, to_timestamp($2::bigint / 1000.0))
             ON CONFLICT DO NOTHING",
                queue,
                mark_ms
            ))
            .await
    }

    /// Clears marks that left their queue more than an hour ago.
    pub async fn clear_marks(&self) -> Result<(), LedgerError> {
        self.0.run(sqlx::query!("DELETE FROM queue_marks WHERE passed_at < now() - interval '1 hour'")).await
    }

    /// Makes lost messages pending again, at most `limit` of each kind: sent before a mark that left the queue `after_ms` ago, and not
    /// processed. An expiry enters its queue at its deadline. Returns the largest number of one kind.
    pub async fn resend_unsettled(&self, after_ms: u64, limit: i64) -> Result<u64, LedgerError> {
        let after_ms = after_ms.cast_signed();
        let groups = sqlx::query!(
            "UPDATE outbox SET status = 'pending', next_attempt_at = now()
             WHERE id IN (SELECT id FROM outbox WHERE status = 'sent' AND kind = 'group_placed'
                            AND sent_at < (SELECT max(published_at) FROM queue_marks
                                           WHERE queue = 'groups-placed'
                                             AND passed_at < now() - $1::bigint * interval '1 ms')
                          ORDER BY sent_at LIMIT $2 FOR UPDATE SKIP LOCKED)",
            after_ms,
            limit
        )
        .execute(&self.0.pool)
        .await?;
        let expiries = sqlx::query!(
            "WITH mark AS (SELECT max(published_at) AS at FROM queue_marks
                           WHERE queue = 'groups-expire' AND passed_at < now() - $1::bigint * interval '1 ms')
             UPDATE outbox SET status = 'pending', next_attempt_at = now()
             WHERE id IN (SELECT id FROM outbox WHERE status = 'sent' AND kind = 'group_expire'
                            AND due_at < (SELECT at FROM mark) - $1::bigint * interval '1 ms'
                            AND sent_at < (SELECT at FROM mark) - $1::bigint * interval '1 ms'
                          ORDER BY due_at LIMIT $2 FOR UPDATE SKIP LOCKED)",
            after_ms,
            limit
        )
        .execute(&self.0.pool)
        .await?;
        let payments = sqlx::query!(
            "WITH marks AS (SELECT queue, max(published_at) AS at FROM queue_marks
                            WHERE queue LIKE 'payment-requested.%' AND passed_at < now() - $1::bigint * interval '1 ms'
                            GROUP BY queue)
             UPDATE outbox SET status = 'pending', next_attempt_at = now()
             WHERE id IN (SELECT o.id FROM outbox o JOIN payments p ON p.id = o.order_id
                          WHERE o.status = 'sent' AND o.kind = 'payment_requested' AND o.sent_at < (SELECT max(at) FROM marks)
                            AND o.sent_at < (SELECT at FROM marks WHERE queue = 'payment-requested.' || p.channel)
                          ORDER BY o.sent_at LIMIT $2 FOR UPDATE OF o SKIP LOCKED)",
            after_ms,
            limit
        )
        .execute(&self.0.pool)
        .await?;
        // A process may die after it took back a payment, before the payment's message is pending again. Then the payment has no message.
        let forgotten = sqlx::query!(
            "UPDATE outbox SET status = 'pending', next_attempt_at = now(), processed_at = NULL
             WHERE id IN (SELECT b.id FROM payments p JOIN outbox b ON b.order_id = p.id AND b.kind = 'payment_requested'
                          WHERE p.status = 'created' AND p.claim > 0 AND b.status = 'processed'
                            AND b.processed_at < now() - $1::bigint * interval '1 ms'
                          ORDER BY p.id LIMIT $2 FOR UPDATE OF b SKIP LOCKED)",
            after_ms,
            limit
        )
        .execute(&self.0.pool)
        .await?;
        let rows = [groups, expiries, payments, forgotten].map(|done| done.rows_affected());
        Ok(rows.into_iter().max().unwrap_or(0))
    }
}
