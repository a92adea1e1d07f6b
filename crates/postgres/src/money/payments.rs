//! Begins payments. payment_dispatch.rs sends them, channel_reports.rs applies their outcomes.

use std::collections::{HashMap, HashSet};

use sqlx::{PgConnection, Postgres, Transaction};
use uuid::Uuid;

use crate::orders::cancel::settle_expiries;
use crate::{LedgerError, Payments};
use seckill_domain::ids::OrderId;
use seckill_domain::payment::{NO_CHANNEL, PaymentId, PaymentStatus};
use seckill_domain::trace_context::TraceContext;
use seckill_runtime::die_at;

#[derive(Debug, Clone)]
pub struct PaymentRequest {
    pub order: OrderId,
    pub user: String,
    pub channel: String,
    pub trace: Option<Box<TraceContext>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PaymentStart {
    /// The order's payment in flight: a new one, or an earlier one.
    Payment(PaymentId, PaymentStatus),
    Unknown,
    /// The order does not wait for payment, or waits for a payment through another channel.
    IllegalState,
    /// Another transaction has locked the order. No payment began.
    InUse,
    /// The payment could not be written. No payment began.
    Failed,
}

impl Payments {
    /// Begins payments of orders, or finds their payments in flight. An order waits for the outcome, up to `wait_ms` beyond its deadline.
    /// An order that costs nothing is paid at once. An order that cannot be paid never fails its batch. A locked order does not delay it.
    pub async fn begin_payments(
        &self,
        requests: &[PaymentRequest],
        wait_ms: u64,
    ) -> Result<Vec<PaymentStart>, LedgerError> {
        match self.try_begin(self.0.begin().await?, requests, wait_ms).await {
            Err(error) if !error.is_outage() => {
                tracing::info!(%error, requests = requests.len(), "payments not begun together; trying one by one");
            }
            begun => return begun,
        }
        let mut all = Vec::with_capacity(requests.len());
        for request in requests {
            let one = std::slice::from_ref(request);
            match self.try_begin(self.0.begin().await?, one, wait_ms).await {
                Ok(begun) => all.extend(begun),
                Err(error) if error.is_temporary() => return Err(error),
                Err(error) => {
                    tracing::error!(order = %request.order, %error, "payment not begun");
                    all.push(PaymentStart::Failed);
                }
            }
        }
        Ok(all)
    }

    /// As `begin_payments`, but waits for a locked order.
    pub async fn begin_payment(&self, request: &PaymentRequest, wait_ms: u64) -> Result<PaymentStart, LedgerError> {
        let mut tx = self.0.begin().await?;
        sqlx::query!("SELECT FROM orders WHERE id = $1 FOR UPDATE", request.order.0).execute(&mut *tx).await?;
        let begun = self.try_begin(tx, std::slice::from_ref(request), wait_ms).await?;
        Ok(begun.first().copied().unwrap_or(PaymentStart::Failed))
    }

