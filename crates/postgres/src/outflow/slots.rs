//! Slots of an outflow. Lock order: key, item, channel. Only a claim locks its channel first, and skips locked keys: no deadlock.

use std::time::{Duration, Instant};

use serde_json::Value;
use sqlx::{PgConnection, Postgres, Transaction};
use uuid::Uuid;

use crate::outbox::{RetryPolicy, one_line};
use crate::outflow::items::drop_key_if_empty;
use crate::receivers::withdraw_probe;
use crate::{LedgerError, Outflows, micros};
use seckill_domain::delivery::{AWAY_FROM, DeliveryOutcome, ReceiverFailure};
use seckill_domain::outflow::{LATENESS, LEAD, LOOKAHEAD};
use seckill_webhook::backoff_ms;

#[derive(Debug, Clone)]
pub struct Slot {
    pub item: Uuid,
    pub channel: String,
    pub key: String,
    pub payload: Value,
    pub target: String,
    /// If the item is a refund: its payment channel.
    pub payment_channel: Option<String>,
    /// The channel's rate, per second.
    pub rate: u32,
    /// The earliest time of the slot, by this process's clock.
    pub at: Instant,
    /// The latest time of the slot, and the earliest time to send the item.
    pub earliest: Instant,
    /// The latest time to send the item.
    pub latest: Instant,
    pub claimed_at: Instant,
    /// Whether the receiver was well when the slot was claimed, so that a failure may be the item's.
    is_well: bool,
    claim: i32,
    attempts: u32,
    /// By PostgreSQL's clock, in microseconds since the epoch.
    at_us: i64,
    gap_us: i64,
    turn_us: i64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlotOutcome {
    Done,
    WillRetry,
    Parked,
    /// The item is done, or another claim has it. Nothing was changed.
    Overtaken,
}

/// The name of an outflow's receiver.
fn receiver(channel: &str) -> String {
    format!("outflow {channel}")
}

impl Slot {
    pub fn receiver(&self) -> String {
        receiver(&self.channel)
    }

