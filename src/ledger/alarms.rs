//! Alarms: raised while something is wrong, cleared by themselves when it is not.

use chrono::{DateTime, Utc};
use serde_json::{Value, json};

use super::{Ledger, LedgerError};
use crate::domain::alarm::{Kind, Trouble};

/// An alarm as it stands.
#[derive(Debug, Clone)]
pub struct Alarm {
    pub id: i64,
    pub kind: String,
    pub subject: String,
    pub details: Value,
    pub raised_at: DateTime<Utc>,
    pub cleared_at: Option<DateTime<Utc>>,
}

impl Ledger {
    /// Takes in everything that is wrong of one kind at the moment: what is new is raised, what is not there any more is
    /// cleared. Any number of workers may say so at once.
    pub async fn judge(&self, kind: Kind, wrong: &[Trouble]) -> Result<(u64, u64), LedgerError> {
        let subjects: Vec<String> = wrong.iter().map(|trouble| trouble.subject.clone()).collect();
        let details: Vec<Value> = wrong.iter().map(|trouble| trouble.details.clone()).collect();
        let mut tx = self.pool.begin().await?;
        let raised = sqlx::query!(
            "INSERT INTO alarms (kind, subject, details)
             SELECT $1, subject, details FROM unnest($2::text[], $3::jsonb[]) AS wrong (subject, details)
             ON CONFLICT (kind, subject) WHERE cleared_at IS NULL DO NOTHING",
            kind.as_str(),
            &subjects,
            &details
        )
        .execute(&mut *tx)
        .await?;
        let cleared = sqlx::query!(
            "UPDATE alarms SET cleared_at = now(), attempts = 0, next_at = now()
             WHERE kind = $1 AND cleared_at IS NULL AND subject <> ALL($2)",
            kind.as_str(),
            &subjects
        )
        .execute(&mut *tx)
        .await?;
        tx.commit().await?;
        Ok((raised.rows_affected(), cleared.rows_affected()))
    }

    /// The newest alarms, those that are open first.
    pub async fn alarms(&self, limit: i64) -> Result<Vec<Alarm>, LedgerError> {
        let alarms = sqlx::query_as!(
            Alarm,
            "SELECT id, kind, subject, details, raised_at, cleared_at FROM alarms
             ORDER BY (cleared_at IS NULL) DESC, id DESC LIMIT $1",
            limit
        );
        Ok(alarms.fetch_all(&self.pool).await?)
    }

    /// Trouble that the tables themselves show.
    pub async fn troubles(&self, outbox_age_s: i64) -> Result<Vec<(Kind, Vec<Trouble>)>, LedgerError> {
        let row = sqlx::query!(
            r#"SELECT (SELECT count(*) FROM outbox WHERE status = 'parked') AS "parked!",
                      (SELECT extract(epoch FROM now() - min(created_at))::bigint FROM outbox
                       WHERE status = 'pending' AND kind IN ('order_placed', 'order_expire')) AS send_age_s,
                      (SELECT extract(epoch FROM now() - min(created_at))::bigint FROM outbox
                       WHERE status = 'pending' AND kind IN ('hold_release', 'wave_release')) AS release_age_s"#
        )
        .fetch_one(&self.pool)
        .await?;
        let parked = (row.parked > 0).then(|| Trouble::new("outbox", json!({ "rows": row.parked })));
        let ages = [("to be published", row.send_age_s), ("to be released", row.release_age_s)];
        let old = ages.into_iter().filter_map(|(what, age_s)| {
            let age_s = age_s.filter(|age_s| *age_s >= outbox_age_s)?;
            Some(Trouble::new(what, json!({ "oldest_s": age_s })))
        });
        let drift = sqlx::query_scalar!(
            "SELECT DISTINCT subject FROM audit_log
             WHERE actor = 'reconciler' AND action = 'drift' AND at > now() - interval '1 minute'"
        )
        .fetch_all(&self.pool)
        .await?;
        let drift = drift.iter().map(|sale| Trouble::new(sale, json!({})));
        Ok(vec![
            (Kind::Parked, parked.into_iter().collect()),
            (Kind::OutboxOld, old.collect()),
            (Kind::Drift, drift.collect()),
        ])
    }
}
