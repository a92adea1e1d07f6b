//! Counts of requests to policies, by the minute.

use std::ops::Range;

use crate::{LedgerError, Policies};

/// The counts of a policy in one minute since the epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PolicyMinute {
    pub minute: i64,
    pub granted: u64,
    pub refused: u64,
    pub waited_ms: u64,
    pub failed: u64,
}

impl Policies {
    /// Writes the counts of one minute. A count only grows.
    pub async fn write_minute(&self, policy: i64, minute: &PolicyMinute) -> Result<(), LedgerError> {
        let [granted, refused, waited_ms, failed] =
            [minute.granted, minute.refused, minute.waited_ms, minute.failed].map(u64::cast_signed);
        self.0
            .run(sqlx::query!(
                "INSERT INTO policy_minutes (policy_id, minute, granted, refused, waited_ms, failed)
             VALUES ($1, to_timestamp($2::bigint * 60), $3, $4, $5, $6)
             ON CONFLICT (policy_id, minute) DO UPDATE
             SET granted = excluded.granted, refused = excluded.refused, waited_ms = excluded.waited_ms,
                 failed = excluded.failed
             WHERE policy_minutes.granted + policy_minutes.refused + policy_minutes.failed
                   < excluded.granted + excluded.refused + excluded.failed",
                policy,
                minute.minute,
                granted,
                refused,
                waited_ms,
                failed
            ))
            .await
    }

    /// The counts of a policy in a range of minutes since the epoch, by time. Minutes without a call have no row.
    pub async fn policy_minutes(&self, policy: i64, range: Range<i64>) -> Result<Vec<PolicyMinute>, LedgerError> {
        let rows = sqlx::query!(
            r#"SELECT floor(extract(epoch FROM minute) / 60)::bigint AS "minute!", granted, refused, waited_ms, failed
               FROM policy_minutes
               WHERE policy_id = $1 AND minute >= to_timestamp($2::bigint * 60) AND minute < to_timestamp($3::bigint * 60)
               ORDER BY minute"#,
            policy,
            range.start,
            range.end
        );
        let minutes = rows.fetch_all(&self.0.pool).await?.into_iter().map(|row| {
            let [granted, refused, waited_ms, failed] =
                [row.granted, row.refused, row.waited_ms, row.failed].map(i64::unsigned_abs);
            PolicyMinute { minute: row.minute, granted, refused, waited_ms, failed }
        });
        Ok(minutes.collect())
    }

    pub async fn clear_minutes(&self) -> Result<(), LedgerError> {
        self.0.run(sqlx::query!("DELETE FROM policy_minutes WHERE minute < now() - interval '90 days'")).await
    }
}
