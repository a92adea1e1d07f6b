//! Receivers that refuse connections.

use serde_json::json;

use crate::{LedgerError, Policies};
use seckill_domain::alarm::Trouble;

/// A receiver raises an alarm after this time away. A shorter absence may be a restart.
const RECEIVER_AWAY_S: i64 = 10;

impl Policies {
    /// Records whether a connection to a receiver succeeded. A success costs a statement only after this process has reported a failure.
    pub async fn note_receiver(&self, receiver: &str, reached: Option<Result<(), String>>) {
        let statement = match reached {
            Some(Err(why)) => {
                self.0.away.lock().insert(receiver.to_owned());
                // A receiver is away since the first failed attempt. After a minute without a failure, the time starts again.
                sqlx::query!(
                    "INSERT INTO receivers_away AS known (receiver, error) VALUES ($1, left($2, 1000))
                     ON CONFLICT (receiver) DO UPDATE
                     SET tried_at = now(), error = excluded.error,
                         since = CASE WHEN known.tried_at < now() - interval '1 minute' THEN now() ELSE known.since END",
                    receiver,
                    why
                )
            }
            Some(Ok(())) if self.0.away.lock().remove(receiver) => {
                sqlx::query!("DELETE FROM receivers_away WHERE receiver = $1", receiver)
            }
            Some(Ok(())) | None => return,
        };
        if let Err(error) = self.0.in_time(self.0.run(statement)).await {
            tracing::debug!(%error, receiver, "not written whether a receiver is away");
        }
    }

    /// The receivers that have been away for a while, and were tried within the last minute.
    pub async fn dead_receivers(&self) -> Result<Vec<Trouble>, LedgerError> {
        let away = sqlx::query!(
            r#"SELECT receiver, extract(epoch FROM now() - since)::bigint AS "away_s!", error FROM receivers_away
               WHERE tried_at >= now() - interval '1 minute' AND since <= now() - $1::bigint * interval '1 second'"#,
            RECEIVER_AWAY_S
        );
        let details = |away_s: i64, error: &str| json!({ "away_s": away_s, "error": error });
        let away = away.fetch_all(&self.0.pool).await?;
        Ok(away.iter().map(|row| Trouble::new(&row.receiver, details(row.away_s, &row.error))).collect())
    }
}