    /// The slot's time by PostgreSQL's clock, in seconds since the epoch.
    pub fn at_s(&self) -> i64 {
        self.at_us / 1_000_000
    }
}

impl Outflows {
    /// Claims the next slot of a channel with due items, together with an item. Keys take turns, and items of a key are first in, first
    /// out. Returns `None`, without using a slot, if no item is due, the next slot is too far away, or other workers hold the rows. Skips
    /// channels in `without`, and refunds of payment channels outside `payment_channels`.
    pub async fn claim_slot(
        &self,
        without: &[String],
        payment_channels: &[String],
        lease: Duration,
    ) -> Result<Option<Slot>, LedgerError> {
        let mut tx = self.0.begin().await?;
        // Random among the channels with work, so that none is always last. Not FOR UPDATE: a transaction that adds an item holds its
        // channel's row by the foreign key, and must not block a claim.
        let channel = sqlx::query!(
            r#"SELECT c.name, c.target, c.payment_channel, c.rate, c.gap_us, r.failures AS "failures?" FROM outflow_channels c
             LEFT JOIN receivers_away r ON r.receiver = 'outflow ' || c.name
             WHERE NOT c.paused AND c.name <> ALL($1)
               AND (r.pauses_until IS NULL OR r.pauses_until <= clock_timestamp())
               AND (c.payment_channel IS NULL OR c.payment_channel = ANY($3))
               AND c.next_at <= clock_timestamp() + $2::bigint * interval '1 us'
               AND EXISTS (SELECT FROM outflow_keys k WHERE k.channel = c.name AND k.turn_at <= now())
             ORDER BY random() LIMIT 1 FOR NO KEY UPDATE OF c SKIP LOCKED"#,
            without,
            micros(LOOKAHEAD),
            payment_channels
        )
        .fetch_optional(&mut *tx)
        .await?;
        let Some(channel) = channel else { return Ok(None) };
        let is_well = channel.failures.is_none_or(|failures| failures.unsigned_abs() < AWAY_FROM);
        // PostgreSQL reads its clock between `before` and `after`.
        let before = Instant::now();
        let claimed = sqlx::query!(
            r#"WITH turn AS MATERIALIZED (
                   SELECT k.key, k.turn_at FROM outflow_keys k
                   WHERE k.channel = $1 AND k.turn_at <= now()
                     AND EXISTS (SELECT FROM outflow_items i WHERE i.channel = $1 AND i.key = k.key
                                 AND i.status IN ('pending', 'sending') OFFSET 0)
                   ORDER BY k.turn_at, k.key LIMIT 1 FOR UPDATE SKIP LOCKED
               ), head AS MATERIALIZED (
                   SELECT i.id FROM outflow_items i, turn
                   WHERE i.channel = $1 AND i.key = turn.key AND i.status IN ('pending', 'sending')
                   ORDER BY i.seq LIMIT 1
               ), slot AS (
                   UPDATE outflow_channels c
                   SET next_at = greatest(c.next_at, clock_timestamp() + $2::bigint * interval '1 us')
                                 + c.gap_us * interval '1 us'
                   FROM head WHERE c.name = $1 RETURNING c.next_at - c.gap_us * interval '1 us' AS at
               ), held AS (
                   UPDATE outflow_keys k SET turn_at = slot.at + $3::bigint * interval '1 us'
                   FROM turn, slot WHERE k.channel = $1 AND k.key = turn.key
               )
               UPDATE outflow_items i
               SET status = 'sending', claims = i.claims + 1, claimed_until = slot.at + $3::bigint * interval '1 us'
               FROM head, slot, turn WHERE i.id = head.id AND i.status || '' IN ('pending', 'sending')
               RETURNING i.id, i.key, i.payload, i.claims, i.attempts,
                         (extract(epoch FROM slot.at) * 1000000)::bigint AS "at_us!",
                         (extract(epoch FROM turn.turn_at) * 1000000)::bigint AS "turn_us!",
                         (extract(epoch FROM slot.at - clock_timestamp()) * 1000000)::bigint AS "wait_us!""#,
            channel.name,
            micros(LEAD),
            micros(lease)
        )
        .fetch_optional(&mut *tx)
        .await?;
        let after = Instant::now();
        // No item can be claimed now. The rollback returns the slot.
        let Some(row) = claimed else { return Ok(None) };
        if channel.failures.is_some() {
            self.0.away.lock().entry(receiver(&channel.name)).or_default();
        }
        if !is_well {
            // This item is the only probe until its outcome is known.
            sqlx::query!(
                "UPDATE receivers_away SET pauses_until = clock_timestamp() + $2::bigint * interval '1 us' WHERE receiver = $1",
                receiver(&channel.name),
                micros(lease)
            )
            .execute(&mut *tx)
            .await?;
        }
        tx.commit().await?;
        let wait = Duration::from_micros(row.wait_us.max(0).unsigned_abs());
        Ok(Some(Slot {
            item: row.id,
            channel: channel.name,
            key: row.key,
            payload: row.payload,
            target: channel.target,
            payment_channel: channel.payment_channel,
            rate: channel.rate.unsigned_abs(),
            at: before + wait,
            earliest: after + wait,
            latest: before + wait + LATENESS,
            claimed_at: before,
            is_well,
            claim: row.claims,
            attempts: row.attempts.unsigned_abs(),
            at_us: row.at_us,
            gap_us: channel.gap_us,
            turn_us: row.turn_us,
        }))
    }

