//! Clears old rows, mostly of sales that ended long ago. Each step walks over one page of a table by its primary key. So it needs no index
//! of its own, and locks nothing that a running sale uses.

use uuid::Uuid;

use crate::{LedgerError, Sales};

/// Rows per step.
const PAGE: i64 = 5000;
/// Group rows per step. These have tens of thousands of purchases.
const GROUPS: i64 = 500;

/// Where the walk over a table continues; 0: at its start.
pub type Cursor = i64;

/// One page of a walk.
pub struct Page<C> {
    /// Where the walk continues; `None` at the end of the table.
    pub next: Option<C>,
    /// The number of cleared rows.
    pub gone: i64,
}

impl Sales {
    /// Marks the sales that ended `messages_days` ago with all orders settled, and the sales whose steps can be cleared. Skips locked ones
    /// until later. The indexes `sales_to_clear` and `sales_steps_to_clear` have them in this order.
    pub async fn mark_cleared(&self, messages_days: i32, steps_days: i32) -> Result<(), LedgerError> {
        sqlx::query!(
            "UPDATE sales SET cleared_at = now()
             WHERE id IN (SELECT id FROM sales s WHERE cleared_at IS NULL AND ends_at < now() - make_interval(days => $1)
                            AND NOT EXISTS (SELECT FROM orders WHERE sale_id = s.id
                                            AND status IN ('pending_payment', 'refunding') OFFSET 0)
                          ORDER BY ends_at LIMIT 10 FOR NO KEY UPDATE SKIP LOCKED)",
            messages_days
        )
        .execute(&self.0.pool)
        .await?;
        self.0
            .run(sqlx::query!(
                "UPDATE sales SET steps_cleared_at = now()
             WHERE id IN (SELECT id FROM sales WHERE steps_cleared_at IS NULL
                            AND cleared_at < now() - make_interval(days => $1)
                          ORDER BY cleared_at LIMIT 10 FOR NO KEY UPDATE SKIP LOCKED)",
                steps_days
            ))
            .await
    }

    /// Clears the processed outbox rows of cleared sales, one page.
    pub async fn clear_outbox(&self, from: Cursor) -> Result<Page<Cursor>, LedgerError> {
        let page = sqlx::query_as!(
            Page,
            r#"WITH page AS (SELECT id, sale_id, status FROM outbox WHERE id > $1 ORDER BY id LIMIT $2),
                    gone AS (
                      DELETE FROM outbox o USING page p, sales s
                      WHERE o.id = p.id AND p.status = 'processed' AND o.status = 'processed'
                        AND s.id = p.sale_id AND s.cleared_at IS NOT NULL
                      RETURNING o.id)
               SELECT (SELECT max(id) FROM page) AS next, (SELECT count(*) FROM gone) AS "gone!""#,
            from,
            PAGE
        );
        Ok(page.fetch_one(&self.0.pool).await?)
    }

    /// Clears the settled group rows of cleared sales, one page.
    pub async fn clear_groups(&self, from: Uuid) -> Result<Page<Uuid>, LedgerError> {
        let page = sqlx::query_as!(
            Page,
            r#"WITH page AS (SELECT id, sale_id FROM purchase_groups WHERE id > $1 ORDER BY id LIMIT $2),
                    gone AS (
                      DELETE FROM purchase_groups g USING page p, sales s
                      WHERE g.id = p.id AND g.settled_at IS NOT NULL AND s.id = p.sale_id AND s.cleared_at IS NOT NULL
                      RETURNING g.id)
               SELECT (SELECT id FROM page ORDER BY id DESC LIMIT 1) AS next, (SELECT count(*) FROM gone) AS "gone!""#,
            from,
            GROUPS
        );
        Ok(page.fetch_one(&self.0.pool).await?)
    }

    /// Clears the steps of orders of marked sales, one page. Keeps steps that the order webhook has not delivered.
    pub async fn clear_steps(&self, from: Cursor) -> Result<Page<Cursor>, LedgerError> {
        let page = sqlx::query_as!(
            Page,
            r#"WITH page AS (SELECT id, order_id FROM order_steps WHERE id > $1 ORDER BY id LIMIT $2),
                    gone AS (
                      DELETE FROM order_steps t USING page p, orders o, sales s
                      WHERE t.id = p.id AND o.id = p.order_id AND s.id = o.sale_id AND s.steps_cleared_at IS NOT NULL
                        AND NOT EXISTS (SELECT FROM order_events e WHERE e.order_id = p.order_id AND e.step_id = p.id)
                      RETURNING t.id)
               SELECT (SELECT max(id) FROM page) AS next, (SELECT count(*) FROM gone) AS "gone!""#,
            from,
            PAGE
        );
        Ok(page.fetch_one(&self.0.pool).await?)
    }

