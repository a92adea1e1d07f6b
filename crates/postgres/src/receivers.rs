//! Receivers that fail (`seckill_domain::delivery`). All senders of all processes share what is known of one.

use std::time::{Duration, Instant};

use serde_json::json;
use sqlx::PgExecutor;

use crate::{LedgerError, Receivers, micros};
use seckill_domain::alarm::Trouble;
use seckill_domain::delivery::{AWAY_FROM, DeliveryOutcome, PAUSE_MAX, PAUSE_MIN, ReceiverFailure, Standing};

/// A receiver raises an alarm after this time without a success. A shorter absence may be a restart.
const RECEIVER_AWAY_S: i64 = 10;
/// So long after the last try and its pause, nothing more is waiting for the receiver: the alarm is cleared, and the next failure is the first.
const FORGOTTEN_S: i64 = 600;

impl Receivers {
    pub async fn standing(&self, receiver: &str) -> Result<Standing, LedgerError> {
        let row = sqlx::query!(
            r#"SELECT failures, (extract(epoch FROM pauses_until - clock_timestamp()) * 1000000)::bigint AS "wait_us!"
               FROM receivers_away WHERE receiver = $1"#,
            receiver
        );
        let Some(row) = row.fetch_optional(&self.0.pool).await? else {
            self.0.away.lock().remove(receiver);
            return Ok(Standing::Well);
        };
        self.0.away.lock().entry(receiver.to_owned()).or_default();
        Ok(match u64::try_from(row.wait_us) {
            Ok(wait_us) if wait_us > 0 => Standing::Pauses(Duration::from_micros(wait_us)),
            _ if row.failures.unsigned_abs() < AWAY_FROM => Standing::Well,
            _ => Standing::ProbeDue,
        })
    }

    /// Takes the right to send one probe. Returns `false` if another sender has it. A probe without an outcome, because its sender died,
    /// is followed by another after `lease`.
    pub async fn begin_probe(&self, receiver: &str, lease: Duration) -> Result<bool, LedgerError> {
        let begun = sqlx::query!(
            "UPDATE receivers_away SET pauses_until = clock_timestamp() + $2::bigint * interval '1 us'
             WHERE receiver = $1 AND pauses_until <= clock_timestamp()",
            receiver,
            micros(lease)
        );
        Ok(begun.execute(&self.0.pool).await?.rows_affected() == 1)
    }

    /// Gives back the right to a probe that was not sent.
    pub async fn withdraw_probe(&self, receiver: &str) -> Result<(), LedgerError> {
        withdraw_probe(&self.0.pool, receiver).await
    }

    /// Records the outcome of a request that was claimed at `sent` or later. A success costs a statement only after a failure.
    pub async fn note(&self, receiver: &str, sent: Instant, outcome: &DeliveryOutcome) {
        let noting = async {
            match outcome {
                DeliveryOutcome::Failed(failure) => self.note_failure(receiver, sent, failure).await,
                DeliveryOutcome::Done | DeliveryOutcome::Refused(_)
                    if self.0.away.lock().remove(receiver).is_some() =>
                {
                    self.0.run(sqlx::query!("DELETE FROM receivers_away WHERE receiver = $1", receiver)).await?;
                    Ok(())
                }
                DeliveryOutcome::Done | DeliveryOutcome::Refused(_) => Ok(()),
            }
        };
        if let Err(error) = self.0.in_time(noting).await {
            tracing::warn!(%error, receiver, "not written whether a receiver fails");
        }
    }

    /// Requests that were under way together count as one failure: only a request from after the last failure counts.
    async fn note_failure(&self, receiver: &str, sent: Instant, failure: &ReceiverFailure) -> Result<(), LedgerError> {
        let ReceiverFailure { why, asks_pause, .. } = failure;
        let why = &match asks_pause {
            Some(pause) => format!("{why}; it asks for a pause of {} s", pause.as_secs_f64().ceil()),
            None => why.to_owned(),
        };
        let noted = sqlx::query!(
            r#"INSERT INTO receivers_away AS known (receiver, error, pauses_until)
               VALUES ($1, left($2, 1000), clock_timestamp() + $3::bigint * interval '1 us')
               ON CONFLICT (receiver) DO UPDATE
               SET tried_at = now(), error = excluded.error,
                   since = CASE WHEN greatest(known.tried_at, known.pauses_until) < now() - $8::bigint * interval '1 s' THEN now()
                                ELSE known.since END,
                   failures = CASE WHEN greatest(known.tried_at, known.pauses_until) < now() - $8::bigint * interval '1 s' THEN 1
                                   WHEN known.tried_at < now() - $4::bigint * interval '1 us' THEN least(known.failures, 1000) + 1
                                   ELSE known.failures END,
                   pauses_until = greatest(
                       excluded.pauses_until,
                       CASE WHEN known.tried_at >= now() - $4::bigint * interval '1 us' THEN known.pauses_until
                            WHEN greatest(known.tried_at, known.pauses_until) < now() - $8::bigint * interval '1 s' THEN now()
                            WHEN known.failures + 1 >= $5 THEN now() + least(
                                $6::bigint * power(2, least(known.failures + 1 - $5, 20)), $7::bigint) * interval '1 us'
                            ELSE now() END)
               RETURNING failures, (extract(epoch FROM pauses_until - now()) * 1000)::bigint AS "pause_ms!""#,
            receiver,
            why,
            micros(asks_pause.unwrap_or_default()),
            micros(sent.elapsed()),
            AWAY_FROM.cast_signed(),
            micros(PAUSE_MIN.mul_f64(rand::random_range(0.8..1.2))),
            micros(PAUSE_MAX.mul_f64(rand::random_range(0.8..1.0))),
            FORGOTTEN_S
        )
        .fetch_one(&self.0.pool)
        .await?;
        let (failures, pause_ms) = (noted.failures, noted.pause_ms);
        let logged = self.0.away.lock().insert(receiver.to_owned(), failures);
        match asks_pause {
            _ if logged == Some(failures) => {}
            // The item's sender has logged the failure. Only several in a row are the receiver's.
            None if failures.unsigned_abs() < AWAY_FROM => {}
            Some(_) => tracing::warn!(receiver, why, pause_ms, "the receiver asks for a pause"),
            None => tracing::warn!(receiver, why, failures, pause_ms, "the receiver fails"),
        }
        Ok(())
    }

    /// The receivers that have failed for a while, and were tried not long ago.
    pub async fn dead(&self) -> Result<Vec<Trouble>, LedgerError> {
        let away = sqlx::query!(
            r#"SELECT receiver, extract(epoch FROM now() - since)::bigint AS "away_s!", error FROM receivers_away
               WHERE greatest(tried_at, pauses_until) >= now() - $2::bigint * interval '1 second'
                 AND since <= now() - $1::bigint * interval '1 second'"#,
            RECEIVER_AWAY_S,
            FORGOTTEN_S
        );
        let details = |away_s: i64, error: &str| json!({ "away_s": away_s, "error": error });
        let away = away.fetch_all(&self.0.pool).await?;
        Ok(away.iter().map(|row| Trouble::new(&row.receiver, details(row.away_s, &row.error))).collect())
    }
}

pub(crate) async fn withdraw_probe(executor: impl PgExecutor<'_>, receiver: &str) -> Result<(), LedgerError> {
    sqlx::query!("UPDATE receivers_away SET pauses_until = clock_timestamp() WHERE receiver = $1", receiver)
        .execute(executor)
        .await?;
    Ok(())
}
