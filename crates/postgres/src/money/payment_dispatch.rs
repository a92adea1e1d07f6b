//! Sends payments to a channel: claims slots, and writes the results. docs/delivery.md explains why the slots are safe.

use std::time::{Duration, Instant};

use uuid::Uuid;

use crate::money::payments::lock_order_of;
use crate::{LedgerError, Payments, micros};
use seckill_domain::ids::OrderId;
use seckill_domain::outflow::{LATENESS, LEAD, LOOKAHEAD, Pace};
use seckill_domain::payment::PaymentId;
use seckill_runtime::die_at;

#[derive(Debug, Clone)]
pub struct DuePayment {
    pub id: PaymentId,
    pub order: OrderId,
    pub amount_cents: i64,
    pub currency: String,
    /// How long the payment has waited for its slot.
    pub waited: Duration,
    /// When to send it, by this process's clock.
    pub earliest: Instant,
    pub latest: Instant,
    pub claimed_at: Instant,
    pub claim: i32,
    /// PostgreSQL's time in seconds, for the signature.
    pub now_s: i64,
}

#[derive(Debug)]
pub enum PaymentClaim {
    /// The first `looked_at` payments were checked. Send those in `payments`. The others need no slot.
    Due { payments: Vec<DuePayment>, looked_at: usize },
    /// The next slot is too far away to be claimed.
    Wait(Duration),
}

impl Payments {
    /// Sets a channel's rate. After a change, the first slot is more than a second after the last slot of the old rate.
    pub async fn set_payment_pace(&self, channel: &str, pace: Pace) -> Result<(), LedgerError> {
        self.0
            .run(sqlx::query!(
                "INSERT INTO payment_pace AS p (channel, rate, jitter_ms, gap_us) VALUES ($1, $2, $3, $4)
             ON CONFLICT (channel) DO UPDATE
             SET rate = $2, jitter_ms = $3, gap_us = $4,
                 next_at = greatest(p.next_at, clock_timestamp())
                           + interval '1 s' + greatest(p.jitter_ms, $3) * interval '1 ms' + $5::bigint * interval '1 us'
             WHERE p.gap_us <> $4",
                channel,
                pace.rate().cast_signed(),
                pace.jitter_ms().cast_signed(),
                pace.gap_us(),
                micros(LATENESS)
            ))
            .await
    }