    /// How long until a slot may be due; `None` if no running channel has waiting items.
    pub async fn next_slot(
        &self,
        without: &[String],
        payment_channels: &[String],
    ) -> Result<Option<Duration>, LedgerError> {
        let wait_us = sqlx::query_scalar!(
            "SELECT (extract(epoch FROM min(greatest(c.next_at - $2::bigint * interval '1 us', k.turn_at, r.pauses_until))
                                        - clock_timestamp()) * 1000000)::bigint
             FROM outflow_channels c
             LEFT JOIN receivers_away r ON r.receiver = 'outflow ' || c.name
             CROSS JOIN LATERAL (SELECT turn_at FROM outflow_keys WHERE channel = c.name ORDER BY turn_at LIMIT 1) k
             WHERE NOT c.paused AND c.name <> ALL($1)
               AND (c.payment_channel IS NULL OR c.payment_channel = ANY($3))",
            without,
            micros(LOOKAHEAD),
            payment_channels
        )
        .fetch_one(&self.0.pool)
        .await?;
        Ok(wait_us.map(|us| Duration::from_micros(us.max(0).unsigned_abs())))
    }

    /// Returns an unused slot. The item keeps its turn. The next claim gets the slot, unless later slots are already claimed.
    pub async fn give_back(&self, slot: &Slot) -> Result<(), LedgerError> {
        let mut tx = self.0.begin().await?;
        if !self.let_go(&mut tx, slot).await? {
            return Ok(());
        }
        if !slot.is_well {
            withdraw_probe(&mut *tx, &slot.receiver()).await?;
        }
        sqlx::query!(
            "UPDATE outflow_channels SET next_at = greatest(next_at - gap_us * interval '1 us', clock_timestamp())
             WHERE name = $1 AND gap_us = $3 AND (extract(epoch FROM next_at) * 1000000)::bigint = $2::bigint + $3",
            slot.channel,
            slot.at_us,
            slot.gap_us
        )
        .execute(&mut *tx)
        .await?;
        Ok(tx.commit().await?)
    }

    /// Delays the unclaimed slots: a request left late, and the next ones could come too close to it.
    pub async fn leave_hole(&self, channel: &str, late: Duration) -> Result<(), LedgerError> {
        self.0
            .run(sqlx::query!(
                "UPDATE outflow_channels SET next_at = next_at + $2::bigint * interval '1 us' WHERE name = $1",
                channel,
                micros(late)
            ))
            .await
    }

    pub async fn settle_slot(
        &self,
        slot: &Slot,
        outcome: &DeliveryOutcome,
        terms: RetryPolicy,
    ) -> Result<SlotOutcome, LedgerError> {
        let mut tx = self.0.begin().await?;
        let settled = match outcome {
            DeliveryOutcome::Done => finish(&mut tx, slot).await?,
            DeliveryOutcome::Refused(why) => fail(&mut tx, slot, why, None).await?,
            DeliveryOutcome::Failed(ReceiverFailure { why, may_have_taken_effect: true, .. }) if slot.is_well => {
                let attempts = slot.attempts + 1;
                let wait = backoff_ms(attempts, terms.backoff_base_ms, terms.backoff_max_ms, rand::random());
                fail(&mut tx, slot, why, (attempts < terms.max_attempts).then_some(wait)).await?
            }
            // No attempt is counted. The next probe is an item of another key: the receiver may fail because of this one.
            DeliveryOutcome::Failed(ReceiverFailure { why, may_have_taken_effect, .. }) => {
                if !self.let_go(&mut tx, slot).await? {
                    return Ok(SlotOutcome::Overtaken);
                }
                sqlx::query!("UPDATE outflow_items SET last_error = $2 WHERE id = $1", slot.item, one_line(why))
                    .execute(&mut *tx)
                    .await?;
                if *may_have_taken_effect {
                    pass_turn(&mut tx, slot, 0).await?;
                }
                SlotOutcome::WillRetry
            }
        };
        tx.commit().await?;
        Ok(settled)
    }

    /// Makes the item pending again, with its key's turn. Returns `false` if another claim has it.
    async fn let_go(&self, tx: &mut Transaction<'static, Postgres>, slot: &Slot) -> Result<bool, LedgerError> {
        lock_key(tx, slot).await?;
        let ours = sqlx::query!(
            "UPDATE outflow_items SET status = 'pending', claimed_until = NULL
             WHERE id = $1 AND status || '' = 'sending' AND claims = $2",
            slot.item,
            slot.claim
        )
        .execute(&mut **tx)
        .await?;
        if ours.rows_affected() == 0 {
            return Ok(false);
        }
        sqlx::query!(
            "UPDATE outflow_keys SET turn_at = to_timestamp(0) + $3::bigint * interval '1 us'
         WHERE channel = $1 AND key = $2",
            slot.channel,
            slot.key,
            slot.turn_us
        )
        .execute(&mut **tx)
        .await?;
        Ok(true)
    }
}

