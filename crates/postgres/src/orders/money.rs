//! The money of orders as their buyers see it: the payment, and what was given back.

use std::collections::HashMap;

use sqlx::PgExecutor;
use uuid::Uuid;

use crate::LedgerError;
use seckill_domain::order::{Order, OrderPayment, OrderStatus};
use seckill_domain::payment::{PaymentId, reason_code};

/// Adds payments and refunds to orders. Asks nothing if no order can have any.
pub(super) async fn add_money<'a>(
    connection: impl PgExecutor<'_>,
    orders: impl Iterator<Item = &'a mut Order>,
) -> Result<(), LedgerError> {
    let without = |order: &&mut Order| matches!(order.status, OrderStatus::Accepted | OrderStatus::Rejected);
    let mut orders: HashMap<Uuid, Vec<&mut Order>> =
        orders.filter(|order| !without(order)).fold(HashMap::new(), |mut by_id, order| {
            by_id.entry(order.order_id.0).or_default().push(order);
            by_id
        });
    if orders.is_empty() {
        return Ok(());
    }
    let ids: Vec<Uuid> = orders.keys().copied().collect();
    let rows = sqlx::query!(
        r#"SELECT a.id AS "order!", p.id AS "payment?", p.channel AS "channel?", p.status AS "status?", p.reason AS "reason?",
                  coalesce(r.cents, 0) AS "refunded!"
           FROM unnest($1::uuid[]) AS a (id)
           LEFT JOIN LATERAL (SELECT id, channel, status, reason FROM payments WHERE order_id = a.id
                              ORDER BY pays DESC, created_at DESC, id DESC LIMIT 1) AS p ON true
           LEFT JOIN LATERAL (SELECT sum(amount_cents)::bigint AS cents FROM refunds
                              WHERE order_id = a.id AND status || '' = 'succeeded' AND cause <> 'order-already-paid') AS r ON true"#,
        &ids
    )
    .fetch_all(connection)
    .await?;
    for row in rows {
        let payment = match (row.payment, row.channel, row.status) {
            (Some(id), Some(channel), Some(status)) => {
                let status = status.parse().map_err(|_| LedgerError::Unreadable("payments.status"))?;
                let reason = row.reason.map(|reason| reason_code(&reason).to_owned());
                Some(OrderPayment { payment_id: PaymentId(id), channel, status, reason })
            }
            _ => None,
        };
        for order in orders.get_mut(&row.order).into_iter().flatten() {
            order.payment.clone_from(&payment);
            order.refunded_cents = row.refunded;
        }
    }
    Ok(())
}
