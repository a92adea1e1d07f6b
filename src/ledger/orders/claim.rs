//! Takes the purchases that are to become orders: locks their rows, and writes dedup rows for the messages that asked for them
//! (protocol, rule 7).

use sqlx::PgConnection;
use uuid::Uuid;

use crate::domain::ids::OrderId;
use crate::domain::message::OutboxKind;
use crate::ledger::LedgerError;

/// The consumer in the dedup rows.
const CONSUMER: &str = "fulfil";

/// A purchase row that is not processed yet, and the terms of its sale.
pub(super) struct Row {
    pub(super) id: i64,
    pub(super) order: Uuid,
    pub(super) sale: i64,
    pub(super) user: String,
    pub(super) quantity: i32,
    pub(super) price_cents: i64,
    pub(super) per_user: i32,
    pub(super) pay_within_ms: i64,
    pub(super) unlimited: bool,
    /// Whether the order exists: another record of the purchase was settled before.
    pub(super) made: bool,
}

/// For what a dedup row is written.
#[derive(Clone, Copy)]
pub(super) enum Dedup<'a> {
    /// For each purchase.
    Purchases,
    /// For each of these messages. All their purchases are in the same transaction.
    Messages(&'a [Uuid]),
}

/// Locks the purchase rows that are not processed yet, and writes the dedup rows. What protects from a second effect is the status,
/// read under the lock: a purchase row is processed in the transaction that makes its order, and never comes back from there.
/// The dedup rows say the same a second time. A row whose order exists is closed without effect: the purchase was also a member of a
/// group row, which was settled before.
pub(super) async fn claim(
    tx: &mut PgConnection,
    orders: &[OrderId],
    dedup: Dedup<'_>,
) -> Result<Vec<Row>, LedgerError> {
    let orders: Vec<Uuid> = orders.iter().map(|order| order.0).collect();
    let mut rows = sqlx::query_as!(
        Row,
        r#"SELECT o.id, o.order_id AS "order", o.sale_id AS sale, o.user_id AS "user", o.quantity,
                  s.price_cents, s.per_user, s.pay_within_ms, s.total_stock = -1 AS "unlimited!",
                  EXISTS (SELECT FROM orders m WHERE m.id = o.order_id) AS "made!"
           FROM outbox o JOIN sales s ON s.id = o.sale_id
           WHERE o.kind = 'order_placed' AND o.order_id = ANY($1) AND o.status || '' <> 'processed'
           ORDER BY o.id FOR UPDATE OF o"#,
        &orders
    )
    .fetch_all(&mut *tx)
    .await?;
    let made: Vec<i64> = rows.iter().filter(|row| row.made).map(|row| row.id).collect();
    if !made.is_empty() {
        rows.retain(|row| !row.made);
        sqlx::query!(
            "UPDATE outbox SET status = 'processed', processed_at = now(), sent_at = coalesce(sent_at, now()) WHERE id = ANY($1)",
            &made
        )
        .execute(&mut *tx)
        .await?;
    }
    if rows.is_empty() {
        return Ok(rows);
    }
    if let Dedup::Messages(messages) = dedup {
        // A message may have arrived twice in one batch.
        let mut messages = messages.to_vec();
        messages.sort_unstable();
        messages.dedup();
        if write_dedup_rows(&mut *tx, &messages).await?.len() == messages.len() {
            return Ok(rows);
        }
        // One of them came before, so its purchases are processed. Those that are not belong to the others.
    }
    let mut messages: Vec<Uuid> = rows.iter().map(message_id).collect();
    messages.sort_unstable();
    let first_time = write_dedup_rows(tx, &messages).await?;
    if first_time.len() < rows.len() {
        rows.retain(|row| first_time.contains(&message_id(row)));
    }
    Ok(rows)
}

/// Writes dedup rows, and returns the messages that had none.
pub(super) async fn write_dedup_rows(tx: &mut PgConnection, messages: &[Uuid]) -> Result<Vec<Uuid>, LedgerError> {
    Ok(sqlx::query_scalar!(
        "INSERT INTO processed_messages (message_id, consumer) SELECT id, $2 FROM unnest($1::uuid[]) AS m (id)
         ON CONFLICT DO NOTHING RETURNING message_id",
        messages,
        CONSUMER
    )
    .fetch_all(tx)
    .await?)
}

fn message_id(row: &Row) -> Uuid {
    OutboxKind::OrderPlaced.message_id(OrderId(row.order))
}