    async fn try_begin(
        &self,
        mut tx: Transaction<'_, Postgres>,
        requests: &[PaymentRequest],
        wait_ms: u64,
    ) -> Result<Vec<PaymentStart>, LedgerError> {
        let orders: Vec<Uuid> = requests.iter().map(|request| request.order.0).collect();
        let rows = sqlx::query!(
            r#"SELECT id, user_id, status = 'pending_payment' AND expires_at > clock_timestamp() AS "payable!",
                      amount_cents = 0 AS "free!", status = 'paid' AS "paid!"
               FROM orders WHERE id = ANY($1) FOR UPDATE SKIP LOCKED"#,
            &orders
        )
        .fetch_all(&mut *tx)
        .await?;
        // Read under the locks, so that payments of other transactions are seen. A request that paid a free order is repeated if its
        // answer was lost.
        let live = sqlx::query!(
            "SELECT id, order_id, status, channel FROM payments
             WHERE order_id = ANY($1) AND (status IN ('created', 'sending', 'waiting') OR order_id = ANY($2))",
            &orders,
            &rows.iter().filter(|row| row.free && row.paid).map(|row| row.id).collect::<Vec<_>>()
        )
        .fetch_all(&mut *tx)
        .await?;
        let mut payments = HashMap::with_capacity(live.len());
        for row in live {
            let status = row.status.parse().map_err(|_| LedgerError::Unreadable("payments.status"))?;
            payments.insert(row.order_id, (PaymentId(row.id), status, row.channel));
        }
        let mut known: HashMap<_, _> = rows.into_iter().map(|row| (row.id, (payments.remove(&row.id), row))).collect();
        let missing: Vec<Uuid> = orders.iter().copied().filter(|order| !known.contains_key(order)).collect();
        let mut in_use = HashSet::new();
        if !missing.is_empty() {
            let exist = sqlx::query_scalar!("SELECT id FROM orders WHERE id = ANY($1)", &missing);
            in_use.extend(exist.fetch_all(&mut *tx).await?);
        }
        let (mut ids, mut paid, mut channels, mut traces) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let (mut free_ids, mut free) = (Vec::new(), Vec::new());
        let mut begin = |request: &PaymentRequest| {
            let Some((payment, order)) = known.get_mut(&request.order.0) else {
                return if in_use.contains(&request.order.0) { PaymentStart::InUse } else { PaymentStart::Unknown };
            };
            if order.user_id != request.user {
                return PaymentStart::Unknown;
            }
            let id = Uuid::now_v7();
            if payment.is_none() && order.payable && order.free {
                free_ids.push(id);
                free.push(request.order.0);
                *payment = Some((PaymentId(id), PaymentStatus::Succeeded, NO_CHANNEL.to_owned()));
            } else if payment.is_none() && order.payable && request.channel != NO_CHANNEL {
                ids.push(id);
                paid.push(request.order.0);
                channels.push(request.channel.clone());
                traces.push(request.trace.as_deref().map(TraceContext::to_text));
                *payment = Some((PaymentId(id), PaymentStatus::Created, request.channel.clone()));
            }
            match payment {
                Some((id, status, channel)) if order.free || *channel == request.channel => {
                    PaymentStart::Payment(*id, *status)
                }
                _ => PaymentStart::IllegalState,
            }
        };
        let begun = requests.iter().map(&mut begin).collect();
        if ids.is_empty() && free.is_empty() {
            return Ok(begun);
        }
        if !free.is_empty() {
            pay_free(&mut tx, &free_ids, &free).await?;
        }
        sqlx::query!(
            "WITH o AS (
               UPDATE orders SET wait_until = expires_at + $4::bigint * interval '1 ms'
               FROM unnest($1::uuid[], $2::uuid[], $3::text[], $5::text[]) AS n (payment, order_id, channel, request_trace)
               WHERE id = n.order_id RETURNING orders.*, n.payment, n.channel, n.request_trace
             ), made AS (
               INSERT INTO payments (id, order_id, channel, amount_cents, currency)
               SELECT o.payment, o.id, o.channel, o.amount_cents, o.currency FROM o
             )
             INSERT INTO outbox (kind, order_id, sale_id, quantity, shard, trace)
             SELECT 'payment_requested', o.payment, o.sale_id, o.quantity, o.shard, coalesce(o.request_trace, o.trace) FROM o",
            &ids,
            &paid,
            &channels,
            wait_ms.cast_signed(),
            &traces as &[Option<String>]
        )
        .execute(&mut *tx)
        .await?;
        die_at!("pay.before_commit");
        tx.commit().await?;
        die_at!("pay.after_commit");
        Ok(begun)
    }
}

/// Pays orders that cost nothing, with all that a channel's report of success does.
async fn pay_free(tx: &mut PgConnection, payments: &[Uuid], orders: &[Uuid]) -> Result<(), LedgerError> {
    sqlx::query!(
        "WITH o AS (
           UPDATE orders SET status = 'paid' FROM unnest($1::uuid[], $2::uuid[]) AS n (payment, order_id)
           WHERE id = n.order_id RETURNING n.payment, id, currency
         ), booked AS (
           INSERT INTO journal (entry, subject, order_id, debit, credit, amount_cents, currency)
           SELECT 'payment', payment, id, 'channel:' || $3, 'sales', 0, currency FROM o
         )
         INSERT INTO payments (id, order_id, channel, amount_cents, currency, status, pays, ended_at)
         SELECT payment, id, $3, 0, currency, 'succeeded', true, now() FROM o",
        payments,
        orders,
        NO_CHANNEL
    )
    .execute(&mut *tx)
    .await?;
    settle_expiries(tx, orders).await
}

/// Locks a payment's order. The lock order puts orders before payments. Returns whether the order waits for payment.
pub(crate) async fn lock_order_of(tx: &mut PgConnection, payment: PaymentId) -> Result<bool, LedgerError> {
    let pending = sqlx::query_scalar!(
        r#"SELECT status = 'pending_payment' AS "pending!" FROM orders
           WHERE id = (SELECT order_id FROM payments WHERE id = $1) FOR UPDATE"#,
        payment.0
    )
    .fetch_optional(tx)
    .await?;
    Ok(pending.unwrap_or(false))
}

/// A movement of money, for the journal.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Movement<'a> {
    pub(crate) order: Uuid,
    pub(crate) amount_cents: i64,
    pub(crate) currency: &'a str,
}

/// Writes a line of the journal (accounts: migrations/0005_money.sql). A second line of this kind for the same payment or refund fails.
pub(crate) async fn write(
    tx: &mut PgConnection,
    entry: &str,
    subject: Uuid,
    of: Movement<'_>,
    debit: &str,
    credit: &str,
) -> Result<(), LedgerError> {
    sqlx::query!(
        "INSERT INTO journal (entry, subject, order_id, debit, credit, amount_cents, currency)
         VALUES ($1, $2, $3, $4, $5, $6, $7)",
        entry,
        subject,
        of.order,
        debit,
        credit,
        of.amount_cents,
        of.currency
    )
    .execute(tx)
    .await?;
    Ok(())
}
