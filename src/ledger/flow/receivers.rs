//! Receivers of requests that cannot be connected to.

use crate::ledger::{Ledger, LedgerError};

/// A receiver that is away.
#[derive(Debug, Clone)]
pub struct ReceiverAway {
    pub receiver: String,
    /// For how long, in seconds.
    pub away_s: i64,
    pub error: String,
}

impl Ledger {
    /// Records that a receiver could not be connected to. It counts as away since the first such attempt after a minute
    /// without one.
    pub async fn receiver_is_away(&self, receiver: &str, error: &str) -> Result<(), LedgerError> {
        sqlx::query!(
            "INSERT INTO receivers_away AS known (receiver, error) VALUES ($1, left($2, 1000))
             ON CONFLICT (receiver) DO UPDATE
             SET tried_at = now(), error = excluded.error,
                 since = CASE WHEN known.tried_at < now() - interval '1 minute' THEN now() ELSE known.since END",
            receiver,
            error
        )
        .execute(&self.pool)
        .await?;
        Ok(())
    }

    /// The receivers that have been away for so long, and were tried within the last minute.
    pub async fn receivers_away(&self, away_s: i64) -> Result<Vec<ReceiverAway>, LedgerError> {
        let away = sqlx::query_as!(
            ReceiverAway,
            r#"SELECT receiver, extract(epoch FROM now() - since)::bigint AS "away_s!", error FROM receivers_away
               WHERE tried_at >= now() - interval '1 minute' AND since <= now() - $1::bigint * interval '1 second'"#,
            away_s
        );
        Ok(away.fetch_all(&self.pool).await?)
    }
}