    pub async fn clear_lapsed_holds(&self, from: Uuid) -> Result<Page<Uuid>, LedgerError> {
        let page = sqlx::query_as!(
            Page,
            r#"WITH page AS (SELECT order_id, sale_id FROM lapsed_holds WHERE order_id > $1 ORDER BY order_id LIMIT $2),
                    gone AS (
                      DELETE FROM lapsed_holds l USING page p, sales s
                      WHERE l.order_id = p.order_id AND s.id = p.sale_id AND s.cleared_at IS NOT NULL
                      RETURNING l.order_id)
               SELECT (SELECT order_id FROM page ORDER BY order_id DESC LIMIT 1) AS next,
                      (SELECT count(*) FROM gone) AS "gone!""#,
            from,
            PAGE
        );
        Ok(page.fetch_one(&self.0.pool).await?)
    }

    /// Clears the buyers' counters of one marked sale: the next after `from` that has counters.
    pub async fn clear_buyers(&self, from: Cursor) -> Result<Page<Cursor>, LedgerError> {
        let mut page = sqlx::query_as!(
            Page,
            r#"WITH next AS (SELECT sale_id FROM sale_buyers WHERE sale_id > $1 ORDER BY sale_id LIMIT 1),
                    page AS (SELECT b.sale_id, b.user_id FROM next JOIN sales s ON s.id = next.sale_id
                             JOIN sale_buyers b ON b.sale_id = next.sale_id
                             WHERE s.steps_cleared_at IS NOT NULL LIMIT $2),
                    gone AS (DELETE FROM sale_buyers b USING page p WHERE b.sale_id = p.sale_id AND b.user_id = p.user_id
                             RETURNING b.sale_id)
               SELECT (SELECT sale_id FROM next) AS next, (SELECT count(*) FROM gone) AS "gone!""#,
            from,
            PAGE
        )
        .fetch_one(&self.0.pool)
        .await?;
        if page.gone == PAGE {
            page.next = Some(from);
        }
        Ok(page)
    }

    /// Clears the outflow items sent at least `days` ago, one page. Keeps items of refunds in flight.
    pub async fn clear_outflow_items(&self, from: Uuid, days: i32) -> Result<Page<Uuid>, LedgerError> {
        let page = sqlx::query_as!(
            Page,
            r#"WITH page AS (SELECT id FROM outflow_items WHERE id > $1 ORDER BY id LIMIT $2),
                    gone AS (
                      DELETE FROM outflow_items i USING page p
                      WHERE i.id = p.id AND i.status = 'done' AND i.done_at < now() - make_interval(days => $3)
                        AND NOT EXISTS (SELECT FROM refunds r WHERE r.key = i.id AND r.status = 'requested')
                      RETURNING i.id)
               SELECT (SELECT id FROM page ORDER BY id DESC LIMIT 1) AS next, (SELECT count(*) FROM gone) AS "gone!""#,
            from,
            PAGE,
            days
        );
        Ok(page.fetch_one(&self.0.pool).await?)
    }

    pub async fn clear_audit_log(&self, days: i32) -> Result<u64, LedgerError> {
        let done = sqlx::query!(
            "DELETE FROM audit_log WHERE id IN (
               SELECT id FROM audit_log WHERE at < now() - make_interval(days => $1) ORDER BY at LIMIT $2)",
            days,
            PAGE
        );
        Ok(done.execute(&self.0.pool).await?.rows_affected())
    }

    /// Clears alarms that ended `days` ago, and settled callbacks that were quarantined then, one page of each.
    pub async fn clear_records(&self, from: Cursor, days: i32) -> Result<Page<Cursor>, LedgerError> {
        let page = sqlx::query_as!(
            Page,
            r#"WITH alarms_page AS (SELECT id FROM alarms WHERE id > $1 ORDER BY id LIMIT $2),
                    callbacks_page AS (SELECT id FROM callbacks_set_aside WHERE id > $1 ORDER BY id LIMIT $2),
                    over AS (DELETE FROM alarms a USING alarms_page p
                             WHERE a.id = p.id AND a.cleared_at < now() - make_interval(days => $3) RETURNING a.id),
                    settled AS (DELETE FROM callbacks_set_aside c USING callbacks_page p
                                WHERE c.id = p.id AND c.settled_at < now() - make_interval(days => $3) RETURNING c.id)
               SELECT least((SELECT max(id) FROM alarms_page), (SELECT max(id) FROM callbacks_page)) AS next,
                      (SELECT count(*) FROM over) + (SELECT count(*) FROM settled) AS "gone!""#,
            from,
            PAGE,
            days
        );
        Ok(page.fetch_one(&self.0.pool).await?)
    }

    pub async fn clear_processed_messages(&self, messages_days: i32) -> Result<u64, LedgerError> {
        let done = sqlx::query!(
            "DELETE FROM processed_messages WHERE (message_id, consumer) IN (
               SELECT message_id, consumer FROM processed_messages
               WHERE processed_at < now() - make_interval(days => $1) ORDER BY processed_at LIMIT $2)",
            messages_days,
            PAGE
        )
        .execute(&self.0.pool)
        .await?;
        Ok(done.rows_affected())
    }
}