/// The receiver has the item, so it is done, even if another claim has it now.
async fn finish(tx: &mut PgConnection, slot: &Slot) -> Result<SlotOutcome, LedgerError> {
    lock_key(tx, slot).await?;
    let was = sqlx::query_scalar!("SELECT status FROM outflow_items WHERE id = $1", slot.item);
    let was = was.fetch_optional(&mut *tx).await?;
    let Some(was) = was.filter(|was| was != "done") else { return Ok(SlotOutcome::Overtaken) };
    sqlx::query!(
        "UPDATE outflow_items SET status = 'done', done_at = now(), claimed_until = NULL, last_error = NULL
         WHERE id = $1",
        slot.item
    )
    .execute(&mut *tx)
    .await?;
    // When the item was parked, its key's turn was passed on. The turn now belongs to another item.
    if was != "parked" {
        pass_turn(tx, slot, 0).await?;
    }
    Ok(SlotOutcome::Done)
}

/// Counts a failure of an item that this claim still has. The item waits, or is parked.
async fn fail(
    tx: &mut PgConnection,
    slot: &Slot,
    why: &str,
    retry_in_ms: Option<u64>,
) -> Result<SlotOutcome, LedgerError> {
    lock_key(tx, slot).await?;
    let failed = sqlx::query!(
        "UPDATE outflow_items SET status = $3, attempts = attempts + 1, claimed_until = NULL, last_error = $4
         WHERE id = $1 AND status || '' = 'sending' AND claims = $2",
        slot.item,
        slot.claim,
        if retry_in_ms.is_some() { "pending" } else { "parked" },
        one_line(why)
    )
    .execute(&mut *tx)
    .await?;
    if failed.rows_affected() == 0 {
        return Ok(SlotOutcome::Overtaken);
    }
    pass_turn(tx, slot, retry_in_ms.unwrap_or(0)).await?;
    Ok(if retry_in_ms.is_some() { SlotOutcome::WillRetry } else { SlotOutcome::Parked })
}

/// Locks the key's row. Every change or addition of the key's items needs this lock.
async fn lock_key(tx: &mut PgConnection, slot: &Slot) -> Result<(), LedgerError> {
    sqlx::query!("SELECT FROM outflow_keys WHERE channel = $1 AND key = $2 FOR UPDATE", slot.channel, slot.key)
        .execute(tx)
        .await?;
    Ok(())
}

/// Moves the key to the end of the queue of keys. Removes it if it has no waiting items.
async fn pass_turn(tx: &mut PgConnection, slot: &Slot, wait_ms: u64) -> Result<(), LedgerError> {
    if drop_key_if_empty(tx, &slot.channel, &slot.key).await? {
        return Ok(());
    }
    sqlx::query!(
        "UPDATE outflow_keys SET turn_at = clock_timestamp() + $3::bigint * interval '1 us'
         WHERE channel = $1 AND key = $2",
        slot.channel,
        slot.key,
        wait_ms.saturating_mul(1_000).cast_signed()
    )
    .execute(tx)
    .await?;
    Ok(())
}