    /// Claims slots for due payments, and marks the messages of all checked payments as processed. Checks the first payments, at most
    /// `most`, and no more than the channel has slots in 100 ms. One sender claims a payment, even if its message comes twice.
    pub async fn claim_payments(
        &self,
        channel: &str,
        payments: &[PaymentId],
        most: u32,
        ask_after: Duration,
    ) -> Result<PaymentClaim, LedgerError> {
        let mut tx = self.0.begin().await?;
        let pace = sqlx::query!(
            r#"SELECT rate, gap_us,
                      greatest(extract(epoch FROM next_at - clock_timestamp()) * 1000000, 0)::bigint AS "wait_us!"
               FROM payment_pace WHERE channel = $1 FOR UPDATE"#,
            channel
        )
        .fetch_one(&mut *tx)
        .await?;
        let wait = Duration::from_micros(pace.wait_us.unsigned_abs());
        if wait > LOOKAHEAD {
            return Ok(PaymentClaim::Wait(wait - LOOKAHEAD));
        }
        let at_once = pace.rate.unsigned_abs().div_ceil(10).clamp(1, most.max(1));
        let ids: Vec<Uuid> = payments.iter().take(at_once as usize).map(|payment| payment.0).collect();
        // A locked payment is being abandoned or claimed. Its message stays unsettled, and is sent again if necessary.
        let due = sqlx::query_scalar!(
            "SELECT id FROM payments WHERE id = ANY($1) AND channel = $2 AND status || '' = 'created'
             ORDER BY created_at, id FOR UPDATE SKIP LOCKED",
            &ids,
            channel
        )
        .fetch_all(&mut *tx)
        .await?;
        let before = Instant::now();
        let rows = sqlx::query!(
            r#"WITH slots AS (
                 UPDATE payment_pace
                 SET next_at = greatest(next_at, clock_timestamp() + $3::bigint * interval '1 us')
                               + cardinality($1::uuid[]) * gap_us * interval '1 us'
                 WHERE channel = $2 AND cardinality($1::uuid[]) > 0
                 RETURNING next_at - cardinality($1::uuid[]) * gap_us * interval '1 us' AS first, gap_us, clock_timestamp() AS seen
               )
               UPDATE payments p
               SET status = 'sending', claim = p.claim + 1, sent_at = s.first + (n.nth - 1) * s.gap_us * interval '1 us',
                   ask_at = s.first + (n.nth - 1) * s.gap_us * interval '1 us' + $4::bigint * interval '1 us'
               FROM slots s, unnest($1::uuid[]) WITH ORDINALITY AS n (id, nth)
               WHERE p.id = n.id
               RETURNING p.id, p.order_id, p.amount_cents, p.currency, p.claim, n.nth AS "nth!",
                         (extract(epoch FROM s.first - s.seen) * 1000000)::bigint AS "first_us!",
                         extract(epoch FROM s.seen)::bigint AS "now_s!",
                         (extract(epoch FROM p.sent_at - p.created_at) * 1000000)::bigint AS "waited_us!""#,
            &due,
            channel,
            micros(LEAD),
            micros(ask_after)
        )
        .fetch_all(&mut *tx)
        .await?;
        let after = Instant::now();
        // Rows locked by the relay are skipped: the relay sends them once more. Payments that are being taken back are skipped too.
        sqlx::query!(
            "UPDATE outbox SET status = 'processed', processed_at = now()
             WHERE id IN (SELECT b.id FROM outbox b JOIN payments p ON p.id = b.order_id
                          WHERE b.kind = 'payment_requested' AND b.order_id = ANY($1) AND b.status || '' <> 'processed'
                            AND p.status <> 'created'
                          FOR UPDATE OF b, p SKIP LOCKED)",
            &ids
        )
        .execute(&mut *tx)
        .await?;
        tx.commit().await?;
        die_at!("pay.claimed");
        let mut payments: Vec<DuePayment> = rows
            .into_iter()
            .map(|row| {
                let us = row.first_us.max(0).unsigned_abs() + (row.nth - 1).unsigned_abs() * pace.gap_us.unsigned_abs();
                let slot = Duration::from_micros(us);
                DuePayment {
                    id: PaymentId(row.id),
                    order: OrderId(row.order_id),
                    amount_cents: row.amount_cents,
                    currency: row.currency,
                    waited: Duration::from_micros(row.waited_us.max(0).unsigned_abs()),
                    earliest: after + slot,
                    latest: before + slot + LATENESS,
                    claimed_at: before,
                    claim: row.claim,
                    now_s: row.now_s,
                }
            })
            .collect();
        payments.sort_by_key(|payment| payment.earliest);
        Ok(PaymentClaim::Due { payments, looked_at: ids.len() })
    }

    /// Takes back a payment that the channel does not have. It is sent again later, under the same key. If its order does not wait for it
    /// any more, it is abandoned when no request can be on its way. `sent`: how long one may be; `None` if none was sent.
    pub async fn take_back(
        &self,
        payment: PaymentId,
        claim: i32,
        sent: Option<Duration>,
        after: Duration,
    ) -> Result<(), LedgerError> {
        let mut tx = self.0.begin().await?;
        let pending = lock_order_of(&mut tx, payment).await?;
        let status = sqlx::query_scalar!(
            "UPDATE payments p SET status = t.status, unsure = unsure OR NOT $4,
                    ask_at = CASE WHEN t.status = p.status THEN ask_at END,
                    ended_at = CASE WHEN t.status = 'abandoned' THEN now() END
             FROM (SELECT CASE WHEN $3 THEN 'created'
                               WHEN $4 AND NOT unsure OR sent_at < now() - $5::bigint * interval '1 us' THEN 'abandoned'
                               ELSE status END AS status
                   FROM payments WHERE id = $1) t
             WHERE id = $1 AND claim = $2 AND p.status || '' IN ('sending', 'waiting') RETURNING p.status",
            payment.0,
            claim,
            pending,
            sent.is_none(),
            micros(sent.unwrap_or_default())
        )
        .fetch_optional(&mut *tx)
        .await?;
        tx.commit().await?;
        // Outside the transaction: a relay that waits for the broker may hold the row. After a crash, `resend_unsettled` finds the row.
        if status.as_deref() == Some("created") {
            self.postpone_payments(&[payment], after).await?;
        }
        Ok(())
    }

    pub async fn postpone_payments(&self, payments: &[PaymentId], after: Duration) -> Result<(), LedgerError> {
        let ids: Vec<Uuid> = payments.iter().map(|payment| payment.0).collect();
        self.0
            .run(sqlx::query!(
                "UPDATE outbox SET status = 'pending', next_attempt_at = now() + $2::bigint * interval '1 us',
                    processed_at = NULL
             WHERE id IN (SELECT b.id FROM outbox b JOIN payments p ON p.id = b.order_id
                          WHERE b.kind = 'payment_requested' AND b.order_id = ANY($1) AND p.status || '' = 'created'
                          ORDER BY b.id FOR UPDATE OF b)",
                &ids,
                micros(after)
            ))
            .await
    }

    /// Pauses a channel that asked for a pause or is away.
    pub async fn rest_channel(&self, channel: &str, rest: Duration) -> Result<(), LedgerError> {
        self.0
            .run(sqlx::query!(
                "UPDATE payment_pace SET next_at = greatest(next_at, clock_timestamp() + $2::bigint * interval '1 us')
             WHERE channel = $1",
                channel,
                micros(rest)
            ))
            .await
    }

    /// Delays the slots that are not claimed yet, because a request left later than its slot.
    pub async fn delay_channel(&self, channel: &str, late: Duration) -> Result<(), LedgerError> {
        self.0
            .run(sqlx::query!(
                "UPDATE payment_pace SET next_at = next_at + $2::bigint * interval '1 us' WHERE channel = $1",
                channel,
                micros(late)
            ))
            .await
    }

    /// The channel has accepted these payments, each sent under this claim. The outcome comes by a callback, or the channel is asked. A
    /// locked payment is skipped: another worker decides it or asks about it.
    pub async fn payments_taken(&self, sent: &[(PaymentId, i32)], ask_after: Duration) -> Result<(), LedgerError> {
        let (ids, claims): (Vec<Uuid>, Vec<i32>) = sent.iter().map(|(payment, claim)| (payment.0, *claim)).unzip();
        self.0
            .run(sqlx::query!(
                "UPDATE payments SET status = 'waiting', ask_at = now() + $3::bigint * interval '1 us'
             WHERE id IN (SELECT p.id FROM unnest($1::uuid[], $2::integer[]) AS sent (id, claim)
                          JOIN payments p ON p.id = sent.id AND p.claim = sent.claim
                          WHERE p.status || '' = 'sending' FOR UPDATE OF p SKIP LOCKED)",
                &ids,
                &claims,
                micros(ask_after)
            ))
            .await
    }

    /// It is unknown whether the payment has reached the channel. The channel is asked after a while.
    pub async fn ask_soon(&self, payment: PaymentId, claim: i32, after: Duration) -> Result<(), LedgerError> {
        self.0
            .run(sqlx::query!(
                "UPDATE payments SET ask_at = now() + $3::bigint * interval '1 us'
             WHERE id = $1 AND claim = $2 AND status || '' = 'sending'",
                payment.0,
                claim,
                micros(after)
            ))
            .await
    }
}
